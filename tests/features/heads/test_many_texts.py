"""A survey of many texts, against surveys of each text and the intervals of scipy."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from attncli.core.names import EVEN, PATTERNS
from attncli.records.report import Report, Row
from tests.commands.test_models_together import SENTENCES
from tests.conftest import Attn
from tests.model_folders import save_model
from tests.running import run

WHERE = ("stack", "layer", "head")
OF_LENGTH = ("first token", "current token", "previous token", "next token")
THRESHOLDS = {
    "previous token": ("previous_token", 0.4),
    "next token": ("next_token", 0.4),
    "current token": ("current_token", 0.4),
    "induction": ("induction", 0.4),
}


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


def numbers(reports: list[Report], row: Row) -> np.ndarray:
    """Return a statistic of a head on each text that has it."""
    found = []
    for report in reports:
        (own,) = (head for head in report.table("heads") if all(head[n] == row[n] for n in WHERE))
        if row["statistic"] == "special_mass - sink_mass":
            found.append(own["special_mass"] - own["sink_mass"])
        else:
            found.append(own[str(row["statistic"])])
    values = np.array(found, dtype=float)
    return values[~np.isnan(values)]


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [("BERT", {"skip_sink": 1, "weighted": True}), ("GPT-2", {"skip_sink": 2}), ("T5", {})],
    ids=str,
)
def test_means_and_intervals_match_scipy(
    tmp_path: Path, texts: str, architecture: str, settings: dict[str, Any]
) -> None:
    model = str(save_model(tmp_path / "model", architecture))
    each = [run("heads", model=model, sentence=text, **settings) for text in SENTENCES]
    survey = run("heads", model=model, texts=texts, **settings)
    by_head = {tuple(row[name] for name in WHERE): row for row in survey.table("heads")}
    rows = survey.table("intervals")
    assert len(rows) > 100
    for row in rows:
        values = numbers(each, row)
        assert row["texts"] == len(values)
        if len(values) < 2:
            assert row["lower"] is row["upper"] is None
            continue
        half = scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values)
        interval = values.mean() - half, values.mean() + half
        np.testing.assert_allclose(
            [row["mean"], row["lower"], row["upper"]], [values.mean(), *interval], atol=1e-5
        )
        head = by_head[tuple(row[name] for name in WHERE)]
        if row["statistic"] in head:
            assert head[str(row["statistic"])] == row["mean"]


def test_a_pattern_needs_an_interval_above_the_threshold(texts: str) -> None:
    survey = run("heads", texts=texts)
    intervals = {(row["layer"], row["head"], row["statistic"]): row for row in survey.table("intervals")}
    for pattern, (statistic, threshold) in THRESHOLDS.items():
        (row,) = (row for row in survey.table("patterns") if row["pattern"] == pattern)
        lower = [float(str(found["lower"])) for (*_, name), found in intervals.items() if name == statistic]
        assert row["heads"] == sum(end > threshold for end in lower) or row["heads"] is None
    named = {(row["layer"], row["head"]): row["pattern"] for row in survey.table("heads")}
    assert named[0, 1] == "previous token" and named[1, 0] == "induction"


def test_numbers_of_texts_and_rows_are_reported(texts: str) -> None:
    survey = run("heads", texts=texts)
    each = [run("heads", sentence=text) for text in SENTENCES]
    (rows,) = survey.table("pattern_rows")
    for name in PATTERNS:
        counts = [report.table("pattern_rows")[0].get(name) for report in each]
        assert rows.get(name) == (None if None in counts else sum(map(int, map(str, counts))))
    assert survey.numbers("texts") == {
        "num_texts": len(SENTENCES),
        "num_tokens": sum(len(report.tokens) for report in each),
    }


def test_one_text_names_no_head(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(SENTENCES[4])
    survey = run("heads", texts=str(path))
    assert {row["pattern"] for row in survey.table("heads")} == {"unnamed"}
    assert all(row["lower"] is None for row in survey.table("intervals"))


def test_groups_and_texts_that_are_left_out(tmp_path: Path, attn: Attn) -> None:
    model = str(save_model(tmp_path / "model", "BERT"))
    path = tmp_path / "a.jsonl"
    lines = [{"text": text, "group": "xy"[n % 2]} for n, text in enumerate(SENTENCES)]
    lines.append({"text": "the cat " * 2000, "group": "x"})
    path.write_text("\n".join(map(json.dumps, lines)))
    ended = attn(["heads", "--model", model, "--texts", str(path), "--text-group", "x", "--format", "json"])
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert report["statistics"]["texts"]["num_texts"] == 4
    (note,) = (note for note in report["notes"] if "left out" in note)
    assert note.startswith(f"1 text is left out: {path}:9: must be at most ")
    cut = attn(["heads", "--model", model, "--texts", str(path), "--truncate"])
    assert cut.code == 0 and "1 text is cut to the length that the model reads." in cut.out
    path.write_text(json.dumps(lines[-1]))
    ended = attn(["heads", "--model", model, "--texts", str(path)])
    assert ended.code == 2 and ended.err.startswith(f"{path}:1: must be at most ")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--maps", "self"], "--maps: cannot be combined with --texts"),
        (["--rollout"], "--rollout: cannot be combined with --texts"),
        (["--text-group", "x"], "--text-group: must be a group of FILE, which has no groups (got x)"),
    ],
)
def test_what_is_refused(attn: Attn, texts: str, flags: list[str], error: str) -> None:
    ended = attn(["heads", "--texts", texts, *flags])
    assert ended.code == 2
    assert ended.err.splitlines()[-1].replace(texts, "FILE").startswith(error), ended.err


MIXED = (
    "cat",
    "the cat",
    " ".join(["the cat sat on the street because the cat was tired"] * 2),
    "sat on the street",
)


def even_statistics(visible: np.ndarray, special: np.ndarray, *, has_positions: bool) -> dict[str, float]:
    """Compute the statistics of rows with equal weights on the visible keys (query, key), entry by entry."""
    rows: dict[str, list[float]] = {name: [] for name in EVEN}
    received = np.zeros(visible.shape[1])
    for query, seen in enumerate(visible):
        weights = seen / seen.sum()
        received += weights / len(visible)
        rows["sink_mass"].append(weights[0])
        if special.any():
            rows["special_mass"].append(weights[special].sum())
        for name, key in (("previous_token", query - 1), ("next_token", query + 1), ("current_token", query)):
            if has_positions and 0 <= key < len(seen):
                rows[name].append(weights[key])
    others = received[1:][~special[1:]]
    if len(others):
        rows["one_key_mass"].append(others.max())
    return {name: float(np.mean(numbers)) if numbers else np.nan for name, numbers in rows.items()}


@pytest.mark.parametrize(
    ("architecture", "maps"),
    [("Mistral", "self"), ("BERT", "self"), ("T5", "cross"), ("", "self")],
    ids=lambda value: value or "shipped",
)
def test_even_weights_follow_the_length_of_each_text(
    tmp_path: Path, attn: Attn, architecture: str, maps: str
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(MIXED))
    model = {"model": str(save_model(tmp_path / "model", architecture))} if architecture else {}
    expected = []
    for text in MIXED:
        report = run("heads", sentence=text, maps=maps, **model)
        keys = report.context_tokens if maps == "cross" else report.tokens
        special = np.array([token in ("[CLS]", "[SEP]", "<bos>") for token in keys])
        visible = report.tensors["weights"].values[0, 0].astype(np.float64) > 0
        own = even_statistics(visible, special, has_positions=maps != "cross")
        (rows,) = (row for row in report.table("pattern_rows") if row["stack"] == maps)
        for name in EVEN:
            assert rows.get(f"even_{name}") == (
                None if np.isnan(own[name]) else pytest.approx(own[name], abs=1e-12)
            ), (text, name)
        expected.append([own[name] for name in EVEN])
    store = str(tmp_path / "s.db")
    flags = [*(["--model", model["model"]] if model else []), "--texts", str(path), "-o", store]
    kept = attn(["heads", *flags, "--format", "json"])
    assert kept.code == 0, kept.err
    again = json.loads(attn(["heads", "--store", store, "--format", "json"]).out)["statistics"]
    surveys = (json.loads(kept.out)["statistics"], again)
    whole = run("heads", texts=str(path), **model).table("pattern_rows")
    for rows in (*(survey["pattern_rows"] for survey in surveys), whole):
        (row,) = (row for row in rows if row["stack"] == maps)
        for name, column in zip(EVEN, np.array(expected).T, strict=True):
            known = column[~np.isnan(column)]
            assert row.get(f"even_{name}") == (pytest.approx(known.mean(), abs=1e-6) if len(known) else None)


texts_of_few_lengths = pytest.mark.parametrize(
    ("texts", "unnamed_for_length"),
    [
        # Even weights put 0.44 on the first token of such texts; of one of their mean length, 17, it is 0.20.
        (["a"] * 10 + ["the cat sat on the street, tired"] * 10, {"first token", "current token"}),
        # Of three tokens 0.42 on the one before.
        (["ab", "cd", "ef", "gh"], {"first token", "current token", "previous token"}),
        (["the cat sat on the street", "because the cat was tired"], set()),
    ],
    ids=["mixed", "short", "long"],
)


def assert_unnamed_for_length(patterns: Iterable[Any], heads: Iterable[Any], unnamed: set[str]) -> None:
    counts = {row["pattern"]: row["heads"] for row in patterns}
    assert {name for name in OF_LENGTH if counts[name] is None} == unnamed
    assert unnamed.isdisjoint(row["pattern"] for row in heads)


@texts_of_few_lengths
def test_patterns_of_even_weights_name_no_head(
    tmp_path: Path, attn: Attn, texts: list[str], unnamed_for_length: set[str]
) -> None:
    path, store = tmp_path / "texts.txt", tmp_path / "s.db"
    path.write_text("\n".join(texts))
    assert attn(["heads", "--texts", str(path), "-o", str(store)]).code == 0
    stored = json.loads(attn(["heads", "--store", str(store), "--format", "json"]).out)["statistics"]
    direct = run("heads", texts=str(path))
    assert_unnamed_for_length(direct.table("patterns"), direct.table("heads"), unnamed_for_length)
    assert_unnamed_for_length(stored["patterns"], stored["heads"], unnamed_for_length)
