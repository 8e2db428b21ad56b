"""Matrices of layers without a softmax, against the layers' outputs, recurrences and TransformerLens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    KimiLinearConfig,
    Mamba2Config,
    MiniMaxConfig,
    PreTrainedModel,
    Qwen3NextConfig,
)
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from attncli.features.linear import linear_layer
from attncli.features.linear.channel_layer import ChannelLayer
from attncli.features.linear.kernels import lightning_kernel
from attncli.features.linear.linear_layer import LinearLayer
from attncli.models.layer_sources import CapturedMixer, capturing_mixers
from tests.conftest import in_turn, some_seldom
from tools.architecture_sweep.decaying import decaying
from tools.architecture_sweep.folders import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

MATRICES = (
    *("qwen3_next", "qwen3_5_text", "olmo_hybrid", "qwen4_exp_text", "kimi_linear", "bailing_hybrid"),
    *(
        "glm5_next_text",
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "nemotron_h",
        "zamba2",
        "mamba2",
        "minimax",
    ),
)
CHANNELS = ("mamba", "falcon_mamba", "jamba", "zamba")
LENGTHS = (1, 63, 64, 65, 130)
TOLERANCE = 1e-5
"""Relative to the largest entry: float32 in, float32 out."""
GATED_NORMS = ("norm", "o_norm")
"""What the output goes into, before gate and projection."""


def heard(model: PreTrainedModel, num_tokens: int, num_texts: int = 2, **changed: int) -> list[CapturedMixer]:
    """The layers on texts of random tokens; `changed` sets the token at a position."""
    generator = torch.Generator().manual_seed(num_tokens)
    ids = torch.randint(10, 90, (num_texts, num_tokens), generator=generator)
    for place, token in changed.items():
        ids[:, int(place.removeprefix("at"))] = token
    layers: list[CapturedMixer] = []
    model.config.use_cache = False
    with capturing_mixers(model, layers.append):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return layers


def inputs_of_norms(model: PreTrainedModel, outputs: dict[str, Tensor]) -> list[Any]:
    """Hooks that store the input of each mixer's gated norm."""

    def keep(mixer: str, _norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        outputs[mixer] = inputs[0]

    return [
        module.register_forward_pre_hook(partial(keep, name.rpartition(".")[0]))
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in GATED_NORMS
    ]


def largest(tensor: Tensor) -> float:
    return float(tensor.abs().max())


@torch.no_grad()
@pytest.mark.parametrize("name", some_seldom(MATRICES, MATRICES[1::2]))
def test_the_matrix_times_the_values_is_the_output(name: str) -> None:
    model = decaying(name)
    compared = 0
    for num_tokens in LENGTHS:
        given: dict[str, Tensor] = {}
        hooks = inputs_of_norms(model, given)
        layers = heard(model, num_tokens)
        for hook in hooks:
            hook.remove()
        assert layers
        for layer in layers:
            heads = layer.heads
            assert isinstance(heads, LinearLayer)
            weights = heads.weights()
            assert weights.shape == heads.shape == (2, heads.values.shape[2], num_tokens, num_tokens)
            output = torch.einsum("bhij,bjhd->bihd", weights, heads.values)
            own = heads.output()
            assert largest(output - own) <= TOLERANCE * largest(own)
            assert not weights.triu(1).any()
            if layer.module in given:
                theirs = given[layer.module].reshape(output.shape)
                assert largest(output - theirs) <= TOLERANCE * largest(theirs)
                compared += 1
    assert compared or name == "falcon_h1", "only that one may have no norm"


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "chunk"),
    in_turn(["qwen3_next", "bamba", "minimax"], [3, 16, 61]),
)
def test_the_size_of_a_chunk_changes_nothing(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a chunk the kernel gives the weights; across chunks products do."""
    layers = heard(decaying(name), 67)
    whole = [layer.heads.weights() for layer in layers]
    monkeypatch.setattr(linear_layer, "CHUNK", chunk)
    monkeypatch.setattr(linear_layer, "MOST_FACTORS", 1)
    monkeypatch.setattr(linear_layer, "MOST_ENTRIES", 1)
    for layer, expected in zip(layers, whole, strict=True):
        assert largest(layer.heads.weights() - expected) <= TOLERANCE * largest(expected)


def naive_delta_rule(inputs: Mapping[str, Tensor], values: Tensor) -> Tensor:
    """The recurrence in float64, a token at a time (Yang et al. 2024, 2412.06464, eq. 10)."""
    query, key, g, beta = (inputs[name].double() for name in ("query", "key", "g", "beta"))
    group = values.shape[2] // key.shape[2]
    query, key = (part.repeat_interleave(group, dim=2) for part in (query, key))
    query, key = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key))
    state = values.new_zeros(len(values), values.shape[2], key.shape[-1], values.shape[-1]).double()
    outputs = []
    for token in range(values.shape[1]):
        decay = g[:, token].exp()
        state = state * (decay.unsqueeze(-1) if decay.ndim == 3 else decay[..., None, None])
        k, v = key[:, token], values[:, token].double()
        wrong = v - torch.einsum("bhk,bhkv->bhv", k, state)
        state = state + torch.einsum("bhk,bhv,bh->bhkv", k, wrong, beta[:, token])
        outputs.append(torch.einsum("bhk,bhkv->bhv", query[:, token], state) * key.shape[-1] ** -0.5)
    return torch.stack(outputs, dim=1)


def naive_mamba2(heads: LinearLayer, values: Tensor, limits: Sequence[float]) -> Tensor:
    """The recurrence in float64, a token at a time (Dao & Gu 2024, 2405.21060, eq. 1)."""
    num_heads = values.shape[2]
    step = nn.functional.softplus((heads.inputs["dt"] + heads.fixed["dt_bias"]).double()).clamp(*limits)
    write, read = (
        heads.inputs[name].double().repeat_interleave(num_heads // heads.inputs[name].shape[2], dim=2)
        for name in ("B", "C")
    )
    state = values.new_zeros(len(values), num_heads, write.shape[-1], values.shape[-1]).double()
    outputs = []
    for token in range(values.shape[1]):
        dt, v = step[:, token], values[:, token].double()
        state = state * (dt * heads.fixed["A"].double()).exp()[..., None, None]
        state = state + torch.einsum("bhn,bhv,bh->bhnv", write[:, token], v, dt)
        output = torch.einsum("bhn,bhnv->bhv", read[:, token], state)
        outputs.append(output + heads.fixed["D"].double()[:, None] * v)
    return torch.stack(outputs, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear", "bamba", "nemotron_h"])
def test_the_matrix_matches_the_recurrence(name: str) -> None:
    """The recurrence is in float64; its output for the identity is the matrix."""
    model = decaying(name)
    for layer in heard(model, 23):
        heads = layer.heads
        assert isinstance(heads, LinearLayer)
        num_texts, num_heads, num_tokens, _ = heads.shape
        identity = torch.eye(num_tokens).view(1, num_tokens, 1, num_tokens)
        identity = identity.expand(num_texts, num_tokens, num_heads, num_tokens)
        if "beta" in heads.inputs:
            expected = naive_delta_rule(heads.inputs, identity)
        else:
            expected = naive_mamba2(heads, identity, model.get_submodule(layer.module).time_step_limit)
        difference = heads.weights().double() - expected.transpose(1, 2)
        assert largest(difference) <= TOLERANCE * largest(expected)


@torch.no_grad()
def test_lightning_attention_is_a_product_with_a_decay() -> None:
    for layer in heard(decaying("minimax"), 29):
        heads = layer.heads
        assert isinstance(heads, LinearLayer) and heads.kernel is lightning_kernel
        query, key = (heads.inputs[name].double().transpose(1, 2) for name in ("query", "key"))
        behind = torch.arange(29).unsqueeze(-1) - torch.arange(29)
        decay = (-heads.fixed["slope"].double().view(-1, 1, 1) * behind).exp()
        expected = (query @ key.mT * decay).tril()
        assert largest(heads.weights() - expected) <= TOLERANCE * largest(expected)


@torch.no_grad()
@pytest.mark.parametrize("name", CHANNELS)
def test_a_head_of_mamba_is_the_mean_of_its_channels(name: str) -> None:
    """The model's own recurrence, in float64, of each channel on the identity."""
    for num_tokens in (1, 17, 33, 101):
        for layer in heard(decaying(name), num_tokens, 1):
            heads = layer.heads
            assert isinstance(heads, ChannelLayer)
            weights = heads.weights()
            for head in range(heads.shape[1]):
                expected = of_channels(heads, head).mean(dim=0)
                assert largest(weights[0, head] - expected) <= TOLERANCE * largest(expected)
            assert not weights.triu(1).any()


def of_channels(heads: ChannelLayer, head: int) -> Tensor:
    """(channel, query, key) in float64: a state for each key, a token at a time."""
    step, write, read = (part[0, head].double() for part in (heads.step, heads.write, heads.read))
    decay, skip = heads.decay[head].double(), heads.skip[head].double()
    num_tokens, num_channels = step.shape
    state = step.new_zeros(num_channels, num_tokens, decay.shape[-1])
    rows = []
    for token in range(num_tokens):
        state = state * (step[token].unsqueeze(-1) * decay).exp().unsqueeze(1)
        state[:, token] += step[token].unsqueeze(-1) * write[token]
        row = state @ read[token]
        row[:, token] += skip
        rows.append(row)
    return torch.stack(rows, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("name", ["mamba", "zamba"])
def test_the_channels_match_the_model(name: str) -> None:
    """With the model's values, they give its output before the gate."""
    model = decaying(name)
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    module = __import__(type(model).__module__, fromlist=["mamba_selective_scan"])
    kernel = module.mamba_selective_scan

    @wraps(kernel)
    def kept(hidden_states: Tensor, *others: Any, z: Tensor | None = None, **named: Any) -> Any:
        values.append(hidden_states)
        outputs.append(kernel(hidden_states, *others, z=None, **named))
        return kernel(hidden_states, *others, z=z, **named)

    module.mamba_selective_scan = kept
    try:
        layers = heard(model, 31, 1)
    finally:
        module.mamba_selective_scan = kernel
    given = iter(zip(values, outputs, strict=True))
    for layer in layers:
        assert isinstance(layer.heads, ChannelLayer)
        for head in range(layer.heads.shape[1]):
            value, output = next(given)
            ours = torch.einsum("cij,cj->ci", of_channels(layer.heads, head), value[0].double())
            assert largest(ours - output[0]) <= TOLERANCE * largest(output)


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3_next", "minimax", "jamba"])
def test_a_later_token_changes_no_earlier_row(name: str) -> None:
    model = decaying(name)
    first, changed = heard(model, 41), heard(model, 41, at30=95)
    for before, after in zip(first, changed, strict=True):
        rows, others = (layer.heads.weights()[:, :, :30] for layer in (before, after))
        assert largest(rows - others) <= 1e-6 * largest(rows)
    assert largest(first[0].heads.weights() - changed[0].heads.weights()) > 0


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3_next", "zamba2"])
def test_heads_of_a_group_may_be_computed_in_parts(name: str) -> None:
    """Several value heads share a query/key head, or a group of B and C."""
    for layer in heard(decaying(name), 13):
        heads = layer.heads
        assert isinstance(heads, LinearLayer)
        assert min(tensor.shape[2] for tensor in heads.inputs.values()) < heads.shape[1]
        whole = heads.weights()
        for most in (1, 2, 3, 5):
            parts = [*heads._head_groups(most)]
            assert sum(part.stop - part.start for part in parts) == heads.shape[1]
            for part in parts:
                assert largest(heads.with_heads(part).weights() - whole[:, part]) <= 1e-6 * largest(whole)


def test_kernels_and_hooks_are_restored() -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next

    kernel = modeling_qwen3_next.torch_chunk_gated_delta_rule
    model = tiny_model("qwen3_next")
    hooks = [module._forward_hooks.copy() for module in model.modules()]
    with capturing_mixers(model, lambda _layer: None):
        assert modeling_qwen3_next.torch_chunk_gated_delta_rule is not kernel
    assert modeling_qwen3_next.torch_chunk_gated_delta_rule is kernel
    assert [module._forward_hooks for module in model.modules()] == hooks


@torch.no_grad()
def test_in_half_precision_the_matrix_is_that_of_float32_inputs() -> None:
    """The kernels compute in float32; their output for the identity must not be rounded."""
    model = decaying("qwen3_next").to(torch.bfloat16)
    layer = heard(model, 19)[0].heads
    assert isinstance(layer, LinearLayer)
    again = replace(layer, inputs={name: part.double().float() for name, part in layer.inputs.items()})
    assert torch.equal(layer.weights(), again.weights()) and layer.weights().dtype == torch.float32


SIZES = ((1, 3, 5, 7), (2, 4, 8, 3), (3, 3, 7, 5))
"""Groups (key heads, or groups of B and C), heads, sizes of a key (or a state) and of a value."""


def mixer(family: str, groups: int, heads: int, key_dim: int, value_dim: int) -> nn.Module:
    """A layer of these sizes, with the setting names of its family."""
    few: dict[str, Any] = {"num_hidden_layers": 3, "vocab_size": 11}
    if family == "gated delta net":
        return Qwen3NextGatedDeltaNet(
            Qwen3NextConfig(
                hidden_size=19,
                linear_num_key_heads=groups,
                linear_num_value_heads=heads,
                linear_key_head_dim=key_dim,
                linear_value_head_dim=value_dim,
                **few,
            ),
            0,
        )
    if family == "Kimi delta attention":
        sizes = {"linear_num_heads": heads, "linear_head_dim": key_dim}
        return KimiLinearDeltaAttention(KimiLinearConfig(hidden_size=19, **sizes, **few), 0)
    if family == "lightning attention":
        sizes = {"num_attention_heads": heads, "head_dim": 2 * key_dim, "block_size": 2 * value_dim}
        return MiniMaxLightningAttention(MiniMaxConfig(hidden_size=19, **sizes, **few), 1)
    config = Mamba2Config(
        hidden_size=heads * value_dim,
        expand=1,
        num_heads=heads,
        head_dim=value_dim,
        n_groups=groups,
        state_size=key_dim,
        chunk_size=16,
        **few,
    )
    return Mamba2Mixer(config, 0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("sizes", "family"),
    in_turn(SIZES, ["gated delta net", "Kimi delta attention", "Mamba-2", "lightning attention"]),
)
def test_matrices_of_uneven_sizes_match_the_input_of_the_norm(
    family: str, sizes: tuple[int, int, int, int]
) -> None:
    """Uneven sizes and groups, at lengths around those of chunks."""
    torch.manual_seed(sum(sizes))
    layer = mixer(family, *sizes)
    layer.train(False)
    for name, parameter in layer.named_parameters():
        if name.endswith("A_log"):
            parameter.uniform_(-2, 1)
        elif name.endswith("dt_bias"):
            parameter.uniform_(-4, -1)
        elif parameter.ndim > 1:
            parameter.normal_(0, 0.4)
    hidden_size = sizes[1] * sizes[3] if family == "Mamba-2" else 19
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    more = {"position_embeddings": None, "attention_mask": None} if family.startswith("lightning") else {}
    for num_tokens in LENGTHS:
        layers: list[CapturedMixer] = []
        given: dict[str, Tensor] = {}
        hooks = inputs_of_norms(model, given)
        with capturing_mixers(model, layers.append):
            layer(torch.randn(2, num_tokens, hidden_size), **more)
        for hook in hooks:
            hook.remove()
        heads = layers[0].heads
        assert isinstance(heads, LinearLayer)
        weights = heads.weights()
        assert weights.shape[1] == sizes[1] and not weights.triu(1).any()
        output = torch.einsum("bhij,bjhd->bihd", weights, heads.values)
        theirs = given["layers.0"].reshape(output.shape)
        assert largest(output - theirs) <= TOLERANCE * max(1e-3, largest(theirs))


LENS = json.loads(Path(__file__).with_name("transformer_lens_matrices.json").read_text())


@torch.no_grad()
@pytest.mark.parametrize("name", LENS["models"])
def test_matrices_match_transformer_lens(name: str) -> None:
    """tools/architecture_sweep/lens_matrices.py saved its numbers, which leave out the skip connection."""
    ids, matrices = torch.tensor(LENS["ids"]).unsqueeze(0), LENS["models"][name]
    layers: list[CapturedMixer] = []
    model = decaying(name)
    model.config.use_cache = False
    with capturing_mixers(model, layers.append):
        model(input_ids=ids)
    assert len(layers) == len(matrices)
    for layer, numbers in zip(layers, matrices, strict=True):
        heads, weights = layer.heads, layer.heads.weights()[0]
        skip = heads.skip.mean(dim=-1) if isinstance(heads, ChannelLayer) else heads.fixed["D"]
        weights.diagonal(dim1=-2, dim2=-1).sub_(skip.unsqueeze(-1))
        expected = torch.tensor(numbers)
        assert largest(weights - expected) <= TOLERANCE * max(1, largest(expected))
