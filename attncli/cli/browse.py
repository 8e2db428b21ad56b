"""`attn browse`: heads and tokens of a saved report, or of a model, in the terminal."""

import gc
import inspect
import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from attncli.cli.experiment import Config, checked_spec, flag_name, given_settings, option, running
from attncli.cli.output import COLORS, Color, Debug, ScaleColors, SkipSink, color_depth, refuse_unknown
from attncli.errors import UserError
from attncli.report import Report
from attncli.spec import SPECS, Spec
from attncli.spec.validation import Given
from attncli.views.colormaps import SCALES

EXAMPLES = """
  attn browse
  attn heads --maps self --sentence "the cat sat because it was tired" -o heads.json
  attn browse heads.json
  attn browse --model ./my-model --sentence "the cat sat because it was tired" --sort induction"""

NEEDS_TERMINAL = "browse: needs a terminal: {} is none (attn show REPORT --format heatmap writes to a pipe)"
# Settings of the survey that would leave out what is browsed.
LEFT_OUT = ("statistic", "top")

SavedReport = Annotated[
    str | None,
    typer.Argument(help="A saved report (-o x.json); without it a model is surveyed.", metavar="REPORT"),
]


def check_terminal() -> None:
    """UserError where the browser could not be seen or steered, or is not installed."""
    if find_spec("textual") is None:
        raise UserError('browse: needs: pip install "attncli[tui]"')
    streams = {
        "standard input": sys.stdin,
        "standard output": sys.stdout,
        "standard error": sys.stderr,
    }
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            raise UserError(NEEDS_TERMINAL.format(name))
    if os.environ.get("TERM") == "dumb":
        raise UserError("browse: needs a terminal that can move its cursor (TERM is dumb)")


def saved_reports(file: str, flags: dict[str, Any]) -> tuple[Report, ...]:
    """The reports of a file; UserError for flags that are about a model."""
    for key, value in flags.items():
        if value not in (None, []) and key not in ("skip_sink", "sort"):
            raise UserError(f"{flag_name(key)}: is for a model: {file} holds what was computed")
    from attncli.saved.reports import read_reports

    return read_reports(file).reports


def surveyed(config: str | None, flags: dict[str, Any]) -> tuple[Report, ...]:
    """The report of the survey of a model, with the heads' maps in it."""
    given = given_settings("heads", config, flags)
    for key in LEFT_OUT:
        if key in given and given[key].value is not None:
            raise UserError(given[key].line(key, "is for attn heads: browse shows every head"))
    given.setdefault("maps", Given("self", "attn browse"))
    if given["maps"].value == "none":
        raise UserError(given["maps"].line("maps", "must be self, cross or encoder: browse shows maps"))
    spec: Spec = checked_spec("heads", given)
    with running(spec) as reports:
        return tuple(reports)


def browse_reports(
    file: str | None, config: str | None, color: str, scale: str, flags: dict[str, Any]
) -> int:
    """Read or compute, then show until the user leaves."""
    check_terminal()
    refuse_unknown("--color", color, COLORS)
    refuse_unknown("--scale-colors", scale, SCALES)
    skip_sink = flags["skip_sink"]
    if skip_sink is not None and not skip_sink.isdecimal():
        raise UserError(f"--skip-sink: must be a whole number (got {skip_sink})")
    if file is not None and config is not None:
        raise UserError(f"--config: is for a model: {file} holds what was computed")
    reports = saved_reports(file, flags) if file is not None else surveyed(config, flags)
    from attncli.views.browser import browse
    from attncli.views.browser.atlas import grids
    from attncli.views.browser.choice import Choice

    maps = [grid for report in reports for grid in grids(report)]
    if not maps:
        raise UserError(f"{file}: nothing to browse: it holds no maps between queries and keys")
    if flags["sort"] is not None:
        refuse_unknown("--sort", flags["sort"], maps[0].figures)
    choice = Choice(maps, scale=scale, skip_sink=int(skip_sink or 0), sort=flags["sort"])
    gc.freeze()  # What was imported and read stays until the end; what comes now is collected.
    gc.enable()
    return browse(choice, colors=color_depth(color, True))


def build(name: str, summary: str) -> Any:
    """The Typer command: the flags of the survey, but for those that leave heads out."""

    def command(
        report: SavedReport = None,
        *,
        config: Config = None,
        color: Color = "auto",
        scale_colors: ScaleColors = "linear",
        skip_sink: SkipSink = None,
        debug: Debug = False,
        **flags: Any,
    ) -> int:
        return browse_reports(report, config, color, scale_colors, {**flags, "skip_sink": skip_sink})

    fields = SPECS["heads"].model_fields
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    names = {p.name for p in own}
    keys = sorted(
        fields.keys() - {*LEFT_OUT, *names}, key=lambda key: (key in Spec.model_fields, [*fields].index(key))
    )
    options = [option(key, fields[key]) for key in keys]
    # Typer reads a command from its signature; a function type has no such attribute for mypy.
    command.__signature__ = signature.replace(parameters=[own[0], *options, *own[1:]])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*options, *own)}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n")(command)
    return typer.main.get_command(app)
