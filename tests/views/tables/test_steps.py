"""The steps of --explain: each fits a screen, and marks show where rows are left out."""

import re
from typing import Any

import pytest
from rich.cells import cell_len

from attncli.records.report import Report, Shape, Step, Terms
from tests.conftest import in_turn
from tests.running import run
from tests.views.test_views import shown

SCREEN = 42
LONG = " ".join(f"word{i}" for i in range(200))

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "average": ("average", {}),
    "self": ("self", {"causal": True}),
    "self-3": ("self", {"sentence": "a b c"}),
    "self-200": ("self", {"sentence": LONG, "causal": True, "token": 90}),
    "multihead": ("multihead", {}),
    "multihead-200": ("multihead", {"sentence": LONG, "token": 90, "head": 7, "num_kv_heads": 2}),
    "cross": ("cross", {"context": "c d e"}),
    "scale-demo": ("scale-demo", {"head_dim": [4, 16]}),
    "norm": ("norm", {}),
}


def screens(text: str) -> list[str]:
    """The text of each step, between two double rules."""
    return re.split(r"^══ ", text, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize(("case", "width"), in_turn(CASES, [80, 160]))
def test_every_step_fits_a_screen(case: str, width: int) -> None:
    experiment, settings = CASES[case]
    report = run(experiment, explain=True, **settings)
    text = shown("table", [report], width=width)
    steps = screens(text)
    for step, screen in zip(report.steps, steps, strict=True):
        assert step.title in screen and f"\n\n{step.question}\n" in screen
        assert step.question.startswith("Why ") and step.question.endswith("?")
    for screen in steps:
        assert screen.count("\n") <= SCREEN, screen
        assert max(map(cell_len, screen.splitlines()[1:])) <= width
        assert "…" not in screen.replace("x0, x1, …", "")


def test_left_out_rows_are_marked_and_counted() -> None:
    table = Terms("t", ("key", "text", "w"), ((0, "a", 0.5), (3, "b", 0.25)), 9, (("sum", "", 1.0),))
    text = shown("table", [Report("self", {}, {}, steps=(Step("T", "f", "p", tables=(table,)),))], width=80)
    lines = [line.rstrip() for line in text.splitlines()]
    start = lines.index("t (2 of 9 rows, totals over all)")
    assert [line.split() for line in lines[start + 1 : start + 8]] == [
        ["key", "w"],
        ["─" * cell_len(lines[start + 2])],
        ["0", "a", "0.5000"],
        ["⋮", "⋮"],
        ["3", "b", "0.2500"],
        ["⋮", "⋮"],
        ["sum", "1.0000"],
    ]


def test_strides_stand_in_a_table_and_a_missing_number_is_a_dash() -> None:
    shapes = (Shape("view", ("token", "dim"), (3, 4), (4, 1)),)
    step = Step("T", "f", "p", shapes, {"no number": None, "tiny": 1.5e-9, "said": "x"})
    text = shown("table", [Report("self", {}, {}, steps=(step,))], width=80)
    assert re.search(r"view +token × dim +\(3, 4\) +\(4, 1\)", text)
    assert re.search(r"no number +-", text) and re.search(r"tiny +below 1e-06", text) and "said: x" in text


@pytest.mark.parametrize("view", ["table", "md"])
def test_an_explanation_ends_with_suggestions(view: str) -> None:
    report = run("multihead", explain=True, num_heads=2)
    whole = shown(view, [report], width=80)
    assert whole.splitlines()[-1].startswith("Next, with attn multihead: ")
    assert report.notes[0][:40] not in whole
    steps = [shown(view, [report], width=80, step=n) for n in range(1, len(report.steps) + 1)]
    assert "".join(steps).split() == whole.split()


def test_tensors_shown_in_steps_are_not_repeated() -> None:
    explained = shown("table", [run("multihead", explain=True, num_heads=2)], width=80, show=("all",))
    plain = shown("table", [run("multihead", num_heads=2)], width=80, show=("all",))
    rest = explained.partition("══ the report ")[2].partition("\n")[2]
    assert rest.strip() == plain.partition("\n\n")[2].strip()
