"""Error messages for malformed command lines: the problem and, if possible, a corrected command."""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from attncli.errors import TRUTHS, UserError, similar_word, synonym
from attncli.settings import QUESTIONS, SPECS, is_offered, why_off
from attncli.views import VIEWS

Flags = Mapping[str, str | None]
"""The flags of a command with their placeholders in help, which are None for switches."""

MAX_QUOTED = 60
"""The most characters of a command line that a message repeats."""
MAX_COMMANDS = 4
"""The most commands that a message lists."""

NO_VALUE = "N"
NO_SUCH_FLAG = re.compile(r"No such option: (.+?)(?: \(Possible options?: .*| Did you mean .*)?$")
CURLY = str.maketrans("“”„«»", '"' * 5)
"""Typographic quotes, which a shell does not treat as quotes."""

ADVICE = {
    "q": "progress and notes go to standard error: add 2>/dev/null to hide them",
    "quiet": "progress and notes go to standard error: add 2>/dev/null to hide them",
    "silent": "progress and notes go to standard error: add 2>/dev/null to hide them",
    "verbose": "use --debug to see where an error comes from",
    "v": "use attn --version for the version, or --debug to see where an error comes from",
    "V": "use attn --version for the version",
    "version": "use attn --version for the version",
    "trust_remote_code": "omit the flag: attn never runs code that comes with a model",
    "tokenizer_name": "the tokenizer is read from the model's folder",
    "revision": "download that version to a folder and pass the folder as --model",
    "cache_dir": "set the environment variable HF_HOME to change the download folder",
}
"""Advice for flags of other tools that have no counterpart here."""


FROM_DISK = frozenset(
    {
        *("stream", "streaming", "streamed", "offload", "offload_folder", "disk", "disk_offload"),
        *("low_memory", "lowmem", "low_mem", "lazy", "mmap", "low_cpu_mem_usage", "device_map"),
    }
)
"""Names in other tools for reading a model's weights from disk as they are needed."""


REMOVED = {
    "export": "results --tidy",
    "plugins": "info plugins",
    "config schema": "info config-schema",
    "report schema": "info report-schema",
}
"""Commands of attn 0.4 and their replacements since 0.5."""


def unknown_command(args: Sequence[str], commands: Collection[str]) -> str:
    """Return the error for an unknown command, which may be a file name, a misspelling or a text."""
    word, *following = args
    typed = word[:MAX_QUOTED]
    if why := why_off(word):
        return f"{typed}: {why}"
    if now := REMOVED.get(word) or REMOVED.get(" ".join(args[:2])):
        return f"{typed}: is not a command: use attn {now}"
    if suggestion := synonym(word, commands) or similar_word(word, commands):
        return f"{typed}: is not a command: did you mean attn {suggestion}?"
    if reader := _reader(Path(word)):
        return f"{typed}: is not a command: use attn {reader} {shlex.join([word])} to read it"
    text = " ".join([word, *takewhile(lambda arg: not arg.startswith("-"), following)])
    if any(map(str.isspace, text)) and is_offered("attn self"):
        return f"{text[:MAX_QUOTED]}: is a text, not a command: use attn self {_quoted(text)}"
    return f"{typed}: is not a command: see attn --help for all commands"


def _reader(path: Path) -> str:
    """Return the command and flag that read such a file or folder, or an empty string if there are none."""
    suffix = "/" if path.is_dir() else path.suffix.lower()
    for question in QUESTIONS.values():
        for flag, suffixes in question.opens.items():
            if suffix in suffixes.split():
                return f"{question.name} {flag}".rstrip()
    return ""


def flag_before_command(message: str, args: Sequence[str], flags: Flags, commands: Collection[str]) -> str:
    """Return the error for a flag before the command, with a correction if possible."""
    match = NO_SUCH_FLAG.match(message)
    if match is None:
        return message
    flag = match[1]
    same_letters = (name for name in flags if name.lower() == flag.lower())
    if suggestion := next(same_letters, None) or similar_word(flag, flags):
        return f"{flag}: is not a flag of attn: did you mean {suggestion}?"
    command = next((arg for arg in args if arg in commands), "COMMAND")
    words = [shlex.join([arg]) for arg in args if arg != command]
    typed = " ".join(["attn", command, *words])[:MAX_QUOTED]
    return f"{flag}: is not a flag of attn: flags go after the command: {typed}"


def split_before_program(args: Sequence[str], flags: Flags) -> tuple[list[str], list[str]]:
    """Split a command's own words from a program's command line, which begins at `--` or a non-flag."""
    place = 0
    while place < len(args) and args[place].startswith("-") and args[place] != "--":
        place += 1 if flags.get(args[place]) is None else 2
    return [*args[:place]], [*args[place:]]


def check_values(args: Sequence[str], flags: Flags) -> None:
    """Raise UserError for a switch with a value, as in `--causal true`, or a flag in place of a value."""
    for flag, value in pairwise(takewhile(lambda arg: arg != "--", args)):
        if flag not in flags:
            continue
        if flags[flag] is None and value.lower() in TRUTHS:
            raise UserError(_takes_no_value(flag, value, flags))
        if flags[flag] is not None and value in flags:
            raise UserError(f"{_needs_value(flag, flags)} (got {value})")


def _needs_value(flag: str, flags: Flags) -> str:
    return f"{flag}: needs a value: {flag} {flags.get(flag, 'VALUE')}"


def _takes_no_value(flag: str, value: str, flags: Flags) -> str:
    on = flag.replace("--no-", "--", 1)
    off = f" or --no-{on[2:]} to turn it off" if f"--no-{on[2:]}" in flags else ""
    return f"{flag}: takes no value (got {value[:MAX_QUOTED]}): use {on} to turn it on{off}"


def _quoted(text: str) -> str:
    """Quote a string for the shell, in double quotes if possible."""
    return shlex.join([text]) if set('"$`\\!') & set(text) else f'"{text}"'


def explain_parse_error(
    message: str,
    args: Sequence[str],
    *,
    command: str,
    flags: Flags,
    arguments: Sequence[str],
    flags_by_command: Callable[[], Mapping[str, Flags]],
) -> str:
    """Replace a message from Typer by attn's own, with a corrected command.

    `arguments` are the placeholders of the command's arguments; `flags_by_command` returns the flags of every
    command.
    """
    if match := NO_SUCH_FLAG.match(message):
        return _unknown_flag(match[1], args, command, flags, flags_by_command)
    if match := re.match(r"Option '(.+)' does not take a value", message):
        value = next(arg.partition("=")[2] for arg in args if arg.startswith(f"{match[1]}="))
        return _takes_no_value(match[1], value, flags)
    if match := re.match(r"Option '(.+)' requires an argument", message):
        return _needs_value(match[1], flags)
    if match := re.match(r"Invalid value for '([^ ']+).*?': Input should be (.+)", message):
        return f"{match[1]}: must be a whole number, at least 1 (got {dict(pairwise(args)).get(match[1])})"
    if match := re.match(r"Missing argument '(.+)'", message):
        return f"attn {command}: needs {match[1]}: see attn {command} --help for examples"
    if match := re.match(r"Got unexpected extra arguments? ?(?:\(s\) )?\((.+)\)", message):
        return _too_many(match[1], args, command, flags, arguments)
    return message


def _too_many(more: str, args: Sequence[str], command: str, flags: Flags, arguments: Sequence[str]) -> str:
    for flag, value in pairwise(args):
        if flag in flags and flags[flag] is None and value == more and value.lower() in TRUTHS:
            return _takes_no_value(flag, value, flags)
    problem = f"{more[:MAX_QUOTED]}: unexpected argument"
    if "--sentence" not in flags:
        return f"{problem}: attn {command} takes {' and '.join(arguments) or 'only flags'}"
    if any(arg.startswith(("“", "„", "«")) for arg in args):
        text = " ".join(args).translate(CURLY)
        return f"{problem}: the shell needs straight quotes: attn {command} {text[:MAX_QUOTED]}"
    if arguments != ["TEXT"]:
        return f'{problem}: put the text in quotes: attn {command} --sentence "the cat sleeps"'
    if command == "cross" and len(args) == 2:
        return f"{problem}: use attn cross {_quoted(args[0])} --context {_quoted(args[1])}"
    text = "the cat sleeps" if any(arg.startswith("-") for arg in args) else " ".join(args)
    return f"{problem}: put the text in quotes: attn {command} {_quoted(text)}"


def _unknown_flag(
    flag: str,
    args: Sequence[str],
    command: str,
    flags: Flags,
    flags_by_command: Callable[[], Mapping[str, Flags]],
) -> str:
    for arg in args:
        if arg.startswith(flag) and any(map(str.isspace, arg.partition("=")[0])):
            corrected = f"attn {command} -- {shlex.join([arg])}"
            return f"{arg[:MAX_QUOTED]}: put -- before a text that begins with a dash: {corrected}"
    problem = f"{flag}: is not a flag of attn {command}"
    word, flag_by_word = _word(flag), _by_word(flags)
    following = dict(pairwise(args)).get(flag, "-")
    value = NO_VALUE if following.startswith("-") else following
    elsewhere = SPECS[command].settings_elsewhere if command in SPECS else {}
    if word in elsewhere:
        return f"{problem}, which {elsewhere[word].format(value=value)}"
    if word == "v":
        return f"{problem}: {ADVICE[word]}"
    if word in VIEWS and "--format" in flags:
        return f"{problem}: use --format {word}"
    if key := synonym(word, flag_by_word):
        without = ", without a value" if flags[flag_by_word[key]] is None and value != NO_VALUE else ""
        return f"{problem}: did you mean {flag_by_word[key]}{without}?"
    if word in FROM_DISK and "--load" in flags:
        return f"{problem}: use --load disk to read weights as they are needed"
    if word in ADVICE:
        return f"{problem}: {ADVICE[word]}"
    commands = {f"attn {name}": _by_word(its) for name, its in flags_by_command().items()}
    words = {key for its in commands.values() for key in its}
    if key := word if word in words else synonym(word, words):
        names = [name for name, its in commands.items() if key in its]
        more = f" and {len(names) - MAX_COMMANDS} more" if len(names) > MAX_COMMANDS else ""
        verb = "have" if names[1:] else "has"
        return f"{problem}: {', '.join(names[:MAX_COMMANDS])}{more} {verb} {commands[names[0]][key]}"
    if key := similar_word(word, flag_by_word):
        return f"{problem}: did you mean {flag_by_word[key]}?"
    return f"{problem}: see attn {command} --help-all for all its flags"


def _word(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _by_word(flags: Flags) -> dict[str, str]:
    return {_word(flag): flag for flag in flags if flag.startswith("--")}
