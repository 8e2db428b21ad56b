"""Values of a survey that goes into a store, computed without a report, against those of its report."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def specs_of(model: Path, texts: Sequence[str], **settings: object) -> list[Any]:
    given = {"model": str(model), **settings}
    return [
        build_spec(
            SPECS["heads"], {key: Given(value, key) for key, value in (given | {"sentence": text}).items()}
        )
        for text in texts
    ]


@pytest.mark.parametrize(
    "architecture, settings",
    [
        ("BERT", {"words": True}),
        ("Llama", {}),
        ("GPT-OSS", {"skip_sink": 1}),
        ("Mistral", {"weighted": True}),
        ("T5", {"context": "a dog"}),
    ],
)
def test_values_equal_those_of_the_reports(
    tmp_path: Path, architecture: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = specs_of(save_model(tmp_path, architecture), TEXTS, **settings)
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


@pytest.mark.parametrize("settings", [{"sort": "entropy"}, {"statistic": "entropy"}, {"rollout": True}])
def test_settings_that_choose_heads_need_reports(tmp_path: Path, settings: dict[str, object]) -> None:
    specs = specs_of(save_model(tmp_path, "BERT"), TEXTS[:2], **settings)
    (outcomes,) = values_in_buckets(specs, Kept())
    assert not any(isinstance(outcome, Values | Exception) for outcome in outcomes.values())


def test_columns_are_pickled_as_shapes() -> None:
    """Unpickling gives the one tuple that this process has, however many results refer to it."""
    shapes = (HeadColumns(tuple((layer, 0, "", ("entropy", "distance")) for layer in range(500))),)
    columns = columns_from_shapes(shapes)
    sent = pickle.dumps([columns, columns])
    assert all(received is columns for received in pickle.loads(sent))
    assert len(sent) < len(pickle.dumps(tuple(columns))) / 2 and columns[3].layer == 1
