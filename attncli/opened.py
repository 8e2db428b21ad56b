"""A model that is opened once and then asked, in a notebook or a program."""

from collections.abc import Mapping
from functools import wraps
from typing import Any

from attncli.api import NotebookReport, run
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

    def run(self, experiment: str, **settings: Any) -> NotebookReport:
        """The report of the command of that name on this model: `run("self", sentence="a b", layer=3)`."""
        return run(experiment, model=self, **settings)


@wraps(loading.open_model)
def open_model(*args: Any, **kwargs: Any) -> NotebookModel:
    """As that of `loading`, which tells what it takes."""
    opened = loading.open_model(*args, **kwargs)
    return NotebookModel(**vars(opened))
