"""The reference against loops over rows, engines against the reference, and batches against single texts."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_attention import naive
from torch import Tensor

from attncli.core import reference, rows, tiles
from attncli.core import row_tiles as row_softmax
from attncli.core import row_tiles as tile
from attncli.core import tile_sums as compiled_pass
from attncli.core.engines import attend, engine_for
from attncli.core.formulas import Plane
from attncli.core.layer import AttentionLayer, Computed, Marks, Patterns, ScoreRules, Visibility, Wanted
from attncli.core.names import PATTERNS, ROW_STATISTICS, WEIGHT_STATISTICS
from attncli.core.row_tiles import GivenWeights
from attncli.core.tile_sums import TileSizes
from tests.conftest import in_pairs, in_turn
from tests.layers import checked_layer

TEXTS, HEADS, KV_HEADS, DIM, VALUE_DIM = 3, 4, 2, 5, 3
SCALE = 0.3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kept(count: int, *spans: tuple[int, int]) -> Tensor:
    """True for the keys of each text from one position to another; negative positions count from the end."""
    places = torch.arange(count)
    ends = [(first % (count + 1), stop % (count + 1)) for first, stop in spans]
    return torch.stack([(places >= first) & (places < stop) for first, stop in ends])


Settings = dict[str, Any]

# What is special about a layer of n queries; n + more keys where it says so.
CASES: dict[str, Callable[[int], Settings]] = {
    "full": lambda n: {},
    "causal": lambda n: {"causal": True},
    "window": lambda n: {"causal": True, "window": 5},
    "both ways": lambda n: {"window": 3},
    "window of one": lambda n: {"window": 1},
    "padding right": lambda n: {"key_mask": kept(n, (0, n), (0, n - 4), (0, n // 2))},
    "padding left": lambda n: {"key_mask": kept(n, (0, n), (4, n), (n // 2, n))},
    "padding of all": lambda n: {"key_mask": kept(n, (3, n))},
    "causal padding right": lambda n: {"causal": True, "key_mask": kept(n, (0, n - 2), (0, n), (0, 1))},
    "causal padding left": lambda n: {"causal": True, "key_mask": kept(n, (n - 1, n), (2, n), (0, n))},
    "all hidden": lambda n: {"key_mask": kept(n, (0, 0), (0, n), (n, n))},
    "window padding": lambda n: {"causal": True, "window": 4, "key_mask": kept(n, (5, n), (0, 3), (0, n))},
    "rule": lambda n: {"rule": lambda i, j: ((i.unsqueeze(1) + j) % 3 > 0).unsqueeze(0)},
    "rule and padding": lambda n: {
        "rule": lambda i, j: ((i.unsqueeze(1) * j) % 4 < 2).unsqueeze(0),
        "key_mask": kept(n, (0, n), (4, n), (0, 2)),
    },
    "rule of each text": lambda n: {
        "rule": lambda i, j: (i.unsqueeze(1) + j + torch.arange(TEXTS).view(-1, 1, 1)) % 3 > 0
    },
    "softcap": lambda n: {"softcap": 2.0, "causal": True},
    "temperature": lambda n: {"temperature": 0.4, "causal": True},
    "sink": lambda n: {"sink": torch.linspace(-1, 6, HEADS).view(1, HEADS)},
    "sink of each text": lambda n: {"sink": drawn(TEXTS, HEADS, seed=3) * 3, "causal": True},
    "sink for all": lambda n: {"sink": torch.tensor([[0.7]], dtype=torch.float64), "window": 4},
    "sink far above": lambda n: {"sink": torch.tensor([[60.0]]), "temperature": 2.0},
    "sink and blind rows": lambda n: {
        "sink": torch.linspace(-1, 3, HEADS).view(1, HEADS),
        "causal": True,
        "key_mask": kept(n, (2, n), (0, n), (n, n)),
    },
    "bias": lambda n: {"bias": 2 * drawn(1, HEADS, n, n, seed=4)},
    "bias of each text": lambda n: {"bias": 2 * drawn(TEXTS, 1, n, n, seed=4), "causal": True},
    "bias of keys": lambda n: {"bias": drawn(TEXTS, HEADS, 1, n, seed=4), "window": 4},
    "everything": lambda n: {
        "softcap": 3.0,
        "temperature": 1.7,
        "causal": True,
        "window": 7,
        "sink": drawn(1, HEADS, seed=5),
        "key_mask": kept(n, (0, n), (3, n), (0, n - 1)),
    },
    "everything with a bias": lambda n: {
        "softcap": 3.0,
        "temperature": 1.7,
        "causal": True,
        "sink": drawn(1, HEADS, seed=5),
        "bias": drawn(1, HEADS, n, n, seed=6),
        "rule": lambda i, j: ((i.unsqueeze(1) + 2 * j) % 5 > 0).unsqueeze(0),
        "key_mask": kept(n, (0, n), (3, n), (0, n - 1)),
    },
    "fewer keys": lambda n: {"more": -6},
    "more keys": lambda n: {"more": 8, "key_mask": kept(n + 8, (0, n + 8), (3, n), (0, n))},
    "causal with fewer keys": lambda n: {"more": -4, "causal": True},
    "causal with more keys": lambda n: {"more": 5, "causal": True, "window": 6},
    "one key": lambda n: {"more": 1 - n},
    "a key head for each": lambda n: {"kv_heads": HEADS, "causal": True},
    "one key head": lambda n: {"kv_heads": 1, "causal": True},
    "one text": lambda n: {"texts": 1, "causal": True},
    "scores of ten thousand": lambda n: {"reach": 1e4, "causal": True},
    "equal rows": lambda n: {"reach": 0.0, "causal": True},
    "ties": lambda n: {"whole_numbers": True, "window": 9},
    "ties beside padding": lambda n: {"whole_numbers": True, "key_mask": kept(n, (0, n), (4, n), (0, 3))},
}
BY_ROWS_ALONE = [name for name, settings in CASES.items() if {"bias", "rule"} & settings(9).keys()]
IN_TILES = [name for name in CASES if name not in BY_ROWS_ALONE]


def made(case: str, num_queries: int, dtype: torch.dtype) -> AttentionLayer:
    settings = CASES[case](num_queries)
    num_keys = num_queries + settings.pop("more", 0)
    texts, kv_heads = settings.pop("texts", TEXTS), settings.pop("kv_heads", KV_HEADS)
    query = 2 * drawn(texts, HEADS, num_queries, DIM, seed=7)
    key = 2 * drawn(texts, kv_heads, num_keys, DIM, seed=8)
    value = drawn(texts, kv_heads, num_keys, VALUE_DIM, seed=9)
    if settings.pop("whole_numbers", False):  # whose products are exact in any order and precision
        query, key = query.sign(), key.sign()
    if (reach := settings.pop("reach", None)) is not None:
        query = query * reach / (query @ key.repeat_interleave(HEADS // kv_heads, 1).mT * SCALE).abs().max()
    if "bias" in settings:
        settings["bias"] = settings["bias"].to(dtype)
    query, key, value = (part.to(dtype) for part in (query, key, value))
    return checked_layer(query, key, value, scale=0.5 if "ties" in case else SCALE, **settings)


def grid(num_tokens: int) -> Tensor:
    """Places in rows of three; the first token is outside the grid."""
    numbers = torch.arange(num_tokens) - 1
    places = torch.stack([numbers // 3, numbers % 3], dim=-1).double()
    places[0] = torch.nan
    return places


def everything(layer: AttentionLayer, top_k: int = 4) -> Wanted:
    num_texts, _, num_queries, num_keys = layer.shape
    num_tokens = max(num_queries, num_keys)
    ids = torch.randint(0, 4, (num_texts, num_tokens), generator=torch.Generator().manual_seed(2))
    marks = Marks(*(ids % 3 == number for number in range(3)))
    repeat = min(3, num_tokens - 1)
    names = tuple(name for name in PATTERNS if repeat or name != "induction_stripe")
    return Wanted(
        rows=tuple(ROW_STATISTICS),
        top_k=top_k,
        previous_token=True,
        output=True,
        weights=True,
        scores=True,
        kept_heads=(2, 0),
        head_mean=True,
        score_moments=True,
        received_mass=True,
        pooled=4,
        patterns=Patterns(
            names,
            ids,
            marks,
            first_key=1,
            repeat=repeat,
            plane=Plane(grid(num_tokens)),
            seconds=seconds_of(num_tokens),
        ),
    )


def seconds_of(num_tokens: int) -> torch.Tensor:
    """The start of each token, exact in single precision; the third token has no time."""
    seconds = torch.arange(num_tokens, dtype=torch.float64) / 32
    seconds[2:3] = torch.nan
    return seconds


def by_name(found: Computed) -> dict[str, Any]:
    """Every number, by its name."""
    named = {**vars(found), **found.rows, **(vars(found.moments) if found.moments else {})}
    return {name: number for name, number in named.items() if isinstance(number, Tensor)}


SCORES = ("raw_scores", "scores", "logsumexp", "mean", "smallest", "largest", "variance")


def assert_same(found: dict[str, Any], expected: dict[str, Any], tolerance: float, exact_keys: bool) -> None:
    """Check that numbers are equal, relative to each number or to the largest possible one of its kind.

    A weight is exp(score - logsumexp), so its relative error is the absolute error of that difference. Scores
    above 100, which have fewer decimals, therefore widen the bound.
    """
    scores, raw = (np.asarray(expected[name]) for name in ("scores", "raw_scores"))
    reach = float(np.abs(scores[np.isfinite(scores)]).max(initial=1.0))
    largest_product = float(np.abs(raw[np.isfinite(raw)]).max(initial=1.0))
    relative = tolerance * max(1.0, reach / 100)
    sizes = dict.fromkeys(SCORES, reach / 10) | {
        "raw_scores": largest_product / 10,
        "variance": reach**2 / 10,
        "entropy": 1.0,
        "normalized_entropy": 1 / math.log(2),
    }
    for name, ours in found.items():
        theirs = np.asarray(expected[name])
        assert ours.shape == theirs.shape, name
        if name == "top_keys" and not exact_keys:
            assert_names_the_top(ours, expected, relative)
        elif not ours.is_floating_point():
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        else:
            atol = relative * sizes.get(name, 0.1)
            np.testing.assert_allclose(ours.double(), theirs, rtol=relative, atol=atol, err_msg=name)


def assert_names_the_top(top_keys: Tensor, expected: dict[str, Any], relative: float) -> None:
    """The keys have the largest weights, up to ties within the tolerance, and none is repeated."""
    weights, top_weights = (torch.as_tensor(expected[name]) for name in ("weights", "top_weights"))
    named = weights.gather(-1, top_keys.clamp(min=0)).masked_fill(top_keys < 0, torch.nan)
    torch.testing.assert_close(named, top_weights, rtol=2 * relative, atol=relative, equal_nan=True)
    ordered = top_keys.sort(-1).values
    assert not ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()


@contextmanager
def tiles_of_rows(size: int, most_rows: int, least_rows: int) -> Iterator[None]:
    """The engine `rows` with another tile size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile, "TILE", size)
        patch.setattr(tile, "MOST_ROWS", most_rows)
        patch.setattr(tile, "LEAST_ROWS", least_rows)
        yield


SIZES_OF_ROWS = [(1, 1, 1), (70, 3, 2), (500, 7, 1), (1500, 11, 2), (2**20, 256, 16)]
SIZES_OF_TILES = [TileSizes(4, 7), TileSizes(11, 32), TileSizes()]
PRECISIONS = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def types_of(found: dict[str, Tensor]) -> set[torch.dtype]:
    """Dtypes of all results except the moments and participation, which are always float64."""
    return {
        number.dtype
        for name, number in found.items()
        if number.is_floating_point()
        and name not in ("mean", "variance", "smallest", "largest", "participation")
    }


def in_both_precisions(sizes: list[Any], of_float32: list[Any]) -> list[tuple[Any, torch.dtype, float]]:
    return [(size, *PRECISIONS[0]) for size in sizes] + [(size, *PRECISIONS[1]) for size in of_float32]


@pytest.mark.parametrize("case", CASES)
def test_the_reference_matches_loops_over_rows(case: str) -> None:
    """With 11 queries, and with a single one unless that leaves no key."""
    for num_queries in (11,) if CASES[case](9).get("more", 0) < 0 else (1, 11):
        layer = made(case, num_queries, torch.float64)
        wanted = everything(layer, top_k=4)
        found = by_name(reference.attend(layer, wanted))
        expected = naive(layer, wanted)
        assert found.keys() == expected.keys()
        assert_same(found, expected, 1e-12, exact_keys=True)


@cache
def of_the_reference(case: str, dtype: torch.dtype) -> dict[str, Any]:
    """The reference's numbers for a layer with 15 queries, for every tile size."""
    layer = made(case, 15, dtype)
    return by_name(reference.attend(layer, everything(layer)))


@pytest.mark.parametrize(
    ("case", "sizes", "dtype", "tolerance"),
    in_turn(CASES, in_both_precisions(SIZES_OF_ROWS, SIZES_OF_ROWS[2:])),
    ids=str,
)
def test_rows_match_the_reference(
    case: str, sizes: tuple[int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    layer = made(case, 15, dtype)
    wanted = everything(layer)
    with tiles_of_rows(*sizes):
        found = by_name(rows.attend(layer, wanted))
    expected = of_the_reference(case, dtype)
    assert found.keys() == expected.keys()
    assert types_of(found) == {dtype}
    is_exact = dtype == torch.float64 or "ties" in case or case == "equal rows"
    assert_same(found, expected, tolerance, exact_keys=is_exact)


@pytest.mark.parametrize(
    ("case", "sizes", "dtype", "tolerance"),
    in_turn(IN_TILES, in_both_precisions(SIZES_OF_TILES, SIZES_OF_TILES[1:])),
    ids=str,
)
def test_tiles_match_the_reference(case: str, sizes: TileSizes, dtype: torch.dtype, tolerance: float) -> None:
    layer = made(case, 15, dtype)
    wanted = everything(layer)
    found = by_name(tiles.attend(layer, wanted, None, sizes))
    expected = of_the_reference(case, dtype)
    assert found.keys() == expected.keys()
    assert_same(found, expected, tolerance, exact_keys=dtype == torch.float64)


hidden_shares = st.sampled_from([0.0, 0.3, 0.95, 1.0])


@st.composite
def layers(draw: st.DrawFn) -> tuple[AttentionLayer, Wanted, float]:
    """Layers of any shape with scores up to some number, the wanted results, and the tolerance."""
    num_queries, num_keys = draw(st.integers(1, 30)), draw(st.integers(1, 30))
    num_heads, kv_heads = draw(st.sampled_from([(1, 1), (6, 2), (3, 1), (2, 2)]))
    dtype, tolerance = draw(st.sampled_from(PRECISIONS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    query = torch.randn(2, num_heads, num_queries, 7, generator=generator, dtype=dtype)
    key, value = (torch.randn(2, kv_heads, num_keys, dim, generator=generator, dtype=dtype) for dim in (7, 3))
    reach = draw(st.sampled_from([0.1, 4.0, 30.0, 90.0]))
    scale = draw(st.sampled_from([1.0, -0.3]))
    query = query * (reach / float(query.norm(dim=-1).max() * key.norm(dim=-1).max()) / abs(scale))
    rules: Settings = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 35)),
        "softcap": draw(st.none() | st.sampled_from([0.5, 30.0])),
        "key_mask": torch.rand(2, num_keys, generator=generator)
        >= draw(st.sampled_from([0.0, 0.3, 0.95, 1.0])),
    }
    if draw(st.booleans()):
        rules["sink"] = torch.randn(1, num_heads, generator=generator, dtype=dtype)
    layer = checked_layer(query, key, value, scale=scale, **rules)
    wanted = everything(layer, top_k=draw(st.sampled_from([1, 5, 60])))
    wanted = replace(wanted, pooled=draw(st.sampled_from([1, 8, 64])), kept_heads=(0,))
    return layer, wanted, tolerance * max(1.0, reach / 10)


@given(layers(), st.sampled_from(SIZES_OF_ROWS[1:]), st.sampled_from(SIZES_OF_TILES))
@settings(max_examples=12, deadline=None)
def test_any_layer_in_any_tiles_matches_the_reference(
    case: tuple[AttentionLayer, Wanted, float], rows_size: tuple[int, int, int], tile_size: TileSizes
) -> None:
    layer, wanted, tolerance = case
    expected = by_name(reference.attend(layer, wanted))
    with tiles_of_rows(*rows_size):
        by_rows = by_name(rows.attend(layer, wanted))
    by_tiles = by_name(tiles.attend(layer, wanted, None, tile_size))
    assert by_rows.keys() == by_tiles.keys() == expected.keys()
    for found in (by_rows, by_tiles):
        assert_same(found, expected, tolerance, exact_keys=False)


LONG: dict[tuple[int, int], Settings] = {
    (1499, 1499): {"causal": True},
    (701, 2203): {"causal": True, "window": 700, "key_mask": 0.3},
    (1409, 1201): {"window": 61, "softcap": 30.0},
    (601, 3001): {"key_mask": 0.3, "sink": torch.tensor([[0.5]])},
}


@pytest.mark.parametrize(("sizes", "reach"), in_turn(LONG, [8.0, 90.0]))
def test_long_rows_in_tiles_of_the_usual_size_match_the_reference(
    sizes: tuple[int, int], reach: float
) -> None:
    query, key = (drawn(1, 1, size, 7, seed=seed).float() for seed, size in enumerate(sizes))
    query = query * (reach / float(query.norm(dim=-1).max() * key.norm(dim=-1).max()))
    rules = {**LONG[sizes]}
    if share := rules.get("key_mask"):
        rules["key_mask"] = torch.rand(1, sizes[1], generator=torch.Generator().manual_seed(1)) >= share
    layer = checked_layer(query, key, key[..., :3], scale=1.0, **rules)
    wanted = Wanted(
        rows=tuple(ROW_STATISTICS),
        top_k=5,
        previous_token=True,
        output=True,
        score_moments=True,
        received_mass=True,
        pooled=64,
    )
    expected = by_name(reference.attend(layer, replace(wanted, weights=True, scores=True)))
    for engine in (rows.attend, tiles.attend):
        found = by_name(engine(layer, wanted))
        assert {*wanted.rows, "top_keys", "output", "variance", "received_mass", "pooled_max"} <= found.keys()
        assert_same(found, expected, 1e-5 * max(1.0, reach / 10), exact_keys=False)


@pytest.mark.parametrize("engine", [rows.attend, tiles.attend])
@pytest.mark.parametrize("top_k", [0, 1, 40])
def test_ranks_beyond_the_keys_are_null(engine: Callable[..., Computed], top_k: int) -> None:
    layer = made("causal", 9, torch.float64)
    wanted = everything(layer, top_k)
    found = engine(layer, Wanted(top_k=top_k))
    expected = naive(layer, wanted)
    if top_k:
        assert_same(
            {"top_keys": found.top_keys, "top_weights": found.top_weights}, expected, 1e-12, exact_keys=True
        )
    else:
        assert found.top_keys is None or found.top_keys.shape[-1] == 0


@pytest.mark.parametrize("case", ["causal", "everything with a bias", "bias of keys"])
def test_more_rows_than_a_tile_holds(case: str) -> None:
    layer = made(case, 263, torch.float64)
    wanted = everything(layer)
    found, expected = by_name(rows.attend(layer, wanted)), by_name(reference.attend(layer, wanted))
    assert_same(found, expected, 1e-12, exact_keys=True)


@pytest.mark.parametrize(
    ("case", "num_queries", "dtype", "tolerance"),
    in_turn(CASES, [(number, *each) for each in PRECISIONS for number in (1, 23)]),
)
def test_only_the_output(case: str, num_queries: int, dtype: torch.dtype, tolerance: float) -> None:
    if num_queries == 1 and CASES[case](9).get("more", 0) < 0:
        pytest.skip("no key would be left")
    layer = made(case, num_queries, dtype)
    expected = by_name(reference.attend(layer, everything(layer)))
    output = attend(layer, Wanted(output=True)).output
    assert output is not None and output.dtype == dtype
    assert_same({"output": output}, expected, tolerance, exact_keys=True)


def one_text(layer: AttentionLayer, text: int) -> AttentionLayer:
    """One text of a batch as a separate layer."""

    def own(part: Tensor | None) -> Tensor | None:
        return part if part is None or len(part) == 1 else part[text : text + 1]

    rule, rules = layer.visibility.rule, layer.rules
    alone = None if rule is None else lambda i, j: own(rule(i, j))
    return replace(
        layer,
        **{name: own(getattr(layer, name)) for name in ("query", "key", "value")},
        visibility=replace(layer.visibility, key_mask=own(layer.visibility.key_mask), rule=alone),
        rules=replace(rules, bias=own(rules.bias), sink=own(rules.sink)),
    )


@pytest.mark.parametrize(
    ("case", "sizes"), in_turn(CASES, [(sizes,) for sizes in SIZES_OF_ROWS[2::2]]), ids=str
)
def test_a_text_gives_the_same_in_a_batch(case: str, sizes: tuple[int, int, int]) -> None:
    layer = made(case, 13, torch.float64)
    wanted = everything(layer)
    assert wanted.patterns is not None
    with tiles_of_rows(*sizes):
        together = by_name(rows.attend(layer, wanted))
        for text in range(len(layer.query)):
            ids = wanted.patterns.ids[text : text + 1]
            marks = Marks(*(flags[text : text + 1] for flags in wanted.patterns.marks))
            patterns = replace(wanted.patterns, ids=ids, marks=marks)
            alone = rows.attend(one_text(layer, text), replace(wanted, patterns=patterns))
            ours = {name: number[text : text + 1] for name, number in together.items()}
            assert_same(ours, by_name(alone), 1e-13, exact_keys=True)


@pytest.mark.parametrize(
    "case", ["window of one", "causal padding right", "all hidden", "sink and blind rows", "everything"]
)
def test_a_text_in_tiles_gives_the_same_in_a_batch(case: str) -> None:
    layer = made(case, 13, torch.float64)
    wanted = Wanted(rows=tuple(ROW_STATISTICS), output=True, score_moments=True, received_mass=True, pooled=4)
    together = by_name(tiles.attend(layer, wanted, None, TileSizes(5, 4)))
    for text in range(len(layer.query)):
        alone = by_name(tiles.attend(one_text(layer, text), wanted, None, TileSizes(5, 4)))
        for name, number in together.items():
            assert torch.equal(number[text].nan_to_num(9.0), alone[name][0].nan_to_num(9.0)), name


@pytest.mark.parametrize(
    ("case", "dtype"), in_turn(["causal", "sink", "bias", "everything"], [torch.float16, torch.bfloat16])
)
def test_half_precision_is_computed_in_float32(case: str, dtype: torch.dtype) -> None:
    layer = made(case, 23, dtype)
    wanted = everything(layer)
    found = by_name(rows.attend(layer, wanted))
    assert types_of(found) == {torch.float32}
    assert_same(found, by_name(reference.attend(layer, wanted)), 1e-5, exact_keys=False)


@pytest.mark.parametrize(
    ("case", "sizes"),
    in_turn(
        ["full", "causal padding left", "sink", "rule of each text", "ties", "one text"],
        [(sizes,) for sizes in SIZES_OF_ROWS],
    ),
    ids=str,
)
def test_given_weights_match_the_layer(case: str, sizes: tuple[int, int, int]) -> None:
    """Compare the statistics that need no scores."""
    layer = made(case, 13, torch.float64)
    wanted = replace(
        everything(layer), rows=WEIGHT_STATISTICS, output=False, scores=False, score_moments=False
    )
    expected = by_name(reference.attend(layer, wanted))
    given = GivenWeights(expected["weights"], layer.visibility.whole(torch.device("cpu")))
    with tiles_of_rows(*sizes):
        found = by_name(rows.attend(given, wanted))
    assert expected.keys() - found.keys() == {
        *("output", "scores", "raw_scores", "logsumexp", "mean", "variance", "smallest", "largest")
    }
    assert_same(found, expected, 1e-12, exact_keys=True)


@pytest.mark.parametrize("sizes", SIZES_OF_ROWS, ids=str)
def test_given_weights_may_be_negative(sizes: tuple[int, int, int]) -> None:
    """A hidden entry, which is 0, exceeds a negative weight but is never among the largest."""
    weights = drawn(2, 3, 7, 7).tril()
    seen = torch.ones(1, 7, 7, dtype=torch.bool).tril()
    wanted = Wanted(rows=("max_weight", "sink_mass"), top_k=3, received_mass=True, weights=True)
    with tiles_of_rows(*sizes):
        found = rows.attend(GivenWeights(weights, seen), wanted)
    assert found.top_keys is not None and found.weights is not None
    for place in np.ndindex(2, 3, 7):
        own = weights[place][: place[-1] + 1].tolist()
        best = sorted(range(len(own)), key=lambda j: -own[j])[:3]
        assert found.top_keys[place].tolist() == best + [-1] * (3 - len(best))
        assert found.rows["sink_mass"][place] == own[0]
    assert torch.equal(found.weights, weights)
    torch.testing.assert_close(found.received_mass, weights.sum(dim=2))
    torch.testing.assert_close(found.sums, weights.sum(dim=3))


@pytest.mark.parametrize(("case", "is_inference"), in_turn([*CASES][::4], [False, True]))
def test_rows_on_threads_have_the_same_bytes(
    case: str, is_inference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, found = made(case, 23, torch.float32), []
    monkeypatch.setattr(rows, "LEAST_FOR_JOBS", 0)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            with tiles_of_rows(*SIZES_OF_ROWS[2]), torch.inference_mode(is_inference):
                assert len(tile.tile_places(layer)) > 3
                numbers = by_name(rows.attend(layer, everything(layer)))
            found.append({name: tensor.numpy().tobytes() for name, tensor in numbers.items()})
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_a_failure_on_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def fail(found: Any, of_rows: tile.Tile) -> None:
        begun.append(of_rows.block.queries.start)
        raise MemoryError("no room")

    layer = made("full", 23, torch.float32)
    monkeypatch.setattr(rows, "LEAST_FOR_JOBS", 0)
    monkeypatch.setattr(rows.RowStatistics, "add", fail)
    with tiles_of_rows(*SIZES_OF_ROWS[2]), pytest.raises(MemoryError, match="no room"):
        rows.attend(layer, everything(layer))
    assert len(begun) <= torch.get_num_threads()  # none begins after the first has failed


def test_only_wanted_results_are_computed() -> None:
    layer = made("causal", 9, torch.float64)
    for engine in (rows.attend, tiles.attend):
        found = by_name(engine(layer, Wanted()))
        assert {"sums", "logsumexp", "visible"} <= found.keys()
        assert not {"weights", "scores", "received_mass", "pooled_mean", "pattern_mass"} & found.keys()
    assert by_name(rows.attend(layer, Wanted())).keys() == {"sums", "logsumexp", "visible"}


@pytest.mark.parametrize("case", ["causal", "sink and blind rows", "fewer keys"])
def test_statistics_without_running_sums_match_in_tiles(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("distance", "participation"):
        monkeypatch.setitem(ROW_STATISTICS, name, ROW_STATISTICS[name]._replace(running=False))
    layer = made(case, 23, torch.float64)
    wanted = Wanted(rows=("participation", "entropy", "distance"))
    found = tiles.attend(layer, wanted, None, TileSizes(5, 4))
    expected = reference.attend(layer, wanted)
    assert list(found.rows) == list(wanted.rows)
    for name, row in found.rows.items():
        torch.testing.assert_close(row, expected.rows[name], rtol=1e-12, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize(
    ("sink", "is_compiled", "dtype"),
    in_pairs(
        [-1e4, -2.0, 47.0, 90.0, 300.0, 1e4],
        [True, False],
        [torch.float32, torch.bfloat16, torch.float16, torch.float64],
    ),
    ids=str,
)
def test_a_sink_may_be_far_above_the_keys_in_every_engine(
    sink: float, is_compiled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sink of 47 squared weights underflow float32, with 90 the weights, with 10,000 even float64."""
    if not is_compiled:
        monkeypatch.setattr(row_softmax, "tile_pass", lambda: None)
        monkeypatch.setattr(compiled_pass, "suits", lambda like: False)
    layer = made("causal", 23, dtype)
    layer = replace(layer, rules=ScoreRules(sink=torch.full((1, 1), sink, dtype=torch.float64)))
    wanted = Wanted(rows=tuple(ROW_STATISTICS), output=True)
    expected = reference.attend(layer, wanted)
    for engine in (rows.attend, tiles.attend):
        found = engine(layer, wanted)
        numbers = found.rows | {"logsumexp": found.logsumexp, "sums": found.sums, "output": found.output}
        for name, numbers_of in numbers.items():
            of_reference = expected.rows[name] if name in expected.rows else getattr(expected, name)
            torch.testing.assert_close(
                numbers_of.double(), of_reference, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
            )
        participation = found.rows["participation"]
        assert participation.isfinite().all() == (sink < 1e4) and participation.dtype == torch.float64


@pytest.mark.parametrize("is_compiled", [True, False])
def test_nan_spreads_only_to_rows_that_see_it(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some NaN would become numbers if their lowest bits were shifted like those of a number."""
    if not is_compiled:
        monkeypatch.setattr(row_softmax, "tile_pass", lambda: None)
        monkeypatch.setattr(compiled_pass, "suits", lambda like: False)
    query, key = torch.ones(1, 2, 7, 1), torch.ones(1, 2, 7, 1)
    key.view(torch.int32)[0, 0, 3] = 0x7FC00001
    layer = checked_layer(query, key, key, causal=True)
    wanted = Wanted(rows=tuple(ROW_STATISTICS), output=True)
    for engine in (rows.attend, tiles.attend):
        found = engine(layer, wanted)
        for name in ("entropy", "max_weight", "participation", "distance"):
            assert found.rows[name][0, 0, 3:].isnan().all() and found.rows[name][0, 1].isfinite().all(), name
        assert found.output[0, 0, 3:].isnan().all() and found.output[0, 1].isfinite().all()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_row_of_infinitely_low_scores_gives_all_to_the_sink(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(row_softmax, "tile_pass", lambda: None)
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(1, 1, 3, 5, generator=generator)
    bias = torch.zeros(1, 1, 3, 3)
    bias[..., 1, :] = bias[..., 2, 0] = -torch.inf
    layer = checked_layer(tensor, tensor, tensor, bias=bias, sink=torch.full((1, 1), 2.0))
    wanted = Wanted(rows=tuple(ROW_STATISTICS), output=True)
    found, expected = rows.attend(layer, wanted), reference.attend(layer, wanted)
    for name, row in found.rows.items():
        torch.testing.assert_close(row.double(), expected.rows[name], rtol=1e-5, atol=1e-6, msg=name)
    torch.testing.assert_close(found.logsumexp.double(), expected.logsumexp)
    torch.testing.assert_close(found.output.double(), expected.output)


def test_the_engine_is_chosen_by_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in CASES:
        layer = made(case, 23, torch.float64)
        assert engine_for(layer, Wanted()) == "rows", "short rows"
        with monkeypatch.context() as patch:
            patch.setattr("attncli.core.engines.LEAST_KEYS", 1)
            assert engine_for(layer, Wanted()) == ("rows" if case in BY_ROWS_ALONE else "tiles")
            whole_rows = [
                Wanted(weights=True),
                Wanted(scores=True),
                Wanted(kept_heads=(0,)),
                Wanted(head_mean=True),
                everything(layer),
            ]
            assert {engine_for(layer, wanted) for wanted in whole_rows} == {"rows"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distance_on_a_picture_is_between_patches(dtype: torch.dtype) -> None:
    weights = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights = (weights / weights.sum(dim=-1, keepdim=True)).to(dtype)
    source = GivenWeights(weights, torch.ones(1, 7, 7, dtype=torch.bool))
    found = attend(source, Wanted(rows=("distance", "entropy"), plane=Plane(grid(7).to(dtype)))).rows[
        "distance"
    ]
    assert found[..., 0].isnan().all(), "[CLS] lies nowhere"
    for query in range(1, 7):
        apart = [math.dist(grid(7)[query].tolist(), grid(7)[key].tolist()) for key in range(1, 7)]
        own = weights[:, :, query, 1:].double()
        expected = (own * torch.tensor(apart)).sum(dim=-1) / own.sum(dim=-1)
        torch.testing.assert_close(found[..., query].double(), expected, rtol=1e-5, atol=1e-6)


def test_long_rows_on_a_picture_have_grid_distances() -> None:
    """The engine `tiles`, which does not support places, must not be chosen."""
    query, key = torch.randn(2, 1, 1, 1100, 4, generator=torch.Generator().manual_seed(4))
    layer = AttentionLayer(query, key, key[..., :0], Visibility(1100, 1100), 0.5)
    wanted = Wanted(rows=("distance",))
    assert engine_for(layer, wanted) == "tiles"
    places = torch.stack([torch.arange(1100) // 50, torch.arange(1100) % 50], dim=-1).double()
    found = attend(layer, replace(wanted, plane=Plane(places.float()))).rows["distance"]
    assert found.max() < 50 < attend(layer, wanted).rows["distance"].max()
