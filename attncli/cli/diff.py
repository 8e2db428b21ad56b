"""`attn diff`: two experiments or saved reports, aligned and compared."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.cli.command import Command, argument, option
from attncli.cli.flags import DEBUG, OUTPUT_FLAGS
from attncli.cli.output import Destination
from attncli.cli.progress import ProgressLine, progress_line
from attncli.cli.show import opened
from attncli.errors import UserError, nearest
from attncli.saved.arrays import is_array_file
from attncli.spec import SPECS
from attncli.spec.config.config_file import ConfigFile
from attncli.spec.config.overrides import Overrides, overridden, parse_overrides, unknown_overrides
from attncli.spec.config.validation import Given, build_spec, with_maps
from attncli.spec.fields import Spec

if TYPE_CHECKING:
    from attncli.report import Report

EXAMPLES = (
    "attn diff self --set causal=true",
    "attn diff multihead --set num_kv_heads=2 --format heatmap",
    "attn diff before.json after.json",
    "attn diff a.yaml b.yaml -o difference.html",
)
PARAMETERS = (
    argument("a", "A config file, a saved report (.json), an array (.npz), or an experiment's name.", "A"),
    argument("b", "The same; without it A again, with the settings of --set.", "B", required=False),
    option("--set", "A setting of B. Repeatable.", "KEY=VALUE", kind=list[str]),
)


def is_saved(side: str) -> bool:
    """Whether a side names a saved report or an array, by its suffix."""
    return Path(side).suffix.lower() in (".json", ".jsonl", ".ndjson") or is_array_file(side)


def spec_of(side: str, overrides: Overrides, draws: bool) -> Spec:
    """The settings of one side: of a config file with one experiment, or an experiment's defaults."""
    given: dict[str, Given]
    if side in SPECS and not Path(side).exists():
        spec_class, given = SPECS[side], overridden(SPECS[side], {}, overrides)
    elif Path(side).suffix.lower() not in (".yaml", ".yml") and not Path(side).exists():
        hint = nearest(side, SPECS)
        raise UserError(f"{side}: is neither a file nor an experiment: one of {', '.join(SPECS)}{hint}")
    else:
        entries = ConfigFile(Path(side), overrides).entries()
        if len(entries) != 1:
            raise UserError(f"{side}: holds {len(entries)} experiments: diff takes one on each side")
        spec_class, given = type(entries[0].spec), entries[0].given
    if problems := unknown_overrides(overrides, [spec_class]):
        raise UserError(*problems)
    return build_spec(spec_class, with_maps(spec_class, given, "what is drawn") if draws else given)


def _reports(sides: list[tuple[str, Overrides]], draws: bool, progress: ProgressLine) -> "list[Report]":
    """Both sides, every setting checked before anything runs."""
    specs = {number: spec_of(*side, draws) for number, side in enumerate(sides) if not is_saved(side[0])}
    saved = {number: _saved(side) for number, (side, _) in enumerate(sides) if number not in specs}
    from attncli.running.session import Session

    return [
        saved[number] if number in saved else Session(progress).run(specs[number], reseed=True)
        for number in range(len(sides))
    ]


def _saved(side: str) -> "Report":
    reports = opened(side).reports
    if len(reports) != 1:
        raise UserError(f"{side}: holds {len(reports)} reports: diff takes one on each side")
    return reports[0]


def run_diff(a: str, b: str | None, set: Sequence[str], **flags: Any) -> None:
    """Read or compute both sides, then show B against A."""
    to = Destination(**flags)
    overrides = parse_overrides(set)
    if b is None and not overrides:
        raise UserError("diff: needs a second side: a file, or --set KEY=VALUE for what differs")
    other = a if b is None else b
    if overrides and is_saved(other):
        raise UserError(f"--set: cannot change {other}, which was computed before: give a config file")
    with progress_line() as progress:
        reports = _reports([(a, {}), (other, overrides)], to.view.draws, progress)
        from attncli.experiments.diff.comparison import compare

        to.write([compare(*reports)])


command = partial(Command, run=run_diff, parameters=[*PARAMETERS, *OUTPUT_FLAGS, DEBUG], examples=EXAMPLES)
