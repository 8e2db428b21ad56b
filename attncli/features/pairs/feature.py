"""The card of `attn heads --pairs` and `attn heads --relations`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "relations",
            "Heads that look along syntactic relations",
            spec="settings:RelationsSpec",
            page="question:RELATIONS_PAGE",
            form_of="heads",
            asked_by="relations",
        ),
        Question(
            "pairs",
            "Heads that look from one position of a pair to the other",
            spec="settings:PairsSpec",
            page="question:PAIRS_PAGE",
            form_of="heads",
            asked_by="pairs",
        ),
    ),
    results={
        "heads of relations": "relation_results:HeadRelations",
        "heads of pairs": "results:HeadsOnPairs",
    },
    screens={
        "relation_results:HeadRelations": "relation_screens:RELATIONS_SCREEN",
        "results:HeadsOnPairs": "screens:PAIRS_SCREEN",
    },
    functions={
        "relations": "door:relations",
        "pairs": "door:pairs",
        "pair_table": "door:pair_table",
    },
    needs=("heads",),
    extras=("models",),
    docs="pairs.md",
    papers={
        "heads of relations": "clark2019",
        "heads of pairs": "rao2021",
        "apc": "dunn2008",
    },
)
