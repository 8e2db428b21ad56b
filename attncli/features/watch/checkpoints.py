"""Finds the checkpoints of a training run, and stores a survey of each as a step."""

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
from attncli.records.stored_columns import StoredColumns
from attncli.runs.reading import reading
from attncli.runs.store import Store
from attncli.system.files import LOG_BYTES, read_whole
from attncli.system.plain_text import parsed_json

if TYPE_CHECKING:
    from attncli.settings.heads import HeadsSpec

STEP, NUMBER = re.compile(r"step\D?(\d{1,15})(?!\d)"), re.compile(r"(?<!\d)\d{1,15}(?!\d)")
REVISIONS = re.compile(r"[\w.-]+(/[\w.-]+)?@[^@]+")
"""A hub id and a pattern of its revisions."""
SETTLED_SECONDS = 2.0
"""A checkpoint whose files changed more recently is still being written."""


def step_number(name: str) -> int | None:
    """Return the number after `step` in a name, else its last number, or None if there is no number."""
    numbers = STEP.findall(name) or NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


class Checkpoint(NamedTuple):
    """A folder, or ID@REVISION for a model on the hub, with the commit of that revision."""

    model: str
    commit: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path or of the hub id."""
        return Path(self.model).name

    @property
    def folder(self) -> Path | None:
        """The folder, or None for a model on the hub."""
        return Path(self.model) if self.commit is None else None


def run_place(model: str) -> str:
    """Return the place of a run's checkpoints: the parent folder, or a hub id."""
    is_revision = REVISIONS.fullmatch(model) and not Path(model).exists()
    return id_and_revision(model)[0] if is_revision else str(Path(model).resolve().parent)


def find_checkpoints(patterns: Sequence[str], *, allow_download: bool) -> dict[int, Checkpoint]:
    """Return the checkpoints that match the patterns, by step: model folders, or revisions of a hub id.

    Raises UserError for a name without a number, for two checkpoints with the same step, and for a hub id
    that is not in the hub cache if downloads are not allowed.
    """
    names: dict[str, Checkpoint] = {}
    for pattern in patterns:
        whole = os.path.expanduser(pattern)  # noqa: PTH111 - as in the next line
        # A name may contain brackets, and pathlib does not support absolute patterns.
        paths = [Path(whole)] if Path(whole).is_dir() else [*map(Path, glob(whole))]  # noqa: PTH207
        folders = [path for path in paths if path.is_dir() and (path / "config.json").is_file()]
        names |= {str(folder): Checkpoint(str(folder)) for folder in folders}
        if not paths and REVISIONS.fullmatch(pattern):
            names |= _find_revisions(pattern, allow_download=allow_download)
    by_step: dict[int, Checkpoint] = {}
    for name, checkpoint in sorted(names.items()):
        step = step_number(checkpoint.name)
        if step is None:
            raise UserError(f"{name}: must contain a step number, such as checkpoint-500")
        if step in by_step:
            raise UserError(f"{by_step[step].model} and {name} have the same step number ({step})")
        by_step[step] = checkpoint
    return dict(sorted(by_step.items()))


def _find_revisions(pattern: str, *, allow_download: bool) -> dict[str, Checkpoint]:
    from attncli.models.hub import hub_revisions

    name, wanted = id_and_revision(pattern)
    revisions = hub_revisions(name, allow_download=allow_download)
    matches = {
        f"{name}@{revision}": Checkpoint(f"{name}@{revision}", commit)
        for revision, commit in revisions.items()
        if fnmatchcase(revision, wanted)
    }
    if not matches:
        some = ", ".join([*revisions][:MOST_LISTED]) + (", ..." if len(revisions) > MOST_LISTED else "")
        raise UserError(f"{pattern}: no revision of {name} matches {wanted}: its revisions are {some}")
    return matches


MOST_LISTED = 5


def is_settled(folder: Path | None) -> bool:
    """Return True if nothing in a folder has changed for a while, and False if it is being removed."""
    if folder is None:  # a revision is always complete
        return True
    try:
        changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return False
    return time.time() - changed > SETTLED_SECONDS


UNREADABLE_LOG = (OSError, ValueError, KeyError, TypeError, OverflowError)
"""Errors raised by logs that are too large, are not text, or have no losses of steps."""


def logged_loss(folder: Path | None, step: int) -> float | None:
    """Return the loss in a checkpoint's trainer_state.json, or None if none was logged at that step."""
    path = None if folder is None else folder / "trainer_state.json"
    if path is None or not path.is_file():
        return None
    try:
        history = parsed_json(read_whole(path, LOG_BYTES))["log_history"]
        losses = [row["loss"] for row in history if "loss" in row and row["step"] == step]
        return float(losses[-1]) if losses else None
    except UNREADABLE_LOG:  # written by another program, or truncated
        return None


class StoreMismatch(UserError):
    """Raised if a store has other contents, so that the steps of these checkpoints cannot be added."""


def _head_places(columns: StoredColumns) -> frozenset[tuple[int | None, int | None]]:
    return frozenset((column.layer, column.head) for column in columns)


class CheckpointSurveys:
    """Surveys each checkpoint of a run once, and stores the survey.

    `model_spec` returns the settings for a model. `on_begin` is called with a description of the next step,
    and `on_error` with the reason why a checkpoint was skipped.
    """

    def __init__(
        self,
        store: Store,
        model_spec: "Callable[[str], HeadsSpec]",
        *,
        on_begin: Callable[[str], None],
        on_error: Callable[[str], None],
    ) -> None:
        self.store, self.model_spec, self.on_begin, self.on_error = store, model_spec, on_begin, on_error
        self.done: set[Checkpoint] = set()
        self.failed: set[Checkpoint] = set()
        self.is_checked = False
        self.stored_runs: set[str] = set()
        self.stored: dict[int, str] = {}
        self.heads: frozenset[tuple[int | None, int | None]] | None = None

    @property
    def are_on_hub(self) -> bool:
        """True if any checkpoint is a revision of a model on the hub."""
        return any(checkpoint.commit for checkpoint in self.done | self.failed)

    def new(self, checkpoints: Mapping[int, Checkpoint]) -> dict[int, Checkpoint]:
        """Return the checkpoints that have not been surveyed yet and are completely written."""
        taken = self.done | self.failed
        return {
            step: checkpoint
            for step, checkpoint in checkpoints.items()
            if checkpoint not in taken and is_settled(checkpoint.folder)
        }

    def take(self, checkpoints: Mapping[int, Checkpoint]) -> int:
        """Survey the checkpoints that are missing from the store. Returns the number surveyed now.

        Raises StoreMismatch for a store of another run. Other errors are passed to `on_error`, and the next
        checkpoint is surveyed.
        """
        count = 0
        for step, checkpoint in checkpoints.items():
            if checkpoint in self.done | self.failed:
                continue
            try:
                count += self._survey(step, checkpoint)
                self.done.add(checkpoint)
            except StoreMismatch:
                raise
            except UserError as error:
                self.failed.add(checkpoint)
                for text in error.lines:
                    self.on_error(f"{checkpoint.model}: {text}")
        return count

    def _survey(self, step: int, checkpoint: Checkpoint) -> bool:
        """Survey a checkpoint unless the store has it already. Returns True if it was surveyed now."""
        from attncli.features.watch.training_steps import content_key, measured_step, store_step
        from attncli.runs.runner import Session

        spec = self.model_spec(checkpoint.model)
        self.on_begin(f"reading {checkpoint.name} to identify it")
        self._check_text(spec)
        key = content_key(spec, step, checkpoint.commit)
        if key in self.store.steps():
            self.stored_runs.add(run_place(checkpoint.model))
            return False
        self.on_begin(f"step {step}: {checkpoint.name}")
        self._check_run(checkpoint)
        report = Session().run(spec, reseed=True)
        measured = measured_step(step, spec, key, report, logged_loss(checkpoint.folder, step))
        self._check_heads(measured.columns)
        self.store.remove_steps(step, step)  # the step of an earlier checkpoint
        store_step(self.store, [measured])
        return True

    def _check_text(self, spec: "HeadsSpec") -> None:
        """Raise StoreMismatch if a store has other contents, or steps measured on another text."""
        from attncli.features.watch.training_steps import spec_text_key, text_key

        if self.is_checked:
            return
        with reading(self.store.path) as reader:
            stored = {text_key(*text) for text in reader.step_texts()}
            for step in reader.steps():
                self.stored[step.step] = str(reader.settings[step.settings]["model"])
                self.heads = _head_places(step.columns)
        if self.store.last_run() and stored != {spec_text_key(spec)}:
            contents = (
                "steps on another text or with other settings"
                if stored
                else "runs that are not training steps"
            )
            raise StoreMismatch(f"-o {self.store.path}: has {contents}: use another name, or --fresh")
        self.is_checked = True

    def _check_run(self, checkpoint: Checkpoint) -> None:
        """Raise StoreMismatch if the store has steps from `Watch` or from another run's checkpoints.

        A folder that was moved is recognised because its checkpoints are unchanged.
        """
        run = run_place(checkpoint.model)
        for step, model in self.stored.items():
            is_checkpoint = step_number(Path(model).name) == step
            if not is_checkpoint or (run not in self.stored_runs and run_place(model) != run):
                contents = f"checkpoints in {run_place(model)}" if is_checkpoint else "steps of attncli.Watch"
                raise StoreMismatch(f"-o {self.store.path}: has {contents}: use another name, or --fresh")

    def _check_heads(self, columns: StoredColumns) -> None:
        """Raise UserError for a checkpoint of a different model."""
        heads = _head_places(columns)
        if self.heads is not None and heads != self.heads:
            raise UserError("layers and heads differ from those of earlier steps: this is a different model")
        self.heads = heads
