"""The two engines give the same statistics; long texts are streamed and summarised."""

import numpy as np
import pytest
import scipy.stats
import torch

from attncli.core.summaries import LEVELS, extreme_places, merged_moments, moments, quantiles
from attncli.errors import RunError, UserError
from attncli.records.report import Report
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec
from tests.running import run


@pytest.fixture(params=["rows", "tiles"])
def by_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed results come from one of the engines, for any number of keys."""
    least = 1 if request.param == "tiles" else 10**9
    monkeypatch.setattr("attncli.core.engines.LEAST_KEYS", least)


CASES = [
    ("self", {"num_tokens": 301, "causal": True}),
    ("self", {"num_tokens": 97, "batch_size": 3, "scale": "fourth-root", "head_dim": 7, "value_dim": 5}),
    ("self", {"num_tokens": 1}),
    ("self", {"num_tokens": 50, "scale": -0.5, "projection": "none"}),
    ("multihead", {"num_tokens": 131, "num_heads": 6, "num_kv_heads": 2, "embed_dim": 42, "causal": True}),
    ("multihead", {"num_tokens": 31, "num_heads": 3, "embed_dim": 12, "batch_size": 2, "top_k": 0}),
    ("cross", {"num_tokens": 31, "num_context_tokens": 67}),
    ("cross", {"sentence": "a b a", "context": "c a d e f"}),
    ("cross", {"num_tokens": 5, "num_context_tokens": 2, "top_k": 4}),
]


@pytest.mark.usefixtures("by_engine")
@pytest.mark.parametrize(("experiment", "settings"), CASES)
def test_both_engines_report_the_same_statistics(experiment: str, settings: dict[str, object]) -> None:
    dense, streamed = (run(experiment, engine=engine, **settings) for engine in ("dense", "streaming"))
    assert "weights" not in streamed.tensors and "weights" in dense.tensors
    for name in set(dense.tensors) & set(streamed.tensors):
        assert dense.tensors[name].axes == streamed.tensors[name].axes
        np.testing.assert_allclose(
            streamed.tensors[name].values, dense.tensors[name].values, atol=2e-5, rtol=1e-4
        )
    for name in ("scores", "scaled_scores"):
        known, expected = (
            {name: number for name, number in moments.items() if number is not None}
            for moments in (streamed.statistics[name], dense.statistics[name])
        )
        assert known == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert list(dense.statistics["rows"]) == list(streamed.statistics["rows"])
    for name, tensor in dense.statistics["rows"].items():
        other = streamed.statistics["rows"][name]
        assert other.axes == tensor.axes and other.values.shape == tensor.values.shape
        if name == "top_keys":
            assert (other.values == tensor.values).mean() > 0.98
        else:
            np.testing.assert_allclose(other.values, tensor.values, rtol=1e-4, atol=1e-5)
    received = [report.statistics["keys"]["received_mass"].values for report in (streamed, dense)]
    np.testing.assert_allclose(*received, rtol=1e-4)


@pytest.mark.usefixtures("by_engine")
def test_pooled_maps_are_block_means_and_maxima_of_the_weights() -> None:
    dense, streamed = (run("self", engine=engine, num_tokens=128) for engine in ("dense", "streaming"))
    blocks = dense.tensors["weights"].values.reshape(64, 2, 64, 2)
    assert streamed.tensors["pooled_mean"].axes == ("query_block", "key_block")
    np.testing.assert_allclose(streamed.tensors["pooled_mean"].values, blocks.mean(axis=(1, 3)), rtol=1e-4)
    np.testing.assert_allclose(streamed.tensors["pooled_max"].values, blocks.max(axis=(1, 3)), rtol=1e-4)


def spec_of(experiment: str, **settings: object):
    return build_spec(SPECS[experiment], {key: Given(value, key) for key, value in settings.items()})


def test_auto_streams_beyond_64_mib_unless_the_matrix_is_needed() -> None:
    assert spec_of("self").chosen_engine(4096, 4096) == "dense"
    assert spec_of("self").chosen_engine(4097, 4096) == "streaming"
    assert spec_of("multihead").chosen_engine(2048, 2048) == "streaming"
    assert spec_of("self", softmax=False).chosen_engine(4097, 4097) == "dense"
    assert spec_of("self", explain=True).chosen_engine(4097, 4097) == "dense"
    assert spec_of("self", engine="dense").chosen_engine(4097, 4097) == "dense"
    assert spec_of("multihead", num_tokens=9, batch_size=3).num_weights(5, 7) == 3 * 8 * 5 * 7


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    generator = np.random.default_rng(1)
    path.write_text(" ".join(f"w{i}" for i in generator.zipf(1.3, 6000) % 500))
    return run("self", file=str(path), causal=True, embed_dim=16)


def test_a_long_text_is_streamed_and_says_so(long_report: Report) -> None:
    assert len(long_report.tokens) == 6000
    assert any(note.startswith("Streamed: the weights would take 144 MB") for note in long_report.notes)
    assert long_report.tensors["pooled_mean"].values.shape == (64, 64)
    assert long_report.tensors["output"].values.shape == (6000, 16)


def test_a_long_text_has_quantiles_and_extremes(long_report: Report) -> None:
    rows = {row["statistic"]: row for row in long_report.statistics["quantiles"]}
    entropy = long_report.statistics["rows"]["entropy"].values
    assert rows["entropy"]["median"] == pytest.approx(np.median(entropy))
    assert rows["entropy"]["p95"] == pytest.approx(np.quantile(entropy, 0.95))
    highest = [
        r
        for r in long_report.statistics["extremes"]
        if (r["statistic"], r["extreme"]) == ("entropy", "highest")
    ]
    assert [row["query"] for row in highest] == np.argsort(-entropy, kind="stable")[:3].tolist()
    assert "quantiles" not in run("self", num_tokens=1000).statistics


def test_the_table_of_a_long_text_is_short(long_report: Report) -> None:
    from tests.views.test_views import shown

    text = shown("table", [long_report], width=80, show=("all",))
    assert len(text.splitlines()) < 270
    assert max(map(len, text.splitlines())) <= 80
    row = next(
        r
        for r in long_report.statistics["extremes"]
        if r["statistic"] == "entropy" and r["extreme"] == "highest"
    )
    assert f"{row['query']} {long_report.tokens[row['query']]}" in text


def test_unsupported_settings_are_not_streamed() -> None:
    for settings in ({"softmax": False}, {"explain": True}, {"scale": 0}):
        with pytest.raises(UserError, match="engine"):
            run("self", engine="streaming", **settings)


@pytest.mark.usefixtures("by_engine")
def test_moments_of_tiny_scores_are_the_same_in_both() -> None:
    for settings in ({"temperature": 1e300}, {"scale": 1e-200}, {"scale": -1e-30}):
        dense, streamed = (run("self", engine=engine, **settings) for engine in ("dense", "streaming"))
        assert streamed.statistics["scores"] == pytest.approx(dense.statistics["scores"], rel=1e-5)


@pytest.mark.usefixtures("by_engine")
def test_no_key_has_more_than_the_largest_weight() -> None:
    for temperature in (1e-6, 1e-10):
        settings = {"num_tokens": 9, "causal": True, "temperature": temperature}
        rows = run("self", engine="streaming", **settings).statistics["rows"]
        assert (rows["sink_mass"].values <= rows["max_weight"].values).all()


@pytest.mark.usefixtures("by_engine")
def test_overflow_of_float32_is_refused() -> None:
    for engine in ("dense", "streaming"):
        for settings in ({"sink": 1e39}, {"sink": -1e30, "temperature": 1e-10}):
            with pytest.raises(RunError, match="sink / temperature overflows float32"):
                run("self", engine=engine, **settings)
        with pytest.raises(RunError, match="overflow float32"):
            run("self", engine=engine, scale=1e38)


@pytest.mark.parametrize("sizes", [(5, 7, 11), (1, 1, 3), (1,)])
def test_merged_moments_are_those_of_all_numbers(sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    groups = [3 * torch.randn(size, generator=generator, dtype=torch.float64) + size for size in sizes]
    parts = [moments(group) for group in groups]
    mean, variance, lowest, highest = (
        torch.tensor([part[name] for part in parts], dtype=torch.float64)
        for name in ("mean", "variance", "min", "max")
    )
    counts = torch.tensor(sizes)
    together = merged_moments(counts, mean, variance * (counts - 1), lowest, highest)
    found = {name: number.item() for name, number in together.items()}
    assert found == pytest.approx(moments(torch.cat(groups)), nan_ok=True, rel=1e-12)


def test_merged_moments_ignore_empty_groups() -> None:
    """An empty group has no mean and no range, and does not affect other groups."""
    null = torch.nan
    counts = torch.tensor([[3, 0, 2], [0, 0, 0], [0, 1, 0]])
    groups = [torch.tensor([1.0, 2.0, 6.0]), torch.tensor([-4.0, 5.0])]
    mean = torch.tensor([[3.0, null, 0.5], [null, null, null], [null, 7.0, null]])
    squares = torch.tensor([[14.0, null, 40.5], [null, null, null], [null, 0.0, null]])
    lowest = torch.tensor([[1.0, null, -4.0], [null, null, null], [null, 7.0, null]])
    highest = torch.tensor([[6.0, null, 5.0], [null, null, null], [null, 7.0, null]])
    found = merged_moments(counts, mean, squares, lowest, highest)
    first = {name: numbers[0].item() for name, numbers in found.items()}
    assert first == pytest.approx(moments(torch.cat(groups)), rel=1e-12)
    assert all(numbers[1].isnan() for numbers in found.values())
    assert found["mean"][2] == found["min"][2] == found["max"][2] == 7 and found["variance"][2].isnan()


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_quantiles_match_numpy(count: int) -> None:
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    expected = np.quantile(numbers.numpy(), list(LEVELS.values()))
    np.testing.assert_allclose(list(quantiles(numbers).values()), expected)
    with_null = torch.cat([numbers, torch.tensor([torch.nan])])
    assert quantiles(with_null) == quantiles(numbers)
    assert scipy.stats.scoreatpercentile(numbers.numpy(), 50) == pytest.approx(quantiles(numbers)["median"])


def test_extreme_places_ignore_nan() -> None:
    lowest, highest = extreme_places(torch.tensor([3.0, torch.nan, 1.0, 2.0, 1.0]), 2)
    assert (lowest.tolist(), highest.tolist()) == ([2, 4], [0, 3])
