"""What self-, multi-head and cross-attention report alike: named tensors and statistics of the weights."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.results import Computed
from attncli.experiments.explained import explained_steps
from attncli.experiments.reading.texts import Texts
from attncli.experiments.sources import Source
from attncli.experiments.versions import versions
from attncli.inputs.projections import Projection
from attncli.report import NamedTensor, Report, Statistic, Tensors
from attncli.spec.attention import AttentionSpec
from attncli.spec.fields import Spec
from attncli.spec.text import TextSpec
from attncli.statistics.contributions import outside_mass


def named(tensor: Tensor, *axes: str) -> NamedTensor:
    """A tensor as the report's plain data, its last axes named; axes before them are batches."""
    batch = ("batch",) * (tensor.dim() - len(axes))
    numbers = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
    return NamedTensor((*batch, *axes), numbers.numpy(force=True))


@dataclass(frozen=True)
class LeadingAxes:
    """The axes before query and key in a report: a layer always has (text, head), a report those it names."""

    has_batch: bool
    has_head: bool

    @classmethod
    def of(cls, vectors: Float[Tensor, "..."], axes: tuple[str, ...]) -> "LeadingAxes":
        """Those of vectors (token, dim) with `axes` before the token, and maybe a batch before them."""
        return cls(vectors.dim() > 2 + len(axes), bool(axes))

    def layered(self, vectors: Float[Tensor, "..."]) -> Float[Tensor, "text head token dim"]:
        """The vectors as a layer takes them."""
        vectors = vectors if self.has_head else vectors.unsqueeze(-3)
        return vectors if self.has_batch else vectors.unsqueeze(0)

    def back(self, tensor: Tensor | None) -> Tensor:
        """A tensor of a layer with the axes of the report."""
        assert tensor is not None
        tensor = tensor if self.has_head else tensor.squeeze(1)
        return tensor if self.has_batch else tensor.squeeze(0)

    def named(self, tensor: Tensor | None, *axes: str) -> NamedTensor:
        """The same as plain data, its last axes named."""
        return named(self.back(tensor), *(("head",) if self.has_head else ()), *axes)


def build_report(
    spec: Spec,
    texts: Texts,
    tensors: Mapping[str, NamedTensor],
    statistics: Mapping[str, Statistic],
    notes: Iterable[str],
) -> Report:
    """A report with the settings and versions that it came from, and its steps where asked to explain."""
    settings = spec.model_dump(mode="json", exclude=set(spec.unreported_keys()))
    report = Report(
        spec.experiment,
        settings,
        versions(),
        texts.tokens,
        texts.context_tokens,
        tensors=tensors,
        statistics=statistics,
        notes=tuple(notes),
        token_spelling=texts.token_spelling,
    )
    return replace(report, steps=explained_steps(spec, report))


def has_axis_of_texts(spec: TextSpec, num_dims: int, num_axes: int) -> bool:
    """Whether several texts run together: a batch that the spec itself has not asked for."""
    return spec.batch_size is None and num_dims > num_axes


def row_tensors(
    found: Computed, lead: LeadingAxes, sink: Float[Tensor, "#text #head"] | None
) -> dict[str, Tensors]:
    """The statistics of each row and of each key; what a sink takes is outside_mass, with the logsumexp.

    As float64, which is what a saved report comes back with.
    """
    rows = dict(found.rows)
    if found.logsumexp is not None:
        rows["logsumexp"] = found.logsumexp
        if sink is not None:
            rows["outside_mass"] = outside_mass(found.logsumexp, sink)
    ranks = {"top_keys": found.top_keys, "top_weights": found.top_weights}
    of_rows = {name: lead.named(tensor.double(), "query") for name, tensor in rows.items()}
    of_rows |= {
        name: lead.named(tensor, "query", "rank") for name, tensor in ranks.items() if tensor is not None
    }
    received = {"received_mass": lead.named(found.received_mass, "key")}
    return {"rows": Tensors(of_rows), "keys": Tensors(received)}


def explained_ids(
    spec: AttentionSpec, source: Source, context: Source | None = None
) -> dict[str, NamedTensor]:
    """The tokens' rows in the vocabulary's table, where there is one and the spec asks to explain."""
    sides = {"token_ids": (source, "token"), "context_token_ids": (context, "key")}
    return {
        name: named(side.token_ids, axis)
        for name, (side, axis) in sides.items()
        if spec.explain and side is not None and side.token_ids is not None
    }


def explained_vectors(
    spec: AttentionSpec, vectors: Mapping[str, Tensor], axes: tuple[str, ...] = ()
) -> dict[str, NamedTensor]:
    """query, key and value, where the spec asks to explain."""
    if not spec.explain:
        return {}
    return {
        name: named(tensor, *axes, "query" if name == "query" else "key", "dim")
        for name, tensor in vectors.items()
    }


def explained_projections(
    spec: AttentionSpec, projections: Mapping[str, Projection]
) -> dict[str, NamedTensor]:
    """The matrices behind query, key and value, in the layout they were drawn in, where asked to explain."""
    if not spec.explain:
        return {}
    return {
        f"{name}_projection": named(projection.matrix, *projection.axes)
        for name, projection in projections.items()
    }
