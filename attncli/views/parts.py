"""The parts of a report by the names that --show takes."""

from collections.abc import Sequence
from dataclasses import replace

from attncli.report import NamedTensor, Report, Statistic, Tensors
from attncli.views.matrices import ATTENTION_AXES

SCORES = ("scores", "scaled_scores")


def _part_of_tensor(name: str, tensor: NamedTensor) -> str:
    """The part that a tensor belongs to; `all` for input, projections and curves."""
    if name in SCORES:
        return "scores"
    if tensor.axes[-2:] in ATTENTION_AXES:
        return "weights"
    return "output" if name == "output" else "all"


def _part_of_statistic(statistic: Statistic) -> str:
    return "rows" if isinstance(statistic, Tensors) else "statistics"


def parts_of(report: Report) -> list[str]:
    """The parts that a report has."""
    found = {_part_of_tensor(name, tensor) for name, tensor in report.tensors.items()}
    found |= {_part_of_statistic(statistic) for statistic in report.statistics.values()}
    return [part for part in ("weights", "scores", "rows", "output", "statistics") if part in found]


def missing_parts(parts: Sequence[str], found: Sequence[str]) -> list[str]:
    """A message for each part that was asked for and is not there."""
    has = ", ".join(found) or "no part of its own: --show all"
    missing = [part for part in parts if part not in (*found, "all")]
    return [f"there is no part {part} in this report; it has {has}" for part in missing]


def chosen_parts(report: Report, parts: Sequence[str]) -> Report:
    """The report with the tensors and statistics of these parts alone."""
    if "all" in parts:
        return report
    return replace(
        report,
        tensors={name: t for name, t in report.tensors.items() if _part_of_tensor(name, t) in parts},
        statistics={
            name: statistic
            for name, statistic in report.statistics.items()
            if _part_of_statistic(statistic) in parts
        },
    )
