"""Every head taken out in turn, on every text, and what that does."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.ablate.effects import Baseline, Effects
from attncli.experiments.ablate.gates import gate_gradients
from attncli.experiments.ablate.named_heads import index_of_head
from attncli.experiments.ablate.predicted import Predicted
from attncli.experiments.ablate.removal import HeadPlace, Removal, Removed, mean_outputs
from attncli.experiments.ablate.text_run import TextRun
from attncli.experiments.survey.found_heads import found_texts
from attncli.experiments.survey.layers import Survey
from attncli.experiments.survey.reading import survey_of
from attncli.inputs.models.pretrained import Pretrained
from attncli.spec.models.ablate import AblateSpec
from attncli.statistics.intervals import mean_interval
from attncli.statistics.ranks import rank_correlation

WHERE = ("layer", "module", "kind", "stack", "head")
SAMPLED_HEADS = 16
"""That are done exactly beside the approximation, evenly spread over its order."""


class Ablation:
    """Takes heads out of a model on some texts, and keeps the effects of each."""

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
        self.heads: list[dict[str, Any]] = []
        self.places: list[HeadPlace] = []
        self.patterns: list[Counter[str]] = []
        self.effects: list[list[Effects]] = []
        self.baselines: list[Effects] = []
        self.gradients: list[Tensor] = []

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
        rows = found_texts(survey)[0].rows
        if not self.heads:
            self.heads = [{name: row[name] for name in WHERE} for row in rows]
            self.patterns = [Counter() for _ in rows]
            self.places = list(_places(survey))
            self.chosen = self._chosen()
        for row, counter in zip(rows, self.patterns, strict=True):
            counter[row["pattern"]] += 1
        baseline = Baseline(run.output, reading)
        self.baselines.append(baseline.numbers)
        removed = self._removed()
        found: list[Effects] = [{}] * len(removed)
        done = 0
        for some in _batches(run, removed):
            effects = baseline.effects(run.without([removed[i] for i in some], removal))
            for i, effect in zip(some, effects, strict=True):
                found[i] = effect
            done += len(some)
            if self.progress is not None:
                self.progress((number + done / len(removed)) / len(self.readings))
        self.effects.append(found)

    def _chosen(self) -> list[int]:
        """The heads that are done exactly: those that are named, or all; of an approximation some of them."""
        if self.spec.named_heads:
            names = self.spec.named_heads
            return [index_of_head(self.heads, name, "heads", self.pretrained) for name in names]
        if not self.spec.approximate:
            return list(range(len(self.heads)))
        order = self._approximate().argsort(descending=True, stable=True)
        count = min(SAMPLED_HEADS, len(order))
        spread = torch.linspace(0, len(order) - 1, count).round().long()
        return sorted(order[spread].tolist())

    def _removed(self) -> list[Removed]:
        """What is taken out of one run each: every head that was chosen; all of them."""
        removed: list[Removed] = [(self.places[number],) for number in self.chosen]
        return [*removed, [self.places[number] for number in self.chosen]] if self.spec.jointly else removed

    def _approximate(self) -> Tensor:
        """The mean of |d loss / d gate| over the texts, for each head."""
        return torch.stack(self.gradients).mean(dim=0)

    def rows(self) -> list[dict[str, Any]]:
        """One for each head that was measured: where it is, what it looks at, and what is lost without it."""
        numbers = _over_texts([found[: len(self.chosen)] for found in self.effects])
        exact = dict(zip(self.chosen, numbers, strict=True))
        nothing: dict[str, float | None] = dict.fromkeys(numbers[0])
        approximate = self._approximate().tolist() if self.gradients else []
        rows = []
        for number in range(len(self.heads)) if approximate else self.chosen:
            ((pattern, _),) = self.patterns[number].most_common(1)
            row = {**self.heads[number], "pattern": pattern, **exact.get(number, nothing)}
            rows.append(row | ({"approximate": approximate[number]} if approximate else {}))
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
        exact = _over_texts([found[: len(self.chosen)] for found in self.effects])
        losses = torch.tensor([effects["loss"] for effects in exact], dtype=torch.float64).abs()
        correlation = rank_correlation(self._approximate()[self.chosen], losses).item()
        return {"joint": joint, "approximation": {"rank_correlation": correlation, "heads": len(losses)}}


def _places(survey: Survey) -> Iterator[HeadPlace]:
    """Each head in the order of a survey's rows."""
    for call, layer in enumerate(survey.layers):
        assert layer.found.sums is not None
        for head in range(layer.found.sums.shape[1]):
            yield HeadPlace(call, head)


def _batches(run: TextRun, removed: Sequence[Removed]) -> Iterator[list[int]]:
    """The places of what runs together: what begins at the same block."""

    def block(number: int) -> int:
        return run.block_of(min(place.call for place in removed[number]))

    size = run.num_together()
    for _, places in groupby(sorted(range(len(removed)), key=block), key=block):
        alike = list(places)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _over_texts(found: Sequence[Sequence[Effects]]) -> list[Effects]:
    """Of the effects of some heads on each text the means and, of several texts, their 95 % intervals."""
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
