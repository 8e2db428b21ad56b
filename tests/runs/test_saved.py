"""Saved reports open again with the same bytes, and every damaged file is one clear line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import UserError
from attncli.records.report import Picture, Report
from attncli.runs.saved_reports import parse_reports, read_reports, report_schema
from attncli.settings import SPECS
from attncli.views import VIEWS
from tests.conftest import Attn, some_seldom
from tests.running import LESSON_FILES, ROOT, run, run_file
from tests.views.pictured import several_pictures
from tests.views.test_views import CASES, HOSTILE, shown

TEXT_VIEWS = [view for view in VIEWS if view in ("table", "json", "jsonl", "csv", "heatmap")]
MORE = {
    "heads": ("heads", {}),
    "circuit": ("circuit", {}),
    "pitfalls": ("pitfalls", {}),
    "explained-average": ("average", {"explain": True, "num_tokens": 3, "embed_dim": 2}),
    "explained-cross": ("cross", {"explain": True, "embed_dim": 2}),
    "explained-norm": ("norm", {"explain": True}),
    "explained-scale": ("scale-demo", {"head_dim": [4], "num_tokens": 3, "batch_size": 2, "explain": True}),
    "heads-rollout": ("heads", {"statistic": "entropy", "rollout": True, "sentence": "a b a b"}),
    "streamed": ("self", {"num_tokens": 1100, "engine": "streaming", "head_dim": 2, "embed_dim": 2}),
    "one-token": ("self", {"sentence": "a", "explain": True}),
    "explained-heads": ("multihead", {"num_tokens": 3, "embed_dim": 4, "num_heads": 2, "explain": True}),
    "integers": ("average", {"embedding": "integers", "num_tokens": 3, "embed_dim": 2, "aggregate": "sum"}),
    "generate": ("generate", {"max_new_tokens": 5, "maps": "heads", "needle": "copy"}),
    "one head of generate": ("generate", {"max_new_tokens": 2, "maps": "mean", "layer": 1, "head": 2}),
    "ablate": ("ablate", {"num_tokens": 4, "approximate": True}),
    "why": ("why", {"sentence": "a b a"}),
    "source": ("source", {"sentence": "<source A>a b</source> a", "answer": "b", "head": "1:0"}),
    "separate": ("separate", {"permutations": 9}),
    "cache": ("cache", {"num_tokens": 4, "budget": 0.9, "window": 2}),
    "cache of policies": ("cache", {"num_tokens": 9, "policy": "sinks,knorm", "bits": 8}),
    "model": ("self", {"model": str(ROOT / "attncli" / "data" / "tiny-induction"), "sentence": "a b a"}),
}
ALL_CASES: dict[str, tuple[str, dict[str, Any]]] = {**CASES, **MORE}


def small_report() -> str:
    """Return a report with heads, hidden scores, indices and tensors among the statistics, as JSON."""
    return shown("json", [run("multihead", num_heads=2, sentence="a b c", embed_dim=2, causal=True, top_k=2)])


SMALL = small_report()


def test_the_cases_have_every_experiment() -> None:
    assert {experiment for experiment, _ in ALL_CASES.values()} == set(SPECS)


@pytest.mark.parametrize("case", some_seldom(ALL_CASES, [*ALL_CASES][1::2]))
def test_a_report_is_written_back_with_the_same_bytes(case: str) -> None:
    experiment, given_settings = ALL_CASES[case]
    report = run(experiment, **given_settings)
    for saved in ("json", "jsonl"):
        text = shown(saved, [report])
        (back,) = parse_reports(text, "x.json").reports
        assert shown(saved, [back]) == text
    assert back.statistics.keys() == report.statistics.keys()
    for view in TEXT_VIEWS:
        assert shown(view, [back], width=80) == shown(view, [report], width=80), view


def test_a_report_on_a_missing_vector_file_is_shown() -> None:
    (report,) = parse_reports(changed(spec__embedding="elsewhere/glove.txt"), "x.json").reports
    assert "Next, with attn multihead: " in shown("table", [report], width=80)


def test_written_text_keeps_its_lines() -> None:
    report = Report("generate", {}, {}, about="A model.", written="a\n  b", notes=("A note.",))
    assert report.sentences == ("A model.", "Written: a b", "A note.")
    (back,) = parse_reports(json.dumps(report.to_data()), "x.json").reports
    assert back.written == "a\n  b" and back.sentences == report.sentences and back.notes == ("A note.",)


@pytest.mark.parametrize("name", ["simple", "sweep"])
def test_a_batch_is_read_back_as_a_list_and_as_lines(name: str) -> None:
    reports = run_file(LESSON_FILES / f"{name}.yaml")
    for view in ("json", "jsonl"):
        text = shown(view, reports, several=True)
        saved = parse_reports(text, "x.json")
        assert saved.several == (view == "json" or len(reports) > 1)
        assert shown(view, saved.reports, several=True) == text


def changed(**fields: Any) -> str:
    """Return the small report with other values at paths such as tensors__weights__axes."""
    data = json.loads(SMALL)
    for path, value in fields.items():
        *above, last = path.split("__")
        place = data
        for name in above:
            place = place[name]
        place[last] = value
    return json.dumps(data)


def without(*path: str) -> str:
    data = json.loads(SMALL)
    place = data
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return json.dumps(data)


ROWS = [[[0.5, 0.5, 0.5]] * 3] * 2
DAMAGED = {
    "": "x: is empty: it contains no report",
    " \n": "x: is empty: it contains no report",
    "{": "x:1:2: is not valid JSON: it ends too soon",
    SMALL[:300]: None,
    "nothing": "x:1:1: is not valid JSON: expecting value",
    '{"a": 1,\n "b" 2}': "x:2:6: is not valid JSON: expecting ':' delimiter",
    '{"a": NaN}': "x:1:7: NaN is not valid JSON: write null for a missing number",
    '{"NaN": -Infinity}': "x:1:9: -Infinity is not valid JSON: write null for a missing number",
    '{"a": 1, "a": 2}': "x: has the name 'a' twice in one object",
    '{"a": ' + "9" * 5000 + "}": "x:1:7: contains a number with more than 4300 digits",
    "[" * 100_000: "x: is nested too deeply for a report",
    "3": "x: is not a saved report, which -o run.json writes: it must be an object (got 3)",
    "{}": "x: is not a saved report (schema_version is missing): attn reads reports from -o FILE.json, and arrays (.npz, .npy, .safetensors, .pt)",
    "[{}]": "x: report 0: is not a saved report (schema_version is missing): attn reads reports from -o FILE.json, and arrays (.npz, .npy, .safetensors, .pt)",
    "[] []": "x: holds a list after another document: give one list, or one report per line",
    changed(schema_version=2): "x: schema_version: this attn reads version 1 (got 2)",
    changed(schema_version=True): "x: schema_version: this attn reads version 1 (got True)",
    without("tokens"): "x: tokens is missing",
    changed(token=[]): "x: unknown name 'token' (did you mean 'tokens'?)",
    changed(tokens="a b c"): "x: tokens: must be a list (got a text)",
    changed(tokens=["a", 2, "c"]): "x: tokens[1]: must be text (got 2)",
    changed(tokens=["a", "b"]): "x: tensors.input: has size 3 along token, but there are 2 tokens",
    changed(spec__seed=[1, "big"]).replace('"big"', "1e400"): "x: spec.seed[1]: is too large a number",
    changed(experiment="\x1b[31m"): "x: experiment: must be a printable name of 1 to 100 characters",
    changed(tensors__weights__axes=["query", "key"]): "x: tensors.weights: has 2 axes, but its values have more",
    changed(tensors__weights__axes=["batch", "head", "query", "key"]): "x: tensors.weights: has 4 axes, but its values have 3",
    changed(tensors__weights__axes=["head", "key", "query"]): "x: tensors.weights: axes must end in query, key (got head, key, query)",
    changed(tensors__weights__axes=["head", "query", "query"]): "x: tensors.weights.axes: must name at least one axis, and each axis only once (got head, query, query)",
    changed(tensors__weights__axes=["heads", "query", "key"]): None,
    changed(tensors__weights__values=[[[0.5, "x", 0.5]] * 3] * 2): "x: tensors.weights: holds 'x' instead of a number",
    changed(tensors__weights__values=[[[0.5, True, 0.5]] * 3] * 2): "x: tensors.weights: holds True instead of a number",
    changed(tensors__weights__values=[[[0.5, 0.5]] * 3, [[0.5]] * 3]): "x: tensors.weights: has rows of unequal length",
    changed(tensors__weights__values=[[[]], [[]]]): "x: tensors.weights: holds an empty list",
    changed(tensors__weights__values=3): "x: tensors.weights: has 3 axes, but its values have 0",
    changed(tensors__weights__values=[[[10**400] * 3] * 3] * 2): "x: tensors.weights: holds a number too large",
    without("tensors", "weights", "axes"): "x: tensors.weights: axes is missing",
    without("statistic_axes", "rows"): "x: statistic_axes: rows is missing, or is not a group of tensors among the statistics",
    without("statistic_axes", "rows", "entropy"): "x: statistic_axes.rows: entropy is missing or unknown",
    changed(statistics__rows__entropy=ROWS[0]): "x: statistics.rows.entropy: must have the axes head 2, query 3, like the rest of its group",
    changed(statistics__rows__top_keys=[[[7, 0]] * 3] * 2): "x: statistics.rows.top_keys: has an index that is too large: there are 3 keys",
    changed(statistics__rows__top_keys=[[[0.5, 0]] * 3] * 2): "x: statistics.rows.top_keys: must hold whole numbers, the indices of keys",
    changed(statistics__scores__mean=[1]): "x: statistic_axes: scores is missing, or is not a group of tensors among the statistics",
    changed(statistics__scores=3): "x: statistics.scores: must be a nonempty object or list",
    changed(statistics__heads=[{"a": 1}, {"b": 1}]): "x: statistics.heads: row 1 must have the same names as row 0",
    changed(statistics__heads=[{"a": 1}, {"a": "b"}]): "x: statistics.heads: row 1: a must be a cell of the same kind as in row 0",
    changed(statistics__heads=[{"layer": 10**12, "head": 0, "entropy": 0.5}]): "x: statistics.heads: row 0: layer must be from 0 to 4095 (got 1000000000000)",
    changed(statistics__heads=[{"layer": -1, "head": 0, "entropy": 0.5}]): "x: statistics.heads: row 0: layer must be from 0 to 4095 (got -1)",
    changed(statistics__heads=[{"layer": 0, "head": [], "entropy": 0.5}]): "x: statistics.heads: row 0: head must be a number or a string",
    changed(statistics__heads=[]): "x: statistics.heads: is empty",
    changed(**{"statistics__\x1b[2J": {}}): r"x: statistics: has a name that is unprintable or too long: '\x1b[2J'",
}  # fmt: skip


WRONG_FORMS = [
    without("tokens"),
    changed(schema_version=2),
    changed(token=[]),
    changed(tokens=["a", 2, "c"]),
    changed(tensors__weights__axes=["heads", "query", "key"]),
    changed(tensors__weights__axes=["head", "query", "query"]),
    changed(tensors__weights__values=[[[0.5, "x", 0.5]] * 3] * 2),
    changed(tensors__weights__values=3),
    without("tensors", "weights", "axes"),
    changed(statistics__scores=3),
    changed(statistics__scores__mean="a"),
    changed(statistics__rows__entropy={}),
]


@pytest.mark.parametrize("text", WRONG_FORMS)
def test_the_schema_refuses_reports_that_do_not_open(text: str) -> None:
    """tests/conftest.py checks that the schema accepts every report that a test writes."""
    schema = jsonschema.Draft202012Validator(report_schema())
    assert schema.is_valid(json.loads(SMALL)) and not schema.is_valid(json.loads(text))
    with pytest.raises(UserError):
        parse_reports(text, "x")


def test_the_schema_is_valid_and_printed(attn: Attn) -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())
    assert json.loads(attn(["info", "report-schema"]).out) == report_schema()


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: (DAMAGED[text] or text)[:60])
def test_a_damaged_report_is_one_line_that_names_the_place(text: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_reports(text, "x")
    (line,) = raised.value.lines
    assert line == DAMAGED[text] or (DAMAGED[text] is None and line.startswith("x")), line
    assert len(line) < 400


def test_paths_that_are_not_readable_reports_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes('{"a":\n "é"}'.encode("latin-1"))
    (tmp_path / "large.json").write_text(SMALL)
    expected = {
        "nowhere.json": "no such file",
        ".": "is a directory, not a file",
        "latin.json": "is not UTF-8 text (byte 0xe9 in line 2)",
    }
    for name, message in expected.items():
        with pytest.raises(UserError, match=r".") as raised:
            read_reports(str(tmp_path / name))
        assert str(raised.value) == f"{tmp_path / name}: {message}"
    with pytest.raises(UserError, match=r"needs about .* GB of memory, but only 1e-06 GB is free"):
        read_reports(str(tmp_path / "large.json"), most_bytes=1000)
    with pytest.raises(UserError, match="cannot be read: it is a device, not a file"):
        read_reports("/dev/zero")


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("\ufeff" + SMALL, encoding="utf-8")
    assert len(read_reports(str(path)).reports) == 1


def opens_or_says_why(text: str) -> tuple[Report, ...]:
    """Return the reports, which every view can show, or none if the error is one clear line."""
    try:
        reports = parse_reports(text, "x").reports
    except UserError as error:
        assert len(error.lines) == 1 and error.lines[0].startswith("x")
        return ()
    for view in TEXT_VIEWS:
        assert "\x1b" not in shown(view, reports, width=80)
    again = shown("jsonl", reports)
    assert shown("jsonl", parse_reports(again, "x").reports) == again
    return reports


@settings(deadline=None)
@given(st.data())
def test_any_characters_changed_open_or_are_a_clear_line(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SMALL)))
    stop = data.draw(st.integers(start, min(len(SMALL), start + 40)))
    inside = data.draw(st.text(max_size=5) | st.sampled_from(["null", "[", "{}", "1e999", "-1", "0.5", ","]))
    opens_or_says_why(SMALL[:start] + inside + SMALL[stop:])


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(HOSTILE)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Return every container in a document with each of its keys or indices."""
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [(data, key) for key in keys] + [found for key in keys for found in places(data[key])]


@settings(deadline=None)
@given(st.data())
def test_any_value_changed_opens_or_is_a_clear_line(data: st.DataObject) -> None:
    report = json.loads(SMALL)
    for _ in range(data.draw(st.integers(1, 2))):
        found = places(report)
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        if data.draw(st.booleans()):
            container[key] = data.draw(VALUES)
        else:
            del container[key]
    opens_or_says_why(json.dumps(report))


def test_steps_that_were_saved_before_they_had_questions() -> None:
    data = run("self", explain=True).to_data()
    for step in data["steps"]:
        assert step.pop("question")
    (report,) = parse_reports(json.dumps(data), "old.json").reports
    assert [step.question for step in report.steps] == [""] * 8
    text = shown("table", [report], width=80)
    assert "Why" not in text and f"\n\n{report.steps[4].prose[:40]}" in text


EXPLAINED = json.dumps(run("self", explain=True, sentence="a b", embed_dim=2).to_data()["steps"])
DAMAGED_STEPS = {
    "title": (3, "steps[2].title: must be text (got 3)"),
    "shapes": ("a", "steps[2].shapes: must be a list (got a text)"),
    "shapes__0": (3, "steps[2].shapes[0]: must be an object (got 3)"),
    "shapes__0__sizes": ([1], "steps[2].shapes[0]: must have 2 sizes (and strides, if any), one per axis"),
    "shapes__0__sizes__1": (-2, "steps[2].shapes[0].sizes[1]: must be at least 0 (got -2)"),
    "shapes__0__strides": ([True, 1], "steps[2].shapes[0].strides[0]: must be a whole number (got true or false)"),
    "values__x": ([1], "steps[2].values.x: must be a number, a string or null"),
    "tables__0__count": ("2", "steps[2].tables[0].count: must be a whole number (got a text)"),
    "tables__0__rows__0": ([1], "steps[2].tables[0]: every row must have 4 cells, one per column"),
    "tables__0__rows__0__1": (True, "steps[2].tables[0].rows[0][1]: must be a number, a string or null"),
    "tables__0__rowz": ([], "steps[2].tables[0]: unknown name 'rowz'"),
}  # fmt: skip


@pytest.mark.parametrize("path", DAMAGED_STEPS)
def test_a_damaged_step_is_one_line_that_names_the_place(path: str) -> None:
    value, line = DAMAGED_STEPS[path]
    *above, last = (int(part) if part.isdecimal() else part for part in path.split("__"))
    steps = json.loads(EXPLAINED)
    place = steps[2]
    for part in above:
        place = place[part]
    place[last] = value
    with pytest.raises(UserError) as raised:
        parse_reports(changed(steps=steps), "x")
    assert raised.value.lines == (f"x: {line}",)


def with_picture(**changes: Any) -> dict[str, Any]:
    """Return a report of three tokens, two of which lie on a picture, with changes to the picture."""
    png = b"\x89PNG\r\n\x1a\n" + bytes(3)
    boxes = (None, (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0))
    picture = Picture("<b>.png", (640, 427), (106.5, 0.0, 533.5, 427.0), png, boxes)
    report = run("self", sentence="a b c", embed_dim=2)
    data = replace(report, pictures=(picture,)).to_data()
    data["pictures"][0] |= changes
    return data


def test_a_picture_is_read_back_with_the_same_bytes() -> None:
    text = json.dumps(with_picture())
    (back,) = parse_reports(text, "x.json").reports
    (picture,) = back.pictures
    assert picture.png.endswith(bytes(3)) and picture.boxes[2] == (0.5, 0.0, 1.0, 1.0)
    assert picture.boxes[0] is None and picture.axis == "tokens" and picture.size == (640, 427)
    assert json.loads(shown("json", [back])) == json.loads(text)
    assert "pictures" not in run("self", sentence="a b c", embed_dim=2).to_data()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"png": "AAAA"}, "pictures[0].png: must be a PNG in base64"),
        ({"png": "?"}, "pictures[0].png: must be a PNG in base64"),
        ({"boxes": [None]}, "pictures[0].boxes: must have 3 entries, one for each of tokens"),
        ({"boxes": [None, None, [0, 0, 2, 1]]}, "pictures[0].boxes[2]: must hold shares of the picture"),
        (
            {"boxes": [None, None, [0.5, 0, 0.2, 1]]},
            "pictures[0].boxes[2]: must be a box: left, top, right, bottom",
        ),
        ({"axis": "words"}, "pictures[0].axis: must be one of"),
        ({"crop": [0, 0, 1]}, "pictures[0].crop"),
    ],
)
def test_a_damaged_picture_is_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_reports(json.dumps(with_picture(**changes)), "x.json")
    (only,) = caught.value.lines
    assert only.startswith(f"x.json: {line}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda maps: maps["names"].pop(), r"rows\[0\].weights: must have the axes map 2, key 5"),
        (lambda maps: maps["rows"].clear(), "picture_maps: must have at least one row and one name"),
        (lambda maps: maps.update(num_pictures=1), "num_pictures: must be at least 2, the number of rows"),
        (
            lambda maps: maps["rows"][1]["tokens"].pop(),
            r"rows\[1\].picture.boxes: must have 4 entries, one for each",
        ),
        (
            lambda maps: maps["rows"][1]["weights"].update(axes=["key", "map"]),
            r"rows\[1\].weights: must have",
        ),
        (lambda maps: maps["rows"][1]["picture"].update(png="x"), r"png: must be a PNG in base64"),
        (lambda maps: maps["rows"][1].update(extra=1), "unknown name 'extra'"),
    ],
)
def test_damaged_maps_of_pictures_are_one_line(change: Any, said: str) -> None:
    data = json.loads(shown("json", [several_pictures((2, 2), (2, 2))]))
    jsonschema.Draft202012Validator(report_schema()).validate(data)
    change(data["picture_maps"])
    with pytest.raises(UserError, match=said) as raised:
        parse_reports(json.dumps(data), "x.json")
    assert len(raised.value.lines) == 1 and raised.value.lines[0].startswith("x.json: picture_maps")


def test_a_report_whose_sentence_is_a_list_is_shown_by_its_tokens(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert attn(["self", "a b c", "-o", str(path)]).code == 0
    data = json.loads(path.read_text())
    data["spec"]["sentence"] = ["a", "b c"]
    path.write_text(json.dumps(data))
    ended = attn(["show", str(path), "-o", str(tmp_path / "page.html")])
    assert (ended.code, ended.err) == (0, "") and "a b c" in (tmp_path / "page.html").read_text()
