"""The reports of `attn cache`."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from attncli.features.cache.names import CACHE_POLICIES, USUAL_BUDGETS
from attncli.features.cache.settings import CacheSpec
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

POSITIONS = "Keys keep their rotation: what is left is not moved together."
LIMITED = "Heads that share keys and values forget together; the worst token is the one with the largest kl."


def read(spec: CacheSpec, texts: Texts, pretrained: "Pretrained", generator: "torch.Generator") -> "Judged":
    """What the model reads and is judged by; UserError for what does not fit."""
    from attncli.models.predicted import judged_reading, read_judged
    from attncli.runs.runner import read_survey_text

    key = _text_key(spec)
    if spec.probe:
        return judged_reading(read_survey_text(spec, texts, pretrained, generator), pretrained, key=key)
    assert texts.text is not None
    return read_judged(
        pretrained,
        texts.text,
        needle=spec.needle,
        truncate=spec.truncate,
        every=spec.every,
        key=key,
    )


def _text_key(spec: CacheSpec) -> str:
    """The setting that says what is read."""
    return "num_tokens" if spec.probe else "file" if spec.file else "sentence"


def report(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", progress: "Progress | None"
) -> "Report":
    """What is lost by heads that keep few keys, or with policies."""
    fewer = "a smaller --num-tokens" if spec.probe else "a shorter text"
    ways_out = f"--policy all or {fewer} takes less"
    if spec.is_of_policies:
        ways_out = f"fewer policies and budgets, or {fewer}, take less"
    of = _of_policies if spec.is_of_policies else _of_heads
    if progress is None:
        return of(spec, reading, pretrained, None)
    progress.if_long(ways_out)
    measured = of(spec, reading, pretrained, progress.stage)
    progress(1.0)
    return measured


def _of_heads(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", tell: "Callable[[Stage], None] | None"
) -> "Report":
    from attncli.features.cache.door import cache
    from attncli.runs.report_parts import build_report, shipped_notes

    result = cache(
        pretrained,
        reading,
        sink=spec.sink,
        window=spec.window,
        budget=spec.budget[0] if spec.budget else None,
        progress=tell,
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
        how_to_read=f"Each alone keeps the first {_keys(result.sink)} and the last {result.window}.",
    )


def _tensors(result: "LimitedHeads") -> "dict[str, NamedTensor]":
    """The need of each head, and what is lost over the share of the cache."""
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


def _of_policies(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", tell: "Callable[[Stage], None] | None"
) -> "Report":
    from attncli.features.cache.door import cache_policies
    from attncli.runs.report_parts import build_report, shipped_notes

    bits: dict[str | None, Literal[8, 4] | None] = {None: None, "8": 8, "4": 4}
    result = cache_policies(
        pretrained,
        reading,
        policies=spec.policies,
        budgets=spec.budget or USUAL_BUDGETS,
        bits=bits[spec.bits],
        every=spec.every,
        progress=tell,
    )
    papers = [
        f"{name}: {CACHE_POLICIES[name].keeps}, {CACHE_POLICIES[name].paper}." for name in spec.policies
    ]
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.spelling_of(reading.text)),
        {},
        result,
        [*shipped_notes(spec), POSITIONS, *papers, *result.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: a prompt of {counted(result.prompt, 'token')}, judged by the "
        f"{result.judged:,} after it.",
        how_to_read="The prompt is read once; what follows sees of it what a policy keeps, and itself.",
    )


PAGE = ModelPage(read=read, report=report)
