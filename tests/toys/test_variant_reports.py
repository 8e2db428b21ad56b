"""Variants in whole experiments: against fused attention, across engines, and in reports."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.models.t5.modeling_t5 import T5Attention

from attncli.core.tile_sums import TileSizes
from attncli.errors import RunError, UserError
from attncli.features.attention.question import attention_parts
from attncli.features.attention.settings import UNSTREAMED, VARIANTS
from attncli.records.report import Report
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec
from attncli.toys.sampling import Draws
from attncli.views.texts import heading
from tests.conftest import in_pairs, in_turn
from tests.layers import visible_keys
from tests.running import run

SENTENCE = "a rose is a rose is a rose is a rose"
ON: dict[str, Any] = {
    "rope": True,
    "alibi": True,
    "relative_bias": True,
    "window": 3,
    "qk_norm": True,
    "softcap": 0.5,
    "temperature": 0.4,
    "sink": 0.3,
    "differential": True,
}
"""Each variant at a value that shows."""


def tensor(report: Report, name: str) -> torch.Tensor:
    return torch.from_numpy(report.tensors[name].values)


def test_every_variant_is_tried() -> None:
    assert set(ON) == set(VARIANTS)


@pytest.mark.parametrize(
    ("variant", "experiment", "causal"),
    in_pairs(
        ["rope", "alibi", "relative_bias", "window", "qk_norm", "temperature"],
        ["self", "multihead"],
        [True, False],
    ),
)
def test_the_output_matches_fused_attention(variant: str, experiment: str, causal: bool) -> None:
    sizes = {"num_heads": 6, "num_kv_heads": 2} if experiment == "multihead" else {}
    settings = {variant: ON[variant], "causal": causal, "sentence": SENTENCE, "embed_dim": 24}
    report = run(experiment, explain=True, **settings, **sizes)
    query, key, value = (tensor(report, name) for name in ("query", "key", "value"))
    visible = visible_keys(11, 11, causal=causal, window=settings.get("window"))
    mask = torch.zeros(11, 11).masked_fill(~visible, -torch.inf)
    if "bias" in report.tensors:
        mask = mask + tensor(report, "bias")
    temperature = ON["temperature"] if variant == "temperature" else 1
    expected = F.scaled_dot_product_attention(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        attn_mask=mask / temperature,
        scale=query.shape[-1] ** -0.5 / temperature,
        enable_gqa=experiment == "multihead",
    )[0]
    name = "head_outputs" if experiment == "multihead" else "output"
    torch.testing.assert_close(tensor(report, name), expected, atol=2e-6, rtol=1e-5)
    plain = run(experiment, causal=causal, sentence=SENTENCE, embed_dim=24, **sizes)
    assert not np.allclose(plain.tensors["weights"].values, report.tensors["weights"].values, atol=1e-3)


def test_scaled_scores_are_the_input_of_the_softmax() -> None:
    report = run("cross", explain=True, softcap=0.5, temperature=0.4, sink=0.3, embed_dim=24)
    scores, dim = tensor(report, "scores"), report.spec["head_dim"]
    finished = 0.5 * (scores * dim**-0.5 / 0.5).tanh() / 0.4
    torch.testing.assert_close(tensor(report, "scaled_scores"), finished)
    column = torch.full((*scores.shape[:-1], 1), 0.3 / 0.4)
    weights = torch.cat([finished, column], dim=-1).softmax(-1)
    torch.testing.assert_close(tensor(report, "weights"), weights[..., :-1])
    outside = torch.from_numpy(report.statistics["rows"]["outside_mass"].values)
    torch.testing.assert_close(outside.float(), weights[..., -1])


def test_differential_attention_is_recomputed_with_its_statistics() -> None:
    report = run("multihead", differential=True, lambda_init=0.5, explain=True, sentence=SENTENCE, top_k=11)
    factor = report.statistics["differential"]["lambda"]
    query1, key1, query2, key2 = tensor(report, "lambda_vectors")
    assert factor == pytest.approx(float((query1 @ key1).exp() - (query2 @ key2).exp()) + 0.5, rel=1e-5)
    first, second = tensor(report, "first_weights"), tensor(report, "second_weights")
    weights = tensor(report, "weights")
    torch.testing.assert_close(weights, first - factor * second)
    half = report.spec["head_dim"] // 2
    scores = tensor(report, "query")[..., half:] @ tensor(report, "key")[..., half:].mT
    torch.testing.assert_close(tensor(report, "second_scores"), scores)
    torch.testing.assert_close(scores.div(half**0.5).softmax(-1), second)
    rows = report.statistics["rows"]
    assert set(rows) == {"max_weight", "sink_mass", "top_keys", "top_weights"}
    assert (weights < 0).any() and any("not a distribution" in note for note in report.notes)
    ranked = weights.sort(dim=-1, descending=True).values
    torch.testing.assert_close(torch.from_numpy(rows["top_weights"].values).float(), ranked)
    np.testing.assert_allclose(report.statistics["keys"]["received_mass"].values, weights.sum(-2), atol=1e-6)


STREAMED = [key for key in VARIANTS if key not in UNSTREAMED]


def spec_of(experiment: str, **settings: object) -> Any:
    return build_spec(SPECS[experiment], {key: Given(value, key) for key, value in settings.items()})


@pytest.mark.parametrize(
    ("variant", "sizes", "causal"),
    in_turn(["window", "softcap", "sink", "all of them"], [((5, 7), True), ((512, 1024), False)]),
)
def test_dense_and_streaming_agree_in_float64(
    variant: str, sizes: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TileSizes, "suited_to", lambda *_: TileSizes(*sizes))
    monkeypatch.setattr("attncli.core.engines.LEAST_KEYS", 1)
    on = {key: ON[key] for key in (STREAMED if variant == "all of them" else [variant])}
    generator = torch.Generator().manual_seed(5)
    vectors = {
        name: torch.randn(heads, 43, 6, generator=generator, dtype=torch.float64)
        for name, heads in (("query", 6), ("key", 2), ("value", 2))
    }
    both = [
        attention_parts(
            spec_of("multihead", num_heads=6, num_kv_heads=2, head_dim=6, causal=causal, engine=engine, **on),
            vectors,
            Draws(torch.Generator()),
        )
        for engine in ("dense", "streaming")
    ]
    dense, streamed = both
    expected, measured = (parts.statistics.statistics() for parts in both)
    torch.testing.assert_close(streamed.output, dense.output, rtol=0, atol=1e-12)
    rows, of_dense = measured["rows"], expected["rows"]
    assert list(rows) == list(of_dense) and ("outside_mass" in rows) == ("sink" in on)
    for name in rows:
        np.testing.assert_allclose(rows[name].values, of_dense[name].values, rtol=1e-9, atol=1e-12)
    for name in ("scores", "scaled_scores"):
        assert measured[name] == pytest.approx(expected[name], rel=1e-9)
    received = [found["keys"]["received_mass"].values for found in (expected, measured)]
    np.testing.assert_allclose(*received, rtol=1e-9)


@pytest.mark.parametrize("variant", UNSTREAMED)
def test_unsupported_variants_are_not_streamed(variant: str) -> None:
    with pytest.raises(UserError, match=f"{variant}: needs engine dense: streaming "):
        spec_of("self", engine="streaming", **{variant: True})
    assert spec_of("self", **{variant: True}).chosen_engine(5000, 5000) == "dense"
    with pytest.raises(UserError, match=f"use smaller sizes, or `engine` streaming without `{variant}`$"):
        run("self", num_tokens=1_000_000, **{variant: True})


def test_auto_streams_the_other_variants() -> None:
    for variant in STREAMED:
        assert spec_of("self", **{variant: ON[variant]}).chosen_engine(5000, 5000) == "streaming"


def test_only_reports_with_variants_name_them() -> None:
    plain = run("multihead")
    assert not set(plain.spec) & {*VARIANTS, "rope_base", "num_buckets", "lambda_init"}
    for variant, value in ON.items():
        report = run("self", **{variant: value})
        assert f", {variant} {str(value).lower()}" in heading(report) and report.spec[variant] == value
        json.dumps(report.to_data(), allow_nan=False)
        has_positions = variant in ("rope", "alibi", "relative_bias", "window")
        assert any("no notion of position" in note for note in report.notes) != has_positions, variant


def test_only_a_window_keeps_the_loop_form() -> None:
    settings = {"projection": "none", "embed_dim": 4}
    windowed = run("self", window=2, **settings)
    assert windowed.statistics["agreement"]["loop_vs_matmul"] < 1e-6
    turned = run("self", rope=True, **settings)
    assert "agreement" not in turned.statistics
    assert any("loop form is omitted because it does not support variants" in note for note in turned.notes)


def test_bias_tables_are_sampled_after_the_projections() -> None:
    """A seed therefore gives the same projections with and without them."""
    plain, biased = (run("multihead", explain=True, relative_bias=on) for on in (False, True))
    for name in ("query_projection", "key_projection", "value_projection"):
        np.testing.assert_array_equal(plain.tensors[name].values, biased.tensors[name].values)
    generator = torch.Generator().manual_seed(0)
    torch.randn(5, 64, generator=generator)
    for _ in range(3):
        torch.empty(64, 64).uniform_(generator=generator)
    expected = torch.randn(8, 32, generator=generator)
    torch.testing.assert_close(tensor(biased, "bias_table"), expected)


def test_overflow_from_a_small_temperature_is_refused() -> None:
    with pytest.raises(RunError, match="or a larger temperature \\(got 1e-38\\)"):
        run("self", temperature=1e-38, scale=1e3)


def test_batches_and_single_tokens() -> None:
    every = {key: ON[key] for key in VARIANTS if key not in ("alibi", "relative_bias", "differential")}
    report = run("multihead", num_tokens=1, batch_size=2, embed_dim=16, num_heads=4, **every)
    assert report.tensors["weights"].values.shape == (2, 4, 1, 1)
    biased = run("multihead", num_tokens=5, batch_size=2, embed_dim=16, num_heads=4, relative_bias=True)
    assert biased.tensors["weights"].values.shape == (2, 4, 5, 5)
    assert (
        run("self", num_tokens=3, batch_size=2, alibi=True, differential=True).tensors["output"] is not None
    )


def test_relative_bias_is_looked_up_in_the_reported_table() -> None:
    for experiment, causal in (("self", True), ("multihead", False)):
        settings = {"num_buckets": 8, "max_distance": 9, "causal": causal, "explain": True}
        report = run(experiment, relative_bias=True, **settings)
        bias, table = tensor(report, "bias"), tensor(report, "bias_table")
        offsets = torch.arange(6) - torch.arange(6).unsqueeze(1)
        buckets = T5Attention._relative_position_bucket(offsets, not causal, 8, 9)
        assert torch.equal(bias, table[..., buckets])


def test_lambda_vectors_are_sampled_after_the_projections() -> None:
    report = run("self", embed_dim=6, differential=True, explain=True)
    generator = torch.Generator().manual_seed(0)
    torch.randn(5, 6, generator=generator)
    for _ in range(3):
        torch.empty(6, 6).uniform_(generator=generator)
    torch.testing.assert_close(tensor(report, "lambda_vectors"), 0.1 * torch.randn(4, 3, generator=generator))


IN_PAIRS = {**ON, "num_kv_heads": 2, "causal": True, "explain": True}


def test_every_pair_of_settings_works_or_is_refused() -> None:
    """The types of the called functions check shapes."""
    for pair in itertools.combinations(IN_PAIRS, 2):
        try:
            report = run("multihead", num_heads=4, **{key: IN_PAIRS[key] for key in pair})
        except UserError as error:
            assert "cannot be combined" in error.lines[0], pair
        else:
            assert np.isfinite(report.tensors["output"].values).all(), pair
