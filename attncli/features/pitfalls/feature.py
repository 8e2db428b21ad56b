"""The card of `attn pitfalls`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "pitfalls",
            "Classic mistakes, each next to the right way",
            "Learn",
            spec="question:PitfallsSpec",
            synonyms="mistakes bugs",
        ),
    ),
    results={
        "pitfalls": "results:Mistakes",
        "pitfalls of one": "results:MistakeComparison",
    },
    screens={
        "results:Mistakes": "screens:MISTAKES_SCREEN",
        "results:MistakeComparison": "screens:MISTAKE_SCREEN",
    },
)
