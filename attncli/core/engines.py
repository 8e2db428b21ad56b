"""The attention of one layer, computed by an engine chosen by the layer's size and the wanted results."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attncli.core import rows
from attncli.core.layer import PLAIN, AttentionLayer, Computed, Visibility, Wanted
from attncli.core.row_tiles import GivenWeights, LayerOrWeights
from attncli.feature import load_usable_place
from attncli.index import installed_features

ProgressCallback = Callable[[float], None]


class Engine(NamedTuple):
    """A function that computes results of a layer or of weights, and a test of whether it suits them."""

    attend: Callable[..., Computed]
    suits: Callable[[LayerOrWeights, Wanted], bool]


LEAST_KEYS = 1024
"""With at least this many keys per row, tiles were measured to be faster than whole rows."""


def is_long(source: LayerOrWeights, wanted: Wanted) -> bool:
    """True if rows are long and no wanted result needs whole rows, or if the layer has no keys at all."""
    if 0 in source.shape:
        return True
    if (
        isinstance(source, GivenWeights)
        or source.rules.bias is not None
        or source.visibility.rule is not None
    ):
        return False
    takes_whole_rows = (
        wanted.weights
        or wanted.scores
        or wanted.kept_heads
        or wanted.head_mean
        or wanted.patterns is not None
        or wanted.plane is not None
    )
    return not takes_whole_rows and source.shape[3] >= LEAST_KEYS


def attend_by_tiles(
    layer: AttentionLayer, wanted: Wanted, progress: ProgressCallback | None = None
) -> Computed:
    """Run the engine `tiles`, which is imported only when used because most runs have no long rows."""
    from attncli.core import tiles

    return tiles.attend(layer, wanted, progress)


# The first suitable engine is used; the last one is always suitable.
ENGINES = {
    "tiles": Engine(attend_by_tiles, is_long),
    "rows": Engine(rows.attend, lambda source, wanted: True),
}


@cache
def engines() -> dict[str, Engine]:
    """Return the engines of plugins and features that can be imported, followed by the built-in ones."""
    places: dict[str, str] = {}
    for feature in installed_features().values():
        places = dict(feature.engines) | places
    loaded = {name: load_usable_place(place) for name, place in places.items() if name not in ENGINES}
    return {name: engine for name, engine in loaded.items() if engine is not None} | ENGINES


def engine_for(source: LayerOrWeights, wanted: Wanted) -> str:
    """Return the name of the first suitable engine."""
    return next(name for name, engine in engines().items() if engine.suits(source, wanted))


def attend(source: LayerOrWeights, wanted: Wanted, progress: ProgressCallback | None = None) -> Computed:
    """Compute the wanted results of a layer, or of given weights, with the first suitable engine.

    An engine from a feature may ignore `wanted.rest`; `rest` is then computed from whole rows.
    """
    computed = engines()[engine_for(source, wanted)].attend(source, wanted, progress)
    if wanted.rest is None or computed.rest is not None:
        return computed
    return replace(computed, rest=rows.attend(source, Wanted(rest=wanted.rest)).rest)


LEAST_FUSED = 2**22
"""The number of scores (4 heads on 1,024 tokens) above which memory matters: gradients keep all scores."""


def attention_output(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """Compute weights @ value, in float32 or wider. Differentiable if the layer is."""
    if not is_followed(layer):
        output = attend(layer, Wanted(output=True)).output
        assert output is not None
        return output
    output = None
    # Fused attention supports only first derivatives, and returns NaN for a query that sees no key.
    if prod(layer.shape) >= LEAST_FUSED and layer.visibility.is_seeing and not _is_transformed():
        with torch.autocast(layer.query.device.type, enabled=False):
            output = FusedAttention().output(_widened(layer))
    return attend_with_gradients(layer) if output is None else output


def attention_weights(layer: AttentionLayer) -> Float[Tensor, "text head query key"]:
    """Compute softmax(score), with 0 for keys that a query does not see. Differentiable if the layer is."""
    if is_followed(layer):
        return _weights_with_gradients(layer)
    weights = attend(layer, Wanted(weights=True)).weights
    assert weights is not None
    return weights


def is_followed(layer: AttentionLayer) -> bool:
    """True if autograd tracks the layer.

    If so, no engine can be used, because autograd does not track engines.
    """
    if _is_transformed():
        return True
    tensors = (layer.query, layer.key, layer.value, layer.rules.bias, layer.rules.sink)
    return torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in tensors)


def _is_transformed() -> bool:
    """True if torch.func or forward-mode differentiation is active, even if no tensor requires gradients."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def attend_with_gradients(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """Compute softmax(score) value from the whole score matrix; memory is quadratic in the length."""
    _, value = layer.expanded()
    weights = _weights_with_gradients(layer)
    with torch.autocast(layer.query.device.type, enabled=False):
        return weights @ value.to(weights)


def _weights_with_gradients(layer: AttentionLayer) -> Float[Tensor, "text head query key"]:
    rules, (num_texts, num_heads, num_queries, _) = layer.rules, layer.shape
    layer = _widened(layer)
    key, _ = layer.expanded()
    with torch.autocast(layer.query.device.type, enabled=False):
        scores = layer.query @ key.mT * layer.scale
    if rules.softcap is not None:
        scores = rules.softcap * (scores / rules.softcap).tanh()
    if rules.bias is not None:
        scores = scores + rules.bias
    seen = layer.visibility.whole(scores.device).unsqueeze(1)
    # Finite, so that a query that sees no key has no infinite gradient.
    scores = (scores / rules.temperature).masked_fill(~seen, torch.finfo(scores.dtype).min)
    if rules.softmax_sink is not None:
        outside = rules.softmax_sink.to(scores)[..., None, None].expand(num_texts, num_heads, num_queries, 1)
        scores = torch.cat([scores, outside], dim=-1)
    return scores.softmax(dim=-1)[..., : layer.shape[3]].masked_fill(~seen, 0.0)


def _widened(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer in the dtype that engines compute in: float32 for half precision."""
    if layer.query.dtype == layer.like.dtype:
        return layer
    parts = {name: getattr(layer, name).to(layer.like.dtype) for name in ("query", "key", "value")}
    return replace(layer, **parts)


MOST_MASKED = 2**24
"""The largest mask, in entries, passed to fused attention: 4,096 queries by 4,096 keys."""
MASKED_QUERIES = 128
"""The number of queries per masked block. Keys hidden from a whole block cost nothing."""

KeyColumns = Callable[[Visibility, slice], slice | Int[Tensor, " key"]]


class Masked(NamedTuple):
    """The mask of some queries, for the keys that any of these queries sees: 0 if visible, otherwise -inf."""

    queries: slice
    keys: slice | Int[Tensor, " key"]
    mask: Float[Tensor, "#text 1 query key"]


class FusedAttention:
    """softmax(scale q k) v, computed by torch without a matrix of weights.

    The masks of the last layer are cached, because neighbouring layers share them. `columns` may list the
    keys that some queries see, if the visibility's span has more keys.
    """

    def __init__(self, columns: KeyColumns | None = None) -> None:
        self._columns: KeyColumns = columns or (lambda seen, queries: seen.span(queries)[0])
        self._last_masks: tuple[Visibility, list[Masked]] | None = None

    def forget(self) -> None:
        """Drop the cached masks once a run has ended."""
        self._last_masks = None

    def output(self, layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"] | None:
        """Return the output of a layer, or None if torch does not support the rules of its scores."""
        seen = layer.visibility
        is_whole = seen.window is None and seen.key_mask is None and seen.rule is None
        is_square = seen.causal and seen.num_queries == seen.num_keys > 1
        sees_all = is_whole and (not seen.causal or seen.num_queries == 1)
        needs_mask = not sees_all and not (is_whole and is_square)
        if layer.rules != PLAIN or (needs_mask and seen.num_queries * seen.num_keys > MOST_MASKED):
            return None
        # For a mask with shared keys, torch has a fused kernel only on the CPU.
        shares = layer.group > 1 and (not needs_mask or layer.query.device.type == "cpu")
        key, value = (layer.key, layer.value) if shares or layer.group == 1 else layer.expanded()
        fused = partial(nn.functional.scaled_dot_product_attention, scale=layer.scale, enable_gqa=shares)
        if not needs_mask:
            output: Tensor = fused(layer.query, key, value, is_causal=is_whole and is_square)
            return output
        parts = [
            fused(
                layer.query[:, :, part.queries],
                key[:, :, part.keys],
                value[:, :, part.keys],
                attn_mask=part.mask,
            )
            for part in self._masks(layer)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _masks(self, layer: AttentionLayer) -> list[Masked]:
        """Return the layer's masks: one for all queries, or one per block if blocks see different keys."""
        seen, query = layer.visibility, layer.query
        if self._last_masks is None or self._last_masks[0] is not seen:
            size = MASKED_QUERIES if seen.causal or seen.window is not None else seen.num_queries
            starts = range(0, seen.num_queries, size)
            slices = [slice(start, min(start + size, seen.num_queries)) for start in starts]
            self._last_masks = seen, [self._mask(seen, queries, query) for queries in slices]
        return self._last_masks[1]

    def _mask(self, seen: Visibility, queries: slice, like: Tensor) -> Masked:
        keys = self._columns(seen, queries)
        columns = torch.arange(seen.num_keys)[keys].to(like.device)
        rows = torch.arange(queries.start, queries.stop, device=like.device)
        visible = seen.block(rows, columns).unsqueeze(1)
        mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
        return Masked(queries, keys, mask.masked_fill_(~visible, -torch.inf))
