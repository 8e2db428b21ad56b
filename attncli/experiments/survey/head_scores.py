"""Every statistic of the heads of some layers, one number per layer, text and head."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.patterns import Marks, Patterns
from attncli.attention.results import Computed, Wanted
from attncli.row_statistics import OF_KEYS, PATTERNS, ROW_STATISTICS, WITH_SHARE

Attention = AttentionLayer | GivenWeights


def without_first_keys(attention: Attention, count: int) -> Attention:
    """The attention with its first keys (and a learned sink, if there is one) hidden, the rest renormalised.

    Otherwise every causal model looks like its first token, where heads park what they do not need (Xiao
    et al. 2023, 2309.17453).
    """
    if count == 0:
        return attention
    if isinstance(attention, GivenWeights):
        kept = attention.weights.clone()
        kept[..., :count] = 0
        kept = (kept / kept.sum(dim=-1, keepdim=True)).nan_to_num(0.0)
        return GivenWeights(kept, (kept > 0).any(dim=1))
    visibility = attention.visibility
    kept_keys = (torch.arange(visibility.num_keys, device=attention.key.device) >= count).unsqueeze(0)
    if visibility.key_mask is not None:
        kept_keys = kept_keys & visibility.key_mask
    rules = replace(attention.rules, sink=None)
    return replace(attention, visibility=replace(visibility, key_mask=kept_keys), rules=rules)


def weighted_by_values(layer: AttentionLayer, norms: Float[Tensor, "text head key"]) -> AttentionLayer:
    """The layer with weights p_ij ||v_j W_O||, each row normalised: ln ||v_j W_O|| joins the scores.

    A sink has no value.
    """
    logs = norms.clamp(min=torch.finfo(torch.float32).tiny).log().to(layer.query.dtype).unsqueeze(2)
    bias = logs if layer.rules.bias is None else layer.rules.bias + logs
    return replace(layer, rules=replace(layer.rules, bias=bias, sink=None))


def wanted_scores(
    ids: Int[Tensor, "text token"] | None,
    marks: Marks,
    *,
    first_key: int = 0,
    repeat: int | None = None,
    asked: bool = False,
) -> Wanted:
    """What `head_scores` needs. `ids` are the tokens of queries and keys; None in cross-attention, where
    positions do not compare.

    Keys before `first_key` are not in the patterns. `repeat` is |r| on the repeated probe; `asked` says that
    the marks hold queries and keys that were asked for.
    """
    rows = tuple(name for name, known in ROW_STATISTICS.items() if ids is not None or not known.positional)
    left_out = {*(() if asked else ("from_to_weight",)), *(() if repeat else ("induction_stripe",))}
    names = tuple(name for name in PATTERNS if name not in left_out and (ids is not None or name in OF_KEYS))
    if ids is None:
        ids = torch.zeros_like(marks.special, dtype=torch.int64)
    patterns = Patterns(names, ids.to(marks.special.device), marks, first_key=first_key, repeat=repeat or 0)
    return Wanted(rows=rows, patterns=patterns, received_mass=True)


def rows_of_patterns(found: Computed, wanted: Wanted) -> Int[Tensor, "text pattern"]:
    """In how many rows that see a key each pattern has a key."""
    assert wanted.patterns is not None
    seeing = found.seeing
    return (wanted.patterns.rows[..., : seeing.shape[-1]] & seeing.unsqueeze(1)).sum(dim=-1)


def head_scores(layers: Sequence[Computed], wanted: Wanted) -> dict[str, Float[Tensor, "layer text head"]]:
    """Means over the rows of the row statistics, and how much weight falls on each detection pattern D.

    mean_i sum_j D_ij p_ij over the rows where the pattern is not empty, NaN where it is in all; NAME_mul is
    sum D p / sum p over all rows, the `mul` score of TransformerLens' head_detector. What does not compare in
    cross-attention is NaN. The layers have the same shapes, and the same was wanted of them.
    """
    patterns = wanted.patterns
    assert patterns is not None
    sums, mass = (
        torch.stack([getattr(found, name) for found in layers]) for name in ("sums", "pattern_mass")
    )
    nothing = torch.full_like(sums[..., 0], torch.nan)
    scores = dict.fromkeys(ROW_STATISTICS, nothing) | {
        name: torch.stack([found.rows[name] for found in layers]).nanmean(dim=-1) for name in wanted.rows
    }
    scores["sink_mass"] = scores.pop("sink_mass")  # beside that of the first four
    num_rows = torch.stack([rows_of_patterns(found, wanted) for found in layers])
    by_rows = (mass / num_rows.unsqueeze(2)).unbind(dim=-1)
    by_mass = (mass / sums.sum(dim=-1, keepdim=True)).unbind(dim=-1)
    shares = dict(zip(patterns.names, by_mass, strict=True))
    on_patterns = dict.fromkeys(PATTERNS, nothing) | dict(zip(patterns.names, by_rows, strict=True))
    from_to, stripe = (on_patterns.pop(name) for name in ("from_to_weight", "induction_stripe"))
    scores |= on_patterns | {f"{name}_mul": shares.get(name, nothing) for name in WITH_SHARE}
    of_asked = {"from_to_weight": from_to} if "from_to_weight" in patterns.names else {}
    return scores | of_asked | ({"induction_stripe": stripe} if patterns.repeat else {})


def one_key(
    layers: Sequence[Computed], wanted: Wanted
) -> tuple[Float[Tensor, "layer text head"], Int[Tensor, "layer text head"]]:
    """max_j mean_i p_ij over the keys that are neither the first nor special, and that key; NaN and -1 where
    there is none.
    """
    assert wanted.patterns is not None
    received = torch.stack([found.received_mass for found in layers if found.received_mass is not None])
    num_rows = torch.stack([found.seeing.sum(dim=-1) for found in layers])
    candidates = ~wanted.patterns.marks.special[:, : received.shape[-1]]
    candidates[:, 0] = False
    means = (received / num_rows[..., None, None]).masked_fill(~candidates.unsqueeze(1), -1.0)
    mass, key = means.max(dim=-1)
    return mass.masked_fill(mass < 0, torch.nan), key.masked_fill(mass < 0, -1)
