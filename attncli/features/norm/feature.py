"""The card of `attn norm`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "norm",
            "Batch, layer and RMS normalisation",
            "Learn",
            spec="question:NormSpec",
            synonyms="layernorm layer_norm batchnorm rmsnorm normalize",
        ),
    ),
    results={"norm": "attncli.records.demonstrations:NormEffects"},
    screens={"attncli.records.demonstrations:NormEffects": "attncli.views.screens:NORM_SCREEN"},
)
