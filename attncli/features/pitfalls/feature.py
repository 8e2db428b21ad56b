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
        "pitfalls": "attncli.records.demonstrations:Mistakes",
        "pitfalls of one": "attncli.records.demonstrations:MistakeComparison",
    },
    screens={
        "attncli.records.demonstrations:Mistakes": "screens:MISTAKES_SCREEN",
        "attncli.records.demonstrations:MistakeComparison": "screens:MISTAKE_SCREEN",
    },
)
