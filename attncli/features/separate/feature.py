"""The card of `attn separate`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "separate",
            "Heads that separate two groups of texts",
            "Models",
            spec="question:SeparateSpec",
            command="command:command",
        ),
        Question(
            "detected_texts",
            "Texts scored by a detector",
            spec="question:DetectedTextsSpec",
            page="question:DETECTED_PAGE",
            form_of="separate",
            asked_by="apply",
        ),
    ),
    results={"separate": "results:SeparatedTexts", "separate of texts": "results:AppliedDetector"},
    screens={
        "results:SeparatedTexts": "screens:SEPARATE_SCREEN",
        "results:AppliedDetector": "screens:APPLIED_SCREEN",
    },
    functions={
        "separate": "door:separate",
        "apply_detector": "door:apply_detector",
        "read_detector": "door:read_detector",
    },
    extras=("models",),
    docs="separate.md",
    papers={
        "separate": "delong1988",
        "instruction_share": "hung2024",
        "lookback_ratio": "chuang2024",
    },
)
