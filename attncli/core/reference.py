"""The definition of what engines give: float64, whole matrices, a formula a line. Tests hold them to it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.formulas import Rows, load_formula
from attncli.core.layer import PLAIN, AttentionLayer, Visibility
from attncli.core.row_statistics import ROW_STATISTICS
from attncli.core.wanted import Computed, Moments, Wanted


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


def attend(layer: AttentionLayer, wanted: Wanted) -> Computed:
    """Everything that is wanted of a layer; memory is the square of the length."""
    rules, (num_texts, num_heads, num_queries, num_keys) = layer.rules, layer.shape
    key, value = (shared.double() for shared in layer.expanded())
    raw = layer.query.double() @ key.mT
    scores = raw * layer.scale
    scores = scores if rules.softcap is None else rules.softcap * (scores / rules.softcap).tanh()
    scores = scores if rules.bias is None else scores + rules.bias.double()
    scores = scores / rules.temperature
    seen = layer.visibility.whole(scores.device).expand(num_texts, -1, -1)
    shown = seen.unsqueeze(1)
    masked = scores.masked_fill(~shown, -torch.inf)
    sink = torch.tensor([[-torch.inf]]) if rules.softmax_sink is None else rules.softmax_sink.double()
    outside = sink.to(scores)[..., None, None].expand(num_texts, num_heads, num_queries, 1)
    logsumexp = torch.cat([masked, outside], dim=-1).logsumexp(dim=-1)
    weights = (masked - logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0)
    visible = seen.sum(dim=-1)
    blind = (visible == 0).unsqueeze(1)
    positions = layer.visibility.positions(slice(0, num_queries), scores.device)
    rows = Rows(weights, visible.unsqueeze(1), positions, torch.arange(num_keys, device=scores.device))
    statistics = {name: load_formula(ROW_STATISTICS[name].formula)(rows) for name in wanted.rows}
    best = masked.sort(dim=-1, descending=True, stable=True)
    ranked = F.pad(best.values[..., : wanted.top_k], (0, max(0, wanted.top_k - num_keys)), value=-torch.inf)
    places = F.pad(best.indices[..., : wanted.top_k], (0, max(0, wanted.top_k - num_keys)))
    entries = [[head[own] for head in text] for text, own in zip(scores, seen, strict=True)]
    heights, widths = (
        [-(-size // wanted.pooled)] * -(-size // -(-size // wanted.pooled)) if wanted.pooled else [size]
        for size in (num_queries, num_keys)
    )
    pools = [
        [block for block in torch.split(strip, widths[0], dim=-1)]
        for strip in torch.split(weights, heights[0], dim=-2)
    ]
    every = slice(0, num_texts), slice(0, num_queries), slice(0, num_keys)
    patterns = None if wanted.patterns is None else wanted.patterns.block(*every).double()
    return Computed(
        rows={name: row.masked_fill(blind, torch.nan) for name, row in statistics.items()},
        sums=weights.sum(dim=-1),
        logsumexp=logsumexp.masked_fill(blind, torch.nan),
        visible=visible,
        previous_token=_previous(weights, positions).masked_fill(blind, torch.nan),
        top_keys=places.masked_fill(ranked == -torch.inf, -1),
        top_weights=weights.gather(-1, places).masked_fill(ranked == -torch.inf, torch.nan),
        output=weights @ value,
        weights=weights,
        raw_scores=raw.masked_fill(~shown, -torch.inf),
        scores=masked,
        kept_weights=weights[:, list(wanted.kept_heads)],
        head_mean=weights.mean(dim=1),
        moments=Moments(
            *(
                torch.stack([torch.stack([of(head) for head in text]) for text in entries])
                for of in (_mean, _variance, _smallest, _largest)
            )
        ),
        received_mass=weights.sum(dim=-2),
        pooled_mean=torch.stack(
            [torch.stack([b.mean(dim=(-2, -1)) for b in strip], -1) for strip in pools], -2
        ),
        pooled_max=torch.stack(
            [torch.stack([b.amax(dim=(-2, -1)) for b in strip], -1) for strip in pools], -2
        ),
        pattern_mass=None if patterns is None else torch.einsum("thqk,tpqk->thp", weights, patterns),
    )


def _previous(weights: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    before, num_keys = positions - 1, weights.shape[-1]
    found = weights.gather(-1, before.clamp(0, num_keys - 1).view(-1, 1).expand(*weights.shape[:3], 1))
    return found.squeeze(-1).masked_fill((before < 0) | (before >= num_keys), torch.nan)


def _mean(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.mean() if len(numbers) else numbers.new_tensor(torch.nan)


def _variance(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.var() if len(numbers) > 1 else numbers.new_tensor(torch.nan)


def _smallest(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.min() if len(numbers) else numbers.new_tensor(torch.nan)


def _largest(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.max() if len(numbers) else numbers.new_tensor(torch.nan)
