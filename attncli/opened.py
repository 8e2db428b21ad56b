"""A model that is opened once and then asked, in a notebook or a program."""

from collections.abc import Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import attncli
from attncli.api import NotebookReport, reads_model, run
from attncli.models import loading
from attncli.models.pretrained import Pretrained


class NotebookModel(Pretrained):
    """What `open_model` gives: every function of attncli takes it; it shows itself what people ask first."""

    def __repr__(self) -> str:
        """Its name, how many layers it has and where it is."""
        return f"<NotebookModel: {self.name}, {self.num_layers} layers, {self.device}>"

    def heads(self, text: str | Mapping[str, Any] | None = None, **settings: Any) -> NotebookReport:
        """What each head does on a text: `run("heads", model=self, sentence=text, ...)`.

        In a notebook it is the page of `attn heads`. Without a text the model reads random tokens twice.
        """
        return run("heads", model=self, sentence=text, **settings)

    def why(self, text: str | Mapping[str, Any], **settings: Any) -> NotebookReport:
        """Why the model says what it says next, head by head: the page of `attn why`."""
        return run("why", model=self, sentence=text, **settings)

    def ablate(self, text: str | Mapping[str, Any], **settings: Any) -> NotebookReport:
        """What is lost without each head: the page of `attn ablate`."""
        return run("ablate", model=self, sentence=text, **settings)

    def circuit(self, text: str | Mapping[str, Any], **settings: Any) -> NotebookReport:
        """Which heads write what other heads read: the page of `attn circuit`."""
        return run("circuit", model=self, sentence=text, **settings)

    def generate(self, text: str | Mapping[str, Any], **settings: Any) -> NotebookReport:
        """What the model writes, and where it looks meanwhile: the page of `attn generate`."""
        return run("generate", model=self, sentence=text, **settings)

    def run(self, experiment: str, **settings: Any) -> NotebookReport:
        """The report of the command of that name on this model: `run("self", sentence="a b", layer=3)`."""
        return run(experiment, model=self, **settings)

    def __dir__(self) -> Iterable[str]:
        """What is for users, so that a notebook's completion is no list of how models are read."""
        hidden = (name for name in super().__dir__() if name.startswith("__"))
        return [*hidden, *FOR_USERS]

    def __getattr__(self, name: str) -> Any:
        """AttributeError, which names the function or the command of that name that takes a model."""
        ways = []
        if name in attncli.__all__ and (arguments := _arguments(getattr(attncli, name))):
            ways.append(f"attncli.{name}({', '.join(arguments)})")
        if reads_model(name):
            ways.append(f'model.run("{name}", sentence=...)')
        message = f"{type(self).__name__} has no attribute {name!r}"
        raise AttributeError(f"{message}: {' or '.join(ways)}" if ways else message)


FOR_USERS = (
    *("heads", "why", "ablate", "circuit", "generate", "run"),
    *("name", "num_layers", "has_decoder", "device", "model", "tokenizer", "source"),
)
"""Of an open model: its questions, and what it is."""


def _arguments(function: Any) -> list[str]:
    """What has to be given to a function whose first argument is a model; nothing for any other."""
    names = [each.name for each in signature(function).parameters.values() if each.default is Parameter.empty]
    return names if names[:1] == ["model"] else []


@wraps(loading.open_model)
def open_model(*args: Any, **kwargs: Any) -> NotebookModel:
    """As that of `loading`, which tells what it takes."""
    opened = loading.open_model(*args, **kwargs)
    return NotebookModel(**vars(opened))
