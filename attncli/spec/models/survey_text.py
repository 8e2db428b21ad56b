"""The settings of an experiment on a text, on a probe, or on many texts."""

from collections.abc import Iterator
from importlib.resources import files
from itertools import combinations
from typing import Any, Literal

from pydantic import Field, field_validator

from attncli.spec.fields import Contradiction, Size, TextSource, contradiction
from attncli.spec.many_texts import ManyTextsSpec
from attncli.spec.models.pretrained import ModelSpec
from attncli.spec.text import check_file, check_text


def _default_probe(data: dict[str, Any]) -> Literal["repeated"] | None:
    read = (data.get(key) for key in ("sentence", "file", "texts", "relations"))
    return None if any(read) else "repeated"


def _default_length(data: dict[str, Any]) -> int | None:
    return 24 if data["probe"] else None


class SurveyTextSpec(ManyTextsSpec, ModelSpec):
    """What the model reads: a text, random tokens that come twice, or many texts."""

    group = "Input"
    argument = "sentence"
    main_table = "heads"
    default_model = str(files("attncli") / "data" / "tiny-induction")

    sentence: str | None = Field(None, description="the text that the model reads")
    file: str | None = Field(None, description="a text file instead of the sentence; - reads stdin")
    probe: Literal["repeated"] | None = Field(
        default_factory=_default_probe,
        description="a synthetic text: repeated is [BOS] + r + r, r random tokens (default without a text)",
    )
    num_tokens: Size | None = Field(
        default_factory=_default_length, description="tokens of r in the probe (default: 24)"
    )
    context: str | None = Field(
        None, description="the text for the encoder, where there is a decoder (default: the sentence)"
    )

    _text = field_validator("sentence", "context")(check_text)
    _file = field_validator("file")(check_file)

    def text_sources(self) -> tuple[TextSource, ...]:
        return TextSource("sentence", self.sentence, self.file), TextSource("context", self.context)

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        for first, second in combinations(("sentence", "file", "texts", "probe"), 2):
            if len(self.given(first, second)) == 2:
                yield contradiction(first, f"cannot be combined with {second}: give one of them", second)
        if self.num_tokens and not self.probe:
            yield contradiction("num_tokens", "needs probe: a text has its own length", "sentence", "file")
        if self.context and (self.probe or self.texts):
            yield contradiction("context", "needs sentence or file", "probe", "texts")
