"""What heads do over steps, against the survey's own naming of one head at one step."""

import numpy as np
import pytest

from attncli.core.names import HEAD_PATTERNS
from attncli.features.watch.training import (
    PATTERN_NAMES,
    HeadsOverSteps,
    changes,
    forming,
    head_patterns,
    step_rows,
)
from attncli.measure.patterns import pattern_names, pattern_table
from attncli.records.surveys import Stack

STEPS = (0, 7, 20, 31)
SHAPE = (len(STEPS), 3, 5)
NAMES = [pattern.statistic for pattern in HEAD_PATTERNS.values()]


@pytest.fixture(params=[True, False], ids=["starts special", "starts with a word"])
def over(request: pytest.FixtureRequest) -> HeadsOverSteps:
    """Statistics of any size, one pattern with too few rows, and a layer with fewer heads."""
    numbers = np.random.default_rng(len(request.fixturename or ""))
    values = {name: numbers.random(SHAPE) for name in [*NAMES, "entropy", "max_score"]}
    values["duplicate_token"][1, 2, 3] = np.nan
    for statistic in values.values():
        statistic[:, 1, 4] = np.nan
    rows = dict.fromkeys(NAMES, 12) | {"next_token": 4}
    return HeadsOverSteps(Stack("self", rows, request.param), STEPS, values)


def numbers_at(over: HeadsOverSteps, place: int) -> dict[str, np.ndarray]:
    """The statistics of the heads at a step, as the survey has them."""
    rows = over.heads(place)
    return {name: rows.column(name) for name in over.statistics}


def test_patterns_equal_those_of_the_survey(over: HeadsOverSteps) -> None:
    named = head_patterns(over)
    for place in range(len(STEPS)):
        rows = over.heads(place)
        assert len(rows) == 14, "one head is not there"
        names = pattern_names(numbers_at(over, place), over.stack)
        for row, expected in zip(rows, names, strict=True):
            assert PATTERN_NAMES[named[place, row["layer"], row["head"]]] == row["pattern"] == expected


def test_counts_equal_those_of_the_survey_and_determine_first_steps(over: HeadsOverSteps) -> None:
    for row in forming(over):
        for place, count in enumerate(row["count"]):
            numbers = numbers_at(over, place)
            rows = pattern_table(numbers, pattern_names(numbers, over.stack), over.stack)
            assert count == {each.pattern: each.heads for each in rows}[row["pattern"]]
        shown = [step for step, count in zip(STEPS, row["count"], strict=True) if count]
        assert row["first_step"] == shown[0]
        assert row["heads"] == row["count"][-1]
    assert "next token" not in {row["pattern"] for row in forming(over)}, "it has too few rows"


def test_changes_are_between_neighbouring_steps(over: HeadsOverSteps) -> None:
    expected = []
    for place in range(1, len(STEPS)):
        for before, after in zip(over.heads(place - 1), over.heads(place), strict=True):
            if before["pattern"] != after["pattern"]:
                expected.append((STEPS[place], after["layer"], after["head"], after["pattern"]))
    found = [(row["step"], row["layer"], row["head"], row["after"]) for row in changes(over)]
    assert found == expected


def test_a_step_has_extremes_and_means_over_all_heads(over: HeadsOverSteps) -> None:
    rows = step_rows([over], [None, 2.0, 1.0, 0.5])
    assert [row["loss"] for row in rows] == [None, 2.0, 1.0, 0.5]
    for place, row in enumerate(rows):
        heads = over.heads(place)
        assert row["largest_max_score"] == max(head["max_score"] for head in heads)
        assert row["least_entropy"] == min(head["entropy"] for head in heads)
        assert row["mean_sink_mass"] == pytest.approx(np.mean([head["sink_mass"] for head in heads]))
        assert row["induction_heads"] == sum(head["induction"] > 0.4 for head in heads)
    assert "loss" not in step_rows([over], None)[0]
