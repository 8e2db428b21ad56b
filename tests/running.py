"""Running an experiment from settings, as the tests need it."""

from collections.abc import Sequence
from pathlib import Path

from attncli.errors import UserError
from attncli.records.report import Report
from attncli.runs.plan import plan_files
from attncli.runs.runner import Session, run_in_buckets, run_items
from attncli.settings import spec_class_of
from attncli.settings.fields import Given, Spec, build_spec

ROOT = Path(__file__).parent.parent
LESSON_FILES = ROOT / "attncli" / "data" / "lessons" / "files"


def run(experiment: str, **settings: object) -> Report:
    given = {key: Given(value, key) for key, value in settings.items()}
    return Session().run(build_spec(spec_class_of(experiment, settings), given), reseed=True)


def run_together(specs: Sequence[Spec]) -> list[Report | UserError]:
    """The outcome of each experiment, in this order."""
    outcomes: dict[int, Report | UserError] = {}
    for bucket in run_in_buckets(specs):
        outcomes |= bucket
    return [outcomes[i] for i in range(len(specs))]


def run_file(path: Path) -> list[Report]:
    def fail(item: object, error: UserError) -> None:
        raise error

    return list(run_items(plan_files([path]), fail))
