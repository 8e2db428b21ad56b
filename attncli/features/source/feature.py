"""The card of `attn source` and `attn source --find-heads`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "source",
            "Sources of an answer, by weight or by removal",
            "Models",
            spec="settings:SourceSpec",
            page="question:PAGE",
        ),
        Question(
            "retrieving_heads",
            "Heads that find the source of an answer",
            spec="settings:RetrievingHeadsSpec",
            page="question:HEADS_PAGE",
            form_of="source",
            asked_by="find_heads",
        ),
    ),
    results={
        "source": "results:AnswerSources",
        "source of heads": "results:RetrievingHeads",
    },
    screens={
        "results:AnswerSources": "screens:SOURCE_SCREEN",
        "results:RetrievingHeads": "screens:RETRIEVAL_SCREEN",
    },
    page={"results:AnswerSources": "page:ANSWER"},
    functions={
        "answer_sources": "door:answer_sources",
        "retrieving_heads": "door:retrieving_heads",
    },
    extras=("models",),
    docs="source.md",
    papers={
        "method=sampled": "cohenwang2024",
        "source of heads": "wu2024",
    },
)
