"""Whether a plan is worth starting workers for, from a rough estimate of the seconds that it takes."""

from pathlib import Path
from typing import NamedTuple

from attncli.batch.plan import Plan
from attncli.experiments.memory import needed_bytes, weights_bytes
from attncli.experiments.model_files import model_source
from attncli.experiments.texts import drawn_counts
from attncli.spec import Spec
from attncli.spec.attention import AttentionSpec
from attncli.spec.heads import HeadsSpec
from attncli.spec.model import ModelSpec

# Measured on one core, and rounded: nothing here has to be better than within a factor of three or so.
SECONDS_A_RUN = 3e-4
SECONDS_A_BYTE = 5e-10
SECONDS_A_WEIGHT = 1e-8
OPERATIONS_A_SECOND = 2e10
CHARACTERS_A_TOKEN = 5
SECONDS_TO_START, SECONDS_TO_START_WITH_MODEL = 2.0, 4.0
BYTES_OF_A_WORKER = 300 * 10**6
SHARE_OF_MEMORY = 1 / 3


class Work(NamedTuple):
    """What is left of a plan: jobs, seconds of one core, and what each further process costs."""

    num_jobs: int
    seconds: float
    seconds_to_start: float
    worker_bytes: int


def num_workers(work: Work, *, cores: int, free_bytes: int) -> int:
    """How many workers to start; 0 where this process does it sooner.

    One for each core, as long as each has more to do than its start takes, and together they fit into a third
    of the free memory.
    """
    most = min(
        cores,
        work.num_jobs,
        int(work.seconds / work.seconds_to_start),
        int(free_bytes * SHARE_OF_MEMORY / work.worker_bytes),
    )
    return most if most > 1 else 0


def estimated_work(plan: Plan, num_left: int) -> Work:
    """About how much the last `num_left` runs of a plan are, before anything is imported or loaded."""
    specs = [item.spec for chain in plan.chains for item in chain]
    costs = [(spec, _num_tokens(spec, plan)) for spec in specs]
    share = num_left / len(plan)
    models = {model for spec in specs if (model := _model(spec)) is not None}
    return Work(
        num_jobs=round(plan.num_jobs * share),
        seconds=plan.num_prompts * share * sum(seconds_of_run(*cost) for cost in costs),
        seconds_to_start=SECONDS_TO_START_WITH_MODEL if models else SECONDS_TO_START,
        worker_bytes=BYTES_OF_A_WORKER
        + sum(map(parameter_bytes, models))
        + max(needed_bytes(spec, num_tokens, num_tokens) for spec, num_tokens in costs),
    )


def seconds_of_run(spec: Spec, num_tokens: int) -> float:
    """About how long one run takes on one core, with texts of that many tokens."""
    if (model := _model(spec)) is not None:
        # Every parameter takes part in one product and one sum for each token.
        return SECONDS_A_RUN + 2 * parameter_bytes(model) / 4 * num_tokens / OPERATIONS_A_SECOND
    num_weights = weights_bytes(spec, num_tokens, num_tokens) / 4 if isinstance(spec, AttentionSpec) else 0
    return (
        SECONDS_A_RUN
        + SECONDS_A_BYTE * needed_bytes(spec, num_tokens, num_tokens)
        + SECONDS_A_WEIGHT * num_weights
    )


def parameter_bytes(model: str) -> int:
    """What the parameters of a model folder take; 0 for a model of the hub, of which nothing is known."""
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))


def _model(spec: Spec) -> str | None:
    """The model that an experiment looks into; None where it draws its weights."""
    if isinstance(spec, HeadsSpec) or (isinstance(spec, ModelSpec) and spec.model is not None):
        return model_source(spec)
    return None


def _num_tokens(spec: Spec, plan: Plan) -> int:
    """About how many tokens the texts of an experiment have; the mean of a file of sentences."""
    if num_drawn := max(drawn_counts(spec)):
        return num_drawn
    if plan.prompts is not None:
        return round(plan.mean_characters / CHARACTERS_A_TOKEN) + 1
    file = getattr(spec, "file", None)
    if file is not None and Path(file).is_file():
        return Path(file).stat().st_size // CHARACTERS_A_TOKEN + 1
    return len(getattr(spec, "sentence", None) or "") // CHARACTERS_A_TOKEN + 1
