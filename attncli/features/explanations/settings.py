"""Settings of `attn source --compare`, for texts and pictures, and of `attn source --learn`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from attncli.features.source.settings import (
    CHAT_HELP,
    SPLIT_HELP,
    InTemplate,
    NamedHeads,
    NewTokens,
    NumRuns,
    SourcedTextSpec,
    SourcesSpec,
    SplitHelp,
)
from attncli.settings.fields import Contradictions, Everyday, TextSource, contradiction
from attncli.settings.models import ModelSpec
from attncli.settings.readings import reads
from attncli.settings.text import Text, TextPath, Texts, names_file

if TYPE_CHECKING:
    from attncli.models.source_texts import SourcedText

COMPARED_RUNS = 32
"""The number of source sets per prompt, in addition to those that all ways need."""
PROMPT_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv")
NO_TEXT_SOURCES = TextSource("sentence", None), TextSource("context", None)
"""The sources in a file of prompts, whose texts are only read when they are explained."""

Compare = Annotated[
    bool,
    Everyday("compare each ranking with removal"),
    Field(
        description="compare ways to read a model with the losses without each source (for an encoder: of "
        "its class, masked word or similarity; with `image`: of a picture); for a file of "
        "prompts (.jsonl, .csv), how good each way is"
    ),
]


def _is_prompt_file(name: str) -> bool:
    return Path(name).suffix.lower() in PROMPT_SUFFIXES


def _check_prompts(name: str) -> str:
    if not _is_prompt_file(name):
        raise ValueError(f"must be a file of prompts, JSON Lines or CSV (got {name})")
    return name


def _check_lines(file: str) -> None:
    from attncli.models.source_texts import SourcePromptFile

    if Path(file).is_file():  # a pipe can be read only once
        SourcePromptFile(file).prompts()


class ComparingSpec(SourcesSpec):
    """Settings shared by the comparisons of ways to read."""

    off_keys = frozenset({"head", "compare", "runs", "answer"})

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("--show statistics", "-o page.html")

    @property
    def prompts(self) -> str | None:
        """The file of prompts for a comparison of ways, or None for a single prompt."""
        return None

    def reads_many_texts(self) -> bool:
        return self.prompts is not None

    def result_kind(self) -> str:
        return "source of explanations" if self.prompts is None else "source of ways"


class ExplanationsSpec(ComparingSpec, SourcedTextSpec):
    least_sources = 3  # a ranking needs three

    head: NamedHeads = None
    compare: Compare = False
    runs: NumRuns = COMPARED_RUNS

    @classmethod
    def setting_of_argument(cls, value: str) -> str | None:
        return "file" if names_file(value) or _is_prompt_file(value) else super().setting_of_argument(value)

    @property
    def prompts(self) -> str | None:
        return self.file if self.file is not None and _is_prompt_file(self.file) else None

    def text_sources(self) -> tuple[TextSource, ...]:
        return super().text_sources() if self.prompts is None else NO_TEXT_SOURCES

    def split_text(self, text: str, question: str | None, *, is_continued: bool) -> "SourcedText":
        """Split the text as for an answer's sources, or into words if that gives too few parts."""
        from attncli.models.source_texts import split_text

        parts = super().split_text(text, question, is_continued=is_continued)
        if self.given("split") or len(parts.sources) >= self.least_sources:
            return parts
        return split_text(text, "word", question=question, key=self.sources_key)

    def check_texts(self, texts: Texts) -> None:
        if self.prompts is None:
            super().check_texts(texts)
        else:
            _check_lines(self.prompts)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given("sentence", "answer") if self.prompts is not None else ():
            yield contradiction(
                key,
                "cannot be used with a file of prompts, which contains its own questions and answers",
                "file",
            )


@reads(lambda kind: kind.on_grid)
class ExplainedPicturesSpec(ComparingSpec, ModelSpec):
    answer: Annotated[Text | None, Field(description="the class to explain")] = None
    head: NamedHeads = None
    compare: Compare = False
    runs: NumRuns = 64


class HeadWeightsSpec(SourcesSpec):
    argument = "file"
    off_keys = frozenset({"chat", "learn", "runs"})

    file: Annotated[TextPath, AfterValidator(_check_prompts)]
    split: Annotated[Literal["word", "sentence", "line", "paragraph", "turn"], SplitHelp] = Field(
        "sentence", description=SPLIT_HELP
    )
    chat: InTemplate = Field(False, description=CHAT_HELP)
    max_new_tokens: NewTokens = 24
    learn: Annotated[bool, Everyday("learn a weight for each head from prompts")] = Field(
        False,
        description="learn a weight for each head (AT2) from a file of prompts, and save it in the user's "
        "cache for this model: `compare` then includes AT2",
    )
    runs: NumRuns = COMPARED_RUNS

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("OTHERS.jsonl --compare", "--show statistics")

    def reads_many_texts(self) -> bool:
        return True

    def text_sources(self) -> tuple[TextSource, ...]:
        return NO_TEXT_SOURCES

    def result_kind(self) -> str:
        return "source of weights"

    def check_texts(self, texts: Texts) -> None:
        _check_lines(self.file)
