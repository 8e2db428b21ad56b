"""The card of `attn heads --examples`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "examples",
            "The texts with the largest statistic of one head",
            spec="settings:ExamplesSpec",
            page="question:PAGE",
            form_of="heads",
            asked_by="num_examples",
        ),
    ),
    results={"heads of examples": "results:HeadExamples"},
    screens={"results:HeadExamples": "screens:EXAMPLES_SCREEN"},
    page={"results:HeadExamples": "page:EXAMPLES"},
    functions={"examples": "door:examples"},
    needs=("heads",),
    extras=("models",),
    docs="survey.md",
)
