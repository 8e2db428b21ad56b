"""Whether a plan is worth starting workers for, from a rough estimate of the seconds that it takes."""

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from attncli.batch.plan import Plan
from attncli.errors import UserError
from attncli.inputs.models.gguf import num_parameters_of_gguf
from attncli.inputs.models.model_folder import num_parameters
from attncli.spec.fields import Spec
from attncli.spec.models.pretrained import local_model

# Measured on one core, and rounded: a factor of three or so does not matter here.
SECONDS_A_RUN = 3e-4
SECONDS_A_BYTE = 5e-10
SECONDS_A_WEIGHT = 1e-8
OPERATIONS_A_SECOND = 2e10
CHARACTERS_A_TOKEN = 5
SECONDS_TO_START, SECONDS_TO_START_WITH_MODEL = 2.0, 4.0
BYTES_OF_A_WORKER = 300 * 10**6
SHARE_OF_MEMORY = 1 / 3
BYTES_OF_A_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_TOGETHER, MAX_SECONDS_TOGETHER, MAX_BYTES_TOGETHER = 256, 2.0, 512 * 2**20


class Work(NamedTuple):
    """What is left of a plan: jobs, seconds on one core, and the memory of its largest run and its models."""

    num_jobs: int
    seconds: float
    run_bytes: int
    model_bytes: int | None = None
    """None where no experiment has a model."""

    @property
    def seconds_a_job(self) -> float:
        """On one core."""
        return self.seconds / max(1, self.num_jobs)


def usable_cores() -> int:
    """The cores that this process may use: all of them where the system (macOS) does not say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(work: Work, *, cores: int, free_bytes: int) -> int:
    """How many workers to start; 0 where this process alone is faster.

    One per core, as long as each has more to do than its start takes and all fit into a third of the free
    memory.
    """
    has_model = work.model_bytes is not None
    worker_bytes = BYTES_OF_A_WORKER + work.run_bytes + (work.model_bytes or 0)
    most = min(
        cores,
        work.num_jobs,
        int(work.seconds / (SECONDS_TO_START_WITH_MODEL if has_model else SECONDS_TO_START)),
        int(free_bytes * SHARE_OF_MEMORY / worker_bytes),
    )
    return most if most > 1 else 0


def num_together(work: Work) -> int:
    """How many jobs to compute together before their reports are shown in order.

    It depends on the plan alone: results agree to the last bit only when the same jobs are computed together.
    """
    fitting = MAX_BYTES_TOGETHER // max(1, work.run_bytes)
    in_time = int(MAX_SECONDS_TOGETHER / max(work.seconds_a_job, 1e-9))
    return max(1, min(MAX_TOGETHER, fitting, in_time))


def estimated_work(plan: Plan, num_left: int) -> Work:
    """A rough estimate for the last `num_left` runs of a plan, before anything is imported or loaded."""
    costs = [(spec, _num_tokens(spec, plan)) for spec in plan.specs()]
    share = num_left / len(plan)
    models = {(model, _dtype(spec)) for spec, _ in costs if (model := spec.model_source()) is not None}
    return Work(
        num_jobs=round(plan.num_jobs * share),
        seconds=plan.num_prompts * share * sum(seconds_of_run(*cost) for cost in costs),
        run_bytes=max(spec.needed_bytes(num_tokens, num_tokens) for spec, num_tokens in costs),
        model_bytes=sum(parameter_bytes(*model) for model in models) if models else None,
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


@cache
def _parameters(model: str) -> int:
    """How many parameters a folder, a package's model or a GGUF file has; 0 where nothing says so."""
    path = local_model(model)
    try:
        if path is None:
            return 0
        return num_parameters(path) if path.is_dir() else num_parameters_of_gguf(path)
    except UserError:  # each of its runs will fail with this error
        return 0


def _dtype(spec: Spec) -> str:
    return str(getattr(spec, "dtype", "float32"))


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
