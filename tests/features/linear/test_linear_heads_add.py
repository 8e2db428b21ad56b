"""`attn why` on layers without a softmax: a logit is a sum of the heads' outputs after W_O."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

import attncli
from attncli.errors import UserError
from attncli.models.architectures import mixer_name
from attncli.models.layer_sources import CapturedMixer, capturing_mixers
from tests.conftest import some_seldom
from tests.hybrids import recorded_run
from tests.running import run
from tools.architecture_sweep.folders import text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

FACTORS = {"falcon_h1": "ssm_out_multiplier", "granitemoehybrid": "residual_multiplier"}
"""What the output of a mixer is multiplied by, as the settings call it."""
FAMILIES = (
    *("qwen3_next", "qwen3_5_text", "kimi_linear", "bamba", "falcon_h1", "granitemoehybrid"),
    *("nemotron_h", "jamba", "zamba", "zamba2"),
)
NUM_TOKENS = 19


class Heard(NamedTuple):
    """A recorded run, with the captured layers and the frozen direction of the answer's logit."""

    model: Any
    reads: dict[str, tuple[Tensor, ...]]
    gave: dict[str, Tensor]
    layers: dict[str, CapturedMixer]
    direction: Tensor


@torch.no_grad()
def heard(folder: str) -> Heard:
    model, ids, reads, gave = recorded_run(folder, NUM_TOKENS)
    layers: list[CapturedMixer] = []
    with capturing_mixers(model, layers.append):
        logits = model(ids, use_cache=False).logits[0, -1].double()
    answer, unembedded = int(logits.argmax()), reads["lm_head"][0][0, -1].double()
    row = model.lm_head.weight[answer].double()
    norm = next(name for name in ("model.norm", "model.norm_f", "model.final_layernorm") if name in gave)
    # RMSNorm multiplies each entry by its gain and one scale, whose product follows from its output.
    frozen = row * (gave[norm][0, -1] / reads[norm][0][0, -1]).double()
    direction = frozen * logits[answer] / (row @ unembedded)
    return Heard(model, reads, gave, {layer.module: layer for layer in layers}, direction)


def mixer_and_projection(model: Any, module: str) -> tuple[str, str]:
    """The names of a mixer and its output projection in the whole model."""
    name = module if module.startswith("model.") else f"model.{module}"
    mixer = model.get_submodule(name)
    assert mixer_name(type(mixer).__name__) is not None
    return name, f"{name}.o_proj" if hasattr(mixer, "o_proj") else f"{name}.out_proj"


@torch.no_grad()
@pytest.mark.parametrize("name", some_seldom(FAMILIES, FAMILIES[1::2]))
def test_the_parts_match_hooks_and_add_up(saved: Callable[[str], str], name: str) -> None:
    result = attncli.why(saved(name), text_of(NUM_TOKENS))
    by_hand = heard(saved(name))
    assert result.parts.sum == pytest.approx(result.parts.logit, abs=1e-5)
    linear = [row for row in result.heads if row.kind == "linear"]
    factor = getattr(by_hand.model.config, FACTORS.get(name, ""), 1.0)
    for module in dict.fromkeys(row.module for row in linear):
        rows = [row for row in linear if row.module == module]
        mixer, projection = mixer_and_projection(by_hand.model, module)
        read = by_hand.reads[projection][0][0, -1].double()
        matrix = by_hand.model.get_submodule(projection).weight.double()
        for row in rows:
            of_head = torch.zeros_like(read).view(len(rows), -1)
            of_head[row.head] = read.view(len(rows), -1)[row.head]
            expected = float(matrix @ of_head.flatten() @ by_hand.direction) * factor
            assert row.contribution == pytest.approx(expected, abs=1e-5)
        whole = by_hand.gave[mixer][0, -1].double()
        bias = getattr(by_hand.model.get_submodule(projection), "bias", None)
        whole = whole if bias is None else whole - bias.double()
        total = sum(row.contribution or 0.0 for row in rows)
        assert total == pytest.approx(float(whole @ by_hand.direction) * factor, abs=1e-5)
    assert result.unshown == "" or name == "nemotron_h"
    assert result.parts.heads == pytest.approx(sum(row.contribution or 0.0 for row in result.heads), abs=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "head"), [("qwen3_next", "2:1"), ("bamba", "0:2"), ("falcon_h1", "linear:1:2")]
)
def test_a_head_is_split_by_its_signed_weights(saved: Callable[[str], str], name: str, head: str) -> None:
    """Recompute the gated norm, with its scale frozen."""
    result = attncli.why(saved(name), text_of(NUM_TOKENS), head=head)
    (row,) = [each for each in result.heads if each.name == head]
    by_hand = heard(saved(name))
    mixer, projection = mixer_and_projection(by_hand.model, row.module)
    heads: Any = by_hand.layers[mixer].heads
    weights = heads.weights()[0, row.head, -1].double()
    assert result.keys.column("weight") == pytest.approx(weights.numpy(), abs=1e-6)
    assert min(weights) < 0 < max(weights)
    num_heads, value_dim = heads.values.shape[2:]
    projected = by_hand.model.get_submodule(projection).weight.double().mT @ by_hand.direction
    if f"{mixer}.norm" in by_hand.gave:
        norm: Any = by_hand.model.get_submodule(f"{mixer}.norm")
        x, z = (
            part.reshape(NUM_TOKENS, num_heads, value_dim)[-1] for part in by_hand.reads[f"{mixer}.norm"][:2]
        )
        z = silu(z.double())
        gated = x.double() * z if name == "bamba" else x.double()
        squares = gated.square()
        mean = squares.mean() if name == "bamba" else squares[row.head].mean()
        gain = norm.weight.double()
        gain = gain.view(num_heads, -1)[row.head] if name == "bamba" else gain
        factor = gain * z[row.head] * (mean + norm.variance_epsilon).rsqrt()
    else:  # Falcon-H1 gates without a norm
        read = by_hand.reads[projection][0][0, -1].view(num_heads, -1)[row.head]
        factor = (read / heads.output()[0, -1, row.head]).double()
        projected = projected * by_hand.model.config.ssm_out_multiplier
    values = heads.values[0, :, row.head].double()
    expected = weights * (values @ (factor * projected.view(num_heads, -1)[row.head]))
    assert result.keys.column("contribution") == pytest.approx(expected.numpy(), abs=1e-5)
    assert sum(result.keys.column("contribution")) == pytest.approx(row.contribution, abs=1e-6)


@torch.no_grad()
def test_gated_heads_are_the_input_of_w_o(saved: Callable[[str], str]) -> None:
    """Qwen3-Next multiplies each head by a gate, so heads are more than the output of attention."""
    result, by_hand = attncli.why(saved("qwen3_next"), text_of(NUM_TOKENS)), heard(saved("qwen3_next"))
    rows = [row for row in result.heads if row.kind == "self"]
    for row in rows:
        projection = f"model.{row.module}.o_proj"
        read = by_hand.reads[projection][0][0, -1].double().view(4, -1)
        columns = by_hand.model.get_submodule(projection).weight.double().view(-1, 4, read.shape[1])
        expected = float(columns[:, row.head] @ read[row.head] @ by_hand.direction)
        assert row.contribution == pytest.approx(expected, abs=1e-5)


def test_channels_of_mamba_1_share_no_weights(saved: Callable[[str], str]) -> None:
    with pytest.raises(
        UserError, match="head: 0:0 is in a Mamba-1 layer, whose channels have separate weights: name"
    ):
        attncli.why(saved("jamba"), text_of(NUM_TOKENS), head="0:0")


@pytest.mark.parametrize("name", ["olmo_hybrid", "minimax"])
def test_norms_behind_attention_are_refused(saved: Callable[[str], str], name: str) -> None:
    with pytest.raises(
        UserError, match=r"not a sum over its heads: the output of layers.\d is not its input"
    ):
        attncli.why(saved(name), text_of(NUM_TOKENS))


def test_the_report_has_both_kinds(saved: Callable[[str], str]) -> None:
    report = run("why", model=saved("qwen3_next"), sentence=text_of(NUM_TOKENS))
    assert report.missing == "" and len(report.table("heads")) == 16
    assert report.tensors["contribution"].values.shape == (4, 4)
    both = run("why", model=saved("falcon_h1"), sentence=text_of(NUM_TOKENS))
    assert {*both.tensors} == {"contribution self", "contribution linear"}
