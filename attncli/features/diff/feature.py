"""The card of `attn diff`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "diff",
            "Two experiments or saved reports side by side",
            "See",
            command="question:command",
            synonyms="compare",
        ),
    ),
    results={"diff of texts": "results:TextDifferences", "diff": "results:ReportDifferences"},
    screens={
        "results:ReportDifferences": "screens:COMPARISON_SCREEN",
        "results:TextDifferences": "screens:TWO_TEXTS_SCREEN",
    },
    functions={
        "text_differences": "door:text_differences",
        "changed_heads": "differences:changed_heads",
        "head_differences": "differences:head_differences",
    },
    docs="show.md",
)
