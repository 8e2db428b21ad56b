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
    results={"scale-demo": "results:ScaleEffects"},
    screens={"results:ScaleEffects": "screens:SCALE_SCREEN"},
    lessons=("lessons/13-scaling.md",),
    papers={
        "scale-demo": "vaswani2017",
    },
)
