"""Reports as tables: on a screen, drawn by rich from plain text without markup, and as Markdown."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from io import StringIO
from itertools import chain
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as ScreenTable
from rich.text import Text

from attncli.plain_text import plain_text
from attncli.records.circuit import HeadEdges
from attncli.records.kinds import KINDS, kinds_of
from attncli.report import PLACES, Numbers, Report, Table
from attncli.settings import SPECS
from attncli.settings.fields import ONE_HEAD
from attncli.views import PARTS, TEXT_WIDTH, Display
from attncli.views.cache_screens import limited_heads_screen, policies_screen
from attncli.views.comparisons import comparison_screen, two_texts_screen, watch_screen
from attncli.views.effect_screens import ablate_screen
from attncli.views.example_screens import examples_screen
from attncli.views.graphs import circuit_screen, weights_screen
from attncli.views.heatmap import sentences
from attncli.views.logit_screens import logit_screen, score_screen
from attncli.views.matrices import chosen_parts, head_name, missing_parts, named_parts, parts_of, pictured
from attncli.views.model_screens import (
    heads_screen,
    looks_at_first,
)
from attncli.views.overlays import whole_lines
from attncli.views.picture_maps import maps_lines
from attncli.views.relation_screens import relations_screen
from attncli.views.screens import (
    attention_screen,
    average_screen,
    norm_screen,
    pitfalls_screen,
    results_screen,
    scale_demo_screen,
)
from attncli.views.sections import (
    GAP,
    Column,
    Drawing,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    TableLabels,
    TensorTables,
    Values,
    statistic_tables,
    step_sections,
)
from attncli.views.source_screens import knows_heads, retrieving_heads_screen, source_screen, split_further
from attncli.views.texts import NO_NUMBER, heading, setting, shortened, text_columns
from attncli.views.writer_screens import (
    generate_screen,
)

ANY = (str, int, float, type(None))
MAYBE = (int, float, type(None))
NUMBER = (int, float)
WHOLE = (int,)
TEXT = (str,)
LIST = (list,)

Columns = Mapping[str, tuple[type, ...]]
"""The columns of a table that a screen reads, and what their cells may be."""


@dataclass(frozen=True)
class Needs:
    """What must be there; and how the tables, single numbers and tensors have to be that are there.

    `tensors` have as many axes, or more; `num_axes` is how many every tensor has, where that matters.
    `said` are the texts of the report that a screen shows.
    """

    must: tuple[str, ...] = ()
    tables: Mapping[str, Columns] = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tensors: Mapping[str, int] = field(default_factory=dict)
    num_axes: int | None = None
    spec: Columns = field(default_factory=dict)
    said: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Of all tables, numbers and tensors."""
        return (*self.must, *self.tables, *self.numbers, *self.tensors)

    def met_by(self, report: Report) -> bool:
        """Whether a report has all of it."""
        return (
            all(name in report.statistics or name in report.tensors for name in self.must)
            and all(getattr(report, name) for name in self.said)
            and _has(report.spec, self.spec)
            and all(self._has_part(report, name) for name in {*self.tables, *self.numbers})
            and all(_has_axes(report, name, axes) for name, axes in self.tensors.items())
            and all(self.num_axes in (None, tensor.values.ndim) for tensor in report.tensors.values())
        )

    def _has_part(self, report: Report, name: str) -> bool:
        match report.statistics.get(name):
            case None:
                return True
            case Numbers() as numbers if name in self.numbers:
                return {*self.numbers[name]} <= numbers.keys()
            case Table() as rows if name in self.tables and (rows or name not in self.must):
                return all(_has(row, self.tables[name]) for row in rows)
        return False


def _has(row: Mapping[str, object], columns: Columns) -> bool:
    return all(key in row and isinstance(row[key], kinds) for key, kinds in columns.items())


def _has_axes(report: Report, name: str, num_axes: int) -> bool:
    tensor = report.tensors.get(name)
    return tensor is None or (tensor.values.ndim >= num_axes and tensor.values.size > 0)


HEAD = {"layer": WHOLE, "head": WHOLE}
WEIGHTS = Needs(
    tensors={"weights": 2, "pooled_mean": 2},
    numbers={
        "scores": ("mean", "variance"),
        "scaled_scores": ("mean", "variance"),
    },
)
NORM = ("feature0_mean", "feature0_std", "example0_mean", "example0_std")

HEADS = Needs(
    tables={
        "heads": {"stack": TEXT, **HEAD},
        "patterns": {
            **{"stack": TEXT, "pattern": TEXT, "statistic": ANY},
            **{"heads": MAYBE, "threshold": MAYBE, "rows": MAYBE},
        },
        "strongest": {"stack": TEXT, "pattern": TEXT, **HEAD, "value": MAYBE},
        "intervals": {"stack": TEXT, **HEAD, "statistic": TEXT, "mean": MAYBE, "upper": MAYBE},
        "named_tokens": {"setting": TEXT, "name": ANY, "text": TEXT, "position": WHOLE, "token": ANY},
    },
)


NEEDS: dict[str, Needs] = {
    **dict.fromkeys(("self", "multihead", "cross", "show"), WEIGHTS),
    "average": replace(WEIGHTS, numbers={"agreement": ("loop_vs_matmul", "loop_vs_softmax")}),
    "scale-demo": Needs(
        must=("variance", "sharpness", "logits"),
        tables={
            "variance": {"head_dim": WHOLE},
            "sharpness": {"factor": NUMBER, "softmax": LIST, "gradient_norm": MAYBE},
        },
        numbers={"variance": ("head_dim",)},
        tensors={"logits": 1},
    ),
    "norm": Needs(
        must=("input",),
        numbers=dict.fromkeys(("input", "batch_norm", "batch_norm_eval", "layer_norm", "rms_norm"), NORM),
    ),
    "pitfalls": Needs(
        tables={
            "pitfalls": dict.fromkeys(("pitfall", "figure", "wrong", "right", "mistake"), ANY),
        },
    ),
    "heads": HEADS,
    "heads of intervals": replace(
        HEADS,
        tables={
            **HEADS.tables,
            "patterns": {**HEADS.tables["patterns"], "texts": MAYBE},
            "strongest": {**HEADS.tables["strongest"], "upper": MAYBE},
        },
    ),
    "ablate": Needs(num_axes=2, spec={"sort": TEXT}, said=("about",)),
    **dict.fromkeys(("why", "why of a score"), Needs(spec={"head": ANY}, said=("about", "how_to_read"))),
    **dict.fromkeys(("source", "source of heads"), Needs(said=("about", "how_to_read"))),
    "diff of texts": Needs(said=("about",)),
    "diff": Needs(tables={"side_by_side": {"statistic": TEXT}}, tensors={"difference": 2}, said=("about",)),
    "results": Needs(
        must=("summary",),
        tables={"summary": {"statistic": TEXT, "mean": NUMBER}},
        spec={"store": TEXT, "group_by": LIST},
    ),
    "watch": Needs(
        must=("steps", "heads"),
        tables={
            "steps": {"step": WHOLE},
            "patterns": {
                **{"stack": TEXT, "pattern": TEXT, **HEAD, "first_step": WHOLE, "heads": WHOLE},
                **{"step": LIST, "count": LIST},
            },
            "changes": {"step": WHOLE, **HEAD, "before": TEXT, "after": TEXT},
            "heads": {"stack": TEXT, **HEAD, "pattern": TEXT},
        },
        said=("about",),
    ),
    "watch of a head": Needs(must=("head",), tables={"head": {"step": WHOLE}}, said=("about",)),
}


def shown_names() -> set[str]:
    """The names of the tables, numbers and tensors that first screens are made of."""
    of_kinds = chain.from_iterable(kind.names() for kind in KINDS.values())
    return {*of_kinds, *(name for needs in NEEDS.values() for name in needs.names())}


def shown_names_of(experiment: str) -> list[str]:
    """Those of one experiment, in whatever form."""
    forms = [needs.names() for name, needs in NEEDS.items() if name.split(" of ")[0] == experiment]
    kinds = [kind.names() for kind in kinds_of(experiment).values()]
    return [name for name in dict.fromkeys(chain.from_iterable(forms + kinds)) if name not in PARTS]


def suits(report: Report) -> bool:
    """Whether a report has what the first screen of its experiment shows."""
    if report.kind:
        return report.result is not None and NEEDS.get(report.kind, Needs()).met_by(report)
    name = report.experiment
    if name == "heads":
        name = "heads of intervals" if report.table("intervals") else name
    if name == "watch" and report.spec.get("head"):
        name = "watch of a head"
    is_met = NEEDS[name].met_by(report)
    if name == "pitfalls" and not report.table("pitfalls"):
        return is_met and _is_wrong_and_right(report)
    if name == "diff":
        heads = report.table("by_head")
        return is_met and all(
            isinstance(head[axis], int) for head in heads for axis in ("batch", *PLACES) if axis in head
        )
    return is_met


def _is_wrong_and_right(report: Report) -> bool:
    """Whether there is a matrix that was computed wrongly and rightly, and the same numbers of both."""
    names = next(reversed(report.pairs.values()), ("weights",))
    shapes = [report.tensors[name].values.shape for name in names if name in report.tensors]
    is_pair = len(shapes) == len(names) and len({*shapes}) == 1 and len(shapes[0]) > 1
    return is_pair and report.numbers("wrong").keys() <= report.numbers("right").keys()


HEATMAP = "--format heatmap"
# Of reports without a Spec.
NEXT_STEPS = {
    "diff": ("--show weights", "--show statistics", "-o page.html"),
    "results": ("--statistic NAME", "--group-by none", "-o summary.csv"),
    "show": ("--show all", HEATMAP, "-o page.html"),
    "watch": ("--head LAYER:HEAD", "-o page.html", "-o steps.csv"),
}


def next_steps(report: Report, display: Display, shown_parts: Sequence[str] = ()) -> Iterator[Paragraph]:
    """What to type next, on one line: no part that is shown, no flag that the report has or cannot have."""
    name = "show" if display.is_saved else report.experiment
    steps = SPECS[name].steps_after(report.spec) if name in SPECS else NEXT_STEPS.get(name, ())
    if name == "heads" and looks_at_first(report):
        steps = ("--skip-sink 1", steps[0], steps[-1])
    if name == "source" and (model := report.spec.get("model")) and not knows_heads(report):
        steps = (f"--find-heads --model {shlex.quote(plain_text(str(model)))}", *steps)
    if name == "source" and (further := split_further(report)):
        steps = (further, *steps)
    if shown_parts:
        steps = tuple(step for step in steps if _is_part_left(step, shown_parts))
    if display.is_saved and not any(len(tensor.axes) > 1 for tensor in report.tensors.values()):
        steps = tuple(step for step in steps if step != HEATMAP)
    if name == "watch" and not report.spec.get("store"):
        name, steps = "heads --checkpoints", ("--follow", steps[0], "-o checkpoints.db")
    if name == "watch" and report.spec.get("head"):
        steps = ("--show all", *steps[1:])
    shown = [_with_head(step, report) for step in steps if _is_new(step, report)]
    lines = [f"Next, with attn {name}: {'  '.join(shown[:count])}" for count in range(len(shown), 0, -1)]
    if lines:
        fitting = (line for line in lines if cell_len(line) <= (display.width or TEXT_WIDTH))
        yield Paragraph(next(fitting, lines[-1]), "prose")


def _with_head(step: str, report: Report) -> str:
    """The step; with the first of the report's heads where it takes one."""
    if step != ONE_HEAD:
        return step
    if isinstance(report.result, HeadEdges) and (edge := report.result.strongest_between_heads()):
        return step.replace("LAYER:HEAD", f"{edge.to_layer}:{edge.to_head}")
    first = next(iter(report.table("heads")), {})
    return step.replace("LAYER:HEAD", head_name(first)) if {*PLACES} <= first.keys() else step


def _is_part_left(step: str, shown_parts: Sequence[str]) -> bool:
    """Whether a step is not a part that is shown already."""
    flag, _, value = step.partition(" ")
    return flag != "--show" or not ("all" in shown_parts or {*value.split(",")} <= {*shown_parts})


def _is_new(step: str, report: Report) -> bool:
    flag, _, value = step.partition(" ")
    key = flag.removeprefix("--").replace("-", "_")
    if step == ONE_HEAD:  # of whose settings it follows whether it is offered
        return True
    if flag == "--show":
        return {*value.split(",")} <= {*parts_of(report), "all"}
    unexplained = report.spec.get("engine") == "streaming" or report.spec.get("words") or report.pictures
    if key == "explain" and unexplained:
        return False
    spec = SPECS.get(report.experiment)
    if spec is None or key not in spec.model_fields:
        return True
    # Some defaults follow from settings before them, or from a file; a report may lack either.
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
    if key in spec.off_keys and key not in report.spec:
        return True
    return key in report.spec and setting(report.spec[key]) != (value or "true")


FirstScreen = Callable[[Report, Display], ScreenParts]

SCREENS_OF_KINDS: dict[str, FirstScreen] = {
    "ablate": ablate_screen,
    "diff of texts": two_texts_screen,
    "generate": generate_screen,
    "heads of examples": examples_screen,
    "heads of relations": relations_screen,
    "cache": limited_heads_screen,
    "cache of policies": policies_screen,
    "source": source_screen,
    "source of heads": retrieving_heads_screen,
    "why": logit_screen,
    "why of a score": score_screen,
    "circuit": circuit_screen,
    "circuit of weights": weights_screen,
}

# An experiment without a screen of its own shows everything. Display.width is a number here.
SCREENS: dict[str, FirstScreen] = {
    "average": average_screen,
    "self": attention_screen,
    "multihead": attention_screen,
    "cross": attention_screen,
    "show": attention_screen,
    "scale-demo": scale_demo_screen,
    "norm": norm_screen,
    "pitfalls": pitfalls_screen,
    "heads": heads_screen,
    "diff": comparison_screen,
    "results": results_screen,
    "watch": watch_screen,
}


def sections(report: Report, display: Display) -> Iterator[Section]:
    """The parts that --show asks for, the explanation, or the first screen; else everything."""
    if display.show:
        yield from _parts(chosen_parts(report, display.show), display)
        names = [name for name in display.show if name not in named_parts(report)]
        for sentence in missing_parts(names, parts_of(report)):
            yield Paragraph(f"T{sentence[1:]}.", "dim")
        if display.height is not None:  # on a terminal, where the first lines may be gone
            yield from next_steps(report, display, display.show)
    elif report.steps:
        yield from _explanation(report, display)
    else:
        parts = _screen(report, display) or _parts(report, display)
        yield from fitted([*parts, *next_steps(report, display)], display)


def _screen(report: Report, display: Display) -> list[Section | Elastic]:
    """The first screen; empty for an experiment without one and for a saved report that was edited since."""
    screen = SCREENS_OF_KINDS.get(report.kind) or SCREENS.get(report.experiment)
    if screen is None or not suits(report):
        return []
    # As wide as the terminal, and in a pipe as wide as most, so that both print the same there.
    width = display.width or TEXT_WIDTH
    screen_display = replace(display, width=width, precision=display.screen_precision)
    return list(screen(report, screen_display))


def _explanation(report: Report, display: Display) -> Iterator[Section]:
    """The steps, or the one asked for: the heading above the first, what to type next below the last."""
    if display.step in (None, 1):
        yield Paragraph(heading(report), "title")
    yield from step_sections(report, TableLabels(report, display), display.step)
    if display.step in (None, len(report.steps)):
        yield from next_steps(report, display)


def _parts(report: Report, display: Display) -> Iterator[Section]:
    """Heading, steps, tensors with the statistics of their rows, the other statistics, notes."""
    yield Paragraph(heading(report), "title")
    labels = TableLabels(report, display)
    drawn, maps = pictured(report), report.picture_maps
    others = {name: tensor for name, tensor in report.tensors.items() if name not in drawn}
    tensors = TensorTables(replace(report, tensors=others), display, labels)
    mentioned: dict[tuple[str, int], str] = {}
    for section in chain(
        step_sections(report, labels),
        [Paragraph("the report", "step")] if report.steps else [],
        (Drawing(title, lines) for name in drawn for title, lines in whole_lines(report, name, display)),
        (Drawing(title, lines) for title, lines in (() if maps is None else maps_lines(maps, display))),
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
    for note in report.sentences:
        yield Paragraph(plain_text(note), "note")


def _long_tokens(
    report: Report, width: int | None, mentioned: Mapping[tuple[str, int], str]
) -> Iterator[str]:
    """Each token that the labels cut short and no picture has mentioned."""
    for name, tokens in (("token", report.tokens), ("context token", report.context_tokens)):
        for i, token in enumerate(map(plain_text, tokens)):
            if shortened(token, width) != token and (name, i) not in mentioned:
                yield f"{name} {i} is {token}"


def fitted(parts: Sequence[Section | Elastic], display: Display) -> list[Section]:
    """The parts in the lines of the display: each has its least rows, then its usual ones, then its most."""

    @cache
    def drawn(place: int, rows: int) -> Sequence[Section]:
        part = parts[place]
        return [*part.of(rows)] if isinstance(part, Elastic) else [part]

    @cache
    def num_lines(place: int, rows: int) -> int:
        stream = StringIO()
        screen = BlankScreen(stream, replace(display, colors="none"))
        for section in drawn(place, rows):
            screen.draw(section)
        return stream.getvalue().count("\n")

    elastic = {place: part for place, part in enumerate(parts) if isinstance(part, Elastic)}
    rows = dict.fromkeys(range(len(parts)), 0) | {place: part.usual for place, part in elastic.items()}
    if display.height is not None and elastic:
        rows |= {place: part.least for place, part in elastic.items()}
        left = display.height - sum(num_lines(*place_and_rows) for place_and_rows in rows.items())
        in_order = sorted(elastic.items(), key=lambda item: item[1].rank)
        for place, most in [
            *((place, part.usual) for place, part in in_order),
            *((place, part.most) for place, part in in_order),
        ]:
            room = left + num_lines(place, rows[place])
            rows[place] = _most_rows(partial(num_lines, place), room, rows[place], most)
            left = room - num_lines(place, rows[place])
    return [section for place, count in rows.items() for section in drawn(place, count)]


def _most_rows(num_lines: Callable[[int], int], room: int, least: int, most: int) -> int:
    """The most rows that fit into the room, `least` where no more do."""
    if most <= least or num_lines(most) <= room:
        return max(least, most)
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if num_lines(middle) <= room else (least, middle)
    return least


LAYOUT_WIDTH = 1_000_000
STYLES = {"prose": "", "line": "", "note": "dim", "dim": "dim"}  # of paragraphs; the others are bold


class PipeConsole(Console):
    """A console that leaves a closed pipe to its caller, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Raise what rich caught."""
        raise


class Screen:
    """Draws sections on a stream, in the width and the colours of the display."""

    def __init__(self, stream: TextIO, display: Display) -> None:
        self.width = display.width
        self.console = PipeConsole(
            file=stream,
            width=LAYOUT_WIDTH,
            color_system="standard" if display.has_color else None,
            force_terminal=display.has_color,
            force_jupyter=False,
            no_color=not display.has_color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            _environ={},
        )

    def draw(self, section: Section) -> None:
        """One section, after a blank line unless it belongs to the section before."""
        if not isinstance(section, Paragraph) or section.style in ("step", "prose", "lead"):
            self.console.print()
        match section:
            case Paragraph(text, "step"):
                line = f"══ {text} "
                self._text(line + "═" * max(0, (self.width or TEXT_WIDTH) - len(line)), "bold")
            case Paragraph(text, style):
                self._text(text, STYLES.get(style, "bold"))
            case Values(sentences, numbers):
                for name, text in sentences.items():
                    self._text(f"{name}: {text}")
                left, right = (max(map(len, texts), default=0) for texts in (numbers, numbers.values()))
                for name, number in numbers.items():
                    self._text(f"{name:<{left}}  {number:>{right}}")
            case Grid():
                self._grid(section)
            case Drawing(title, lines):
                self._text(title, "dim")
                self._lines(lines)

    def _text(self, text: str, style: str = "") -> None:
        """A text in lines, at screen width even in a pipe, where a pager would break it within words."""
        self.console.print(Text(text, style=style), width=self.width or TEXT_WIDTH)

    def _grid(self, grid: Grid) -> None:
        """The table in as many groups of columns as the width needs."""
        groups = grid.groups(self.width)
        if grid.title:
            parts = f" (in {len(groups)} groups of columns)" if len(groups) > 1 else ""
            self._text(f"{grid.title}{parts}", "bold")
        for number, group in enumerate(groups):
            if number:
                self.console.print()
            columns = [grid.label, *group]
            self._table(columns, _folded(columns, self.width))

    def _lines(self, lines: Sequence[str]) -> None:
        self.console.file.writelines(f"{line}\n" for line in lines)

    def _table(self, columns: Sequence[Column], folded: Mapping[int, int]) -> None:
        self.console.print(_table(columns, folded))


class BlankScreen(Screen):
    """As many lines, blank where they are counted without being drawn: parts are fitted in many tries."""

    def _lines(self, lines: Sequence[str]) -> None:
        super()._lines([""] * len(lines))

    def _table(self, columns: Sequence[Column], folded: Mapping[int, int]) -> None:
        if folded:
            super()._table(columns, folded)
        else:
            header = 1 + max(_header(column).count("\n") for column in columns)
            self._lines([""] * (header + 1 + len(columns[0].cells)))


LEAST_WIDTH, LEAST_TEXT = 40, 10
"""A narrower screen has tables as wide as they need; a column of texts keeps so many cells."""


def _folded(columns: Sequence[Column], width: int | None) -> dict[int, int]:
    """The cells left for columns of texts, the widest first, where the table is wider than the screen."""
    excess = sum(column.width for column in columns) + GAP * (len(columns) - 1) - (width or 0)
    folded = {}
    texts = [i for i, column in enumerate(columns) if column.left]
    for i in sorted(texts, key=lambda i: -columns[i].width) if width and width >= LEAST_WIDTH else ():
        if excess > 0 and columns[i].width > LEAST_TEXT:
            folded[i] = max(LEAST_TEXT, columns[i].width - excess)
            excess -= columns[i].width - folded[i]
    return folded


def _table(columns: Sequence[Column], folded: Mapping[int, int]) -> ScreenTable:
    """The columns with a rule below their headers; texts continue below where they are `folded`."""
    table = ScreenTable(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim"
    )
    for i, column in enumerate(columns):
        table.add_column(
            Text(_header(column)),
            justify="left" if column.left else "right",
            no_wrap=i not in folded,
            overflow="fold",
            width=folded.get(i),
            vertical="top" if folded else "bottom",
        )
    for row in zip(*map(_styled_cells, columns), strict=True):
        table.add_row(*row)
    return table


def _header(column: Column) -> str:
    return "\n".join(column.header).lstrip("\n")


def _styled_cells(column: Column) -> Iterator[Text]:
    for row, text in enumerate(column.cells):
        style = "bold" if row in column.emphasis else "dim" if text == NO_NUMBER else ""
        yield Text(text, style=style)


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading, a blank line between reports."""
    screen = Screen(stream, display)
    for number, report in enumerate(reports):
        if number:
            screen.console.print()
        for section in sections(report, display):
            screen.draw(section)


# What is markup anywhere, the middle of an address that GitHub would link, what begins a list or a rule.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$#]|(?<=:)/(?=/)|(?<=www)\.|^[-+](?=[ -]|$)|(?<=[0-9])[.)](?= |$)")
MOST_DIMS = 8


def escaped(text: str) -> str:
    """The text, escaped so that Markdown shows it as it is."""
    return MARKUP.sub(lambda match: f"\\{match[0]}", text.strip())


def _markdown_cell(column: Column, row: int) -> str:
    text = escaped(column.cells[row])
    return f"**{text}**" if row in column.emphasis else text


def _markdown_table(grid: Grid) -> Iterator[str]:
    """Every column, however many there are; the largest number of a row in bold."""
    columns = [grid.label, *grid.columns]
    rows = [[escaped(" ".join(column.header)) for column in columns]]
    rows += [[":--" if column.left else "--:" for column in columns]]
    rows += [[_markdown_cell(column, i) for column in columns] for i in range(len(grid.label.cells))]
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _markdown_blocks(section: Section) -> Iterator[str]:
    """Blocks, which blank lines separate; a drawing is code, indented, so that nothing in it can end it."""
    match section:
        case Paragraph(text, style):
            yield {"title": "# ", "step": "## "}.get(style, "") + escaped(text)
        case Values(sentences, numbers):
            values = {**sentences, **numbers}
            yield "\n".join(f"- {escaped(f'{name}: {text}')}" for name, text in values.items())
        case Grid(title):
            yield f"### {escaped(title)}" if title else ""
            yield "\n".join(_markdown_table(section))
        case Drawing(title, lines):
            yield escaped(title)
            yield "\n".join(f"    {line}" for line in lines)


def write_markdown(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading; tables whole, whatever the screen, but for vectors of many dims."""
    whole = replace(display, width=None, colors="none", most_dims=MOST_DIMS)
    for number, report in enumerate(reports):
        blocks = (
            block for section in sections(report, whole) for block in _markdown_blocks(section) if block
        )
        stream.write(("\n" if number else "") + "\n\n".join(blocks) + "\n")
