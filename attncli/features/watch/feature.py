"""The card of `attn watch`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question("watch", "Heads over the steps of a training run", "Models", command="question:command"),
    ),
    results={"watch": "results:HeadsInTraining", "watch of a head": "results:HeadInTraining"},
    screens={
        "results:HeadsInTraining": "screens:WATCH_SCREEN",
        "results:HeadInTraining": "screens:WATCH_HEAD_SCREEN",
    },
    functions={"Watch": "door:Watch"},
    needs=("record",),
    extras=("models",),
    lessons=("lessons/21-learning-to-copy.md",),
    docs="watch.md",
    papers={
        "watch": "olsson2022 zhai2023",
        "watch of a head": "zhai2023",
    },
)
