"""Two reports, aligned by their tokens; every number is recomputed from the two reports."""

from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.spatial.distance
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from attncli.errors import UserError
from attncli.features.diff.differences import align
from attncli.features.diff.question import GAP_NOTE, NO_SHARED_NOTE, ComparedHead, compare, left_out_notes
from attncli.records.report import NamedTensor, Report
from tests.model_folders import save_model, save_tokenizer
from tests.running import run

sentences = st.lists(st.sampled_from(["a", "b", "c", "the"]), max_size=9)


@given(a=sentences, b=sentences)
def test_alignment_keeps_both_orders_and_every_token(a: list[str], b: list[str]) -> None:
    found = align(a, b)
    for places, tokens in ((found.a, a), (found.b, b)):
        assert list(places[places >= 0]) == list(range(len(tokens)))
    assert not ((found.a < 0) & (found.b < 0)).any()
    for name, i, j in zip(found.tokens, found.a, found.b, strict=True):
        mine, theirs = (a[i] if i >= 0 else None), (b[j] if j >= 0 else None)
        assert name == (f"{mine} → {theirs}" if mine and theirs and mine != theirs else mine or theirs)
    common = sum(block.size for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    assert found.num_shared >= common


def test_added_and_replaced_words_are_aligned() -> None:
    a = run("self", sentence="the cat walks on the street")
    b = run("self", sentence="the dog walks on the long street")
    report = compare(a, b)
    assert report.tokens == ("the", "cat → dog", "walks", "on", "the", "long", "street")
    kept = [0, 1, 2, 3, 4, 6]
    weights_a, weights_b = (report.tensors[f"weights_{side}"].values for side in "ab")
    np.testing.assert_array_equal(weights_a[np.ix_(kept, kept)], a.tensors["weights"].values)
    np.testing.assert_array_equal(weights_b, b.tensors["weights"].values)
    assert np.isnan(weights_a[5]).all() and (weights_a[kept, 5] == 0).all()
    np.testing.assert_array_equal(report.tensors["difference"].values, weights_b - weights_a)
    distances = report.statistics["rows"]["jensen_shannon"].values
    for i in kept:
        expected = scipy.spatial.distance.jensenshannon(weights_a[i], weights_b[i])
        assert distances[i] == pytest.approx(expected, abs=1e-9)
    assert np.isnan(distances[5])
    first = report.statistics["changed_rows"][0]
    assert first["jensen_shannon"] == np.nanmax(distances) == distances[first["query"]]
    moved = report.tensors["difference"].values[first["query"]]
    assert (first["gained"], first["lost"]) == (moved.max(), moved.min())
    assert moved[first["gained_key"]] == moved.max() and moved[first["lost_key"]] == moved.min()


CASES: list[tuple[str, dict[str, Any]]] = [
    ("self", {}),
    ("self", {"num_tokens": 5, "batch_size": 2}),
    ("self", {"softmax": False}),
    ("multihead", {"num_heads": 4, "causal": True}),
    ("cross", {}),
    ("average", {}),
    ("heads", {}),
    ("heads", {"maps": "self"}),
    ("scale-demo", {"head_dim": [16]}),
    ("pitfalls", {}),
    ("norm", {}),
]


@pytest.mark.parametrize(("experiment", "settings"), CASES)
def test_a_report_does_not_differ_from_itself(experiment: str, settings: dict[str, Any]) -> None:
    a = run(experiment, **settings)
    report = compare(a, a)
    assert ("weights_a" in report.tensors) == ("weights" in a.tensors)
    assert report.tokens in ((), a.tokens) and report.about == "A and B have the same settings."
    if "difference" in report.tensors:
        values = report.tensors["difference"].values
        assert not values[~np.isnan(values)].any()
        distances = report.statistics["rows"]["jensen_shannon"].values
        assert not distances[~np.isnan(distances)].any()
        assert "changed_rows" not in report.statistics
    for row in report.statistics.get("side_by_side", []):
        assert row["difference"] == 0 and row["a"] == row["b"]
    for row in report.statistics.get("heads_difference", []):
        numbers = [v for name, v in row.items() if isinstance(v, float)]
        assert numbers and not np.nan_to_num(numbers).any()


def test_cross_aligns_each_of_the_two_texts() -> None:
    a = run("cross", sentence="a b", context="d e f")
    b = run("cross", sentence="a b c", context="d f")
    report = compare(a, b)
    assert report.tokens == ("a", "b", "c") and report.context_tokens == ("d", "e", "f")
    assert report.tensors["difference"].values.shape == (3, 3)
    assert (report.tensors["weights_b"].values[:, 1] == 0).all()


def test_heads_and_statistics_are_compared() -> None:
    a, b = (run("multihead", num_heads=4, causal=causal) for causal in (False, True))
    report = compare(a, b)
    by_head = report.statistics["by_head"]
    assert sorted(row["head"] for row in by_head) == [0, 1, 2, 3]
    means = [row["mean_jensen_shannon"] for row in by_head]
    distances = report.statistics["rows"]["jensen_shannon"].values
    assert means == sorted(means, reverse=True)
    assert {row["head"]: row["mean_jensen_shannon"] for row in by_head} == pytest.approx(
        dict(enumerate(distances.mean(axis=-1)))
    )
    assert report.about == "From A to B: causal false -> true."
    figures = {row["statistic"]: row for row in report.statistics["side_by_side"]}
    entropy = [side.statistics["rows"]["entropy"].values.mean() for side in (a, b)]
    assert figures["entropy.mean"]["a"] == pytest.approx(entropy[0])
    assert figures["entropy.mean"]["difference"] == pytest.approx(entropy[1] - entropy[0])
    assert figures["scores.variance"]["b"] == b.statistics["scores"]["variance"]


def test_two_heads_and_two_checkpoints_are_compared(tmp_path: Path) -> None:
    folders = [save_model(tmp_path / name, name) for name in ("GPT-2", "OPT")]
    settings = {"model": str(folders[0]), "sentence": "the cat walks"}
    report = compare(*(run("self", **settings, head=head) for head in (0, 1)))
    assert report.about == "From A to B: head 0 -> 1."
    assert report.tensors["difference"].values.any()
    surveys = [run("heads", model=str(folder), sentence="the cat walks", maps="self") for folder in folders]
    report = compare(*surveys)
    assert report.tensors["difference"].axes == ("layer", "head", "query", "key")
    first = report.statistics["heads_difference"][0]
    rows = [survey.statistics["heads"][0] for survey in surveys]
    assert first["entropy"] == rows[1]["entropy"] - rows[0]["entropy"]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (
            ("self", {}),
            ("multihead", {}),
            r"of A are query × key \(6 × 6\), and those of B are head × query × key \(8 × 6 × 6\): they",
        ),
        (
            ("self", {"num_tokens": 3, "batch_size": 2}),
            ("self", {"num_tokens": 3, "batch_size": 5}),
            "may differ only in",
        ),
        (("self", {}), ("norm", {}), "B has no weights"),
        (("scale-demo", {}), ("norm", {}), "scale-demo and norm have no weights and different statistics"),
        (
            ("scale-demo", {"head_dim": [4, 16], "factors": [1.0]}),
            ("scale-demo", {"head_dim": [8, 64], "factors": [2.0]}),
            "a statistic in common",
        ),
        (("self", {}), ("self", {"engine": "streaming"}), "B has maps of blocks instead of weights"),
    ],
)
def test_reports_that_cannot_be_compared_are_refused(
    a: tuple[str, dict[str, Any]], b: tuple[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare(run(a[0], **a[1]), run(b[0], **b[1]))


def test_heads_of_only_one_side_are_left_out_and_named() -> None:
    a, b = (run("multihead", num_heads=heads, embed_dim=20) for heads in (5, 2))
    for one, other, side in ((a, b, "A"), (b, a, "B")):
        report = compare(one, other)
        expected = other.tensors["weights"].values[:2] - one.tensors["weights"].values[:2]
        np.testing.assert_allclose(report.tensors["difference"].values, expected, atol=1e-7)
        line = f"Only in {side}, so not compared: heads 2 to 4."
        assert report.notes[0] == line
    assert len(report.statistics["by_head"]) == 2


def test_rows_of_lessons_are_compared_by_name() -> None:
    """A report with one head_dim is compared with the row of this head_dim among four."""
    four, one = run("scale-demo"), run("scale-demo", head_dim=[16], seed=3)
    rows = {row["statistic"]: row for row in compare(four, one).table("side_by_side")}
    expected = four.table("variance")[1]["raw_scores"], one.numbers("variance")["raw_scores"]
    row = rows["variance.raw_scores, head_dim 16"]
    assert (row["a"], row["b"]) == expected
    assert not any("head_dim 4" in name for name in rows)
    assert rows["sharpness.entropy, factor 8"]["difference"] == 0


def places(*stacks: tuple[str, int, int]) -> set[ComparedHead]:
    """The heads of stacks with these numbers of layers and heads."""
    return {
        ComparedHead(stack, i, j) for stack, layers, heads in stacks for i, j in np.ndindex(layers, heads)
    }


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        (places(("self", 3, 5)), places(("self", 3, 5)), []),
        (places(("self", 12, 12)), places(("self", 6, 12)), ["A: layers 6 to 11"]),
        (places(("self", 6, 12)), places(("self", 7, 9)), ["A: heads 9 to 11", "B: layer 6"]),
        (places(("self", 2, 3)) - {ComparedHead("self", 0, 1)}, places(("self", 2, 3)), ["B: head 0:1"]),
        (
            places(("self", 1, 1)),
            places(("encoder", 2, 3), ("cross", 2, 3)),
            ["A: self-attention", "B: cross-attention; the encoder"],
        ),
        (
            places(("encoder", 2, 3), ("decoder", 4, 3)),
            places(("encoder", 2, 3), ("decoder", 2, 2)),
            ["A: layers 2 to 3 of the decoder; head 2 of the decoder"],
        ),
        (
            places(("self", 4, 3)),
            places(("self", 4, 3)) - {ComparedHead("self", i, i % 3) for i in range(4)},
            ["A: heads 0:0, 1:1, 2:2 and 1 more"],
        ),
    ],
)
def test_notes_name_layers_and_heads_of_one_side(
    a: set[ComparedHead], b: set[ComparedHead], parts: list[str]
) -> None:
    said = [note.removeprefix("Only in ").removesuffix(".") for note in left_out_notes(a, b)]
    assert [note.replace(", so not compared", "") for note in said] == parts


def test_two_models_with_different_shapes(tmp_path: Path) -> None:
    folders = []
    for number, (layers, heads) in enumerate(((3, 2), (2, 4))):
        config = GPT2Config(n_layer=layers, n_head=heads, n_embd=8, vocab_size=99, n_positions=32)
        folders.append(tmp_path / str(number))
        GPT2LMHeadModel(config).save_pretrained(folders[-1])
        save_tokenizer(folders[-1])
    for maps in ("none", "self"):
        a, b = (run("heads", model=str(f), sentence="the cat walks", maps=maps) for f in folders)
        report = compare(a, b)
        found = [(row["layer"], row["head"]) for row in report.statistics["heads_difference"]]
        assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert report.notes[:3] == (
            "Two models (0 and 1): heads with the same number are unrelated "
            "unless one model was trained from the other.",
            "Only in A, so not compared: layer 2.",
            "Only in B, so not compared: heads 2 to 3.",
        )
    assert report.tensors["difference"].values.shape[:2] == (2, 2)


def test_without_tokens_positions_are_aligned() -> None:
    def nameless(num_tokens: int) -> Report:
        return replace(run("self", num_tokens=num_tokens), tokens=())

    assert compare(nameless(3), nameless(3)).tokens == ()
    with pytest.raises(UserError, match="A has 3 entries along query and B has 4, but there are no tokens"):
        compare(nameless(3), nameless(4))


def test_rows_that_are_not_distributions_have_no_distance() -> None:
    report = compare(run("self", softmax=False), run("self", softmax=False, seed=1))
    distance = report.statistics["rows"]["jensen_shannon"]
    assert isinstance(distance, NamedTensor) and np.isnan(distance.values).any()
    assert not np.isnan(report.tensors["difference"].values).any()


def test_sides_without_a_common_token_get_a_note() -> None:
    report = compare(run("self", sentence="a b"), run("self", sentence="c d e"))
    assert report.notes == (GAP_NOTE, NO_SHARED_NOTE)
    assert "changed_rows" not in report.statistics


def test_rounding_errors_are_not_changes() -> None:
    a = run("self")
    weights = a.tensors["weights"]
    moved = weights.values.astype(np.float64)
    moved[2, :2] += (1e-3, -1e-3)
    moved[4, :2] += (1e-8, -1e-8)
    report = compare(a, replace(a, tensors={"weights": NamedTensor(weights.axes, moved)}))
    assert report.statistics["rows"]["jensen_shannon"].values[4] > 0
    assert [row["query"] for row in report.statistics["changed_rows"]] == [2]
