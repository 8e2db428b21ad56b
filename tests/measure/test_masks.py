"""The masks and scales in reports, against loops over the definition and eager weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attncli.errors import UserError
from attncli.features.diff.question import compare
from attncli.measure.masks import joint_mask, joint_rollout_mask
from attncli.records.attention import LayerStatistics, inferred_mask
from attncli.records.report import Mask, NamedTensor, Report
from attncli.runs.saved_reports import parse_reports, read_array_report
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec
from attncli.views import Display, load_view
from tests.conftest import Attn, in_pairs, in_turn
from tests.eager import eager_weights
from tests.model_folders import save_gemma, save_model, save_writer
from tests.running import run, run_together

SENTENCE = "the cat sat because the cat was tired"
MAPS = (("query", "key"), ("query_block", "key_block"))


def naive_hidden(num_queries: int, num_keys: int, causal: bool, window: int | None) -> np.ndarray:
    """The definition, cell by cell: True if the query does not see the key."""
    hidden = np.zeros((num_queries, num_keys), dtype=bool)
    for query in range(num_queries):
        place = query + num_keys - num_queries if causal else query
        for key in range(num_keys):
            is_later = causal and key > place
            hidden[query, key] = is_later or (window is not None and abs(place - key) >= window)
    return hidden


def hidden_of(tensor: NamedTensor) -> np.ndarray:
    assert tensor.mask is not None
    hidden = tensor.mask.hidden(*tensor.values.shape[-2:])
    return np.broadcast_to(False if hidden is None else hidden, tensor.values.shape)


def maps_of(report: Report) -> dict[str, NamedTensor]:
    return {name: tensor for name, tensor in report.tensors.items() if tensor.axes[-2:] in MAPS}


@pytest.mark.parametrize(
    ("sizes", "causal", "window"), in_pairs([(5, 5), (3, 7), (1, 1), (1, 5)], [False, True], [None, 1, 2, 3])
)
def test_a_rule_is_recovered_from_its_visible_keys(
    sizes: tuple[int, int], causal: bool, window: int | None
) -> None:
    hidden = Mask(causal, window).hidden(*sizes)
    expected = naive_hidden(*sizes, causal, window)
    np.testing.assert_array_equal(np.zeros(sizes, dtype=bool) if hidden is None else hidden, expected)
    found = Mask.of(~expected)
    again = found.hidden(*sizes)
    np.testing.assert_array_equal(np.zeros(sizes, dtype=bool) if again is None else again, expected)
    assert found.visible is None or sizes[0] != sizes[1]


def test_irregular_masks_are_stored_as_arrays() -> None:
    visible = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=np.uint8)
    assert Mask.of(visible) == Mask(causal=True, visible=visible)
    assert Mask.of(visible) != Mask(causal=True)
    stacked = np.stack([visible, np.ones((3, 3), dtype=np.uint8)])
    assert Mask.of(stacked) == Mask(visible=stacked)
    assert Mask.of(np.stack([np.tri(3), np.tri(3)])) == Mask(causal=True)


SAMPLED: list[tuple[str, dict[str, Any]]] = [
    ("self", {}),
    ("self", {"causal": True}),
    ("self", {"window": 3}),
    ("self", {"causal": True, "window": 2, "explain": True}),
    ("self", {"causal": True, "sentence": None, "num_tokens": 5, "batch_size": 3}),
    ("self", {"causal": True, "differential": True, "explain": True}),
    ("self", {"causal": True, "softmax": False}),
    ("multihead", {"causal": True, "num_heads": 4, "num_kv_heads": 2}),
    ("cross", {"context": "a dog barks"}),
    ("average", {}),
    ("average", {"over": "all"}),
]


@pytest.mark.parametrize(("experiment", "settings"), SAMPLED)
def test_sampled_attention_states_its_hidden_keys(experiment: str, settings: dict[str, Any]) -> None:
    maps = maps_of(run(experiment, **settings))
    causal = settings.get("causal", experiment == "average" and "over" not in settings)
    for name, tensor in maps.items():
        expected = naive_hidden(*tensor.values.shape[-2:], causal, settings.get("window"))
        np.testing.assert_array_equal(hidden_of(tensor), np.broadcast_to(expected, tensor.values.shape), name)
        if name.endswith("scores"):
            np.testing.assert_array_equal(~np.isfinite(tensor.values), hidden_of(tensor), name)
    assert "weights" in maps


@pytest.mark.parametrize(("window", "causal"), in_turn([None, 1, 2, 3, 4, 5, 9], [False, True]))
def test_a_block_is_hidden_if_none_of_its_cells_is_visible(causal: bool, window: int | None) -> None:
    report = run(
        "self", sentence=None, num_tokens=131, causal=causal, window=window, engine="streaming", embed_dim=4
    )
    hidden, size = naive_hidden(131, 131, causal, window), 3  # ceil(131 / 64) tokens per block
    starts = range(0, 131, size)
    expected = [[hidden[i : i + size, j : j + size].all() for j in starts] for i in starts]
    for name in ("pooled_mean", "pooled_max"):
        np.testing.assert_array_equal(hidden_of(report.tensors[name]), expected)


@pytest.mark.parametrize(
    ("settings", "is_known"),
    [
        ({}, True),
        ({"scale": "fourth-root", "head_dim": 7}, True),
        ({"scale": "none", "temperature": 3.0}, True),
        ({"scale": -0.37, "sink": 0.5}, True),
        ({"causal": True, "rope": True, "qk_norm": True}, True),
        ({"differential": True}, True),
        ({"softcap": 2.0}, False),
        ({"alibi": True, "causal": True}, False),
        ({"relative_bias": True}, False),
    ],
)
def test_scores_times_their_scale_enter_the_softmax(settings: dict[str, Any], is_known: bool) -> None:
    report = run("self", explain=True, **settings)
    for prefix in ("", "second_") if "differential" in settings else ("",):
        scores, scaled = report.tensors[f"{prefix}scores"], report.tensors[f"{prefix}scaled_scores"]
        assert (scores.scale is not None) == is_known and scaled.scale is None
        if scores.scale is not None:
            seen = np.isfinite(scores.values)
            product = scores.values[seen].astype(np.float64) * scores.scale
            np.testing.assert_allclose(scaled.values[seen], product, rtol=1e-5, atol=1e-6)


def test_each_text_of_a_batch_has_its_mask() -> None:
    given = {"causal": Given(True, "--causal", is_flag=True)}
    specs = [
        build_spec(SPECS["self"], given | {"sentence": Given(text, "SENTENCE", is_flag=True)})
        for text in ("a b c", "d e f")
    ]
    for report in run_together(specs):
        assert isinstance(report, Report)
        assert report.tensors["weights"].mask == Mask(causal=True)
        assert report.tensors["scores"].scale == pytest.approx(0.125)


@pytest.mark.parametrize(
    "architecture", ["GPT-2", "BERT", "Mistral", "Gemma 2", "GPT-OSS", "ModernBERT", "T5"]
)
def test_maps_hide_the_same_keys_as_eager_attention(tmp_path: Path, architecture: str) -> None:
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    folder = save_model(tmp_path, architecture)
    is_seq2seq = AutoConfig.from_pretrained(folder).is_encoder_decoder
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(SENTENCE)["input_ids"]])
    inputs = {"input_ids": ids} | (
        {"decoder_input_ids": torch.cat([torch.tensor([[0]]), ids], dim=1)[:, : ids.shape[1]]}
        if is_seq2seq
        else {}
    )
    eager = eager_weights(AutoModel.from_pretrained(folder), inputs)
    for maps, place in (
        [("self", ("decoder", "self")), ("cross", ("decoder", "cross")), ("encoder", ("encoder", "self"))]
        if is_seq2seq
        else [("self", ("decoder", "self"))]
    ):
        weights = run("heads", model=str(folder), sentence=SENTENCE, maps=maps).tensors["weights"]
        for layer, hidden in enumerate(hidden_of(weights)):
            np.testing.assert_array_equal(hidden, eager[(*place, layer)].numpy() == 0)


def test_masks_of_layers_with_different_windows_are_arrays(tmp_path: Path) -> None:
    weights = run(
        "heads", model=str(save_model(tmp_path, "Gemma 2")), sentence=SENTENCE, maps="self"
    ).tensors["weights"]
    assert weights.mask is not None and weights.mask.visible is not None and weights.mask.causal
    assert weights.mask.visible.shape[:2] == (len(weights.values), 1)


def test_one_layer_of_a_model_states_its_mask_and_scale(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, "Mistral"))
    report = run("multihead", model=folder, sentence=SENTENCE, layer=1, explain=True)
    scores = report.tensors["scores"]
    assert scores.mask == report.tensors["weights"].mask == Mask(causal=True, window=5)
    np.testing.assert_array_equal(~np.isfinite(scores.values), hidden_of(scores))
    assert scores.scale is not None
    scaled, seen = report.tensors["scaled_scores"].values, np.isfinite(scores.values)
    np.testing.assert_allclose(scaled[seen], scores.values[seen] * scores.scale, rtol=1e-5)
    capped = run("self", model=str(save_model(tmp_path, "Gemma 2")), sentence=SENTENCE).tensors["scores"]
    assert capped.scale is None and capped.mask is not None


@pytest.mark.parametrize("maps", ["heads", "mean"])
def test_generated_tokens_hide_later_keys_and_those_outside_windows(tmp_path: Path, maps: str) -> None:
    settings = {"sentence": SENTENCE, "max_new_tokens": 3, "maps": maps}
    sliding = run("generate", model=str(save_gemma(tmp_path, "Gemma3n")), **settings)
    weights = sliding.tensors["weights"]
    np.testing.assert_array_equal(hidden_of(weights), ~(weights.values > 0))
    assert weights.mask is not None and weights.mask.causal
    crossed = run("generate", model=str(save_writer(tmp_path, "T5")), **settings)
    assert crossed.tensors["weights"].mask == Mask()


def test_skipped_first_keys_are_hidden() -> None:
    weights = run("heads", sentence="a b a b a", maps="self", skip_sink=1).tensors["weights"]
    assert hidden_of(weights)[..., 0].all()
    np.testing.assert_array_equal(hidden_of(weights)[..., 1:], weights.values[..., 1:] == 0)


def test_whole_heads_and_rollouts_have_masks(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, "Llama"))
    sentence = " ".join([SENTENCE] * 18)
    report = run("heads", model=folder, sentence=sentence, maps="self", full=["0:1"], rollout=True)
    assert report.tensors["weights_0_1"].mask == report.tensors["rollout"].mask == Mask(causal=True)
    assert report.tensors["pooled_max"].mask == Mask(causal=True)


def test_masks_of_several_layers_are_joined() -> None:
    causal, wide = Mask(causal=True), Mask(causal=True, window=2)
    assert joint_mask({0: causal, 1: causal}, 3, 3) == causal
    assert joint_mask({0: causal, 1: None}, 3, 3) is None
    joined = joint_mask({0: causal, 2: wide}, 3, 3)
    assert joined is not None and joined.causal and joined.visible is not None
    np.testing.assert_array_equal(
        joined.visible[:, 0], [np.tri(3), np.zeros((3, 3)), np.tri(3) - np.tri(3, k=-2)]
    )
    assert joint_rollout_mask([causal, wide]) == causal
    assert joint_rollout_mask([Mask(), Mask()]) == Mask()
    assert joint_rollout_mask([Mask(), Mask(window=2)]) is None and joint_rollout_mask([causal, None]) is None


def test_both_sides_of_a_comparison_keep_their_masks() -> None:
    report = compare(run("self"), run("self", causal=True, window=2))
    masks = [report.tensors[name].mask for name in ("weights_a", "weights_b", "difference")]
    assert masks == [Mask(), Mask(causal=True, window=2), None]
    longer = compare(
        run("self", causal=True, window=2),
        run("self", causal=True, window=2, sentence="the big cat walks on the street"),
    )
    a, b = (longer.tensors[name] for name in ("weights_a", "weights_b"))
    assert b.mask == Mask(causal=True, window=2) and a.mask is not None and a.mask.visible is not None
    place = longer.tokens.index("big")
    kept = [number for number in range(7) if number != place]
    np.testing.assert_array_equal(hidden_of(a)[np.ix_(kept, kept)], naive_hidden(6, 6, True, 2))
    same = compare(
        run("self", causal=True), run("self", causal=True, sentence="the big cat walks on the street")
    )
    assert same.tensors["difference"].mask == same.tensors["weights_a"].mask == Mask(causal=True)


PITFALLS = {
    "softmax-twice": (Mask(), Mask(causal=True)),
    "late-mask": (Mask(causal=True), Mask(causal=True)),
    "wrong-axis": (Mask(), Mask()),
    "no-scaling": (Mask(), Mask()),
}


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_mistakes_state_the_keys_that_they_hide(pitfall: str) -> None:
    tensors = run("pitfalls", pitfall=pitfall).tensors
    assert (tensors["wrong_weights"].mask, tensors["right_weights"].mask) == PITFALLS[pitfall]
    for tensor in (tensors["wrong_weights"], tensors["right_weights"]):
        np.testing.assert_array_equal(hidden_of(tensor), tensor.values == 0)


def test_weights_from_another_tool_are_causal_without_later_keys() -> None:
    causal = NamedTensor(("query", "key"), np.tri(3) / np.arange(1, 4)[:, np.newaxis])
    assert inferred_mask(causal, has_context=False) == Mask(causal=True)
    assert inferred_mask(causal, has_context=True) is None
    everywhere = NamedTensor(("query", "key"), np.full((3, 3), 1 / 3))
    assert inferred_mask(everywhere, has_context=False) is None
    assert inferred_mask(NamedTensor(("query", "key"), np.eye(2, 3)), has_context=False) is None


@pytest.mark.parametrize("suffix", ["json", "npz", "safetensors"])
def test_masks_are_saved_and_read(tmp_path: Path, attn: Attn, suffix: str) -> None:
    report = run("heads", sentence="a b a b a", maps="self", skip_sink=1)
    assert report.tensors["weights"].mask is not None
    file = tmp_path / f"x.{suffix}"
    saved = attn(["heads", "a b a b a", "--maps", "self", "--skip-sink", "1", "-o", str(file)])
    assert saved.code == 0
    opened = (
        parse_reports(file.read_text(), "x").reports[0] if suffix == "json" else read_array_report(str(file))
    )
    assert opened is not None and opened.tensors["weights"].mask == report.tensors["weights"].mask


WRONG: dict[str, dict[str, Any]] = {
    "x: tensors.weights.mask.window: must be greater than 0 (got 0)": {"window": 0},
    "x: tensors.weights.mask.causal: must be true or false (got 1)": {"causal": 1},
    "x: tensors.weights.mask: unknown name 'windw'": {"windw": 2},
    "x: tensors.weights.mask.visible: must hold only 1 (visible) and 0 (hidden)": {"visible": [[2]]},
    "x: tensors.weights.mask.visible: has rows of unequal length": {"visible": [[1], [1, 0]]},
    "x: tensors.weights: mask.visible: must have the same sizes as the values, (6, 6) (got (2, 2))": {
        "visible": [[1, 1], [1, 1]]
    },
}


@pytest.mark.parametrize("line", WRONG)
def test_a_damaged_mask_is_one_line(line: str) -> None:
    data = run("self").to_data()
    data["tensors"]["weights"]["mask"] = WRONG[line]
    with pytest.raises(UserError) as error:
        parse_reports(json.dumps(data), "x")
    assert error.value.lines == (line,)


def test_views_draw_only_a_stated_mask(tmp_path: Path) -> None:
    """The same zeros on later keys, with a mask and without."""
    weights = NamedTensor(("query", "key"), np.tri(3) / np.arange(1, 4)[:, np.newaxis])
    report = Report("self", {}, {}, ("a", "b", "c"), tensors={"weights": weights}, result=LayerStatistics())
    masked = replace(report, tensors={"weights": replace(weights, mask=Mask(causal=True))})
    drawn = []
    for each in (report, masked):
        file = tmp_path / "x.md"
        with file.open("w") as stream:
            load_view("heatmap")([each], stream, Display(width=80))
        drawn.append(file.read_text())
    assert drawn[0] != drawn[1] and "hidden or missing" in drawn[1] and "hidden" not in drawn[0]
