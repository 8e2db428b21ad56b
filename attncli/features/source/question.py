"""`attn source`: which sources an answer came from."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.models.digests import cache_folder, content_digest
from attncli.models.folder import local_model, weight_files
from attncli.records.arguments import head_names_without_stack
from attncli.records.report import Report
from attncli.records.values import NamedTensor
from attncli.settings.fields import (
    CONFIG_ONLY,
    Contradictions,
    Everyday,
    Form,
    NotFor,
    Size,
    TextSource,
    contradiction,
)
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import PICTURE, ImageSpec
from attncli.settings.pages import ModelPage
from attncli.settings.text import IN_FILE, Text, TextPath, Texts, names_file, text_or_file
from attncli.system.plain_text import counted, parsed_json

if TYPE_CHECKING:
    from attncli.core.progress import Progress
    from attncli.features.source.explanation_results import LearnedWeights
    from attncli.features.source.results import AnswerSources, RetrievingHeads
    from attncli.models.pretrained import Pretrained
    from attncli.models.source_texts import SourcedReading, SourcedText, Split

QUESTION = "lamp="
CONTEXT = "key=brass\ndoor=oak\nhat=wool\nlamp=green"


def _joined_heads(names: object) -> str:
    return ",".join(head_names_without_stack(names))


def _default_question(data: dict[str, Any]) -> str | None:
    given = any(data.get(key) for key in ("model", "file", "document", "context", "image"))
    return None if given else QUESTION


def _default_split(data: dict[str, Any]) -> Literal["document", "line", "sentence"]:
    if data.get("document"):
        return "document"
    return "line" if data.get("sentence") == QUESTION else "sentence"


COMPARING = Form("compare", "cannot be combined with `compare`, which reads in every way and by removal")
FINDING = Form("find_heads", "cannot be combined with `find_heads`, which asks nothing")
LEARNING = Form("learn", "cannot be combined with `learn`, which hides sets of sources of many prompts")


COMPARED_RUNS = 32
"""Sets of sources of each prompt, beside those that all ways need."""
PROMPT_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv")


class SourceSpec(ImageSpec):
    experiment = "source"
    title = "Where an answer came from"
    main_table = "sources"
    parts = ("statistics", "sources", "answer", "heads")
    default_model = HeadsSpec.default_model
    needs_head = True
    group = "Input"
    argument = "sentence"
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
    heading_keys = ("file", "image", "model", "method", "head", "seed")
    next_steps = ("--method removal", "--show statistics", "-o page.html")
    off_keys = frozenset(
        {"document", "context", "chat", "find_heads", "answer", "head", "runs", "compare", "learn"}
    )
    surveys_pictures = True

    file: Annotated[TextPath | None, IN_FILE, NotFor(FINDING, PICTURE)] = Field(
        None, description="a text whose parts are the sources, or a chat as JSON; - reads stdin"
    )
    document: Annotated[
        list[TextPath], Everyday("a document that is a source; repeatable"), NotFor(FINDING, PICTURE)
    ] = Field([], description="a text file that is a source, above the question; repeatable")
    context: Annotated[Text | None, CONFIG_ONLY, NotFor(FINDING, PICTURE)] = Field(
        None, description="a text whose parts are the sources, as in `file`"
    )
    sentence: Annotated[Text | None, NotFor(FINDING, PICTURE)] = Field(
        default_factory=_default_question, description="the question, below the sources"
    )
    split: Annotated[
        Literal["word", "sentence", "line", "paragraph", "turn", "document"],
        Everyday("what the sources of a text are"),
        NotFor(PICTURE),
    ] = Field(
        default_factory=_default_split,
        description="what the sources of a text, or in each `document`, are (default: sentences, with "
        "`compare` words where there are fewer than three; each document whole); a text with "
        "<source NAME>...</source> in it has its own",
    )
    chat: Annotated[
        bool, Everyday("in the chat template; of a chat as JSON each turn"), NotFor(FINDING, PICTURE)
    ] = Field(
        False,
        description="in the model's chat template: of a chat as JSON each turn and tool is a source, any "
        "other text is a user's message",
    )
    answer: Annotated[Text | None, Everyday("an answer that is there: its text or file"), NotFor(FINDING)] = (
        Field(
            None,
            description="an answer that is there already, as a text or a file: the model reads it "
            "(default: it writes one); with `compare` of an encoder a class or a word",
        )
    )
    max_new_tokens: Annotated[Size, Everyday()] = Field(24, description="write so many tokens at most")
    method: Annotated[
        Literal["weights", "removal", "sampled"],
        Everyday("what sources are ranked by"),
        NotFor(FINDING, COMPARING, LEARNING),
    ] = Field(
        "weights",
        description="what sources are ranked by: weights, checked by removing five; removal of "
        "each; or sampled, random sets of them and a Lasso (ContextCite)",
    )
    head: Annotated[
        Annotated[str, BeforeValidator(_joined_heads)] | None,
        Everyday("the retrieving heads, as 18:6,14:3"),
        NotFor(FINDING, LEARNING),
    ] = Field(
        None,
        description="the retrieving heads, as LAYER:HEAD,... (default: those that `find_heads` chose for "
        "this model)",
    )
    compare: Annotated[bool, Everyday("ways to read, against removal"), NotFor(FINDING, LEARNING)] = Field(
        False,
        description="each way to read a model, beside what is lost without each source (of an encoder: of "
        "its class, masked word or similarity; with `image` of a picture); of a file of prompts (.jsonl, "
        ".csv) or a folder of pictures, how good each way is",
    )
    learn: Annotated[bool, Everyday("a weight for each head, from prompts"), NotFor(FINDING, PICTURE)] = (
        Field(
            False,
            description="learn a weight for each head (AT2) from a file of prompts, and keep it in the "
            "user's cache for this model: `compare` has it from then on",
        )
    )
    runs: Annotated[Size, NotFor(FINDING)] = Field(
        default_factory=lambda data: (
            COMPARED_RUNS if data.get("learn") or (data.get("compare") and not data.get("image")) else 64
        ),
        description="random sets of sources: with `method` sampled (default: 64), `compare` and `learn` (32; "
        "of a picture 64)",
    )
    find_heads: Annotated[
        bool, Everyday("choose a model's retrieving heads, and keep them"), NotFor(PICTURE)
    ] = Field(
        False,
        description="choose the heads that retrieve on 24 synthetic contexts, and keep them in the user's "
        "cache for this model",
    )

    @property
    def prompts(self) -> str | None:
        """The file of prompts that ways are compared on, or weights learned from, or what names pictures."""
        if self.reads_pictures():
            return self.image
        is_list = self.file is not None and Path(self.file).suffix.lower() in PROMPT_SUFFIXES
        return self.file if (self.compare or self.learn) and is_list else None

    def reads_many_texts(self) -> bool:
        return self.prompts is not None

    def text_sources(self) -> tuple[TextSource, ...]:
        if self.prompts is not None:
            return TextSource("sentence", None), TextSource("context", None)
        return TextSource("sentence", self.sentence), TextSource("context", self._context, self.file)

    def other_files(self) -> Iterator[tuple[str, str]]:
        yield from (("document", file) for file in self.document)
        if self.answer is not None and names_file(self.answer):
            yield "answer", self.answer

    @property
    def split_of_text(self) -> "Split":
        """What the sources of a text are, which is no document."""
        assert self.split != "document", "refused without documents"
        return self.split

    @property
    def _context(self) -> str | None:
        return CONTEXT if self.sentence == QUESTION and not self.given("sentence") else self.context

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("find_heads"):
            return ('"QUESTION" --document FILE', "--show statistics")
        if settings.get("learn"):
            return ("OTHERS.jsonl --compare", "--show statistics")
        if settings.get("compare"):
            return ("--show statistics", "-o page.html")
        return cls.next_steps

    def result_kind(self) -> str:
        if self.compare:
            return "source of ways" if self.prompts is not None else "source of explanations"
        if self.learn:
            return "source of weights"
        return "source of heads" if self.find_heads else "source"

    def unused_keys(self) -> frozenset[str]:
        asks_otherwise = self.compare or self.learn or self.find_heads
        return super().unused_keys() | (frozenset({"method"}) if asks_otherwise else frozenset())

    def unmeasured(self) -> set[str]:
        return set() if self.method == "sampled" else {"effect", "effect_rank"}

    def check_texts(self, texts: Texts) -> None:
        if self.find_heads or self.image is not None:
            return
        if self.answer is not None and names_file(self.answer) and not texts.of_files[-1][1].strip():
            raise UserError("answer: must hold at least one token (got an empty text)")
        from attncli.models.source_texts import SourcePromptFile, chat_messages

        if self.prompts is not None:
            if Path(self.prompts).is_file():  # a pipe can only be read once
                SourcePromptFile(self.prompts).prompts()
        elif (chat := _chat(self, texts)) is not None:
            chat_messages(chat, _key(self))
        else:
            _sourced_text(self, texts)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("file", "document", "context")
        if self.find_heads:
            return
        if self.image is not None:
            yield from self._of_a_picture()
            return
        if self.sentence is None and self.file is None and self.context is None and not self.document:
            yield contradiction(
                "model", "needs a question, and sources: `document` or `file`", "document", "file", "image"
            )
        if self.prompts is not None and self.sentence is not None:
            yield contradiction("sentence", "is not for a file of prompts, each of which has its own", "file")
        if self.prompts is not None and self.answer is not None:
            yield contradiction("answer", "is not for a file of prompts, each of which has its own", "file")
        is_alone = self.file is None and not self.document
        if (self.compare or self.learn) and is_alone and str(self.sentence).endswith(PROMPT_SUFFIXES):
            yield contradiction("sentence", f"no such file: {self.sentence}", "file")
        elif self.learn and self.prompts is None:
            yield contradiction("learn", "needs a file of prompts (JSON Lines, CSV)", "file")
        if self.document and self.sentence is None:
            yield contradiction("document", "needs a question below it", "sentence")
        if self.split == "document" and not self.document:
            yield contradiction("split", "document needs `document`: give each as one", "document")
        if self.truncate:
            yield contradiction("truncate", "is not for source: it would cut sources off")
        if self.given("runs") and self.method != "sampled" and not self.compare and not self.learn:
            yield contradiction(
                "runs", "needs `method` sampled, `compare` or `learn`", "method", "compare", "learn"
            )
        if self.runs == 1:
            yield contradiction("runs", "must be at least 2: one set of sources says nothing")

    def _of_a_picture(self) -> Contradictions:
        """What a picture needs, and what is of no picture."""
        if not self.compare and not self.learn:
            yield contradiction("image", "needs `compare`: nothing is written about it", "compare")
        if self.prompts is not None and self.answer is not None:
            yield contradiction("answer", "is of one picture, not of a folder or a list", "image")
        if self.given("max_new_tokens"):
            yield contradiction("max_new_tokens", "cannot be combined with `image`", "image")


def read(spec: SourceSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> Any:
    """What the model reads; UserError for what does not fit, and for sources that hold no text."""
    from attncli.models.encoders import is_encoder, read_for_encoder
    from attncli.models.picture_reading import read_picture
    from attncli.models.picture_sources import picture_cells
    from attncli.models.probes import read_probe
    from attncli.models.source_texts import read_sourced

    if spec.find_heads:
        return read_probe(pretrained, 1, generator)
    if spec.image is not None:
        return picture_cells(pretrained, read_picture(pretrained, spec.image))
    if is_encoder(pretrained) and not spec.chat:
        if not spec.compare:
            message = "is an encoder, which writes no answer: --compare explains what it says of a text"
            raise UserError(f"model: {pretrained.name} {message}")
        question = texts.text if spec.document or texts.context is not None else None
        sourced = _sourced_text(spec, texts, is_continued=False)
        return read_for_encoder(pretrained, sourced, question, key=_key(spec))
    sourced = _sourced(spec, texts, pretrained)
    num_new = 0 if spec.answer or pretrained.has_decoder else spec.max_new_tokens - 1
    return read_sourced(pretrained, sourced, num_new=num_new, key=_key(spec))


def _key(spec: SourceSpec) -> str:
    return "document" if spec.document else "file" if spec.file else "context" if spec.context else "sentence"


def _sourced(spec: SourceSpec, texts: Texts, pretrained: "Pretrained") -> "SourcedText":
    """The sources in their prompt: documents, marked parts, turns of a chat, or parts of a text."""
    from attncli.models.source_texts import chat_text

    if (chat := _chat(spec, texts)) is not None:
        return chat_text(chat, pretrained, key=_key(spec))
    sourced = _sourced_text(spec, texts)
    return sourced.in_template(pretrained) if spec.chat else sourced


def _chat(spec: SourceSpec, texts: Texts) -> str | None:
    """The text where it is a chat as JSON; UserError for a question beside it."""
    from attncli.models.source_texts import is_chat

    if not spec.chat or spec.document or texts.context is None or not is_chat(texts.context):
        return None
    if texts.text is not None:
        raise UserError("sentence: is not for a chat as JSON, whose last message asks: leave it out")
    return texts.context


def _sourced_text(spec: SourceSpec, texts: Texts, *, is_continued: bool = True) -> "SourcedText":
    """The sources of documents, or the marked or other parts of a text; no model is needed for these.

    A text alone that `is_continued` by a model may ask at its end.
    """
    from attncli.models.source_texts import marked_text, with_documents

    question, context, key = texts.text, texts.context, _key(spec)
    if spec.document:
        assert question is not None
        documents = [(Path(file).name, text) for file, text in texts.of_files[: len(spec.document)]]
        return with_documents(documents, question, None if spec.split == "document" else spec.split)
    if context is None:
        context, question = question, None
        assert context is not None
    return marked_text(context, question=question, key=key) or _split(
        spec, context, question, is_continued=is_continued
    )


LEAST_COMPARED = 3
"""Sources that have an order."""


def _split(spec: SourceSpec, text: str, question: str | None, *, is_continued: bool) -> "SourcedText":
    """The parts of a text; its words where ways are compared and it has hardly any sentence."""
    from attncli.models.source_texts import ASKING, LEAST_SPLIT, split_text, without_asking

    parts = split_text(text, spec.split_of_text, question=question, key=_key(spec))
    if question is None and is_continued and spec.split in ASKING:
        parts = without_asking(parts, LEAST_COMPARED if spec.compare else LEAST_SPLIT)
    if not spec.compare or spec.given("split") or len(parts.sources) >= LEAST_COMPARED:
        return parts
    return split_text(text, "word", question=question, key=_key(spec))


def report(spec: SourceSpec, reading: Any, pretrained: "Pretrained", progress: "Progress | None") -> Report:
    """Where the answer to a prompt came from, or which heads are chosen to tell it."""
    if spec.find_heads:
        return _report_of_heads(spec, pretrained, progress)
    if spec.compare:
        from attncli.features.source.explained import KnownHeads, report_explanations

        kept = KnownHeads(_heads(spec, kept_heads(spec)), kept_weights(spec))
        return report_explanations(spec, reading, pretrained, kept, progress)
    return _report(spec, reading, pretrained, progress)


def _heads(spec: SourceSpec, kept: list[str] | None) -> list[str]:
    """The heads that are named, else those that are kept for the model."""
    return spec.head.split(",") if spec.head else kept or []


def report_many(
    spec: SourceSpec, pretrained: "Pretrained", progress: "Callable[[float], None] | None"
) -> Report:
    """How good each way to read is, on the prompts of a file; or the weights that are learned from them."""
    from attncli.features.source.explained import KnownHeads, report_comparison, report_learning

    if spec.learn:
        return report_learning(spec, pretrained, lambda weights: keep_weights(spec, weights), progress)
    kept = KnownHeads(_heads(spec, kept_heads(spec)), kept_weights(spec))
    return report_comparison(spec, pretrained, kept, progress)


def _report(
    spec: SourceSpec, reading: "SourcedReading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    from attncli.features.source.door import SourcedAnswer
    from attncli.runs.report_parts import build_report

    answer = None if spec.answer is None else text_or_file(spec.answer, "answer")
    # Before heads are looked for, which takes long: a model may write nothing.
    answered = SourcedAnswer.of(
        pretrained,
        reading,
        answer,
        heads=_heads(spec, None),
        max_new_tokens=spec.max_new_tokens,
        method=spec.method,
        num_runs=spec.runs,
        seed=spec.seed,
        on_text=None if progress is None else progress.write,
        progress=None if progress is None else progress.stage,
    )
    kept = None if spec.head else _known_heads(spec, reading, pretrained, answer, progress)
    heads = _heads(spec, kept)
    result = answered.sources(heads)
    if progress is not None:
        progress(1.0)
    assert result.weights is not None
    return build_report(
        spec,
        Texts(
            pretrained.labels(result.ids),
            tuple(source.name for source in reading.sourced.sources),
            token_spelling=pretrained.token_spelling,
        ),
        {"source_weights": NamedTensor(("token", "source"), result.weights)},
        result,
        [
            *_last_part(spec, reading.sourced),
            *_notes(spec, result, heads, is_kept=kept is not None, name=pretrained.name),
        ],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')}, "
        f"{counted(len(reading.prompt.ids), 'token')} in the prompt, {len(result.ids)} in the answer.",
        how_to_read=HOW_TO_READ,
        written=result.answer,
    )


def _known_heads(
    spec: SourceSpec,
    reading: "SourcedReading",
    pretrained: "Pretrained",
    answer: str | None,
    progress: "Progress | None",
) -> list[str] | None:
    """The heads that are kept for a model; chosen, and kept, where that reads less than the prompt has.

    None where they are not known, an empty list where none retrieves. In a batch none are looked for: its
    numbers would depend on which prompt came first.
    """
    from attncli.features.source.door import retrieving_heads, search_takes_less

    kept = kept_heads(spec)
    if kept is not None or progress is None or _place_of_heads(spec) is None:
        return kept
    if not search_takes_less(pretrained, reading, answer):
        return None
    progress.begin("choosing the heads that retrieve, once for this model")
    try:
        result = retrieving_heads(pretrained, progress=progress)
    except UserError:  # of this model no head does, or it cannot read the contexts
        result = None
    with suppress(UserError):  # a cache that cannot be written
        keep_heads(spec, result)
    return [] if result is None else result.heads


HOW_TO_READ = (
    "Weights are where heads looked, which need not be why; lost: nats that the answer's log-probability "
    "loses where the source's text is taken out, which moves what comes after it."
)


def _notes(
    spec: SourceSpec, result: "AnswerSources", heads: Sequence[str], *, is_kept: bool, name: str
) -> list[str]:
    notes = [*_order_notes(result), *result.notes]
    if spec.model is None:
        notes.append("This model ships with attn: it copies. --model FOLDER takes another.")
    if is_kept and heads:
        notes.append(f"Retrieving heads, chosen on synthetic contexts: {', '.join(heads)}.")
    elif is_kept:
        notes.append(f"No head of {name} retrieves on synthetic contexts: --head names some.")
    elif not heads and spec.model is not None:
        notes.append(f"No retrieving heads of {name} are kept: --find-heads chooses some, --head names them.")
    if spec.method == "sampled":
        notes.append(f"effect: of {spec.runs} random sets of sources, by a Lasso, on the answer's logit.")
    return notes


ORDERS = {
    "lost": "what the answer loses without them",
    "effect": "their effect",
    "retrieving_heads": "the weight of the retrieving heads",
    "all_heads": "the weight of all heads",
}


def _last_part(spec: SourceSpec, sourced: "SourcedText") -> Iterator[str]:
    """A note where what a text ends in is a source among others: it may be what is asked."""
    last = sourced.sources[-1]
    is_end = last.end == len(sourced.text.rstrip()) and last.name.startswith(spec.split)
    if is_end and len(sourced.sources) > 1 and spec.split != "word":
        yield f'The last {spec.split} is a source, too: with "QUESTION" --file FILE the question is none.'


def _order_notes(result: "AnswerSources") -> Iterator[str]:
    """What the sources are in the order of, and the answer is coloured by; nothing of a single source."""
    kinds = list(dict.fromkeys(str(source.ranked_by) for source in result.sources))
    if len(result.sources) == 1:
        return
    first = f"Sources are in the order of {ORDERS[kinds[0]]}"
    rest = "".join(f", then of {ORDERS[kind]}" for kind in kinds[1:])
    yield f"{first}{rest}; the answer is coloured by {'the first' if rest else 'the same'}."


def _report_of_heads(spec: SourceSpec, pretrained: "Pretrained", progress: "Progress | None") -> Report:
    """The heads that retrieve, which are kept for the model."""
    from attncli.features.source.door import retrieving_heads
    from attncli.runs.report_parts import build_report

    result = retrieving_heads(pretrained, seed=spec.seed, progress=progress)
    place = keep_heads(spec, result)
    where = (
        f"Kept in {place}." if place else "They are not kept: this model is no folder with weights in files."
    )
    chosen = f"Chosen, for what this model answers from here on: {', '.join(result.heads)}."
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [chosen, where],
        about=f"{pretrained.name}: which heads find the right sentence in {result.num_contexts} contexts.",
        how_to_read="found: the share of contexts in which the right sentence, of 16, has most of a head's "
        "weight; weight: its mean weight on it.",
    )


def _place_of_heads(spec: SourceSpec, what: str = "heads") -> Path | None:
    """Where the heads of a model are kept, by the contents of its weights; None where it has no files."""
    source = spec.model_source()
    folder = None if source is None else local_model(source)
    if folder is None:
        return None
    with suppress(OSError):
        digests = [content_digest(file) for file in sorted(weight_files(folder))]
        return cache_folder(what) / f"{sha256(''.join(digests).encode()).hexdigest()[:32]}.json"
    return None


def kept_heads(spec: SourceSpec) -> list[str] | None:
    """The heads that were chosen for a model, an empty list where none retrieves; None before a search."""
    place = _place_of_heads(spec)
    if place is None or not place.exists():
        return None
    try:
        match parsed_json(place.read_bytes()):
            case {"heads": [*heads]} if all(isinstance(head, str) for head in heads):
                return [f"{head.layer}:{head.head}" for head in map(named_head, heads)]
        raise ValueError("without heads")
    except (OSError, ValueError):
        raise UserError(f"head: {place} is damaged: attn source --find-heads writes it anew") from None


def keep_heads(spec: SourceSpec, result: "RetrievingHeads | None") -> Path | None:
    """Write the chosen heads whole, or that there are none; None where there is no place for them."""
    chosen = {"contexts": result.num_contexts, "seed": result.seed} if result else {}
    return _keep(spec, "heads", {**chosen, "heads": result.heads if result else []}, "find_heads")


WEIGHTS = "head-weights"


def kept_weights(spec: SourceSpec) -> dict[str, float] | None:
    """The weights that were learned for the heads of a model; None before that."""
    place = _place_of_heads(spec, WEIGHTS)
    if place is None or not place.exists():
        return None
    try:
        match parsed_json(place.read_bytes()):
            case {"weights": dict(weights)} if all(isinstance(weight, float) for weight in weights.values()):
                heads = [named_head(str(name)) for name in weights]
                names = [f"{head.layer}:{head.head}" for head in heads]
                return dict(zip(names, weights.values(), strict=True))
        raise ValueError("without weights")
    except (OSError, ValueError):
        raise UserError(f"learn: {place} is damaged: attn source PROMPTS --learn writes it anew") from None


def keep_weights(spec: SourceSpec, result: "LearnedWeights") -> Path | None:
    """Write the weights of all heads whole; None where there is no place for them."""
    about = {"prompts": result.fit.prompts, "runs": result.num_runs, "seed": result.seed}
    return _keep(spec, WEIGHTS, {**about, "weights": result.by_name}, "learn")


def _keep(spec: SourceSpec, what: str, of_model: Mapping[str, Any], key: str) -> Path | None:
    place = _place_of_heads(spec, what)
    if place is None:
        return None
    part = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"model": spec.model_source(), **of_model}), encoding="utf-8")
        part.replace(place)
    except OSError as error:
        raise UserError(f"{key}: {place}: cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return place


PAGE = ModelPage(read=read, report=report, report_many=report_many)
