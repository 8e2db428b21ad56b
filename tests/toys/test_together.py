"""Experiments that run together give the same reports as separate runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import UserError
from attncli.features.attention.settings import SelfOfModelSpec
from attncli.records.report import NamedTensor, Report, Table, Tensors
from attncli.runs import runner as together
from attncli.runs.runner import Session
from attncli.settings import SPECS
from attncli.settings.fields import Given, Spec, build_spec
from attncli.settings.models import ModelSpec
from attncli.settings.pages import SampledPage
from attncli.toys.sampling import DrawCache
from tests.running import run_together

VECTORS = "attncli/data/lessons/files/made-up.50d.txt"
CAT = "the cat walks on the street"


def spec_of(experiment: str, **values: object) -> Spec:
    return build_spec(SPECS[experiment], {key: Given(value, key) for key, value in values.items()})


def alone(spec: Spec) -> Report | UserError:
    try:
        return Session().run(spec, reseed=True)
    except UserError as error:
        return error


def with_ranking_of(got: Report, expected: Report) -> Report:
    """The first report, with the other report's top keys where differing keys have equal weights.

    The weights of a repeated word differ only in the last bit, so rounding decides their order.
    """
    ours, theirs = (report.statistics["rows"]["top_keys"] for report in (got, expected))
    weights = expected.tensors["weights"].values if "weights" in expected.tensors else None
    if weights is None or np.array_equal(ours.values, theirs.values):
        return got
    ranks = np.maximum(ours.values, 0), np.maximum(theirs.values, 0)
    at_ours, at_theirs = (np.take_along_axis(weights, keys, axis=-1) for keys in ranks)
    np.testing.assert_allclose(at_ours, at_theirs, atol=1e-6)
    assert ((ours.values < 0) == (theirs.values < 0)).all()
    rows = Tensors(got.statistics["rows"] | {"top_keys": theirs})
    return replace(got, result=replace(got.result, rows=rows))


def assert_same(got: object, expected: object, where: str = "", tolerance: float = 1e-6) -> None:
    """Check that numbers are equal relative to the largest in their tensor, and all else exactly."""
    assert type(got) is type(expected) or isinstance(got, Mapping), where
    if isinstance(expected, Report):
        assert list(got.tensors) == list(expected.tensors)
        if "top_keys" in expected.statistics.get("rows", {}):
            got = with_ranking_of(got, expected)
        ours = got.fields()
        for name, value in expected.fields().items():
            assert_same(ours[name], value, name, tolerance)
    elif isinstance(expected, NamedTensor):
        assert got.axes == expected.axes, where
        assert got.values.dtype == expected.values.dtype, where
        assert_same(got.values, expected.values, where, tolerance)
    elif isinstance(expected, np.ndarray):
        assert got.shape == expected.shape, where
        finite = np.abs(expected[np.isfinite(expected)])
        largest = max(1.0, float(finite.max())) if finite.size else 1.0
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * largest, err_msg=where)
    elif isinstance(expected, Mapping):
        assert list(got) == list(expected), where
        if set(expected) == {"mean", "variance", "min", "max"}:  # of float32 scores, exact to their last bits
            largest = max(1, abs(expected["min"]), abs(expected["max"]))
            known, close = (
                {name: number for name, number in moments.items() if number is not None}
                for moments in (got, expected)
            )
            assert known == pytest.approx(close, rel=tolerance, abs=tolerance * largest), where
            return
        for name, value in expected.items():
            assert_same(got[name], value, f"{where}.{name}", tolerance)
    elif isinstance(expected, list | tuple | Table):
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, f"{where}[{i}]", tolerance)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=tolerance, abs=tolerance, nan_ok=True), where
    elif isinstance(expected, UserError):
        assert got.lines == expected.lines and type(got) is type(expected)
    else:
        assert got == expected, where


def assert_together_is_alone(specs: list[Spec]) -> None:
    """Compare within 1e-6, or 3e-6 with a model, whose sums depend on the sizes of its products."""
    for got, spec in zip(run_together(specs), specs, strict=True):
        assert_same(got, alone(spec), tolerance=3e-6 if isinstance(spec, ModelSpec) else 1e-6)


SENTENCES = [
    CAT,
    "a b a b a b",
    "a a a a a a",
    "x",
    "y",
    "x y",
]
SETTINGS = [
    ("self", {}),
    ("self", {"causal": True, "scale": "fourth-root", "head_dim": 7, "value_dim": 5}),
    ("self", {"projection": "uniform", "embed_dim": 12, "scale": 0.01}),
    ("self", {"projection": "none"}),
    ("self", {"softmax": False}),
    ("self", {"embedding": "gaussian", "projection_order": ["key", "query", "value"]}),
    ("self", {"explain": True}),
    ("self", {"engine": "streaming"}),
    ("multihead", {}),
    ("multihead", {"rope": True, "rope_base": 100, "window": 3, "softcap": 0.5, "qk_norm": True}),
    ("multihead", {"alibi": True, "sink": 1.0, "temperature": 0.5, "causal": True}),
    ("self", {"rope": True, "sink": -1.0, "qk_norm": True, "qk_norm_eps": 0.1}),
    ("self", {"alibi": True, "window": 2, "causal": True}),
    ("self", {"relative_bias": True}),
    ("multihead", {"differential": True, "head_dim": 8}),
    ("multihead", {"explain": True, "num_heads": 2}),
    ("average", {"explain": True}),
    ("cross", {"sink": 0.5, "softcap": 2.0}),
    ("multihead", {"causal": True, "num_heads": 6, "num_kv_heads": 2, "embed_dim": 18, "top_k": 2}),
    ("multihead", {"projection": "none", "num_heads": 4, "output_projection": False, "top_k": 0}),
    ("multihead", {"projection": "uniform", "embed_dim": 12, "num_heads": 3, "head_dim": 5, "value_dim": 7}),
    ("multihead", {"softmax": False, "embedding": "integers", "scale": 0.01, "top_k": 9}),
    ("average", {}),
    ("average", {"over": "all", "method": "softmax", "embed_dim": 3}),
    ("average", {"aggregate": "sum", "method": "loop"}),
    ("average", {"method": "softmax", "softmax_twice": True}),
    ("heads", {}),
]


@pytest.mark.parametrize(("experiment", "values"), SETTINGS, ids=str)
def test_sentences_give_the_same_together_and_alone(experiment: str, values: dict[str, object]) -> None:
    assert_together_is_alone([spec_of(experiment, sentence=text, **values) for text in SENTENCES])


@pytest.mark.parametrize("values", [{}, {"embedding": "gaussian", "scale": "none", "embed_dim": 5}], ids=str)
def test_cross_attention_together(values: dict[str, object]) -> None:
    contexts = ["c a d e f", "f e d a c", "q"]
    specs = [spec_of("cross", sentence=s, context=c, **values) for s in SENTENCES[::2] for c in contexts]
    assert_together_is_alone(specs)


@pytest.mark.parametrize("experiment", ["self", "multihead", "average"])
def test_random_vectors_of_several_seeds_together(experiment: str) -> None:
    specs = [spec_of(experiment, num_tokens=n, seed=seed) for seed in (3, 0, 3) for n in (5, 7)]
    assert_together_is_alone(specs)
    batches = [spec_of(experiment, num_tokens=5, batch_size=3, seed=seed) for seed in (3, 0)]
    assert_together_is_alone(batches)


@pytest.mark.nightly
def test_all_experiments_mixed_in_any_order() -> None:
    specs = [
        spec_of(name, **({"sentence": text} if "sentence" in kind.model_fields else {}))
        for text in (CAT, "a b c d e f")
        for name, kind in SPECS.items()
    ]
    Random().shuffle(specs)
    assert_together_is_alone(specs)


words = st.text(st.sampled_from("abc"), min_size=1, max_size=2)
sentences = st.lists(words, min_size=1, max_size=6).map(" ".join)
items = st.fixed_dictionaries(
    {
        "sentence": sentences,
        "seed": st.integers(0, 2),
        "causal": st.booleans(),
        "num_kv_heads": st.sampled_from([1, 2]),
    }
)


@settings(max_examples=10, deadline=None)
@given(st.lists(items, min_size=1, max_size=40))
def test_any_sentences_with_repeated_words_and_any_seeds(chosen: list[dict[str, object]]) -> None:
    assert_together_is_alone([spec_of("multihead", num_heads=2, embed_dim=6, **item) for item in chosen])


def test_a_bucket_has_at_most_32_texts_and_fewer_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    run_bucket = together._run_bucket
    monkeypatch.setattr(
        together, "_run_bucket", lambda s, *more: sizes.append(len(s)) or run_bucket(s, *more)
    )
    run_together([spec_of("self", sentence=f"w{i} b", embed_dim=4) for i in range(70)])
    assert sizes == [32, 32, 6]
    sizes.clear()
    run_together([spec_of("multihead", num_tokens=400, seed=seed, embed_dim=8) for seed in range(2)])
    run_together([spec_of("self", num_tokens=600, seed=seed, embed_dim=8) for seed in range(2)])
    assert sizes == [1, 1, 1, 1]


def test_a_bad_text_is_reported_and_the_others_run() -> None:
    known = spec_of("self", embedding=VECTORS, sentence="the cat walks")
    unknown = spec_of("self", embedding=VECTORS, sentence="the platypus walks")
    outcomes = run_together(
        [known, unknown, known, spec_of("self", embedding=VECTORS, sentence="on the cat")]
    )
    assert isinstance(outcomes[1], UserError) and "platypus" in str(outcomes[1])
    assert_same(outcomes[1], alone(unknown))
    for i in (0, 2):
        assert_same(outcomes[i], alone(known))
    zeros = [
        spec_of("self", embedding=VECTORS, sentence=s, unknown="zero") for s in ("the platypus", "the cat")
    ]
    assert_together_is_alone(zeros)


def test_a_damaged_line_affects_only_texts_that_need_it(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("the 1 2 3\ncat 1 nan 3\ndog 3 2 1\n")
    specs = [spec_of("self", embedding=str(path), sentence=s) for s in ("the dog", "the cat", "dog the")]
    outcomes = run_together(specs)
    assert [isinstance(outcome, UserError) for outcome in outcomes] == [False, True, False]
    for outcome, spec in zip(outcomes, specs, strict=True):
        assert_same(outcome, alone(spec))


def test_overflow_affects_only_its_own_sentence(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("small 1 2\nlarge 1e30 1e30\n")
    specs = [
        spec_of("self", embedding=str(path), sentence=text, scale=1e10, head_dim=2)
        for text in ("small small", "small large", "small small")
    ]
    outcomes = run_together(specs)
    assert [isinstance(outcome, UserError) for outcome in outcomes] == [False, True, False]
    for outcome, spec in zip(outcomes, specs, strict=True):
        assert_same(outcome, alone(spec))


def test_files_and_texts_without_a_token(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(CAT)
    specs = [spec_of("self", file=str(path)), spec_of("self", sentence="..."), spec_of("self", sentence=CAT)]
    path_gone = spec_of("self", file=str(path))
    assert_together_is_alone(specs)
    path.unlink()
    outcomes = run_together([path_gone, specs[2]])
    assert isinstance(outcomes[0], UserError) and isinstance(outcomes[1], Report)


def test_draws_are_the_same_with_and_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from attncli.toys import sampling as draws_together

    specs = [
        spec_of("self", sentence=text, seed=seed)
        for seed in (0, 1)
        for text in (CAT, "a b c d e f", "a a b b c c")
    ]
    monkeypatch.setattr(draws_together, "DRAW_CACHE", DrawCache(max_bytes=0))
    assert_together_is_alone(specs)
    monkeypatch.setattr(draws_together, "DRAW_CACHE", DrawCache())
    for _ in range(2):
        assert_together_is_alone(specs)


OF_TEXTS = {
    *together.TEXT_AND_SEED_KEYS,
    "num_tokens",
    "num_context_tokens",
    "tokenizer",
    "unknown",
    "device",
}
NEEDS_WHAT_RUNS_ALONE = {"token", "lambda_init", "num_buckets", "max_distance", *SelfOfModelSpec.model_fields}


@pytest.mark.parametrize("experiment", ["self", "multihead", "cross", "average"])
def test_every_setting_is_tested_together_or_runs_alone(experiment: str) -> None:
    """A new setting may sample or report what several texts cannot share: test it above, or run it alone."""
    assert spec_of(experiment).can_run_together()
    tested = {key for _, values in SETTINGS for key in values}
    rest = SPECS[experiment].model_fields.keys() - tested - OF_TEXTS - NEEDS_WHAT_RUNS_ALONE
    assert rest == {"batch_size"}
    given = {"explain": True, "relative_bias": True, "differential": True, "batch_size": 2}
    for key in given.keys() & SPECS[experiment].model_fields.keys():
        values = {key: given[key], **({"num_tokens": 3} if key == "batch_size" else {})}
        assert not spec_of(experiment, **values).can_run_together(), key


@pytest.mark.parametrize(("values", "expected"), [({}, [2]), ({"explain": True}, [])])
def test_settings_that_run_alone_make_no_bucket(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, object], expected: list[int]
) -> None:
    sizes = []
    run_bucket = together._run_bucket
    monkeypatch.setattr(
        together, "_run_bucket", lambda s, *more: sizes.append(len(s)) or run_bucket(s, *more)
    )
    assert_together_is_alone([spec_of("self", sentence=text, **values) for text in (CAT, "a b c d e f")])
    assert sizes == expected


@dataclass(frozen=True)
class WiderReport(Report):
    more: str = ""


def test_a_new_field_of_reports_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that no experiment sets when it runs together are kept, too."""
    page = together.page_of(spec_of("self"))
    assert isinstance(page, SampledPage)

    def run(*arguments: Any) -> Report:
        fields = vars(page.run(*arguments))
        return WiderReport(**{**fields, "first_query": 2, "token_spelling": "metaspace", "more": "kept"})

    monkeypatch.setattr(together, "page_of", lambda _: SampledPage(run=run))
    specs = [spec_of("self", sentence=sentence) for sentence in ("the cat", "the dog")]
    for found, sentence in zip(run_together(specs), ("the cat", "the dog"), strict=True):
        assert isinstance(found, WiderReport) and found.tokens == tuple(sentence.split())
        assert (found.more, found.first_query, found.token_spelling) == ("kept", 2, "metaspace")
