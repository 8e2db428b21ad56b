"""The card of `attn batch`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "batch",
            "Run the experiments of config files",
            "Many runs",
            command="question:command",
            synonyms="run sweep grid experiments",
            opens={"": ".yaml .yml"},
        ),
    ),
    docs="batch.md",
)
