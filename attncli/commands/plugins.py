"""`attn plugins`: what installed packages add to attn, and whether it can be used."""

from functools import partial

from attncli.commands.command import DEBUG, Command
from attncli.core.names import PLUGGED
from attncli.core.runtime import GROUPS, BrokenPlugin, Plugin, added, imported, plugins
from attncli.errors import DONE, FAILED
from attncli.plain_text import plain_text
from attncli.settings import EXPERIMENTS
from attncli.views import VIEWS

NONE = (
    "No installed package adds to attn. One that does says so in its pyproject.toml: "
    f'[project.entry-points."attncli.{GROUPS[0]}"], or {", ".join(GROUPS[1:])}.'
)
TAKEN = "not used: there is one of this name"
EXAMPLES = ("attn plugins",)


def _in_use() -> set[Plugin | None]:
    """Those that the tables have taken up."""
    from attncli.core.engines import ENGINES

    of_tables = {row.plugin for row in EXPERIMENTS.values()} | {view.plugin for view in VIEWS.values()}
    return {*PLUGGED.values(), *of_tables, *added("engines", {*ENGINES}).values()}


def _state(plugin: Plugin, in_use: set[Plugin | None]) -> str:
    """`ok`, or why it is not used."""
    try:
        imported(plugin)
    except BrokenPlugin as error:
        return str(error).removeprefix(f"plugin {plugin} ")
    return "ok" if plugin in in_use else TAKEN


def show_plugins() -> int:
    """A line for each, and 1 where one of them cannot be used."""
    if not plugins():
        print(NONE)
        return DONE
    in_use = _in_use()
    rows = [(plugin.group, plugin.name, plugin.package, _state(plugin, in_use)) for plugin in plugins()]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(plain_text("  ".join(cells).rstrip()))
    return DONE if all(state == "ok" for *_, state in rows) else FAILED


command = partial(Command, run=show_plugins, parameters=[DEBUG], examples=EXAMPLES)
