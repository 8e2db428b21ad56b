"""The checkpoints of a training run: which there are, and the survey of each, kept in a store as a step."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UserError
from attncli.models.folder import id_and_revision
from attncli.runs.reading import reading
from attncli.runs.store import Store
from attncli.runs.stored_columns import StoredColumns
from attncli.system.files import LOG_BYTES, read_whole
from attncli.system.plain_text import parsed_json

if TYPE_CHECKING:
    from attncli.settings.heads import HeadsSpec

STEP, NUMBER = re.compile(r"step\D?(\d{1,15})(?!\d)"), re.compile(r"(?<!\d)\d{1,15}(?!\d)")
REVISIONS = re.compile(r"[\w.-]+(/[\w.-]+)?@[^@]+")
"""A hub id and a pattern of its revisions."""
SETTLED_SECONDS = 2.0
"""How long the files of a new checkpoint must not have changed: else it is still being written."""


def step_of(name: str) -> int | None:
    """The number behind `step` in a name, else its last number; None where it has none."""
    numbers = STEP.findall(name) or NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


class Checkpoint(NamedTuple):
    """A folder, or ID@REVISION of a model on the hub with the commit of that revision."""

    model: str
    commit: str | None = None

    @property
    def name(self) -> str:
        """The last part."""
        return Path(self.model).name

    @property
    def folder(self) -> Path | None:
        """None where it is on the hub."""
        return Path(self.model) if self.commit is None else None


def run_of(model: str) -> str:
    """Where the checkpoints of the same run are: the folder above, or a hub id."""
    is_revision = REVISIONS.fullmatch(model) and not Path(model).exists()
    return id_and_revision(model)[0] if is_revision else str(Path(model).resolve().parent)


def checkpoints_named(patterns: Sequence[str], *, allow_download: bool) -> dict[int, Checkpoint]:
    """What patterns name, by step, in order: folders of models, else revisions of a hub id.

    Raises UserError for a name without a number, for two of the same step, and, if downloads are not allowed,
    for a hub id that is not in the hub cache.
    """
    names: dict[str, Checkpoint] = {}
    for pattern in patterns:
        whole = os.path.expanduser(pattern)  # noqa: PTH111 - as in the next line
        # A name may hold brackets. pathlib has no absolute patterns.
        paths = [Path(whole)] if Path(whole).is_dir() else [*map(Path, glob(whole))]  # noqa: PTH207
        folders = [path for path in paths if path.is_dir() and (path / "config.json").is_file()]
        names |= {str(folder): Checkpoint(str(folder)) for folder in folders}
        if not paths and REVISIONS.fullmatch(pattern):
            names |= _revisions_named(pattern, allow_download=allow_download)
    by_step: dict[int, Checkpoint] = {}
    for name, checkpoint in sorted(names.items()):
        step = step_of(checkpoint.name)
        if step is None:
            raise UserError(f"{name}: a name with a step is needed, as checkpoint-500")
        if step in by_step:
            raise UserError(f"{by_step[step].model} and {name} are both of step {step}")
        by_step[step] = checkpoint
    return dict(sorted(by_step.items()))


def _revisions_named(pattern: str, *, allow_download: bool) -> dict[str, Checkpoint]:
    from attncli.models.hub import hub_revisions

    name, wanted = id_and_revision(pattern)
    known = hub_revisions(name, allow_download=allow_download)
    named = {
        f"{name}@{revision}": Checkpoint(f"{name}@{revision}", commit)
        for revision, commit in known.items()
        if fnmatchcase(revision, wanted)
    }
    if not named:
        some = ", ".join([*known][:MOST_NAMED]) + (", ..." if len(known) > MOST_NAMED else "")
        raise UserError(f"{pattern}: no revision of {name} is named {wanted}: it has {some}")
    return named


MOST_NAMED = 5


def is_settled(folder: Path | None) -> bool:
    """Whether nothing in a folder has changed for a while; not where it is being removed."""
    if folder is None:  # a revision is there whole
        return True
    try:
        changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return False
    return time.time() - changed > SETTLED_SECONDS


UNREADABLE_LOG = (OSError, ValueError, KeyError, TypeError, OverflowError)
"""What a log raises that is too large, no file of text, or says something else than losses of steps."""


def logged_loss(folder: Path | None, step: int) -> float | None:
    """The loss in the trainer_state.json of a checkpoint; None where none was logged at that step."""
    path = None if folder is None else folder / "trainer_state.json"
    if path is None or not path.is_file():
        return None
    try:
        history = parsed_json(read_whole(path, LOG_BYTES))["log_history"]
        losses = [row["loss"] for row in history if "loss" in row and row["step"] == step]
        return float(losses[-1]) if losses else None
    except UNREADABLE_LOG:  # of another program, or cut off: the loss is all that is lost
        return None


class StoreOfOthers(UserError):
    """A store that the steps of these checkpoints cannot be added to."""


def _heads_of(columns: StoredColumns) -> frozenset[tuple[int | None, int | None]]:
    return frozenset((column.layer, column.head) for column in columns)


class CheckpointSurveys:
    """Surveys the checkpoints of a run into a store, each once.

    `spec_of` gives the settings for a model. `on_begin` is told what is done next, `on_error` why a
    checkpoint is left out.
    """

    def __init__(
        self,
        store: Store,
        spec_of: "Callable[[str], HeadsSpec]",
        *,
        on_begin: Callable[[str], None],
        on_error: Callable[[str], None],
    ) -> None:
        self.store, self.spec_of, self.on_begin, self.on_error = store, spec_of, on_begin, on_error
        self.done: set[Checkpoint] = set()
        self.failed: set[Checkpoint] = set()
        self.is_checked = False
        self.known: set[str] = set()
        self.stored: dict[int, str] = {}
        self.heads: frozenset[tuple[int | None, int | None]] | None = None

    @property
    def are_on_hub(self) -> bool:
        """Whether some checkpoint is a revision of a model on the hub."""
        return any(checkpoint.commit for checkpoint in self.done | self.failed)

    def new(self, checkpoints: Mapping[int, Checkpoint]) -> dict[int, Checkpoint]:
        """Those that were not taken yet, and that nobody writes any more."""
        taken = self.done | self.failed
        return {
            step: checkpoint
            for step, checkpoint in checkpoints.items()
            if checkpoint not in taken and is_settled(checkpoint.folder)
        }

    def take(self, checkpoints: Mapping[int, Checkpoint]) -> int:
        """Survey those that the store does not have; how many were surveyed now.

        StoreOfOthers for a store of another run; other errors are told, and the next checkpoint follows.
        """
        count = 0
        for step, checkpoint in checkpoints.items():
            if checkpoint in self.done | self.failed:
                continue
            try:
                count += self._survey(step, checkpoint)
                self.done.add(checkpoint)
            except StoreOfOthers:
                raise
            except UserError as error:
                self.failed.add(checkpoint)
                for text in error.lines:
                    self.on_error(f"{checkpoint.model}: {text}")
        return count

    def _survey(self, step: int, checkpoint: Checkpoint) -> bool:
        """Survey a checkpoint, unless the store has it; whether it was surveyed now."""
        from attncli.features.watch.training_steps import content_key, measured_step, store_step
        from attncli.runs.runner import Session

        spec = self.spec_of(checkpoint.model)
        self.on_begin(f"reading {checkpoint.name}, to know it again")
        self._check_text(spec)
        key = content_key(spec, step, checkpoint.commit)
        if key in self.store.steps():
            self.known.add(run_of(checkpoint.model))
            return False
        self.on_begin(f"step {step}: {checkpoint.name}")
        self._check_run(checkpoint)
        report = Session().run(spec, reseed=True)
        measured = measured_step(step, spec, key, report, logged_loss(checkpoint.folder, step))
        self._check_heads(measured.columns)
        self.store.remove_steps(step, step)  # of a checkpoint that was there before
        store_step(self.store, [measured])
        return True

    def _check_text(self, spec: "HeadsSpec") -> None:
        """UserError for a store of something else, or of steps on another text."""
        from attncli.features.watch.training_steps import text_key, text_of

        if self.is_checked:
            return
        with reading(self.store.path) as reader:
            stored = {text_key(*text) for text in reader.texts_of_steps()}
            for step in reader.steps():
                self.stored[step.step] = str(reader.settings[step.settings]["model"])
                self.heads = _heads_of(step.columns)
        if self.store.last_run() and stored != {text_of(spec)}:
            others = "steps on another text, or with other settings" if stored else "runs that are no steps"
            raise StoreOfOthers(f"-o {self.store.path}: has {others}: give another name, or --fresh")
        self.is_checked = True

    def _check_run(self, checkpoint: Checkpoint) -> None:
        """UserError before a step is added to those of `Watch`, or of the checkpoints of another run.

        A folder that was moved is known by the checkpoints in it that are as they were.
        """
        run = run_of(checkpoint.model)
        for step, model in self.stored.items():
            is_checkpoint = step_of(Path(model).name) == step
            if not is_checkpoint or (run not in self.known and run_of(model) != run):
                others = f"checkpoints in {run_of(model)}" if is_checkpoint else "the steps of attncli.Watch"
                raise StoreOfOthers(f"-o {self.store.path}: has {others}: give another name, or --fresh")

    def _check_heads(self, columns: StoredColumns) -> None:
        """UserError for a checkpoint of another model."""
        heads = _heads_of(columns)
        if self.heads is not None and heads != self.heads:
            raise UserError("has other layers and heads than the steps before: it is of another model")
        self.heads = heads
