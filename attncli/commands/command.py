"""Commands and parameters as plain data: the shared flags, and one flag for each setting."""

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
    alternative_names,
    annotation_leaves,
    checked_spec,
    current,
    flag_name,
    with_key_names,
)
from attncli.settings.text import FILE_SETTINGS, PATH_KEYS
from attncli.system.files import stdin_bytes, wait_for_bytes
from attncli.system.plain_text import MAX_DIGITS, whole_number
from attncli.system.platforms import terminal_size
from attncli.views import COLOR_DEPTHS, FIGURE_WIDTHS, PARTS, SCALES, VIEWS, Display


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An option, or an argument if it has no `flags`; its value is passed by name to the command's `run`.

    `kind` is str, int, bool (a switch) or list[str] (a repeatable option, or all remaining arguments). The
    shell completes `choices`. `group` is the heading in the help of all flags; `everyday` is the description
    in everyday help, which leaves out flags without such a description. A `hidden` flag is in neither help:
    its value goes to the parameter `now`, or the flag is refused with `refusal`, which names a replacement.
    If it `reads_file`, the value is the name of a file to read, possibly one of the lessons' files.
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

    def with_resolved_files(self, value: Any) -> Any:
        """Return the value, with the names of lesson files replaced by the paths of the shipped files."""
        if not self.reads_file or value is None:
            return value
        return [resolved_file(each) for each in value] if self.kind == list[str] else resolved_file(value)


LESSON_FILES = files("attncli") / "data" / "lessons" / "files"


def resolved_file(file: str) -> str:
    """Return the shipped file for a name like `lessons/bat-cave.json`, unless that file exists here."""
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
    """Build an option from its flags, like `--output -o`; a leading word is the name of the parameter."""
    first, *following = names.split()
    words = tuple(choices)
    return Parameter(
        name=first.partition("/")[0].lstrip("-").replace("-", "_"),
        flags=tuple(following) if first.isidentifier() else (first, *following),
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
    """Build a switch, which is off by default."""
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
    """Build an argument; with kind list[str], it takes all remaining arguments."""
    return Parameter(
        name=name,
        help=help,
        metavar=metavar,
        kind=kind,
        required=required,
        choices=tuple(choices),
        reads_file=reads_file,
    )


def with_hidden_spellings(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters, followed by hidden parameters for their alternative spellings."""
    by_name = {each.name: each for each in parameters}
    hidden = [
        replace(
            by_name[name], name=spelling, flags=(f"--{spelling}",), hidden=True, now=name, is_passed=False
        )
        for spelling, name in alternative_names(by_name).items()
        if by_name[name].flags
    ]
    return [*parameters, *hidden]


@dataclass(frozen=True)
class Command:
    """A command: its name, parameters and help, and the function that runs it.

    `run` takes the values of the parameters by name and returns the exit code (None: 0). If it
    `runs_commands`, `run` also takes `attn`, a function that runs a command line and returns its exit code.
    If it `runs_program`, the first word that is not a flag (or `--`) begins the program's command line. If it
    `needs_torch`, it is refused if there is too little free memory to load torch.
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
        object.__setattr__(self, "parameters", with_hidden_spellings(self.parameters))

    def refuse_writing_over(self, values: Mapping[str, Any]) -> None:
        """Raise UserError if -o names an existing file that the command reads."""
        output = values.get(OUTPUT.name)
        if output is None or not is_file(output):
            return
        for parameter in self.parameters:
            value = values.get(parameter.name) if parameter.reads_file else None
            for name in [value] if isinstance(value, str) else value or ():
                if is_file(name) and Path(name).samefile(output):
                    raise UserError(
                        f"-o {output}: would overwrite an input of this command: choose another name"
                    )


def is_file(name: str) -> bool:
    """Return True if a file with that name exists; a string too long for a file name is not an error."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


MAX_PRECISION = 15
COLORS = ("auto", "always", "never", *COLOR_DEPTHS[1:])

# Flags of every command that shows reports, in the same order as in help.
FORMAT = option(
    "--format",
    "Output format. [default: from the suffix of -o, else table]",
    choices=VIEWS,
    group="Output",
    everyday="output format: table, json, csv, html, png, ...",
)
SHOW = option(
    "--show",
    f"Show these parts instead of the first screen: {', '.join(PARTS)}, or a table by name. With csv and "
    "parquet, write this table.",
    "PART,...",
    kind=list[str],
    choices=PARTS,
    group="Output",
    everyday="show these parts: weights, rows, ..., all, or a table",
)
OUTPUT = option(
    "--output -o",
    "Write to a file, which is replaced only on success; - is standard output.",
    "FILE",
    group="Output",
    everyday="write to a file: .json, .csv, .html, .png, ...",
)
OPEN = flag("--open", "Open the -o file, a page or a picture, in the browser.", group="Output")
STEP = option("--step", "Show only step N of --explain.", "INTEGER", group="Output")
PRECISION = option(
    "--precision", "Decimal places in tables. [default: 4; 2 on a first screen]", "INTEGER", group="Output"
)
COLOR = option(
    "--color", "Use colour in tables and heatmaps.", choices=COLORS, default="auto", group="Output"
)
SCALE_COLORS = option(
    "--scale-colors",
    "Colour scale; row: a separate linear scale per row. [default: linear; log for blocks]",
    choices=SCALES,
    group="Output",
)
TITLE = option("--title", "Title of the picture, page or heatmap.", "TEXT", group="Output")
FIGURE_WIDTH = option(
    "--figure-width",
    "Width of a figure: one column of a paper (8.5 cm) or both (17.5 cm). [default: the narrower one that is "
    "legible]",
    choices=FIGURE_WIDTHS,
    group="Output",
)
SKIP_FIRST_KEYS = option(
    "--skip-first-keys",
    "Exclude the first N keys from the colour scale. [default: 0]",
    "INTEGER",
    group="Output",
)
DEBUG_HELP = "Show a traceback with an error."
# Not passed to commands, because cli.run looks for it in the arguments.
DEBUG = option("--debug", DEBUG_HELP, kind=bool, default=False, is_passed=False)

FRESH = flag("--fresh", "Start the store over instead of resuming.")
WORKERS = option(
    "--workers",
    "Number of worker processes (default: one per core for a large batch, otherwise none).",
    "INTEGER",
    kind=int,
    min=1,
    everyday="number of worker processes",
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
OUTPUT_FLAGS = (FORMAT, OUTPUT, OPEN, TITLE, FIGURE_WIDTH, SHOW, STEP, PRECISION, *COLOR_FLAGS)


def refuse_unknown(flag: str, value: str, known: Collection[str]) -> None:
    """Raise UserError if the value is not among the `known` values."""
    if value not in known:
        raise UserError(f"{flag}: {must_be_one_of(value, known)}")


def store_errors(store: Path | None, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors for flags that need a store."""
    names = [name for name, value in flags.items() if value not in (None, False)]
    for name in names if store is None else ():
        yield f"--{name}: needs a store: -o FILE.db"
    if {"workers", "scheduler"} <= {*names}:
        yield "--workers: cannot be combined with --scheduler, whose cluster has its own workers"


def checked_display(
    color: str,
    scale_colors: str | None,
    skip_first_keys: str | None,
    precision: str | None = None,
    show: Sequence[str] = (),
    *,
    several: bool = False,
) -> Display:
    """Return the display settings from the flags. Raises UserError for an invalid value."""
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
    """Return the number of columns: COLUMNS, or else the terminal's width, or else None (no limit)."""
    columns = os.environ.get("COLUMNS", "")
    if number := whole_number(columns):
        return number
    return terminal_size(sys.stdout.fileno()).columns if is_terminal else None


def height(is_terminal: bool) -> int | None:
    """Return the number of lines above a terminal's prompt, from LINES or its height; None means no limit.

    A pipe has no limit even if LINES is set: the program that started attn may have set it (readline does).
    """
    if not is_terminal:
        return None
    lines = os.environ.get("LINES", "")
    num_lines = whole_number(lines) or terminal_size(sys.stdout.fileno()).lines
    return max(num_lines - 1, 1) if num_lines else None


def can_walk() -> bool:
    """Return True if the session is interactive: all standard streams are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


CLEAR = "\r\x1b[K"
"""Erases the current line."""


def color_depth(choice: str, is_terminal: bool | None) -> str:
    """Return the colour depth that --color requests, or else what the environment and terminal support."""
    if choice in COLOR_DEPTHS:
        return choice
    if choice == "never" or (choice == "auto" and not _wants_color(is_terminal)):
        return "none"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "WT_SESSION" in os.environ:
        return "truecolor"
    term = os.environ.get("TERM", "")
    return "truecolor" if term.endswith("-direct") else "256" if "256" in term else "16"


def _wants_color(is_terminal: bool | None) -> bool:
    """Return True for colour. A file, NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE and TERM decide in this order."""
    environ = os.environ
    if is_terminal is None or environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced != "0"
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


MAX_LISTED_CHOICES = 8
HEAD = "LAYER:HEAD"
HEAD_KEYS = {"head": HEAD, "full": f"{HEAD},...", "ablate": f"{HEAD},...", "heads": f"{HEAD},...|all"}
"""Settings that name heads of a model."""


def setting_options(spec_class: type[Spec]) -> list[Parameter]:
    """Return a flag per setting, which is None unless passed; settings of all experiments come last."""
    shared_last = sorted(spec_class.model_fields, key=lambda key: key in Spec.model_fields)
    return [_option(spec_class, key) for key in shared_last]


def _option(spec_class: type[Spec], key: str) -> Parameter:
    field, group = spec_class.model_fields[key], spec_class.group_of(key)
    name = flag_name(key)
    description = f"{with_key_names(str(field.description), flags=True)}{default_text(field)}"
    everyday = next((data for data in field.metadata if isinstance(data, Everyday)), None)
    no_flag = next((data for data in field.metadata if isinstance(data, NoFlag)), None)
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
    if no_flag is not None:
        return replace(made, hidden=True, refusal=no_flag.reason.format(key=key))
    return made


def settings_from_flags(flags: dict[str, Any]) -> dict[str, Given]:
    """Return the settings that flags set; lists may be given as repeated flags or comma-separated."""
    settings = {}
    for key, value in flags.items():
        if isinstance(value, list):
            value = [part.strip() for text in value for part in text.split(",")]
        if value not in (None, ()):
            settings[key] = Given(value, flag_name(key), is_flag=True)
    return settings


def given_settings(name: str, config: str | None, flags: dict[str, Any]) -> dict[str, Given]:
    """Return the settings from a config file and from flags, where flags override the file."""
    spec_class = every_setting_of(name)
    from_file = current(spec_class, ConfigFile(Path(config)).single(name) if config is not None else {})
    from_flags = current(spec_class, settings_from_flags(flags))
    for group in ALTERNATIVES:
        if from_flags.keys() & group:
            from_file = {key: value for key, value in from_file.items() if key not in group}
    return from_file | from_flags


# Settings that choose the input. If none of them is set, the text may come from standard input.
TEXT_KEYS = frozenset((*ALTERNATIVES[0], "probe", *FILE_SETTINGS))
WAITING = "stdin: waiting for text (to avoid this, give a text as an argument or add < /dev/null)"


def has_piped_text() -> bool:
    """Return True if standard input holds text: a pipe, a socket, or a redirected file that is not empty.

    Terminals, /dev/null and other devices, and closed streams are not read. For any other stream, wait for
    its first byte or its end without consuming anything. Raises UserError for a stream that cannot be read.
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
    """Return the settings, with the text on standard input added if they accept an input but name none.

    Invalid settings are reported before input is awaited.
    """
    key = "file" if "file" in spec_class.model_fields else spec_class.argument
    if key not in ("file", "texts") or given.keys() & TEXT_KEYS:
        return given
    piped = given | {key: Given("-", "stdin")}
    try:
        checked_spec(spec_class, piped)
    except UserError:
        if key == "file":  # the command needs no text, or its settings are invalid anyway
            checked_spec(spec_class, given)
            return given
    return piped if has_piped_text() else given


def refuse_flags(values: Mapping[str, Any], reason: str) -> None:
    """Raise UserError for the first flag that was passed, with the reason why it has no effect here."""
    for key, value in values.items():
        if value not in (None, ()):
            raise UserError(f"{flag_name(key)}: {reason}")


def metavar(key: str, field: FieldInfo) -> str:
    """Return the placeholder for a setting's value in help: its choices, INTEGER, NUMBER, FILE or TEXT."""
    if key in HEAD_KEYS:
        return HEAD_KEYS[key]
    choices, leaves = _choices(field.annotation), list(annotation_leaves(field.annotation))
    numbers = ["NUMBER"] if float in leaves else ["INTEGER"] if int in leaves and str not in leaves else []
    if len(choices) > MAX_LISTED_CHOICES:
        return "STATISTIC" if "entropy" in choices else "NAME"
    if choices or numbers:
        return "|".join([*choices, *numbers]) + (",..." if _is_list(field) else "")
    return "FILE" if key.endswith("file") or key in ("texts", "relations", "pairs", "document") else "TEXT"


def default_text(field: FieldInfo) -> str:
    """Return ` [default: 16]`, or an empty string if the default depends on other settings."""
    value = field.default
    if field.is_required() or value in (None, []) or field.default_factory is not None:
        return ""
    if isinstance(value, list):
        return f" [default: {','.join(f'{v:g}' if isinstance(v, float) else str(v) for v in value)}]"
    return f" [default: {str(value).lower() if isinstance(value, bool) else value}]"


def _choices(annotation: Any) -> list[str]:
    """Return the words that a setting accepts."""
    return [leaf for leaf in annotation_leaves(annotation) if isinstance(leaf, str)]


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list
