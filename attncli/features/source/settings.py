"""The settings of `attn source` and `attn source --find-heads`, and those that all forms share."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from attncli.errors import UserError
from attncli.records.arguments import MAX_SIZE, PlainNumber, head_names_without_stack
from attncli.settings.fields import (
    CONFIG_ONLY,
    Contradictions,
    Everyday,
    Size,
    TextSource,
    contradiction,
)
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import ModelSpec
from attncli.settings.text import IN_FILE, Text, TextPath, Texts, names_file

if TYPE_CHECKING:
    from attncli.models.source_texts import SourcedText, Split

QUESTION = "lamp="
CONTEXT = "key=brass\ndoor=oak\nhat=wool\nlamp=green"


def _joined_heads(names: object) -> str:
    return ",".join(head_names_without_stack(names))


def _default_question(data: dict[str, Any]) -> str | None:
    has_input = any(data.get(key) for key in ("model", "file", "document", "context"))
    return None if has_input else QUESTION


def _default_split(data: dict[str, Any]) -> Literal["document", "line", "sentence"]:
    if data.get("document"):
        return "document"
    return "line" if data.get("sentence") == QUESTION else "sentence"


NamedHeads = Annotated[
    Annotated[str, BeforeValidator(_joined_heads)] | None,
    Everyday("the retrieval heads, such as 18:6,14:3"),
    Field(
        description="the retrieval heads, as LAYER:HEAD,... (default: the heads that `find_heads` chose for "
        "this model)"
    ),
]
NumRuns = Annotated[
    int,
    Field(
        ge=2,
        le=MAX_SIZE,
        description="the number of random sets of sources: with `method` sampled, `compare` and `learn` "
        "(default: 32 with `learn`, 64 for a picture)",
    ),
    PlainNumber,
]
InTemplate = Annotated[bool, Everyday("use the chat template; each turn of a JSON chat is a source")]
CHAT_HELP = (
    "in the model's chat template: each turn and tool of a chat as JSON is a source, any other text is a "
    "user's message"
)
SPLIT_HELP = (
    "the unit that is a source in a text or in each `document` (default: a whole document; in a text, a "
    "sentence, or a word with `compare` and fewer than three sentences); <source NAME>...</source> in a text "
    "marks its sources"
)
SplitHelp = Everyday("the unit to treat as one source")
NewTokens = Annotated[Size, Everyday(), Field(description="the maximum number of tokens to write")]


class SourcesSpec(ModelSpec):
    """Settings shared by the forms of `attn source`."""

    experiment = "source"
    title = "Sources of an answer"
    main_table = "sources"
    parts = ("statistics", "sources", "answer", "heads")
    default_model = HeadsSpec.default_model
    needs_head = True
    group = "Input"
    argument = "sentence"
    examples: ClassVar[tuple[str, ...]] = ()
    heading_keys = ("file", "image", "model", "method", "head", "seed")


class SourcedTextSpec(SourcesSpec):
    """Settings of a text with sources, and of the answer."""

    off_keys = frozenset({"document", "context", "chat", "answer", "head", "runs"})
    needs: ClassVar[Mapping[str, str]] = {"document": "sentence", "split=document": "document"}
    # The fewest sources besides a question at the end of the text.
    least_sources: ClassVar[int] = 2

    file: Annotated[TextPath | None, IN_FILE] = Field(
        None, description="a text whose parts are the sources, or a chat as JSON; - reads stdin"
    )
    document: Annotated[
        list[TextPath],
        Everyday("a document to use as a source; repeatable"),
    ] = Field([], description="a text file that is a source, above the question; repeatable")
    context: Annotated[Text | None, CONFIG_ONLY] = Field(
        None, description="a text whose parts are the sources, as in `file`"
    )
    sentence: Text | None = Field(
        default_factory=_default_question, description="the question, placed after the sources"
    )
    split: Annotated[Literal["word", "sentence", "line", "paragraph", "turn", "document"], SplitHelp] = Field(
        default_factory=_default_split, description=SPLIT_HELP
    )
    chat: InTemplate = Field(False, description=CHAT_HELP)
    answer: Annotated[Text | None, Everyday("an existing answer: text or a file")] = Field(
        None,
        description="an existing answer, as a text or a file, that the model reads (default: the model "
        "writes one); with `compare` and an encoder, a class or a word",
    )
    max_new_tokens: NewTokens = 24

    def text_sources(self) -> tuple[TextSource, ...]:
        return TextSource("sentence", self.sentence), TextSource("context", self._context, self.file)

    def other_files(self) -> Iterator[tuple[str, str]]:
        yield from (("document", file) for file in self.document)
        if self.answer is not None and names_file(self.answer):
            yield "answer", self.answer

    @property
    def text_split(self) -> "Split":
        """The unit that counts as a source in a text without documents."""
        assert self.split != "document", "refused without documents"
        return self.split

    @property
    def sources_key(self) -> str:
        """The name of the setting that has the sources."""
        sources = {"document": self.document, "file": self.file, "context": self.context}
        return next((key for key, value in sources.items() if value), "sentence")

    def split_text(self, text: str, question: str | None, *, is_continued: bool) -> "SourcedText":
        """The parts of a text, without the question at its end if the model continues it (`is_continued`)."""
        from attncli.models.source_texts import ASKING, split_text, without_asking

        parts = split_text(text, self.text_split, question=question, key=self.sources_key)
        may_ask = question is None and is_continued and self.split in ASKING
        return without_asking(parts, self.least_sources) if may_ask else parts

    @property
    def _context(self) -> str | None:
        return CONTEXT if self.sentence == QUESTION and not self.given("sentence") else self.context

    def check_texts(self, texts: Texts) -> None:
        if self.answer is not None and names_file(self.answer) and not texts.named_texts[-1][1].strip():
            raise UserError("answer: must hold at least one token (got an empty text)")
        from attncli.features.source.reading import check_sources

        check_sources(self, texts)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("file", "document", "context")
        if self.sentence is None and self.file is None and self.context is None and not self.document:
            yield contradiction(
                "model", "needs a question and sources: use `document` or `file`", "document", "file", "image"
            )
        if self.truncate:
            yield contradiction("truncate", "cannot be used here: it would cut off sources")


class SourceSpec(SourcedTextSpec):
    examples = (
        "attn source",
        'attn source "Who came?" --document a.md --document b.md --model M',
        "attn source --file prompt.txt --split paragraph --model M -o page.html",
        'attn source "Who came?" --document a.md --model M --answer answer.txt',
        "attn source --chat --file chat.json --model M --method removal",
        "attn source prompts.jsonl --compare --model M",
        "attn source --compare --image cat.png --model VIT -o page.html",
        "attn source --find-heads --model M",
        "attn source others.jsonl --learn --model M",
    )
    next_steps = ("--method removal", "--show statistics", "-o page.html")
    needs: ClassVar[Mapping[str, str]] = {"runs": "method=sampled"}

    method: Annotated[Literal["weights", "removal", "sampled"], Everyday("how to rank the sources")] = Field(
        "weights",
        description="how to rank the sources: by weights, checked by removing five; by removal of each; or "
        "sampled, by a Lasso over random sets (ContextCite)",
    )
    head: NamedHeads = None
    runs: NumRuns = 64

    def result_kind(self) -> str:
        return "source"

    def unmeasured(self) -> set[str]:
        return set() if self.method == "sampled" else {"effect", "effect_rank"}


class RetrievingHeadsSpec(SourcesSpec):
    find_heads: Annotated[bool, Everyday("choose and cache a model's retrieving heads")] = Field(
        False,
        description="choose the heads that retrieve on 24 synthetic contexts, and store them in the user's "
        "cache for this model",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ('"QUESTION" --document FILE', "--show statistics")

    def result_kind(self) -> str:
        return "source of heads"
