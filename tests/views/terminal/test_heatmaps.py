"""The heatmap view of whole reports: golden files, and checks of cells, labels and widths."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import CenteredNorm, Normalize

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table, Tensors
from attncli.views import COLOR_DEPTHS
from tests.conftest import in_turn
from tests.running import run
from tests.views.terminal.screens import cells_of, halves, width_of
from tests.views.test_views import HOSTILE, LESSON, shown

GOLDEN = Path(__file__).parent / "golden"
RNG = np.random.default_rng(11)
WORDS = ("the", "cat", "[/INST]", "日本語", "\x1b[31mred", "self-contradictory", "a\u202eb", "🙂", ":smile:")


def of(values: np.ndarray, *axes: str, name: str = "weights", tokens: tuple[str, ...] = ()) -> Report:
    return Report("self", {}, {}, tokens=tokens, tensors={name: NamedTensor(axes, values)})


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


def numbers(*shape: int) -> np.ndarray:
    """Distinct numbers of both signs with three decimals."""
    return np.round((np.arange(np.prod(shape)) * 377 % 1009 / 1009 - 0.5).reshape(shape), 3)


def weights(*shape: int, causal: bool = False) -> np.ndarray:
    """Rows of amounts that sum to one up to rounding, with NaN for hidden keys."""
    amounts = np.exp(6 * numbers(*shape))
    if causal:
        amounts = np.where(np.tri(*shape[-2:]) > 0, amounts, np.nan)
    return np.round(amounts / np.nansum(amounts, axis=-1, keepdims=True), 3)


def made(experiment: str, text: str, tensors: dict[str, NamedTensor], context: str = "") -> Report:
    return Report(experiment, {"seed": 0}, {}, tuple(text.split()), tuple(context.split()), tensors)


SENTENCE = "the cat walks on the street"
ATTENTION, VECTORS = ("query", "key"), ("token", "dim")
# Synthetic, so that golden files do not depend on computed numbers.
CASES = {
    "causal": made(
        "self",
        SENTENCE,
        {
            "input": NamedTensor(VECTORS, numbers(6, 4)),
            "scores": NamedTensor(ATTENTION, np.where(np.tri(6) > 0, numbers(6, 6), np.nan)),
            "weights": NamedTensor(ATTENTION, weights(6, 6, causal=True)),
        },
    ),
    "22-tokens": made(
        "self",
        LESSON,
        {
            "input": NamedTensor(VECTORS, numbers(22, 8)),
            "weights": NamedTensor(ATTENTION, weights(22, 22)),
        },
    ),
    "hostile": made("self", HOSTILE, {"weights": NamedTensor(ATTENTION, weights(12, 12))}),
    "heads": made("multihead", SENTENCE, {"weights": NamedTensor(("head", *ATTENTION), weights(8, 6, 6))}),
    "cross-hostile": made("cross", "the cat", {"weights": NamedTensor(ATTENTION, weights(2, 12))}, HOSTILE),
    "curves": Report(
        "scale-demo",
        {},
        {},
        tensors={
            "curve_logits": NamedTensor(("point",), np.linspace(-3, 3, 61)),
            "curve_weights": NamedTensor(("point",), 1 / (1 + np.exp(-np.linspace(-3, 3, 61)))),
        },
        result=read_result(
            "",
            {
                "sharpness": Table(
                    [
                        {"factor": 1, "softmax": [0.2, 0.2, 0.3, 0.2, 0.1]},
                        {"factor": 8, "softmax": [0.03, 0.0, 0.16, 0.0, 0.81]},
                    ]
                )
            },
        ),
    ),
    "vectors": made("norm", "", {"input": NamedTensor(("batch", "dim"), numbers(32, 12))}),
}


@pytest.mark.parametrize("colors", ["none", "256", "truecolor"])
@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("case", CASES)
def test_heatmaps_equal_their_golden_files(case: str, width: int, colors: str) -> None:
    """After a deliberate change: UPDATE_GOLDEN=1 pytest tests/views, and look at the difference."""
    text = shown("heatmap", [CASES[case]], width=width, colors=colors)
    path = GOLDEN / f"{case}-{width}-{colors}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(width_of, text.splitlines())) <= width


def pictures(text: str, rows: int) -> list[str]:
    """The last lines before the blank line that ends a report without notes."""
    lines = text.splitlines()
    assert lines[-1] == ""
    return lines[-1 - rows : -1]


@pytest.mark.parametrize(("size", "is_signed"), [(3, False), (7, True), (30, False)])
def test_each_cell_has_the_colour_of_its_number(size: int, is_signed: bool) -> None:
    values = RNG.uniform(-1 if is_signed else 0.1, 2, (size, size))
    norm, name = (CenteredNorm(), "coolwarm") if is_signed else (Normalize(vmin=0), "viridis")
    wanted = np.rint(matplotlib.colormaps[name](norm(values))[:, :, :3] * 255).astype(int).tolist()
    text = shown("heatmap", [of(values, "query", "key")], width=80, colors="truecolor")
    for line, row in zip(pictures(text, size), wanted, strict=True):
        papers = [cell.paper for cell in cells_of(line) if cell.paper is not None]
        assert papers == [tuple(color) for color in row for _ in range(2)]


def test_halves_hold_two_rows_and_pooled_cells_both_poolings() -> None:
    values = RNG.uniform(size=(50, 50))
    text = shown("heatmap", [of(values, "query", "key")], width=80, colors="truecolor")
    rows = [row for line in pictures(text, 25) for row in halves_of_picture(line, 50)]
    wanted = np.rint(matplotlib.colormaps["viridis"](Normalize(vmin=0)(values))[:, :, :3] * 255).astype(int)
    assert rows == [[tuple(color) for color in row] for row in wanted.tolist()]

    values = RNG.uniform(size=(120, 120))
    text = shown("heatmap", [of(values, "query", "key")], width=80, colors="truecolor")
    assert "mean of 2 × 2 weights per cell" in text and "largest of 2 × 2 weights per cell" in text
    largest = values.reshape(60, 2, 60, 2).max(axis=(1, 3))
    rows = [row for line in pictures(text, 30) for row in halves_of_picture(line, 60)]
    wanted = np.rint(matplotlib.colormaps["viridis"](Normalize(vmin=0)(largest))[:, :, :3] * 255).astype(int)
    assert rows == [[tuple(color) for color in row] for row in wanted.tolist()]
    mean = values.reshape(60, 2, 60, 2).mean(axis=(1, 3))
    assert "0.0000 " in text and f"{mean.max():.4f}" in text


def halves_of_picture(line: str, columns: int) -> tuple[list[Any], list[Any]]:
    labels = len(plain(line)[0]) - columns
    upper, lower = halves("".join(line.partition("\x1b")[1:]))
    assert labels > 0 and len(upper) == columns
    return upper, lower


@settings(deadline=None, max_examples=100)
@given(
    colors=st.sampled_from(COLOR_DEPTHS),
    data=st.data(),
    rows=st.integers(1, 90),
    columns=st.integers(1, 300),
    width=st.integers(60, 200),
    leading=st.sampled_from([(), (1,), (2,), (5,), (2, 3), (3, 13)]),
    has_tokens=st.booleans(),
)
def test_no_line_is_wider_than_the_screen(
    colors: str,
    data: st.DataObject,
    rows: int,
    columns: int,
    width: int,
    leading: tuple[int, ...],
    has_tokens: bool,
) -> None:
    if len(leading) > 1:
        rows = columns = min(rows, 9)
    axes = ("layer", "head")[2 - len(leading) :]
    values = np.random.default_rng(rows * columns).normal(size=(*leading, rows, columns))
    values[..., -1] = np.nan
    tokens = tuple(data.draw(st.lists(st.sampled_from(WORDS), min_size=rows, max_size=rows)))
    report = of(values, *axes, "query", "key", tokens=tokens if has_tokens else ())
    text = shown("heatmap", [report], width=width, colors=colors)
    assert max(map(width_of, text.splitlines())) <= width
    assert "\u202e" not in text and "\x1b[31mred" not in text
    assert ("\x1b" in text) == (colors != "none")


def test_maps_of_heads_share_a_range() -> None:
    values = np.stack([np.full((3, 3), 0.1), np.full((3, 3), 0.4), np.full((3, 3), 0.9)])
    values[2, 1, 1] = 0.2
    text = shown("heatmap", [of(values, "head", "query", "key")], width=80, colors="truecolor")
    assert "one range for all 3 maps" in text
    by_row = shown("heatmap", [of(values, "head", "query", "key")], width=80, scale_colors="row")
    assert "scaled per row" in by_row and "one range" not in by_row
    picture = [
        [cell.paper for cell in cells_of(line) if cell.paper is not None] for line in pictures(text, 3)
    ]
    assert picture[0][12:] == [(253, 231, 37)] * 6 and picture[0][0] == picture[0][5] != (253, 231, 37)
    assert all(name in text for name in ("head 0", "head 1", "head 2"))


@pytest.mark.parametrize(("width", "colors"), in_turn([80, 160], ["none", "256"]))
def test_the_atlas_of_a_model_fits_one_screen(width: int, colors: str) -> None:
    values = RNG.uniform(size=(12, 12, 64, 64))
    report = of(values, "layer", "head", "query", "key", name="pooled_max")
    lines = plain(shown("heatmap", [report], width=width, colors=colors))
    assert len(lines) <= 55
    assert sum(line.startswith("layer ") for line in lines) == 12
    assert max(map(width_of, lines)) <= width


def test_an_atlas_puts_layers_below_and_heads_beside_each_other() -> None:
    values = np.zeros((2, 3, 2, 2))
    values[1, 2] = 1
    text = shown("heatmap", [of(values, "layer", "head", "query", "key")], width=80)
    lines = text.splitlines()
    marked = [(i, line) for i, line in enumerate(lines) if line.endswith("@@@@")]
    (first, line), (second, _) = marked
    assert line.startswith("layer 1") and line.index("@") == lines[4].index("2") and second == first + 1


def test_skipped_keys_are_left_blank() -> None:
    values = np.full((4, 4), 0.1)
    values[:, 0] = 0.7
    values[3, 3] = 0.3
    text = shown("heatmap", [of(values, "query", "key")], width=80, skip_first_keys=1)
    assert "0.0000 [" in text and "] 0.3000" in text and "without the first key" in text
    assert [line.split()[1] for line in pictures(text, 4)][:3] == ["//------"] * 3


def test_compared_maps_share_a_range() -> None:
    """The softmax of a softmax is at most 0.4; the right one is 1 in the first row."""
    lines = plain(shown("heatmap", [run("pitfalls", pitfall="softmax-twice")], width=160))
    legends = [line for line in lines if "[" in line and "]" in line]
    assert [legend.split()[0::2][0] for legend in legends] == ["0.0000"] * 2
    assert all("] 1.0000  linear; one range for" in legend for legend in legends)


def test_maps_of_blocks_are_logarithmic_by_default() -> None:
    report = run("self", num_tokens=300, engine="streaming", embed_dim=4)
    assert "log scale" in shown("heatmap", [report], width=80)
    assert "log scale" not in shown("heatmap", [report], width=80, scale_colors="linear")


def test_an_end_that_is_negligible_beside_the_other_is_zero() -> None:
    values = np.array([[3.6448e-13, 0.5]])
    assert "0.0000 [ .:-=+*#%@] 0.5000" in shown("heatmap", [of(values, "token", "dim", name="input")])
    tiny = np.array([[2e-9, 8e-9]])
    assert "2.0000e-09 [ .:-=+*#%@] 8.0000e-09" in shown("heatmap", [of(tiny, "token", "dim", name="input")])


def test_a_title_replaces_the_heading() -> None:
    text = shown("heatmap", [run("self")], width=80, title="Look \x1b[31m here")
    assert text.splitlines()[0] == r"Look \x1b[31m here"


def test_blocks_of_a_streamed_run_are_labelled_by_position() -> None:
    maps = np.tril(RNG.uniform(0.1, 1, (4, 4)))
    received = Tensors(received_mass=NamedTensor(("key",), np.ones(10)))
    entropy = Tensors(entropy=NamedTensor(("query",), np.ones(10)))
    tensor = NamedTensor(("query_block", "key_block"), maps)
    report = Report(
        "self",
        {},
        {},
        tensors={"pooled_max": tensor},
        result=read_result("", {"rows": entropy, "keys": received}),
    )
    text = shown("heatmap", [report], width=80)
    assert "block maxima (query block × key block): largest of 3 × 3 weights per cell" in text
    assert [line.split()[0] for line in pictures(text, 4)] == ["0-2", "3-5", "6-8", "9"]


def test_columns_of_queries_are_numbered_from_the_first_query() -> None:
    tensor = NamedTensor(("head", "query"), RNG.uniform(size=(3, 5)))
    report = Report("show", {}, {}, tuple("abcdefgh"), tensors={"needle": tensor}, first_query=3)
    header = next(line for line in shown("heatmap", [report], width=80).splitlines() if " 3 " in line)
    assert header.split() == ["head", "3", "4", "5", "6", "7"]


def test_without_a_terminal_every_number_has_a_cell() -> None:
    values = RNG.uniform(size=(200, 200))
    text = shown("heatmap", [of(values, "query", "key")], width=None)
    lines = pictures(text, 200)
    assert "per cell" not in text and [int(line[:5]) for line in lines] == list(range(200))
    width = {len(line) - len("query ") for line in lines if line[-1] != " "}
    assert 200 in width and max(width) == 200
    huge = shown("heatmap", [of(np.ones((3, 3000)), "query", "key")], width=None)
    assert "mean of 1 × 3 weights per cell" in huge


def test_a_report_without_a_matrix_or_curve_names_an_alternative() -> None:
    assert "--format table" in shown("heatmap", [Report("self", {}, {})], width=80)


def test_a_matrix_too_wide_for_a_table_is_drawn() -> None:
    report = run("self", num_tokens=70, embed_dim=4)
    text = shown("table", [report], width=80, show=("all",))
    assert text.count("too wide for a table, so shown as a picture") == 2  # scores and weights
    start = text.index("weights (query × key)")
    assert text[start:].splitlines()[2].startswith("query")
    assert "…" not in re.sub(r"[^\d.…]", "", text)
    model = of(RNG.uniform(size=(2, 3, 30, 30)), "layer", "head", "query", "key")
    assert "weights: too wide for a table, so shown as a picture" in shown(
        "table", [model], width=80, show=("all",)
    )
    heads = shown("table", [run("multihead", num_tokens=70, embed_dim=16)], width=80, show=("all",))
    assert heads.count("too wide for a table, so shown as a picture") == 2 and heads.count("head 7") > 2


@pytest.mark.parametrize(("width", "view"), in_turn([40, 80, None], ["table", "heatmap"]))
def test_notes_are_plain_text(view: str, width: int | None) -> None:
    """A note may quote a setting, as the differences of a comparison do."""
    notes = ("sentence a -> \x1b[31mred", "b\u202ec [bold]d[/bold]")
    report = replace(of(np.eye(3), "query", "key"), notes=notes)
    text = shown(view, [report], width=width)
    assert "\x1b" not in text and "\u202e" not in text
    assert r"\x1b[31mred" in text and r"b\u202ec [bold]d[/bold]" in text


def test_the_legend_explains_why_signed_numbers_have_no_logarithm() -> None:
    signed = of(np.array([[-0.5, 0.5], [0.25, -0.25]]), "query", "key", name="difference")
    assert "0.5000  linear (log needs numbers >= 0)\n" in shown(
        "heatmap", [signed], width=80, scale_colors="log"
    )
    assert "0.5000  linear\n" in shown("heatmap", [signed], width=80)
