"""Query, key, value, scores, weights and output of every layer, with the names and layouts of other tools."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.names import ActivationNames
from attncli.errors import refuse_bytes
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer
from attncli.models.patched_heads import (
    LayerChange,
    Patches,
    RunningLayer,
    is_patched,
    patches_open,
    refuse_replaced,
)
from attncli.models.pretrained import Pretrained, Reading, reader_of

HOOKS = {
    "query": "hook_q",
    "key": "hook_k",
    "value": "hook_v",
    "scores": "hook_attn_scores",
    "pattern": "hook_pattern",
    "output": "hook_z",
}
ROTATED = {"query": "hook_rot_q", "key": "hook_rot_k"}
MATRICES = ("scores", "pattern")
MOST_RECENT = 16
"""The number of recent module outputs to store, enough to include the projections of the next attention."""
SAME_LENGTH = 1e-4
"""The largest change of a vector's length that counts as a rotation, relative to the longest vector."""

Vectors = Float[Tensor, "text token head dim"]


@torch.no_grad()
def activations(pretrained: Pretrained, reading: Reading, names: ActivationNames) -> dict[str, Tensor]:
    """Return the activations of each layer on one text, in the order of the run, in float32 on the CPU.

    transformer_lens: `blocks.3.attn.hook_pattern` and `hook_attn_scores` (text, head, query, key), with -inf
    for hidden scores; `hook_q`, `hook_k`, `hook_v`, `hook_z` (text, token, head, dim), with key/value heads
    not repeated. With rotary positions, `hook_rot_q` and `hook_rot_k` are the rotated vectors; `hook_q` and
    `hook_k` are the outputs of the projections, and are omitted if one fused projection makes queries, keys
    and values. Names of an encoder-decoder model begin as in TransformerLens' bridge: encoder_blocks.0.attn,
    decoder_blocks.0.self_attn, decoder_blocks.0.cross_attn.

    nnsight: `model.layers.3.self_attn.pattern`, the path of the module in the whole model, and query, key,
    value, scores, pattern, output in the layout of transformers' attention interface, (text, head, token,
    dim).

    For a model that computes its attention itself, there are only patterns (see `missing_parts`). Heads that
    a caller changes have the changed activations. Raises UserError if the model cannot be read or memory is
    too small, and MemoryError if memory runs out.
    """
    cache: dict[str, Tensor] = {}
    pretrained = reader_of(pretrained, reading)
    refuse_replaced(pretrained.model, ["gated"], "which an activation cache cannot hold")
    with ExitStack() as opened:
        recent = opened.enter_context(_recent_outputs(pretrained.model))
        if is_patched(pretrained.model):
            opened.enter_context(patches_open(_output_recorder(pretrained, cache, names)))

        def keep(layer: CapturedLayer) -> None:
            if not cache:
                num_layers = pretrained.num_layers * (3 if pretrained.has_decoder else 1)
                refuse_bytes("names", num_layers * _num_bytes(layer), "fewer tokens")
            parts = _layer_parts(layer)
            if names == "nnsight":
                path = pretrained.name_in_whole(layer.module)
                by_name = {f"{path}.{part}": tensor for part, tensor in parts.items()}
            else:
                prefix = _lens_prefix(layer.stack_name, layer.layer)
                by_name = {f"{prefix}.{name}": part for name, part in _hooked(parts, recent)}
            cache.update({name: _copy(tensor) for name, tensor in by_name.items()})
            recent.calls.clear()

        capture(pretrained.model, pretrained.inputs([reading]), keep)
    return cache


def missing_parts(name: str, activations: Mapping[str, Tensor]) -> str:
    """Return a message for a model that has only patterns, or an empty string for any other model."""
    if any(not key.endswith(("pattern", "output", "hook_z")) for key in activations):
        return ""
    only = "the cache has only its patterns, without queries, keys, values and scores"
    return f"{name} computes its attention itself: {only}."


def _output_recorder(pretrained: Pretrained, cache: dict[str, Tensor], names: ActivationNames) -> Patches:
    """Create patches that change nothing and record each layer's output after its heads were changed."""

    def keep(layer: RunningLayer) -> Tensor:
        if names == "nnsight":
            cache[f"{pretrained.name_in_whole(layer.module)}.output"] = _copy(layer.output)
        else:
            prefix = _lens_prefix(layer.stack, layer.layer)
            cache[f"{prefix}.{HOOKS['output']}"] = _copy(layer.output.transpose(1, 2))
        return layer.output

    return Patches(frozenset(pretrained.model.modules()), lambda _layer: [LayerChange("output", keep)])


def _copy(tensor: Tensor) -> Tensor:
    return tensor.float().cpu().clone(memory_format=torch.contiguous_format)


def _num_bytes(layer: CapturedLayer) -> int:
    num_texts, num_heads, num_queries, num_keys = layer.attention.shape
    vectors = 0
    if isinstance(layer.attention, AttentionLayer):
        vectors = 2 * layer.attention.query.numel() + 2 * layer.attention.key.numel()
        vectors += layer.attention.value.numel() + num_texts * num_heads * num_queries
    return 4 * (2 * num_texts * num_heads * num_queries * num_keys + vectors)


def _layer_parts(layer: CapturedLayer) -> dict[str, Tensor]:
    """The parts of a layer, as (text, head, token, dim) and (text, head, query, key)."""
    attention = layer.attention
    if not isinstance(attention, AttentionLayer):
        return {"pattern": attention.weights}
    computed = attend(attention, Wanted(output=True, weights=True, scores=True))
    assert computed.scores is not None
    assert computed.weights is not None
    assert computed.output is not None
    return {
        "query": attention.query,
        "key": attention.key,
        "value": attention.value,
        "scores": computed.scores,
        "pattern": computed.weights,
        "output": computed.output,
    }


def _lens_prefix(stack: str, layer: int) -> str:
    """TransformerLens' name for the attention of a layer in the stack self, encoder, decoder or cross."""
    return {
        "self": f"blocks.{layer}.attn",
        "encoder": f"encoder_blocks.{layer}.attn",
        "decoder": f"decoder_blocks.{layer}.self_attn",
        "cross": f"decoder_blocks.{layer}.cross_attn",
    }[stack]


class _ModuleCall(NamedTuple):
    """The output of a module; `normed` is its input if the module is a norm, and None otherwise."""

    output: Tensor
    normed: Tensor | None


class _RecentOutputs:
    """The recent outputs of a model's modules, which include the projections of the next attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.calls: deque[_ModuleCall] = deque(maxlen=MOST_RECENT)
        settings = vars(model.config.get_text_config())
        rotary = [module for module in model.modules() if "rotary" in type(module).__name__.lower()]
        self.may_rotate = "rotary_dim" in settings or bool(rotary)
        # Some rotations (YaRN) also scale vectors.
        numbers = (number for module in rotary for number in vars(module).items())
        self.scales = {1.0, *(scale for name, scale in numbers if name.endswith("attention_scaling"))}

    def note(self, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Store the output of a module if it has one vector per token."""
        if isinstance(output, Tensor) and output.ndim in (3, 4):
            weight = getattr(module, "weight", None)
            is_norm = isinstance(weight, Tensor) and weight.ndim < 2
            first = inputs[0] if inputs and is_norm else None
            self.calls.append(_ModuleCall(output, first if isinstance(first, Tensor) else None))

    def projected(self, vectors: Vectors) -> tuple[Vectors, bool] | None:
        """Return the projection's output behind these vectors, and whether it was rotated afterwards.

        A rotation keeps lengths up to a constant scale. Returns None if no module returned these vectors
        alone. With a norm of queries or keys (Qwen3), the norm's input is the projection's output.
        """
        lengths = vectors.norm(dim=-1)
        for call in reversed(self.calls):
            before = _in_heads(call.output, vectors.shape)
            if before is None:
                continue
            lengths_before, tolerance = before.norm(dim=-1), SAME_LENGTH * lengths.max()
            factor = lengths.sum() / lengths_before.sum()
            if (before * factor - vectors).abs().max() <= tolerance:
                is_rotated = False
            elif any((scale * lengths_before - lengths).abs().max() <= tolerance for scale in self.scales):
                is_rotated = True
            else:
                continue
            normed = None if call.normed is None else _in_heads(call.normed, vectors.shape)
            return (before if normed is None else normed), is_rotated
        return None


def _in_heads(output: Tensor, shape: torch.Size) -> Vectors | None:
    """Return a module output in the layout (text, token, head, dim), or None for another shape."""
    num_texts, num_tokens, num_heads, dim = shape
    if output.shape == (num_texts, num_heads, num_tokens, dim) and num_heads != num_tokens:
        return output.transpose(1, 2)
    is_alike = output.numel() == shape.numel() and output.shape[:2] == (num_texts, num_tokens)
    return output.reshape(shape) if is_alike else None


@contextmanager
def _recent_outputs(model: PreTrainedModel) -> Iterator[_RecentOutputs]:
    """Record the outputs of all modules inside this context."""
    recent = _RecentOutputs(model)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(recent.note))
        yield recent


def _hooked(parts: dict[str, Tensor], recent: _RecentOutputs) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts in TransformerLens' layout, each with the name of its hook."""
    for part, tensor in parts.items():
        if part in MATRICES:
            yield HOOKS[part], tensor
            continue
        by_token = tensor.transpose(1, 2)
        if part not in ROTATED:
            yield HOOKS[part], by_token
            continue
        projected = recent.projected(by_token)
        if projected is None:
            yield (ROTATED if recent.may_rotate else HOOKS)[part], by_token
            continue
        before, is_rotated = projected
        yield HOOKS[part], before
        if is_rotated:
            yield ROTATED[part], by_token
