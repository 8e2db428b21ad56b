"""The card of `attn average`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "average", "Average each token with its past, in three ways", "Learn", spec="question:AverageSpec"
        ),
    ),
    results={"average": "results:AverageStatistics"},
    screens={"results:AverageStatistics": "screens:AVERAGE_SCREEN"},
    lessons=("lessons/12-dot-product.md",),
)
