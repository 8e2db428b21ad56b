"""Running experiments one after another: one generator, and the vocabulary of the step before."""

import gc
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from attncli.experiments import EXPERIMENTS
from attncli.experiments.memory import refuse_what_does_not_fit
from attncli.experiments.model_files import check_model
from attncli.experiments.texts import Texts, drawn_counts, read_texts
from attncli.report import Report
from attncli.spec import Spec
from attncli.spec.model import ModelSpec

if TYPE_CHECKING:
    import torch

    from attncli.inputs.embeddings import Vocabulary


def load_experiment(name: str) -> Callable[[Spec, Texts, "Session"], Report]:
    """The function of an experiment, with torch behind it.

    The collector rests meanwhile and never looks at what was imported: it would walk over a million objects
    that live as long as the process, during the import and at its end (a third of a short run's time).
    """
    gc.disable()
    run: Callable[[Spec, Texts, Session], Report] = import_module(EXPERIMENTS[name]).run
    gc.freeze()
    gc.enable()
    return run


class Session:
    """What one experiment leaves to the next: the generator's state and the vocabulary's table.

    `progress` is called with the share that is done, between 0 and 1, of what takes long.
    """

    generator: "torch.Generator"
    vocabulary: "Vocabulary | None"

    def __init__(self, progress: Callable[[float], None] | None = None) -> None:
        self.vocabulary = None
        self.progress = progress
        self._started = False

    def run(self, spec: Spec, *, reseed: bool) -> Report:
        """The report of an experiment; without `reseed` it draws on where the one before stopped.

        UserError for texts that cannot be read and sizes that do not fit, before torch is imported.
        """
        refuse_what_does_not_fit(spec, *drawn_counts(spec))
        if isinstance(spec, ModelSpec):
            check_model(spec)
        texts = read_texts(spec)
        refuse_what_does_not_fit(spec, *texts.counts())
        run = load_experiment(spec.experiment)
        import torch

        if reseed or not self._started:
            self.generator = torch.Generator().manual_seed(spec.seed)
            self._seed = spec.seed
        self._started = True
        # What draws on from the step before stands on the seed of that one.
        return run(spec.model_copy(update={"seed": self._seed}), texts, self)
