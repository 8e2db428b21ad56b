"""First screens: golden files of synthetic reports; each screen fits 30 lines and ends with suggestions."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attncli.core.names import HEAD_PATTERNS, UNNAMED
from attncli.features.diff.question import compare
from attncli.records.attention import LayerStatistics
from attncli.records.kinds import class_place, read_result
from attncli.records.report import Mask, NamedTensor, Numbers, Report, Statistic, Table
from attncli.records.surveys import HeadSurvey
from attncli.settings import SPECS, every_setting_of
from attncli.settings.fields import build_spec
from attncli.views import Display
from attncli.views.first_screen import FirstScreen, Sentences
from attncli.views.head_screens import head_letters, pattern_letter, pattern_part
from attncli.views.layout import BlankScreen, Screen
from attncli.views.page import report_data
from attncli.views.report_sections import model_name
from attncli.views.sections import Column, Drawing, Grid, Paragraph, Section
from attncli.views.tables import SCREEN_PLACES, sections, suits
from tests.running import run
from tests.same_text import assert_same_text
from tests.views.test_views import HOSTILE, shown

GOLDEN = Path(__file__).parent / "golden"
MOST_LINES = 30
ENVIRONMENT: dict[str, str] = {}
LONG = " ".join(f"word{i % 7}" for i in range(200))
WORDS = "one two three four five six seven eight nine ten"


def settings(experiment: str, **given: Any) -> dict[str, Any]:
    """The settings of a report, including every default."""
    spec = build_spec(SPECS[experiment], {}).model_copy(update=given)
    return spec.model_dump(mode="json", exclude=set(spec.unreported_keys()))


SELF = Report(
    "self",
    settings("self", sentence="a cat\n a", causal=True),
    ENVIRONMENT,
    ("a", "cat", "a"),
    tensors={
        "weights": NamedTensor(
            ("query", "key"), np.array([[1, 0, 0], [0.25, 0.75, 0], [0.2, 0.7, 0.1]]), Mask(causal=True)
        )
    },
    result=read_result(
        "self",
        {
            "scores": Numbers(mean=0.5, variance=63.7, min=-1.0, max=9.0),
            "scaled_scores": Numbers(mean=-0.0004, variance=0.0042, min=-1.0, max=9.0),
        },
    ),
    notes=("A note.",),
)
CASES = {
    "self": SELF,
    "multihead": replace(
        SELF,
        experiment="multihead",
        spec=settings("multihead", sentence="a cat a", num_heads=3),
        tensors={"weights": NamedTensor(("head", "query", "key"), np.full((3, 3, 3), 1 / 3))},
    ),
    "pitfalls": Report(
        "pitfalls",
        settings("pitfalls", sentence="a cat a"),
        ENVIRONMENT,
        ("a", "cat", "a"),
        result=read_result(
            "pitfalls",
            {
                "pitfalls": Table(
                    [
                        {
                            "pitfall": "late-mask",
                            "figure": "row_sum",
                            "wrong": 0.2,
                            "right": 1.0,
                            "mistake": "Rows.",
                        }
                    ]
                )
            },
        ),
    ),
}
CASES["diff"] = compare(
    SELF,
    replace(
        SELF,
        spec={**SELF.spec, "causal": False},
        tensors={"weights": NamedTensor(("query", "key"), np.full((3, 3), 1 / 3))},
    ),
)


@pytest.mark.parametrize("case", CASES)
def test_screens_equal_their_golden_files(case: str) -> None:
    """After a deliberate change: UPDATE_GOLDEN=1 pytest tests/views, and read the difference."""
    text = shown("table", [CASES[case]], width=80)
    path = GOLDEN / f"screen-{case}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert_same_text(text, path.read_text())


EVERY: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SPECS),
    *((name, {"sentence": LONG}) for name in ("self", "multihead", "cross", "average", "pitfalls")),
    *((name, {"sentence": WORDS}) for name in ("self", "multihead")),
    *(("pitfalls", {"pitfall": name}) for name in ("late-mask", "merged-heads", "vocabulary-labels")),
    ("pitfalls", {"pitfall": "uniform-projections", "sentence": LONG}),
    ("self", {"sentence": "one"}),
    ("cross", {"sentence": HOSTILE, "context": HOSTILE, "tokenizer": "whitespace"}),
    ("self", {"differential": True, "window": 2}),
    ("multihead", {"num_tokens": 10, "batch_size": 3, "sink": 2.0}),
    ("multihead", {"num_tokens": 300, "engine": "streaming", "embed_dim": 8, "causal": True}),
    ("average", {"aggregate": "sum"}),
    ("scale-demo", {"head_dim": [4, 8, 16, 32, 64], "factors": list(range(1, 30)), "logits": [0.1] * 20}),
    ("generate", {"sentence": "a", "max_new_tokens": 1}),
    ("generate", {"sentence": HOSTILE, "needle": "2:5", "truncate": True}),
    ("generate", {"layer": 1, "head": 2, "top_k": 40, "maps": "heads"}),
]


def with_parts(
    report: Report, tensors: Mapping[str, NamedTensor], statistics: Mapping[str, Statistic]
) -> Report:
    """The report with these parts, as read from a file."""
    return replace(report, tensors=tensors, result=read_result(report.kind, statistics, tensors))


def edited(report: Report) -> Iterator[tuple[str, Report]]:
    """Yield the report without each of its parts, or with values that a saved report may have."""
    yield "no notes", replace(report, notes=())
    yield "nothing said", replace(report, about="", how_to_read="", written=None)
    yield "no spec", replace(report, spec={})
    for key in report.spec:
        yield f"spec {key}", replace(report, spec={k: v for k, v in report.spec.items() if k != key})
    for name in report.tensors:
        others = {other: tensor for other, tensor in report.tensors.items() if other != name}
        yield f"tensor {name}", with_parts(report, others, report.statistics)
        flat = NamedTensor(("key",), report.tensors[name].values.reshape(-1)[:3])
        yield f"flat {name}", with_parts(report, {**others, name: flat}, report.statistics)
    for name, part in report.statistics.items():
        others = {other: found for other, found in report.statistics.items() if other != name}
        yield f"statistic {name}", with_parts(report, report.tensors, others)
        changed: dict[str, Any] = {}
        if isinstance(part, Numbers):
            rests = {key: Numbers({k: part[k] for k in part if k != key}) for key in part}
            changed = {f"without {key}": rest for key, rest in rests.items() if rest}
        elif isinstance(part, Table):
            for key in [*part[0]][:9]:
                rest = Table({k: cell for k, cell in row.items() if k != key} for row in part)
                changed |= {f"without {key}": rest} if len(part[0]) > 1 else {}
                for cell in ("text", None, 0.5):
                    changed[f"{key} {cell}"] = Table({**row, key: cell} for row in part)
        for what, found in changed.items():
            yield f"{name} {what}", with_parts(report, report.tensors, {**others, name: found})


SAVED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SPECS),
    ("pitfalls", {"pitfall": "late-mask"}),
    ("scale-demo", {"head_dim": [4, 8]}),
    ("self", {"projection": "none"}),
    ("heads", {"sort": "entropy", "top": 3}),
    ("generate", {"needle": "2:5"}),
]


OFTEN = [("self", {}), ("generate", {}), ("why", {}), ("heads", {"sort": "entropy", "top": 3})]


@pytest.mark.parametrize(
    ("experiment", "given"),
    [pytest.param(*each, marks=[] if each in OFTEN else [pytest.mark.nightly]) for each in SAVED],
    ids=lambda value: str(value)[:40],
)
def test_a_report_that_was_edited_is_shown(experiment: str, given: dict[str, Any]) -> None:
    assert_shown_when_edited(run(experiment, **given))


def test_a_diff_that_was_edited_is_shown() -> None:
    assert_shown_when_edited(CASES["diff"])
    assert_shown_when_edited(compare(run("multihead"), run("multihead", seed=2)))
    assert_shown_when_edited(compare(run("heads"), run("heads", sentence="a b c a b c")))


@pytest.mark.nightly
def test_a_survey_that_was_edited_is_shown(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat and the cat ran\na b c a b c\n" * 2)
    assert_shown_when_edited(run("heads", texts=str(texts)))
    examples = {"head": "1:0", "num_examples": 2, "sort": "entropy"}
    assert_shown_when_edited(run("heads", texts=str(texts), **examples))


def assert_shown_when_edited(report: Report) -> None:
    assert suits(report)
    for what, other in edited(report):
        try:
            list(sections(other, Display(width=80)))
            report_data(other)
        except Exception as error:
            error.add_note(what)
            raise


def broken(report: Report, display: Display) -> Iterator[str]:
    raise KeyError("a mistake of ours")
    yield


BROKEN_SCREEN = FirstScreen(LayerStatistics, (Sentences(broken),))


def test_an_error_in_a_screen_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCREEN_PLACES, class_place(LayerStatistics), f"{__name__}:BROKEN_SCREEN")
    with pytest.raises(KeyError, match="a mistake of ours"):
        list(sections(SELF, Display(width=80)))


@pytest.mark.parametrize(("experiment", "given"), EVERY, ids=lambda value: str(value)[:40])
def test_every_screen_fits_and_a_pipe_prints_the_same(experiment: str, given: dict[str, Any]) -> None:
    report = run(experiment, **given)
    assert suits(report)
    text = shown("table", [report], width=80)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES and max(map(cell_len, lines)) <= 80
    assert not set("\x1b\u202e\n") & set("".join(lines))
    assert lines[-2] == "" and lines[-1].startswith(f"Next, with attn {experiment}: ")
    assert shown("table", [report], width=None) == text
    assert len(shown("table", [report], width=160, colors="truecolor").splitlines()) <= MOST_LINES
    narrow = shown("table", [report], width=60).splitlines()
    assert max(cell_len(line.rstrip()) for line in narrow) <= 60
    if experiment == "pitfalls" and not given:  # strings in a table wrap, so that no word is lost
        assert {word for word in " ".join(lines[:-1]).split() if word.isalpha()} <= {
            *" ".join(narrow).split()
        }


@pytest.mark.parametrize(
    ("experiment", "given", "change"),
    [
        ("multihead", {"sentence": LONG}, {"seed": 2}),
        ("multihead", {}, {"sentence": "other " * 99}),
        ("norm", {}, {"seed": 1}),
    ],
)
def test_every_diff_fits(experiment: str, given: dict[str, Any], change: dict[str, Any]) -> None:
    report = compare(run(experiment, **given), run(experiment, **{**given, **change}))
    text = shown("table", [report], width=80)
    assert text.count("\n") <= MOST_LINES and "From A to B: " in text and "Next, with attn diff: " in text
    assert shown("table", [report], width=None) == text


def random_grid(rng: np.random.Generator) -> Grid:
    """A table with cells and headers so long that some screens fold or group them."""
    num_rows, num_columns = (int(number) for number in rng.choice([0, 1, 3, 13], 2))
    headers = [("weight",), ("mean", "weight"), ("", "weight"), ("",), ("a header of many words", "")]
    cells = ["0.5", "-0.1234", "", "我们", "a text of some words", "x" * 30]
    columns = [
        Column(headers[rng.integers(5)], [cells[i] for i in rng.integers(6, size=num_rows)], bool(left))
        for left in rng.integers(2, size=num_columns + 1)
    ]
    return Grid(["", "weights", "a title of many words " * 6][rng.integers(3)], columns[0], columns[1:])


def test_the_lines_of_a_screen_are_counted_without_drawing_them(pytestconfig: pytest.Config) -> None:
    def num_lines(screen: type[Screen], section: Section, width: int | None) -> int:
        stream = StringIO()
        screen(stream, Display(width=width)).draw(section)
        return stream.getvalue().count("\n")

    rng = np.random.default_rng(0)
    drawn = [random_grid(rng) for _ in range(150 if pytestconfig.getoption("--nightly") else 50)]
    for section in (*drawn, Drawing("a map", ["▀▄"] * 5), Paragraph("a note " * 30, "note")):
        for width in (None, 20, 40, 80):
            assert num_lines(BlankScreen, section, width) == num_lines(Screen, section, width), section


def test_the_largest_weight_is_named_if_its_column_is_left_out() -> None:
    weights = np.full((200, 200), 0.002)
    weights[:, 150] = 0.602
    report = replace(
        SELF,
        tokens=tuple(LONG.split()),
        tensors={"weights": NamedTensor(("query", "key"), weights)},
    )
    lines = shown("table", [report], width=80).splitlines()
    rows = [line for line in lines if line.endswith("150 word3") and "0.002" in line]
    assert len(rows) == 8
    text = " ".join(" ".join(lines).split())
    assert 'token 7 "word0" takes the most (0.602) from token 150 "word3"' in text
    assert any(line.startswith("Not shown: queries 8-199, keys ") for line in lines)


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name].next_steps])
def test_suggestions_use_known_flags_and_fit_a_line(name: str) -> None:
    steps = SPECS[name].next_steps
    assert cell_len(f"Next, with attn {name}: {' | '.join((*steps[:-2], steps[-1]))}") <= 80
    flags = {step.split()[0].removeprefix("--").replace("-", "_") for step in steps if step.startswith("--")}
    assert flags <= {*every_setting_of(name).model_fields, "show", "format"}


def test_flags_already_in_use_are_not_suggested() -> None:
    assert "--causal" not in shown("table", [SELF], width=80)
    assert "--causal | --explain" in shown("table", [run("self")], width=80)
    assert "--explain" not in shown("table", [run("self", engine="streaming")], width=80)


def test_screens_have_two_decimals_by_default() -> None:
    assert " 0.20 " in shown("table", [SELF], width=80) and "0.2000" not in shown("table", [SELF], width=80)
    assert "0.2000" in shown("table", [SELF], width=80, screen_precision=4)


@pytest.mark.parametrize(
    ("num_rows", "num_failed", "said"),
    [
        (382, 0, "Not shown: 364 rows. See --statistic, --group-by, --top or -o summary.csv."),
        (40, 5, "Not shown: 28 rows, 3 failed runs. "),
        (18, 0, ""),
    ],
)
def test_a_store_of_many_statistics_fits_a_screen(num_rows: int, num_failed: int, said: str) -> None:
    numbers = {"count": 216, "mean": 0.5, "std": 1e-9, "min": -1.0, "max": 123456.7}
    rows = [
        {"statistic": f"normalized_entropy_{i}", "experiment": "heads", **numbers} for i in range(num_rows)
    ]
    failed = [{"run": f"run {i}", "id": "", "source": HOSTILE, "error": HOSTILE} for i in range(num_failed)]
    report = Report(
        "results",
        {"store": "runs/" * 30, "where": [], "group_by": ["experiment"]},
        ENVIRONMENT,
        result=read_result(
            "results", {"summary": Table(rows), **({"failed": Table(failed)} if failed else {})}
        ),
        notes=("216 runs are done, 0 failed.", "A long note " * 12),
    )
    text = shown("table", [report], width=80)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES and max(map(cell_len, lines)) <= 80
    assert (
        lines[-1].startswith("Next, with attn results: --statistic NAME") and "groups of columns" not in text
    )
    assert text.split("\n\n")[1].splitlines()[1].split() == ["count", "mean", "std", "min", "max"]
    assert said in text if said else "Not shown" not in text
    assert text.count("normalized_entropy_") == min(num_rows, 12 if num_failed else 18)


@pytest.mark.parametrize("num_layers", [12, 14, 30])
def test_a_model_of_many_layers_has_them_across(num_layers: int) -> None:
    """Each letter is at its layer and head in either layout: 30 layers of 9 heads fit a screen."""
    patterns = [*HEAD_PATTERNS, UNNAMED]
    heads = [
        {"layer": layer, "head": head, "pattern": patterns[(3 * layer + head) % len(patterns)]}
        for layer in range(num_layers)
        for head in range(9)
    ]
    lines = letter_lines(heads, Display(width=80))
    is_wide = num_layers > 12
    num_above = len(lines) - (9 if is_wide else num_layers)
    above = lines[:num_above]
    assert above[-1].startswith("layer") == is_wide
    digits = [line.ljust(80)[8:67:2] for line in above]
    numbers = (
        above[0].split()[-num_layers:]
        if num_above == 1
        else ["".join(pair).strip() for pair in zip(*digits, strict=True)]
    )
    assert numbers == [*map(str, range(num_layers if is_wide else 9))], "every layer is labelled"
    cells = [line.split()[2:] for line in lines[num_above:]]
    assert np.shape(cells) == ((9, num_layers) if is_wide else (num_layers, 9))
    for head in heads:
        place = (head["head"], head["layer"]) if is_wide else (head["layer"], head["head"])
        assert cells[place[0]][place[1]] == pattern_letter(head["pattern"])
    named = {line.split()[1] for line in lines[num_above:]}
    assert named == {str(place) for place in range(len(cells))}


def test_the_clearest_patterns_stay_if_few_fit() -> None:
    report = run("heads")
    patterns = report.result_of(HeadSurvey).patterns
    part = pattern_part("", patterns, report, Display(width=80))
    grid, others = part.of(1)
    assert isinstance(grid, Grid) and grid.label.cells == ["I induction"]
    assert isinstance(others, Paragraph) and "2 P previous token" in others.text


def test_the_heading_of_parts_names_the_default_model() -> None:
    report = run("heads", sentence="a b a b", maps="self")
    lines = shown("table", [report], width=80, show=("weights",)).splitlines()
    assert lines[0] == "heads: 8 tokens, model tiny-induction"


def letter_lines(heads: list[dict[str, Any]], display: Display, num_lines: int = 99) -> Sequence[str]:
    (drawing,) = head_letters({"self": heads}, display).of(num_lines)
    assert isinstance(drawing, Drawing)
    return drawing.lines


@pytest.mark.parametrize(
    ("num_layers", "num_heads", "size", "left_out"),
    [
        (30, 9, (80, 10), ""),
        (30, 9, (80, 7), ""),
        (6, 12, (80, 7), ""),
        (32, 32, (80, 18), ""),
        (32, 32, (160, 10), ""),
        (32, 32, (80, 12), "Not shown: 14 layers. "),
        (80, 64, (160, 46), ""),
        (80, 64, (80, 20), "Not shown: "),
        (80, 64, (80, 3), "Not shown: "),
    ],
)
def test_letters_use_the_layout_that_fits(
    num_layers: int, num_heads: int, size: tuple[int, int], left_out: str
) -> None:
    """Every head is shown once; if there is no room, as many layers as fit, with a line about the rest."""
    heads = [
        {"layer": layer, "head": head, "pattern": "induction"}
        for layer in range(num_layers)
        for head in range(num_heads)
    ]
    lines = letter_lines(heads, Display(width=size[0], height=24), size[1])
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    if left_out:
        assert lines[-1].startswith(left_out) and lines[-1].endswith("See --show all or -o page.html.")
    else:
        assert sum(line.count("I") for line in lines) == num_layers * num_heads


def test_heads_that_look_at_the_first_token_show_their_other_weights() -> None:
    """If most heads do so: in lower case or dim; `f` if the other weights have no pattern."""
    rests = ["induction", UNNAMED, None]
    heads: list[dict[str, Any]] = [
        {"layer": 0, "head": i, "pattern": "uniform" if rest is None else "first token", "rest_pattern": rest}
        for i, rest in enumerate(rests)
    ]
    assert letter_lines(heads, Display(width=80))[1].split()[2:] == ["i", "f", "U"]
    assert "\x1b[2m  i\x1b[0m\x1b[2m  f\x1b[0m  U" in letter_lines(heads, Display(width=80, colors="16"))[1]
    many = [*heads, {**heads[2], "head": 3}]
    assert letter_lines(many, Display(width=80))[1].split()[2:] == ["F", "F", "U", "U"]
    unknown = [{key: cell for key, cell in head.items() if key != "rest_pattern"} for head in heads]
    assert letter_lines(unknown, Display(width=80))[1].split()[2:] == ["F", "F", "U"]


def test_a_terminal_below_sixty_columns_wraps_lines_of_sixty() -> None:
    whole, wrapped = (shown("table", [run("self")], width=width).splitlines() for width in (60, 40))
    assert max(cell_len(line.rstrip()) for line in wrapped) <= 40
    assert [word for line in wrapped for word in line.split() if word.isalpha()][:6] == whole[0].split()[1:7]
    assert shown("heatmap", [run("self")], width=40) == shown("heatmap", [run("self")], width=60)


def test_a_note_explains_a_map_of_one_colour() -> None:
    """Blocks of random tokens get equal weights, unlike those of a causal text."""
    report = run("self", num_tokens=300, engine="streaming")
    tensor = report.tensors["pooled_mean"]
    even = NamedTensor(tensor.axes, np.full_like(tensor.values, 1 / 300))
    text = shown("table", [replace(report, tensors={"pooled_mean": even})])
    assert "No block stands out: the means range from 3.3e-03 to 3.3e-03." in text
    assert "block means (query block × key block)" in text
    assert "No block stands out" not in shown("table", [report])


@pytest.mark.parametrize(("model", "name"), [(".", "."), ("./my-model", "my-model"), ("owner/name", "name")])
def test_a_model_is_named_after_its_folder(model: str, name: str) -> None:
    assert model_name(replace(SELF, spec={"model": model})) == name
