"""The card of `attn record`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "record", "Heads of any PyTorch program, while it runs", "Models", command="question:command"
        ),
    ),
    results={"record": "results:RecordedHeads"},
    screens={"results:RecordedHeads": "screens:RECORDED_SCREEN"},
    functions={"record": "door:record", "layers_of": "door:layers_of", "Recording": "door:Recording"},
    lessons=("lessons/22-own-model.md",),
    docs="record.md",
)
