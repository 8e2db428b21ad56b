"""The heads of a model, and the choice of heads to remove."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attncli.core.names import RemovalMethod
from attncli.errors import UserError
from attncli.measure.patterns import most_frequent_pattern
from attncli.models.pretrained import Pretrained
from attncli.models.projected_heads import LINEAR
from attncli.models.removal import HeadPlace, ModelHead, head_index
from attncli.models.removal_runs import RemovalRuns

SAMPLED_HEADS = 16
"""The number of heads, spread evenly over the ranking, that are removed to check the approximation."""


@dataclass(frozen=True)
class HeadsOfModel:
    """The heads of a model in the order of its calls, followed by the heads without a softmax.

    `places` contains the place of each head among the calls. `mixers` maps the number of each head without a
    softmax to the kind of its layer.
    """

    pretrained: Pretrained
    heads: Sequence[ModelHead]
    places: Sequence[HeadPlace]
    mixers: Mapping[int, str]

    @classmethod
    def from_run(
        cls,
        pretrained: Pretrained,
        run: RemovalRuns,
        heads: Sequence[ModelHead],
        places: Sequence[HeadPlace],
    ) -> "HeadsOfModel":
        """Combine the given heads, which have a softmax, with the heads of the run that have no softmax."""
        heads, places, mixers = [*heads], [*places], dict[int, str]()
        attending = {head.layer for head in heads}
        has_both = any(linear.captured.layer in attending for linear in run.linear)
        stack = LINEAR if has_both else heads[0].stack
        for call, linear in enumerate(run.linear, start=run.num_softmax):
            module = pretrained.module_name(linear.module)
            for head in range(linear.num_heads):
                mixers[len(heads)] = linear.mixer
                heads.append(ModelHead(linear.captured.layer, module, LINEAR, stack, head))
                places.append(HeadPlace(call, head))
        return cls(pretrained, heads, places, mixers)

    @property
    def num_softmax(self) -> int:
        """The number of heads with a softmax."""
        return len(self.heads) - len(self.mixers)

    def chosen(self, names: Sequence[str], method: RemovalMethod, ranking: Tensor | None) -> list[int]:
        """Return the numbers of the heads to remove: the named heads, a sample of the ranking, or all heads.

        Raises UserError for a name that no head has, and for a head that `method` cannot remove.
        """
        if names:
            return [self._number(name, method) for name in names]
        if method == "sink":
            return [number for number in range(len(self.heads)) if number not in self.mixers]
        if ranking is None:
            return [*range(len(self.heads))]
        order = ranking.argsort(descending=True, stable=True)
        spread = torch.linspace(0, len(order) - 1, min(SAMPLED_HEADS, len(order))).round().long()
        return sorted(order[spread].tolist())

    def _number(self, name: str, method: RemovalMethod) -> int:
        number = head_index(self.heads, name, "heads", self.pretrained)
        if method == "sink" and number in self.mixers:
            reason = f"{name} belongs to a {self.mixers[number]} layer: use zero, mean or swap"
            raise UserError(f"method: sink needs heads with a softmax, but {reason}")
        return number

    def row(self, number: int, patterns: Sequence[str]) -> dict[str, object]:
        """Return the cells that name a head, with its most frequent pattern.

        For a head without a softmax, the pattern is the kind of its layer.
        """
        pattern = self.mixers[number] if number in self.mixers else most_frequent_pattern(patterns)
        return {**self.heads[number]._asdict(), "pattern": pattern}

    def by_layer(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        """Return the rows of all heads, sorted by layer."""
        return sorted(rows, key=lambda row: int(str(row["layer"]))) if self.mixers else rows

    def reader_place(self, name: str) -> HeadPlace:
        """Return the place of the head `into`. Raises UserError if that head has no softmax."""
        number = head_index(self.heads, name, "into", self.pretrained)
        if number in self.mixers:
            raise UserError(
                f"into: must be a head with a softmax (got {name}, in a {self.mixers[number]} layer)"
            )
        return self.places[number]

    def before(self, reader: HeadPlace, numbers: Sequence[int]) -> list[int]:
        """Return those heads among `numbers` whose layer comes before that of the reader."""
        layer = self.heads[self.places.index(reader)].layer
        return [
            number
            for number in numbers
            if (
                self.heads[number].layer < layer
                if number in self.mixers
                else self.places[number].call < reader.call
            )
        ]
