"""Heads of layers without a softmax in a survey: their statistics, against loops over whole matrices."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import AutoModel, AutoTokenizer

import attncli
from attncli.models.layer_sources import CapturedMixer, capturing_mixers
from attncli.models.loading import in_use, open_model
from attncli.models.reading_text import read_text
from attncli.records.report import Report
from attncli.records.surveys import SIGNED_OVER_TEXTS, HeadSurvey, SignedHead
from attncli.records.values import Mask
from attncli.runs.saved_reports import SAVED
from tests.conftest import Attn, some_seldom
from tests.core.test_signed_rows import naive
from tests.running import run
from tools.architecture_sweep.folders import save_model, text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

SHOWN = (
    "qwen3_next",
    "kimi_linear",
    "bamba",
    "falcon_h1",
    "minimax",
    "jamba",
    "zamba",
    "zamba2",
    "nemotron_h",
)


def layers_on(folder: str, text: str) -> list[CapturedMixer]:
    layers: list[CapturedMixer] = []
    with in_use(open_model(folder)) as pretrained, torch.no_grad():
        pretrained.model.config.use_cache = False
        with capturing_mixers(pretrained.model, layers.append):
            pretrained.model(**pretrained.inputs([read_text(pretrained, text)]))
    return layers


@pytest.mark.parametrize("name", some_seldom(SHOWN, SHOWN[1::2]))
def test_the_heads_of_a_survey_match_loops(saved: Callable[[str], str], name: str) -> None:
    folder, text = saved(name), text_of(37)
    found = attncli.survey(folder, text)
    layers = layers_on(folder, text)
    rows = {(row.module, row.head): row for row in found.linear}
    assert len(rows) == len(found.linear) == sum(layer.heads.shape[1] for layer in layers) > 0
    for layer in layers:
        decay = layer.heads.log_decay
        assert decay is not None
        for head, weights in enumerate(layer.heads.weights()[0]):
            row = rows[layer.module, head]
            assert (row.layer, row.mixer) == (layer.layer, layer.mixer)
            expected = naive(weights) | {"half_life": log(2) / -float(decay[0, :, head].double().mean())}
            for statistic, number in expected.items():
                assert row[statistic] == pytest.approx(number, rel=1e-4, abs=1e-5), statistic
    mixed = [note for note in found.notes if note.startswith("Not shown")]
    assert not mixed, "every layer is there"


def test_layers_without_head_matrices_are_named(saved: Callable[[str], str]) -> None:
    found = attncli.survey(saved("lfm2"), text_of(19))
    assert not found.linear and found.notes[0].startswith(
        "Without a softmax and therefore not shown: short convolution"
    )


def of_heads(folder: str, **settings: Any) -> Report:
    return run("heads", model=folder, sentence=text_of(29), **settings)


def test_the_report_lists_all_heads(saved: Callable[[str], str]) -> None:
    report = of_heads(saved("qwen3_next"))
    data = report.to_data()
    assert len(data["statistics"]["linear"]) == 8 and report.missing == ""
    assert set(data["statistics"]["linear"][0]) == set(SignedHead.columns)
    again = SAVED.validate_python(data).restored()
    assert again.to_data() == data


def test_their_maps_are_the_matrices(saved: Callable[[str], str]) -> None:
    """The maps are signed, so every view draws zero in the middle of its colours."""
    folder = saved("qwen3_next")
    tensors = of_heads(folder, maps="self").tensors
    drawn = tensors["linear_weights"]
    assert drawn.axes == ("layer", "head", "query", "key") and drawn.mask == Mask(causal=True)
    layers = {layer.layer: layer.heads.weights()[0] for layer in layers_on(folder, text_of(29))}
    for number, (signed, softmax) in enumerate(zip(drawn.values, tensors["weights"].values, strict=False)):
        assert np.isnan(signed).all() == (number not in layers) == np.isfinite(softmax).any()
        if number in layers:
            assert np.abs(signed - layers[number].numpy()).max() <= 1e-6
    assert np.nanmin(drawn.values) < 0 < np.nanmax(drawn.values)


@pytest.mark.parametrize(("name", "num_tokens"), [("qwen3_next", 131), ("falcon_h1", 29)])
def test_maps_of_long_texts_and_mixed_layers_show_only_attention(
    saved: Callable[[str], str], name: str, num_tokens: int
) -> None:
    report = run("heads", model=saved(name), sentence=text_of(num_tokens), maps="self")
    assert "linear_weights" not in report.tensors and report.table("linear")
    assert any(note.startswith("Maps show only attention") for note in report.notes)


def test_layers_with_both_kinds_have_both(saved: Callable[[str], str]) -> None:
    report = of_heads(saved("falcon_h1"))
    both = {name: {row["layer"] for row in report.table(name)} for name in ("heads", "linear")}
    assert both["heads"] == both["linear"] == {0, 1}


def test_reports_that_leave_them_out_say_so(saved: Callable[[str], str]) -> None:
    settings: tuple[dict[str, Any], ...] = (
        {"sort": "entropy"},
        {"skip_sink": 1},
        {"words": "true"},
        {"statistic": "previous_token"},
    )
    for setting in settings:
        report = of_heads(saved("qwen3_next"), **setting)
        assert report.missing == "Without a softmax and therefore not shown: gated delta net in layers 0, 2."
        assert not report.table("linear")


def test_a_model_with_only_attention_has_no_linear_heads(tmp_path: Path) -> None:
    save_model("qwen2", tmp_path)
    report = of_heads(str(tmp_path))
    assert not report.table("linear") and "linear" not in report.to_data()["statistics"]


def rows_of(found: HeadSurvey) -> list[tuple[float | None, ...]]:
    return [(row.local_share, row.distance, row.row_sum, row.half_life) for row in found.linear]


def test_threads_measure_only_their_own_model(saved: Callable[[str], str]) -> None:
    """Kernels are replaced for all threads, but each thread receives only its own layers."""
    folders = {name: saved(name) for name in ("qwen3_next", "qwen3_5_text", "bamba")}
    alone = {name: rows_of(attncli.survey(folder, text_of(31))) for name, folder in folders.items()}
    models = {name: AutoModel.from_pretrained(folder) for name, folder in folders.items()}
    tokenizers = {name: AutoTokenizer.from_pretrained(folder) for name, folder in folders.items()}

    def survey(name: str) -> list[tuple[float | None, ...]]:
        return rows_of(attncli.survey(open_model(models[name], tokenizers[name]), text_of(31)))

    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            together = dict(zip(alone, threads.map(survey, alone), strict=True))
            for name, rows in together.items():
                for ours, theirs in zip(rows, alone[name], strict=True):
                    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), name


def test_a_model_read_from_disk_gives_the_same(saved: Callable[[str], str]) -> None:
    for name in ("qwen3_next", "minimax"):
        whole = rows_of(attncli.survey(saved(name), text_of(31)))
        stored = rows_of(attncli.survey(open_model(saved(name), load="disk"), text_of(31)))
        for ours, theirs in zip(stored, whole, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_a_callers_model_is_measured_as_it_is_and_not_changed(saved: Callable[[str], str]) -> None:
    """In training mode, under autocast, and with a hook that changes the input of a mixer."""
    folder = saved("bamba")
    model = AutoModel.from_pretrained(folder)
    pretrained = open_model(model, AutoTokenizer.from_pretrained(folder))
    plain = rows_of(attncli.survey(pretrained, text_of(31)))
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = rows_of(attncli.survey(pretrained, text_of(31)))
    assert cast == plain and model.training
    hook = model.layers[0].register_forward_pre_hook(lambda _block, inputs: (3 - inputs[0], *inputs[1:]))
    hooks = [dict(module._forward_hooks) for module in model.modules()]
    hooked = rows_of(attncli.survey(pretrained, text_of(31)))
    assert hooked != plain
    assert [dict(module._forward_hooks) for module in model.modules()] == hooks
    hook.remove()
    assert rows_of(attncli.survey(pretrained, text_of(31))) == plain


def test_statistics_over_texts_are_means(saved: Callable[[str], str], tmp_path: Path) -> None:
    """Two texts have the same length and run together; the third is longer."""
    folder, lines = saved("bamba"), [text_of(19), text_of(23), text_of(19, seed=1)]
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{line}\n" for line in lines))
    each = [attncli.survey(folder, line).linear for line in lines]
    report = run("heads", model=folder, texts=str(texts))
    assert report.missing == "" and not [note for note in report.notes if "Not shown" in note]
    for found in (attncli.survey_texts(folder, lines).linear, report.result_of(HeadSurvey).linear):
        assert len(found) == len(each[0])
        for row, *alone in zip(found, *each, strict=True):
            assert row.one_key is None and row.mixer == alone[0].mixer
            for name in ("local_share", "distance", "negative_share", "row_sum", "half_life"):
                mean = sum(text[name] for text in alone) / len(lines)
                assert row[name] == pytest.approx(mean, rel=1e-4, abs=1e-6), name


TEXTS = tuple(text_of(count) for count in (11, 19, 29))


@pytest.mark.nightly
def test_means_over_texts_have_intervals_by_scipy(
    saved: Callable[[str], str], tmp_path: Path, attn: Attn
) -> None:
    """In a survey, and in one that is read from a store whose workers kept the values of each text."""
    folder = saved("qwen3_next")
    each = [attncli.survey(folder, text).linear for text in TEXTS]
    path, texts = tmp_path / "run.db", tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    ended = attn(["heads", "--texts", str(texts), "--model", folder, "-o", str(path)])
    assert ended.code == 0 and "Not shown" not in ended.out
    data = json.loads(attn(["heads", "--store", str(path), "--format", "json"]).out)
    stored = SAVED.validate_python(data).restored().result_of(HeadSurvey)
    for survey in (attncli.survey_texts(folder, TEXTS), stored):
        rows = {
            (row.layer, row.head, row.statistic): row for row in survey.intervals if row.stack == "linear"
        }
        assert len(rows) == 8 * 10
        for place, head in enumerate(survey.linear):
            for name in SIGNED_OVER_TEXTS:
                numbers = [of_text[place][name] for of_text in each]
                spread = scipy.stats.sem(numbers)
                lower, upper = scipy.stats.t.interval(0.95, 2, np.mean(numbers), spread)
                row = rows[head.layer, head.head, name]
                assert row.mean == pytest.approx(head[name], rel=1e-6) and row.texts == 3
                assert (row.lower, row.upper) == pytest.approx((lower, upper), rel=1e-4, abs=1e-6)


def test_a_store_names_the_layers_that_it_lacks(
    saved: Callable[[str], str], tmp_path: Path, attn: Attn
) -> None:
    path, texts = tmp_path / "run.db", tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    arguments = ["heads", "--texts", str(texts), "--model", saved("lfm2"), "-o", str(path)]
    for command in (arguments, ["heads", "--store", str(path)]):
        assert "Without a softmax and therefore not shown: short convolution" in attn(command).out
