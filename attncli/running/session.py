"""Running experiments one after another, on one generator and one vocabulary."""

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from attncli.experiments.reading.texts import Texts, read_texts
from attncli.inputs.models.gguf import check_gguf
from attncli.inputs.models.model_folder import check_model_folder, check_packages
from attncli.memory import refuse_bytes
from attncli.report import Report
from attncli.spec.fields import Spec
from attncli.spec.models.pretrained import local_model

if TYPE_CHECKING:
    from attncli.experiments.draws import Draws, Progress

MODEL_RUNS = "attncli.running.model_runs"


def module_of(spec: Spec) -> str:
    """The module whose `run` gives the report of an experiment."""
    return spec.module if spec.model_source() is None else MODEL_RUNS


def load_experiment(spec: Spec) -> Callable[[Spec, Texts, "Draws"], Report]:
    """The function that runs an experiment, alone or on a model; it imports torch.

    Garbage collection is off meanwhile, and skips what was imported: it would traverse a million objects that
    live as long as the process, during the import and at exit, which takes a third of a short run.
    """
    name = module_of(spec)
    if name not in sys.modules:
        gc.disable()
        import_module(name)
        gc.freeze()
        gc.enable()
    run: Callable[[Spec, Texts, Draws], Report] = sys.modules[name].run
    return run


def refuse_what_does_not_fit(spec: Spec, num_queries: int, num_keys: int) -> None:
    """UserError that says how much memory an experiment needs, where that is more than is free."""
    advice = spec.memory_advice(num_queries, num_keys)
    refuse_bytes(spec.experiment, spec.needed_bytes(num_queries, num_keys), advice)


def check_before_reading(spec: Spec) -> None:
    """UserError for what does not fit into memory and for a missing model, before any text is read."""
    refuse_what_does_not_fit(spec, *spec.sampled_counts())
    source = spec.model_source()
    if source is not None:
        check_packages()
        if (found := local_model(source)) is not None:
            (check_model_folder if found.is_dir() else check_gguf)(found)


class Session:
    """Experiments one after another: each can continue with the generator and vocabulary of the one before.

    `progress` reports what takes long.
    """

    def __init__(self, progress: "Progress | None" = None) -> None:
        self._progress = progress
        self._draws: Draws | None = None

    def run(self, spec: Spec, *, reseed: bool) -> Report:
        """The report of an experiment; without `reseed` its generator continues from the one before.

        UserError for texts that cannot be read and sizes that do not fit, before torch is imported.
        """
        check_before_reading(spec)
        return self.run_texts(spec, read_texts(spec), reseed=reseed)

    def run_texts(self, spec: Spec, texts: Texts, *, reseed: bool) -> Report:
        """The report of an experiment whose texts have been read."""
        refuse_what_does_not_fit(spec, *texts.counts())
        run = load_experiment(spec)
        from attncli.experiments.draws import Draws

        if reseed or self._draws is None:
            vocabulary = self._draws.vocabulary if self._draws is not None else None
            self._draws, self._seed = Draws(spec.seed, self._progress), spec.seed
            self._draws.vocabulary = vocabulary
        # Without reseed, the report names the seed that the generator started from.
        return run(spec.model_copy(update={"seed": self._seed}), texts, self._draws)
