"""A model that is opened once and then asked, in a notebook or a program."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import attncli
from attncli.models import loading
from attncli.models.pretrained import Pretrained
from attncli.notebook.run import NotebookReport, reads_model, run
from attncli.settings import EXPERIMENTS, QUESTIONS, why_off


class NotebookModel(Pretrained):
    """What `open_model` gives: every function of attncli takes it, and each command of models is a method.

    `model.why(text)` gives the page of `attn why` on this model; `dir(model)` lists the others.
    """

    def __repr__(self) -> str:
        """Its name, how many layers it has and where it is."""
        return f"<NotebookModel: {self.name}, {self.num_layers} layers, {self.device}>"

    def run(self, experiment: str, **settings: Any) -> NotebookReport:
        """The report of the command of that name on this model: `run("self", sentence="a b", layer=3)`."""
        return run(experiment, model=self, **settings)

    def __dir__(self) -> Iterable[str]:
        """What is for users, so that a notebook's completion is no list of how models are read."""
        hidden = (name for name in super().__dir__() if name.startswith("__"))
        questions = (name for name in EXPERIMENTS if _is_method(name))
        return [*hidden, *dict.fromkeys([*questions, *FOR_USERS])]

    def __getattr__(self, name: str) -> Any:
        """The question of that name; else AttributeError, which names the function or command that fits."""
        if _is_method(name):
            return _asking(self, name)
        ways = [f"it {why}"] if (why := why_off(name)) else []
        if name in attncli.__all__ and (arguments := _arguments(getattr(attncli, name))):
            ways.append(f"attncli.{name}({', '.join(arguments)})")
        if reads_model(name):
            ways.append(f'model.run("{name}", ...)')
        message = f"{type(self).__name__} has no attribute {name!r}"
        raise AttributeError(f"{message}: {' or '.join(ways)}" if ways else message)


FOR_USERS = ("run", "name", "num_layers", "has_decoder", "device", "model", "tokenizer", "source")
"""Of an open model, beside its questions."""


def _is_method(name: str) -> bool:
    """True for the command of that name if it reads a text with a model."""
    return name.isidentifier() and reads_model(name, "sentence")


def _asking(model: NotebookModel, experiment: str) -> Callable[..., NotebookReport]:
    """The method of an open model that asks a question."""

    def ask(text: str | Mapping[str, Any] | None = None, **settings: Any) -> NotebookReport:
        return run(experiment, model=model, sentence=text, **settings)

    ask.__name__ = experiment
    ask.__qualname__ = f"{type(model).__name__}.{experiment}"
    ask.__doc__ = f"""{QUESTIONS[experiment].summary}.

    The page of `attn {experiment}` on this model, with the flags of the command as settings.
    """
    return ask


def _arguments(function: Any) -> list[str]:
    """What has to be given to a function whose first argument is a model; nothing for any other."""
    names = [each.name for each in signature(function).parameters.values() if each.default is Parameter.empty]
    return names if names[:1] == ["model"] else []


@wraps(loading.open_model)
def open_model(*args: Any, **kwargs: Any) -> NotebookModel:
    """As that of `loading`, which tells what it takes."""
    opened = loading.open_model(*args, **kwargs)
    return NotebookModel(**vars(opened))
