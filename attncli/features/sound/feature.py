"""The card of sound: the `--sound` option of every command that reads sound."""

from attncli.feature import Feature, ReadingKind

FEATURE = Feature(
    functions={"read_sound": "reading:read_sound"},
    readings={
        "sound": ReadingKind(
            "sound",
            spec="settings:SoundSpec",
            opener="opener:SOUNDS",
            suffixes=(".wav", ".flac", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".mp3"),
            inputs=("input_features", "input_values"),
            reader="one that hears, such as Whisper",
            in_time=True,
            is_transcribed=True,
        )
    },
    extras=("models",),
    docs="sound.md",
)
