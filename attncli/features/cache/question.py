"""The reports of `attn cache`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from attncli.features.cache.names import CACHE_POLICIES, USUAL_BUDGETS
from attncli.features.cache.settings import BitsSpec, CacheSpec, PoliciesSpec, SmallerCachesSpec
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    import torch

    from attncli.core.progress import Progress, Stage
    from attncli.features.cache.results import LimitedHeads
    from attncli.models.predicted import Judged
    from attncli.models.pretrained import Pretrained
    from attncli.records.report import Report
    from attncli.records.values import NamedTensor

POSITIONS = "Keys keep their original rotation: the remaining keys are not moved together."
LIMITED = "Query heads that share keys and values forget together; the worst token has the largest kl."


def read(
    spec: CacheSpec | PoliciesSpec | BitsSpec,
    texts: Texts,
    pretrained: "Pretrained",
    generator: "torch.Generator",
) -> "Judged":
    """Return the reading on which the model is judged. Raises UserError if settings do not fit."""
    from attncli.models.predicted import judged_reading, read_judged
    from attncli.runs.runner import read_survey_text

    key = spec.text_key
    if spec.probe:
        return judged_reading(read_survey_text(spec, texts, pretrained, generator), pretrained, key=key)
    assert texts.text is not None
    every = None if isinstance(spec, CacheSpec) else spec.every
    return read_judged(
        pretrained, texts.text, needle=spec.needle, truncate=spec.truncate, every=every, key=key
    )


def report(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", progress: "Progress | None"
) -> "Report":
    """Build the report on heads that keep few keys."""
    less = f"--policy all or {_shorter(spec)} takes less time"
    return _in_stages(partial(_head_report, spec, reading, pretrained), progress, less)


def report_policies(
    spec: PoliciesSpec | BitsSpec, reading: "Judged", pretrained: "Pretrained", progress: "Progress | None"
) -> "Report":
    """Build the report on policies, or on rounding to a few bits."""
    less = f"fewer policies and budgets, or {_shorter(spec)}, take less time"
    return _in_stages(partial(_policy_report, spec, reading, pretrained), progress, less)


def _shorter(spec: SmallerCachesSpec) -> str:
    return "a smaller --num-tokens" if spec.probe else "a shorter text"


def _in_stages(
    measure: "Callable[[Callable[[Stage], None] | None], Report]", progress: "Progress | None", less: str
) -> "Report":
    """Measure while showing a progress line; if the measurement takes long, the line suggests `less`."""
    if progress is None:
        return measure(None)
    progress.if_long(less)
    measured = measure(progress.stage)
    progress(1.0)
    return measured


def _head_report(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", progress: "Callable[[Stage], None] | None"
) -> "Report":
    from attncli.features.cache.door import cache
    from attncli.runs.report_parts import build_report, shipped_notes

    result = cache(
        pretrained,
        reading,
        sink=spec.sink,
        window=spec.window,
        budget=spec.budget[0] if spec.budget else None,
        progress=progress,
    )
    listed = result.heads[: spec.top]
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.spelling_of(reading.text)),
        _tensors(result),
        replace(result, heads=listed, forgotten=result.forgotten_by(listed)),
        [*shipped_notes(spec), LIMITED, POSITIONS, *result.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: {counted(len(result.heads), 'key/value head')}, "
        f"on {counted(len(reading.text.ids), 'token')}.",
        how_to_read=f"Each head in turn keeps only the first {_keys(result.sink)} and the last "
        f"{result.window}.",
    )


def _tensors(result: "LimitedHeads") -> "dict[str, NamedTensor]":
    """The need of each head, and the losses as functions of the share of the cache."""
    from attncli.records.values import NamedTensor

    grids = {
        f"{result.need} {stack}".strip(): grid for stack, grid in result.heads.grids(result.need).items()
    }
    names = {f"{name}_together": name for name in ("kl", "loss", "needle") if name in result.curve.cells}
    curve = result.curve[::-1]
    points = {
        name: NamedTensor(("point",), curve.numbers(column))
        for name, column in ({"cache": "cache"} | names).items()
    }
    return grids | points


def _keys(count: int) -> str:
    return "key" if count == 1 else f"{count} keys"


def _policy_report(
    spec: PoliciesSpec | BitsSpec,
    reading: "Judged",
    pretrained: "Pretrained",
    progress: "Callable[[Stage], None] | None",
) -> "Report":
    from attncli.features.cache.door import cache_policies
    from attncli.runs.report_parts import build_report, shipped_notes

    bits: dict[str | None, Literal[8, 4] | None] = {None: None, "8": 8, "4": 4}
    policies, budgets = list[str](), list[float]()
    if isinstance(spec, PoliciesSpec):
        policies, budgets = spec.policies, spec.budget
    result = cache_policies(
        pretrained,
        reading,
        policies=policies,
        budgets=budgets or USUAL_BUDGETS,
        bits=bits[spec.bits],
        every=spec.every,
        progress=progress,
    )
    papers = [f"{name}: {CACHE_POLICIES[name].keeps}, {CACHE_POLICIES[name].paper}." for name in policies]
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.spelling_of(reading.text)),
        {},
        result,
        [*shipped_notes(spec), POSITIONS, *papers, *result.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: a prompt of {counted(result.prompt, 'token')}, judged on the "
        f"{counted(result.judged, 'token')} after it.",
        how_to_read="The prompt is read once; later tokens see only the keys that a policy keeps "
        "and their own keys.",
    )


PAGE = ModelPage(read=read, report=report)
POLICIES_PAGE = ModelPage(read=read, report=report_policies)
