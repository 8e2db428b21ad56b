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
)
