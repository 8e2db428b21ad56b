"""What many texts come to: the moments of every statistic of every head, and the rows that they stand on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.experiments.survey.found_heads import head_numbers, stacks_of
from attncli.experiments.survey.layers import Survey
from attncli.statistics.moments import RunningMoments

NOT_FIRST = "special_mass - sink_mass"
"""What names a head after special tokens, where the first one is special: it has a pattern of its own."""


ROUNDING = 1e-4

Where = Mapping[str, Any]
"""Layer, kind and stack, and the module where it is known."""


class LayerTotals(NamedTuple):
    """The statistics of the heads of a layer over texts: moments by head and statistic."""

    where: Where
    names: tuple[str, ...]
    moments: RunningMoments


@dataclass
class HeadTotals:
    """The totals of every layer so far; of each stack the rows of its statistics, where they are known.

    `starts_special` are the stacks whose texts begin with a special token.
    """

    num_texts: int = 0
    num_tokens: int | None = None
    layers: dict[tuple[Any, ...], LayerTotals] = field(default_factory=dict)
    num_rows: dict[str, Counter[str]] = field(default_factory=dict)
    starts_special: dict[str, bool] = field(default_factory=dict)

    def add_array(self, where: Where, names: Sequence[str], values: np.ndarray) -> None:
        """The same as `add` of what a store has kept, which does not say what texts begin with.

        It shows: no head has more weight on special tokens than on the first where that is one of them.
        """
        self.add(where, names, torch.from_numpy(values))
        lead = values[..., names.index("special_mass")] - values[..., names.index("sink_mass")]
        starts = not (lead < -ROUNDING).any() and not np.isnan(lead).all()
        self.starts_special[where["stack"]] = self.starts_special.get(where["stack"], True) and starts

    def add_rows(self, stack: str, statistic: str, count: int) -> None:
        """Rows of a stack on which a statistic stands."""
        self.num_rows.setdefault(stack, Counter())[statistic] += count

    def add(self, where: Where, names: Sequence[str], values: Float[Tensor, "text head statistic"]) -> None:
        """The statistics of one layer on some texts."""
        if "special_mass" in names:
            not_first = values[..., names.index("special_mass")] - values[..., names.index("sink_mass")]
            names = (*names, NOT_FIRST)
            values = torch.cat([values, not_first.unsqueeze(-1)], dim=-1)
        key = (*where.values(), values.shape[1])
        moments = RunningMoments.of(values)
        if key in self.layers:
            moments = self.layers[key].moments + moments
        self.layers[key] = LayerTotals(where, tuple(names), moments)

    def add_survey(self, survey: Survey) -> None:
        """What was found on the texts of a survey."""
        num_texts = len(survey.ids)
        self.num_texts += num_texts
        found = {
            place: (numbers.names, values.cpu())
            for numbers in head_numbers(survey)
            for place, values in zip(numbers.places, numbers.values, strict=True)
        }
        for place, layer in enumerate(survey.layers):
            self.add(layer.where, *found[place])
        for text in range(num_texts):
            for name, stack in stacks_of(survey, text).items():
                self.num_rows.setdefault(name, Counter()).update(stack.num_rows)
                self.starts_special[name] = self.starts_special.get(name, True) and stack.starts_special
