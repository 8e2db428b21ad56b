"""The card of `attn results`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "results",
            "Statistics of stored runs by group, or all their values",
            "Many runs",
            command="question:command",
            synonyms="summary stats query report",
            opens={"": ".db .sqlite .sqlite3"},
        ),
    ),
    results={"results": "results:StoreSummary"},
    screens={"results:StoreSummary": "screens:SUMMARY_SCREEN"},
    docs="batch.md",
)
