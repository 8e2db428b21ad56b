"""Writes the saved reports of the lesson on pictures and sound: where heads of Whisper look in two words.

    python tools/lesson_sound.py WHISPER

WHISPER is the folder that tools/whisper_from_wheel.py makes (Whisper tiny.en, MIT); the sound is hello.ogg,
by espeak-ng, which ships. Weights have four decimals; those on the silence behind the sound are summed up in
one token; the spectrogram is small.
"""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import attncli
from attncli.records.columns import UntypedResult
from attncli.records.report import NamedTensor, Picture, Report

DATA = Path(__file__).parents[1] / "attncli" / "data"
SOUND = DATA / "speech" / "hello.ogg"
QUERY = "1.20s"
PIXELS, GREYS = (320, 40), 16
SILENCE = "silence"


def small(picture: Picture) -> Picture:
    """The picture with fewer pixels and greys."""
    image = Image.open(io.BytesIO(picture.png)).convert("L").resize(PIXELS).quantize(GREYS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    boxes = tuple(box and tuple(round(side, 4) for side in box) for box in picture.boxes)
    return replace(picture, png=png.getvalue(), boxes=boxes, sound=b"")  # type: ignore[arg-type]


def cut(report: Report, name: str, tensor: NamedTensor, keys: Sequence[str]) -> Report:
    """The report with this tensor alone, whose keys beyond the sound are one."""
    picture = small(report.pictures[0])
    count = sum(box is not None for box in picture.boxes)
    on_sound, rest = np.split(tensor.values.astype(np.float64), [count], axis=-1)
    values = np.round(np.concatenate([on_sound, rest.sum(axis=-1, keepdims=True)], axis=-1), 4)
    tokens = (*keys[:count], SILENCE)
    has_context = bool(report.context_tokens)
    return replace(
        report,
        tokens=report.tokens if has_context else tokens,
        context_tokens=tokens if has_context else (),
        tensors={name: NamedTensor(tensor.axes, values)},
        result=UntypedResult(),
        environment={},
        pictures=(replace(picture, boxes=(*picture.boxes[:count], None)),),
    )


def write(name: str, report: Report, **spec: object) -> None:
    spec = {**report.spec, "model": "whisper", "sound": SOUND.name, **spec}
    data = replace(report, spec=spec, environment={}).to_data()
    text = json.dumps(data, separators=(",", ":"))
    (DATA / "lessons" / "files" / f"{name}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    asked = {"model": sys.argv[1], "sound": str(SOUND)}
    first = attncli.run("multihead", layer=0, **asked)
    weights = first.tensors["weights"].values[:, first.tokens.index(QUERY)]
    looks = NamedTensor(("head", "key"), weights)
    write("hello-first", cut(first, "looks", looks, first.tokens), **{"from": [QUERY]})
    words = attncli.run("cross", layer=2, head=0, **asked)
    write("hello-words", cut(words, "weights", words.tensors["weights"], words.context_tokens))
    timed = attncli.run("heads", words=True, **asked)
    write("hello-times", replace(timed, pictures=tuple(map(small, timed.pictures))))
