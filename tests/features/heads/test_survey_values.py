"""The values of a survey that goes into a store are those of its report, without a report."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from attncli.features.heads import question as heads
from attncli.records.stored_columns import HeadColumns, columns_from_shapes
from attncli.runs.report_values import values_of
from attncli.runs.runner import Kept, Values, run_in_buckets, values_in_buckets
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec
from tests.model_folders import save_model

TEXTS = ("the cat sat on the mat", "the dog ran over it then", "a cat", "the cat sat because it was tired")


@pytest.mark.parametrize(
    "architecture, settings",
    [
        ("BERT", {"words": True}),
        ("Llama", {}),
        ("GPT-OSS", {"skip_sink": 1}),
        ("Gemma 2", {}),
        ("Mistral", {"weighted": True}),
        ("T5", {"context": "a dog"}),
    ],
)
def test_values_are_those_of_the_reports(
    tmp_path: Path, architecture: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"model": str(save_model(tmp_path, architecture)), **settings}
    specs = [
        build_spec(
            SPECS["heads"], {key: Given(value, key) for key, value in (given | {"sentence": text}).items()}
        )
        for text in TEXTS
    ]
    expected = {place: report for some in run_in_buckets(specs) for place, report in some.items()}
    monkeypatch.setattr(heads, "report_each", None)
    outcomes = {
        place: outcome for some in values_in_buckets(specs, Kept()) for place, outcome in some.items()
    }
    assert outcomes.keys() == expected.keys() == {*range(len(TEXTS))}
    for place, outcome in outcomes.items():
        report = expected[place]
        assert isinstance(outcome, Values) and not isinstance(report, Exception)
        columns, values = values_of(report)
        assert outcome.columns == columns and outcome.environment == report.environment
        np.testing.assert_allclose(outcome.numbers, values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "settings", [{"sort": "entropy"}, {"statistic": "entropy"}, {"top": 2}, {"rollout": True}]
)
def test_what_chooses_heads_has_a_report(tmp_path: Path, settings: dict[str, object]) -> None:
    given = {"model": str(save_model(tmp_path, "BERT")), **settings}
    specs = [
        build_spec(
            SPECS["heads"], {key: Given(value, key) for key, value in (given | {"sentence": text}).items()}
        )
        for text in TEXTS[:2]
    ]
    (outcomes,) = values_in_buckets(specs, Kept())
    assert not any(isinstance(outcome, Values | Exception) for outcome in outcomes.values())


def test_columns_go_to_another_process_as_their_shapes() -> None:
    """What arrives is the one tuple that this process has of them, however many results name it."""
    shapes = (HeadColumns(tuple((layer, 0, "", ("entropy", "distance")) for layer in range(500))),)
    columns = columns_from_shapes(shapes)
    sent = pickle.dumps([columns, columns])
    assert all(received is columns for received in pickle.loads(sent))
    assert len(sent) < len(pickle.dumps(tuple(columns))) / 2 and columns[3].layer == 1
