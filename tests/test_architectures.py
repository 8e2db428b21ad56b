"""The numbers of each class of architecture against the eager attention of transformers."""

from pathlib import Path

import pytest

from tests.conftest import some_seldom
from tools.architecture_sweep.check import check
from tools.architecture_sweep.predicting import check_predicting
from tools.architecture_sweep.sample import LOCAL, PREDICTING, RIGHT, SAMPLE, SELDOM, SELDOM_PREDICTING


@pytest.mark.parametrize("name", some_seldom(SAMPLE, SELDOM))
def test_a_model_is_measured_correctly_or_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    """`python -m tools.architecture_sweep FILE` does the same for every architecture."""
    result = check(name, tmp_path / "model", predicting=False)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.verdict != "not testable", result.reason
    if name in RIGHT:
        assert result.verdict == "right", result.refused or result.reason
    assert result.local or name not in LOCAL, "no window is smaller than the text"


@pytest.mark.parametrize("name", some_seldom(PREDICTING, SELDOM_PREDICTING))
def test_text_and_loss_without_a_head(name: str, tmp_path: Path) -> None:
    """Oracles: a run on the whole sequence, hooks that zero a head's input to W_O, the model's logits."""
    outcomes = check_predicting(name, tmp_path / "model")
    wrong = [line for outcome in outcomes.values() for line in outcome.wrong]
    assert not wrong, "\n".join(wrong)
    compared = tuple(command for command, outcome in outcomes.items() if outcome.compared)
    assert compared == PREDICTING[name]
