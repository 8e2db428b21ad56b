"""Stored values equal the rows of the report, for single texts and for texts that ran together."""

import math
import time

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Numbers, Report, Table, Tensors
from attncli.records.stored_columns import StoredColumn
from attncli.runs.report_values import values_of
from attncli.runs.runner import Kept, Outcome, Values, values_in_buckets
from attncli.settings import SPECS
from tests.running import run, run_together


def by_name(report: Report, *, rows: bool = False) -> dict[StoredColumn, float]:
    columns, values = values_of(report, rows=rows)
    assert len(set(columns)) == len(columns)
    return dict(zip(columns, values.tolist(), strict=True))


def test_rows_are_summarised_by_head_without_missing_numbers() -> None:
    report = run("multihead", sentence="a b c d e", num_heads=3, embed_dim=6, causal=True)
    found = by_name(report)
    for name in ("entropy", "normalized_entropy", "distance", "logsumexp"):
        for head, row in enumerate(report.to_data()["statistics"]["rows"][name]):
            numbers = [number for number in row if number is not None]
            assert math.isclose(
                found[StoredColumn(f"{name}.mean", None, head)], math.fsum(numbers) / len(numbers)
            )
            assert found[StoredColumn(f"{name}.min", None, head)] == min(numbers)
            assert found[StoredColumn(f"{name}.max", None, head)] == max(numbers)
    assert report.to_data()["statistics"]["rows"]["normalized_entropy"][0][0] is None
    scores = report.statistics["scores"]
    assert {name: found[StoredColumn(f"scores.{name}")] for name in scores} == scores
    assert not any("top" in column.statistic for column in found)


def test_a_row_of_no_numbers_has_no_mean() -> None:
    report = run("self", sentence="alone", embed_dim=4)
    found = by_name(report)
    assert all(math.isnan(found[StoredColumn(f"normalized_entropy.{how}")]) for how in ("mean", "min", "max"))


def test_the_mean_of_a_single_number_is_that_number() -> None:
    """The first row sees one key, and so has no normalised entropy."""
    report = run("self", sentence="two words", embed_dim=4, causal=True)
    found = by_name(report)
    _, number = report.to_data()["statistics"]["rows"]["normalized_entropy"]
    assert [found[StoredColumn(f"normalized_entropy.{how}")] for how in ("mean", "min", "max")] == [
        number
    ] * 3


def test_every_row_is_stored_with_its_place() -> None:
    report = run("multihead", num_tokens=5, batch_size=3, embed_dim=4, num_heads=2)
    found = by_name(report, rows=True)
    entropy = report.statistics["rows"]["entropy"]
    assert entropy.axes == ("batch", "head", "query")
    for batch, head, query in np.ndindex(entropy.values.shape):
        assert found[StoredColumn("entropy", None, head, batch, query)] == entropy.values[batch, head, query]
    mean = entropy.values[:, 1].mean()
    assert math.isclose(found[StoredColumn("entropy.mean", None, 1)], mean)
    keys = report.statistics["keys"]["received_mass"].values
    assert found[StoredColumn("received_mass", None, 0, 2, 4)] == keys[2, 0, 4]


@pytest.mark.parametrize(
    ("experiment", "rows"), [("self", True), ("multihead", False), ("multihead", True), ("average", False)]
)
def test_values_of_texts_that_ran_together_are_those_of_their_reports(experiment: str, rows: bool) -> None:
    """To the last bit. Values without reports come from the arrays of all texts."""
    texts = ["a b c", "c d e", "x y z", "one", "q r s", "c d e f g h i"]
    settings = {} if experiment == "average" else {"embed_dim": 8, "causal": True}
    specs = [SPECS[experiment].model_validate({"sentence": text, **settings}) for text in texts]
    reports = run_together(specs)
    outcomes: dict[int, Outcome | Values] = {}
    for bucket in values_in_buckets(specs, Kept(rows=rows, weights=True)):
        outcomes |= bucket
    assert sorted(outcomes) == [*range(len(texts))]
    assert sum(isinstance(outcome, Values) for outcome in outcomes.values()) == 4
    for place, outcome in outcomes.items():
        if isinstance(outcome, Values):
            columns, expected = values_of(reports[place], rows=rows)
            assert columns == outcome.columns
            np.testing.assert_array_equal(outcome.numbers, expected)
            np.testing.assert_array_equal(outcome.weights, reports[place].tensors["weights"].values)
            assert outcome.environment == reports[place].environment


def test_lists_of_rows_and_lessons_are_named_by_their_place() -> None:
    found = by_name(run("scale-demo", head_dim=[2, 3]))
    assert found[StoredColumn("variance.1.head_dim")] == 3
    assert found[StoredColumn("sharpness.1.factor")] == 8
    assert StoredColumn("input.feature0_mean") in by_name(run("norm"))


def test_the_survey_of_heads_has_layer_and_head() -> None:
    report = run("heads")
    found = by_name(report)
    row = report.statistics["heads"][5]
    assert found[StoredColumn("entropy", row["layer"], row["head"])] == row["entropy"]
    grid = by_name(run("heads", statistic="distance"))
    assert grid[StoredColumn("distance", row["layer"], row["head"])] == row["distance"]


def test_stacks_of_an_encoder_and_a_decoder_keep_apart() -> None:
    rows = Table(
        {"layer": 0, "head": 0, "kind": kind, "stack": stack, "entropy": value}
        for stack, kind, value in (
            ("encoder", "self", 1.0),
            ("decoder", "self", 2.0),
            ("cross", "cross", 3.0),
        )
    )
    found = by_name(Report("heads", {}, {}, result=read_result("", {"heads": rows})))
    assert found == {
        StoredColumn("encoder.self.entropy", 0, 0): 1.0,
        StoredColumn("decoder.self.entropy", 0, 0): 2.0,
        StoredColumn("decoder.cross.entropy", 0, 0): 3.0,
    }


def test_infinite_numbers_are_missing() -> None:
    tensor = NamedTensor(("query",), np.array([1.0, np.inf, 3.0]))
    report = Report(
        "self",
        {},
        {},
        result=read_result("", {"rows": Tensors(entropy=tensor), "agreement": Numbers(a=None)}),
    )
    found = by_name(report)
    assert found[StoredColumn("entropy.mean")] == 2 and found[StoredColumn("entropy.max")] == 3
    assert math.isnan(found[StoredColumn("agreement.a")])


def test_a_survey_of_many_heads_is_read_in_a_moment() -> None:
    names = ("entropy", "normalized_entropy", "max_weight", "distance", *(f"other_{i}" for i in range(13)))
    rows = Table(
        {"layer": layer, "module": "m", "head": head, "kind": "self", "stack": "self"}
        | {name: layer + head / 100 + i for i, name in enumerate(names)}
        for layer in range(6)
        for head in range(12)
    )
    reports = [Report("heads", {}, {}, result=read_result("", {"heads": rows})) for _ in range(20)]
    began = time.thread_time()
    tables = [*map(values_of, reports)]
    assert (time.thread_time() - began) / len(reports) < 2e-3, "0.3 ms where this was written"
    assert len({id(columns) for columns, _ in tables}) == 1
    columns, values = tables[7]
    assert values[columns.index(StoredColumn("distance", 3, 5))] == 3 + 5 / 100 + 3
