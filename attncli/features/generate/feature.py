"""The card of `attn generate`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "generate",
            "Attention while a model writes",
            "Models",
            spec="question:GenerateSpec",
            synonyms="chat complete completion write sample",
        ),
    ),
    results={"generate": "results:WrittenText"},
    screens={"results:WrittenText": "screens:WRITER_SCREEN"},
    functions={"generate": "door:generate"},
    extras=("models",),
    docs="generate.md",
    papers={
        "top_p": "holtzman2019",
    },
)
