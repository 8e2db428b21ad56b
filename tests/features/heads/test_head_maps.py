"""Maps of every head, against eager attention in transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attncli.errors import UserError
from tests.eager import eager_weights
from tests.model_folders import save_model
from tests.running import run

SENTENCE = "the cat sat because the cat was tired"
LONG = " ".join([SENTENCE] * 18)  # 146 tokens


def expected(folder: Path, text: str, kind: tuple[str, str]) -> np.ndarray:
    """Return the eager weights of all layers of one stack and kind: layer, head, query, key."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])
    inputs = {"input_ids": ids}
    config = AutoConfig.from_pretrained(folder)
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.cat([torch.tensor([[0]]), ids], dim=1)[:, : ids.shape[1]]
    found = eager_weights(AutoModel.from_pretrained(folder), inputs)
    return torch.stack([found[(*kind, layer)] for layer in range(2)]).numpy()


def naive_pooled(weights: np.ndarray, size: int = 64) -> tuple[np.ndarray, np.ndarray]:
    height, width = (-(-count // size) for count in weights.shape[-2:])
    rows, columns = (
        range(0, count, step) for count, step in zip(weights.shape[-2:], (height, width), strict=True)
    )
    blocks = [[weights[..., i : i + height, j : j + width] for j in columns] for i in rows]
    return tuple(
        np.stack([np.stack([pool(block, axis=(-2, -1)) for block in row], -1) for row in blocks], -2)
        for pool in (np.mean, np.max)
    )


@pytest.mark.parametrize("architecture", ["BERT", "GPT-OSS", "Gemma 2"])
def test_short_texts_keep_all_weights(tmp_path: Path, architecture: str) -> None:
    folder = save_model(tmp_path, architecture)
    weights = run("heads", model=str(folder), sentence=SENTENCE, maps="self").tensors["weights"]
    assert weights.axes == ("layer", "head", "query", "key") and weights.values.dtype == np.float32
    np.testing.assert_allclose(weights.values, expected(folder, SENTENCE, ("decoder", "self")), atol=1e-5)


@pytest.mark.parametrize("architecture", ["BERT", "Llama", "DeBERTa-v2"])
def test_long_texts_keep_pooled_maps_and_requested_heads(tmp_path: Path, architecture: str) -> None:
    folder = save_model(tmp_path, architecture)
    tensors = run("heads", model=str(folder), sentence=LONG, maps="self", full=["1:3", "0:0", "1:3"]).tensors
    weights = expected(folder, LONG, ("decoder", "self"))
    assert weights.shape[-1] > 128
    for name, pooled in zip(("pooled_mean", "pooled_max"), naive_pooled(weights), strict=True):
        assert tensors[name].axes == ("layer", "head", "query_block", "key_block")
        np.testing.assert_allclose(tensors[name].values, pooled, atol=1e-5)
    assert list(tensors) == ["pooled_mean", "pooled_max", "weights_1_3", "weights_0_0"]
    np.testing.assert_allclose(tensors["weights_1_3"].values, weights[1, 3], atol=1e-5)


@pytest.mark.parametrize(
    ("maps", "kind"),
    [("self", ("decoder", "self")), ("cross", ("decoder", "cross")), ("encoder", ("encoder", "self"))],
)
def test_an_encoder_decoder_has_three_kinds(tmp_path: Path, maps: str, kind: tuple[str, str]) -> None:
    folder = save_model(tmp_path, "T5")
    report = run("heads", model=str(folder), sentence=SENTENCE, maps=maps)
    np.testing.assert_allclose(report.tensors["weights"].values, expected(folder, SENTENCE, kind), atol=1e-5)
    assert bool(report.context_tokens) == (maps == "cross")
    shown = report.tokens, report.context_tokens or report.tokens
    assert tuple(map(len, shown)) == report.tensors["weights"].values.shape[-2:]
    assert (shown[0] == shown[1]) == (maps != "cross")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maps": "cross"}, "maps: the model has no cross-attention"),
        ({"maps": "self", "full": ["1:4"]}, r"full: must be from 0:0 to 1:3 \(got 1:4\)"),
        ({"full": ["1:0"]}, "full: .*needs .*maps.* self, cross or encoder"),
    ],
)
def test_missing_maps_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run("heads", **settings)


def test_skipped_keys_have_no_weight() -> None:
    weights = run("heads", maps="self", skip_sink=1).tensors["weights"].values
    assert (weights[..., 0] == 0).all()
    np.testing.assert_allclose(weights[:, :, 1:].sum(-1), 1, atol=1e-5)
