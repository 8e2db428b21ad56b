"""Statistics of rows of weights, and summaries of very many rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.formulas import outside_mass
from attncli.core.layer import Computed, Wanted
from attncli.core.names import ROW_STATISTICS, WEIGHT_STATISTICS
from attncli.core.runtime import versions
from attncli.core.summaries import extreme_places, quantiles
from attncli.records.attention import ExtremeRow, OutsideWeights, RowQuantiles, inferred_mask
from attncli.records.columns import Records
from attncli.records.report import RANKED, Mask, NamedTensor, Report, Tensors
from attncli.runs.report_parts import named

NUM_EXTREMES = 3
MAX_ROWS_WHOLE = 1000


@dataclass(frozen=True)
class LeadingAxes:
    """The axes before query and key: in a layer (text, head), and in a report those that the report names."""

    has_batch: bool
    has_head: bool

    @classmethod
    def of(cls, vectors: Float[Tensor, "..."], *, has_head: bool) -> "LeadingAxes":
        """Return the leading axes of vectors (token, dim): an optional batch, then heads if there are any."""
        return cls(vectors.dim() > 2 + has_head, has_head)

    def layered(self, vectors: Float[Tensor, "..."]) -> Float[Tensor, "text head token dim"]:
        """Return the vectors with both leading axes, as a layer expects them."""
        vectors = vectors if self.has_head else vectors.unsqueeze(-3)
        return vectors if self.has_batch else vectors.unsqueeze(0)

    def back(self, tensor: Tensor | None) -> Tensor:
        """Return a layer's tensor with the report's axes."""
        assert tensor is not None
        tensor = tensor if self.has_head else tensor.squeeze(1)
        return tensor if self.has_batch else tensor.squeeze(0)

    def named(
        self, tensor: Tensor | None, *axes: str, mask: Mask | None = None, scale: float | None = None
    ) -> NamedTensor:
        """Return a layer's tensor as plain data for the report, with its last axes named."""
        head = ("head",) if self.has_head else ()
        return named(self.back(tensor), *head, *axes, mask=mask, scale=scale)


class RowTensors(NamedTuple):
    """The statistics of each row and of each key, or None for weights that are not a distribution."""

    rows: Tensors | None = None
    keys: Tensors | None = None


def row_tensors(
    computed: Computed, lead: LeadingAxes, sink: Float[Tensor, "#text #head"] | None
) -> RowTensors:
    """Return the statistics of each row and key, including outside_mass if there are a sink and a logsumexp.

    They are float64, the type in which a saved report is read back.
    """
    rows = dict(computed.rows)
    if computed.logsumexp is not None:
        rows["logsumexp"] = computed.logsumexp
        if sink is not None:
            rows["outside_mass"] = outside_mass(computed.logsumexp, sink)
    ranks = {"top_keys": computed.top_keys, "top_weights": computed.top_weights}
    row_statistics = {name: lead.named(tensor.double(), "query") for name, tensor in rows.items()}
    row_statistics |= {
        name: lead.named(tensor, "query", "rank") for name, tensor in ranks.items() if tensor is not None
    }
    received = {"received_mass": lead.named(computed.received_mass, "key")}
    return RowTensors(Tensors(row_statistics), Tensors(received))


class RowSummaries(NamedTuple):
    """The quantiles and extremes of row statistics, for very many rows."""

    quantiles: Records[RowQuantiles] | None = None
    extremes: Records[ExtremeRow] | None = None


def row_summaries(rows: Tensors | None, num_queries: int) -> RowSummaries:
    """Summarize the row statistics if there are too many rows to read."""
    if rows is None or num_queries <= MAX_ROWS_WHOLE:
        return RowSummaries()
    summarised = {name: rows[name] for name in rows if name not in RANKED}
    return RowSummaries(_quantiles(summarised), _extremes(summarised))


def _quantiles(rows: Mapping[str, NamedTensor]) -> Records[RowQuantiles]:
    """Return the quantiles of each statistic over the queries, one row per batch and head."""
    return RowQuantiles.rows(
        {
            "statistic": name,
            **dict(zip(tensor.axes[:-1], index, strict=True)),
            **quantiles(torch.from_numpy(tensor.values[index])),
        }
        for name, tensor in rows.items()
        for index in np.ndindex(tensor.values.shape[:-1])
    )


def _extremes(rows: Mapping[str, NamedTensor]) -> Records[ExtremeRow]:
    """Return the queries with the lowest and highest value of each statistic, over all batches and heads."""
    extremes: list[dict[str, str | int | float]] = []
    for name, tensor in rows.items():
        flat = torch.from_numpy(tensor.values).flatten()
        for extreme, places in zip(("lowest", "highest"), extreme_places(flat, NUM_EXTREMES), strict=True):
            for place in places.tolist():
                index = map(int, np.unravel_index(place, tensor.values.shape))
                where = dict(zip(tensor.axes, index, strict=True))
                extremes.append({"statistic": name, "extreme": extreme, **where, "value": flat[place].item()})
    return ExtremeRow.rows(extremes)


# The largest deviation of a row's sum from one: bfloat16 has a relative rounding error of 2^-9.
TOLERANCE = 5e-3
TOP_K = 3


def weights_report(
    weights: NamedTensor,
    source: Mapping[str, Any],
    tokens: Sequence[str],
    context_tokens: Sequence[str],
    *,
    has_context: bool = False,
) -> Report:
    """Return the report of weights with axes query and key, and optionally layer and head.

    The report has row statistics if every row is a distribution. A key counts as visible to a query if some
    head in the layer gives it weight. Keys from another text have no positions in common with the queries,
    and neither do keys if their number differs from the number of queries. Tokens without names are numbered.
    """
    num_queries, num_keys = weights.values.shape[-2:]
    if (has_context or num_queries != num_keys) and not context_tokens:
        context_tokens = [f"k{number}" for number in range(num_keys)]
        tokens = tokens or [f"q{number}" for number in range(num_queries)]
    sizes = ", ".join(f"{axis} {size}" for axis, size in zip(weights.axes, weights.values.shape, strict=True))
    notes = [f"Weights from another tool: {sizes}."]
    why_not = _no_distribution(weights.values)
    if why_not:
        notes.append(f"{why_not}, so there are no row statistics.")
    is_one_text = not context_tokens
    rows = tuple(name for name in WEIGHT_STATISTICS if is_one_text or not ROW_STATISTICS[name].positional)
    measured = RowTensors() if why_not else _statistics(weights.values, weights.axes, rows)
    summaries = row_summaries(measured.rows, weights.values.shape[-2])
    result = OutsideWeights(**measured._asdict(), **summaries._asdict())
    return Report(
        "show",
        source,
        versions(),
        tuple(tokens),
        tuple(context_tokens),
        tensors={"weights": replace(weights, mask=inferred_mask(weights, has_context=not is_one_text))},
        result=result,
        notes=tuple(notes),
    )


def _no_distribution(array: np.ndarray) -> str:
    """Return the reason why a row is not a distribution, or an empty string if all rows are."""
    no_number = int((~np.isfinite(array)).sum())
    if no_number:
        return "1 entry is not a number" if no_number == 1 else f"{no_number} entries are not numbers"
    if (array < 0).any():
        return "Some weights are negative"
    with np.errstate(over="ignore"):
        sums = array.sum(axis=-1, dtype=np.float64)
    if (np.abs(sums - 1) > TOLERANCE).any():
        ends = dict.fromkeys((f"{sums.min():.4g}", f"{sums.max():.4g}"))
        return f"Rows sum to {' to '.join(ends)}, not to one"
    return ""


def _statistics(array: np.ndarray, axes: tuple[str, ...], rows: tuple[str, ...]) -> RowTensors:
    """Return the statistics of a layer's heads; several layers are computed together, as texts are."""
    from attncli.core.engines import attend
    from attncli.core.row_tiles import GivenWeights

    weights = torch.from_numpy(array)
    lead = LeadingAxes(has_batch=array.ndim == 4, has_head=array.ndim >= 3)
    layered = lead.layered(weights)
    wanted = Wanted(rows=rows, top_k=min(TOP_K, array.shape[-1]), received_mass=True)
    computed = attend(GivenWeights(layered.double(), (layered > 0).any(dim=1)), wanted)
    return RowTensors(
        *(
            Tensors(
                (name, NamedTensor((*axes[:-2], *tensor.axes[array.ndim - 2 :]), tensor.values))
                for name, tensor in members.items()
            )
            for members in filter(None, row_tensors(computed, lead, None))
        )
    )
