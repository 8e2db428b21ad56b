"""Which keys of a prompt stay in a smaller cache, by policies from the literature."""

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
"""The keys of the highest scores stay."""
SINKS = 4
LAST_QUERIES = 64
"""Of the prompt, which SnapKV takes its scores from."""
SMOOTHED_OVER = 5
FUTURE = 512
"""Queries to come that expected attention averages its rotations over."""
STEEPNESS = 20
"""PyramidKV's beta: the lowest layer has up to so many times the keys of the highest."""
ROOM_FOR_ROUNDING = 1e-6
"""Of a key: what a budget times many keys may be off by."""


class Turn(Protocol):
    """A model's own function that turns queries and keys (`apply_rotary_pos_emb`)."""

    def __call__(
        self, query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor, /
    ) -> tuple[Tensor, Tensor]:
        """Both, turned."""


class Rotation(NamedTuple):
    """How a layer turns queries and keys: its model's own function, cosines and sines of each position.

    Only the dimensions `turned` of a head go through the function.
    """

    apply: Turn
    cosines: Float[Tensor, "1 key angle"]
    sines: Float[Tensor, "1 key angle"]
    turned: "slice[int | None, int | None, None]"

    def undone(self, query: Float[Tensor, "1 head query dim"]) -> Float[Tensor, "1 head query dim"]:
        """The queries of the first positions before they were turned; what also scales them is divided by."""
        count = query.shape[2]
        cosines, sines = self.cosines[:, :count], self.sines[:, :count]
        size = (cosines.square() + sines.square()).mean()
        part, turned_back = query[..., self.turned], query.clone()
        turned_back[..., self.turned] = self.apply(part, part, cosines, -sines)[0] / size
        return turned_back

    def mean_matrix(self, first: int, dim: int) -> Float[Tensor, "dim dim"]:
        """The mean of the matrices that turn a vector at the positions to come."""
        size = (self.cosines.square() + self.sines.square()).mean().sqrt().double()
        angles = torch.atan2(self.sines[0, 1].double(), self.cosines[0, 1].double())
        turns = torch.arange(first, first + FUTURE, device=angles.device).unsqueeze(-1) * angles
        cosines, sines = ((part * size).mean(dim=0) for part in (turns.cos(), turns.sin()))
        matrix = torch.eye(dim, dtype=self.cosines.dtype, device=angles.device)
        unit = matrix[self.turned, self.turned][None, None].clone()
        cosines, sines = (part.to(unit).expand(1, unit.shape[2], -1) for part in (cosines, sines))
        # Of a row of the unit matrix a column.
        matrix[self.turned, self.turned] = self.apply(unit, unit, cosines, sines)[0][0, 0].mT
        return matrix


@dataclass(frozen=True)
class PromptLayer:
    """A layer as it read the prompt, of `num_layers` the one with this `number`, from 0."""

    attention: AttentionLayer
    number: int
    num_layers: int
    rotation: Rotation | None

    @property
    def num_keys(self) -> int:
        """The tokens of the prompt."""
        return self.attention.shape[3]

    @property
    def num_kv_heads(self) -> int:
        """Heads that share no cache."""
        return self.attention.key.shape[1]

    def of_groups(self, numbers: Float[Tensor, "head key"]) -> CacheScores:
        """The mean over the heads that share a cache."""
        return numbers.view(self.num_kv_heads, self.attention.group, -1).mean(dim=1)

    def last_weights(self, count: int) -> Float[Tensor, "head query key"]:
        """The weights of the last queries of the prompt."""
        attention, every = self.attention, slice(None)
        seen = attention.visibility[every, every, self.num_keys - count :, every]
        few = replace(attention, query=attention.query[:, :, -count:], visibility=seen)
        weights = attend(few, Wanted(weights=True)).weights
        assert weights is not None
        return weights[0]

    def even(self, scores: Float[Tensor, " key"]) -> CacheScores:
        """The same scores for every head."""
        return scores.to(self.attention.key.device).expand(self.num_kv_heads, -1)


def by_position(layer: PromptLayer) -> CacheScores:
    """j: the last keys stay. Beltagy et al. 2020 (2004.05150), section 3.1."""
    return layer.even(torch.arange(layer.num_keys).float())


def by_ends(layer: PromptLayer) -> CacheScores:
    """j, the first four above all: the first keys and the last stay. Xiao et al. 2023 (2309.17453)."""
    scores = torch.arange(layer.num_keys).float()
    scores[:SINKS] = torch.arange(2 * layer.num_keys, 2 * layer.num_keys - len(scores[:SINKS]), -1).float()
    return layer.even(scores)


def by_received_weight(layer: PromptLayer) -> CacheScores:
    """sum_i p_ij / (n - j), mean over the heads of a cache: the mean weight from the queries that see a key.

    H2O (Zhang et al. 2023, 2306.14048) ranks by the sum, and keeps half of the cache for the last keys; the
    mean, which does not favour what came first, is kvpress's ObservedAttentionPress.
    """
    received = attend(layer.attention, Wanted(received_mass=True)).received_mass
    assert received is not None
    seen_by = torch.arange(layer.num_keys, 0, -1, device=received.device)
    return layer.of_groups(received[0] / seen_by)


def by_last_query(layer: PromptLayer) -> CacheScores:
    """p of the last query, mean over all heads; the last key stays. Oren et al. 2024 (2401.06104)."""
    scores = layer.last_weights(1)[:, 0].mean(dim=0)
    scores[-1] = torch.inf
    return layer.even(scores)


def by_last_queries(layer: PromptLayer) -> CacheScores:
    """p, mean over the last queries, then over five neighbours and the heads of a cache; those queries' own
    keys stay. Li et al. 2024 (2404.14469), section 3, with kvpress's mean for their maximum.
    """
    count = min(LAST_QUERIES, max(1, layer.num_keys // 2))
    weights = layer.last_weights(count)[..., :-count].mean(dim=1)
    smoothed = nn.functional.avg_pool1d(weights, SMOOTHED_OVER, stride=1, padding=SMOOTHED_OVER // 2)
    return nn.functional.pad(layer.of_groups(smoothed), (0, count), value=torch.inf)


def by_key_norm(layer: PromptLayer) -> CacheScores:
    """-||k||: short keys get much weight. Devoto et al. 2024 (2406.11430), section 4."""
    dtype = torch.promote_types(layer.attention.key.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(layer.attention.key[0], dim=-1, dtype=dtype)
    return -lengths


def by_expected_weight(layer: PromptLayer) -> CacheScores:
    """softmax_j(m k_j s + k_j C k_j s^2 / 2) ||v_j||: the weight that a key has for queries to come, were
    they Gaussian with the mean m and the covariance C of those read so far; the first four keys stay.

    m and C are of queries before their rotation, turned by the mean rotation of the 512 positions to come.
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
    """A random order, from a seed that is the layer's number."""
    generator = torch.Generator().manual_seed(layer.number)
    scores = torch.rand(layer.num_kv_heads, layer.num_keys, generator=generator)
    return scores.to(layer.attention.key.device)


class Read(NamedTuple):
    """What counts depend on: how many keys the cache of each layer holds of the prompt and, of each of its
    heads, how much its output changes where it keeps few keys, relative to the others'.

    A layer holds what the prompt's last token sees: a window, where it has one.
    """

    num_keys: Sequence[int]
    needs: Sequence[Float[Tensor, " _"]]


def even_counts(read: Read, budget: float) -> list[list[int]]:
    """The same share of its keys for every head."""
    return [
        [max(1, int(num_keys * budget))] * len(needs)
        for num_keys, needs in zip(read.num_keys, read.needs, strict=True)
    ]


def pyramid_counts(read: Read, budget: float) -> list[list[int]]:
    """Fewer keys from layer to layer, the same number in all. Cai et al. 2024 (2406.02069), section 4.2, as
    in their code and in kvpress; where the lowest layer would have less than the last queries, even counts.

    Layers that hold as many keys are a pyramid of their own.
    """
    counts = [0] * len(read.needs)
    for num_keys in {*read.num_keys}:
        alike = [layer for layer, size in enumerate(read.num_keys) if size == num_keys]
        for layer, count in zip(alike, _pyramid(num_keys, len(alike), budget), strict=True):
            counts[layer] = count
    return [[count] * len(needs) for count, needs in zip(counts, read.needs, strict=True)]


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


def head_counts(read: Read, budget: float) -> list[list[int]]:
    """All keys for the heads that need them most, few for the others: as many whole heads as there is room
    for. Xiao et al. 2024 (2410.10819) train which; here it is measured.
    """
    few = [max(1, min(sum(cache_ends(size)), int(size * budget))) for size in read.num_keys]
    order = sorted(
        (
            (float(need), number, head)
            for number, needs in enumerate(read.needs)
            for head, need in enumerate(needs)
        ),
        reverse=True,
    )
    room = sum(read.num_keys[number] * budget - few[number] for _, number, _ in order)
    counts = [[count] * len(needs) for count, needs in zip(few, read.needs, strict=True)]
    for _, number, head in order:
        more = read.num_keys[number] - few[number]
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
"""What each of CACHE_POLICIES ranks the keys by."""
COUNTS: dict[str, Callable[[Read, float], list[list[int]]]] = {
    "pyramidkv": pyramid_counts,
    "heads": head_counts,
}
"""How many keys stay, of those that keep other than even counts."""
