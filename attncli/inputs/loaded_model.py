"""A model, and how to load it anew: with eager attention, or as it was before it changed itself."""

from collections.abc import Callable
from dataclasses import dataclass, field

from transformers import PreTrainedModel

PLAIN = (bool, int, float, str, type(None))


@dataclass
class LoadedModel:
    """One copy of a model. `load_eager` loads another one with eager attention, from the same files.

    Eager attention is not switched to: models choose their masks and modules as they are built, and some
    (Falcon) ignore a switch in a part of them.
    """

    model: PreTrainedModel
    load_eager: Callable[[], PreTrainedModel]
    is_eager: bool = False
    changes_itself: bool = field(default=False, init=False)
    _state: object = field(default=None, init=False, repr=False)

    @property
    def has_changed(self) -> bool:
        """Whether a run has rebuilt a part of the model or set something in it: BigBird for short texts."""
        return self.is_eager and _state_of(self.model) != self._state

    def make_eager(self) -> None:
        """Load the model with eager attention, and again where it has changed itself since."""
        if self.is_eager:
            if not self.has_changed:
                return
            self.changes_itself = True
        del self.model  # before the next one: two copies may not fit
        self.model = self.load_eager()
        self.is_eager = True
        self._state = _state_of(self.model)


def _state_of(model: PreTrainedModel) -> object:
    """The modules and their settings, which no run may change; names with _ are transformers' own notes."""
    return [
        (
            name,
            type(module),
            {key: value for key, value in vars(module).items() if key[0] != "_" and isinstance(value, PLAIN)},
        )
        for name, module in model.named_modules()
    ]
