"""The card of `attn ablate`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "ablate",
            "Effect of removing each head (swap: activation patching)",
            "Models",
            spec="question:AblateSpec",
        ),
    ),
    results={"ablate": "results:HeadEffects"},
    screens={"results:HeadEffects": "screens:SCREEN"},
    functions={"ablate": "door:ablate"},
    extras=("models",),
    docs="ablate.md",
    papers={
        "approximate": "michel2019",
        "into": "wang2022 goldowskydill2023",
    },
)
