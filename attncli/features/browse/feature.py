"""The card of `attn browse`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "browse",
            "Look through heads and tokens in the terminal",
            "Models",
            command="question:command",
            synonyms="tui ui interactive explore gui",
        ),
    ),
    needs=("heads", "ablate", "why"),
    docs="browse.md",
)
