"""Policies from the literature that choose which keys of a prompt stay in a smaller cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.names import cache_ends

CacheScores = Float[Tensor, "kv_head key"]
"""The keys with the highest scores stay."""
SINKS = 4
LAST_QUERIES = 64
"""The number of last prompt queries from which SnapKV takes its scores."""
SMOOTHED_OVER = 5
FUTURE = 512
"""The number of future positions whose rotations expected attention averages."""
STEEPNESS = 20
"""PyramidKV's beta: the lowest layer keeps up to this many times the keys of the highest."""
ROOM_FOR_ROUNDING = 1e-6
"""The tolerance, in keys, for rounding errors when a budget is multiplied by a number of keys."""


class Turn(Protocol):
    """A model's own function that rotates queries and keys (`apply_rotary_pos_emb`)."""

    def __call__(
        self, query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor, /
    ) -> tuple[Tensor, Tensor]:
        """Return the rotated queries and keys."""


class Rotation(NamedTuple):
    """A layer's rotation of queries and keys: the model's own function, with the cosines and sines per
    position.

    Only the dimensions `turned` of a head are passed through the function.
    """

    apply: Turn
    cosines: Float[Tensor, "1 key angle"]
    sines: Float[Tensor, "1 key angle"]
    turned: "slice[int | None, int | None, None]"

    def undone(self, query: Float[Tensor, "1 head query dim"]) -> Float[Tensor, "1 head query dim"]:
        """The queries of the first positions before the rotation, which may have scaled them."""
        count = query.shape[2]
        cosines, sines = self.cosines[:, :count], self.sines[:, :count]
        size = (cosines.square() + sines.square()).mean()
        part, turned_back = query[..., self.turned], query.clone()
        turned_back[..., self.turned] = self.apply(part, part, cosines, -sines)[0] / size
        return turned_back

    def mean_matrix(self, first: int, dim: int) -> Float[Tensor, "dim dim"]:
        """The mean rotation matrix over the future positions."""
        size = (self.cosines.square() + self.sines.square()).mean().sqrt().double()
        angles = torch.atan2(self.sines[0, 1].double(), self.cosines[0, 1].double())
        turns = torch.arange(first, first + FUTURE, device=angles.device).unsqueeze(-1) * angles
        cosines, sines = ((part * size).mean(dim=0) for part in (turns.cos(), turns.sin()))
        matrix = torch.eye(dim, dtype=self.cosines.dtype, device=angles.device)
        unit = matrix[self.turned, self.turned][None, None].clone()
        cosines, sines = (part.to(unit).expand(1, unit.shape[2], -1) for part in (cosines, sines))
        # Each row of the identity matrix becomes a column of the rotation.
        matrix[self.turned, self.turned] = self.apply(unit, unit, cosines, sines)[0][0, 0].mT
        return matrix


@dataclass(frozen=True)
class PromptLayer:
    """A layer's reading of the prompt; `number` counts from 0 up to `num_layers` - 1."""

    attention: AttentionLayer
    number: int
    num_layers: int
    rotation: Rotation | None

    @property
    def num_keys(self) -> int:
        """The number of tokens in the prompt."""
        return self.attention.shape[3]

    @property
    def num_kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.attention.key.shape[1]

    def group_means(self, numbers: Float[Tensor, "head key"]) -> CacheScores:
        """The mean over the query heads that share a cache."""
        return numbers.view(self.num_kv_heads, self.attention.group, -1).mean(dim=1)

    def last_weights(self, count: int) -> Float[Tensor, "head query key"]:
        """The weights of the prompt's last queries."""
        attention, every = self.attention, slice(None)
        seen = attention.visibility[every, every, self.num_keys - count :, every]
        last_queries = replace(attention, query=attention.query[:, :, -count:], visibility=seen)
        weights = attend(last_queries, Wanted(weights=True)).weights
        assert weights is not None
        return weights[0]

    def even(self, scores: Float[Tensor, " key"]) -> CacheScores:
        """Repeat a layer's scores for every head."""
        return scores.to(self.attention.key.device).expand(self.num_kv_heads, -1)


def by_position(layer: PromptLayer) -> CacheScores:
    """j: the last keys stay. Beltagy et al. 2020 (2004.05150), section 3.1."""
    return layer.even(torch.arange(layer.num_keys).float())


def by_ends(layer: PromptLayer) -> CacheScores:
    """j, with the first four keys ranked highest: the first and the last keys stay. Xiao et al. 2023
    (2309.17453).
    """
    scores = torch.arange(layer.num_keys).float()
    scores[:SINKS] = torch.arange(2 * layer.num_keys, 2 * layer.num_keys - len(scores[:SINKS]), -1).float()
    return layer.even(scores)


def by_received_weight(layer: PromptLayer) -> CacheScores:
    """sum_i p_ij / (n - j), averaged over the heads of a cache: a key's mean weight from the queries that see
    it.

    H2O (Zhang et al. 2023, 2306.14048) ranks by the sum and reserves half of the cache for the last keys. The
    mean, which does not favour early keys, is kvpress's ObservedAttentionPress.
    """
    received = attend(layer.attention, Wanted(received_mass=True)).received_mass
    assert received is not None
    seen_by = torch.arange(layer.num_keys, 0, -1, device=received.device)
    return layer.group_means(received[0] / seen_by)


def by_last_query(layer: PromptLayer) -> CacheScores:
    """p of the last query, averaged over all heads; the last key stays. Oren et al. 2024 (2401.06104)."""
    scores = layer.last_weights(1)[:, 0].mean(dim=0)
    scores[-1] = torch.inf
    return layer.even(scores)


def by_last_queries(layer: PromptLayer) -> CacheScores:
    """p, averaged over the last queries, then over five neighbours and the heads of a cache; the keys of
    those queries stay. Li et al. 2024 (2404.14469), section 3, with kvpress's mean instead of the paper's
    maximum.
    """
    count = min(LAST_QUERIES, max(1, layer.num_keys // 2))
    weights = layer.last_weights(count)[..., :-count].mean(dim=1)
    smoothed = nn.functional.avg_pool1d(weights, SMOOTHED_OVER, stride=1, padding=SMOOTHED_OVER // 2)
    return nn.functional.pad(layer.group_means(smoothed), (0, count), value=torch.inf)


def by_key_norm(layer: PromptLayer) -> CacheScores:
    """-||k||: short keys receive the most weight. Devoto et al. 2024 (2406.11430), section 4."""
    dtype = torch.promote_types(layer.attention.key.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(layer.attention.key[0], dim=-1, dtype=dtype)
    return -norms


def by_expected_weight(layer: PromptLayer) -> CacheScores:
    """softmax_j(m k_j s + k_j C k_j s^2 / 2) ||v_j||: a key's expected weight from future queries, modelled
    as Gaussian with the mean m and the covariance C of the queries so far; the first four keys stay.

    m and C are computed before the rotation, then rotated by the mean rotation over the next 512 positions.
    Devoto et al. 2025 (2510.00636), section 3.
    """
    attention = layer.attention
    skipped = min(SINKS, layer.num_keys - 1)
    query = attention.query
    if layer.rotation is not None:
        query = layer.rotation.undone(query)
    query = query[0, :, skipped:]
    mean = query.mean(dim=1)
    centred = query - mean.unsqueeze(1)
    covariance = centred.mT @ centred / query.shape[1]
    if layer.rotation is not None:
        turn = layer.rotation.mean_matrix(layer.num_keys, mean.shape[-1]).to(mean.dtype)
        mean, covariance = mean @ turn.mT, turn @ covariance @ turn.mT
    group, scale = attention.group, attention.scale
    expected = []
    for head, key in enumerate(attention.key[0, :, skipped:]):
        sharing = slice(head * group, (head + 1) * group)
        linear = mean[sharing] @ key.mT * scale
        square = ((key @ covariance[sharing]) * key).sum(dim=-1) * scale**2 / 2
        expected.append((linear + square).softmax(dim=-1).mean(dim=0))
    scores = torch.stack(expected) * torch.linalg.vector_norm(attention.value[0, :, skipped:], dim=-1)
    return nn.functional.pad(scores, (skipped, 0), value=torch.inf)


def by_chance(layer: PromptLayer) -> CacheScores:
    """A random order whose seed is the layer's number."""
    generator = torch.Generator().manual_seed(layer.number)
    scores = torch.rand(layer.num_kv_heads, layer.num_keys, generator=generator)
    return scores.to(layer.attention.key.device)


class PromptStatistics(NamedTuple):
    """Statistics of a prompt that determine how many keys stay.

    `num_keys` is the number of the prompt's keys that each layer's cache holds: those in the window of the
    prompt's last token, if the layer has a window. `needs` is, per head, the relative change in the output if
    the head keeps few keys.
    """

    num_keys: Sequence[int]
    needs: Sequence[Float[Tensor, " _"]]


def even_counts(prompt: PromptStatistics, budget: float) -> list[list[int]]:
    """The same share of keys for every head."""
    return [
        [max(1, int(num_keys * budget))] * len(needs)
        for num_keys, needs in zip(prompt.num_keys, prompt.needs, strict=True)
    ]


def pyramid_counts(prompt: PromptStatistics, budget: float) -> list[list[int]]:
    """Fewer keys in each successive layer, with the same total. Cai et al. 2024 (2406.02069), section 4.2, as
    in their code and in kvpress; even counts if the lowest layer would get fewer keys than there are last
    queries.

    Layers that hold different numbers of keys form separate pyramids.
    """
    counts = [0] * len(prompt.needs)
    for num_keys in {*prompt.num_keys}:
        same_size = [layer for layer, size in enumerate(prompt.num_keys) if size == num_keys]
        for layer, count in zip(same_size, _pyramid(num_keys, len(same_size), budget), strict=True):
            counts[layer] = count
    return [[count] * len(needs) for count, needs in zip(counts, prompt.needs, strict=True)]


def _pyramid(num_keys: int, num_layers: int, budget: float) -> list[int]:
    total = num_keys * budget
    least = total / STEEPNESS
    most = total * 2 - least
    if most >= num_keys - LAST_QUERIES:
        most = num_keys - LAST_QUERIES
        least = total * 2 - most
    if not num_keys >= most >= least >= LAST_QUERIES:
        return [max(1, round(total))] * num_layers
    step = (most - least) / max(1, num_layers - 1)
    return [round(most - number * step) for number in range(num_layers)]


def head_counts(prompt: PromptStatistics, budget: float) -> list[list[int]]:
    """All keys for the heads that need them most, and few keys for the others; as many full heads as fit.
    Xiao et al. 2024 (2410.10819) train this choice; here, the choice is based on measurements.
    """
    few = [max(1, min(sum(cache_ends(size)), int(size * budget))) for size in prompt.num_keys]
    order = sorted(
        (
            (float(need), number, head)
            for number, needs in enumerate(prompt.needs)
            for head, need in enumerate(needs)
        ),
        reverse=True,
    )
    room = sum(prompt.num_keys[number] * budget - few[number] for _, number, _ in order)
    counts = [[count] * len(needs) for count, needs in zip(few, prompt.needs, strict=True)]
    for _, number, head in order:
        more = prompt.num_keys[number] - few[number]
        if more <= room + ROOM_FOR_ROUNDING:
            counts[number][head] += more
            room -= more
    return counts


SCORES: dict[str, Callable[[PromptLayer], CacheScores]] = {
    "window": by_position,
    "sinks": by_ends,
    "h2o": by_received_weight,
    "tova": by_last_query,
    "snapkv": by_last_queries,
    "pyramidkv": by_last_queries,
    "knorm": by_key_norm,
    "expected": by_expected_weight,
    "random": by_chance,
    "heads": by_ends,
}
"""The function that scores the keys for each of CACHE_POLICIES."""
COUNTS: dict[str, Callable[[PromptStatistics, float], list[list[int]]]] = {
    "pyramidkv": pyramid_counts,
    "heads": head_counts,
}
"""The functions that count the keys to keep, for policies whose counts are not even."""
