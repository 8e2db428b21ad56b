"""Surveys that keep each text in a store, and surveys read from the store of a batch."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from tests.commands.test_models_together import SENTENCES
from tests.conftest import Attn
from tests.model_folders import save_model
from tests.running import ROOT


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


def survey(attn: Attn, *flags: str) -> dict[str, Any]:
    ended = attn(["heads", *flags, "--format", "json"])
    assert ended.code == 0, ended.err
    report: dict[str, Any] = json.loads(ended.out)
    return report


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare every table, except modules, which a store does not keep."""
    for name in ("heads", "patterns", "strongest", "pattern_rows", "intervals"):
        rows = expected["statistics"][name]
        assert len(got["statistics"][name]) == len(rows)
        for own, row in zip(got["statistics"][name], rows, strict=True):
            for key, cell in row.items():
                if isinstance(cell, float):
                    assert math.isclose(own[key], cell, rel_tol=1e-5, abs_tol=1e-6), (name, key)
                elif key != "module":
                    assert own[key] == cell, (name, key)


@pytest.mark.parametrize("architecture", ["BERT", "T5"])
def test_a_store_shows_the_same_survey(tmp_path: Path, attn: Attn, texts: str, architecture: str) -> None:
    model = ["--model", str(save_model(tmp_path / "model", architecture))]
    store = str(tmp_path / "s.db")
    direct = survey(attn, *model, "--texts", texts)
    assert_same(survey(attn, *model, "--texts", texts, "-o", store), direct)
    assert_same(survey(attn, "--store", store), direct)
    again = attn(["heads", *model, "--texts", texts, "-o", store, "--workers", "2"])
    assert "nothing was left to do" in again.err and "8 texts" in again.out
    top = survey(attn, "--store", store, "--sort", "entropy", "--top", "2")
    assert (
        top["statistics"]["heads"]
        == survey(attn, "--store", store, "--sort", "entropy")["statistics"]["heads"][:2]
    )


TEMPLATES = {
    "first": "[CLS] $A",
    "last": "$A [SEP]",
}
LONGER = [sentence for sentence in SENTENCES if len(sentence.split()) > 2]
MARKED = ["[CLS] the cat sat", "[SEP] it was tired", "[CLS] the street"]
CASES = [
    ("BERT", "last", 0, LONGER),
    ("BERT", "first", 2, LONGER),
    ("BERT", "last", 1, [*MARKED, "the cat sat"]),
    ("Llama", "last", 1, LONGER),
]


def templated(folder: Path, template: str) -> Path:
    """Change the tokenizer of a model so that it puts special tokens at these places."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special_tokens = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=special_tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("architecture", "template", "skip_sink", "lines"), CASES)
def test_a_store_knows_whether_texts_begin_with_a_special_token(
    tmp_path: Path, attn: Attn, architecture: str, template: str, skip_sink: int, lines: list[str]
) -> None:
    """The numbers do not show it if the first keys are left out; the direct survey looks at the tokens."""
    model = templated(save_model(tmp_path / "model", architecture), TEMPLATES[template])
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    store = str(tmp_path / "s.db")
    asked = ["--model", str(model), "--texts", str(tmp_path / "texts.txt"), "--skip-sink", str(skip_sink)]
    direct = survey(attn, *asked)
    assert_same(survey(attn, *asked, "-o", store), direct)
    assert_same(survey(attn, "--store", store), direct)


@pytest.mark.parametrize("which", ["all", "some"])
def test_a_store_without_even_weights_uses_the_mean_length(tmp_path: Path, attn: Attn, which: str) -> None:
    """Stores from before 0.5.0, also continued later: 24 texts of 4 and 26 tokens are 15 long on average."""
    path, store = tmp_path / "texts.txt", tmp_path / "s.db"
    path.write_text(
        "\n".join(f"{a}bc" + "the cat sat on the mat" * n for a in "abcdefghijkl" for n in (0, 1))
    )
    command = ["--texts", str(path), "-o", str(store)]
    counts = {row["pattern"]: row["heads"] for row in survey(attn, *command)["statistics"]["patterns"]}
    assert counts["first token"] is None
    with closing(sqlite3.connect(store)) as connection:
        of_some = " AND shape = (SELECT min(shape) FROM columns)" if which == "some" else ""
        is_even = "statistic LIKE '%.even'"
        for (name,) in connection.execute(
            f"SELECT DISTINCT statistic FROM columns WHERE {is_even}"
        ).fetchall():
            connection.execute(f'ALTER TABLE run_statistics ADD COLUMN "-{name}" REAL')
        renamed = f"UPDATE columns SET statistic = '-' || statistic WHERE {is_even}"
        assert connection.execute(renamed + of_some).rowcount > 0
        connection.commit()
    patterns = survey(attn, "--store", str(store))["statistics"]["patterns"]
    counts = {row["pattern"]: row["heads"] for row in patterns}
    assert counts["first token"] is not None and counts["previous token"] is not None


def test_equal_lines_are_one_run_unless_they_have_ids(tmp_path: Path, attn: Attn) -> None:
    store, lines, named = str(tmp_path / "s.db"), tmp_path / "t.txt", tmp_path / "t.jsonl"
    lines.write_text("the cat\nthe dog sat\nthe cat\n")
    ended = attn(["heads", "--texts", str(lines), "-o", store])
    assert f"{store} has 2 of 2 runs" in ended.err and ended.err.endswith(", 1 duplicate\n")
    again = attn(["heads", "--texts", str(lines), "-o", store])
    assert again.err == f"{store} has 2 of 2 runs, nothing was left to do, 1 duplicate\n"
    rows = [{"text": text, "id": number} for number, text in enumerate(lines.read_text().splitlines())]
    named.write_text("\n".join(map(json.dumps, rows)))
    store = str(tmp_path / "named.db")
    assert_same(survey(attn, "--texts", str(named), "-o", store), survey(attn, "--texts", str(lines)))
    assert "repeat" not in attn(["heads", "--texts", str(named), "-o", store]).err


def test_a_survey_reads_the_store_of_a_batch(tmp_path: Path, attn: Attn, texts: str) -> None:
    store, config = str(tmp_path / "b.db"), tmp_path / "heads.yaml"
    config.write_text("experiment: heads\n")
    assert attn(["batch", str(config), "--file", texts, "-o", store]).code == 0
    assert_same(survey(attn, "--store", store), survey(attn, "--texts", texts))
    # The runs of both commands are the same.
    assert "nothing was left to do" in attn(["heads", "--texts", texts, "-o", store]).err
    config.write_text("experiment: heads\nsweep: {skip_sink: [0, 1]}\n")
    assert attn(["batch", str(config), "--file", texts, "-o", store]).code == 0
    ended = attn(["heads", "--store", store])
    error = f"--store: {store} has 2 surveys (skip_sink 0, 1): choose one by --skip-sink\n"
    assert (ended.code, ended.err) == (2, error)
    assert_same(survey(attn, "--store", store, "--skip-sink", "0"), survey(attn, "--texts", texts))
    error = f"--store: {store} has no survey with skip_sink 3; it has skip_sink 0, 1\n"
    assert attn(["heads", "--store", store, "--skip-sink", "3"]).err == error


@pytest.mark.parametrize(
    ("condition", "code", "line"),
    [
        ("texts.num_texts >= 3", 0, ""),
        ("texts.num_texts < 3", 1, "expected texts.num_texts < 3: got 8"),
        ("without_first.induction < 2", 2, "no run will have without_first.induction"),
    ],
)
def test_conditions_are_the_same_for_texts_and_a_store(
    tmp_path: Path, attn: Attn, texts: str, condition: str, code: int, line: str
) -> None:
    store = str(tmp_path / "s.db")
    assert attn(["heads", "--texts", texts, "-o", store]).code == 0
    for source in (["--texts", texts], ["--store", store]):
        ended = attn(["heads", *source, "--expect", condition])
        assert ended.code == code and line in ended.err, ended.err
        assert (ended.out == "") is (code == 2)


@pytest.mark.parametrize("setting", ["top: 2", "pattern: induction"])
def test_a_store_of_some_heads_is_refused(tmp_path: Path, attn: Attn, texts: str, setting: str) -> None:
    store, config = str(tmp_path / "s.db"), tmp_path / "heads.yaml"
    config.write_text(f"experiment: heads\n{setting}\n")
    assert attn(["batch", str(config), "--file", texts, "-o", store]).code == 0
    ended, key = attn(["heads", "--store", store]), setting.partition(":")[0]
    error = (
        f"--store: {store} has only some heads of each text, left by {key}: use attn results to show them\n"
    )
    assert (ended.code, ended.err) == (2, error)


def test_a_store_of_many_texts_per_run_is_refused(tmp_path: Path, attn: Attn, texts: str) -> None:
    store, config = str(tmp_path / "r.db"), tmp_path / "heads.yaml"
    config.write_text(f"experiment: heads\ntexts: {texts}\n")
    assert attn(["batch", str(config), "-o", store]).code == 0
    ended = attn(["heads", "--store", store])
    assert ended.code == 2 and "has no survey of heads, text by text" in ended.err
    ended = attn(["batch", str(config), "--file", texts, "-o", str(tmp_path / "s.db")])
    assert (
        ended.code == 2
        and ended.err == f"{config}:1:1: the experiment reads a file of texts itself: omit --file\n"
    )
    ended = attn(["heads", "--relations", str(ROOT / "configs" / "alice.conllu"), "-o", store])
    assert ended.code == 2 and ended.err.endswith("-o FILE.json writes relations\n")


def test_failed_texts_are_left_out_and_reported(tmp_path: Path, attn: Attn) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a cat sat\nthe cat sat\n" + "cat " * 500)
    ended = attn(["heads", "--texts", str(path), "-o", str(tmp_path / "s.db")])
    assert ended.code == 3 and "line 3: sentence: must be at most 128 tokens" in ended.err
    assert "2 texts" in ended.out.splitlines()[0] and "1 of the texts failed and is left out." in ended.out


def test_failures_of_other_surveys_are_not_counted(tmp_path: Path, attn: Attn) -> None:
    """In a sweep, the shortest text is too short for one of two surveys; then a plan leaves out a text."""
    (tmp_path / "x.yaml").write_text("experiment: heads\nsweep: {skip_sink: [0, 3]}\n")
    lines = ["a cat sat on it", "on", "the cat sat"]
    store = tmp_path / "s.db"
    arguments = ["batch", str(tmp_path / "x.yaml"), "--file", str(tmp_path / "p.txt"), "-o", str(store)]
    (tmp_path / "p.txt").write_text("\n".join(lines))
    assert attn(arguments).code == 3
    whole = attn(["heads", "--store", str(store), "--skip-sink", "0"])
    assert "3 texts" in whole.out and "left out" not in whole.out
    part = attn(["heads", "--store", str(store), "--skip-sink", "3"])
    assert "2 texts" in part.out and "1 of the texts failed and is left out." in part.out
    (tmp_path / "p.txt").write_text("\n".join(lines[:2]))
    assert attn(arguments).code == 3
    fewer = attn(["heads", "--store", str(store), "--skip-sink", "0"])
    assert "2 texts" in fewer.out and "1 of an earlier plan is left out." in fewer.out


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--workers", "2"], "--workers: needs a store: -o FILE.db"),
        (["-o", "x.db"], "-o x.db: is a store, which takes only surveys of many texts: use --texts FILE"),
        (["--store", "none.db"], "none.db: no such file"),
    ],
)
def test_what_is_refused(attn: Attn, flags: list[str], error: str) -> None:
    ended = attn(["heads", *flags])
    assert (ended.code, ended.err) == (2, f"{error}\n")
