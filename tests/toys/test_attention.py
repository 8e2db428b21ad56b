"""Whole experiments against torch's own modules, rebuilt from the sampled tensors of the report."""

import numpy as np
import pytest
import torch

from attncli import errors
from attncli.errors import RunError, UserError
from tests.running import run

SENTENCE = "the cat walks on the street"


def tensor(report, name: str) -> torch.Tensor:
    return torch.from_numpy(report.tensors[name].values)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seed", "causal"),
    [(2, 2, 0, True), (6, 6, 11, False), (6, 2, 0, False), (6, 2, 11, True), (6, 1, 0, True)],
)
def test_multihead_matches_torchs_module(heads: int, kv_heads: int, seed: int, causal: bool) -> None:
    report = run(
        "multihead",
        embed_dim=42,
        num_heads=heads,
        num_kv_heads=kv_heads,
        seed=seed,
        causal=causal,
        explain=True,
    )
    module = torch.nn.MultiheadAttention(42, heads, batch_first=True)
    projections = [tensor(report, f"{name}_projection") for name in ("query", "key", "value")]
    repeated = [p.repeat_interleave(heads // p.shape[0], dim=0).flatten(0, 1) for p in projections]
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat(repeated))
        module.in_proj_bias.zero_()
        module.out_proj.weight.copy_(tensor(report, "output_projection"))
        module.out_proj.bias.copy_(tensor(report, "output_bias"))
        vectors = tensor(report, "input").unsqueeze(0)
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None
        output, weights = module(vectors, vectors, vectors, attn_mask=mask, average_attn_weights=False)
    torch.testing.assert_close(tensor(report, "weights"), weights[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(tensor(report, "output"), output[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("experiment", ["self", "cross"])
def test_one_head_matches_torchs_attention(experiment: str) -> None:
    report = run(experiment, embed_dim=7, head_dim=5, value_dim=3, explain=True, seed=2)
    query, key, value = (tensor(report, name) for name in ("query", "key", "value"))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(tensor(report, "output"), expected, atol=1e-6, rtol=1e-5)
    source = tensor(report, "input")
    torch.testing.assert_close(query, source @ tensor(report, "query_projection").T)


def test_cross_attention_has_labels_and_lengths_of_both_texts() -> None:
    report = run("cross", sentence="a b c", context="x a y z w", embed_dim=7)
    assert report.tokens == ("a", "b", "c") and report.context_tokens == ("x", "a", "y", "z", "w")
    assert report.tensors["weights"].axes == ("query", "key")
    assert report.tensors["weights"].values.shape == (3, 5)
    np.testing.assert_array_equal(report.tensors["input"].values[0], report.tensors["context"].values[1])
    np.testing.assert_allclose(report.tensors["weights"].values.sum(axis=1), 1, rtol=1e-6)


def test_multihead_without_output_projection_merges_the_heads() -> None:
    report = run("multihead", embed_dim=12, num_heads=3, output_projection=False, batch_size=2, num_tokens=5)
    assert report.tensors["weights"].axes == ("batch", "head", "query", "key")
    outputs = report.tensors["head_outputs"].values
    assert outputs.shape == (2, 3, 5, 4)
    np.testing.assert_array_equal(
        report.tensors["output"].values, np.concatenate(outputs.swapaxes(0, 1), axis=-1)
    )


def test_multihead_without_projections_slices_the_embeddings() -> None:
    report = run("multihead", embed_dim=6, num_heads=2, projection="none", explain=True)
    np.testing.assert_array_equal(report.tensors["query"].values[1], report.tensors["input"].values[:, 3:])


def test_equal_words_have_equal_rows() -> None:
    for experiment, projection in (("self", "linear"), ("multihead", "uniform"), ("self", "none")):
        report = run(experiment, projection=projection, sentence=SENTENCE)
        output = report.tensors["output"].values
        np.testing.assert_allclose(output[0], output[4], rtol=1e-5, atol=1e-6)
        assert report.tokens[0] == report.tokens[4] == "the"


def test_masked_scores_are_null_and_not_in_moments() -> None:
    report = run("self", causal=True)
    scores = np.array(report.to_data()["tensors"]["scores"]["values"], dtype=object)
    assert all((scores[i, j] is None) == (j > i) for i in range(6) for j in range(6))
    visible = np.array([scores[i, j] for i in range(6) for j in range(i + 1)], dtype=float)
    figures = report.statistics["scores"]
    assert figures["mean"] == pytest.approx(visible.mean())
    assert figures["variance"] == pytest.approx(visible.var(ddof=1))
    assert report.to_data()["statistics"]["rows"]["normalized_entropy"][0] is None


def test_row_statistics_describe_the_weights() -> None:
    report = run("multihead", num_heads=2, top_k=2)
    weights = report.tensors["weights"].values
    rows = {name: array.values for name, array in report.statistics["rows"].items()}
    np.testing.assert_allclose(rows["max_weight"], weights.max(axis=-1), rtol=1e-6)
    np.testing.assert_allclose(rows["sink_mass"], weights[..., 0], rtol=1e-6)
    np.testing.assert_array_equal(rows["top_keys"][..., 0], weights.argmax(axis=-1))
    np.testing.assert_allclose(
        report.statistics["keys"]["received_mass"].values, weights.sum(axis=-2), rtol=1e-6
    )
    assert report.statistics["rows"]["top_weights"].axes == ("head", "query", "rank")


def test_scores_too_large_for_float32_are_refused() -> None:
    for settings in (
        {"scale": 1e38},
        {"temperature": 1e-160},
        {"temperature": 1e-300, "engine": "streaming"},
    ):
        with pytest.raises(RunError, match="overflow float32"):
            run("self", **settings)


@pytest.mark.parametrize("experiment", ["self", "multihead", "cross", "average"])
def test_sizes_beyond_memory_are_refused(experiment: str) -> None:
    with pytest.raises(UserError, match=r"needs about [\d.e+]+ [EPTG]B of memory, but only .* is free"):
        run(experiment, num_tokens=10_000_000)


BILLION = 1_000_000_000


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        ("self", {"relative_bias": True, "num_buckets": BILLION, "max_distance": BILLION, "explain": True}),
        ("multihead", {"relative_bias": True, "num_buckets": BILLION, "max_distance": BILLION}),
        ("self", {"top_k": BILLION, "num_tokens": 50_000, "engine": "streaming"}),
        ("average", {"top_k": BILLION, "num_tokens": 15_000}),
    ],
)
def test_memory_of_bias_tables_and_top_keys_is_counted(
    monkeypatch: pytest.MonkeyPatch, experiment: str, settings: dict[str, object]
) -> None:
    monkeypatch.setattr(errors, "available_bytes", lambda: 20 * 10**9)
    with pytest.raises(UserError, match=r"needs about [\d.e+]+ [GT]B of memory, but only 20 GB is free"):
        run(experiment, **settings)
