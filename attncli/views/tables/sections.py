"""The sections of a report that people see, in order, as they suit the width of the screen."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.heading import heading
from attncli.views.labels import shortened
from attncli.views.parts import chosen_parts, missing_parts, parts_of
from attncli.views.tables.elements import Drawing, Paragraph, Section, TableLabels
from attncli.views.tables.screens import SCREENS
from attncli.views.tables.screens.headlines import next_steps
from attncli.views.tables.screens.needs import suits
from attncli.views.tables.statistic_tables import statistic_tables
from attncli.views.tables.step_sections import step_sections
from attncli.views.tables.tensor_tables import TensorTables
from attncli.views.terminal.blocks import text_columns
from attncli.views.terminal.heatmap_layout import sentences


def sections(report: Report, display: Display) -> Iterator[Section]:
    """The parts that --show asks for, the explanation, or the first screen; else everything."""
    if display.show:
        yield from _parts(chosen_parts(report, display.show), display)
        for sentence in missing_parts(display.show, parts_of(report)):
            yield Paragraph(f"T{sentence[1:]}.", "dim")
    elif report.steps:
        yield from _explanation(report, display)
    else:
        yield from _screen(report, display) or _parts(report, display)
        yield from next_steps(report)


def _screen(report: Report, display: Display) -> list[Section]:
    """The first screen; empty for an experiment without one and for a saved report that was edited since."""
    if report.experiment not in SCREENS or not suits(report):
        return []
    # As wide as the terminal, and in a pipe as wide as most, so that both print the same there.
    width = display.width or TEXT_WIDTH
    screen_display = replace(display, width=width, precision=display.screen_precision)
    return list(SCREENS[report.experiment](report, screen_display))


def _explanation(report: Report, display: Display) -> Iterator[Section]:
    """The steps, or the one asked for: the heading above the first, what to type next below the last."""
    if display.step in (None, 1):
        yield Paragraph(heading(report), "title")
    yield from step_sections(report, TableLabels(report, display), display.step)
    if display.step in (None, len(report.steps)):
        yield from next_steps(report)


def _parts(report: Report, display: Display) -> Iterator[Section]:
    """Heading, steps, tensors with the statistics of their rows, the other statistics, notes."""
    yield Paragraph(heading(report), "title")
    labels = TableLabels(report, display)
    tensors = TensorTables(report, display, labels)
    mentioned: dict[tuple[str, int], str] = {}
    for section in chain(
        step_sections(report, labels),
        [Paragraph("the report", "step")] if report.steps else [],
        tensors.sections(),
        statistic_tables(report, display, labels),
        tensors.lines_of_numbers(),
    ):
        if isinstance(section, Drawing):
            mentioned |= section.mentioned
        yield section
    long = _long_tokens(report, labels.row_width, mentioned)
    for line in ("", *text_columns(sentences(mentioned), display.width or TEXT_WIDTH), *long):
        yield Paragraph(line, "dim")
    for note in report.notes:
        yield Paragraph(plain_text(note), "note")


def _long_tokens(
    report: Report, width: int | None, mentioned: Mapping[tuple[str, int], str]
) -> Iterator[str]:
    """Each token that the labels cut short and no picture has mentioned."""
    for name, tokens in (("token", report.tokens), ("context token", report.context_tokens)):
        for i, token in enumerate(map(plain_text, tokens)):
            if shortened(token, width) != token and (name, i) not in mentioned:
                yield f"{name} {i} is {token}"
