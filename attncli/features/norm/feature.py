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
    results={"norm": "results:NormEffects"},
    screens={"results:NormEffects": "screens:NORM_SCREEN"},
    papers={
        "batch_norm": "ioffe2015",
        "layer_norm": "ba2016",
        "rms_norm": "zhang2019",
    },
)
