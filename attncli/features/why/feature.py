"""The card of `attn why`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "why",
            "Contribution of each head to a logit: direct logit attribution",
            "Models",
            spec="question:WhySpec",
            synonyms="attribute attribution explain dla direct_logit_attribution logit_lens lens",
        ),
    ),
    results={
        "why": "results:LogitAttribution",
        "why of a score": "results:ScoreParts",
    },
    screens={
        "results:LogitAttribution": "screens:LOGIT_SCREEN",
        "results:ScoreParts": "screens:SCORE_SCREEN",
    },
    page={"results:LogitAttribution": "page:LOGIT", "results:ScoreParts": "page:SCORE"},
    functions={"why": "door:why", "score_parts": "door:score_parts"},
    extras=("models",),
    docs="ablate.md",
    papers={
        "why": "elhage2021",
        "why of a score": "elhage2021",
    },
)
