"""`attn circuit` through layers without a softmax: their heads write to the stream, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attncli
from attncli.errors import UserError
from attncli.measure.residual_stream import Stream
from attncli.models.loading import in_use, open_model
from attncli.models.reading_text import read_text
from tests.conftest import some_seldom
from tests.hybrids import recorded_run
from tests.running import run
from tools.architecture_sweep.folders import text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

FAMILIES = (
    *("qwen3_next", "olmo_hybrid", "kimi_linear", "bamba", "falcon_h1", "nemotron_h", "jamba", "minimax"),
)
NUM_TOKENS = 13


@torch.no_grad()
@pytest.mark.parametrize("name", some_seldom(FAMILIES, FAMILIES[::2]))
def test_the_input_of_each_block_is_the_sum_of_its_parts(saved: Callable[[str], str], name: str) -> None:
    _, _, reads, gave = recorded_run(saved(name), NUM_TOKENS)
    with in_use(open_model(saved(name))) as pretrained:
        stream = Stream(pretrained, read_text(pretrained, text_of(NUM_TOKENS)))
        assert (stream.linear and stream.num_blocks > len(stream.attention)) or name == "falcon_h1"
        for call in range(stream.num_blocks + 1):
            parts = stream.parts_before(call)
            total = torch.stack([vectors() for _, vectors in parts]).sum(dim=0)
            last = call == stream.num_blocks
            expected = gave[f"model.layers.{call - 1}"][0] if last else reads[f"model.layers.{call}"][0][0]
            assert (total - expected).abs().max() <= 1e-5 * expected.abs().max()
        kinds = {part.kind for part, _ in parts}
        assert kinds >= {"embedding", "head", "linear", "mlp", "bias"}


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
def test_the_share_of_a_head_in_the_logits_matches_hooks(saved: Callable[[str], str], name: str) -> None:
    model, ids, reads, gave = recorded_run(saved(name), NUM_TOKENS)
    result = attncli.head_edges(saved(name), text_of(NUM_TOKENS))
    # Each entry of the stream times a gain and the frozen scale of its token; W_U less its mean row.
    frozen = (gave["model.norm"][0] / reads["model.norm"][0][0]).double()[:-1]
    rows = model.lm_head.weight.double()
    directions = (rows[ids[0, 1:]] - rows.mean(dim=0)) * frozen
    total = float((reads["model.norm"][0][0, :-1].double() * directions).sum())
    shares = [row for row in result.rows if row.side == "logit" and row.kind == "linear"]
    assert len(shares) == 8
    for row in shares:
        layer: Any = model.model.layers[row.from_layer]
        mixer = "linear_attn" if hasattr(layer, "linear_attn") else "self_attn"
        projection = getattr(layer, mixer)
        which = "out_proj" if hasattr(projection, "out_proj") else "o_proj"
        read = reads[f"model.layers.{row.from_layer}.{mixer}.{which}"][0][0].double()
        matrix = getattr(projection, which).weight.double()
        size = read.shape[-1] // 4
        part = slice(row.from_head * size, (row.from_head + 1) * size)
        written = read[:-1, part] @ matrix[:, part].mT
        assert row.share == pytest.approx(float((written * directions).sum()) / total, abs=1e-5)


@torch.no_grad()
def test_the_share_of_a_head_in_a_value_matches_its_columns(saved: Callable[[str], str]) -> None:
    """Attention of OLMo hybrid reads the stream without a norm: value = W_V stream."""
    result = attncli.head_edges(saved("olmo_hybrid"), text_of(NUM_TOKENS), heads=["1:0"])
    shares = {row["from"]: row.share for row in result.edges if row.side == "value"}
    rows = [row for row in result.rows if row.side == "value"]
    assert sum(row.share or 0.0 for row in rows) == pytest.approx(1, abs=1e-6)
    model, _, reads, gave = recorded_run(saved("olmo_hybrid"), NUM_TOKENS)
    attention = model.model.layers[1].self_attn
    value = gave["model.layers.1.self_attn.v_proj"][0].double()
    num_kv = attention.config.num_key_value_heads
    size = value.shape[-1] // num_kv
    matrix = attention.v_proj.weight.double()[:size]
    weights = layer_weights(saved("olmo_hybrid"))
    direction = weights.mT @ weights @ value[:, :size]
    written = reads["model.layers.0.linear_attn.o_proj"][0][0].double()
    out = model.model.layers[0].linear_attn.o_proj.weight.double()
    per_head = written.shape[-1] // 4
    for head in range(4):
        part = slice(head * per_head, (head + 1) * per_head)
        adds = float(((written[:, part] @ out[:, part].mT) @ matrix.mT * direction).sum())
        expected = adds / float((value[:, :size] * direction).sum())
        (row,) = [row for row in rows if (row.kind, row.from_layer, row.from_head) == ("linear", 0, head)]
        assert row.share == pytest.approx(expected, abs=1e-5)
        if abs(expected) >= 0.01:
            assert shares[f"linear:0:{head}"] == row.share


def layer_weights(folder: str) -> Tensor:
    """The weights of head 1:0."""
    (layer,) = [each for each in attncli.layers(folder, text_of(NUM_TOKENS)) if each.layer == 1]
    return layer.weights()[0, 0].double()


def test_edges_that_are_left_out_are_noted(saved: Callable[[str], str]) -> None:
    report = run("circuit", model=saved("qwen3_next"), sentence=text_of(NUM_TOKENS))
    (note,) = [note for note in report.notes if note.startswith("Edges into heads without a softmax")]
    assert report.missing == "" and "an activation comes before their values" in note
    assert {row["to_layer"] for row in report.table("edges")} <= {1, 3, None}


@pytest.mark.parametrize("name", ["zamba2", "lfm2"])
def test_a_stream_that_is_not_a_sum_is_refused(saved: Callable[[str], str], name: str) -> None:
    with pytest.raises(UserError, match="cannot be split into parts: "):
        attncli.head_edges(saved(name), text_of(NUM_TOKENS))


def test_a_head_without_a_softmax_has_no_edges_into_it(saved: Callable[[str], str]) -> None:
    with pytest.raises(UserError, match=r"head: must be from 1:0 to 3:3 \(layers 1, 3\) in "):
        attncli.head_edges(saved("qwen3_next"), text_of(NUM_TOKENS), heads=["0:2"])
