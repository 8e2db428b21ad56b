"""`attn browse`: heads and tokens of a saved report, or of a model, in the terminal."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from attncli.commands.command import (
    COLOR_FLAGS,
    DEBUG,
    Command,
    Parameter,
    argument,
    checked_display,
    color_depth,
    refuse_given,
    refuse_unknown,
    setting_options,
)
from attncli.commands.experiment import CONFIG, given_settings, running
from attncli.commands.show import ARRAY_FLAGS, opened
from attncli.errors import UserError
from attncli.report import Report
from attncli.settings import SPECS
from attncli.settings.validation import Given, checked_spec
from attncli.views import Display

EXAMPLES = (
    "attn browse",
    'attn heads --maps self --sentence "the cat sat because it was tired" -o heads.json',
    "attn browse heads.json",
    'attn browse --model ./my-model --sentence "the cat sat down because the cat was tired" --sort induction',
)
NEEDS_TERMINAL = (
    "browse: needs a terminal: {} is not a terminal (attn show REPORT --format heatmap writes to a pipe)"
)
# Settings of the survey that would leave out heads to browse.
LEFT_OUT = ("statistic", "top")
REPORT = argument(
    "report",
    "A saved report (.json, .jsonl) or an array (.npz, .npy, .safetensors) as in attn show; "
    "without it a model is surveyed.",
    "REPORT",
    required=False,
    reads_file=True,
)


def check_terminal() -> None:
    """UserError where the browser cannot be shown or controlled, or is not installed."""
    if find_spec("textual") is None:
        raise UserError('browse: needs: pip install "attncli[tui]"')
    streams = {"standard input": sys.stdin, "standard output": sys.stdout, "standard error": sys.stderr}
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            raise UserError(NEEDS_TERMINAL.format(name))
    if os.environ.get("TERM") == "dumb":
        raise UserError("browse: needs a terminal that can move its cursor (TERM is dumb)")


def saved_reports(file: str, flags: dict[str, Any], arrays: dict[str, str | None]) -> tuple[Report, ...]:
    """The reports of a file; UserError for flags of a model."""
    of_model = {key: value for key, value in flags.items() if key != "sort"}
    refuse_given(of_model, f"is for a model: {file} holds what was computed")
    return opened(file, **arrays).reports


def surveyed(config: str | None, flags: dict[str, Any]) -> tuple[Report, ...]:
    """The report of the survey of a model, with a map of each head."""
    given = given_settings("heads", config, flags)
    for key in LEFT_OUT:
        if key in given and given[key].value is not None:
            raise UserError(given[key].line(key, "is for attn heads: browse shows every head"))
    given.setdefault("maps", Given("self", "attn browse"))
    if given["maps"].value == "none":
        raise UserError(given["maps"].line("maps", "must be self, cross or encoder (got none)"))
    with running(checked_spec(SPECS["heads"], given)) as reports:
        return tuple(reports)


def browse_reports(reports: tuple[Report, ...], name: str, sort: str | None, display: Display) -> int:
    """Browse until the user quits; UserError where there is nothing to show."""
    from attncli.views.browser import browse
    from attncli.views.browser_choice import Choice, grids
    from attncli.views.matrices import scale_of
    from attncli.views.texts import readable

    reports = tuple(map(readable, reports))
    maps = [grid for report in reports for grid in grids(report)]
    if not maps:
        name_of = reports[0].experiment
        drawn_maps = SPECS[name_of].drawn_maps if name_of in SPECS else None
        heads = "" if drawn_maps is None else f" (attn {name_of} --maps {drawn_maps} keeps them)"
        raise UserError(f"{name}: nothing to browse: it holds no maps between queries and keys{heads}")
    if sort is not None:
        refuse_unknown("--sort", sort, maps[0].statistics)
    asked = reports[0].spec.get("sort")
    if sort is None and asked in maps[0].statistics:
        sort = asked
    choice = Choice(
        maps,
        scale=scale_of(display.scale_colors, next(iter(maps[0].maps.values())).axes),
        skip_sink=display.skip_sink,
        sort=sort,
        smallest_first=sort == asked and reports[0].spec.get("ascending") is True,
    )
    return browse(choice, colors=display.colors)


def command(name: str, summary: str) -> Command:
    """The command, with the flags of the survey except those that leave heads out."""
    others = {*LEFT_OUT, *(each.name for each in COLOR_FLAGS)}
    settings = [each for each in setting_options(SPECS["heads"]) if each.name not in others]

    def run(
        report: str | None,
        config: str | None,
        color: str,
        scale_colors: str | None,
        skip_sink: str | None,
        **flags: Any,
    ) -> int:
        check_terminal()
        display = checked_display(color, scale_colors, skip_sink)
        arrays = {each.name: flags.pop(each.name) for each in ARRAY_FLAGS}
        if report is not None:
            reports = saved_reports(report, {"config": config, **flags}, arrays)
        else:
            refuse_given(arrays, "is for a saved array: give its file")
            reports = surveyed(config, {**flags, "skip_sink": skip_sink})
        display = replace(display, colors=color_depth(color, True))
        sort = flags["sort"] or (reports[0].spec.get("sort") if report is None else None)
        return browse_reports(reports, report or "browse", sort, display)

    parameters: list[Parameter] = [REPORT, *settings, *ARRAY_FLAGS, CONFIG, *COLOR_FLAGS, DEBUG]
    return Command(name, summary, run, parameters, EXAMPLES)
