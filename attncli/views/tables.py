"""Reports as tables: the first screen or all sections, for a terminal or as Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TextIO

from rich.cells import cell_len

from attncli.feature import LoadedOnUse
from attncli.index import installed_features
from attncli.records.columns import Result
from attncli.records.kinds import KINDS, class_place, experiment_kinds
from attncli.records.report import PLACES, Report
from attncli.settings import known_spec_class
from attncli.settings.fields import ONE_HEAD
from attncli.system.plain_text import plain_text
from attncli.views import PARTS, Display
from attncli.views.first_screen import FirstScreen
from attncli.views.layout import Screen, fitted, markdown_blocks
from attncli.views.matrices import chosen_parts, head_name, missing_parts, part_names, parts_of, pictured
from attncli.views.report_sections import (
    TableLabels,
    TensorTables,
    beside_grids,
    statistic_tables,
    step_sections,
)
from attncli.views.sections import Drawing, Elastic, Paragraph, Section
from attncli.views.texts import default_model, heading, sentences, setting, shortened, text_columns


def shown_names() -> set[str]:
    """Return the names of the tables, numbers and tensors on all first screens."""
    return {*chain.from_iterable(kind.names() for kind in KINDS.values())}


def shown_names_of(experiment: str) -> list[str]:
    """Return the names on the first screens of one experiment and its forms."""
    names = chain.from_iterable(kind.names() for kind in experiment_kinds(experiment).values())
    return [name for name in dict.fromkeys(names) if name not in PARTS]


def suits(report: Report) -> bool:
    """Return True if the report has what its experiment's first screen shows."""
    screen = first_screen(report.result)
    return screen is not None and screen.suits(report)


def empty_parts(report: Report) -> dict[str, str]:
    """Return the reasons why tables of the report are empty, by table name, where emptiness is a result."""
    screen = first_screen(report.result)
    reasons = {} if screen is None else screen.if_empty
    return {name: reason for name, reason in reasons.items() if name not in report.statistics}


HEATMAP = "--format heatmap"
STEPS_OF_SAVED = ("--show all", HEATMAP, "-o page.html")


def next_steps(report: Report, display: Display, shown_parts: Sequence[str] = ()) -> Iterator[Paragraph]:
    """Yield what to type next, on one line, without the parts already shown or the flags already used."""
    name = "show" if display.is_saved else report.experiment
    saved = STEPS_OF_SAVED if name == "show" else ()
    spec_class = known_spec_class(name, report.spec)
    steps = spec_class.steps_after(report.spec) if spec_class else saved
    screen = first_screen(report.result)
    if screen is not None and not display.is_saved:
        steps = screen.next_steps(report, steps)
    if shown_parts:
        steps = tuple(step for step in steps if _is_part_left(step, shown_parts))
    if display.is_saved and not any(len(tensor.axes) > 1 for tensor in report.tensors.values()):
        steps = tuple(step for step in steps if step != HEATMAP)
    new_steps = [_with_head(step, report) for step in steps if _is_new(step, report)]
    if not display.is_saved and _uses_default_model(report):
        new_steps.insert(0, "--model FOLDER")
    while len(new_steps) > 1 and cell_len(_next_line(name, new_steps)) > display.columns:
        del new_steps[-2 if len(new_steps) > 2 else -1]  # the last step often writes a file
    if new_steps:
        yield Paragraph(_next_line(name, new_steps), "prose")


def _next_line(name: str, steps: Sequence[str]) -> str:
    return f"Next, with attn {name}: {' | '.join(steps)}"


def _uses_default_model(report: Report) -> bool:
    """Return True if the report uses the shipped model because no model was named."""
    return report.spec.get("model") is None and default_model(report) is not None


def _with_head(step: str, report: Report) -> str:
    """Insert a head into a step: the head that the screen recommends, or the report's first."""
    if step != ONE_HEAD:
        return step
    screen = first_screen(report.result)
    name = None if screen is None else screen.next_head(report)
    if name is None:
        first = next(iter(report.table("heads")), {})
        name = head_name(first) if {*PLACES} <= first.keys() else None
    return step if name is None else step.replace("LAYER:HEAD", name)


def _is_part_left(step: str, shown_parts: Sequence[str]) -> bool:
    """Return True unless the step shows a part that is already shown."""
    flag, _, value = step.partition(" ")
    return flag != "--show" or not ("all" in shown_parts or {*value.split(",")} <= {*shown_parts})


def _is_new(step: str, report: Report) -> bool:
    flag, _, value = step.partition(" ")
    key = flag.removeprefix("--").replace("-", "_")
    if step == ONE_HEAD:  # the settings of the head decide whether this step is offered
        return True
    if flag == "--show":
        return {*value.split(",")} <= {*parts_of(report), "all"}
    unexplained = report.spec.get("engine") == "streaming" or report.spec.get("words") or report.pictures
    if key == "explain" and unexplained:
        return False
    spec = known_spec_class(report.experiment, report.spec)
    if spec is None or key not in spec.model_fields:
        return True
    # Some defaults follow from earlier settings or from a file; a report may lack either.
    settings: dict[str, Any] = {}
    default = None
    for name, setting_field in spec.model_fields.items():
        if name == key or name not in report.spec:
            default = setting_field.get_default(call_default_factory=True, validated_data=settings)
        settings[name] = report.spec.get(name, default)
        if name == key:
            break
    if value and report.spec.get(key) not in (None, [], default):
        return False
    if key in spec.all_off_keys() and key not in report.spec:
        return True
    return key in report.spec and setting(report.spec[key]) != (value or "true")


SCREEN_PLACES: dict[str, str] = {}
"""The place of the first screen of each class of results, by the place of the class."""
for feature in installed_features().values():
    SCREEN_PLACES |= {kind: place for kind, place in feature.screens.items() if kind not in SCREEN_PLACES}
FIRST_SCREENS: LoadedOnUse[FirstScreen] = LoadedOnUse(SCREEN_PLACES)


def first_screen(result: Result) -> FirstScreen | None:
    """Return the first screen of a result, or None for a class without one."""
    return FIRST_SCREENS.get(class_place(type(result)))


def sections(report: Report, display: Display) -> Iterator[Section]:
    """Return the parts requested by --show, the explanation, the first screen or everything."""
    if display.show:
        yield from _parts(chosen_parts(report, display.show), display)
        reasons = empty_parts(report)
        yield from (Paragraph(reasons[name], "line") for name in display.show if name in reasons)
        names = [name for name in display.show if name not in (*part_names(report), *reasons)]
        for sentence in missing_parts(report, names, parts_of(report)):
            yield Paragraph(f"T{sentence[1:]}.", "dim")
        if display.height is not None:  # on a terminal, where the first lines may have scrolled away
            yield from next_steps(report, display, display.show)
    elif report.steps:
        yield from _explanation(report, display)
    else:
        parts = _screen(report, display) or _parts(report, display)
        yield from fitted([*parts, *next_steps(report, display)], display)


def _screen(report: Report, display: Display) -> list[Section | Elastic]:
    """Return the first screen, which is empty for an experiment without one and for an edited report."""
    screen = first_screen(report.result)
    if screen is None or not screen.suits(report):
        return []
    # As wide as the terminal; in a pipe, as wide as most terminals, so that both print the same lines.
    width = display.columns
    screen_display = replace(display, width=width, precision=display.screen_precision)
    return list(screen.sections(report, screen_display))


def _explanation(report: Report, display: Display) -> Iterator[Section]:
    """Return all steps or the requested step, with the heading above and suggestions below them."""
    if display.step in (None, 1):
        yield Paragraph(heading(report), "title")
    yield from step_sections(report, TableLabels(report, display), display.step)
    if display.step in (None, len(report.steps)):
        yield from next_steps(report, display)


def _parts(report: Report, display: Display) -> Iterator[Section]:
    """Return the heading, steps, tensors with row statistics, other statistics, and notes."""
    yield Paragraph(heading(report), "title")
    if report.missing:
        yield Paragraph(plain_text(report.missing), "line")
    labels = TableLabels(report, display)
    drawn = pictured(report)
    others = {name: tensor for name, tensor in report.tensors.items() if name not in drawn}
    tensors = TensorTables(replace(report, tensors=others), display, labels)
    mentioned: dict[tuple[str, int], str] = {}
    for section in chain(
        step_sections(report, labels),
        [Paragraph("the report", "step")] if report.steps else [],
        _pictures(report, display) if drawn or report.picture_maps is not None else (),
        tensors.sections(),
        statistic_tables(beside_grids(report), display, labels),
        tensors.number_lines(),
    ):
        if isinstance(section, Drawing):
            mentioned |= section.mentioned
        yield section
    long = _long_tokens(report, labels.row_width, mentioned)
    for line in ("", *text_columns(sentences(mentioned), display.columns), *long):
        yield Paragraph(line, "dim")
    for note in report.sentences:
        if note != report.missing:
            yield Paragraph(plain_text(note), "note")


def _pictures(report: Report, display: Display) -> Iterator[Drawing]:
    """Return the looks at each picture, and the maps over several pictures."""
    from attncli.views.overlays import whole_lines
    from attncli.views.picture_maps import maps_lines

    for name in pictured(report):
        yield from (Drawing(title, lines) for title, lines in whole_lines(report, name, display))
    if report.picture_maps is not None:
        yield from (Drawing(title, lines) for title, lines in maps_lines(report.picture_maps, display))


def _long_tokens(
    report: Report, width: int | None, mentioned: Mapping[tuple[str, int], str]
) -> Iterator[str]:
    """Return the tokens that labels shorten and that no picture has mentioned."""
    for name, tokens in (("token", report.tokens), ("context token", report.context_tokens)):
        for i, token in enumerate(map(plain_text, tokens)):
            if shortened(token, width) != token and (name, i) not in mentioned:
                yield f"{name} {i} is {token}"


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write each report under its heading, with a blank line between reports."""
    screen = Screen(stream, display)
    for number, report in enumerate(reports):
        if number:
            screen.console.print()
        for section in sections(report, display.wide_enough()):
            screen.draw(section)


MOST_DIMS = 8


def write_markdown(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write each report under its heading, with whole tables except for vectors with many dimensions."""
    whole = replace(display, width=None, colors="none", most_dims=MOST_DIMS)
    for number, report in enumerate(reports):
        blocks = (block for section in sections(report, whole) for block in markdown_blocks(section) if block)
        stream.write(("\n" if number else "") + "\n\n".join(blocks) + "\n")
