"""Each variant against a transformers model: attn's functions on its matrices give its weights."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

from attncli.core.layer import Wanted, split_heads
from attncli.core.mechanisms import (
    alibi_bias,
    alibi_slopes,
    attend_differentially,
    differential_lambda,
    relative_bias,
    rms_norm,
    rotate,
)
from tests.layers import attended, checked_layer
from tools.tiny_architectures import ARCHITECTURES, GROUPED, Architecture, random_inputs

ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
MODELS = {
    **ARCHITECTURES,
    "Llama": Architecture("LlamaModel", {**GROUPED, **ROTARY}),
    "GPT-OSS": Architecture("GptOssModel", {**ARCHITECTURES["GPT-OSS"].settings, **ROTARY}),
}
BASES = {"Llama": 500.0, "GPT-OSS": 500.0}


def heads_of(vectors: Tensor, dim: int) -> Tensor:
    return split_heads(vectors, vectors.shape[-1] // dim)


def inputs_of(model: Any, ending: str) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Inputs and returned weights of each attention module with this name."""
    found: list[tuple[Any, Tensor, Tensor]] = []

    def note(module: Any, arguments: Any, named: Any, output: Any) -> None:
        hidden = named["hidden_states"] if "hidden_states" in named else arguments[0]
        weights = next(t for t in reversed(output) if isinstance(t, Tensor))
        found.append((module, hidden[0], weights[0]))

    hooks = [
        module.register_forward_hook(note, with_kwargs=True)
        for name, module in model.named_modules()
        if name.endswith(ending)
    ]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        model(**random_inputs(model), output_attentions=True)
    for hook in hooks:
        hook.remove()
    assert found
    yield from found


def by_rotary_layer(name: str, module: Any, hidden: Tensor) -> Tensor:
    """Weights of a layer in the Llama family, from attn's functions and the model's matrices."""
    query, key, value = (heads_of(p(hidden), 8) for p in (module.q_proj, module.k_proj, module.v_proj))
    if name == "Qwen3":
        query, key = (
            rms_norm(vectors, eps=norm.variance_epsilon) * norm.weight
            for vectors, norm in ((query, module.q_norm), (key, module.k_norm))
        )
    query, key = (rotate(vectors, base=BASES.get(name, 10000.0)) for vectors in (query, key))
    window = module.config.sliding_window if name == "Mistral" else getattr(module, "sliding_window", None)
    sinks = getattr(module, "sinks", None)
    rules = {
        "softcap": getattr(module, "attn_logit_softcapping", None),
        "sink": None if sinks is None else sinks.unsqueeze(0),
    }
    return attended(query, key, value, causal=True, window=window, scale=module.scaling, **rules).weights


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 2", "GPT-OSS", "Qwen3"])
def test_the_family_of_llama(name: str) -> None:
    windows = set()
    for module, hidden, weights in inputs_of(MODELS[name].build(), "self_attn"):
        torch.testing.assert_close(by_rotary_layer(name, module, hidden), weights, rtol=0, atol=1e-5)
        assert (weights.sum(-1) < 0.999).any() == (name == "GPT-OSS")
        windows.add(int((weights[0, -1] > 0).sum()))
    assert windows == {"Mistral": {5}, "Gemma 2": {5, 13}, "GPT-OSS": {5, 13}}.get(name, {13})


def test_alibi_of_bloom() -> None:
    for module, hidden, weights in inputs_of(MODELS["BLOOM"].build(), "self_attention"):
        fused = module.query_key_value(hidden).view(len(hidden), 4, 3, 8)
        query, key, value = (fused[:, :, part].transpose(0, 1) for part in range(3))
        bias = alibi_bias(4, len(hidden)).float().unsqueeze(0)
        ours = attended(query, key, value, causal=True, bias=bias).weights
        torch.testing.assert_close(ours, weights, rtol=0, atol=1e-5)


def test_slopes_match_bloom() -> None:
    for num_heads in (*range(1, 34), 71):
        theirs = _get_alibi_slopes(num_heads, torch.device("cpu"))
        torch.testing.assert_close(alibi_slopes(num_heads).float(), theirs.float())


@pytest.mark.parametrize(("buckets", "distance"), [(8, 11), (32, 128)])
def test_relative_bias_of_t5(buckets: int, distance: int) -> None:
    settings = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    model = Architecture("T5Model", {**ARCHITECTURES["T5"].settings, **settings}).build()
    tables = {
        stack.is_decoder: stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.T
        for stack in (model.encoder, model.decoder)
    }
    stacks = set()
    for module, hidden, weights in inputs_of(model, "SelfAttention"):
        query, key, value = (heads_of(part(hidden), 8) for part in (module.q, module.k, module.v))
        causal = module.is_decoder
        bias = relative_bias(tables[causal], len(hidden), max_distance=distance, causal=causal)
        ours = attended(query, key, value, causal=causal, scale="none", bias=bias.unsqueeze(0)).weights
        torch.testing.assert_close(ours, weights, rtol=0, atol=1e-5)
        stacks.add(causal)
    assert stacks == {True, False}


def test_differential_attention_of_diffllama() -> None:
    settings = {**GROUPED, **ROTARY, "num_key_value_heads": 4}
    del settings["head_dim"]
    model = Architecture("DiffLlamaModel", settings).build()
    merged: list[Tensor] = []
    for layer in model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, inputs: merged.append(inputs[0][0]))
    for number, (module, hidden, _) in enumerate(inputs_of(model, "self_attn")):
        query, key, value = (heads_of(p(hidden), 8) for p in (module.q_proj, module.k_proj, module.v_proj))
        query, key = rotate(query, base=500.0), rotate(key, base=500.0)
        # Heads h and h + 2 there are the halves of one head here.
        query, key, value = (torch.cat(part.chunk(2), dim=-1) for part in (query, key, value))
        vectors = torch.stack([module.lambda_q1, module.lambda_k1, module.lambda_q2, module.lambda_k2])
        factor = differential_lambda(vectors, module.lambda_init)
        layer = checked_layer(query, key, value, causal=True, scale=module.scaling)
        *_, difference = attend_differentially(layer, factor, Wanted())
        assert difference.output is not None
        normed = rms_norm(difference.output[0], eps=module.config.rms_norm_eps) * (1 - module.lambda_init)
        torch.testing.assert_close(normed.transpose(0, 1).flatten(1), merged[number], rtol=0, atol=1e-5)


def test_the_models_have_their_variants() -> None:
    """A guard against models that have plain attention because of their config."""
    has: dict[str, Callable[[Any], bool]] = {
        "Gemma 2": lambda model: model.layers[0].self_attn.attn_logit_softcapping == 2.0,
        "GPT-OSS": lambda model: bool(model.layers[0].self_attn.sinks.abs().min() > 0),
        "Qwen3": lambda model: model.layers[0].self_attn.q_norm.weight.shape == (8,),
        "Llama": lambda model: model.config.rope_parameters["rope_theta"] == 500.0,
    }
    for name, holds in has.items():
        assert holds(MODELS[name].build()), name
