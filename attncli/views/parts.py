"""The parts of a report by the names that --show takes."""

from collections.abc import Sequence
from dataclasses import replace

from attncli.report import NamedTensor, Report, Tensors
from attncli.views.matrices import ATTENTION_AXES

SCORES = ("scores", "scaled_scores")


def part_of_tensor(name: str, tensor: NamedTensor) -> str:
    """The part that a tensor belongs to, but for what only `all` shows: input, projections, curves."""
    if name in SCORES:
        return "scores"
    if tensor.axes[-2:] in ATTENTION_AXES:
        return "weights"
    return "output" if name == "output" else "all"


def part_of_statistic(name: str, report: Report) -> str:
    """The part that a group of statistics belongs to: of each row and key, or of everything."""
    return "rows" if isinstance(report.statistics[name], Tensors) else "statistics"


def parts_of(report: Report) -> list[str]:
    """The parts that a report has."""
    found = {part_of_tensor(name, tensor) for name, tensor in report.tensors.items()}
    found |= {part_of_statistic(name, report) for name in report.statistics}
    return [part for part in ("weights", "scores", "rows", "output", "statistics") if part in found]


def missing_parts(parts: Sequence[str], found: Sequence[str]) -> list[str]:
    """What is said of each part that was asked for and is not there."""
    has = ", ".join(found) or "no part of its own: --show all"
    return [
        f"there is no part {part} in this report; it has {has}"
        for part in parts
        if part not in (*found, "all")
    ]


def chosen_parts(report: Report, parts: Sequence[str]) -> Report:
    """The report with the tensors and statistics of these parts alone."""
    if "all" in parts:
        return report
    return replace(
        report,
        tensors={name: t for name, t in report.tensors.items() if part_of_tensor(name, t) in parts},
        statistics={
            name: statistic
            for name, statistic in report.statistics.items()
            if part_of_statistic(name, report) in parts
        },
    )
