"""Pictures with weights over them, on terminals of every colour depth and several sizes."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table
from attncli.views import COLOR_DEPTHS, Display
from attncli.views.overlays import overlay_lines, painted, shaded, tensor_looks
from attncli.views.terminal import RAMP
from tests.conftest import in_pairs
from tests.views.pictured import one_head, survey, written_words
from tests.views.terminal.screens import halves, width_of
from tests.views.test_views import shown


def screen(report: Report, **display: Any) -> list[str]:
    return shown("table", [report], **display).splitlines()


def plain(lines: list[str]) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(lines))


@pytest.mark.parametrize(
    ("depth", "size", "report"),
    in_pairs(
        COLOR_DEPTHS,
        [(80, 24), (160, 50), (60, 12)],
        [one_head(2, 2), one_head(37, 37), one_head(3, 11), survey(layers=1), survey(layers=12, heads=12)],
    ),
    ids=str,
)
def test_a_screen_fits_the_terminal(report: Report, size: tuple[int, int], depth: str) -> None:
    width, height = size
    lines = screen(report, width=width, height=height, colors=depth)
    assert max(map(width_of, lines)) <= width
    assert len(lines) <= height or height == 12  # where notes and titles alone exceed the height
    assert lines[-1].startswith("Next, with attn")


def test_the_strongest_patches_stand_beside_the_painted_picture() -> None:
    report = one_head(5, 7)
    (look,) = tensor_looks(report, "weights")
    lines = overlay_lines(look, (28, 10), Display(colors="truecolor"))
    rows = [row for line in lines for row in halves(line.text)]
    expected = painted(look.picture, shaded(look, 28, 20, None)).tolist()
    assert rows == [[tuple(pixel) for pixel in row] for row in expected]
    text = plain(screen(report, width=80, height=24, colors="truecolor"))
    name, weight = look.strongest[0]
    assert re.search(rf"strongest patches\n.*{name} +{weight:.2f}\n", text)
    assert re.search(rf"outside {1 - look.share:.2g}\n.*\[CLS\] +{1 - look.share:.2g}", text)


def test_without_colour_the_picture_stands_beside_its_weights() -> None:
    lines = screen(one_head(5, 7), width=80, height=24)
    start = next(i for i, line in enumerate(lines) if f"[{RAMP}]" in line)
    left, right = ({line[at : at + 26] for line in lines[start : start + 9]} for at in (0, 26))
    assert any("@" in line for line in left) and any("#" in line for line in right)


def test_layers_that_do_not_fit_are_named() -> None:
    text = plain(screen(survey(layers=12, heads=4), width=80, height=18, colors="256"))
    assert "11:0" in text and "mean" in text and "rollout" in text
    assert re.search(r"Not shown: layers 0-.*--show weights", text)
    assert "Not shown: layers" not in plain(screen(survey(layers=2), width=80, height=40, colors="256"))


def test_the_first_heads_of_a_long_ranking_are_not_tiny() -> None:
    text = plain(screen(survey(layers=12, heads=6, sort="entropy"), width=160, height=50, colors="truecolor"))
    captions = re.findall(r"\d+:\d (?:\d+%|all)", text)
    assert 20 < len(captions) < 72 and f"Not shown: {72 - len(captions)} overlays." in text


def test_sorted_heads_keep_their_order() -> None:
    report = survey(layers=2, heads=3, sort="entropy")
    table = Table(sorted(report.table("heads"), key=lambda row: -float(str(row["entropy"])))[:4])
    report = replace(report, result=read_result("heads", {**report.statistics, "heads": table}))
    text = plain(screen(report, width=80, height=30, colors="truecolor"))
    captions = " ".join(line for line in text.splitlines() if "%" in line)
    assert re.findall(r"\d:\d", captions) == [f"{row['layer']}:{row['head']}" for row in table]


def test_a_requested_part_has_every_head() -> None:
    text = plain(screen(survey(layers=3, heads=4), width=80, colors="truecolor", show=("weights",)))
    for layer in range(3):
        for head in range(4):
            assert re.search(rf"(?<!\d){layer}:{head} \d+%", text)
    assert "mean look" in text and "rollout" in text


def test_each_written_word_has_a_small_picture() -> None:
    report = written_words(" a", " disc", ".")
    weights = report.tensors["weights"].values
    lines = screen(report, width=80, height=40, colors="truecolor")
    shares = [round(100 * row[:15].sum() / row.sum()) for row in weights]
    (captions,) = (line for line in plain(lines).splitlines() if line.count("%") == 3)
    assert captions.split() == ["a", f"{shares[0]}%", "disc", f"{shares[1]}%", ".", f"{shares[2]}%"]


def test_a_name_that_is_markup_is_text() -> None:
    report = one_head(2, 2)
    picture = replace(report.pictures[0], name="[bold]\x1b[31m\u202e.png")
    text = "\n".join(screen(replace(report, pictures=(picture,)), width=80, height=24))
    assert "\x1b" not in text and "\u202e" not in text and "[bold]" in text


def test_missing_heads_are_not_drawn() -> None:
    report = survey(layers=2, heads=2)
    values = np.full_like(report.tensors["looks"].values, np.nan)
    values[0] = report.tensors["looks"].values[0]
    tensors = {**report.tensors, "looks": NamedTensor(("layer", "head", "key"), values)}
    text = plain(screen(replace(report, tensors=tensors), width=80, height=40, colors="truecolor"))
    assert "0:1" in text and "1:0" not in text
