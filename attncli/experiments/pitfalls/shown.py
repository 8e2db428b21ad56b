"""What a mistake is made of, and what it leaves behind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.inputs.projections import sample_linear
from attncli.report import Table
from attncli.spec.pitfalls import PitfallsSpec

Figures = dict[str, float | int]


@dataclass(frozen=True)
class Start:
    """What a wrong and a right computation start from alike: the tokens, their vectors, a generator."""

    spec: PitfallsSpec
    tokens: tuple[str, ...]
    vectors: Float[Tensor, "token dim"]
    generator: torch.Generator


@dataclass(frozen=True)
class Shown:
    """The same tensor computed both ways, and the figures of both, by the same names.

    `tensors` are further pairs (wrong, right) by name with their axes; `statistics` more to show.
    """

    name: str
    axes: tuple[str, ...]
    wrong: Tensor
    right: Tensor
    wrong_figures: Figures
    right_figures: Figures
    more: Mapping[str, tuple[tuple[str, ...], Tensor, Tensor]] = field(default_factory=dict)
    statistics: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Pitfall:
    """A mistake in short and in a sentence, its tell-tale figure, how to notice it, both computations."""

    summary: str
    mistake: str
    figure: str
    notice: str
    show: Callable[[Start], Shown]


def projected_scores(numbers: Start) -> Float[Tensor, "query key"]:
    """(x W_Q) (x W_K)^T / sqrt(d), with projections as torch.nn.Linear starts them."""
    dim = numbers.vectors.shape[-1]
    query, key = (
        numbers.vectors @ sample_linear(dim, dim, numbers.generator).to(numbers.vectors.device).mT
        for _ in range(2)
    )
    scores: Tensor = query @ key.mT / dim**0.5
    return scores


def figures_of_both(
    wrong: Tensor, right: Tensor, figures: Mapping[str, Callable[[Tensor], Tensor]]
) -> tuple[Figures, Figures]:
    """Each figure of the wrong and of the right tensor."""
    first, second = (
        {name: figure(tensor).item() for name, figure in figures.items()} for tensor in (wrong, right)
    )
    return first, second


def weight_on_future(weights: Float[Tensor, "query key"]) -> Tensor:
    """The share of each row that lies on later keys, the mean over rows."""
    return weights.triu(1).sum(dim=-1).mean()


def mean_max_weight(weights: Float[Tensor, "query key"]) -> Tensor:
    """The largest weight of each row, the mean over rows: 1 where all are one-hot."""
    return weights.amax(dim=-1).mean()
