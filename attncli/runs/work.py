"""Estimates of the time and memory that a plan takes, and how many workers and jobs at a time suit it."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from attncli.errors import UserError
from attncli.models.folder import READ_FIRST_BYTES, model_on_disk, num_parameters, stored_bytes
from attncli.runs.plan import Plan
from attncli.settings.fields import Spec
from attncli.settings.models import ModelSpec

# Measured on one core, and rounded: a factor of three or so does not matter here.
SECONDS_A_RUN = 3e-4
SECONDS_A_BYTE = 5e-10
SECONDS_A_WEIGHT = 1e-8
OPERATIONS_A_SECOND = 2e10
CHARACTERS_A_TOKEN = 5
SECONDS_TO_START, SECONDS_TO_START_WITH_MODEL = 2.0, 4.0
LEAST_SECONDS_WITH_MODEL = 50.0
"""Where a model runs once for each text, less than that is not shared among workers: each of them imports and
loads it again, and torch has threads for it in one process. It takes a half to a fifth of the estimate."""
BYTES_OF_A_WORKER = 300 * 10**6
SHARE_OF_MEMORY = 1 / 3
BYTES_OF_A_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_TOGETHER, MAX_SECONDS_TOGETHER, MAX_BYTES_TOGETHER = 256, 2.0, 512 * 2**20
MAX_SECONDS_THROUGH_MODEL = 10.0
"""Of texts through which a model runs once: together they take a fraction of the estimate."""
BYTES_READ_A_SECOND = 10**9
"""Of the files of a model that a worker reads again for each lot of jobs."""
SHARE_IN_MEMORY, SHARE_OF_READING = 1 / 8, 1 / 8
"""For such a model, the share in memory at a time, and the largest share of a lot's time for reading it."""


class WorkLeft(NamedTuple):
    """What is left of a plan: jobs, seconds on one core, and the memory of its largest run and its models."""

    num_jobs: int
    seconds: float
    run_bytes: int
    model_bytes: int | None = None
    """In each worker; None where no experiment has a model."""
    reading_seconds: float = 0.0
    """For the models that are read again for each lot of jobs."""
    runs_once: bool = False
    """Whether each job is a run of a model, and no more."""

    @property
    def seconds_a_job(self) -> float:
        """On one core."""
        return self.seconds / max(1, self.num_jobs)


def num_workers(work: WorkLeft, *, cores: int, free_bytes: int) -> int:
    """How many workers to start; 0 where this process alone is faster.

    One per core, as long as each has more to do than its start takes and all fit into a third of the free
    memory.
    """
    has_model = work.model_bytes is not None
    if work.runs_once and work.seconds < LEAST_SECONDS_WITH_MODEL:
        return 0
    worker_bytes = BYTES_OF_A_WORKER + work.run_bytes + (work.model_bytes or 0)
    most = min(
        cores,
        work.num_jobs,
        int(work.seconds / (SECONDS_TO_START_WITH_MODEL if has_model else SECONDS_TO_START)),
        int(free_bytes * SHARE_OF_MEMORY / worker_bytes),
    )
    return most if most > 1 else 0


def num_together(work: WorkLeft) -> int:
    """How many jobs to compute together before their reports are shown in order.

    It depends on the plan alone: results agree to the last bit only when the same jobs are computed together.
    """
    fitting = MAX_BYTES_TOGETHER // max(1, work.run_bytes)
    most = MAX_SECONDS_THROUGH_MODEL if work.runs_once else MAX_SECONDS_TOGETHER
    seconds = max(most, work.reading_seconds / SHARE_OF_READING)
    in_time = int(seconds / max(work.seconds_a_job, 1e-9))
    return max(1, min(MAX_TOGETHER, fitting, in_time))


def estimated_work(plan: Plan, num_left: int) -> WorkLeft:
    """A rough estimate for the last `num_left` runs of a plan, before anything is imported or loaded."""
    costs = [(spec, _num_tokens(spec, plan)) for spec in plan.specs()]
    share = num_left / len(plan)
    models = {
        (model, _setting(spec, "dtype"), _setting(spec, "load"))
        for spec, _ in costs
        if (model := spec.model_source()) is not None
    }
    return WorkLeft(
        num_jobs=round(plan.num_jobs * share),
        seconds=plan.num_prompts * share * sum(seconds_of_run(*cost) for cost in costs),
        run_bytes=max(spec.needed_bytes(num_tokens, num_tokens) for spec, num_tokens in costs),
        model_bytes=sum(_bytes_in_worker(*model) for model in models) if models else None,
        reading_seconds=sum(_seconds_to_read(*model) for model in models),
        runs_once=all(
            isinstance(spec, ModelSpec) and spec.runs_once and spec.model_source() is not None
            for spec, _ in costs
        ),
    )


def seconds_of_run(spec: Spec, num_tokens: int) -> float:
    """Roughly how long one run takes on one core, with texts of that many tokens."""
    if (model := spec.model_source()) is not None:
        # Every parameter takes part in one product and one sum for each token.
        return SECONDS_A_RUN + 2 * _parameters(model) * num_tokens / OPERATIONS_A_SECOND
    return (
        SECONDS_A_RUN
        + SECONDS_A_BYTE * spec.needed_bytes(num_tokens, num_tokens)
        + SECONDS_A_WEIGHT * spec.num_weights(num_tokens, num_tokens)
    )


def parameter_bytes(model: str, dtype: str = "float32") -> int:
    """The bytes of a model's parameters once it is loaded; 0 for a model on the hub, which is unknown."""
    return BYTES_OF_A_NUMBER[dtype] * _parameters(model)


def _is_read_again(model: str, dtype: str, load: str) -> bool:
    size = parameter_bytes(model, dtype)
    return load == "disk" or (load == "auto" and size > READ_FIRST_BYTES)


def _bytes_in_worker(model: str, dtype: str, load: str) -> int:
    size = parameter_bytes(model, dtype)
    return int(size * SHARE_IN_MEMORY) if _is_read_again(model, dtype, load) else size


def _seconds_to_read(model: str, dtype: str, load: str) -> float:
    path = model_on_disk(model, allow_download=False)
    if path is None or not _is_read_again(model, dtype, load):
        return 0.0
    return stored_bytes(path) / BYTES_READ_A_SECOND


@cache
def _parameters(model: str) -> int:
    """How many parameters a folder, a package's model or a GGUF file has; 0 where nothing says so."""
    path = model_on_disk(model, allow_download=False)
    try:
        return 0 if path is None else num_parameters(path)
    except UserError:  # each of its runs will fail with this error
        return 0


def _setting(spec: Spec, key: str) -> str:
    """A setting of experiments with a model."""
    return str(getattr(spec, key))


def _num_tokens(spec: Spec, plan: Plan) -> int:
    """Roughly how many tokens the texts of an experiment have; for a file of sentences the mean."""
    if num_sampled := max(spec.sampled_counts()):
        return num_sampled
    if plan.prompts is not None:
        return round(plan.mean_characters / CHARACTERS_A_TOKEN) + 1
    file = getattr(spec, "file", None)
    if file is not None and Path(file).is_file():
        return Path(file).stat().st_size // CHARACTERS_A_TOKEN + 1
    return len(getattr(spec, "sentence", None) or "") // CHARACTERS_A_TOKEN + 1
