"""Heads of modules that mix tokens without a softmax, captured by the layer sources on cards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn

from attncli.core.signed_layer import SignedLayer
from attncli.feature import load_usable_place
from attncli.models.architectures import layer_number, mixer_name, source_of


@dataclass(frozen=True)
class CapturedMixer:
    """One call of a module that mixes tokens without a softmax: its mechanism, and its heads.

    `module` is the name in the model. `projected` names the mechanism at the output projection if the weights
    belong to a different mechanism: the weights of a Mamba-1 head are the mean over its channels.
    """

    module: str
    mixer: str
    heads: SignedLayer
    projected: str = ""

    @property
    def layer(self) -> int:
        """The number of the layer."""
        return layer_number(self.module)


class Mixer(NamedTuple):
    """A module of a model, and the name of its mechanism, such as `gated delta net`."""

    module: nn.Module
    kind: str


MixerConsumer = Callable[[CapturedMixer], None]


@runtime_checkable
class Capture(Protocol):
    """A layer source: inside the block, `consume` receives each layer after its module has run.

    `mixers` are the modules, by their names in the model. Runs in other threads must be ignored.
    """

    def __call__(
        self, mixers: Mapping[str, Mixer], consume: MixerConsumer
    ) -> AbstractContextManager[None]: ...


@contextmanager
def capturing_mixers(model: nn.Module, consume: MixerConsumer) -> Iterator[None]:
    """Pass each layer without a softmax to `consume` after its module has run in this thread.

    The first source that has the mixer captures the module. Modules without a source, such as short
    convolutions, are left out.
    """
    by_source: dict[str, dict[str, Mixer]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        mixer = mixer_name(type(module).__name__)
        source = None if mixer is None else source_of(mixer)
        if mixer is not None and source is not None:
            by_source.setdefault(source.capture, {})[name] = Mixer(module, mixer)
    with ExitStack() as hooks:
        for place, mixers in by_source.items():
            capture: Capture | None = load_usable_place(place)
            if capture is not None:
                hooks.enter_context(capture(mixers, consume))
        yield
