"""The result of `attn average`: its weights and their statistics."""

from dataclasses import dataclass

from attncli.records.attention import LoopDifferences
from attncli.records.columns import Records, Result, group, tensor
from attncli.records.values import NamedTensor, Tensors


@dataclass(frozen=True, kw_only=True, repr=False)
class AverageStatistics(Result):
    """The weights of an average, their statistics, and the differences between the ways to compute it."""

    weights: NamedTensor | None = tensor(num_axes=2)
    agreement: LoopDifferences | Records[LoopDifferences] | None = group(is_needed=False)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)
