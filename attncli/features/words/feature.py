"""The card of `attn heads --sound FILE --words` and `attn heads --find-heads`."""

from attncli.feature import Feature, Question, View

FEATURE = Feature(
    questions=(
        Question(
            "alignment",
            "Heads that time words",
            spec="settings:AlignmentSpec",
            page="question:ALIGNMENT_PAGE",
            form_of="heads",
            asked_by="find_heads",
        ),
        Question(
            "words",
            "The time of each word in a sound",
            spec="settings:SpokenWordsSpec",
            page="question:WORDS_PAGE",
            form_of="heads",
            asked_by="sound words",
        ),
    ),
    results={
        "heads of words": "results:SpokenWords",
        "heads of alignment": "results:AligningHeads",
    },
    screens={
        "results:SpokenWords": "screens:WORDS_SCREEN",
        "results:AligningHeads": "screens:ALIGNING_SCREEN",
    },
    functions={
        "spoken_words": "door:spoken_words",
        "aligning_heads": "door:aligning_heads",
    },
    views={
        "srt": View("screens:write_srt", (".srt",), for_other_programs=True),
        "vtt": View("screens:write_vtt", (".vtt",), for_other_programs=True),
    },
    needs=("heads", "sound"),
    extras=("models",),
    docs="sound.md",
    papers={
        "heads of words": "yeh2025",
        "heads of alignment": "yeh2025",
    },
)
