"""The card of `attn serve`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "serve",
            "A web page of a model, which answers what you type",
            "Models",
            command="question:command",
        ),
    ),
    needs=("generate", "why"),
    docs="serve.md",
)
