"""The card of the feature."""

from attncli.feature import Feature, LayerSource

FEATURE = Feature(
    layer_sources={
        "linear": LayerSource(
            "kernels:capture",
            {"Mamba": "", "gated delta net": "", "Kimi delta attention": "", "lightning attention": ""},
        )
    },
    docs="models.md",
    papers={
        "linear": "ali2024 zimerman2024",
        "mixer=Mamba": "gu2023",
        "mixer=gated delta net": "yang2024",
        "mixer=Kimi delta attention": "kimi2025",
        "mixer=lightning attention": "qin2024",
    },
)
