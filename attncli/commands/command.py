"""Commands and their parameters as plain data; the flags that commands share, and those of settings."""

import io
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from stat import S_ISCHR
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from attncli.errors import UserError, must_be_one_of
from attncli.settings import every_setting_of
from attncli.settings.config_file import ConfigFile
from attncli.settings.fields import (
    ALTERNATIVES,
    Everyday,
    Given,
    NoFlag,
    Spec,
    checked_spec,
    current,
    flag_name,
    in_words_of,
    leaves_of,
    other_names,
)
from attncli.settings.text import FILE_SETTINGS, PATH_KEYS
from attncli.system.files import stdin_bytes, wait_for_bytes
from attncli.system.plain_text import MAX_DIGITS, whole_number
from attncli.system.platforms import terminal_size
from attncli.views import COLOR_DEPTHS, PARTS, SCALES, VIEWS, Display


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An option, or an argument where it has no `flags`; its value reaches the command's `run` by its name.

    `kind` is str, int, bool (a switch) or list[str] (an option that may be repeated, or all other arguments);
    `choices` are what a shell completes; `group` is its heading in the help of all flags, and `everyday` what
    everyday help says of it, empty where it is not there. A `hidden` flag is in no help: `now` is the
    parameter that takes its value, or `refusal` says what to write instead. `reads_file` if it names a file
    that is read, which may be one of the lessons'.
    """

    name: str
    flags: tuple[str, ...] = ()
    help: str
    metavar: str | None
    kind: Any = str
    default: Any = None
    choices: tuple[str, ...] = ()
    min: int | None = None
    group: str | None = None
    everyday: str = ""
    hidden: bool = False
    refusal: str = ""
    now: str = ""
    required: bool = False
    is_passed: bool = True
    reads_file: bool = False

    def found(self, value: Any) -> Any:
        """The value; for names of files to read, the files that they name."""
        if not self.reads_file or value is None:
            return value
        return [shipped(each) for each in value] if self.kind == list[str] else shipped(value)


LESSON_FILES = files("attncli") / "data" / "lessons" / "files"


def shipped(file: str) -> str:
    """The file. `lessons/bat-cave.json`, as lessons write it, means the shipped file where none is here."""
    folder, name = Path(file).parent, Path(file).name
    if folder != Path("lessons") or Path(file).exists():
        return file
    return str(LESSON_FILES / name) if name in {each.name for each in LESSON_FILES.iterdir()} else file


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
    everyday: str = "",
    is_passed: bool = True,
    reads_file: bool = False,
) -> Parameter:
    """An option by its flags, as `--output -o`, after another name for its value where that has one."""
    first, *others = names.split()
    words = tuple(choices)
    return Parameter(
        name=first.partition("/")[0].lstrip("-").replace("-", "_"),
        flags=tuple(others) if first.isidentifier() else (first, *others),
        help=help,
        metavar=metavar or "|".join(words) or None,
        kind=kind,
        default=default,
        choices=words,
        min=min,
        group=group,
        everyday=everyday,
        is_passed=is_passed,
        reads_file=reads_file,
    )


def flag(name: str, help: str, *, group: str | None = None, everyday: str = "") -> Parameter:
    """A switch that is off unless it is given."""
    return option(name, help, kind=bool, default=False, group=group, everyday=everyday)


def argument(
    name: str,
    help: str,
    metavar: str,
    *,
    kind: Any = str,
    required: bool = True,
    choices: Iterable[str] = (),
    reads_file: bool = False,
) -> Parameter:
    """An argument; of the kind list[str] as many as there are."""
    return Parameter(
        name=name,
        help=help,
        metavar=metavar,
        kind=kind,
        required=required,
        choices=tuple(choices),
        reads_file=reads_file,
    )


def with_other_names(parameters: Sequence[Parameter]) -> list[Parameter]:
    """The parameters, and those of them that are read by another name, too, which no help has."""
    named = {each.name: each for each in parameters}
    others = [
        replace(named[name], name=other, flags=(f"--{other}",), hidden=True, now=name, is_passed=False)
        for other, name in other_names(named).items()
        if named[name].flags
    ]
    return [*parameters, *others]


@dataclass(frozen=True)
class Command:
    """A command: `run` takes the values of its parameters by their names, and gives the exit code (None: 0).

    Where it `runs_commands`, `run` takes `attn`, too: what runs a command line and gives its exit code.
    Where it `runs_program`, all that follows the first word that is no flag, or `--`, is the program's.
    If it `needs_torch`, it is refused at once where memory is too small for that.
    """

    name: str
    summary: str
    run: Callable[..., int | None]
    parameters: Sequence[Parameter]
    examples: Sequence[str]
    runs_commands: bool = False
    runs_program: bool = False
    needs_torch: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", with_other_names(self.parameters))

    def refuse_writing_over(self, values: Mapping[str, Any]) -> None:
        """Raise UserError where -o names a file that another parameter reads and would be overwritten."""
        output = values.get(OUTPUT.name)
        if output is None or not is_file(output):
            return
        for parameter in self.parameters:
            value = values.get(parameter.name) if parameter.reads_file else None
            for name in [value] if isinstance(value, str) else value or ():
                if is_file(name) and Path(name).samefile(output):
                    raise UserError(f"-o {output}: is a file that this command reads: give another name")


def is_file(name: str) -> bool:
    """Whether a file of that name exists; a text may be too long for a file name."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


MAX_PRECISION = 15
COLORS = ("auto", "always", "never", *COLOR_DEPTHS[1:])

# The flags of every command that shows reports; help groups them.
FORMAT = option(
    "--format",
    "How to write reports. [default: by the suffix of -o, else table]",
    choices=VIEWS,
    group="Output",
    everyday="table, json, csv, md, html, png, and others",
)
SHOW = option(
    "--show",
    f"Parts of the report instead of its first screen: {', '.join(PARTS)}, or a table by its name; in csv "
    "and parquet another table.",
    "PART,...",
    kind=list[str],
    choices=PARTS,
    group="Output",
    everyday="parts: weights, rows, ..., all, or a table's name",
)
OUTPUT = option(
    "--output -o",
    "Write to a file, whole or not at all; - is standard output.",
    "FILE",
    group="Output",
    everyday="write to a file: .json, .csv, .html, .png, ...",
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
SKIP_FIRST_KEYS = option(
    "--skip-first-keys",
    "Exclude the first N keys from the colour scale. [default: 0]",
    "INTEGER",
    group="Output",
)
DEBUG_HELP = "Show a traceback with an error."
# Not passed to commands: main looks for it itself.
DEBUG = option("--debug", DEBUG_HELP, kind=bool, default=False, is_passed=False)

FRESH = flag("--fresh", "Start the store over instead of resuming.")
WORKERS = option(
    "--workers",
    "Processes to compute in (default: one per core where the batch is worth their start).",
    "INTEGER",
    kind=int,
    min=1,
    everyday="processes to compute in",
)
SCHEDULER = option("--scheduler", "Compute on a Dask cluster: tcp://host:port.", "ADDRESS")

CONFIG = option(
    "--config",
    "Read settings from a YAML file; flags override the file.",
    "FILE",
    everyday="read settings from a YAML file",
    reads_file=True,
)

COLOR_FLAGS = (COLOR, SCALE_COLORS, SKIP_FIRST_KEYS)
OUTPUT_FLAGS = (FORMAT, OUTPUT, OPEN, TITLE, SHOW, STEP, PRECISION, *COLOR_FLAGS)


def refuse_unknown(flag: str, value: str, known: Collection[str]) -> None:
    """Raise UserError for a value that is not one of the known ones."""
    if value not in known:
        raise UserError(f"{flag}: {must_be_one_of(value, known)}")


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
    skip_first_keys: str | None,
    precision: str | None = None,
    show: Sequence[str] = (),
    *,
    several: bool = False,
) -> Display:
    """The display that the flags ask for. Raises UserError for an invalid value."""
    refuse_unknown("--color", color, COLORS)
    if scale_colors is not None:
        refuse_unknown("--scale-colors", scale_colors, SCALES)
    parts = [part.strip() for text in show for part in text.split(",")]
    digits = whole_number(precision or "0")
    if digits is None or digits > MAX_PRECISION:
        raise UserError(
            f"--precision: must be a whole number from 0 to {MAX_PRECISION} (got {precision:.60})"
        )
    first_keys = skip_first_keys or "0"
    if not first_keys.isdecimal():
        raise UserError(f"--skip-first-keys: must be a whole number (got {first_keys:.60})")
    if len(first_keys) > MAX_DIGITS:
        raise UserError(f"--skip-first-keys: must have at most {MAX_DIGITS} digits (got {first_keys:.60})")
    display = Display(
        several=several, scale_colors=scale_colors, skip_first_keys=int(first_keys), show=tuple(parts)
    )
    if precision is None:
        return display
    return replace(display, precision=digits, screen_precision=digits)


def width(is_terminal: bool) -> int | None:
    """The columns to fill: COLUMNS, else the terminal's, else as many as needed."""
    columns = os.environ.get("COLUMNS", "")
    if number := whole_number(columns):
        return number
    return terminal_size(sys.stdout.fileno()).columns if is_terminal else None


def height(is_terminal: bool) -> int | None:
    """The lines above a terminal's prompt: LINES, else its height; None (no limit) where that is unknown.

    A pipe has no limit, whatever LINES says: the program that started attn may have set it (readline does).
    """
    if not is_terminal:
        return None
    lines = os.environ.get("LINES", "")
    known = whole_number(lines) or terminal_size(sys.stdout.fileno()).lines
    return max(known - 1, 1) if known else None


def can_walk() -> bool:
    """Whether somebody reads along: standard output is a screen and keys can be pressed."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


CLEAR = "\r\x1b[K"
"""Takes back what stands on the line."""


def color_depth(choice: str, is_terminal: bool | None) -> str:
    """How many colours: as --color says, else as the environment and the terminal allow."""
    if choice in COLOR_DEPTHS:
        return choice
    if choice == "never" or (choice == "auto" and not _wants_color(is_terminal)):
        return "none"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "WT_SESSION" in os.environ:
        return "truecolor"
    term = os.environ.get("TERM", "")
    return "truecolor" if term.endswith("-direct") else "256" if "256" in term else "16"


def _wants_color(is_terminal: bool | None) -> bool:
    """The first that decides: a file, NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM=dumb, a terminal."""
    environ = os.environ
    if is_terminal is None or environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced != "0"
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


MAX_CHOICES_SHOWN = 8
HEAD = "LAYER:HEAD"
HEAD_KEYS = {"head": HEAD, "full": f"{HEAD},...", "ablate": f"{HEAD},...", "heads": f"{HEAD},...|all"}
"""The settings that name heads of a model."""


def setting_options(spec_class: type[Spec]) -> list[Parameter]:
    """A flag for each setting, its value None where it is not given; those of every experiment come last."""
    shared_last = sorted(spec_class.model_fields, key=lambda key: key in Spec.model_fields)
    return [_option(spec_class, key) for key in shared_last]


def _option(spec_class: type[Spec], key: str) -> Parameter:
    field, group = spec_class.model_fields[key], spec_class.group_of(key)
    name = flag_name(key)
    description = f"{in_words_of(str(field.description), flags=True)}{default_text(field)}"
    everyday = next((data for data in field.metadata if isinstance(data, Everyday)), None)
    without = next((data for data in field.metadata if isinstance(data, NoFlag)), None)
    is_switch = field.annotation is bool
    made = option(
        f"{name}/--no-{name[2:]}" if is_switch else f"{key} {name}",
        description,
        kind=bool if is_switch else list[str] if _is_list(field) else str,
        metavar=None if is_switch else metavar(key, field),
        choices=() if is_switch else _choices(field.annotation),
        group=group,
        reads_file=key in PATH_KEYS,
        everyday="" if everyday is None or key in spec_class.rare_keys else everyday.text or description,
    )
    if without is not None:
        return replace(made, hidden=True, refusal=without.reason.format(key=key))
    return made


def given_flags(flags: dict[str, Any]) -> dict[str, Given]:
    """The flags that were given; the values of a list may be repeated flags or stand between commas."""
    given = {}
    for key, value in flags.items():
        if isinstance(value, list):
            value = [part.strip() for text in value for part in text.split(",")]
        if value not in (None, ()):
            given[key] = Given(value, flag_name(key), is_flag=True)
    return given


def given_settings(name: str, config: str | None, flags: dict[str, Any]) -> dict[str, Given]:
    """The settings of a config file and of the flags; flags override the file."""
    given = ConfigFile(Path(config)).single(name) if config is not None else {}
    spec_class = every_setting_of(name)
    given, from_flags = current(spec_class, given), current(spec_class, given_flags(flags))
    for group in ALTERNATIVES:
        if from_flags.keys() & group:
            given = {key: value for key, value in given.items() if key not in group}
    return given | from_flags


# The settings that choose the input. Without any of them the text may come from standard input.
TEXT_KEYS = frozenset((*ALTERNATIVES[0], "probe", *FILE_SETTINGS))
WAITING = "stdin: waiting for its text (a text on the command line, or < /dev/null, would not wait)"


def has_piped_text() -> bool:
    """Whether standard input holds a text: a pipe, a socket or a redirected file that is not empty.

    A terminal, /dev/null or another device, and a closed stream are not read. Everything else is waited for
    until its first byte or its end, however late these come, and nothing is consumed. Raises UserError for
    a stream that cannot be read.
    """
    try:
        file = sys.stdin.fileno()
        mode = os.fstat(file).st_mode
    except (AttributeError, OSError, ValueError):  # closed by the caller, or not a file
        return False
    if S_ISCHR(mode):
        return False
    try:
        wait_for_bytes(file, WAITING)
        stream = stdin_bytes()
        return isinstance(stream, io.BufferedReader) and bool(stream.peek(1))
    except OSError as error:
        raise UserError(f"stdin: cannot be read: {error.strerror}") from None


def with_piped_text(spec_class: type[Spec], given: dict[str, Given]) -> dict[str, Given]:
    """The settings, with the text on standard input if they give no text and can be combined with one.

    Wrong settings are reported before anything is waited for.
    """
    key = "file" if "file" in spec_class.model_fields else spec_class.argument
    if key not in ("file", "texts") or given.keys() & TEXT_KEYS:
        return given
    piped = given | {key: Given("-", "stdin")}
    try:
        checked_spec(spec_class, piped)
    except UserError:
        if key == "file":  # the command needs no text, or is wrong without one, too
            checked_spec(spec_class, given)
            return given
    return piped if has_piped_text() else given


def refuse_given(values: Mapping[str, Any], reason: str) -> None:
    """Raise UserError for the first flag that was given, which means nothing here."""
    for key, value in values.items():
        if value not in (None, ()):
            raise UserError(f"{flag_name(key)}: {reason}")


def metavar(key: str, field: FieldInfo) -> str:
    """How help names the values of a setting: its choices, a kind of number, a file or text."""
    if key in HEAD_KEYS:
        return HEAD_KEYS[key]
    choices, leaves = _choices(field.annotation), list(leaves_of(field.annotation))
    numbers = ["NUMBER"] if float in leaves else ["INTEGER"] if int in leaves and str not in leaves else []
    if len(choices) > MAX_CHOICES_SHOWN:
        return "STATISTIC" if "entropy" in choices else "NAME"
    if choices or numbers:
        return "|".join([*choices, *numbers]) + (",..." if _is_list(field) else "")
    return "FILE" if key.endswith("file") or key in ("texts", "relations", "pairs", "document") else "TEXT"


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
    return [leaf for leaf in leaves_of(annotation) if isinstance(leaf, str)]


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list
