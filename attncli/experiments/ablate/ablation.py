"""Every head removed in turn, on every text, and what that does."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby

import torch
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.ablate.effects import Baseline, Effects, gate_gradients
from attncli.experiments.ablate.named_heads import index_of_head
from attncli.experiments.ablate.predicted import Predicted
from attncli.experiments.ablate.removal import HeadPlace, Removal, Removed, mean_outputs
from attncli.experiments.ablate.text_run import TextRun
from attncli.experiments.survey.found_heads import found_texts
from attncli.experiments.survey.head_patterns import HeadRow
from attncli.experiments.survey.layers import Survey
from attncli.experiments.survey.reading import survey_of
from attncli.inputs.models.pretrained import Pretrained
from attncli.spec.models.ablate import AblateSpec
from attncli.statistics.intervals import mean_interval
from attncli.statistics.ranks import rank_correlation

WHERE = ("layer", "module", "kind", "stack", "head")
SAMPLED_HEADS = 16
"""Heads that are removed exactly beside the approximation, evenly spread over its order."""


class Ablation:
    """Removes heads from a model on some texts, and keeps the effects of each."""

    def __init__(
        self,
        spec: AblateSpec,
        readings: Sequence[Predicted],
        pretrained: Pretrained,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.spec = spec
        self.readings = readings
        self.pretrained = pretrained
        self.progress = progress
        self.heads: list[HeadRow] = []
        self.chosen: list[int] = []
        self.removed: list[list[HeadPlace]] = []
        self.patterns: list[Counter[str]] = []
        self.effects: list[list[Effects]] = []
        self.baselines: list[Effects] = []
        self.gradients: list[Tensor] = []
        self.notes: dict[str, None] = {}

    def run(self) -> None:
        """All texts. UserError for heads that are not there, and for what the model cannot do."""
        if self.spec.approximate:
            if not self.readings[0].num_places:
                name = self.pretrained.name
                raise UserError(f"approximate: {name} has no head that predicts tokens, and so no loss")
            self.gradients = [
                torch.cat(gate_gradients(self.pretrained, reading)) for reading in self.readings
            ]
        means: list[Tensor] = []
        if self.spec.method == "mean":
            inputs = (self.pretrained.inputs([reading]) for reading in self.readings)
            means = mean_outputs(self.pretrained.whole, inputs)
        removal = Removal(self.spec.method, means)
        for number, reading in enumerate(self.readings):
            self._run_text(reading, removal, number)

    def _run_text(self, reading: Predicted, removal: Removal, number: int) -> None:
        with ExitStack() as hooks:
            survey = Survey([survey_of(self.spec)], [reading], self.pretrained, None, hooks)
            run = TextRun(self.pretrained, reading, survey.take)
        self.notes |= dict.fromkeys(run.way.notes())
        rows = found_texts(survey)[0].rows
        if not self.heads:
            self._choose(rows, list(_places(survey)))
        for row, counter in zip(rows, self.patterns, strict=True):
            counter[row["pattern"]] += 1
        baseline = Baseline(run.output, reading)
        self.baselines.append(baseline.numbers)
        found: list[Effects] = [{}] * len(self.removed)
        done = 0
        for some in _batches(run, self.removed):
            effects = baseline.effects(run.without([self.removed[i] for i in some], removal))
            for i, effect in zip(some, effects, strict=True):
                found[i] = effect
            done += len(some)
            if self.progress is not None:
                self.progress((number + done / len(self.removed)) / len(self.readings))
        self.effects.append(found)

    def _choose(self, rows: Sequence[HeadRow], places: Sequence[HeadPlace]) -> None:
        """The heads that are removed exactly: those named, or all; of an approximation a sample.

        Each is removed in a run of its own; with `jointly`, one more run is without all of them.
        """
        self.heads = [{name: row[name] for name in WHERE} for row in rows]
        self.patterns = [Counter() for _ in rows]
        self.chosen = list(range(len(rows)))
        if names := self.spec.named_heads:
            self.chosen = [index_of_head(self.heads, name, "heads", self.pretrained) for name in names]
        elif self.spec.approximate:
            order = self._approximate().argsort(descending=True, stable=True)
            spread = torch.linspace(0, len(order) - 1, min(SAMPLED_HEADS, len(order))).round().long()
            self.chosen = sorted(order[spread].tolist())
        together = [places[index] for index in self.chosen]
        self.removed = [[place] for place in together] + ([together] if self.spec.jointly else [])

    def _approximate(self) -> Tensor:
        """The mean of |d loss / d gate| over the texts, for each head."""
        return torch.stack(self.gradients).mean(dim=0)

    def _exact(self) -> list[Effects]:
        """The effects of each chosen head over the texts."""
        return _over_texts([found[: len(self.chosen)] for found in self.effects])

    def rows(self) -> list[HeadRow]:
        """One for each head that was measured: where it is, what it looks at, and what is lost without it."""
        exact = dict(zip(self.chosen, self._exact(), strict=True))
        nothing: dict[str, float | None] = dict.fromkeys(exact[self.chosen[0]])
        approximate = self._approximate().tolist() if self.gradients else []
        rows = []
        for index in range(len(self.heads)) if approximate else self.chosen:
            ((pattern, _),) = self.patterns[index].most_common(1)
            row = {**self.heads[index], "pattern": pattern, **exact.get(index, nothing)}
            rows.append(row | ({"approximate": approximate[index]} if approximate else {}))
        return rows

    @property
    def baseline(self) -> Effects:
        """The numbers with all heads, means over the texts."""
        return _over_texts([[numbers] for numbers in self.baselines])[0]

    def together(self) -> dict[str, dict[str, float]]:
        """The effects of all chosen heads at once; how well the approximation orders the heads."""
        joint: dict[str, float] = {}
        if self.spec.jointly:
            (joint,) = _over_texts([found[-1:] for found in self.effects])
        if not self.gradients:
            return {"joint": joint}
        losses = torch.tensor([effects["loss"] for effects in self._exact()], dtype=torch.float64).abs()
        correlation = rank_correlation(self._approximate()[self.chosen], losses).item()
        return {"joint": joint, "approximation": {"rank_correlation": correlation, "heads": len(losses)}}


def _places(survey: Survey) -> Iterator[HeadPlace]:
    """Each head in the order of a survey's rows."""
    for call, layer in enumerate(survey.layers):
        assert layer.found.sums is not None
        for head in range(layer.found.sums.shape[1]):
            yield HeadPlace(call, head)


def _batches(run: TextRun, removed: Sequence[Removed]) -> Iterator[list[int]]:
    """The indices of what runs together: what begins at the same block."""

    def block(index: int) -> int:
        return run.block_of(min(place.call for place in removed[index]))

    size = run.num_together()
    for _, indices in groupby(sorted(range(len(removed)), key=block), key=block):
        alike = list(indices)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _over_texts(found: Sequence[Sequence[Effects]]) -> list[Effects]:
    """The means of each head's effects over the texts and, with several texts, their 95 % intervals."""
    names = list(found[0][0])
    if not names:
        return [{} for _ in found[0]]
    numbers = torch.tensor(
        [[[one[name] for name in names] for one in text] for text in found], dtype=torch.float64
    )
    means = numbers.mean(dim=0)
    ends: dict[str, Tensor] = {"": means}
    if len(found) > 1:
        squares = (numbers - means).square().sum(dim=0)
        count = torch.full(means.shape, len(found))
        ends["_low"], ends["_high"] = mean_interval(count, means, squares)
    return [
        {
            f"{name}{end}": values[head, column].item()
            for column, name in enumerate(names)
            for end, values in ends.items()
        }
        for head in range(len(means))
    ]
