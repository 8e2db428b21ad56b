"""The computation of a layer's attention. Its size and the wanted results choose the engine."""

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
    """A function of a layer or of given weights, and whether it suits their size and the wanted results."""

    attend: Callable[..., Computed]
    suits: Callable[[LayerOrWeights, Wanted], bool]


LEAST_KEYS = 1024
"""Keys of a row from which tiles were measured to be faster than whole rows."""


def is_long(source: LayerOrWeights, wanted: Wanted) -> bool:
    """Whether rows are long and no wanted result takes whole rows, or there are no keys at all."""
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
    """What the engine `tiles` gives; most runs have no long row and never import it."""
    from attncli.core import tiles

    return tiles.attend(layer, wanted, progress)


# The first that suits is taken; the last suits everything.
ENGINES = {
    "tiles": Engine(attend_by_tiles, is_long),
    "rows": Engine(rows.attend, lambda source, wanted: True),
}


@cache
def engines() -> dict[str, Engine]:
    """The engines of cards, without those that cannot be imported; then ours."""
    places: dict[str, str] = {}
    for feature in installed_features().values():
        places = dict(feature.engines) | places
    others = {name: load_usable_place(place) for name, place in places.items() if name not in ENGINES}
    return {name: engine for name, engine in others.items() if engine is not None} | ENGINES


def engine_for(source: LayerOrWeights, wanted: Wanted) -> str:
    """The name of the first engine that suits."""
    return next(name for name, engine in engines().items() if engine.suits(source, wanted))


def attend(source: LayerOrWeights, wanted: Wanted, progress: ProgressCallback | None = None) -> Computed:
    """What is wanted of a layer, or of given weights, by the engine that suits.

    Of the rest beside the first key an engine of a card need not know: that is then computed from rows.
    """
    computed = engines()[engine_for(source, wanted)].attend(source, wanted, progress)
    if wanted.rest is None or computed.rest is not None:
        return computed
    return replace(computed, rest=rows.attend(source, Wanted(rest=wanted.rest)).rest)


LEAST_FUSED = 2**22
"""Scores of a layer (4 heads on 1,024 tokens) from which their memory counts: gradients keep it."""


def attention_output(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """weights @ value, in float32 at least; autograd follows it where it follows the layer."""
    if not is_followed(layer):
        output = attend(layer, Wanted(output=True)).output
        assert output is not None
        return output
    output = None
    # Fused attention has first derivatives alone, and gives a query that sees no key NaN.
    if prod(layer.shape) >= LEAST_FUSED and layer.visibility.is_seeing and not _is_transformed():
        with torch.autocast(layer.query.device.type, enabled=False):
            output = FusedAttention().output(_widened(layer))
    return attend_with_gradients(layer) if output is None else output


def attention_weights(layer: AttentionLayer) -> Float[Tensor, "text head query key"]:
    """softmax(score), 0 on the keys that a query does not see; autograd follows it as `attention_output`."""
    if is_followed(layer):
        return _weights_with_gradients(layer)
    weights = attend(layer, Wanted(weights=True)).weights
    assert weights is not None
    return weights


def is_followed(layer: AttentionLayer) -> bool:
    """Whether autograd follows what is computed of a layer: what the engines do of it, it does not see."""
    if _is_transformed():
        return True
    tensors = (layer.query, layer.key, layer.value, layer.rules.bias, layer.rules.sink)
    return torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in tensors)


def _is_transformed() -> bool:
    """Whether torch.func or forward-mode derivatives follow what is computed, whatever requires gradients."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def attend_with_gradients(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """softmax(score) value, with the scores as the layer makes them; memory is the square of the length."""
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
    # A finite number, so that a query that sees no key has no gradient of infinities.
    scores = (scores / rules.temperature).masked_fill(~seen, torch.finfo(scores.dtype).min)
    if rules.softmax_sink is not None:
        outside = rules.softmax_sink.to(scores)[..., None, None].expand(num_texts, num_heads, num_queries, 1)
        scores = torch.cat([scores, outside], dim=-1)
    return scores.softmax(dim=-1)[..., : layer.shape[3]].masked_fill(~seen, 0.0)


def _widened(layer: AttentionLayer) -> AttentionLayer:
    """The layer in the type that engines compute in: of half precision float32."""
    if layer.query.dtype == layer.like.dtype:
        return layer
    parts = {name: getattr(layer, name).to(layer.like.dtype) for name in ("query", "key", "value")}
    return replace(layer, **parts)


MOST_MASKED = 2**24
"""Entries of a mask that fused attention may take: 4,096 queries of 4,096 keys."""
MASKED_QUERIES = 128
"""Queries computed together in a masked layer: keys hidden from all of them cost nothing."""

KeyColumns = Callable[[Visibility, slice], slice | Int[Tensor, " key"]]


class Masked(NamedTuple):
    """Some queries, the keys that any of them sees, and the mask of these: 0 where a query sees a key, else
    -inf.
    """

    queries: slice
    keys: slice | Int[Tensor, " key"]
    mask: Float[Tensor, "#text 1 query key"]


class FusedAttention:
    """softmax(scale q k) v by torch, without a matrix of weights; None where scores have other rules.

    The masks of the last layer are kept, since its neighbours share them. `columns` may name the keys that
    some queries see more closely than the visibility's span.
    """

    def __init__(self, columns: KeyColumns | None = None) -> None:
        self._columns: KeyColumns = columns or (lambda seen, queries: seen.span(queries)[0])
        self._last_masks: tuple[Visibility, list[Masked]] | None = None

    def forget(self) -> None:
        """The masks of a run that is over."""
        self._last_masks = None

    def output(self, layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"] | None:
        """The output of a layer."""
        seen = layer.visibility
        is_whole = seen.window is None and seen.key_mask is None and seen.rule is None
        is_square = seen.causal and seen.num_queries == seen.num_keys > 1
        sees_all = is_whole and (not seen.causal or seen.num_queries == 1)
        needs_mask = not sees_all and not (is_whole and is_square)
        if layer.rules != PLAIN or (needs_mask and seen.num_queries * seen.num_keys > MOST_MASKED):
            return None
        # With a mask and shared keys torch is fused on the CPU alone.
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
        """One for some queries after the others, where not all of them may see the same keys."""
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
