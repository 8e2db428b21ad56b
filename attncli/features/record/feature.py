"""The card of `attn record`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "record", "Heads of any PyTorch program, while it runs", "Models", command="question:command"
        ),
    ),
    results={"record": "attncli.records.recordings:RecordedHeads"},
    screens={"attncli.records.recordings:RecordedHeads": "screens:RECORDED_SCREEN"},
    lessons=("lessons/22-own-model.md",),
    docs="record.md",
)
