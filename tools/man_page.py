"""Writes docs/attn.1, which wheels install, from the help of every command: python tools/man_page.py

With --check it writes nothing, and fails where the page is not what the help says now.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attncli import __version__, errors
from attncli.cli import COMMAND_GROUPS, COMMANDS, HELP, NAME_WIDTH, UNLISTED, build_app

PAGE = Path(__file__).parent.parent / "docs" / "attn.1"
SPECIAL = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti", "`": r"\(ga"}
EXIT_STATUS = {
    errors.DONE: "done",
    errors.FAILED: "failed as it ran; of a batch, also that --expect does not hold",
    errors.REFUSED: "a mistake on the command line, in a config file or in a file that is read",
    errors.SOME_FAILED: "a batch finished, and some of its runs failed",
    errors.NOT_WRITTEN: "output cannot be written",
    errors.INTERRUPTED: "interrupted",
}
ENVIRONMENT = {
    "COLUMNS, LINES": "the size of the screen, in place of the terminal's",
    "NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE": "whether there is colour; --color overrides them",
    "OMP_NUM_THREADS": "the threads of torch",
    "ATTN_COMPILED": "0: long rows are computed by torch and not by the compiled pass",
}


def _text(text: str) -> str:
    """Each character as itself."""
    return re.sub(r"[\\\-'^~`]", lambda match: SPECIAL[match[0]], text)


def _line(text: str) -> str:
    """A line of text, which may begin with a full stop."""
    escaped = _text(" ".join(text.split()))
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def _entries(rows: Mapping[Any, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield f'.TP\n.B "{_text(str(name))}"\n{_line(text)}'


def _options(command: Any) -> Iterator[tuple[str, str]]:
    """The arguments, and the flags of everyday help."""
    for parameter in sorted(command.params, key=lambda parameter: parameter.param_type_name != "argument"):
        if parameter.param_type_name == "argument":
            yield parameter.metavar, parameter.help
        elif parameter.name in command.everyday:
            flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
            value = parameter.metavar or "TEXT"
            named = f"{flags} {value if len(value) <= NAME_WIDTH else 'NAME'}"
            yield flags if parameter.is_flag else named, command.everyday[parameter.name]


def _command(name: str, command: Any) -> Iterator[str]:
    pieces = " ".join(command.collect_usage_pieces(None))
    yield f'.SS "attn {_text(name)} {_text(pieces)}"'
    yield _line(command.help)
    yield ".PP\n.EX"
    yield from (_line(example) for example in command.examples)
    yield ".EE"
    yield from _entries(dict(_options(command)))


def man_page() -> str:
    """The page, in the language of man(7)."""
    app: Any = build_app()
    summary, more = HELP.strip().split("\n\n")
    lines = [f'.TH ATTN 1 "" "attn {__version__}" "attn"']
    lines += [".SH NAME", rf"attn \- {_line('see attention at work, in a terminal')}"]
    lines += [".SH SYNOPSIS", ".B attn", ".RI [ COMMAND ]", ".RI [ OPTIONS ]"]
    lines += [".SH DESCRIPTION", _line(summary), ".PP", _line(more)]
    lines.append(".SH COMMANDS")
    for group in (*COMMAND_GROUPS, UNLISTED):
        lines.append(f'.SS "{_text(group)}"')
        lines += _entries({name: row.summary for name, row in COMMANDS.items() if row.group == group})
    lines.append(".SH EVERYDAY OPTIONS")
    for group in (*COMMAND_GROUPS, UNLISTED):
        for name, row in COMMANDS.items():
            if row.group == group:
                lines += _command(name, app.get_command(None, name))
    lines += [".SH EXIT STATUS", *_entries(EXIT_STATUS), ".SH ENVIRONMENT", *_entries(ENVIRONMENT)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if PAGE.read_text() == man_page() else "docs/attn.1 is stale: python tools/man_page.py")
    PAGE.write_text(man_page())
