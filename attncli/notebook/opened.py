"""An open model for notebooks and programs, with a method per question."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, isfunction, signature
from types import MethodType
from typing import Any

import attncli
from attncli.feature import BrokenPlugin
from attncli.models import loading
from attncli.models.pretrained import Pretrained
from attncli.notebook.run import NotebookReport, run
from attncli.settings import SPECS, why_off


class NotebookModel(Pretrained):
    """An open model whose methods are the functions of attncli that take a model.

    `model.why(text)` is `attncli.why(model, text)`, and `model.run("why", sentence=text)` is the report of
    `attn why`, which a notebook displays as a page. `dir(model)` lists the methods.
    """

    def __repr__(self) -> str:
        """Return the model's name, number of layers and device."""
        return f"<NotebookModel: {self.name}, {self.num_layers} layers, {self.device}>"

    def run(self, experiment: str, **settings: Any) -> NotebookReport:
        """Return the report of a command on this model, such as `run("self", sentence="a b", layer=3)`."""
        return run(experiment, model=self, **settings)

    def __dir__(self) -> Iterable[str]:
        """List only the public attributes, for completion in notebooks."""
        hidden = (name for name in super().__dir__() if name.startswith("__"))
        return [*hidden, *filter(_has_method, dir(attncli)), *FOR_USERS]

    def __getattr__(self, name: str) -> Any:
        """Return the function with that name for this model. Raises AttributeError for an unknown name."""
        if (function := _method(name)) is not None:
            return MethodType(function, self)
        ways = [f"{name} {why}"] if (why := why_off(name)) else []
        if name in SPECS and "model" in SPECS[name].model_fields:
            ways.append(f'use model.run("{name}", ...)')
        message = f"{type(self).__name__} has no attribute {name!r}"
        raise AttributeError(f"{message}: {' or '.join(ways)}" if ways else message)


FOR_USERS = ("run", "name", "num_layers", "has_decoder", "device", "model", "whole", "tokenizer", "source")
"""The attributes of an open model, in addition to its methods."""


def _method(name: str) -> Callable[..., Any] | None:
    """Return the attncli function of that name if its first required argument is a model."""
    function = getattr(attncli, name) if name in dir(attncli) else None
    if not isfunction(function):
        return None
    needed = (
        each.name for each in signature(function).parameters.values() if each.default is Parameter.empty
    )
    return function if next(needed, "") == "model" else None


def _has_method(name: str) -> bool:
    try:
        return _method(name) is not None
    except BrokenPlugin:
        return False


@wraps(loading.open_model)
def open_model(*args: Any, **kwargs: Any) -> NotebookModel:
    """Open a model for a notebook; `loading.open_model` documents the arguments."""
    opened = loading.open_model(*args, **kwargs)
    return NotebookModel(**vars(opened))
