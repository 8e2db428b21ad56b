"""`attn info`: versions, plugins, columns, JSON Schemas, papers behind reports, a skill for coding agents."""

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from textwrap import wrap
from typing import Any

import attncli
from attncli.commands.command import DEBUG, Command, argument, refuse_unknown
from attncli.core.names import ROW_STATISTICS
from attncli.core.runtime import tile_pass_in_use
from attncli.errors import DONE, FAILED, UserError, nearest
from attncli.feature import (
    FORMER_GROUPS,
    GROUP,
    SECTION,
    SWITCH,
    BrokenPlugin,
    Feature,
    Plugin,
    added,
    card_places,
    load_place,
    names_switched_off,
    plugins,
    read_card,
    read_file,
)
from attncli.index import FEATURES, installed_features
from attncli.records.glossary import glossary, is_end
from attncli.records.kinds import RESULT_CLASSES
from attncli.records.papers import card_papers
from attncli.runs.saved_reports import report_schema
from attncli.settings import QUESTIONS
from attncli.settings.config_file import config_schema
from attncli.system.plain_text import plain_text
from attncli.system.version import __version__
from attncli.views import SUFFIXES, VIEWS
from attncli.views.tables import SCREEN_PLACES

NO_PLUGINS = (
    "No plugins are installed. A plugin names its card in its pyproject.toml: "
    f'[project.entry-points."{SECTION}{GROUP}"].'
)
TAKEN = "not used: the name is taken"
OFF = f"switched off by {SWITCH}"
PACKAGES = (
    "torch", "numpy", "transformers", "tokenizers", "safetensors", "matplotlib", "textual", "starlette",
    "uvicorn", "distributed", "pyarrow", "duckdb", "gguf", "pillow", "pandas",
)  # fmt: skip
"""Packages that attn computes with or that extras install."""
NEXT = "Next: attn info plugins  attn info columns  attn info cite FILE  attn info skill"


def _parts_with_taken_names(card: Feature) -> list[str]:
    """Return the parts of a card whose names belong to built-in parts or to parts of an earlier plugin."""
    from attncli.core.engines import ENGINES  # imports torch

    functions: dict[str, str] = dict.fromkeys(attncli.__all__, "")
    engines: dict[str, str] = dict.fromkeys(ENGINES, "")
    sources: dict[str, str] = {}
    for feature in installed_features().values():
        functions, engines = dict(feature.functions) | functions, dict(feature.engines) | engines
        sources = _captures(feature) | sources  # the first one wins, as with all other parts
    claims: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
        "command": (
            {question.name: question.summary for question in card.questions if not question.form_of},
            {name: question.summary for name, question in QUESTIONS.items()},
        ),
        "kind": (card.results, RESULT_CLASSES),
        "screen": (card.screens, SCREEN_PLACES),
        "function": (card.functions, functions),
        "statistic": (card.statistics, {name: row.formula for name, row in ROW_STATISTICS.items()}),
        "view": (
            {name: view.write for name, view in card.views.items()},
            {name: view.write for name, view in VIEWS.items()},
        ),
        "suffix": (
            {
                suffix: name
                for name, view in card.views.items()
                if VIEWS.get(name) == view
                for suffix in view.suffixes
            },
            SUFFIXES,
        ),
        "engine": (card.engines, engines),
        "layers of": (_captures(card), sources),
    }
    return [
        f"{part} {name}"
        for part, (places, used) in claims.items()
        for name, place in places.items()
        if used.get(name) != place
    ]


def _captures(card: Feature) -> dict[str, str]:
    """Return the places of the card's sources of layers, by mixer."""
    return {mixer: source.capture for source in card.layer_sources.values() for mixer in source.mixers}


def _card_state(plugin: Plugin) -> str:
    """Return `ok`, or say which parts are not used and why."""
    if plugin not in added(FEATURES).values():
        return TAKEN
    if plugin.name in names_switched_off():
        return OFF
    card = read_card(plugin)
    if plugin.name not in installed_features():
        missing = [name for name in card.needs if name not in installed_features()]
        return f"not used: needs {', '.join(missing)}, which is switched off or not available"
    if taken := _parts_with_taken_names(card):
        return f"{TAKEN}: {', '.join(taken)}"
    for place in card_places(card):
        load_place(place)
    for file in card.lessons:
        read_file(file)
    card_papers(card)
    return "ok"


def _state(plugin: Plugin) -> str:
    """Return `ok`, or say why the plugin is not used."""
    if plugin.group in FORMER_GROUPS:
        field = FORMER_GROUPS[plugin.group]
        return f"no longer supported: list the part in the card's `{field}`, and the card in {SECTION}{GROUP}"
    try:
        return _card_state(plugin)
    except BrokenPlugin as error:
        return str(error).removeprefix(f"plugin {plugin}: ")


def _print_rows(rows: Iterable[tuple[str, ...]]) -> None:
    rows = [*rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(plain_text("  ".join(cells).rstrip()))


def show_plugins() -> int:
    """Print one line per plugin; return 1 if any of them cannot be used."""
    if not plugins():
        print(NO_PLUGINS)
        return DONE
    rows = [(plugin.group, plugin.name, plugin.package, _state(plugin)) for plugin in plugins()]
    _print_rows(rows)
    return DONE if all(state in ("ok", OFF) for *_, state in rows) else FAILED


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def show_versions() -> int:
    """Print the versions that results depend on, the installed extras, and what to run next."""
    versions = {name: _version(name) for name in PACKAGES}
    _print_rows([
        ("attn", __version__),
        ("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        ("tile pass", tile_pass_in_use()),
        *versions.items(),
        ("plugins", str(len(plugins()))),
        *([("off", ", ".join(names))] if (names := names_switched_off()) else []),
    ])  # fmt: skip
    print(f"\n{NEXT}")
    return DONE


def _show_schema(schema: Callable[[], Mapping[str, Any]]) -> int:
    print(json.dumps(schema(), indent=2))
    return DONE


def show_skill() -> int:
    """Print the instructions for coding agents in Markdown."""
    print(read_file("attncli:data/SKILL.md"), end="")
    return DONE


def show_columns(names: Sequence[str]) -> int:
    """Print the unit, the meaning and the tables of the named columns, or a table of all columns."""
    columns = glossary()
    for name in names:
        if name not in columns:
            raise UserError(f"info: no column {name}{nearest(name, columns)}: attn info columns lists them")
    if not names:
        listed = ((name, entry.meaning) for name, entries in columns.items() for entry in entries)
        _print_rows((name, each.unit, each.about) for name, each in listed if not is_end(name))
    for name in names:
        for meaning, tables in columns[name]:
            print(plain_text(f"{name} ({meaning.unit})" if meaning.unit not in name else name))
            print(plain_text(f"  {meaning.about}"))
            print("\n".join(wrap("; ".join(tables), 80, initial_indent="  ", subsequent_indent="  ")))
    return DONE


CITE, COLUMNS = "cite", "columns"
PARTS: dict[str, Callable[[], int]] = {
    "plugins": show_plugins,
    "config-schema": partial(_show_schema, config_schema),
    "report-schema": partial(_show_schema, report_schema),
    "skill": show_skill,
}
EXAMPLES = (
    "attn info",
    "attn info plugins",
    "attn info columns entropy",
    "attn info config-schema > attn.schema.json",
    "attn info report-schema > report.schema.json",
    "attn info cite report.json",
    "attn info skill",
)
PART = argument(
    "part",
    "plugins: installed plugins; columns: what the columns of results mean; config-schema, report-schema: "
    "JSON Schemas; cite: the papers behind saved reports; skill: instructions for coding agents (default: "
    "versions)",
    "PART",
    required=False,
    choices=(*PARTS, COLUMNS, CITE),
)
FILES = argument(
    "files",
    "With cite: saved reports. With columns: names of columns.",
    "FILE",
    kind=list[str],
    required=False,
    reads_file=True,
)


def show_info(part: str | None, files: list[str] | None) -> int:
    """Print the versions or, if a part is named, that part."""
    if part is not None:
        refuse_unknown("info", part, (*PARTS, COLUMNS, CITE))
    if part == COLUMNS:
        return show_columns(files or ())
    if part == CITE:
        if not files:
            raise UserError("info: cite needs saved reports: attn info cite report.json")
        from attncli.commands.cite import cite

        cite(files)
        return DONE
    if files:
        raise UserError(f"info: {part} takes no files (got {files[0]})")
    return show_versions() if part is None else PARTS[part]()


command = partial(Command, run=show_info, parameters=[PART, FILES, DEBUG], examples=EXAMPLES)
