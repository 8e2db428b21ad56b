"""Settings of `attn heads --sound FILE --words` and `attn heads --find-heads`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from attncli.features.sound.settings import SoundSpec
from attncli.records.arguments import head_names_without_stack
from attncli.settings.fields import Contradictions, TextSource
from attncli.settings.models import ModelOfHeadsSpec
from attncli.settings.text import FileOfText, Text

TIMING_WAYS = ("model", "found", "filter")


def _way_or_heads(value: Any) -> str:
    """Accept one of TIMING_WAYS or heads such as `3:2,2:0`. Raises ValueError for anything else."""
    if value in TIMING_WAYS:
        return str(value)
    try:
        return ",".join(head_names_without_stack(value))
    except ValueError as error:
        raise ValueError(f"must be {', '.join(TIMING_WAYS)}, or names of heads: {error}") from None


class SpokenWordsSpec(SoundSpec, ModelOfHeadsSpec):
    experiment = "heads"
    title = "Times of spoken words"
    group = "Input"
    examples = ()
    off_keys = frozenset({"by"})
    excludes: ClassVar[Mapping[str, str]] = {"words": "truncate"}

    sentence: Text | None = Field(None, description="the spoken text (default: the model's transcript)")
    file: FileOfText = None
    words: bool = Field(False, description="find the time of each spoken word")
    by: Annotated[str, BeforeValidator(_way_or_heads)] = Field(
        "model",
        description="with `sound` and `words`: the heads that time words: model (from its "
        "generation_config.json, or else found), found (by `find_heads`), filter (the most "
        "concentrated), or LAYER:HEAD,...",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return "-o words.srt", "--by found", "--show all"

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def reads_many_texts(self) -> bool:
        return True

    def result_kind(self) -> str:
        return "heads of words"

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file")


class AlignmentSpec(ModelOfHeadsSpec):
    experiment = "heads"
    title = "Heads that time words"
    group = "Input"
    examples = ()
    needs: ClassVar[Mapping[str, str]] = {"find_heads": "model"}

    find_heads: bool = Field(
        False,
        description="measure how well each cross-attention head times words, on synthetic speech with known "
        "times, and save the best heads",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return "--show all", "-o heads.csv"

    def wants_head(self) -> bool:
        return True

    def reads_many_texts(self) -> bool:
        return True

    def result_kind(self) -> str:
        return "heads of alignment"
