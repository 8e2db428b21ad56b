"""The heads of the modules of a program as those of a survey: of one text, or over the texts of each."""

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
    """What each head does: its statistics of one text, or means over the texts of each module.

    `counts` are the calls of each module. A program that trains made `training_steps`.
    """
    if all(module.num_texts == 1 for module in modules):
        survey = _of_one_text(modules).survey()
    else:
        survey, _ = _of_texts(modules).survey()
    table = _table(modules, counts)
    parts = {name: kept for name, kept in vars(survey).items() if name != "notes"}
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
    """One row per module."""
    rows = [module.attention for module in modules if module.attention is not None]
    # A module may attend to itself in one call, and to another text in the next.
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
    """The rows of each stack: of each statistic the fewest that a layer has which has it at all, and the most
    that even weights give in a layer.
    """
    fewest: dict[str, Stack] = {}
    for stack in stacks:
        before = fewest.get(stack.name, stack)
        rows = {
            name: min(of_stack.num_rows[name] for of_stack in (before, stack) if name in of_stack.num_rows)
            for name in dict.fromkeys([*before.num_rows, *stack.num_rows])
        }
        even = {
            name: max(before.even[name], stack.even[name], key=lambda each: each.mean or 0.0)
            for name in before.even.keys() & stack.even.keys()
        }
        starts_special = before.starts_special and stack.starts_special
        fewest[stack.name] = Stack(stack.name, rows, starts_special, even)
    return fewest


def _of_one_text(modules: Sequence[HeardModule]) -> SurveyedText:
    """The heads of one text, and what they do."""
    measured = [(module.place, module.last) for module in modules if module.last is not None]
    layers = [(place, call.numbers.values.shape[1]) for place, call in measured]
    numbers, rest = (
        joined_numbers([(each.names, each.values[0].numpy()) for each in of_calls])
        for of_calls in ([call.numbers for _, call in measured], [call.rest for _, call in measured])
    )
    keys = torch.cat([call.numbers.keys[0] for _, call in measured]).numpy()
    stacks = _fewest([call.stacks[0] for _, call in measured])
    rest_stacks = _fewest([call.rest_stacks[0] for _, call in measured])
    return SurveyedText.of(layers, numbers, stacks, keys, RestOfText.of(layers, rest, rest_stacks))


def _of_texts(modules: Sequence[HeardModule]) -> HeadTotals:
    """The totals of the texts of every module."""
    of_modules = [module.totals() for module in modules]
    rests = [totals.rest for totals in of_modules if totals.rest is not None]
    joined, rest = (_joined(totals) for totals in (of_modules, rests))
    return replace(joined, rest=rest)


def _joined(totals: Sequence[HeadTotals]) -> HeadTotals:
    layers = {place: layer for each in totals for place, layer in each.layers.items()}
    stacks = _fewest([stack for each in totals for stack in each.stacks.values()])
    return HeadTotals(max(each.num_texts for each in totals), None, layers, stacks)
