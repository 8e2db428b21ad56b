"""The card of `attn show`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "show",
            "A saved report, or weights from another tool, in any view",
            "See",
            command="question:command",
            synonyms="view cat display load print",
            opens={"": ".json .jsonl .ndjson .npz .npy .safetensors"},
        ),
    ),
    results={"show": "attncli.records.attention:OutsideWeights"},
    screens={"attncli.records.attention:OutsideWeights": "screens:OUTSIDE_SCREEN"},
    functions={"read_cache": "door:read_cache"},
    lessons=("lessons/20-pictures.md",),
    docs="show.md",
)
