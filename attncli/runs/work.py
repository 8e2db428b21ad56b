"""Estimate the time and memory that a plan takes, and choose how many workers and jobs run at once."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from attncli.errors import UserError
from attncli.models.folder import READ_FIRST_BYTES, model_on_disk, num_parameters, stored_bytes
from attncli.runs.plan import Plan
from attncli.settings.fields import Spec
from attncli.settings.models import ModelSpec

# Measured on one core and rounded, because a factor of three does not matter here.
SECONDS_A_RUN = 3e-4
SECONDS_A_BYTE = 5e-10
SECONDS_A_WEIGHT = 1e-8
OPERATIONS_A_SECOND = 2e10
CHARACTERS_A_TOKEN = 5
SECONDS_TO_START, SECONDS_TO_START_WITH_MODEL = 2.0, 4.0
LEAST_SECONDS_WITH_MODEL = 50.0
"""If a model runs once per text, less work than this stays in one process: each worker would import torch and
load the model again, whereas in one process torch's threads share the work. The work takes a half to a fifth
of the estimate.
"""
WORKER_BYTES = 300 * 10**6
MEMORY_SHARE = 1 / 3
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_TOGETHER, MAX_SECONDS_TOGETHER, MAX_BYTES_TOGETHER = 256, 2.0, 512 * 2**20
MAX_SECONDS_THROUGH_MODEL = 10.0
"""For texts that a model reads once: computed together, they take a fraction of the estimate."""
BYTES_READ_A_SECOND = 10**9
"""Bytes per second at which a worker rereads a model's files for each set of jobs."""
SHARE_IN_MEMORY, READING_SHARE = 1 / 8, 1 / 8
"""For models that are reread: the share in memory at a time, and the largest share of the time spent reading.
"""


class WorkLeft(NamedTuple):
    """The remaining work of a plan: jobs, seconds on one core, and memory for the largest run and models."""

    num_jobs: int
    seconds: float
    run_bytes: int
    model_bytes: int | None = None
    """The model's bytes per worker; None if no experiment has a model."""
    reading_seconds: float = 0.0
    """The seconds it takes to reread the models' files for each set of jobs."""
    runs_once: bool = False
    """True if each job is one run of a model and nothing more."""

    @property
    def seconds_a_job(self) -> float:
        """The number of seconds that a job takes on one core."""
        return self.seconds / max(1, self.num_jobs)


def num_workers(work: WorkLeft, *, cores: int, free_bytes: int) -> int:
    """Return the number of workers to start, or 0 if this process is faster by itself.

    There is one worker per core, as long as each has more work than its start takes and all of them fit in a
    third of the free memory.
    """
    has_model = work.model_bytes is not None
    if work.runs_once and work.seconds < LEAST_SECONDS_WITH_MODEL:
        return 0
    worker_bytes = WORKER_BYTES + work.run_bytes + (work.model_bytes or 0)
    most = min(
        cores,
        work.num_jobs,
        int(work.seconds / (SECONDS_TO_START_WITH_MODEL if has_model else SECONDS_TO_START)),
        int(free_bytes * MEMORY_SHARE / worker_bytes),
    )
    return most if most > 1 else 0


def num_together(work: WorkLeft) -> int:
    """Return the number of jobs to compute together before their reports are shown in order.

    The number depends only on the plan, because results agree to the last bit only if the same jobs are
    computed together.
    """
    fitting = MAX_BYTES_TOGETHER // max(1, work.run_bytes)
    most = MAX_SECONDS_THROUGH_MODEL if work.runs_once else MAX_SECONDS_TOGETHER
    seconds = max(most, work.reading_seconds / READING_SHARE)
    in_time = int(seconds / max(work.seconds_a_job, 1e-9))
    return max(1, min(MAX_TOGETHER, fitting, in_time))


def estimated_work(plan: Plan, num_left: int) -> WorkLeft:
    """Estimate the work of the last `num_left` runs of a plan, before anything is imported or loaded."""
    costs = [(spec, _num_tokens(spec, plan)) for spec in plan.specs()]
    share = num_left / len(plan)
    models = {
        (model, _setting(spec, "dtype"), _setting(spec, "load"))
        for spec, _ in costs
        if (model := spec.model_source()) is not None
    }
    return WorkLeft(
        num_jobs=round(plan.num_jobs * share),
        seconds=plan.num_prompts * share * sum(run_seconds(*cost) for cost in costs),
        run_bytes=max(spec.needed_bytes(num_tokens, num_tokens) for spec, num_tokens in costs),
        model_bytes=sum(_bytes_in_worker(*model) for model in models) if models else None,
        reading_seconds=sum(_seconds_to_read(*model) for model in models),
        runs_once=all(
            isinstance(spec, ModelSpec) and spec.runs_once and spec.model_source() is not None
            for spec, _ in costs
        ),
    )


def run_seconds(spec: Spec, num_tokens: int) -> float:
    """Estimate the seconds that one run takes on one core, with texts of that many tokens."""
    if (model := spec.model_source()) is not None:
        # Every parameter takes part in one product and one sum for each token.
        return SECONDS_A_RUN + 2 * _parameters(model) * num_tokens / OPERATIONS_A_SECOND
    return (
        SECONDS_A_RUN
        + SECONDS_A_BYTE * spec.needed_bytes(num_tokens, num_tokens)
        + SECONDS_A_WEIGHT * spec.num_weights(num_tokens, num_tokens)
    )


def parameter_bytes(model: str, dtype: str = "float32") -> int:
    """Return the bytes of a loaded model's parameters, or 0 for a model on the hub, whose size is unknown."""
    return DTYPE_BYTES[dtype] * _parameters(model)


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
    """Return the number of parameters in a folder, a package's model or a GGUF file, or 0 if unknown."""
    path = model_on_disk(model, allow_download=False)
    try:
        return 0 if path is None else num_parameters(path)
    except UserError:  # each of the model's runs will fail with this error
        return 0


def _setting(spec: Spec, key: str) -> str:
    """Return a setting of an experiment that uses a model."""
    return str(getattr(spec, key))


def _num_tokens(spec: Spec, plan: Plan) -> int:
    """Estimate the number of tokens in an experiment's text; for a file of sentences, the mean number."""
    if num_sampled := max(spec.sampled_counts()):
        return num_sampled
    if plan.prompts is not None:
        return round(plan.mean_characters / CHARACTERS_A_TOKEN) + 1
    file = getattr(spec, "file", None)
    if file is not None and Path(file).is_file():
        return Path(file).stat().st_size // CHARACTERS_A_TOKEN + 1
    return len(getattr(spec, "sentence", None) or "") // CHARACTERS_A_TOKEN + 1
