"""What a model loses with a smaller cache: heads that keep few keys, policies for the keys of a prompt."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from attncli.core.row_statistics import CACHE_POLICIES
from attncli.measure.cache import Judged, LimitedHeads, judged_reading, limited_heads, need_name, read_judged
from attncli.measure.cache_policies import PolicyCosts, policy_costs, windows
from attncli.measure.patterns import HeadRow
from attncli.models.pretrained import Pretrained
from attncli.report import NamedTensor, Numbers, Report, Statistic, Table
from attncli.report_parts import build_report, shipped_notes
from attncli.runs.runner import read_survey_text
from attncli.settings.cache import USUAL_BUDGETS, CacheSpec
from attncli.settings.text import Texts

POSITIONS = "Keys keep their rotation: what is left is not moved together."
LIMITED = "Heads that share keys and values forget together; the worst token is the one with the largest kl."


def read(spec: CacheSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Judged:
    """What the model reads and is judged by; UserError for what does not fit."""
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


def report_each(
    specs: Sequence[CacheSpec],
    readings: Sequence[Judged],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The report of each text."""
    report = {True: _of_policies, False: _of_heads}
    return [
        report[spec.is_of_policies](spec, reading, pretrained, progress)
        for spec, reading in zip(specs, readings, strict=True)
    ]


def _of_heads(
    spec: CacheSpec, reading: Judged, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    found = limited_heads(
        pretrained,
        reading,
        sink=spec.sink,
        window=spec.window,
        budget=spec.budget[0] if spec.budget else None,
        progress=progress,
    )
    need = need_name(found.heads[0])
    statistics: dict[str, Statistic] = {
        "heads": Table(found.heads[: spec.top]),
        "forgotten": Table(_of_shown(found, spec.top)),
        "curve": Table(found.curve),
        "baseline": Numbers(**found.baseline, sink=found.sink, window=found.window),
    }
    if spec.budget:
        statistics |= {"full": Table(found.full), "at_budget": Numbers(found.at_budget)}
    grids = Table(found.heads).grids(need)
    tensors = {f"{need} {stack}".strip(): grid for stack, grid in grids.items()}
    tensors |= {
        name: NamedTensor(("point",), np.array([row[column] for row in found.curve[::-1]]))
        for name, column in _curves(found)
    }
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.token_spelling),
        tensors,
        statistics,
        [*shipped_notes(spec), LIMITED, POSITIONS, *found.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: {len(found.heads)} key/value heads, on {len(reading.text.ids)} tokens.",
        how_to_read=f"Each alone keeps the first {_keys(found.sink)} and the last {found.window}.",
    )


def _of_shown(found: LimitedHeads, top: int | None) -> Iterator[HeadRow]:
    """What is forgotten by the heads that are listed."""
    shown = {(row["layer"], row["head"]) for row in found.heads[:top]}
    return (row for row in found.forgotten if (row["layer"], row["head"]) in shown)


def _keys(count: int) -> str:
    return "key" if count == 1 else f"{count} keys"


def _curves(found: LimitedHeads) -> list[tuple[str, str]]:
    """The share of the cache, and what is lost over it, by the names of their tensors."""
    names = [name for name in ("kl", "loss", "needle") if name in found.curve[0]]
    return [("cache", "cache"), *((f"{name}_together", name) for name in names)]


def _of_policies(
    spec: CacheSpec, reading: Judged, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    readings = [reading] if spec.every is None else windows(pretrained, reading, spec.every)
    found = policy_costs(
        pretrained,
        readings,
        policies=spec.policies,
        budgets=spec.budget or USUAL_BUDGETS,
        bits=None if spec.bits is None else int(spec.bits),
        every=spec.every,
        progress=progress,
        key=_text_key(spec),
    )
    statistics: dict[str, Statistic] = {
        "policies": Table(found.policies),
        "lines": Table(_lines(found)),
        "baseline": Numbers(**found.baseline, prompt=found.prompt, judged=found.judged),
    }
    if len(spec.policies) == 0 or len(spec.budget or USUAL_BUDGETS) < 2:
        del statistics["lines"]
    papers = [
        f"{name}: {CACHE_POLICIES[name].keeps}, {CACHE_POLICIES[name].paper}." for name in spec.policies
    ]
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.token_spelling),
        {},
        statistics,
        [*shipped_notes(spec), POSITIONS, *papers, *found.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: {_counts(found)}.",
        how_to_read="The prompt is read once; what follows sees of it what a policy keeps, and itself.",
    )


def _counts(found: PolicyCosts) -> str:
    return f"a prompt of {found.prompt:,} tokens, judged by the {found.judged:,} after it"


def _lines(found: PolicyCosts) -> list[dict[str, Any]]:
    """One row per policy, with lists over the budgets."""
    rows: dict[str, dict[str, list[float]]] = {}
    for row in found.policies:
        if row["budget"] is not None:
            lists = rows.setdefault(row["policy"], {})
            for name in ("budget", "kl", "loss", "needle"):
                if name in row:
                    lists.setdefault(name, []).append(row[name])
    return [{"policy": policy, **lists} for policy, lists in rows.items()]
