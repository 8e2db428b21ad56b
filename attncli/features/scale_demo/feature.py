"""The card of `attn scale-demo`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "scale-demo",
            "Why scores are scaled: variance and sharpness",
            "Learn",
            spec="question:ScaleDemoSpec",
            synonyms="scale scaling softmax",
        ),
    ),
    results={"scale-demo": "attncli.records.demonstrations:ScaleEffects"},
    screens={"attncli.records.demonstrations:ScaleEffects": "attncli.views.screens:SCALE_SCREEN"},
)
