"""The reference that tests compare engines with: float64, whole matrices, and one formula per line."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from attncli.core.formulas import Rows, load_formula
from attncli.core.layer import AttentionLayer, Computed, Moments, Wanted
from attncli.core.names import ROW_STATISTICS


def attend(layer: AttentionLayer, wanted: Wanted) -> Computed:
    """Compute every result for a layer; memory grows with the square of the length."""
    rules, (num_texts, num_heads, num_queries, num_keys) = layer.rules, layer.shape
    key, value = (shared.double() for shared in layer.expanded())
    raw = layer.query.double() @ key.mT
    scores = raw * layer.scale
    scores = scores if rules.softcap is None else rules.softcap * (scores / rules.softcap).tanh()
    scores = scores if rules.bias is None else scores + rules.bias.double()
    scores = scores / rules.temperature
    seen = layer.visibility.whole(scores.device).expand(num_texts, -1, -1)
    seen_per_head = seen.unsqueeze(1)
    masked = scores.masked_fill(~seen_per_head, -torch.inf)
    sink = torch.tensor([[-torch.inf]]) if rules.softmax_sink is None else rules.softmax_sink.double()
    outside = sink.to(scores)[..., None, None].expand(num_texts, num_heads, num_queries, 1)
    logsumexp = torch.cat([masked, outside], dim=-1).logsumexp(dim=-1)
    weights = (masked - logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0)
    visible = seen.sum(dim=-1)
    blind = (visible == 0).unsqueeze(1)
    positions = layer.visibility.positions(slice(0, num_queries), scores.device)
    columns = torch.arange(num_keys, device=scores.device)
    largest = masked.amax(dim=-1) if num_keys else None
    rows = Rows(weights, visible.unsqueeze(1), positions, columns, max_scores=largest)
    statistics = {name: load_formula(ROW_STATISTICS[name].formula)(rows) for name in wanted.rows}
    best = masked.sort(dim=-1, descending=True, stable=True)
    ranked = F.pad(best.values[..., : wanted.top_k], (0, max(0, wanted.top_k - num_keys)), value=-torch.inf)
    places = F.pad(best.indices[..., : wanted.top_k], (0, max(0, wanted.top_k - num_keys)))
    entries = [[head[keys] for head in text] for text, keys in zip(scores, seen, strict=True)]
    pools = _pools(weights, wanted.pooled)
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
        raw_scores=raw.masked_fill(~seen_per_head, -torch.inf),
        scores=masked,
        kept_weights=weights[:, list(wanted.kept_heads)],
        head_mean=weights.mean(dim=1),
        moments=Moments(
            *(
                torch.stack([torch.stack([statistic(head) for head in text]) for text in entries])
                for statistic in (_mean, _variance, _smallest, _largest)
            )
        ),
        received_mass=weights.sum(dim=-2),
        pooled_mean=_pool(torch.mean, pools),
        pooled_max=_pool(torch.amax, pools),
        pattern_mass=None if patterns is None else torch.einsum("thqk,tpqk->thp", weights, patterns),
    )


def _pools(weights: torch.Tensor, most: int | None) -> list[tuple[torch.Tensor, ...]]:
    """Return the blocks as strips, at most `most` along each side, or as a single block if `most` is None."""
    height, width = (-(-size // (most or 1)) for size in weights.shape[-2:])
    return [torch.split(strip, width, dim=-1) for strip in torch.split(weights, height, dim=-2)]


def _pool(statistic: Callable[..., torch.Tensor], pools: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
    return torch.stack(
        [torch.stack([statistic(block, (-2, -1)) for block in strip], -1) for strip in pools], -2
    )


def _previous(weights: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    before, num_keys = positions - 1, weights.shape[-1]
    previous = weights.gather(-1, before.clamp(0, num_keys - 1).view(-1, 1).expand(*weights.shape[:3], 1))
    return previous.squeeze(-1).masked_fill((before < 0) | (before >= num_keys), torch.nan)


def _mean(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.mean() if len(numbers) else numbers.new_tensor(torch.nan)


def _variance(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.var() if len(numbers) > 1 else numbers.new_tensor(torch.nan)


def _smallest(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.min() if len(numbers) else numbers.new_tensor(torch.nan)


def _largest(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.max() if len(numbers) else numbers.new_tensor(torch.nan)
