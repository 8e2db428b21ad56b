"""The parts of a batch: an experiment, a chain of experiments on one generator, and a chain on one text."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from attncli.settings.fields import Spec

if TYPE_CHECKING:
    from attncli.models.text_files import TextLine


class Item(NamedTuple):
    """One experiment, its source, and the id of its sentence or its training step.

    `starts_file` is True for the first experiment in a file, and `reseed` for an experiment with a new
    generator.
    """

    spec: Spec
    source: str | None = None
    starts_file: bool = True
    reseed: bool = True
    id: str | None = None


Chain = tuple[Item, ...]


class Job(NamedTuple):
    """A chain of experiments on one sentence (or on their own texts), and the place of its first run."""

    chain: Chain
    prompt: "TextLine | None"
    place: int
    key: str = "sentence"

    def items(self) -> Chain:
        """Return the experiments, each with the sentence, and the context and answer if it reads them."""
        if self.prompt is None:
            return self.chain
        texts = {self.key: self.prompt.file or self.prompt.text}
        optional = {"context": self.prompt.context, "answer": self.prompt.answer}
        texts |= {key: text for key, text in optional.items() if text is not None}
        return tuple(
            item._replace(spec=with_texts(item.spec, texts), source=self.name(item), id=self.label)
            for item in self.chain
        )

    @property
    def label(self) -> str | None:
        """The id of the job's sentence, or its line number; without a sentence file, the experiment's id."""
        return self.chain[0].id if self.prompt is None else self.prompt.label

    def name(self, item: Item) -> str:
        """Return the name of a run in messages: `sweep.yaml:1:1 (head_dim 8), prompt 7`."""
        if self.prompt is None:
            return str(item.source)
        return f"{item.source}, {self.prompt.id or f'line {self.prompt.line}'}"


def with_texts(spec: Spec, texts: Mapping[str, str]) -> Spec:
    """Return the settings with these texts, ignoring texts that the experiment does not read."""
    fields = type(spec).model_fields
    return spec.model_copy(update={key: text for key, text in texts.items() if key in fields})
