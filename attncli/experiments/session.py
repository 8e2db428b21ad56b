"""Running experiments one after another: one generator, and the vocabulary of the step before."""

import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attncli.experiments.memory import refuse_what_does_not_fit
from attncli.experiments.texts import Texts, read_texts
from attncli.inputs.model_folder import check_model_folder, check_packages
from attncli.report import Report
from attncli.spec.fields import Spec
from attncli.spec.model import is_model_folder

if TYPE_CHECKING:
    import torch

    from attncli.inputs.embeddings import Vocabulary

Drawn = TypeVar("Drawn")


def load_experiment(spec: Spec) -> Callable[[Spec, Texts, "Session"], Report]:
    """The function of an experiment, with torch behind it.

    Garbage collection is off meanwhile and never looks at what was imported: it would walk over a million
    objects that live as long as the process, during the import and at its end: a third of a short run.
    """
    if spec.module in sys.modules:
        run: Callable[[Spec, Texts, Session], Report] = sys.modules[spec.module].run
        return run
    gc.disable()
    run = import_module(spec.module).run
    gc.freeze()
    gc.enable()
    return run


def check_before_reading(spec: Spec) -> None:
    """UserError for what asks too much, and for a model that is not there, before any text is read."""
    refuse_what_does_not_fit(spec, *spec.sampled_counts())
    source = spec.model_source()
    if source is not None:
        check_packages()
        if is_model_folder(source):
            check_model_folder(Path(source))


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
        check_before_reading(spec)
        return self.run_texts(spec, read_texts(spec), reseed=reseed)

    def run_texts(self, spec: Spec, texts: Texts, *, reseed: bool) -> Report:
        """The report of an experiment whose texts are read already."""
        refuse_what_does_not_fit(spec, *texts.counts())
        run = load_experiment(spec)
        import torch

        if reseed or not self._started:
            self.generator = torch.Generator().manual_seed(spec.seed)
            self._seed = spec.seed
        self._started = True
        # What draws on from the step before stands on the seed of that one.
        return run(spec.model_copy(update={"seed": self._seed}), texts, self)

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """draw(*arguments, generator)."""
        return draw(*arguments, self.generator)

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """The draw of each of the texts that run together, with arguments of its own: here there is one."""
        return [draw(*own, self.generator) for own in arguments]


class SessionOfSeveral(Session):
    """Several experiments side by side, each on a generator that starts from its own seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        from attncli.experiments.draws import KEPT, DrawsTogether

        self._draws = DrawsTogether(seeds, KEPT)

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """The same draw for each; with an axis for them first, unless all drew the same numbers."""
        return self._draws.all(draw, arguments)

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """The draw of each experiment, with arguments of its own."""
        return self._draws.each(draw, arguments)
