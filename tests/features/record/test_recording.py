"""The report of a recording, and what attn does with it once it is saved."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

import attncli
from attncli.errors import UserError
from attncli.features.record.listening.listener import Listener
from attncli.features.record.recorder import Recorder
from attncli.features.record.reports import recording_report
from attncli.features.record.results import RecordedModule
from attncli.features.record.screens import alike_modules, modules_grid
from attncli.features.record.settings import RecordSpec
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.report import Report
from attncli.runs.report_values import Expectations, parse_conditions, values_of
from attncli.runs.saved_reports import read_reports
from attncli.views.page import report_data
from tests.conftest import Attn, in_turn
from tests.features.browse.browsing import after, screen_text
from tests.features.heads.test_many_texts import assert_unnamed_for_length, texts_of_few_lengths
from tests.notebook.test_notebook_report import Sanitised
from tests.views.test_views import shown as shown_as

TOKENS = ["the", "cat", "sat", "on", "the", "mat", "because", "the", "cat", "was", "tired"]


def shown(report: Report, **display: Any) -> str:
    return shown_as("table", [report], **display)


def recorded(texts: int = 1, num_calls: int = 1, spec: RecordSpec | None = None, **settings: Any) -> Report:
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    recorder = Recorder(**settings)
    listener = Listener(recorder.take)
    with torch.no_grad(), listener.listening():
        for _ in range(num_calls):
            model(torch.randn(texts, 11, 16), torch.randn(texts, 7, 16), tgt_mask=mask)
    survey = recorder.result(listener.counts)
    return recording_report(
        recorder, survey, RecordSpec.model_validate({"program": "train.py"}) if spec is None else spec
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for name, texts in (("one", 1), ("four", 4)):
        report = recorded(texts, 3, tokens=TOKENS)
        (folder / f"{name}.json").write_text(json.dumps(report.to_data()))
    return folder


def test_the_page_says_that_maps_show_the_first_text() -> None:
    line = "Statistics are means over 4 texts; maps show the first text."
    assert report_data(recorded(4))["finding"].endswith(line)
    assert "The maps show the first of 4 texts." in recorded(4).notes
    assert line not in report_data(recorded())["finding"]


def test_maps_have_the_form_of_a_survey() -> None:
    report = recorded(tokens=TOKENS)
    weights = report.tensors["weights"]
    assert weights.axes == ("layer", "head", "query", "key") and weights.values.shape == (4, 4, 11, 11)
    assert np.isnan(weights.values[2:]).all() and report.tokens == tuple(TOKENS)
    assert any("The maps leave out decoder.layers.0.self_attn" in note for note in report.notes)
    assert report.spec["maps"] == "self" and report.kind == "record"


@pytest.mark.parametrize(("suffix", "name"), in_turn(["html", "md", "png", "parquet"], ["one", "four"]))
def test_every_view_shows_it(attn: Attn, folder: Path, tmp_path: Path, name: str, suffix: str) -> None:
    target = tmp_path / f"page.{suffix}"
    ended = attn(["show", str(folder / f"{name}.json"), "-o", str(target)])
    assert ended.code == 0 and ended.err == "" and target.stat().st_size


def test_the_table_of_heads_names_the_modules(attn: Attn, folder: Path) -> None:
    rows = list(csv.DictReader(attn(["show", str(folder / "one.json"), "--format", "csv"]).out.splitlines()))
    assert len(rows) == 6 * 4 and rows[0]["module"] == "encoder.layers.0.self_attn"


def test_the_first_screen_lists_the_module_of_each_layer(attn: Attn, folder: Path) -> None:
    lines = attn(["show", str(folder / "one.json")]).out.splitlines()
    assert lines[0] == ("record: 4 layers × 4 heads, cross 2 layers × 4 heads, 11 tokens, of train.py")
    assert any("0-1  encoder.layers.0-1.self_attn" in line and "11 × 11" in line for line in lines)
    assert any("0-1" in line and "multihead_attn" in line and "7 × 11" in line for line in lines)
    assert any("12 more calls were only counted" in line for line in lines)
    text = attn(["show", str(folder / "one.json"), "--show", "modules"]).out
    assert "encoder.layers.1.self_attn" in text and "scaled_dot_product_attention" in text


def test_it_fits_a_small_terminal() -> None:
    lines = shown(recorded(tokens=TOKENS), width=80, height=23).splitlines()
    assert len(lines) <= 23 and all(len(line) <= 80 for line in lines)
    assert any("encoder.layers.0-1.self_attn" in line for line in lines)
    assert lines[-1].startswith("Next, with attn record: --calls all")


def test_tokens_without_names_have_no_copies() -> None:
    lines = shown(recorded(), width=100).splitlines()
    assert any("induction" in line and "token names unknown: use --tokens FILE" in line for line in lines)


@pytest.mark.nightly
def test_two_recordings_are_compared(attn: Attn, folder: Path) -> None:
    ended = attn(["diff", str(folder / "one.json"), str(folder / "one.json")])
    assert ended.code == 0 and "no weight changed" in ended.out
    ended = attn(["diff", str(folder / "four.json"), str(folder / "four.json")])
    assert ended.code == 0 and "no weight changed" in ended.out
    whole = attn(["diff", *[str(folder / "four.json")] * 2, "--show", "all"])
    assert "0 of 24 heads changed beyond their 95 % intervals" in " ".join(whole.out.split())


def test_a_picture_lies_under_its_patches(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    file = tmp_path / "cat.png"
    pillow.new("RGB", (900, 600), "red").save(file)
    spec = RecordSpec.model_validate({"program": "vit.py", "grid": "2x5", "image": str(file)})
    report = recorded(grid=(2, 5), spec=spec)
    (picture,) = report.pictures
    assert picture.boxes[:2] == (None, (0.0, 0.0, 0.2, 0.5)) and picture.boxes[-1] == (0.8, 0.5, 1.0, 1.0)
    assert report.tokens[:3] == ("+0", "r1c1", "r1c2") and report.spec["from"] == ["+0"]
    np.testing.assert_array_equal(
        report.tensors["looks"].values[:2], report.tensors["weights"].values[:2, :, 0]
    )
    assert "where +0 looks in cat.png" in shown(report, width=100)
    with pytest.raises(UserError, match="image"):
        recorded(grid=(2, 5), spec=RecordSpec.model_validate({"image": str(tmp_path / "none.png")}))


def modules_of(*paths: str, heads: int = 2) -> Any:
    return RecordedModule.rows(
        {
            **{"stack": "self", "layer": layer, "module": path, "kind": "self", "function": "by hand"},
            **{"texts": 1, "heads": heads, "queries": 5, "keys": 5, "head_dim": None, "mask": "none"},
            **{"window": None, "scale": None, "calls": 1, "measured": 1},
        }
        for layer, path in enumerate(paths)
    )


def test_layers_whose_paths_count_are_one_line() -> None:
    modules = modules_of("a.0.x", "a.1.x", "a.2.x", "b.0.0", "b.0.1", "b.1.0", "b.1.1", "last")
    runs = alike_modules(modules)
    grid = modules_grid(runs, 80, several=False)
    assert [*grid.label.cells] == ["0-2", "3-4", "5-6", "7"]
    assert [*grid.columns[0].cells] == ["a.0-2.x", "b.0.0-1", "b.1.0-1", "last"]


def test_a_long_path_keeps_its_end() -> None:
    grid = modules_grid(alike_modules(modules_of("x" * 100 + ".attn")), 80, several=True)
    (path,) = grid.columns[0].cells
    assert path.startswith("…") and path.endswith("x.attn")


@pytest.mark.nightly
def test_one_looks_through_it(folder: Path) -> None:
    (report,) = read_reports(str(folder / "one.json")).reports
    assert after(report, "down", "right").place == (1, 1)
    over_other_tokens = ("down", "down", "down")
    assert after(report, *over_other_tokens).place == (3, 0)
    text = screen_text(report, *over_other_tokens)
    assert "nan" not in text.lower() and "[U]U" in text


@pytest.mark.parametrize("name", ["one", "four"])
def test_conditions_are_checked_in_it(folder: Path, name: str) -> None:
    (report,) = read_reports(str(folder / f"{name}.json")).reports
    conditions = parse_conditions(["entropy < 0.1", "max_weight <= 1"], "--expect", numbers_only=True)
    expectations = Expectations(conditions)
    (line,) = expectations.broken(*values_of(report))
    assert line.startswith("expected entropy < 0.1: got ") and not expectations.unmet()


def test_an_empty_recording_says_so_in_a_notebook() -> None:
    recording = attncli.record()
    assert Sanitised(recording._repr_html_()).text == repr(recording)


@texts_of_few_lengths
def test_no_pattern_that_even_weights_show_names_a_head_of_a_program(
    texts: list[str], unnamed_for_length: set[str]
) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(SHIPPED_MODEL), AutoModel.from_pretrained(SHIPPED_MODEL)
    with attncli.record(calls="all") as seen, torch.no_grad():
        for text in texts:
            model(**tokenizer(text, return_tensors="pt"))
    survey = seen.survey()
    assert_unnamed_for_length(survey.patterns, survey.heads, unnamed_for_length)
