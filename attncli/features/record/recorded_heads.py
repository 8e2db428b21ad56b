"""A survey of a program's heads, from its modules: on one text, or over the texts of each module."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from attncli.features.record.heard_modules import HeardModule
from attncli.features.record.results import RecordedHeads, RecordedModule, TrainingSteps
from attncli.measure.patterns import HeadTotals, RestOfText, SurveyedText, joined_numbers
from attncli.records.columns import Records
from attncli.records.surveys import Stack


def recorded_heads(
    modules: Sequence[HeardModule], counts: Mapping[str, int], training_steps: int
) -> RecordedHeads:
    """Return the statistics of each head on one text, or their means over the texts of each module.

    `counts` has the number of calls of each module; `training_steps` is 0 for a program that does not train.
    """
    if all(module.num_texts == 1 for module in modules):
        survey = _single_text(modules).survey()
    else:
        survey, _ = _totals(modules).survey()
    table = _table(modules, counts)
    parts = {name: part for name, part in vars(survey).items() if name != "notes"}
    sizes = [row.tokens_of_text for row in table if row.kind == "self"] or [table[0].tokens_of_text]
    parts["tokens_of_text"] = max(sizes)
    if training_steps:
        parts["training"] = TrainingSteps.single(
            before_first=min(module.steps[0] for module in modules),
            before_last=max(module.steps[1] for module in modules),
            steps=training_steps,
        )
    return RecordedHeads(**parts, modules=table)


def _table(modules: Sequence[HeardModule], counts: Mapping[str, int]) -> Records[RecordedModule]:
    """Return the module table, with one row per module."""
    rows = [module.attention for module in modules if module.attention is not None]
    # A module may compute self-attention in one call and cross-attention in the next.
    measured: Counter[str] = Counter()
    for row, module in zip(rows, modules, strict=True):
        measured[row.module] += module.measured
    return RecordedModule.rows(
        {
            **row,
            "texts": module.num_texts,
            "calls": counts.get(row.module, measured[row.module]) - (measured[row.module] - module.measured),
            "measured": module.measured,
            "rows": module.rows.num_rows,
            "padding": module.rows.padding,
            "nan_texts": module.rows.nan_texts,
            "nan_padding": module.rows.nan_padding,
        }
        for row, module in zip(rows, modules, strict=True)
    )


def _fewest(stacks: Sequence[Stack]) -> dict[str, Stack]:
    """Return one `Stack` per name.

    Each statistic has the smallest number of rows in any layer, and the largest value that even weights give.
    """
    fewest: dict[str, Stack] = {}
    for stack in stacks:
        before = fewest.get(stack.name, stack)
        rows = {
            name: min(each.num_rows[name] for each in (before, stack) if name in each.num_rows)
            for name in dict.fromkeys([*before.num_rows, *stack.num_rows])
        }
        even = {
            name: max(before.even[name], stack.even[name], key=lambda each: each.mean or 0.0)
            for name in before.even.keys() & stack.even.keys()
        }
        starts_special = before.starts_special and stack.starts_special
        fewest[stack.name] = Stack(stack.name, rows, starts_special, even)
    return fewest


def _single_text(modules: Sequence[HeardModule]) -> SurveyedText:
    """Return the heads on a single text."""
    measured = [(module.place, module.last) for module in modules if module.last is not None]
    layers = [(place, call.numbers.values.shape[1]) for place, call in measured]
    numbers, rest = (
        joined_numbers([(each.names, each.values[0].numpy()) for each in layer_numbers])
        for layer_numbers in ([call.numbers for _, call in measured], [call.rest for _, call in measured])
    )
    keys = torch.cat([call.numbers.keys[0] for _, call in measured]).numpy()
    stacks = _fewest([call.stacks[0] for _, call in measured])
    rest_stacks = _fewest([call.rest_stacks[0] for _, call in measured])
    rest_of_text = RestOfText.from_numbers(layers, rest, rest_stacks)
    return SurveyedText.from_numbers(layers, numbers, stacks, keys, rest_of_text)


def _totals(modules: Sequence[HeardModule]) -> HeadTotals:
    """Return the totals over the texts of every module."""
    module_totals = [module.totals() for module in modules]
    rests = [totals.rest for totals in module_totals if totals.rest is not None]
    joined, rest = (_joined(totals) for totals in (module_totals, rests))
    return replace(joined, rest=rest)


def _joined(totals: Sequence[HeadTotals]) -> HeadTotals:
    layers = {place: layer for each in totals for place, layer in each.layers.items()}
    stacks = _fewest([stack for each in totals for stack in each.stacks.values()])
    return HeadTotals(max(each.num_texts for each in totals), None, layers, stacks)
