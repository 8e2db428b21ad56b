"""The setting that asks which heads look along syntactic relations."""

from collections.abc import Iterator

from pydantic import Field, field_validator

from attncli.spec.fields import Contradiction, contradiction
from attncli.spec.models.pretrained import ModelSpec
from attncli.spec.text import check_file

ELSEWHERE = (
    *(
        "sentence",
        "file",
        "texts",
        "probe",
        "context",
        "from",
        "to",
        "words",
        "skip_sink",
        "weighted",
        "rollout",
    ),
    *("maps", "full", "sort", "ascending", "top", "table", "statistic", "head", "num_examples"),
)
"""What is about a text or about other statistics."""


class RelationsSpec(ModelSpec):
    """Sentences whose syntax is known."""

    group = "Input"

    relations: str | None = Field(
        None,
        description="a CoNLL-U file of parsed sentences: how often each head looks from a word to its "
        "syntactic head, and back; - reads stdin",
    )

    _relations = field_validator("relations")(check_file)

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        for key in self.given(*ELSEWHERE) if self.relations is not None else ():
            yield contradiction(key, "cannot be combined with relations", "relations")
