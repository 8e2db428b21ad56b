"""`attn browse`: heads and tokens of a saved report, or of a model, in the terminal."""

import inspect
import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from attncli.cli.experiment import Config, checked_spec, flag_name, given_settings, option, running
from attncli.cli.output import COLORS, Color, Debug, ScaleColors, SkipSink, color_depth, refuse_unknown
from attncli.cli.show import ArrayName, ContextTokens, Tokens, opened
from attncli.errors import UserError
from attncli.report import Report
from attncli.spec import SPECS, Spec
from attncli.spec.validation import Given
from attncli.views import SCALES, Display

EXAMPLES = """
  attn browse
  attn heads --maps self --sentence "the cat sat because it was tired" -o heads.json
  attn browse heads.json
  attn browse --model ./my-model --sentence "the cat sat because it was tired" --sort induction"""

NEEDS_TERMINAL = "browse: needs a terminal: {} is none (attn show REPORT --format heatmap writes to a pipe)"
# Settings of the survey that would leave out what is browsed.
LEFT_OUT = ("statistic", "top")

SavedFile = Annotated[
    str | None,
    typer.Argument(
        help="A saved report (.json, .jsonl) or an array (.npz, .npy, .safetensors) as in attn show; "
        "without it a model is surveyed.",
        metavar="REPORT",
    ),
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


def saved_reports(file: str, flags: dict[str, Any], arrays: dict[str, str | None]) -> tuple[Report, ...]:
    """The reports of a file; UserError for flags that are about a model."""
    for key, value in flags.items():
        if value not in (None, []) and key not in ("skip_sink", "sort"):
            raise UserError(f"{flag_name(key)}: is for a model: {file} holds what was computed")
    return opened(file, **arrays).reports


def surveyed(config: str | None, flags: dict[str, Any]) -> tuple[Report, ...]:
    """The report of the survey of a model, with the heads' maps in it."""
    given = given_settings("heads", config, flags)
    for key in LEFT_OUT:
        if key in given and given[key].value is not None:
            raise UserError(given[key].line(key, "is for attn heads: browse shows every head"))
    given.setdefault("maps", Given("self", "attn browse"))
    if given["maps"].value == "none":
        raise UserError(given["maps"].line("maps", "must be self, cross or encoder (got none)"))
    spec: Spec = checked_spec("heads", given)
    with running(spec) as reports:
        return tuple(reports)


def checked_display(color: str, scale: str, skip_sink: str | None) -> Display:
    """How to show; UserError for what is no choice."""
    refuse_unknown("--color", color, COLORS)
    refuse_unknown("--scale-colors", scale, SCALES)
    if skip_sink is not None and not skip_sink.isdecimal():
        raise UserError(f"--skip-sink: must be a whole number (got {skip_sink})")
    return Display(colors=color_depth(color, True), scale_colors=scale, skip_sink=int(skip_sink or 0))


def reports_to_browse(
    file: str | None, config: str | None, flags: dict[str, Any], arrays: dict[str, str | None]
) -> tuple[Report, ...]:
    """Read, or compute."""
    if file is not None:
        return saved_reports(file, {"config": config, **flags}, arrays)
    for key, value in arrays.items():
        if value is not None:
            raise UserError(f"{flag_name(key)}: is for a saved array: give its file")
    return surveyed(config, flags)


def browse_reports(reports: tuple[Report, ...], name: str, sort: str | None, display: Display) -> int:
    """Show until the user leaves; UserError where there is nothing to show."""
    from attncli.views.browser import browse
    from attncli.views.browser.atlas import grids
    from attncli.views.browser.choice import Choice

    maps = [grid for report in reports for grid in grids(report)]
    if not maps:
        heads = " (attn heads --maps self keeps them)" if reports[0].experiment == "heads" else ""
        raise UserError(f"{name}: nothing to browse: it holds no maps between queries and keys{heads}")
    if sort is not None:
        refuse_unknown("--sort", sort, maps[0].statistics)
    choice = Choice(maps, scale=display.scale_colors, skip_sink=display.skip_sink, sort=sort)
    return browse(choice, colors=display.colors)


def build(name: str, summary: str) -> Any:
    """The Typer command: the flags of the survey, but for those that leave heads out."""

    def command(
        report: SavedFile = None,
        *,
        tokens: Tokens = None,
        context_tokens: ContextTokens = None,
        array: ArrayName = None,
        config: Config = None,
        color: Color = "auto",
        scale_colors: ScaleColors = "linear",
        skip_sink: SkipSink = None,
        debug: Debug = False,
        **flags: Any,
    ) -> int:
        check_terminal()
        display = checked_display(color, scale_colors, skip_sink)
        arrays = {"tokens": tokens, "context_tokens": context_tokens, "array": array}
        reports = reports_to_browse(report, config, {**flags, "skip_sink": skip_sink}, arrays)
        return browse_reports(reports, report or "browse", flags["sort"], display)

    fields = SPECS["heads"].model_fields
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    names = {p.name for p in own}
    shared_last = sorted(fields, key=lambda key: key in Spec.model_fields)
    options = [option(key, fields[key]) for key in shared_last if key not in {*LEFT_OUT, *names}]
    # Typer reads a command from its signature; a function type has no such attribute for mypy.
    command.__signature__ = signature.replace(parameters=[own[0], *options, *own[1:]])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*options, *own)}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n")(command)
    return typer.main.get_command(app)
