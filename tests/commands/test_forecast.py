"""The remaining time on the progress line, measured with a fake clock."""

import io
from itertools import count, pairwise
from types import SimpleNamespace

import pytest

from attncli.commands import forecast, output
from attncli.commands.output import ProgressLine
from attncli.core.progress import Stage, Work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


class Clock:
    """A clock that a test sets, and the output on the terminal."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.terminal = Terminal()

    def __call__(self) -> float:
        return self.now

    @property
    def said(self) -> str:
        return self.terminal.getvalue()

    @property
    def last(self) -> str:
        return self.said.splitlines()[-1].strip() if self.said else ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(forecast, "monotonic", found)
    monkeypatch.setattr(output.time, "monotonic", found)
    monkeypatch.setattr(output, "_line", lambda text, _terminal: f"{text}\n")
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=found.terminal))
    return found


def test_a_forecast_needs_several_passes_of_the_same_kind(clock: Clock) -> None:
    """A reading that took longer than estimated does not predict the many runs after it."""
    line = ProgressLine()
    line.stage(Stage("reading", 0.0, 0.01))
    clock.now += 22
    for number in range(1, 11):
        line.stage(Stage("run", 0.01 + 0.099 * (number - 1), 0.01 + 0.099 * number, number, 10))
        assert ("left" in clock.last) == (number >= 4), clock.last
        clock.now += 1.0
    assert "run 10 of 10, about 1 s left" in clock.last
    assert "min" not in clock.said


def test_a_cheap_stage_gives_no_forecast(clock: Clock) -> None:
    line = ProgressLine()
    line.if_long("less takes less")
    for number in range(30):
        line.stage(Stage("reading layer", 0.0005 * number, 0.0005 * (number + 1), number + 1, 30))
        clock.now += 1.0
    assert (
        clock.last.endswith("reading layer 30 of 30")
        and "left" not in clock.said
        and "in all" not in clock.said
    )


def test_the_permanent_line_waits_for_a_steady_forecast(clock: Clock) -> None:
    """Three minutes look like nineteen at first; ten minutes are ten."""
    line = ProgressLine()
    line.if_long("less takes less")
    for number in range(100):
        line.stage(Stage("run", number / 100, (number + 1) / 100, number + 1, 100))
        clock.now += 11.0 if number < 4 else 0.5
    assert "in all" not in clock.said, "what is left is soon done"
    line = ProgressLine()
    line.if_long("less takes less")
    for number in range(100):
        line.stage(Stage("run", number / 100, (number + 1) / 100, number + 1, 100))
        clock.now += 6.0
    assert clock.said.count("about 10 min in all: less takes less") == 1


def test_layers_of_a_stage_are_one_forecast_and_do_not_begin_anew(clock: Clock) -> None:
    """Each of five stages has two runs of 30 layers and a trial run that ends after its first layer."""
    line = ProgressLine()
    line.begin_layer(1, 30)
    lefts = []
    for stage in range(5):
        line.stage(Stage("without source", stage / 5, (stage + 1) / 5, stage + 1, 5, runs=2))
        line.begin_layer(1, 30)
        for layer in [*range(1, 31)] * 2:
            line.begin_layer(layer, 30)
            clock.now += 0.2
            if "left" in clock.last:
                lefts.append(clock.last)
    assert not any("about 0 s left" in text for text in lefts[:-2]) and len(lefts) > 200
    seconds = [int(text.split("about ")[1].split()[0]) for text in lefts if "min" not in text]
    assert all(after <= before + 1 for before, after in pairwise(seconds))
    assert "without source 1 of 5, about" in lefts[0] and "without source 5 of 5" in lefts[-1]


def test_runs_whose_number_is_not_known_have_no_time_left(clock: Clock) -> None:
    line = ProgressLine()
    for run in range(3):
        for layer in range(1, 31):
            line.begin_layer(layer, 30)
            clock.now += 0.5
        assert ("left" in clock.last) == (run == 0)


def test_progress_does_not_overwrite_generated_text(clock: Clock) -> None:
    line = ProgressLine()
    clock.now += 5
    line.write("The answer")
    line.begin_layer(3, 30)
    assert clock.said.endswith("The answer")
    line.write(" ends.\n")
    line.begin_layer(4, 30)
    assert clock.said.endswith("layer 4 of 30\n")


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1310.4, "1,310/s"), (10.0, "10/s"), (9.96, "10/s"), (2.34, "2.3/s"), (0.254, "0.25/s")],
)
def test_a_rate_has_two_digits_where_it_is_slow(rate: float, text: str) -> None:
    assert output.readable_rate(rate) == text


def test_shares_follow_the_known_cost_and_never_fall() -> None:
    told: list[Stage] = []
    work = Work(told.append, 10.0)
    work.begin("reading", 2.0)
    work.begin("writing", 6.0)
    work.expect(4.0)
    numbers = count(1)
    for cost in (2.0, 2.0):
        work.begin("run", cost, next(numbers), 2)
    assert [stage.done for stage in told] == pytest.approx([0, 0.2, 2 / 3, 5 / 6])
    assert [stage.end for stage in told] == pytest.approx([0.2, 0.8, 5 / 6, 1])
    assert [stage.words for stage in told] == ["reading", "writing", "run 1 of 2", "run 2 of 2"]
    work.begin("more", 20.0)
    assert told[-1].done == told[-2].done
