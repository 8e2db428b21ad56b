"""Mistakes in the form of a command line: what is wrong, and what would work."""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from attncli.errors import TRUTHS, UserError, alike, synonym
from attncli.settings import QUESTIONS, SPECS, is_offered, why_off
from attncli.views import VIEWS

Flags = Mapping[str, str | None]
"""The flags of a command, each with what help calls its value; None for a switch."""

MOST_SHOWN = 60
"""Characters of what was typed that a message repeats."""
MOST_NAMED = 4
"""Commands that a message names."""

NO_VALUE = "N"
NO_SUCH_FLAG = re.compile(r"No such option: (.+?)(?: \(Possible options?: .*| Did you mean .*)?$")
CURLY = str.maketrans("“”„«»", '"' * 5)
"""Quotes that a word processor makes, which a shell takes as letters."""

ADVICE = {
    "q": "progress and notes are on standard error: 2>/dev/null leaves them out",
    "quiet": "progress and notes are on standard error: 2>/dev/null leaves them out",
    "silent": "progress and notes are on standard error: 2>/dev/null leaves them out",
    "verbose": "--debug shows where an error comes from",
    "v": "attn --version prints the version, and --debug shows where an error comes from",
    "V": "attn --version prints the version",
    "version": "attn --version prints the version",
    "trust_remote_code": "leave it out, no code that comes with a model is run",
    "tokenizer_name": "the tokenizer is that of the model's folder",
    "revision": "download that version into a folder and give it as --model",
    "cache_dir": "the environment variable HF_HOME says where downloads go",
}
"""What to do instead of some flags that other tools have."""


FROM_DISK = frozenset(
    {
        *("stream", "streaming", "streamed", "offload", "offload_folder", "disk", "disk_offload"),
        *("low_memory", "lowmem", "low_mem", "lazy", "mmap", "low_cpu_mem_usage", "device_map"),
    }
)
"""What other tools call reading a model's weights from disk as they are used."""


REMOVED = {
    "export": "results --tidy",
    "plugins": "info plugins",
    "config schema": "info config-schema",
    "report schema": "info report-schema",
}
"""Commands of attn 0.4, and their names since 0.5."""


def unknown_command(args: Sequence[str], commands: Collection[str]) -> str:
    """The error for an unknown command, which may be a file, a misspelled command or a text."""
    word, *others = args
    typed = word[:MOST_SHOWN]
    if why := why_off(word):
        return f"{typed}: {why}"
    if now := REMOVED.get(word) or REMOVED.get(" ".join(args[:2])):
        return f"{typed}: is not a command: use attn {now}"
    if meant := synonym(word, commands) or alike(word, commands):
        return f"{typed}: is not a command: did you mean attn {meant}?"
    if reader := _reader(Path(word)):
        return f"{typed}: is not a command: attn {reader} {shlex.join([word])} reads it"
    text = " ".join([word, *takewhile(lambda other: not other.startswith("-"), others)])
    if any(map(str.isspace, text)) and is_offered("attn self"):
        return f"{text[:MOST_SHOWN]}: is a text, not a command: attn self {_quoted(text)}"
    return f"{typed}: is not a command: attn --help lists them"


def _reader(path: Path) -> str:
    """The command, with the flag, that reads a folder or a file of that name; else empty."""
    suffix = "/" if path.is_dir() else path.suffix.lower()
    for question in QUESTIONS.values():
        for flag, suffixes in question.opens.items():
            if suffix in suffixes.split():
                return f"{question.name} {flag}".rstrip()
    return ""


def flag_before_command(message: str, args: Sequence[str], flags: Flags, commands: Collection[str]) -> str:
    """Typer's message about a flag where a command was expected, with what would work."""
    match = NO_SUCH_FLAG.match(message)
    if match is None:
        return message
    flag = match[1]
    in_capitals = (name for name in flags if name.lower() == flag.lower())
    if meant := next(in_capitals, None) or alike(flag, flags):
        return f"{flag}: is not a flag of attn: did you mean {meant}?"
    command = next((arg for arg in args if arg in commands), "COMMAND")
    others = [shlex.join([arg]) for arg in args if arg != command]
    typed = " ".join(["attn", command, *others])[:MOST_SHOWN]
    return f"{flag}: is not a flag of attn: flags follow a command: {typed}"


def split_before_program(args: Sequence[str], flags: Flags) -> tuple[list[str], list[str]]:
    """The words of a command, and those of the program that it runs, which begin with `--` or no flag."""
    place = 0
    while place < len(args) and args[place].startswith("-") and args[place] != "--":
        place += 1 if flags.get(args[place]) is None else 2
    return [*args[:place]], [*args[place:]]


def check_values(args: Sequence[str], flags: Flags) -> None:
    """Raise UserError for `--causal true`, whose `true` would become the text, and `--needle --model`."""
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
    off = f", --no-{on[2:]} turns it off" if f"--no-{on[2:]}" in flags else ""
    return f"{flag}: takes no value (got {value[:MOST_SHOWN]}): {on} turns it on{off}"


def _quoted(text: str) -> str:
    """A text as a shell wants it, in the quotes that people know."""
    return shlex.join([text]) if set('"$`\\!') & set(text) else f'"{text}"'


def explained(
    message: str,
    args: Sequence[str],
    *,
    command: str,
    flags: Flags,
    arguments: Sequence[str],
    flags_of: Callable[[], Mapping[str, Flags]],
) -> str:
    """A message of Typer's in our words, with what would work.

    `arguments` are what help calls those of the command; `flags_of` gives the flags of every command.
    """
    if match := NO_SUCH_FLAG.match(message):
        return _unknown_flag(match[1], args, command, flags, flags_of)
    if match := re.match(r"Option '(.+)' does not take a value", message):
        value = next(arg.partition("=")[2] for arg in args if arg.startswith(f"{match[1]}="))
        return _takes_no_value(match[1], value, flags)
    if match := re.match(r"Option '(.+)' requires an argument", message):
        return _needs_value(match[1], flags)
    if match := re.match(r"Invalid value for '([^ ']+).*?': Input should be (.+)", message):
        return f"{match[1]}: must be a whole number, at least 1 (got {dict(pairwise(args)).get(match[1])})"
    if match := re.match(r"Missing argument '(.+)'", message):
        return f"attn {command}: needs {match[1]}: attn {command} --help shows examples"
    if match := re.match(r"Got unexpected extra arguments? ?(?:\(s\) )?\((.+)\)", message):
        return _too_many(match[1], args, command, flags, arguments)
    return message


def _too_many(more: str, args: Sequence[str], command: str, flags: Flags, arguments: Sequence[str]) -> str:
    for flag, value in pairwise(args):
        if flag in flags and flags[flag] is None and value == more and value.lower() in TRUTHS:
            return _takes_no_value(flag, value, flags)
    is_too_much = f"{more[:MOST_SHOWN]}: is one argument too many"
    if "--sentence" not in flags:
        return f"{is_too_much}: attn {command} takes {' and '.join(arguments) or 'flags alone'}"
    if any(arg.startswith(("“", "„", "«")) for arg in args):
        text = " ".join(args).translate(CURLY)
        return f"{is_too_much}: a shell takes straight quotes alone: attn {command} {text[:MOST_SHOWN]}"
    if arguments != ["TEXT"]:
        return f'{is_too_much}: a text goes in quotes: attn {command} --sentence "the cat sleeps"'
    if command == "cross" and len(args) == 2:
        return f"{is_too_much}: attn cross {_quoted(args[0])} --context {_quoted(args[1])}"
    text = "the cat sleeps" if any(arg.startswith("-") for arg in args) else " ".join(args)
    return f"{is_too_much}: a text goes in quotes: attn {command} {_quoted(text)}"


def _unknown_flag(
    flag: str, args: Sequence[str], command: str, flags: Flags, flags_of: Callable[[], Mapping[str, Flags]]
) -> str:
    for arg in args:
        if arg.startswith(flag) and any(map(str.isspace, arg.partition("=")[0])):
            return f"{arg[:MOST_SHOWN]}: begins with a dash: attn {command} -- {shlex.join([arg])}"
    is_none = f"{flag}: is not a flag of attn {command}"
    word, flag_of_word = _word(flag), _by_word(flags)
    following = dict(pairwise(args)).get(flag, "-")
    value = NO_VALUE if following.startswith("-") else following
    elsewhere = SPECS[command].settings_elsewhere if command in SPECS else {}
    if word in elsewhere:
        return f"{is_none}, which {elsewhere[word].format(value=value)}"
    if word == "v":
        return f"{is_none}: {ADVICE[word]}"
    if word in VIEWS and "--format" in flags:
        return f"{is_none}: --format {word} writes it"
    if meant := synonym(word, flag_of_word):
        alone = ", without a value" if flags[flag_of_word[meant]] is None and value != NO_VALUE else ""
        return f"{is_none}: did you mean {flag_of_word[meant]}{alone}?"
    if word in FROM_DISK and "--load" in flags:
        return f"{is_none}: --load disk reads weights as they are used"
    if word in ADVICE:
        return f"{is_none}: {ADVICE[word]}"
    others = {f"attn {name}": _by_word(its) for name, its in flags_of().items()}
    words = {known for its in others.values() for known in its}
    if there := word if word in words else synonym(word, words):
        having = [name for name, its in others.items() if there in its]
        flag_there = others[having[0]][there]
        more = f" and {len(having) - MOST_NAMED} more" if len(having) > MOST_NAMED else ""
        verb = "have" if having[1:] else "has"
        return f"{is_none}: {', '.join(having[:MOST_NAMED])}{more} {verb} {flag_there}"
    if meant := alike(word, flag_of_word):
        return f"{is_none}: did you mean {flag_of_word[meant]}?"
    return f"{is_none}: attn {command} --help-all lists them"


def _word(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _by_word(flags: Flags) -> dict[str, str]:
    return {_word(flag): flag for flag in flags if flag.startswith("--")}
