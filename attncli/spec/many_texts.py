"""The settings of an experiment that reads many texts and sums them up."""

from collections.abc import Iterator

from pydantic import Field, field_validator

from attncli.spec.fields import Contradiction, Spec, contradiction
from attncli.spec.text import check_file

TEXTS = "many texts, one per line, or JSON Lines (.jsonl) with text, id and group; - reads stdin"


class ManyTextsSpec(Spec):
    """A file of texts; `attncli.experiments.reading.text_file.TextFile` reads it."""

    group = "Input"

    texts: str | None = Field(None, description=TEXTS)
    text_group: str | None = Field(None, description="only the texts of this group")

    _texts = field_validator("texts")(check_file)

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.text_group is not None and self.texts is None:
            yield contradiction("text_group", "needs texts", "texts")

    def reads_many_texts(self) -> bool:
        return self.texts is not None
