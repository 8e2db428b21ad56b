"""The parts that all reports have in common: named tensors, settings, versions, steps and notes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attncli.core.runtime import versions
from attncli.records.columns import Result, UntypedResult
from attncli.records.report import Mask, NamedTensor, Picture, PictureMaps, Report, Statistic
from attncli.settings.fields import ExplainRowSpec, Spec
from attncli.settings.text import Texts, explained_token

if TYPE_CHECKING:
    from attncli.settings.models import ModelSpec


def named(tensor: Tensor, *axes: str, mask: Mask | None = None, scale: float | None = None) -> NamedTensor:
    """Return a tensor as plain data for the report, with its last axes named; earlier axes are batches."""
    batch = ("batch",) * (tensor.dim() - len(axes))
    numbers = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
    return NamedTensor((*batch, *axes), numbers.numpy(force=True), mask, scale)


def build_report(
    spec: Spec,
    texts: Texts,
    tensors: Mapping[str, NamedTensor],
    result: Result | Mapping[str, Statistic],
    notes: Iterable[str],
    *,
    about: str = "",
    how_to_read: str = "",
    written: str | None = None,
    pictures: tuple[Picture, ...] = (),
    picture_maps: PictureMaps | None = None,
) -> Report:
    """Build a report with its settings and versions, and with its steps if `explain` is set.

    If an experiment's result has no class, its statistics are given by name.
    """
    if isinstance(spec, ExplainRowSpec):
        spec = spec.model_copy(update={"token": explained_token(spec.token, texts.tokens)})
    settings = spec.model_dump(mode="json", exclude=set(spec.unreported_keys()))
    report = Report(
        spec.experiment,
        settings,
        versions(),
        texts.tokens,
        texts.context_tokens,
        tensors=tensors,
        result=result if isinstance(result, Result) else UntypedResult(undeclared=result),
        notes=tuple(notes),
        token_spelling=texts.token_spelling,
        about=about,
        how_to_read=how_to_read,
        written=written,
        pictures=pictures,
        picture_maps=picture_maps,
    )
    steps = spec.page().steps if spec.is_explained() else None
    return report if steps is None else replace(report, steps=steps(spec, report))


SHIPPED_NOTE = (
    "This model ships with attn; it learned to copy random characters. Use --model FOLDER for another model."
)


WORDS_NOTE = (
    "Tokens are merged into words: weights are summed over the keys of a word and averaged over its queries."
)


def shipped_notes(spec: "ModelSpec") -> list[str]:
    """Return the note on the shipped model if the user did not choose a model."""
    return [SHIPPED_NOTE] if spec.model is None else []
