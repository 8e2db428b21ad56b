"""The settings of a model that writes, and of what is kept of its attention meanwhile."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from attncli.core.row_statistics import OF_WEIGHTS, WRITER_STATISTICS, WRITING
from attncli.settings.fields import (
    ONE_HEAD,
    Contradictions,
    Count,
    Everyday,
    NoFlag,
    Size,
    TextSource,
    contradiction,
    in_group,
)
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import HeadNumber, ImageSpec
from attncli.settings.text import IN_FILE, FileName, Text

if TYPE_CHECKING:
    WriterStatistic = str
else:
    WriterStatistic = Literal[WRITER_STATISTICS]

SENTENCE = "induction heads copy; inducti"
TOKENS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def _check_single(value: object, info: ValidationInfo) -> object:
    """A number, where a list of them may be expected."""
    if isinstance(value, str) and "," in value:
        sweep = f"sweep: {{{info.field_name}: [{', '.join(value.split(','))}]}}"
        raise ValueError(
            f"must be one number: attn batch runs several, from a file with {sweep} (got {value})"
        )
    return value


def _is_greedy(data: dict[str, Any]) -> bool:
    return data.get("sampling_temperature") is None and data.get("top_p") is None


class PromptSpec(ImageSpec):
    """What the model reads before it writes."""

    group = "Input"
    argument = "sentence"

    file: Annotated[FileName | None, IN_FILE] = Field(
        None, description="a text file instead of the sentence; - reads stdin"
    )
    sentence: Text | None = Field(
        default_factory=lambda data: SENTENCE if data["model"] is None and data["file"] is None else None,
        description="the text that the model continues",
    )
    question: Annotated[Text | None, Everyday("what is asked below the text")] = Field(
        None, description="what is asked below the text, in the same prompt"
    )
    chat: Annotated[bool, Everyday("as a user's message, in the chat template")] = Field(
        False, description="the text as a user's message, in the model's own chat template"
    )
    needle: Annotated[Text | None, Everyday("a part of the prompt to look for")] = Field(
        None, description="a part of the prompt to look for: its text, or its tokens as FIRST:END"
    )
    needle_depth: float | None = Field(
        None, ge=0, le=1, description="put the needle there into the text: 0 is its start, 1 its end"
    )
    lengths: Size | None = Field(
        None, description="with `needle_depth`: cut the text, so that it has so many tokens with the needle"
    )

    _single = field_validator("needle_depth", "lengths", mode="before")(_check_single)

    def needle_tokens(self) -> tuple[int, int] | None:
        """The first token of the needle and the one after its last, where it is given so."""
        match = TOKENS.fullmatch(self.needle or "")
        return (int(match[1]), int(match[2])) if match else None

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file")
        if self.sentence is None and self.file is None and self.image is None:
            yield contradiction(
                "model", "needs `sentence` or `file`: a text to continue", "sentence", "file", "image"
            )
        for key in self.given("needle", "needle_depth", "truncate") if self.image is not None else ():
            yield contradiction(key, "cannot be combined with `image`", "image")
        if self.chat and self.truncate:
            yield contradiction("truncate", "cannot be combined with `chat`, whose end would be cut", "chat")
        if self.needle_depth is not None and (self.needle is None or self.needle_tokens()):
            yield contradiction("needle_depth", "needs `needle` to be a text to put in", "needle")
        if self.lengths is not None and self.needle_depth is None:
            yield contradiction("lengths", "needs `needle_depth`", "needle_depth")
        tokens = self.needle_tokens()
        if tokens is not None and tokens[0] >= tokens[1]:
            yield contradiction("needle", f"must be FIRST:END with FIRST below END (got {self.needle})")


class GenerateSpec(PromptSpec):
    experiment = "generate"
    title = "Attention while a model writes"
    main_table = "heads"
    module = "attncli.commands.generate"
    model_module = module
    default_model = HeadsSpec.default_model
    drawn_maps = "heads"
    needs_head = True
    former_keys: ClassVar[dict[str, str]] = {"temperature": "sampling_temperature"}
    examples = (
        "attn generate",
        'attn generate --model ./my-model "The capital of France is"',
        'attn generate --model ./my-model --file notes.txt --question "Who came?" --chat',
        'attn generate --model ./my-model --file notes.txt --chat --needle "Ann came"',
        "attn generate --model ./my-model --file notes.txt --head 17:3 -o page.html",
        "attn generate --model ./my-model --file prompt.txt --answer answer.txt",
    )
    group = "Output"
    heading_keys = ("file", "model", "layer", "head", "seed")
    next_steps = (ONE_HEAD, "--show rows", "-o page.html")
    off_keys = frozenset(
        {
            *("question", "chat", "needle", "needle_depth", "lengths"),
            *("answer", "prefill_chunk", "ascending", "top"),
        }
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return cls.next_steps if settings.get("head") is None else cls.next_steps[1:]

    answer: Annotated[Text | None, Everyday("read this answer instead of writing one: text or file")] = Field(
        None,
        description="an answer that is there already, as a text or a file: the model reads it, not writes",
    )
    max_new_tokens: Annotated[Size, Everyday()] = Field(24, description="write so many tokens at most")
    sampling_temperature: Annotated[float | None, Everyday("sample, instead of the likeliest")] = Field(
        None, gt=0, le=100, description="sample: the scores of the tokens are divided by it"
    )
    top_p: Annotated[float | None, Everyday("sample among the likeliest, P together")] = Field(
        None, gt=0, le=1, description="sample among the likeliest tokens that have this probability together"
    )
    greedy: Annotated[
        bool, NoFlag("is what happens without --sampling-temperature and --top-p: leave it out; it was read")
    ] = Field(
        default_factory=_is_greedy,
        description="take the likeliest token each time (default without `sampling_temperature` and `top_p`)",
    )
    prefill_chunk: Size | None = Field(
        None,
        description="tokens of the prompt that go through the model at a time (default: all; 512 of a longer "
        "prompt, where the model can)",
    )
    layer: Count | None = Field(None, description="only the heads of this layer")
    head: Annotated[HeadNumber | None, Everyday()] = Field(None, description="only this head, as LAYER:HEAD")
    top_k: Size = Field(3, description="keys named for each token that was written")
    maps: Literal["none", "mean", "heads"] = Field(
        default_factory=lambda data: "none" if data.get("image") is None else "mean",
        description="keep whole rows of weights: their mean over the heads, or up to 128 keys those of each "
        "head (default with a picture: mean; where it is drawn: heads)",
    )
    sort: Annotated[WriterStatistic, Everyday("the largest first: text_mass, lookback_ratio, ...")] = Field(
        default_factory=lambda data: "text_mass" if data.get("needle") is None else "retrieval",
        description="the heads with the largest of this first (default: text_mass, with a needle retrieval): "
        f"{', '.join(WRITER_STATISTICS)}",
    )
    ascending: bool = Field(False, description="the heads with the smallest first")
    top: Annotated[Size | None, Everyday("only the first N heads")] = Field(
        None, description="keep only the first N heads in the table of heads"
    )

    def row_statistics(self) -> tuple[str, ...]:
        """Those of one layer; of all layers the table of heads has the means."""
        if self.layer is None:
            return ()
        return tuple(name for name in (*OF_WEIGHTS, *WRITING) if self.needle or name != "needle_mass")

    def single_statistics(self) -> tuple[str, ...]:
        of_needle = {"needle_mass", "retrieval"} if self.needle is None else set()
        counts = in_group("writing", "prompt_tokens", "new_tokens")
        counts += in_group("writing", "log_probability") if self.answer is not None else ()
        found = () if self.needle is None else in_group("needle", "tokens", "copied", "found")
        return (*(name for name in WRITER_STATISTICS if name not in of_needle), *counts, *found)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given("sampling_temperature", "top_p"):
            if self.greedy:
                yield contradiction(key, "cannot be combined with `greedy`, which samples nothing", "greedy")
        if not self.greedy and _is_greedy(self.__dict__):
            yield contradiction(
                "greedy", "needs `sampling_temperature` or `top_p` to be off", "sampling_temperature", "top_p"
            )
        for key in self.given("answer", "prefill_chunk") if self.image is not None else ():
            yield contradiction(key, "cannot be combined with `image`", "image")
        for key in self.given("max_new_tokens", "sampling_temperature", "top_p", "prefill_chunk"):
            if self.answer is not None:
                yield contradiction(key, "cannot be combined with `answer`, which is read", "answer")
        if self.head is not None and self.layer is None:
            yield contradiction("head", "needs its layer: LAYER:HEAD, as 17:3", "layer")
        if self.sort in ("needle_mass", "retrieval") and self.needle is None:
            yield contradiction("sort", f"{self.sort} needs `needle`", "needle")
