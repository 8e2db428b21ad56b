"""Every statistic against the whole matrix in float64: any shape, option, tile size and number of threads."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from dense_attention import dense_statistics
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attncli.core import row_tiles as tile
from attncli.core import rows, tiles
from attncli.core.attention_statistics import AttentionStatistics, computed_statistics
from attncli.core.tile_sums import TileSizes
from tests.conftest import in_turn

RELATIVE = (
    "max_weight",
    "top_weights",
    "sink_mass",
    "distance",
    "participation",
    "local_mass",
    "previous_token",
    "received_mass",
    "pooled_mean",
    "pooled_max",
)
OPTIONS = {"causal", "window", "softcap", "scale", "top_k"}


def by_engine(
    engine: str, query: Tensor, key: Tensor, value: Tensor, size: int, **given: Any
) -> AttentionStatistics:
    """All statistics by one engine, with tiles of this size."""
    options = {name: given.get(name) for name in ("window", "softcap", "scale")}
    arguments = (query, key, value, given.get("key_mask"), given.get("sink"))

    def compute(layer: Any, wanted: Any) -> Any:
        if engine == "tiles":
            return tiles.attend(layer, wanted, None, SIZES[size])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tile, "TILE", SMALL_TILES[size])
            patch.setattr(tile, "MOST_ROWS", SMALL_TILES[size])
            patch.setattr(tile, "LEAST_ROWS", 2)
            return rows.attend(layer, wanted)

    return computed_statistics(
        *arguments,
        **options,
        causal=given.get("causal", False),
        top_k=given.get("top_k", 0),
        keys=True,
        pooled=given.get("pooled", 64),
        engine=compute,
    )


SIZES = [
    TileSizes(1, 1),
    TileSizes(3, 7),
    TileSizes(33, 37),
    TileSizes(16, 32),
    TileSizes(5, 128),
    TileSizes(),
]
SMALL_TILES = [1, 37, 300, 2000, 2**15, 2**20]


def assert_agrees(found: AttentionStatistics, dense: dict[str, Any], dtype: torch.dtype) -> None:
    """The bounds of the issue. A weight is exp(score - logsumexp), so its relative error is the absolute
    error of that difference: 1e-5, or where float32 cannot hold large scores as well, the bound on them."""
    # Rounding happens in the products, before scores are capped.
    scores = dense["terms"][dense["seen"]]
    num_keys = dense["scores"].shape[-1]
    largest = float(scores.abs().max()) if scores.numel() else 0.0
    unit = 2.0**-23 if dtype == torch.float32 else 2.0**-52
    absolute = 8 * unit * (largest + math.log(max(num_keys, 2)))
    relative = max(1e-5 if dtype == torch.float32 else 1e-12, absolute)
    close = dict(equal_nan=True, check_dtype=False)
    for name in ("logsumexp", "entropy", "max_score"):
        torch.testing.assert_close(getattr(found, name), dense[name], rtol=0, atol=absolute, **close)
    divided = absolute / math.log(2)
    torch.testing.assert_close(
        found.normalized_entropy, dense["normalized_entropy"], rtol=0, atol=divided, **close
    )
    for name in RELATIVE:
        expected = dense[name].to(torch.float64 if name == "participation" else dtype)
        torch.testing.assert_close(getattr(found, name), expected, rtol=relative, atol=1e-37, **close)
    error = (found.output - dense["output"]).norm()
    assert (
        error
        <= (4e-6 if dtype == torch.float32 else 1e-12) * max(1, absolute / 4e-6) * dense["output"].norm()
    )
    assert torch.equal(found.visible, dense["visible"])
    assert_names_the_top(found.top_keys, dense, relative)
    assert_moments(found, dense, 1e-5 if dtype == torch.float32 else 1e-12)


def assert_names_the_top(top_keys: Tensor, dense: dict[str, Any], relative: float) -> None:
    """The listed keys have the largest weights, up to ties within the tolerance, and none is repeated."""
    assert torch.equal(top_keys < 0, dense["top_keys"] < 0)
    found = dense["weights"].gather(-1, top_keys.clamp(min=0)).masked_fill(top_keys < 0, math.nan)
    torch.testing.assert_close(found, dense["top_weights"], rtol=2 * relative, atol=1e-37, equal_nan=True)
    named = top_keys.sort(-1).values
    assert not ((named[..., 1:] == named[..., :-1]) & (named[..., 1:] >= 0)).any()


def assert_moments(found: AttentionStatistics, dense: dict[str, Any], relative: float) -> None:
    heads = zip(
        dense["scores"].flatten(0, -3) if dense["scores"].ndim > 2 else [dense["scores"]],
        dense["terms"].flatten(0, -3) if dense["terms"].ndim > 2 else [dense["terms"]],
        dense["seen"].flatten(0, -3) if dense["seen"].ndim > 2 else [dense["seen"]],
        found.score_mean.flatten(),
        found.score_variance.flatten(),
        found.score_min.flatten(),
        found.score_max.flatten(),
        strict=True,
    )
    for head, terms, seen, mean, variance, smallest, largest in heads:
        scores = head[seen]
        if not len(scores):
            assert all(figure.isnan() for figure in (mean, variance, smallest, largest))
            continue
        reach = float(terms[seen].max())
        for figure, expected in ((mean, scores.mean()), (smallest, scores.min()), (largest, scores.max())):
            assert abs(float(figure) - float(expected)) <= relative * reach
        if len(scores) == 1:
            assert variance.isnan()
        else:
            # The last bits of scores and of their squares move the variance of scores that differ by little.
            last_bit = torch.finfo(variance.dtype).eps
            noise = last_bit * (reach**2 + 2 * reach * float(scores.std()))
            assert abs(float(variance) - float(scores.var())) <= relative * float(scores.var()) + noise


@dataclass(frozen=True)
class Case:
    seed: int
    num_queries: int
    num_keys: int
    size: int
    heads: tuple[int, int] | None
    reach: float
    causal: bool
    window: int | None
    softcap: float | None
    with_sink: bool
    scale: float | None
    padding: float
    top_k: int
    pooled: int
    float64: bool

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Tensors with scores up to about `reach`."""
        generator = torch.Generator().manual_seed(self.seed)
        dtype = torch.float64 if self.float64 else torch.float32
        lead, kv_lead = ((), ()) if self.heads is None else ((2, self.heads[0]), (2, self.heads[1]))
        query = torch.randn(*lead, self.num_queries, 7, generator=generator, dtype=dtype)
        key, value = (
            torch.randn(*kv_lead, self.num_keys, dim, generator=generator, dtype=dtype) for dim in (7, 3)
        )
        largest = float(query.norm(dim=-1).max() * key.norm(dim=-1).max()) / math.sqrt(7)
        query = query * (self.reach / largest)
        extra: dict[str, Any] = {name: getattr(self, name) for name in OPTIONS}
        if self.padding:
            shape = (self.num_keys,) if self.heads is None else (2, 1, self.num_keys)
            extra["key_mask"] = torch.rand(shape, generator=generator) >= self.padding
        if self.with_sink:
            shape = () if self.heads is None else (self.heads[0],)
            extra["sink"] = torch.randn(shape, generator=generator, dtype=dtype)
        return query, key, value, extra


def case(size: int, **drawn: Any) -> Case:
    """With fewer queries and keys for tiles of a single score, of which 70 on 70 in 12 heads are 58,800."""
    most = 17 if size == 0 else 70
    counts = {name: (drawn[name] - 1) % most + 1 for name in ("num_queries", "num_keys")}
    return Case(size=size, **{**drawn, **counts})


CASES = st.builds(
    case,
    size=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    num_queries=st.integers(1, 70),
    num_keys=st.integers(1, 70),
    heads=st.sampled_from([None, (1, 1), (6, 2), (3, 1), (2, 2)]),
    reach=st.sampled_from([0.1, 4.0, 30.0, 90.0, 1e4]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 80),
    softcap=st.none() | st.sampled_from([0.5, 30.0]),
    with_sink=st.booleans(),
    scale=st.none() | st.sampled_from([1.0, -0.3]),
    padding=st.sampled_from([0.0, 0.0, 0.3, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 80]),
    pooled=st.sampled_from([1, 8, 64]),
    float64=st.booleans(),
)


@given(case=CASES)
@settings(max_examples=12, deadline=None)
def test_any_options_on_small_inputs(case: Case) -> None:
    query, key, value, extra = case.tensors()
    dense = dense_statistics(query, key, value, pooled=case.pooled, **extra)
    # A top_k beyond the keys is padded with nulls; the oracle names no more keys than there are.
    beyond = max(0, case.top_k - case.num_keys)
    dense["top_keys"] = torch.nn.functional.pad(dense["top_keys"], (0, beyond), value=-1)
    dense["top_weights"] = torch.nn.functional.pad(dense["top_weights"], (0, beyond), value=math.nan)
    for engine in ("rows", "tiles"):
        found = by_engine(engine, query, key, value, case.size, pooled=case.pooled, **extra)
        assert_agrees(found, dense, query.dtype)


LONG = [
    dict(num_queries=1499, num_keys=1499, causal=True, window=None, padding=0.0, softcap=None),
    dict(num_queries=701, num_keys=2203, causal=True, window=700, padding=0.3, softcap=None),
    dict(num_queries=1409, num_keys=1201, causal=False, window=61, padding=0.0, softcap=30.0),
    dict(num_queries=601, num_keys=3001, causal=False, window=None, padding=0.3, softcap=None),
]


@pytest.mark.parametrize(("long", "reach"), in_turn(LONG, [8.0, 90.0]))
def test_long_rows_in_tiles_of_the_usual_size(long: dict[str, Any], reach: float) -> None:
    case = Case(
        seed=int(reach),
        size=5,
        heads=None,
        reach=reach,
        with_sink=reach == 90.0,
        scale=None,
        top_k=5,
        pooled=64,
        float64=False,
        **long,
    )
    query, key, value, extra = case.tensors()
    dense = dense_statistics(query, key, value, **extra)
    for engine in ("rows", "tiles"):
        assert_agrees(by_engine(engine, query, key, value, case.size, **extra), dense, query.dtype)
