"""The settings of an experiment on a text, on a probe, on many texts, or on parsed sentences."""

from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from attncli.spec.fields import Contradictions, Size, Spec, TextSource, contradiction
from attncli.spec.models.pretrained import ModelSpec
from attncli.spec.text import FileName, Text

# fmt: off
NOT_WITH_RELATIONS = (
    "sentence", "file", "texts", "probe", "context", "from", "to", "words", "skip_sink", "weighted",
    "rollout", "maps", "full", "sort", "ascending", "top", "table", "statistic", "head", "num_examples",
)
# fmt: on
"""The settings that are about a text or about other statistics."""


def _default_probe(data: dict[str, Any]) -> Literal["repeated"] | None:
    read = (data.get(key) for key in ("sentence", "file", "texts", "relations"))
    return None if any(read) else "repeated"


class ManyTextsSpec(Spec):
    """A file of texts; `attncli.experiments.reading.text_file.TextFile` reads it."""

    group = "Input"

    texts: FileName | None = Field(
        None,
        description="many texts, one per line, or JSON Lines (.jsonl) with text, id and group; - reads stdin",
    )
    text_group: str | None = Field(None, description="only the texts of this group")

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.text_group is not None and self.texts is None:
            yield contradiction("text_group", "needs texts", "texts")

    def reads_many_texts(self) -> bool:
        return self.texts is not None


class SurveyTextSpec(ManyTextsSpec, ModelSpec):
    """What the model reads: a text, random tokens that come twice, or many texts."""

    group = "Input"
    argument = "sentence"
    main_table = "heads"
    default_model = str(files("attncli") / "data" / "tiny-induction")

    sentence: Text | None = Field(None, description="the text that the model reads")
    file: FileName | None = Field(None, description="a text file instead of the sentence; - reads stdin")
    probe: Literal["repeated"] | None = Field(
        default_factory=_default_probe,
        description="a synthetic text: repeated is [BOS] + r + r, r random tokens (default without a text)",
    )
    num_tokens: Size | None = Field(
        default_factory=lambda data: 24 if data["probe"] else None,
        description="tokens of r in the probe (default: 24)",
    )
    context: Text | None = Field(
        None, description="the text for the encoder, where there is a decoder (default: the sentence)"
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return TextSource("sentence", self.sentence, self.file), TextSource("context", self.context)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file", "texts", "probe")
        if self.num_tokens and not self.probe:
            yield contradiction("num_tokens", "needs probe: a text has its own length", "sentence", "file")
        if self.context and (self.probe or self.texts):
            yield contradiction("context", "needs sentence or file", "probe", "texts")


class RelationsSpec(ModelSpec):
    """Sentences whose syntax is known."""

    group = "Input"

    relations: FileName | None = Field(
        None,
        description="a CoNLL-U file of parsed sentences: how often each head looks from a word to its "
        "syntactic head, and back; - reads stdin",
    )

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given(*NOT_WITH_RELATIONS) if self.relations is not None else ():
            yield contradiction(key, "cannot be combined with relations", "relations")
