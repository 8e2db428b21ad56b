"""The card of `attn serve`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "serve",
            "A web page that answers questions about a model",
            "Models",
            command="question:command",
        ),
    ),
    needs=("generate", "why"),
    docs="serve.md",
)
