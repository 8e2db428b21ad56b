"""The card of `attn self`, `attn multihead` and `attn cross`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "self",
            "Self-attention of one sentence, with one head",
            "See",
            spec="settings:SelfSettings",
            page="question:SELF",
            model_page="in_models:PAGE",
            synonyms="attention attend sdpa self_attention single visualize",
            opens={"--file": ".txt .md"},
        ),
        Question(
            "multihead",
            "Multi-head attention of one sentence",
            "See",
            spec="settings:MultiheadSettings",
            page="question:MULTIHEAD",
            model_page="in_models:PAGE",
            synonyms="mha multi multi_head multi_head_attention",
        ),
        Question(
            "cross",
            "Cross-attention from a sentence to a context",
            "See",
            spec="settings:CrossSettings",
            page="question:CROSS",
            model_page="in_models:PAGE",
            synonyms="cross_attention encoder_decoder",
        ),
    ),
    results={
        "self": "attncli.records.attention:LayerStatistics",
        "multihead": "attncli.records.attention:LayerStatistics",
        "cross": "attncli.records.attention:LayerStatistics",
    },
    screens={"attncli.records.attention:LayerStatistics": "screens:ATTENTION_SCREEN"},
    lessons=(
        "lessons/01-why-attention.md",
        "lessons/02-three-projections.md",
        "lessons/03-heads-and-output.md",
        "lessons/04-positions.md",
        "lessons/05-residual-stream.md",
        "lessons/06-masks-and-training.md",
        "lessons/07-encoder-decoder.md",
        "lessons/08-simple.md",
        "lessons/09-causal.md",
        "lessons/10-sentence.md",
        "lessons/11-glove.md",
        "lessons/14-masking.md",
        "lessons/15-heads.md",
        "lessons/16-variants.md",
    ),
    docs="variants.md",
)
