"""The first screen of a recording: the screen of a survey, and the module of each layer."""

import re
from collections.abc import Iterator, Sequence

from attncli.features.record.results import RecordedHeads, RecordedModule
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import TEXT_WIDTH, Display
from attncli.views.first_screen import FirstScreen, NamingLine, Notes, Sentences, Special
from attncli.views.head_screens import HEADS_OR_PATTERNS, MAPS, stack_sizes, survey_table
from attncli.views.sections import Column, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.survey_findings import survey_finding

NUMBER = re.compile(r"\d{1,18}")
FEW = 3
"""Lines of modules on a short terminal."""
LEAST_NOTES = 1
"""Minimum number of lines of notes on any terminal."""


def _title(report: Report) -> str:
    """Return `record: 12 layers × 12 heads, 17 tokens, of python predict.py`."""
    survey = report.result_of(RecordedHeads)
    read = counted(survey.num_texts, "text")
    if survey.texts is None:
        read = counted(max(row.tokens_of_text for row in survey.modules), "token")
    program = report.spec.get("program")
    return f"record: {', '.join([*stack_sizes(survey), read, *([f'of {program}'] if program else [])])}"


def _training(report: Report, _display: Display | None = None) -> Iterator[str]:
    """Yield a line on the training steps before the measured calls, or nothing if there was no training."""
    training = report.result_of(RecordedHeads).training
    if training is None:
        return
    first, last, steps = training.before_first, training.before_last, counted(training.steps, "training step")
    if first < last:
        yield f"Means over calls from step {first + 1:,} to {last + 1:,}; the program made {steps}."
    elif last == training.steps:
        yield f"After training: heads after the last of {steps}."
    elif last:
        yield f"During training: heads after {last:,} of {steps}."
    else:
        yield f"Heads before the first of {steps}; use --calls last to record later calls."


def _finding(report: Report) -> Iterator[str]:
    """Yield what the heads look at, the training steps, and the text that the maps show."""
    yield from survey_finding(report)
    yield from _training(report)
    survey = report.result_of(RecordedHeads)
    if survey.num_texts > 1 and report.tensors:
        yield f"Statistics are means over {survey.num_texts:,} texts; maps show the first text."


def alike_modules(modules: Records[RecordedModule]) -> list[list[RecordedModule]]:
    """Return groups of neighbouring layers in a stack whose paths differ only in one number."""
    runs: list[list[RecordedModule]] = []
    for row in modules:
        if runs and _continues(runs[-1], row):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _continues(run: Sequence[RecordedModule], row: RecordedModule) -> bool:
    last, first = run[-1], run[0]
    same = (last.stack, last.heads, last.num_queries, last.num_keys, last.mask, last.function)
    if same != (row.stack, row.heads, row.num_queries, row.num_keys, row.mask, row.function):
        return False
    if (last.layer + 1, last.calls) != (row.layer, row.calls):
        return False
    changed = _changed(last.module, row.module)
    in_run = _changed(first.module, last.module)
    return changed is not None and (len(run) == 1 or changed == in_run)


def _changed(a: str, b: str) -> int | None:
    """Return the index of the number that is larger in the second path, or None if anything else differs."""
    numbers_a, numbers_b = (list(map(int, NUMBER.findall(path))) for path in (a, b))
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return None
    places = [place for place, pair in enumerate(zip(numbers_a, numbers_b, strict=True)) if len({*pair}) > 1]
    return places[0] if len(places) == 1 and numbers_b[places[0]] > numbers_a[places[0]] else None


def _path(run: Sequence[RecordedModule]) -> str:
    """Return a group's path, such as `encoder.layers.0-11.self_attn`."""
    first, last = run[0].module, run[-1].module
    place = None if len(run) == 1 else _changed(first, last)
    if place is None:
        return first
    match = [*NUMBER.finditer(first)][place]
    end = NUMBER.findall(last)[place]
    return f"{first[: match.start()]}{match[0]}-{end}{first[match.end() :]}"


def _modules(report: Report, display: Display) -> ScreenParts:
    """Return the module of each layer, one line per group of similar modules; `--show modules` lists all."""
    modules = report.result_of(RecordedHeads).modules
    runs = alike_modules(modules)

    def lines(count: int) -> Iterator[Section]:
        fitting = runs if count >= len(runs) else runs[: max(1, count - 1)]
        yield modules_grid(fitting, display.width, several=len({row.stack for row in modules}) > 1)
        if len(fitting) < len(runs):
            left = sum(map(len, runs[len(fitting) :]))
            yield Paragraph(f"... {counted(left, 'more module')}: --show modules", "dim")

    yield Elastic(lines, len(runs), FEW, len(runs), rank=2)


def modules_grid(runs: Sequence[Sequence[RecordedModule]], width: int | None, *, several: bool) -> Grid:
    """Return a grid with one line per group of layers."""
    layers = [str(run[0].layer) if len(run) == 1 else f"{run[0].layer}-{run[-1].layer}" for run in runs]
    sizes = [f"{run[0].num_queries} × {run[0].num_keys}" for run in runs]
    cells = {
        "attention": [run[0].kind for run in runs] if several else [],
        "queries × keys": sizes,
        "mask": [run[0].mask for run in runs],
        "calls": [str(run[0].calls) for run in runs],
        "function": [_short_name(run[0].function) for run in runs],
    }
    columns = [Column(("", name), texts, left=name != "calls") for name, texts in cells.items() if texts]
    taken = sum(column.width + 2 for column in columns[:-1]) + max(map(len, ("layer", *layers))) + 2
    most = max(12, (width or TEXT_WIDTH) - taken)
    paths = [_path_end(plain_text(_path(run)), most) for run in runs]
    grid = Grid("", Column(("", "layer"), layers), [Column(("", "module"), paths, left=True), *columns])
    return grid.first_group(width)


def _short_name(function: str) -> str:
    return "sdpa" if function == "scaled_dot_product_attention" else function


def _path_end(path: str, most: int) -> str:
    """Return the end of a long path, because that is what distinguishes modules."""
    return path if len(path) <= most else f"…{path[1 - most :]}"


NEXT_STEPS = ("--calls all", "--show modules", "--show heads", "-o page.html", "-o runs.db")
RECORDED_SCREEN = FirstScreen(
    RecordedHeads,
    (
        NamingLine(_title),
        Sentences(_training),
        Special(_modules, "layers that differ by a number share a line"),
        *HEADS_OR_PATTERNS,
        *MAPS,
        Notes(apart=True, least=LEAST_NOTES),
    ),
    next_steps=lambda *_: NEXT_STEPS,
    finding=_finding,
    page_table=survey_table,
)
"""The module of each layer, the patterns, and a letter for each head."""
