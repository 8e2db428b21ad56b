"""CSV and Parquet, read by duckdb and pyarrow without options: columns, types, and the numbers of JSON."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv as arrow_csv

from attncli.records.kinds import read_result
from attncli.records.report import Report, Table
from attncli.views import Display, load_view
from attncli.views.data import write_csv_table
from tests.conftest import Attn
from tests.duckdb_reader import read_by_duckdb
from tests.running import run

MATRIX = ["query", "query_text", "key", "key_text"]
WEIGHT_STATISTICS = [
    "entropy",
    "normalized_entropy",
    "max_weight",
    "sink_mass",
    "distance",
    "participation",
    "local_mass",
]
STATISTICS = [*WEIGHT_STATISTICS, "max_score"]
MAIN: dict[str, tuple[str, dict[str, Any], list[str], int]] = {
    "average": ("average", {"num_tokens": 3, "batch_size": 2}, ["batch", *MATRIX, "weight"], 18),
    "self": ("self", {"causal": True}, [*MATRIX, "score", "scaled_score", "weight"], 36),
    "self alibi": ("self", {"alibi": True}, [*MATRIX, "score", "weight"], 36),
    "self streaming": (
        "self",
        {"num_tokens": 5, "engine": "streaming"},
        [*MATRIX[:2], *STATISTICS, "logsumexp", *(f"top_key_{i}" for i in range(3))]
        + [f"top_weight_{i}" for i in range(3)],
        5,
    ),
    "differential": (
        "self",
        {"differential": True},
        [*MATRIX, "score", "scaled_score", "second_score", "second_scaled_score", "weight"],
        36,
    ),
    "multihead": ("multihead", {"num_heads": 2}, ["head", *MATRIX, "score", "scaled_score", "weight"], 72),
    "cross": (
        "cross",
        {"sentence": "a b", "context": "c d e"},
        [*MATRIX, "score", "scaled_score", "weight"],
        6,
    ),
    "scale-demo": (
        "scale-demo",
        {"head_dim": [4, 16]},
        ["head_dim", "query", "key", "raw_scores", "scaled_scores"],
        2,
    ),
    "norm": (
        "norm",
        {},
        ["kind", "feature0_mean", "feature0_std", "example0_mean", "example0_std", "agreement_with_torch"],
        5,
    ),
    "pitfalls": ("pitfalls", {}, ["pitfall", "figure", "wrong", "right", "mistake"], None),
    "pitfall": ("pitfalls", {"pitfall": "late-mask"}, [*MATRIX, "wrong_weight", "right_weight"], 36),
    "heads statistic": ("heads", {"statistic": "entropy"}, ["layer", "head", "entropy"], 8),
}


def written(view: str, reports: list[Report], path: Path, **display: Any) -> Path:
    with path.open("wb" if view == "parquet" else "w") as stream:
        load_view(view)(reports, stream, Display(**display))
    return path


def table(path: Path) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
    return read_by_duckdb(f"FROM '{path}'")


def rows_of(path: Path) -> list[dict[str, Any]]:
    columns, _, rows = table(path)
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize("case", MAIN)
def test_the_main_table_has_these_columns_and_types_in_both_formats(case: str, tmp_path: Path) -> None:
    experiment, settings, columns, count = MAIN[case]
    report = run(experiment, **settings)
    of_csv = table(written("csv", [report], tmp_path / "x.csv"))
    assert of_csv[0] == columns and count in (None, len(of_csv[2]))
    assert of_csv == table(written("parquet", [report], tmp_path / "x.parquet"))
    arrow = arrow_csv.read_csv(tmp_path / "x.csv").schema
    kinds = {"BIGINT": "int64", "DOUBLE": "double", "VARCHAR": "string"}
    assert [str(kind) for kind in arrow.types] == [kinds[kind] for kind in of_csv[1]]


@pytest.mark.parametrize("case", ["average", "self", "multihead", "cross", "pitfall"])
def test_each_row_has_the_numbers_of_json_and_its_tokens(case: str, tmp_path: Path) -> None:
    experiment, settings, *_ = MAIN[case]
    report = run(experiment, **settings)
    data = json.loads(json.dumps(report.to_data()))
    keys = data["context_tokens"] or data["tokens"]
    for row in rows_of(written("csv", [report], tmp_path / "x.csv")):
        assert (row["query_text"], row["key_text"]) == (data["tokens"][row["query"]], keys[row["key"]])
        for name, tensor in data["tensors"].items():
            column = name.replace("weights", "weight").replace("scores", "score")
            if column in row:
                value = tensor["values"]
                for axis in tensor["axes"]:
                    value = value[row[axis]]
                assert row[column] == value, (name, row)


@pytest.mark.parametrize(
    "settings",
    [{"causal": True, "scale": "-0.3"}, {"temperature": 2.5, "head_dim": 7}, {"scale": "fourth-root"}],
    ids=str,
)
def test_scaled_scores_equal_those_of_an_explanation(settings: dict[str, Any], tmp_path: Path) -> None:
    oracle = run("multihead", num_heads=2, explain=True, **settings).tensors["scaled_scores"].values
    rows = rows_of(written("csv", [run("multihead", num_heads=2, **settings)], tmp_path / "x.csv"))
    found = np.array([np.nan if row["scaled_score"] is None else row["scaled_score"] for row in rows])
    expected = np.where(np.isfinite(oracle), oracle, np.nan).ravel()
    np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_scores_with_a_softcap_or_a_bias_have_no_scaled_scores(tmp_path: Path) -> None:
    for settings in ({"softcap": 0.5}, {"alibi": True}, {"relative_bias": True}):
        columns, *_ = table(written("csv", [run("self", **settings)], tmp_path / "x.csv"))
        assert "score" in columns and "scaled_score" not in columns


def test_a_survey_has_a_row_per_head_without_redundant_columns(tmp_path: Path) -> None:
    report = run("heads")
    rows = rows_of(written("csv", [report], tmp_path / "x.csv"))
    places = {"module", "kind", "stack", "rest_pattern"}  # no head looks at the first key
    assert rows == [
        {name: cell for name, cell in row.items() if name not in places} for row in report.table("heads")
    ]
    assert list(rows[0])[:2] == ["layer", "head"]


TEXT = '[/INST] "q" a,b =1+1 @x -2 :smile: 日本語 [red]x[/red] \x1b[31m \u202ea'


def test_texts_are_written_literally_except_for_control_characters(tmp_path: Path) -> None:
    report = run("self", sentence=TEXT, tokenizer="whitespace")
    written("csv", [report], tmp_path / "x.csv")
    assert not {"\x1b", "\u202e"} & set((tmp_path / "x.csv").read_text())
    texts = [row["key_text"] for row in rows_of(tmp_path / "x.csv")][: len(report.tokens)]
    assert texts[:8] == list(report.tokens)[:8] and texts[-2:] == [r"\x1b[31m", r"\u202ea"]


@pytest.mark.parametrize("name", ["rows", "keys", "output", "statistics", "scaled_scores"])
def test_a_table_is_chosen_by_name(name: str, tmp_path: Path) -> None:
    columns = {
        "rows": [*MATRIX[:2], *STATISTICS, "logsumexp", *(f"top_key_{i}" for i in range(3))]
        + [f"top_weight_{i}" for i in range(3)],
        "keys": ["key", "key_text", "received_mass"],
        "output": ["query", "query_text", "dim", "output"],
        "statistics": ["statistic", "value"],
        "scaled_scores": [*MATRIX, "scaled_score"],
    }
    report = run("self")
    of_csv = table(written("csv", [report], tmp_path / "x.csv", show=(name,)))
    assert of_csv[0] == columns[name]
    assert of_csv == table(written("parquet", [report], tmp_path / "x.parquet", show=(name,)))


@pytest.mark.parametrize("case", MAIN)
def test_all_has_every_number_and_no_empty_column(case: str, tmp_path: Path) -> None:
    experiment, settings, *_ = MAIN[case]
    report = run(experiment, **settings)
    rows = rows_of(written("csv", [report], tmp_path / "x.csv", show=("all",)))
    assert all(any(row[column] is not None for row in rows) for column in rows[0])
    for name, tensor in report.tensors.items():
        mine = [row for row in rows if row["name"] == f"tensors.{name}"]
        values = np.full(tensor.values.shape, np.nan)
        for row in mine:
            values[tuple(row[axis] for axis in tensor.axes)] = (
                np.nan if row["value"] is None else row["value"]
            )
        assert len(mine) == tensor.values.size
        finite = np.isfinite(tensor.values)
        np.testing.assert_array_equal(values, np.where(finite, tensor.values, np.nan))


def test_a_batch_puts_its_own_columns_first(attn: Attn, tmp_path: Path) -> None:
    ids = ["a,1", 'b\r"q"', "c"]
    prompts = [{"sentence": text, "id": id} for text, id in zip(["x y", "y", "x z y"], ids, strict=True)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    (tmp_path / "x.yaml").write_text("experiment: self\nembed_dim: 4\nsweep:\n  causal: [false, true]\n")
    batch = ["batch", str(tmp_path / "x.yaml"), "--file", str(tmp_path / "p.jsonl"), "-o"]
    for view in ("csv", "parquet"):
        assert attn([*batch, str(tmp_path / f"x.{view}")]).code == 0
    of_csv = table(tmp_path / "x.csv")
    assert of_csv[0] == [
        "report",
        "experiment",
        "id",
        "sentence",
        "causal",
        *MATRIX,
        "score",
        "scaled_score",
        "weight",
    ]
    assert of_csv[1][:5] == ["BIGINT", "VARCHAR", "VARCHAR", "VARCHAR", "BOOLEAN"]
    assert of_csv == table(tmp_path / "x.parquet")
    assert list(dict.fromkeys(row[:5] for row in of_csv[2])) == [
        (number, "self", ids[number % 3], prompts[number % 3]["sentence"], number > 2) for number in range(6)
    ]


def test_different_experiments_have_the_union_of_their_columns(tmp_path: Path) -> None:
    reports = [run("self", sentence="a b"), run("norm"), run("scale-demo")]
    rows = rows_of(written("csv", reports, tmp_path / "x.csv", several=True))
    assert [(row["experiment"], row["weight"] is None, row["kind"]) for row in rows[3:6]] == [
        ("self", False, None),
        ("norm", True, "input"),
        ("norm", True, "batch_norm"),
    ]
    assert rows[-1]["head_dim"] == 256 and rows[-1]["report"] == 2


def test_an_unknown_table_is_refused_in_one_line(attn: Attn, tmp_path: Path) -> None:
    names = "pitfalls, statistics, all"
    assert attn(["pitfalls", "--format", "csv", "--show", "pitfals"]).err == (
        f"--show: got pitfals (did you mean 'pitfalls'?): must be one of {names}\n"
    )
    assert attn(["self", "--show", "rows,keys", "-o", str(tmp_path / "x.csv")]).err == (
        "--show: a csv file holds one table: give one name (got rows, keys)\n"
    )
    assert not list(tmp_path.iterdir())
    beside = attn(
        ["self", "--show", "keys"]
    )  # a table in files; on a screen, it is only shown beside the weights
    assert beside.code == 2 and "--show: the report has no part keys" in beside.err


def test_parquet_without_pyarrow_names_the_extra(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attncli.commands.output.find_spec", lambda name: None)
    ended = attn(["self", "-o", str(tmp_path / "x.parquet")])
    assert (ended.code, ended.err) == (2, '--format parquet: needs: pip install "attncli[parquet]"\n')


def test_a_terminal_gets_ids_with_every_character_visible() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    write_csv_table({"id": "text"}, [{"id": ["\x1b[31m", None, ""]}], stream)
    assert stream.getvalue() == 'id\n\\x1b[31m\n\n""\n'


def test_booleans_differ_from_numbers_in_a_shared_column(tmp_path: Path) -> None:
    """The table `all` has every cell in one column."""
    report = Report(
        "heads",
        {},
        {},
        result=read_result("", {"of_rows": Table([{"first": True, "count": 1, "mean": 1.0}])}),
    )
    for kind in ("csv", "parquet"):
        rows = rows_of(written(kind, [report], tmp_path / f"x.{kind}", show=("all",)))
        assert [(row["name"], row["value"]) for row in rows] == [
            ("statistics.of_rows.first", "true"),
            ("statistics.of_rows.count", "1"),
            ("statistics.of_rows.mean", "1.0"),
        ]
