"""Commands and their parameters as Typer's own objects, built from data; the flags that commands share."""

import gc
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer._coercion import TypeDescriptor
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.models import ArgumentInfo, OptionInfo

from attncli.errors import UserError, nearest
from attncli.settings.fields import Spec
from attncli.settings.validation import Given
from attncli.views import COLOR_DEPTHS, PARTS, SCALES, VIEWS, Display

# How a command ends: its exit code.
DONE, FAILED, INTERRUPTED = 0, 1, 130
# The headings of long help in their order; one that is not here is an experiment's own and leads.
GROUPS = ("Input", "Projections", "Mask and position", "Variants", "Model", "Output", "Options")
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
MAX_UNGROUPED = 22
NAME_WIDTH = 30

Parameter = TyperArgument | TyperOption


def option(
    names: str,
    help: str,
    metavar: str | None = None,
    *,
    kind: Any = str,
    default: Any = None,
    choices: Iterable[str] = (),
    min: int | None = None,
    group: str | None = None,
    expose_value: bool = True,
) -> TyperOption:
    """An option by its names, as `--output -o`; its value is None, or the default, where it is not given.

    `kind` is str, int, bool (a flag) or list[str] (a repeatable one); `choices` are what a shell completes.
    """
    words = list(choices)
    return TyperOption(
        param_decls=names.split(),
        type_descriptor=TypeDescriptor(kind, OptionInfo(min=min), None),
        help=help,
        metavar=metavar or "|".join(words) or None,
        is_flag=kind is bool,
        multiple=kind == list[str],
        default=default,
        show_default=True,
        autocompletion=(lambda context, arguments, begun: words) if words else None,
        min=min,
        rich_help_panel=group,
        expose_value=expose_value,
    )


def flag(name: str, help: str, *, group: str | None = None) -> TyperOption:
    """A switch that is off unless it is given."""
    return option(name, help, kind=bool, default=False, group=group)


def argument(name: str, help: str, metavar: str, *, required: bool = True, nargs: int = 1) -> TyperArgument:
    """An argument; with nargs -1 as many as there are."""
    return Argument(
        param_decls=[name],
        type_descriptor=TypeDescriptor(str if nargs == 1 else list[str], ArgumentInfo(), None),
        help=help,
        metavar=metavar,
        required=required,
        nargs=nargs,
    )


class Argument(TyperArgument):
    """An argument that help shows by its name alone: `FILE`, `[REPORT]`, `FILE...`."""

    def _usage_display_name(self) -> str:
        name = self.display_name_raw
        return (name if self.required else f"[{name}]") + ("" if self.nargs == 1 else "...")

    def display_type_rich(self, ctx: Any) -> str:
        """Nothing: the description says it."""
        return ""


class Command(TyperCommand):
    """A command whose help starts with examples and groups its options where there are many.

    Called without its required arguments it shows its help.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        run: Callable[..., int | None],
        parameters: Sequence[Parameter],
        examples: Sequence[str],
    ) -> None:
        super().__init__(
            name,
            callback=run,
            params=list(parameters),
            help="\n".join((f"{summary}.\n\n\b\nExamples:", *(f"  {line}" for line in examples))),
            no_args_is_help=any(parameter.required for parameter in parameters),
            rich_markup_mode=None,
            context_settings=HELP_NAMES,
        )

    def invoke(self, ctx: Any) -> Any:
        """Run it; what was imported until now lives as long as the process, and is not collected."""
        gc.freeze()
        gc.enable()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer's, with advice to quote a sentence that was split into several arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            message = error.format_message()
            has_sentence = any(parameter.name == "sentence" for parameter in self.params)
            if has_sentence and message.startswith("Got unexpected extra argument"):
                is_bare = any(isinstance(one, Argument) and one.metavar == "TEXT" for one in self.params)
                flag = "" if is_bare else "--sentence "
                raise UserError(
                    f'{message}: a text goes in quotes: attn {self.name} {flag}"the cat sleeps"'
                ) from None
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments; then the options, grouped where they would not fit on one screen."""
        is_long = len(self.params) > MAX_UNGROUPED
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            title = "Arguments"
            if isinstance(parameter, TyperOption):
                title = (parameter.rich_help_panel if is_long else None) or "Options"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append(record)
        names = [name for title in sections.keys() - {"Arguments"} for name, _ in sections[title]]
        width = min(max(map(len, names)), NAME_WIDTH)
        for title in sorted(sections, key=_place):
            (first, text), *others = sections[title]
            # Padded, so that descriptions begin in the same column in every group.
            padded = first if title == "Arguments" else first.ljust(width)
            with formatter.section(title):
                formatter.write_dl([(padded, text), *others], col_max=NAME_WIDTH)


def _place(title: str) -> tuple[bool, int]:
    return title != "Arguments", GROUPS.index(title) if title in GROUPS else -1


MAX_PRECISION = 15
MAX_DIGITS = 9
COLORS = ("auto", "always", "never", *COLOR_DEPTHS[1:])

# The flags of every command that shows reports; help groups them.
FORMAT = option(
    "--format",
    "How to write reports. [default: by the suffix of -o, else table]",
    choices=VIEWS,
    group="Output",
)
SHOW = option(
    "--show",
    f"Parts of the report instead of its first screen: {', '.join(PARTS)}; in csv and parquet another table.",
    "PART,...",
    kind=list[str],
    group="Output",
)
OUTPUT = option(
    "--output -o", "Write to a file, whole or not at all; - is standard output.", "FILE", group="Output"
)
OPEN = flag("--open", "Open the page or picture of -o in the browser.", group="Output")
STEP = option("--step", "Show only step N of --explain.", "INTEGER", group="Output")
PRECISION = option(
    "--precision", "Decimals in tables. [default: 4; on a first screen 2]", "INTEGER", group="Output"
)
COLOR = option("--color", "Colour in tables and heatmaps.", choices=COLORS, default="auto", group="Output")
SCALE_COLORS = option(
    "--scale-colors",
    "How colours spread over numbers; row: over each row by itself. [default: linear; of blocks log]",
    choices=SCALES,
    group="Output",
)
TITLE = option("--title", "The title of a picture, page or heatmap.", "TEXT", group="Output")
SKIP_SINK = option(
    "--skip-sink", "Exclude the first N keys from the colour scale. [default: 0]", "INTEGER", group="Output"
)
DEBUG_HELP = "Show a traceback with an error."
# Not passed to commands: main looks for it itself.
DEBUG = option("--debug", DEBUG_HELP, kind=bool, default=False, expose_value=False)

FRESH = flag("--fresh", "Start the store over instead of resuming.")
WORKERS = option(
    "--workers",
    "Processes to compute in (default: one per core where the batch is worth their start).",
    "INTEGER",
    kind=int,
    min=1,
)
SCHEDULER = option("--scheduler", "Compute on a Dask cluster: tcp://host:port.", "ADDRESS")

COLOR_FLAGS = (COLOR, SCALE_COLORS, SKIP_SINK)
OUTPUT_FLAGS = (FORMAT, OUTPUT, OPEN, TITLE, SHOW, STEP, PRECISION, *COLOR_FLAGS)


def refuse_unknown(flag: str, value: str, known: Collection[str]) -> None:
    """UserError for a value that is not one of the known ones."""
    if value not in known:
        raise UserError(f"{flag}: must be one of {', '.join(known)} (got {value}){nearest(value, known)}")


def store_errors(store: Path | None, flags: Mapping[str, Any]) -> Iterator[str]:
    """The errors of flags that need a store."""
    given = [name for name, value in flags.items() if value not in (None, False)]
    for name in given if store is None else ():
        yield f"--{name}: needs a store: -o FILE.db"
    if {"workers", "scheduler"} <= {*given}:
        yield "--workers: cannot be combined with --scheduler, which has its own"


def checked_display(
    color: str,
    scale_colors: str | None,
    skip_sink: str | None,
    precision: str | None = None,
    show: Sequence[str] = (),
    *,
    several: bool = False,
) -> Display:
    """The display that the flags ask for; UserError for an invalid value."""
    refuse_unknown("--color", color, COLORS)
    if scale_colors is not None:
        refuse_unknown("--scale-colors", scale_colors, SCALES)
    parts = [part.strip() for text in show for part in text.split(",")]
    if precision is not None and (
        not precision.isdecimal() or len(precision) > MAX_DIGITS or int(precision) > MAX_PRECISION
    ):
        raise UserError(
            f"--precision: must be a whole number from 0 to {MAX_PRECISION} (got {precision:.60})"
        )
    if skip_sink is not None and not skip_sink.isdecimal():
        raise UserError(f"--skip-sink: must be a whole number (got {skip_sink:.60})")
    if skip_sink is not None and len(skip_sink) > MAX_DIGITS:
        raise UserError(f"--skip-sink: must have at most {MAX_DIGITS} digits (got {skip_sink:.60})")
    display = Display(
        several=several, scale_colors=scale_colors, skip_sink=int(skip_sink or 0), show=tuple(parts)
    )
    if precision is None:
        return display
    return replace(display, precision=int(precision), screen_precision=int(precision))


def width(is_terminal: bool) -> int | None:
    """The columns to fill: COLUMNS, else the terminal's, else as many as needed."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80 if is_terminal else None


def color_depth(choice: str, is_terminal: bool | None) -> str:
    """How many colours: as --color says, else as the environment and the terminal allow."""
    if choice in COLOR_DEPTHS:
        return choice
    if choice == "never" or (choice == "auto" and not _wants_color(is_terminal)):
        return "none"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    term = os.environ.get("TERM", "")
    return "truecolor" if term.endswith("-direct") else "256" if "256" in term else "16"


def _wants_color(is_terminal: bool | None) -> bool:
    """The first that decides: a file, NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM=dumb, a terminal."""
    environ = os.environ
    if is_terminal is None or environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


MAX_CHOICES_SHOWN = 8
FLAGS = {"num_examples": "--examples"}
"""The flags that are not called like their keys: `examples` are a Spec's own, for help."""


def flag_name(key: str) -> str:
    """`--head-dim` for `head_dim`."""
    return FLAGS.get(key, f"--{key.replace('_', '-')}")


def setting_options(spec_class: type[Spec]) -> list[TyperOption]:
    """A flag for each setting, its value None where it is not given; those of every experiment come last."""
    shared_last = sorted(spec_class.model_fields, key=lambda key: key in Spec.model_fields)
    return [_option(spec_class, key) for key in shared_last]


def _option(spec_class: type[Spec], key: str) -> TyperOption:
    field, group = spec_class.model_fields[key], spec_class.group_of(key)
    name, description = flag_name(key), f"{field.description}{default_text(field)}"
    if field.annotation is bool:
        return option(f"{name}/--no-{name[2:]}", help=description, kind=bool, group=group)
    return option(
        f"{key} {name}",
        description,
        kind=list[str] if _is_list(field) else str,
        metavar=metavar(key, field),
        choices=_choices(field.annotation),
        group=group,
    )


def given_flags(flags: dict[str, Any]) -> dict[str, Given]:
    """The flags that were given; the values of a list may be repeated flags or stand between commas."""
    given = {}
    for key, value in flags.items():
        if isinstance(value, list):
            value = [part.strip() for text in value for part in text.split(",")]
        if value not in (None, ()):
            given[key] = Given(value, flag_name(key), is_flag=True)
    return given


def refuse_given(values: Mapping[str, Any], reason: str) -> None:
    """UserError for the first flag that was given, which means nothing here."""
    for key, value in values.items():
        if value not in (None, ()):
            raise UserError(f"{flag_name(key)}: {reason}")


def metavar(key: str, field: FieldInfo) -> str:
    """How help names the values of a setting: its choices, a kind of number, a file or text."""
    choices, leaves = _choices(field.annotation), list(_leaves(field.annotation))
    numbers = ["NUMBER"] if float in leaves else ["INTEGER"] if int in leaves else []
    if key == "projection_order":
        return ",".join(choices)
    if len(choices) > MAX_CHOICES_SHOWN:
        return "STATISTIC" if "entropy" in choices else "NAME"
    if choices or numbers:
        return "|".join([*choices, *numbers]) + (",..." if _is_list(field) else "")
    return "FILE" if key.endswith("file") else "TEXT"


def default_text(field: FieldInfo) -> str:
    """` [default: 16]`, where a setting has one that follows from no other setting."""
    value = field.default
    if field.is_required() or value in (None, []) or field.default_factory is not None:
        return ""
    if isinstance(value, list):
        return f" [default: {','.join(f'{v:g}' if isinstance(v, float) else str(v) for v in value)}]"
    return f" [default: {str(value).lower() if isinstance(value, bool) else value}]"


def _choices(annotation: Any) -> list[str]:
    """The words that a setting may be, where it is one of some."""
    return [leaf for leaf in _leaves(annotation) if isinstance(leaf, str)]


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types and words of which an annotation is made."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _leaves(part)


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list
