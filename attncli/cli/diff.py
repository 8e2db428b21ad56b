"""`attn diff`: two experiments or saved reports, aligned and set against each other."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncli.cli.output import Color, Debug, Destination, Format, Output, Precision, ScaleColors, SkipSink
from attncli.cli.progress import progress_line
from attncli.errors import UserError, nearest
from attncli.spec import SPECS, Spec
from attncli.spec.config_file import ConfigFile
from attncli.spec.overrides import Overrides, overridden, parse_overrides, unknown_overrides
from attncli.spec.validation import Given, build_spec
from attncli.views import PICTURES

if TYPE_CHECKING:
    from attncli.report import Report

EXAMPLES = """
  attn diff self --set causal=true
  attn diff multihead --set sentence="the dog walks on the street" --format heatmap
  attn diff before.json after.json
  attn diff a.yaml b.yaml -o difference.html"""

Side = Annotated[
    str, typer.Argument(help="A config file, a saved report (.json), or an experiment's name.", metavar="A")
]
OtherSide = Annotated[
    str | None, typer.Argument(help="The same; A again where only --set tells them apart.", metavar="[B]")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of B. Repeatable.", metavar="KEY=VALUE")
]


def is_saved(side: str) -> bool:
    """Whether a side names a saved report, by its suffix."""
    return Path(side).suffix.lower() in (".json", ".jsonl", ".ndjson")


def spec_of(side: str, overrides: Overrides, draws: bool) -> Spec:
    """The settings of one side: of a config file with one experiment, or an experiment's defaults."""
    if side in SPECS and not Path(side).exists():
        given = overridden(SPECS[side], {}, overrides)
        problems = unknown_overrides(overrides, [SPECS[side]])
        if problems:
            raise UserError(*problems)
        return build_spec(SPECS[side], _with_maps(side, given, draws))
    if Path(side).suffix.lower() not in (".yaml", ".yml") and not Path(side).exists():
        hint = nearest(side, SPECS)
        raise UserError(f"{side}: is no file, and no experiment: one of {', '.join(SPECS)}{hint}")
    steps = ConfigFile(Path(side), overrides).steps()
    if len(steps) != 1:
        raise UserError(f"{side}: holds {len(steps)} experiments: diff takes one on each side")
    step = steps[0]
    problems = unknown_overrides(overrides, [type(step.spec)])
    if problems:
        raise UserError(*problems)
    experiment = step.spec.experiment
    return build_spec(SPECS[experiment], _with_maps(experiment, step.given, draws))


def _with_maps(experiment: str, given: dict[str, Given], draws: bool) -> dict[str, Given]:
    """A survey of heads keeps what each looks at, where that is drawn."""
    if draws and "maps" in SPECS[experiment].model_fields and "statistic" not in given:
        return {"maps": Given("self", "what is drawn")} | given
    return given


def _reports(
    sides: list[tuple[str, Overrides]], draws: bool, progress: Callable[[float], None] | None
) -> "list[Report]":
    """Both sides, every setting checked before anything runs."""
    specs = {number: spec_of(*side, draws) for number, side in enumerate(sides) if not is_saved(side[0])}
    saved = {number: _saved(side) for number, (side, _) in enumerate(sides) if number not in specs}
    from attncli.experiments.session import Session

    return [
        saved[number] if number in saved else Session(progress).run(specs[number], reseed=True)
        for number in range(len(sides))
    ]


def _saved(side: str) -> "Report":
    from attncli.saved.reports import read_reports

    reports = read_reports(side).reports
    if len(reports) != 1:
        raise UserError(f"{side}: holds {len(reports)} reports: diff takes one on each side")
    return reports[0]


def run_diff(
    a: Side,
    b: OtherSide = None,
    set: Set = None,
    format: Format = None,
    output: Output = None,
    precision: Precision = "4",
    color: Color = "auto",
    scale_colors: ScaleColors = "linear",
    skip_sink: SkipSink = None,
    debug: Debug = False,
) -> int:
    """Read or compute both sides, then show B against A."""
    to = Destination(
        format, output, precision, color, several=False, scale_colors=scale_colors, skip_sink=skip_sink
    )
    overrides = parse_overrides(set or ())
    if b is None and not overrides:
        raise UserError("diff: needs a second side: a file, or --set KEY=VALUE for what differs")
    other = a if b is None else b
    if overrides and is_saved(other):
        raise UserError(f"--set: cannot change {other}, a saved report: give a config file")
    with progress_line() as progress:
        reports = _reports([(a, {}), (other, overrides)], to.view in PICTURES, progress)
        from attncli.experiments.comparison import compare

        to.write([compare(*reports)])
    return 0


def build(name: str, summary: str) -> Any:
    """The Typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n", no_args_is_help=True)(run_diff)
    return typer.main.get_command(app)
