"""The card of `attn lesson`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "lesson",
            "Short lessons that run in the terminal",
            "Learn",
            command="question:command",
            synonyms="tutorial learn docs course examples list",
        ),
    ),
)
