"""Query, key, value, scores, weights and output of every layer, by the names and in the layouts of other
tools."""

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
"""Outputs of modules that are kept until attention is called: those of its projections are among them."""
SAME_LENGTH = 1e-4
"""By how much a rotation changes the length of a vector at most, relative to the largest."""

Vectors = Float[Tensor, "text token head dim"]


@torch.no_grad()
def activations(pretrained: Pretrained, reading: Reading, names: ActivationNames) -> dict[str, Tensor]:
    """What each layer computes on one text, in the order of the run, in float32 on the CPU.

    transformer_lens: `blocks.3.attn.hook_pattern` and `hook_attn_scores` (text, head, query, key), hidden
    scores -inf; `hook_q`, `hook_k`, `hook_v`, `hook_z` (text, token, head, dim), keys and values with as many
    heads as there are of them. Where positions rotate queries and keys, `hook_rot_q` and `hook_rot_k` are
    those after it; hook_q and hook_k are what the projections gave, left out where one projection gives all
    three and positions rotate. Of a model with an encoder and a decoder names begin as those of its bridge:
    encoder_blocks.0.attn, decoder_blocks.0.self_attn, decoder_blocks.0.cross_attn.

    nnsight: `model.layers.3.self_attn.pattern`, the path of the module in the whole model, and query, key,
    value, scores, pattern, output, as transformers' attention interface has them: (text, head, token, dim).

    A model that computes its attention itself has its pattern alone (`missing_parts` says so); heads that
    a caller changes have what the model ran with. UserError for a model that cannot be shown, and for too
    little memory; MemoryError.
    """
    kept: dict[str, Tensor] = {}
    pretrained = reader_of(pretrained, reading)
    refuse_replaced(pretrained.model, ["gated"], "which no cache of activations holds")
    with ExitStack() as opened:
        recent = opened.enter_context(_recent_outputs(pretrained.model))
        if is_patched(pretrained.model):
            opened.enter_context(patches_open(_outputs_kept(pretrained, kept, names)))

        def keep(layer: CapturedLayer) -> None:
            if not kept:
                num_layers = pretrained.num_layers * (3 if pretrained.has_decoder else 1)
                refuse_bytes("names", num_layers * _num_bytes(layer), "fewer tokens")
            parts = _parts_of(layer)
            if names == "nnsight":
                path = pretrained.name_in_whole(layer.module)
                named = {f"{path}.{part}": tensor for part, tensor in parts.items()}
            else:
                place = _place_of(layer.stack_name, layer.layer)
                named = {f"{place}.{name}": part for name, part in _hooked(parts, recent)}
            kept.update({name: _copy(tensor) for name, tensor in named.items()})
            recent.given.clear()

        capture(pretrained.model, pretrained.inputs([reading]), keep)
    return kept


def missing_parts(name: str, activations: Mapping[str, Tensor]) -> str:
    """A line about a model of which there are only patterns; empty if there is more."""
    if any(not key.endswith(("pattern", "output", "hook_z")) for key in activations):
        return ""
    only = "the cache has only its patterns, without queries, keys, values and scores"
    return f"{name} computes its attention itself: {only}."


def _outputs_kept(pretrained: Pretrained, kept: dict[str, Tensor], names: ActivationNames) -> Patches:
    """What keeps the output of each layer when its heads have been changed, and changes nothing."""

    def keep(layer: RunningLayer) -> Tensor:
        if names == "nnsight":
            kept[f"{pretrained.name_in_whole(layer.module)}.output"] = _copy(layer.output)
        else:
            place = _place_of(layer.stack, layer.layer)
            kept[f"{place}.{HOOKS['output']}"] = _copy(layer.output.transpose(1, 2))
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


def _parts_of(layer: CapturedLayer) -> dict[str, Tensor]:
    """The parts of a layer, (text, head, token, dim) and (text, head, query, key)."""
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


def _place_of(stack: str, layer: int) -> str:
    """What TransformerLens calls the attention of a layer of self, encoder, decoder or cross."""
    return {
        "self": f"blocks.{layer}.attn",
        "encoder": f"encoder_blocks.{layer}.attn",
        "decoder": f"decoder_blocks.{layer}.self_attn",
        "cross": f"decoder_blocks.{layer}.cross_attn",
    }[stack]


class _GivenVectors(NamedTuple):
    """What a module gave; `normed` is what it was given, where it norms vectors and projects none."""

    output: Tensor
    normed: Tensor | None


class _RecentOutputs:
    """What modules of a model gave since its last attention: projections of its vectors are among it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.given: deque[_GivenVectors] = deque(maxlen=MOST_RECENT)
        settings = vars(model.config.get_text_config())
        rotary = [module for module in model.modules() if "rotary" in type(module).__name__.lower()]
        self.may_rotate = "rotary_dim" in settings or bool(rotary)
        # Some rotations (YaRN) scale vectors, too.
        numbers = (number for module in rotary for number in vars(module).items())
        self.scales = {1.0, *(scale for name, scale in numbers if name.endswith("attention_scaling"))}

    def note(self, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Keep what a module gave, if that is vectors of tokens."""
        if isinstance(output, Tensor) and output.ndim in (3, 4):
            weight = getattr(module, "weight", None)
            is_norm = isinstance(weight, Tensor) and weight.ndim < 2
            first = inputs[0] if inputs and is_norm else None
            self.given.append(_GivenVectors(output, first if isinstance(first, Tensor) else None))

    def projected(self, vectors: Vectors) -> tuple[Vectors, bool] | None:
        """What a projection gave where attention has these vectors, and whether they were rotated since.

        A rotation keeps lengths, but for its scale; vectors that were not rotated may have any. None where no
        module gave them by themselves. A norm of queries or keys (Qwen3) stands between: it was given the
        projection's output.
        """
        lengths = vectors.norm(dim=-1)
        for given in reversed(self.given):
            before = _in_heads(given.output, vectors.shape)
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
            normed = None if given.normed is None else _in_heads(given.normed, vectors.shape)
            return (before if normed is None else normed), is_rotated
        return None


def _in_heads(output: Tensor, shape: torch.Size) -> Vectors | None:
    """What a module gave in the layout of vectors (text, token, head, dim); None for anything else."""
    num_texts, num_tokens, num_heads, dim = shape
    if output.shape == (num_texts, num_heads, num_tokens, dim) and num_heads != num_tokens:
        return output.transpose(1, 2)
    is_alike = output.numel() == shape.numel() and output.shape[:2] == (num_texts, num_tokens)
    return output.reshape(shape) if is_alike else None


@contextmanager
def _recent_outputs(model: PreTrainedModel) -> Iterator[_RecentOutputs]:
    """While it is open, what modules without parts gave."""
    recent = _RecentOutputs(model)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(recent.note))
        yield recent


def _hooked(parts: dict[str, Tensor], recent: _RecentOutputs) -> Iterator[tuple[str, Tensor]]:
    """The parts in TransformerLens's layout, each with the name of its hook."""
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
