"""Layers of short texts that are deferred until the model has run give the same results."""

from pathlib import Path

import pytest
import torch

from attncli.core.layer import AttentionLayer, Visibility
from attncli.models import layers as deferred_layers
from attncli.models.layers import CapturedLayer
from tests.model_folders import save_model
from tests.running import run
from tests.toys.test_together import assert_same


@pytest.mark.parametrize("architecture", ["BERT", "Mistral", "GPT-OSS", "Gemma 2", "T5"])
def test_a_survey_with_deferred_layers_is_the_same(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(save_model(tmp_path, architecture))
    settings = {"model": folder, "sentence": "the cat sat on the mat as the cat ran", "maps": "self"}
    waited = run("heads", **settings)
    monkeypatch.setattr(deferred_layers, "SHORT", 0)
    at_once = run("heads", **settings)
    assert_same(waited.statistics, at_once.statistics, tolerance=1e-5)
    assert_same(waited.tensors, at_once.tensors, tolerance=1e-5)


def layer(number: int, visibility: Visibility) -> CapturedLayer:
    size = visibility.num_queries, visibility.num_keys
    query, key, value = (torch.randn(1, 2, count, 5) for count in (size[0], size[1], size[1]))
    return CapturedLayer(
        f"layer.{number}", "", "self", number, AttentionLayer(query, key, value, visibility, 1.0)
    )


def test_layers_are_passed_on_in_order_and_long_ones_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_layers, "SHORT", 2 * 7 * 7)
    taken: list[int] = []
    waits = deferred_layers.DeferredLayers(lambda layers: taken.extend(layer.layer for layer in layers))
    short, long = Visibility(7, 7, causal=True), Visibility(11, 11)
    kept = layer(0, short)
    assert isinstance(kept.attention, AttentionLayer)
    before = kept.attention.key.clone()
    output = waits.take(kept)
    assert output is not None and output.shape == (1, 2, 7, 5) and not taken
    kept.attention.key.zero_()  # as by a model that reuses the memory
    (waiting,) = waits.waiting
    assert isinstance(waiting.attention, AttentionLayer) and torch.equal(waiting.attention.key, before)
    assert waits.take(layer(1, long)) is None and taken == [0, 1]
    waits.take(layer(2, short))
    waits.finish()
    assert taken == [0, 1, 2]


def test_layers_with_queries_that_see_no_key_are_not_deferred() -> None:
    taken: list[int] = []
    waits = deferred_layers.DeferredLayers(lambda layers: taken.extend(layer.layer for layer in layers))
    waits.take(layer(0, Visibility(7, 5, causal=True)))
    waits.take(layer(1, Visibility(5, 5, key_mask=torch.zeros(1, 5, dtype=torch.bool))))
    assert taken == [0, 1] and not waits.waiting
