"""The card of pictures: the `--image` option of every command that reads pictures."""

from attncli.feature import Feature, ReadingKind

FEATURE = Feature(
    functions={"read_picture": "reading:read_picture"},
    readings={
        "picture": ReadingKind(
            "image",
            spec="settings:ImageSpec",
            opener="opener:PICTURES",
            suffixes=(
                ".png",
                ".jpg",
                ".jpeg",
                ".webp",
                ".gif",
                ".bmp",
                ".tif",
                ".tiff",
                ".ppm",
                ".pgm",
                ".avif",
            ),
            inputs=("pixel_values", "flattened_patches"),
            reader="one that reads pictures",
            on_grid=True,
        )
    },
    extras=("models",),
    docs="images.md",
    papers={
        "image": "dosovitskiy2020 caron2021",
    },
)
