"""`attn info`: versions, what installed packages add to attn, and the schemas of config files and reports."""

import json
import platform
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from typing import Any

import attncli
from attncli.commands.command import DEBUG, Command, argument, refuse_unknown
from attncli.core.names import PLUGGED
from attncli.core.runtime import GROUPS, BrokenPlugin, Plugin, added, imported, plugins, tile_pass_in_use
from attncli.errors import DONE, FAILED
from attncli.feature import GROUP, SWITCH, Feature, names_switched_off, read_card
from attncli.index import FEATURES, installed_features
from attncli.plain_text import plain_text
from attncli.records.kinds import RESULT_CLASSES
from attncli.saved import report_schema
from attncli.settings import EXPERIMENTS
from attncli.settings.config_file import config_schema
from attncli.version import __version__
from attncli.views import VIEWS
from attncli.views.tables import SCREEN_PLACES

NO_PLUGINS = (
    "No installed package adds to attn. One that does says so in its pyproject.toml: "
    f'[project.entry-points."attncli.{GROUPS[0]}"], or {", ".join(GROUPS[1:])}.'
)
TAKEN = "not used: there is one of this name"
OFF = f"switched off by {SWITCH}"
PACKAGES = (
    "torch", "numpy", "transformers", "tokenizers", "safetensors", "matplotlib", "textual", "starlette",
    "uvicorn", "distributed", "pyarrow", "duckdb", "gguf", "pillow", "pandas",
)  # fmt: skip
"""The packages that attn computes with, or needs for an extra."""
NEXT = "Next: attn info plugins  attn info config-schema  attn info report-schema"


def _in_use() -> set[Plugin | None]:
    """Those that the tables have taken up."""
    from attncli.core.engines import ENGINES

    of_tables = {row.plugin for row in EXPERIMENTS.values()} | {view.plugin for view in VIEWS.values()}
    return {*PLUGGED.values(), *of_tables, *added("engines", {*ENGINES}).values()}


def _parts_taken(card: Feature) -> list[str]:
    """The parts of a card that are not used: the names of built-in parts, or of an earlier package's."""
    specs = {name: row.spec for name, row in EXPERIMENTS.items()}
    functions: dict[str, str] = dict.fromkeys(attncli.__all__, "")
    for feature in installed_features().values():
        functions = dict(feature.functions) | functions
    claims: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
        "command": ({question.name: question.spec for question in card.questions}, specs),
        "kind": (card.results, RESULT_CLASSES),
        "screen": (card.screens, SCREEN_PLACES),
        "function": (card.functions, functions),
    }
    return [
        f"{part} {name}"
        for part, (places, used) in claims.items()
        for name, place in places.items()
        if used.get(name) != place
    ]


def _state_of_card(plugin: Plugin) -> str:
    """`ok`, or what of it is not used, and why."""
    if plugin not in added(GROUP, {*FEATURES}).values():
        return TAKEN
    if plugin.name in names_switched_off():
        return OFF
    taken = _parts_taken(read_card(plugin))
    return f"{TAKEN}: {', '.join(taken)}" if taken else "ok"


def _state(plugin: Plugin, in_use: set[Plugin | None]) -> str:
    """`ok`, or why it is not used."""
    try:
        if plugin.group == GROUP:
            return _state_of_card(plugin)
        imported(plugin)
    except BrokenPlugin as error:
        return str(error).removeprefix(f"plugin {plugin} ")
    return "ok" if plugin in in_use else TAKEN


def _print_rows(rows: Iterable[tuple[str, ...]]) -> None:
    rows = [*rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(plain_text("  ".join(cells).rstrip()))


def show_plugins() -> int:
    """A line for each, and 1 where one of them cannot be used."""
    if not plugins():
        print(NO_PLUGINS)
        return DONE
    in_use = _in_use()
    rows = [(plugin.group, plugin.name, plugin.package, _state(plugin, in_use)) for plugin in plugins()]
    _print_rows(rows)
    return DONE if all(state in ("ok", OFF) for *_, state in rows) else FAILED


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def show_versions() -> int:
    """The versions that results depend on, what is installed of the extras, and what to ask next."""
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


PARTS: dict[str, Callable[[], int]] = {
    "plugins": show_plugins,
    "config-schema": partial(_show_schema, config_schema),
    "report-schema": partial(_show_schema, report_schema),
}
EXAMPLES = (
    "attn info",
    "attn info plugins",
    "attn info config-schema > attn.schema.json",
    "attn info report-schema > report.schema.json",
)
PART = argument(
    "part",
    f"{', '.join(PARTS)}: what packages add, or a JSON Schema (default: versions)",
    "PART",
    required=False,
    choices=PARTS,
)


def show_info(part: str | None) -> int:
    """Versions, or the part that is named."""
    if part is None:
        return show_versions()
    refuse_unknown("info", part, PARTS)
    return PARTS[part]()


command = partial(Command, run=show_info, parameters=[PART, DEBUG], examples=EXAMPLES)
