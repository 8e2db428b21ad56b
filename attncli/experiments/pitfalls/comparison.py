"""What a mistake starts from, and its wrong and right results side by side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.experiments.attention_report import named
from attncli.inputs.vectors import sample_linear
from attncli.report import NamedTensor, Numbers, Table, pair_names
from attncli.spec.pitfalls import PitfallsSpec


@dataclass(frozen=True)
class Start:
    """What a wrong and a right computation both start from: the tokens, their vectors, a generator."""

    spec: PitfallsSpec
    tokens: tuple[str, ...]
    vectors: Float[Tensor, "token dim"]
    generator: torch.Generator

    def projected_scores(self) -> Float[Tensor, "query key"]:
        """(x W_Q) (x W_K)^T / sqrt(d), with projections as torch.nn.Linear starts them."""
        dim, device = self.vectors.shape[-1], self.vectors.device
        query, key = (self.vectors @ sample_linear(dim, dim, self.generator).to(device).mT for _ in range(2))
        scores: Tensor = query @ key.mT / dim**0.5
        return scores


@dataclass(frozen=True)
class Comparison:
    """Tensors computed both ways, the metrics of both under the same names, and further tables."""

    tensors: Mapping[str, NamedTensor]
    wrong: Numbers
    right: Numbers
    tables: Mapping[str, Table] = field(default_factory=dict)


def pair(
    name: str, wrong: Tensor, right: Tensor, axes: tuple[str, ...] = ("query", "key")
) -> dict[str, NamedTensor]:
    """The wrong and the right tensor by their names in a report."""
    return {own: named(tensor, *axes) for own, tensor in zip(pair_names(name), (wrong, right), strict=True)}


def compared_weights(
    wrong: Float[Tensor, "query key"],
    right: Float[Tensor, "query key"],
    metrics: Mapping[str, Callable[[Tensor], Tensor]],
) -> Comparison:
    """Weights computed both ways, and each metric of them."""
    of_wrong, of_right = (
        Numbers((name, metric(weights).item()) for name, metric in metrics.items())
        for weights in (wrong, right)
    )
    return Comparison(pair("weights", wrong, right), of_wrong, of_right)
