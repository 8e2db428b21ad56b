"""The card of `attn source`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question("source", "Which sources an answer came from", "Models", spec="question:SourceSpec"),
    ),
    results={
        "source": "results:AnswerSources",
        "source of heads": "results:RetrievingHeads",
        "source of explanations": "explanation_results:Explanations",
        "source of ways": "explanation_results:ComparedWays",
        "source of weights": "explanation_results:LearnedWeights",
    },
    screens={
        "results:AnswerSources": "screens:SOURCE_SCREEN",
        "results:RetrievingHeads": "screens:RETRIEVAL_SCREEN",
        "explanation_results:Explanations": "explanation_screens:EXPLANATIONS_SCREEN",
        "explanation_results:ComparedWays": "explanation_screens:WAYS_SCREEN",
        "explanation_results:LearnedWeights": "explanation_screens:WEIGHTS_SCREEN",
    },
    page={"results:AnswerSources": "page:ANSWER", "explanation_results:Explanations": "page:WAYS"},
    functions={
        "answer_sources": "door:answer_sources",
        "retrieving_heads": "door:retrieving_heads",
        "compare_explanations": "explaining:compare_explanations",
        "explanations": "explaining:explanations",
        "learned_head_weights": "explaining:learned_head_weights",
    },
    extras=("models",),
    docs="source.md",
)
