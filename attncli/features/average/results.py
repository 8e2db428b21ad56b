"""The statistics of averages."""

from collections.abc import Mapping
from dataclasses import dataclass

from attncli.records.attention import LoopDifferences, stated_mask
from attncli.records.columns import Records, Result, group, tensor
from attncli.records.values import NamedTensor, Tensors, with_masks


@dataclass(frozen=True, kw_only=True, repr=False)
class AverageStatistics(Result):
    """Each token averaged with what it sees: how far the ways to do that differ, and the rows of weights."""

    weights: NamedTensor | None = tensor(num_axes=2)
    agreement: LoopDifferences | Records[LoopDifferences] | None = group(is_needed=False)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)

    @classmethod
    def with_stated_facts(
        cls, tensors: Mapping[str, NamedTensor], spec: Mapping[str, object], *, has_context: bool
    ) -> dict[str, NamedTensor]:
        """See `Result.with_stated_facts`."""
        return with_masks(tensors, {"weights": stated_mask(spec)})
