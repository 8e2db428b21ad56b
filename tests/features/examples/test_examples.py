"""Examples of one head against brute force over every row of every text."""

from pathlib import Path

import numpy as np
import pytest

import attncli
from attncli.core.names import PATTERNS, ROW_STATISTICS
from attncli.records.report import Report
from tests.commands.test_models_together import SENTENCES
from tests.conftest import Attn, in_turn
from tests.model_folders import save_model
from tests.running import run


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


def rows_by_hand(model: Path, layer: int, head: int, statistic: str) -> dict[int, np.ndarray]:
    """The statistic in each row of each text, from the weights of `attn self`."""
    found = {}
    for line, sentence in enumerate(SENTENCES, start=1):
        report: Report = run("self", model=str(model), layer=layer, head=head, sentence=sentence)
        weights = report.tensors["weights"].values.astype(np.float64)
        values = np.full(len(weights), np.nan)
        for i, row in enumerate(weights):
            if statistic == "entropy":
                values[i] = -sum(p * np.log(p) for p in row if p > 0)
            elif statistic == "previous_token" and i > 0:
                values[i] = row[i - 1]
            elif statistic == "duplicate_token":
                keys = [j for j in range(i) if report.tokens[j] == report.tokens[i]]
                values[i] = sum(row[j] for j in keys) if keys else np.nan
        if not np.isnan(values).all():
            found[line] = values
    return found


@pytest.mark.parametrize(
    ("statistic", "architecture"),
    in_turn(["previous_token", "entropy", "duplicate_token"], ["BERT", "GPT-2"]),
)
def test_examples_match_brute_force(tmp_path: Path, texts: str, architecture: str, statistic: str) -> None:
    model = save_model(tmp_path / "model", architecture)
    report = run("heads", model=str(model), texts=texts, head="1:1", num_examples=3, sort=statistic)
    values = rows_by_hand(model, 1, 1, statistic)
    every = np.concatenate(list(values.values()))
    median = np.nanmedian(every)
    assert report.numbers("head")["median"] == pytest.approx(median, abs=1e-5)
    means = [np.nanmean(of_text) for of_text in values.values()]
    assert report.numbers("head")["mean"] == pytest.approx(np.mean(means), abs=1e-5)
    best = {
        "strongest": {line: np.nanmax(rows) for line, rows in values.items()},
        "weakest": {line: np.nanmin(rows) for line, rows in values.items()},
        "typical": {line: rows[np.nanargmin(abs(rows - median))] for line, rows in values.items()},
    }
    for kind, by_line in best.items():
        found = [row for row in report.table("examples") if row["kind"] == kind]
        assert len({row["text"] for row in found}) == len(found) == min(3, len(values))
        sign = {"strongest": -1.0, "weakest": 1.0}.get(kind)
        far = [abs(v - median) if sign is None else sign * v for v in by_line.values()]
        got = [float(str(row["value"])) for row in found]
        got_far = [abs(v - median) if sign is None else sign * v for v in got]
        np.testing.assert_allclose(got_far, sorted(far)[: len(found)], atol=2e-5)
        for row in found:
            of_text = values[int(str(row["text"]))]
            assert of_text[int(str(row["query"]))] == pytest.approx(row["value"], abs=1e-5)


def test_an_example_has_its_tokens_and_the_weights_of_its_query(tmp_path: Path, texts: str) -> None:
    model = save_model(tmp_path / "model", "BERT")
    report = run("heads", model=str(model), texts=texts, head="0:1", num_examples=1, sort="max_weight")
    row = report.table("examples")[0]
    line, query = int(str(row["text"])), int(str(row["query"]))
    whole = run("self", model=str(model), layer=0, head=1, sentence=SENTENCES[line - 1])
    weights = whole.tensors["weights"].values[query]
    first = len(weights)
    keys = report.table("example_weights")[:first]
    np.testing.assert_allclose([float(str(one["weight"])) for one in keys], weights, atol=1e-5)
    assert [one["token"] for one in keys] == list(whole.tokens)
    assert row["key"] == int(weights.argmax()) and row["query_token"] == whole.tokens[query]


OF_ROWS = (*ROW_STATISTICS, *PATTERNS)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (
            ["--head", "1:0"],
            "--head: needs --examples: use attn self --model MODEL --head 1:0 to see this head on one text",
        ),
        (["--examples", "2", "--sort", "induction"], "--examples: needs --head"),
        (
            ["--head", "1:0", "--examples", "2"],
            "--examples: needs --sort",
        ),
        (
            ["--head", "1:0", "--examples", "2", "--sort", "one_key_mass"],
            f"--sort: must be one of {', '.join(OF_ROWS[:-1])} or {OF_ROWS[-1]} (got one_key_mass)",
        ),
        (
            ["--head", "7:0", "--examples", "2", "--sort", "entropy"],
            "--head: must be from 0:0 to 1:3 in tiny-induction (got 7:0)",
        ),
        (
            ["--head", "1:9", "--examples", "2", "--sort", "entropy"],
            "--head: must be from 1:0 to 1:3 (got 1:9)",
        ),
    ],
)
def test_wrong_settings_are_refused(attn: Attn, texts: str, flags: list[str], error: str) -> None:
    ended = attn(["heads", "--texts", texts, *flags])
    assert (ended.code, ended.err) == (2, f"{error}\n")


def test_each_example_has_the_tokens_of_its_text() -> None:
    result = attncli.examples(attncli.open_model(), SENTENCES, "1:1", "entropy", count=2)
    assert len(result.rows) == 6 and result.num_texts == len(SENTENCES)
    for example in result.rows:
        tokens = result.tokens_of(example)
        assert tokens.column("position").tolist() == [*range(len(tokens))]
        assert tokens[example.query].token == example.query_token
        assert tokens[example.key].weight == example.key_weight == tokens.column("weight").max()


def test_a_statistic_without_rows_is_null_and_its_report_opens(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a\nb\n")
    flags = ["--texts", str(tmp_path / "texts.txt"), "--head", "0:1", "--examples", "2"]
    saved = str(tmp_path / "report.json")
    assert attn(["heads", *flags, "--sort", "duplicate_token", "-o", saved]).code == 0
    ended = attn(["show", saved])
    assert ended.code == 0 and "\nduplicate_token -, median over rows -\n" in ended.out
