"""Compare ways to read a model by how well they predict what an answer loses without its sources.

Removing the most relevant (MoRF) or the least relevant (LeRF) sources first: Samek et al. 2017, 1509.06321.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import nan
from statistics import fmean
from typing import NamedTuple

import torch

from attncli.core.summaries import mean_interval
from attncli.errors import UserError
from attncli.features.explanations.explanations import (
    ReadAnswer,
    chosen_ways,
    correlation,
    first_agrees,
    loss_ranks,
    num_passes,
    score_ranks,
    scored,
)
from attncli.features.explanations.results import (
    ComparedWay,
    ComparedWays,
    Explained,
    ExplainedOutput,
    PromptWay,
    RefusedWay,
    first_ranked,
)

REMOVAL = "removal"
"""The order by the loss without each source, which is close to the best order of single sources."""
MEASURES = ("gap", "morf", "lerf", "spearman", "over_position")


def removal_steps(num_sources: int) -> list[int]:
    """Return the numbers of sources to remove: 1, 2, 4, ..., and finally all sources."""
    steps, step = [], 1
    while step < num_sources:
        steps.append(step)
        step *= 2
    return [*steps, num_sources]


class RemovalCurves(NamedTuple):
    """Areas under the loss per token when the first, or the last, sources of an order are removed first."""

    morf: float
    lerf: float


def rank_orders(ranks: Sequence[int]) -> list[list[int]]:
    """Return the sources sorted by rank, with ties in text order and with ties in reverse text order."""
    forwards = sorted(range(len(ranks)), key=lambda place: (ranks[place], place))
    return [forwards, sorted(forwards, key=lambda place: (ranks[place], -place))]


def removal_curves(answer: ReadAnswer, rankings: Sequence[Sequence[int]]) -> list[RemovalCurves]:
    """Compute the areas under the removal curves for each list of ranks.

    An area is the trapezoidal mean over the removed share, at 1, 2, 4, ... sources. Tied sources are removed
    in text order and in reverse text order, and the two areas are averaged, so that constant ranks have no
    gap. All sets of sources that the curves need are run together, and each set only once.
    """
    count, steps = answer.num_sources, removal_steps(answer.num_sources)
    masks = torch.ones(len(rankings), 2, 2, len(steps), count, dtype=torch.bool)
    for place, ranks in enumerate(rankings):
        for way_round, order in enumerate(rank_orders(ranks)):
            for number, step in enumerate(steps):
                masks[place, way_round, 0, number, order[:step]] = False
                masks[place, way_round, 1, number, order[count - step :]] = False
    losses = answer.losses(masks.flatten(0, 3)).view(masks.shape[:4]) / answer.num_explained
    shares = [0.0, *(step / count for step in steps)]
    widths = torch.tensor([after - before for before, after in pairwise(shares)], dtype=torch.float64)
    starts = torch.cat([torch.zeros_like(losses[..., :1]), losses[..., :-1]], dim=-1)
    areas = ((starts + losses) / 2 * widths).sum(dim=-1).mean(dim=1)
    return [RemovalCurves(morf, lerf) for morf, lerf in areas.tolist()]


class WaysTotals:
    """The comparisons of ways to read, collected over prompts."""

    def __init__(self, ways: Sequence[str] = ()) -> None:
        self.names = chosen_ways(ways)
        self.refused: dict[str, str] = {}
        self.rows: list[dict[str, str | int | float | None]] = []
        self.rights: dict[str, list[int]] = {}
        self.counts: list[tuple[int, int]] = []
        self.num_runs = 0
        self.num_with_equal = 0
        self.kind: Explained = "answer"
        self.positions: list[str] = []

    def add(self, prompt: str, answer: ReadAnswer, right: int | None = None) -> None:
        """Compare the ways on a prompt; `right` is the number of the right source, if known.

        A way that does not apply to one prompt is dropped from all prompts.
        """
        result = scored(answer, [name for name in self.names if name not in self.refused])
        self.refused |= result.refused
        number = len(self.counts) + 1
        ranks = {name: score_ranks(way_scores.sources) for name, way_scores in result.scores.items()}
        orders = answer.orders(number)
        self.positions = [*orders]
        ranks |= {name: score_ranks(order) for name, order in orders.items()}
        ranks[REMOVAL] = removal_ranks = loss_ranks(answer)
        self.num_runs, self.kind = answer.num_runs, answer.kind
        self.counts.append((answer.num_sources, answer.run.num_prompt))
        self.num_with_equal += bool(answer.texts_alike)
        curves = removal_curves(answer, [*ranks.values()])
        for (name, way_scores), (morf, lerf) in zip(ranks.items(), curves, strict=True):
            first = first_ranked(way_scores)
            row: dict[str, str | int | float | None] = {"prompt": prompt, "way": name, "first": first}
            row |= {"gap": morf - lerf, "morf": morf, "lerf": lerf}
            row["spearman"] = correlation(way_scores, removal_ranks)
            row["first_agrees"] = first_agrees(way_scores, removal_ranks)
            self.rows.append(row)
            if right is not None:
                self.rights.setdefault(name, []).append(int(first == right))

    def equal_notes(self) -> Iterator[str]:
        """Yield a note if several sources of a prompt have the same text."""
        if self.num_with_equal:
            prompts = f"{self.num_with_equal} of {len(self.counts)} prompts"
            yield f"In {prompts} several sources hold the same text: removing one of these may lose nothing."

    def result(self, notes: Iterable[str] = ()) -> ComparedWays:
        """Return the ways over all prompts, best first. Raises UserError if no way applies to the model."""
        names = [name for name in self.names if name not in self.refused]
        if not names:
            raise UserError(*(f"{name}: {reason}" for name, reason in self.refused.items()))
        position = max(self.positions, key=lambda name: fmean(self._numbers(name, "gap")))
        rows = [self._compared(name, position) for name in (*names, REMOVAL, *self.positions)]
        included = {*names, REMOVAL, *self.positions}
        return ComparedWays(
            ways=ComparedWay.rows(rows).sorted(lambda row: -(row.gap or 0.0)),
            prompts=PromptWay.rows(
                {key: row[key] for key in ("prompt", "way", "gap", "morf", "lerf", "spearman", "first")}
                for row in self.rows
                if row["way"] in included
            ),
            refused=RefusedWay.table(refused=[*self.refused], reason=[*self.refused.values()])
            if self.refused
            else None,
            position=position,
            explained=ExplainedOutput.rows([{"kind": self.kind, "output": None, "value": None}]),
            num_prompts=len(self.counts),
            mean_sources=fmean(count for count, _ in self.counts),
            mean_tokens=fmean(count for _, count in self.counts),
            notes=tuple(notes),
        )

    def _numbers(self, way: str, name: str) -> list[float]:
        """Return a column of a way's rows, with NaN in place of missing numbers."""
        cells = [row[name] for row in self.rows if row["way"] == way]
        return [float(cell) if isinstance(cell, int | float) else nan for cell in cells]

    def _compared(self, name: str, position: str) -> dict[str, str | int | float | None]:
        numbers = {measure: self._numbers(name, measure) for measure in MEASURES[:-1]}
        position_gaps = self._numbers(position, "gap")
        pairs = zip(numbers["gap"], position_gaps, strict=True)
        numbers["over_position"] = [gap - position_gap for gap, position_gap in pairs]
        kind = "ordering" if name in self.positions else "reference" if name == REMOVAL else "way"
        runs = 0.0 if name in self.positions else fmean(count for count, _ in self.counts)
        row: dict[str, str | int | float | None] = {"way": name, "kind": kind, "prompts": len(self.counts)}
        for measure in MEASURES:
            mean, low, high = _mean(numbers[measure])
            row |= {measure: mean, f"{measure}_low": low, f"{measure}_high": high}
        lowest = row["over_position_low"]
        rights = self.rights.get(name)
        return row | {
            "first": _mean(self._numbers(name, "first_agrees"))[0],
            "right": fmean(rights) if rights else None,
            "is_better": None if kind != "way" or lowest is None else int(float(lowest) > 0),
            "runs": float(num_passes(name, self.num_runs)) if kind == "way" else runs,
        }


def _mean(numbers: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean of the numbers that are not NaN and, if there are several, its 95 % interval."""
    finite = torch.tensor([number for number in numbers if number == number], dtype=torch.float64)
    if not len(finite):
        return None, None, None
    mean = finite.mean()
    if len(finite) < 2:
        return float(mean), None, None
    low, high = mean_interval(torch.tensor(len(finite)), mean, (finite - mean).square().sum())
    return float(mean), float(low), float(high)
