"""The card of `attn source --compare` and `attn source --learn`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "explained_pictures",
            "A picture's output explained in several ways",
            spec="settings:ExplainedPicturesSpec",
            page="question:PICTURES_PAGE",
            form_of="source",
            asked_by="compare image",
        ),
        Question(
            "head_weights",
            "A weight for each head, learned from answers",
            spec="settings:HeadWeightsSpec",
            page="question:WEIGHTS_PAGE",
            form_of="source",
            asked_by="learn",
        ),
        Question(
            "explanations",
            "An answer explained in several ways",
            spec="settings:ExplanationsSpec",
            page="question:PAGE",
            form_of="source",
            asked_by="compare",
        ),
    ),
    results={
        "source of explanations": "results:Explanations",
        "source of ways": "results:ComparedWays",
        "source of weights": "results:LearnedWeights",
    },
    screens={
        "results:Explanations": "screens:EXPLANATIONS_SCREEN",
        "results:ComparedWays": "screens:WAYS_SCREEN",
        "results:LearnedWeights": "screens:WEIGHTS_SCREEN",
    },
    page={"results:Explanations": "page:WAYS"},
    functions={
        "compare_explanations": "door:compare_explanations",
        "explanations": "door:explanations",
        "learned_head_weights": "door:learned_head_weights",
    },
    needs=("source",),
    extras=("models",),
    docs="explain.md",
    papers={
        "way=at2": "cohenwang2025",
        "way=rollout": "abnar2020",
        "way=value_norms": "kobayashi2020",
        "way=alti": "ferrando2022",
        "way=attention_gradient": "chefer2021",
        "way=attnlrp": "achtibat2024",
        "way=direct_logit": "elhage2021",
        "way=context_cite": "cohenwang2024",
        "source of explanations": "samek2017",
        "source of ways": "samek2017",
        "source of weights": "cohenwang2025",
    },
)
