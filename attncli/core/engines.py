"""What computes a layer's attention; which engine does follows from size and from what is wanted."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core import rows
from attncli.core.layer import PLAIN, AttentionLayer, Computed, Visibility, Wanted
from attncli.core.row_tiles import GivenWeights, Source
from attncli.core.runtime import added, imported_or_told

Progress = Callable[[float], None]


class Engine(NamedTuple):
    """A function of a layer, or of given weights, and whether it suits their size and what is wanted."""

    attend: Callable[..., Computed]
    suits: Callable[[Source, Wanted], bool]


LEAST_KEYS = 1024
"""Keys of a row from which tiles were measured to be faster than whole rows."""


def is_long(source: Source, wanted: Wanted) -> bool:
    """Whether rows are long and nothing is wanted that takes them whole; or there is no key at all."""
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


def attend_by_tiles(layer: AttentionLayer, wanted: Wanted, progress: Progress | None = None) -> Computed:
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
    """Those of plugins, each an Engine; then ours."""
    others = {name: imported_or_told(plugin) for name, plugin in added("engines", {*ENGINES}).items()}
    return {name: engine for name, engine in others.items() if engine is not None} | ENGINES


def engine_for(source: Source, wanted: Wanted) -> str:
    """The name of the first engine that suits."""
    return next(name for name, engine in engines().items() if engine.suits(source, wanted))


def attend(source: Source, wanted: Wanted, progress: Progress | None = None) -> Computed:
    """What is wanted of a layer, or of given weights, by the engine that suits.

    Of the rest beside the first key an engine of a plugin need not know: that is then computed from rows.
    """
    computed = engines()[engine_for(source, wanted)].attend(source, wanted, progress)
    if wanted.rest is None or computed.rest is not None:
        return computed
    return replace(computed, rest=rows.attend(source, Wanted(rest=wanted.rest)).rest)


def attend_with_gradients(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """softmax(score) value, with the scores as the layer makes them; memory is the square of the length."""
    rules, (num_texts, num_heads, num_queries, _) = layer.rules, layer.shape
    key, value = layer.expanded()
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
    weights = scores.softmax(dim=-1)[..., : layer.shape[3]]
    return weights.masked_fill(~seen, 0.0) @ value


MOST_MASKED = 2**24
"""Entries of a mask that fused attention may take: 4,096 queries of 4,096 keys."""


class FusedAttention:
    """softmax(scale q k) v by torch, without a matrix of weights; None where scores have other rules.

    The mask of the last layer is kept, since its neighbours share it.
    """

    def __init__(self) -> None:
        self._last_mask: tuple[Visibility, Tensor] | None = None

    def forget(self) -> None:
        """The mask of a run that is over."""
        self._last_mask = None

    def output(self, layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"] | None:
        """The output of a layer."""
        seen = layer.visibility
        is_whole = seen.window is None and seen.key_mask is None and seen.rule is None
        is_square = seen.causal and seen.num_queries == seen.num_keys > 1
        sees_all = is_whole and (not seen.causal or seen.num_queries == 1)
        needs_mask = not sees_all and not (is_whole and is_square)
        if layer.rules != PLAIN or (needs_mask and seen.num_queries * seen.num_keys > MOST_MASKED):
            return None
        mask = self._mask(layer) if needs_mask else None
        # With a mask and shared keys torch is fused on the CPU alone.
        shares = layer.group > 1 and (mask is None or layer.query.device.type == "cpu")
        key, value = (layer.key, layer.value) if shares or layer.group == 1 else layer.expanded()
        output: Tensor = nn.functional.scaled_dot_product_attention(
            layer.query,
            key,
            value,
            attn_mask=mask,
            is_causal=is_whole and is_square,
            scale=layer.scale,
            enable_gqa=shares,
        )
        return output

    def _mask(self, layer: AttentionLayer) -> Float[Tensor, "#text 1 query key"]:
        """0 where a query sees a key, else -inf."""
        if self._last_mask is None or self._last_mask[0] is not layer.visibility:
            visible = layer.visibility.whole(layer.query.device).unsqueeze(1)
            mask = torch.zeros(visible.shape, dtype=layer.query.dtype, device=visible.device)
            self._last_mask = layer.visibility, mask.masked_fill_(~visible, -torch.inf)
        return self._last_mask[1]
