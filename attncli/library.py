"""What is asked of a model, from texts to results: the doors of `measure` (docs/python.md).

Commands and users call the same functions, which import what they measure with when they are called.
`model` is what `open_model` gives, or the name of a folder, which the first of several calls loads.
`text` is a text or what `read_text`, `read_picture` and `read_probe` made; `texts` are many, or the name of a
file of them. Heads are "0:1,1:3", ["0:1", "1:3"] or [(0, 1), (1, 3)], one is "0:1" or (0, 1). `progress` is
called with the share that is done, or with the stage of long work. Every result has tables of typed rows:
`pandas.DataFrame(result.heads)` is a data frame.

Each call is held to its annotations before a model is loaded (`attncli.arguments`): UserError with a line for
each argument that does not fit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Literal

import torch

from attncli.arguments import (
    AnswerArgument,
    Count,
    HeadArgument,
    HeadsArgument,
    HeadsWithoutStack,
    HeadWithoutStack,
    Layers,
    NonBlankText,
    Position,
    Seed,
    Size,
    Temperature,
    TokenNames,
    TopShare,
    by,
    checked,
    head_name,
    head_name_without_stack,
    head_names,
    head_names_without_stack,
    one_of,
    token_names,
    whole_numbers,
)
from attncli.core.layer import AttentionLayer
from attncli.core.names import (
    HEAD_PATTERNS,
    PATTERNS,
    ROW_STATISTICS,
    RemovalMethod,
    SourceMethod,
    WholeRows,
    named_head,
)
from attncli.core.progress import Stage
from attncli.errors import UserError, refuse_bytes
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.loading import in_use
from attncli.models.model_arguments import (
    Model,
    OneOrMoreTexts,
    Sources,
    TextOrPrompt,
    TextOrReading,
    TextsOrFile,
    several_texts,
)
from attncli.models.predicted import Predicted, check_swap, predicted_of
from attncli.models.pretrained import Pretrained, Reading, TextOrIds, check_made_for, read_text, reader_of
from attncli.models.prompts import Prompt, prompt_of_sound, read_prompt
from attncli.models.source_texts import SourcedReading, Split, read_sourced, sourced_text
from attncli.models.text_files import ListedTexts, ManyTexts, TextFile, TextLine, text_or_ids
from attncli.models.words import words_of_characters
from attncli.models.writing import Decoding
from attncli.records.changes import TextDifferences
from attncli.records.circuit import Compositions, HeadEdges
from attncli.records.effects import HeadEffects
from attncli.records.examples import HeadExamples
from attncli.records.logits import LogitAttribution, ScoreParts
from attncli.records.sources import AnswerSources, RetrievingHeads
from attncli.records.surveys import HeadSurvey
from attncli.records.writings import NextTokens, WrittenText

if TYPE_CHECKING:
    from attncli.measure.heads import HeadOptions
    from attncli.measure.sources import Answer, AnswerWork

WRITTEN = 20
"""Tokens that a model writes after a text, where nobody says how many."""
StatisticName = Annotated[str, by(one_of((*ROW_STATISTICS, *PATTERNS)))]
NamedPattern = Annotated[str, by(one_of(HEAD_PATTERNS))]


def _read(model: Pretrained, text: TextOrIds | Reading, key: str = "text") -> Reading:
    if isinstance(text, Reading):
        return check_made_for(model, text, key)
    return read_text(model, text, key=key)


@checked
def layers(model: Model, text: TextOrReading, *, numbers: Layers = ()) -> list[CapturedLayer]:
    """The attention of each layer on a text, in the order of the run, on the model's device.

    `layer.attention` is an AttentionLayer: query (text, head, query, dim), key and value (text, kv_head, key,
    dim), who sees whom, and how scores are made of them; for a model that computes its attention itself it
    holds the weights alone. `layer.weights()` is (text, head, query, key). There is one text. `layer.layer`
    counts from 0 in each stack, `layer.stack_name` is self, encoder, decoder or cross.

    All layers are kept at once, or those with the `numbers`, or the one. UserError for numbers that the model
    lacks.
    """
    chosen = whole_numbers(numbers)
    captured: list[CapturedLayer] = []

    def keep(layer: CapturedLayer) -> None:
        if chosen and layer.layer not in chosen:
            return
        if not captured:
            num_kept = (len(chosen) or pretrained.num_layers) * (3 if pretrained.has_decoder else 1)
            refuse_bytes("layers", num_kept * _num_bytes(layer), "fewer tokens, or some of the layers")
        captured.append(layer.copied())
        if len(captured) == len(chosen) and not pretrained.has_decoder:
            raise StopCapture

    with in_use(model) as whole:
        reading = _read(whole, text)
        pretrained = reader_of(whole, reading)
        capture(pretrained.model, pretrained.inputs([reading]), keep)
    missing = sorted({*chosen} - {layer.layer for layer in captured})
    if missing:
        raise UserError(f"numbers: {pretrained.name} has no such layer (got {missing[0]})")
    return captured


def _num_bytes(layer: CapturedLayer) -> int:
    attention = layer.attention
    if isinstance(attention, AttentionLayer):
        return attention.query.nbytes + attention.key.nbytes + attention.value.nbytes
    return attention.weights.nbytes


@checked
def survey(
    model: Model,
    text: TextOrReading,
    *,
    skip_sink: Count = 0,
    weighted: bool = False,
    rollout: bool = False,
    queries: TokenNames = (),
    keys: TokenNames = (),
    ablate: HeadsArgument = (),
) -> HeadSurvey:
    """What each head does on a text.

    The first `skip_sink` keys are left out, the other weights renormalised; `weighted` multiplies each weight
    by ||v W_O||. With `keys`, named by text or position, from_to_weight is the weight on them from the
    `queries`. `ablate` names heads, as 5:11, that give nothing meanwhile. UserError for what cannot be
    measured on this text, or of this model; MemoryError.
    """
    from attncli.measure.heads import HeadOptions, check_reading, surveyed

    _check_weighted(weighted, head_names(ablate))
    with in_use(model) as whole:
        reading = _read(whole, text)
        pretrained = reader_of(whole, reading)
        options = HeadOptions(
            skip_sink=skip_sink,
            words=reading.text.words is not None,
            weighted=weighted,
            rollout=rollout,
            rest=not (skip_sink or weighted or reading.seen),
            looks=reading.seen is not None,
            queries=tuple(token_names(queries)),
            keys=tuple(token_names(keys)),
            linear=not (skip_sink or weighted or rollout or reading.seen or reading.text.words),
        )
        check_reading(reading, pretrained, options, ("queries", "keys"))
        run = surveyed(pretrained, [reading], options, ablate=head_names(ablate))
        found = run.survey_of(0)
    looks = run.looks[0] if run.looks else None
    look_rollout = None if looks is None else looks.rolled()
    return replace(
        found,
        tokens_of_text=len(reading.text.ids),
        rollout=run.rollout[0].numpy(force=True) if rollout else None,
        looks=None if looks is None else looks.by_layer(),
        look_rollout=None if look_rollout is None else look_rollout.numpy(force=True),
        notes=(*run.way.notes(), *reading.left_out_notes()),
    )


def _check_weighted(weighted: bool, ablated: Sequence[str], *, words: bool = False) -> None:
    """UserError where weights times what values add are asked of what has no such values."""
    for key, is_given in {"ablate": bool(ablated), "words": words}.items():
        if weighted and is_given:
            raise UserError(f"{key}: cannot be combined with `weighted`")


@contextmanager
def _many(
    model: Model, texts: TextsOrFile, options: "HeadOptions", *, truncate: bool
) -> Iterator[tuple[Pretrained, ManyTexts[TextLine]]]:
    """The model in use, and the texts as it reads them."""
    from attncli.measure.heads import check_reading

    def read(line: TextLine) -> Reading:
        words = words_of_characters if options.words else None
        reading = read_text(pretrained, line.text, key="texts", truncate=truncate, words=words)
        check_reading(reading, pretrained, options)
        return reading

    file: TextFile | ListedTexts
    with ExitStack() as opened:
        if isinstance(texts, ManyTexts):
            yield opened.enter_context(in_use(model)), texts
            return
        if isinstance(texts, str | PathLike):
            file = opened.enter_context(TextFile(fspath(texts)))
        else:
            file = ListedTexts([text_or_ids(text) for text in texts])
        pretrained = opened.enter_context(in_use(model))
        yield pretrained, ManyTexts(file, read)


@checked
def survey_texts(
    model: Model,
    texts: TextsOrFile,
    *,
    truncate: bool = False,
    words: bool = False,
    skip_sink: Count = 0,
    weighted: bool = False,
    ablate: HeadsArgument = (),
) -> HeadSurvey:
    """What each head does over many texts: means with 95 % intervals.

    Each text is read once, and those of equal counts run together. A text that the model cannot read is left
    out, with a note; `truncate` cuts one that is too long, `words` merges tokens into words; the others are
    as in `survey`. UserError where no text can be read; MemoryError.
    """
    from attncli.measure.heads import HeadOptions, head_totals

    _check_weighted(weighted, head_names(ablate), words=words)
    options = HeadOptions(
        skip_sink=skip_sink,
        words=words,
        weighted=weighted,
        rest=not (skip_sink or weighted),
        linear=not (skip_sink or words or weighted),
    )
    with _many(model, texts, options, truncate=truncate) as (pretrained, many):
        totals, notes = head_totals(pretrained, many, options, ablate=head_names(ablate))
    result, _ = totals.survey()
    return replace(result, notes=(*many.notes(), *notes))


@checked
def examples(
    model: Model,
    texts: TextsOrFile,
    head: HeadWithoutStack,
    statistic: StatisticName,
    *,
    count: Size = 3,
    truncate: bool = False,
    words: bool = False,
    skip_sink: Count = 0,
) -> HeadExamples:
    """Texts, and in each the query, where a statistic of a head, as 5:11, is strongest, weakest and typical.

    The statistic is one of a row, as entropy, or a pattern, as induction. UserError for one that is neither,
    for a head that the model does not have, and for a model of two stacks.
    """
    from attncli.measure.examples import head_examples
    from attncli.measure.heads import HeadOptions

    _, layer, number = named_head(head_name_without_stack(head))
    options = HeadOptions(skip_sink=skip_sink, words=words)
    with _many(model, texts, options, truncate=truncate) as (pretrained, many):
        result = head_examples(
            pretrained, many, layer=layer, head=number, statistic=statistic, count=count, options=options
        )
    return replace(result, notes=(*many.notes(), *result.notes))


@checked
def ablate(
    model: Model,
    text: OneOrMoreTexts,
    *,
    heads: HeadsArgument = (),
    method: RemovalMethod = "zero",
    jointly: bool = False,
    approximate: bool = False,
    answer: AnswerArgument | None = None,
    against: AnswerArgument | None = None,
    other: OneOrMoreTexts | None = None,
    token: Position | Literal["each"] | None = None,
    into: HeadArgument | None = None,
    seed: Seed = 0,
    progress: Callable[[float], None] | None = None,
) -> HeadEffects:
    """What the model loses on a text, or on several, without each of some heads, as 5:11, or of all.

    linear:5:11 is one without a softmax, where layers have both kinds.
    What is predicted: every token from those before it; for an encoder tokens masked at random, from the
    `seed`; or the `answer` alone, a text or the id of a token, and by how much its logit is above `against`.
    `method`: zero, mean, sink or swap, what replaces a head's output (see `Removal`). `jointly` also takes
    out all of them at once; `approximate` orders every head by one backward pass.
    With swap a head gives what it gave on the `other` prompt, one for each text: at all tokens, at the
    position `token`, or at each by itself; `into` one later head alone, or into all. `back` is the other
    direction. UserError for heads that are not there, and for what the model cannot do; MemoryError.
    """
    from attncli.measure.ablate import ablated

    generator = torch.Generator().manual_seed(seed)
    texts, others = several_texts(text), None if other is None else several_texts(other)
    names, later = head_names(heads), None if into is None else head_name(into)
    are_pairs = all(isinstance(prompt, Predicted) and prompt.other is not None for prompt in texts)
    num_others = len(texts) if are_pairs else None if others is None else len(others)
    check_swap(method, len(texts), num_others, token, later)

    with in_use(model) as pretrained:
        readings = [
            predicted_of(
                _read(pretrained, prompt),
                None if others is None else _read(pretrained, others[place], "other"),
                pretrained,
                generator,
                answer=answer,
                against=against,
                token=None if token == "each" else token,
            )
            for place, prompt in enumerate(texts)
        ]
        return ablated(
            reader_of(pretrained, readings[0]),
            readings,
            heads=names,
            method=method,
            jointly=jointly,
            approximate=approximate,
            each_token=token == "each",
            into=later,
            progress=progress,
        )


@checked
def text_differences(model: Model, a: TextOrReading, b: TextOrReading) -> TextDifferences:
    """What a model does otherwise on text B than on text A: which heads look elsewhere, what comes next.

    UserError for what the model cannot do; MemoryError.
    """
    from attncli.measure.two_texts import text_differences as differences_of_texts

    with in_use(model) as pretrained:
        return differences_of_texts(pretrained, _read(pretrained, a, "a"), _read(pretrained, b, "b"))


@checked
def why(
    model: Model,
    text: OneOrMoreTexts,
    *,
    answer: AnswerArgument | None = None,
    against: AnswerArgument | None = None,
    head: HeadArgument | None = None,
    names: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> LogitAttribution:
    """What each head adds to the logit of the next token, the likeliest or the `answer`: a text, or
    the id of a token.

    With `against`, to how far it is above that token's. On a text, whose `head`, as 5:11, is split by tokens:
    by default the one that adds most; or means over several texts, with 95 % intervals, and the logit of
    each, by `names` or numbers; one text that has its name is one of several. Heads without a softmax are
    among them. UserError for a model whose logits are not such a sum; MemoryError.
    """
    from attncli.measure.why import attribution, mean_attribution

    name = None if head is None else head_name(head)
    texts = several_texts(text)
    if len(texts) > 1 and name is not None:
        raise UserError(f"head: is split by the tokens of one text (got {len(texts)} texts)")
    if names and len(names) != len(texts):
        raise UserError(f"names: must be one of each text (got {len(names)} of {len(texts)} texts)")
    with in_use(model) as pretrained:
        readings = [_read(pretrained, each) for each in texts]
        if len(readings) > 1 or names:
            return mean_attribution(
                pretrained, readings, names, answer=answer, against=against, progress=progress
            )
        return attribution(pretrained, readings[0], answer=answer, against=against, head=name)


@checked
def next_tokens(
    model: Model, text: TextOrReading, *, heads: HeadsArgument = (), top: Size = 10
) -> NextTokens:
    """The likeliest next tokens after a text; with `heads`, as 5:11, also what each is without all of them.

    The tokens that are likeliest in either case. UserError for a model that predicts no next token, and for
    heads that it does not have; MemoryError.
    """
    from attncli.measure.next_tokens import expected_next

    names = head_names(heads)
    with in_use(model) as pretrained:
        return expected_next(pretrained, _read(pretrained, text), heads=names, top=top)


@checked
def score_parts(
    model: Model,
    text: TextOrReading,
    head: HeadWithoutStack,
    *,
    query: Position = -1,
    key: Position | None = None,
    over: Count = 2,
) -> ScoreParts:
    """Why `head`, as 18:6, looks from one token to another: its score as a sum over what each part wrote.

    `query` and `key` are positions: by default the last token, and the key with most weight beyond the first.
    `over` of the heads that count most say what they looked at when they wrote. UserError for a model whose
    scores are not such sums, and a head or key that is not there; MemoryError.
    """
    from attncli.measure.scores import score_parts as parts_of_score

    _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        reading = _read(pretrained, text)
        return parts_of_score(pretrained, reading, layer=layer, head=number, query=query, key=key, over=over)


@checked
def head_edges(
    model: Model,
    text: OneOrMoreTexts,
    *,
    heads: HeadsWithoutStack = (),
    pattern: NamedPattern | None = None,
    progress: Callable[[float], None] | None = None,
) -> HeadEdges:
    """How much of what each head does, and of the logits, comes from each earlier part of the model.

    On a text, or means over several with 95 % intervals; of some heads, as 18:6, of those with a `pattern`
    on most of the texts, or of all. UserError for a model whose scores are not sums, heads that are not
    there, and a pattern that no head has; MemoryError.
    """
    from attncli.measure.circuit import head_edges as edges_of_heads

    texts = [text] if isinstance(text, str | Reading) else text
    names = head_names_without_stack(heads)
    if names and pattern is not None:
        raise UserError("pattern: cannot be combined with `heads`")
    with in_use(model) as pretrained:
        readings = [_read(pretrained, each) for each in texts]
        return edges_of_heads(pretrained, readings, heads=names, pattern=pattern, progress=progress)


@checked
def compositions(
    model: Model,
    *,
    head: HeadWithoutStack | None = None,
    progress: Callable[[float], None] | None = None,
) -> Compositions:
    """How much of what earlier heads can write each head can read, and how much each copies, without a text.

    Of all pairs of heads, or those with the one `head`, as 18:6. UserError for a model whose heads do not add
    to a stream that later heads read; MemoryError.
    """
    from attncli.measure.circuit import compositions as compositions_of_heads

    name = None if head is None else head_name_without_stack(head)
    with in_use(model) as pretrained:
        return compositions_of_heads(pretrained, head=name, progress=progress)


@checked
def generate(
    model: Model,
    text: TextOrPrompt,
    *,
    max_new_tokens: Size | None = None,
    temperature: Temperature | None = None,
    top_p: TopShare | None = None,
    seed: Seed = 0,
    top_k: Size = 3,
    layer: Count | None = None,
    head: HeadWithoutStack | None = None,
    maps: WholeRows = "none",
    prefill_chunk: Size | None = None,
    on_text: Callable[[str], None] | None = None,
) -> WrittenText:
    """The model continues a text; where each head looked for each new token, at the `top_k` keys first.

    `text` may be token ids, or what `read_sound` made of a sound, of which the model writes what is said.
    Without `max_new_tokens` it writes 20, of a sound as many as its generation_config.json lets it.

    The likeliest token each time, or one sampled at a temperature among the likeliest with `top_p` of the
    probability. Of every head, of those of one `layer`, or of one `head`, as 17:3; `maps` keeps whole rows,
    their mean or those of all heads. `on_text` gets what is written as it comes; Ctrl-C then ends it.
    UserError for a model that cannot write; MemoryError.
    """
    from attncli.measure.writing import written

    number = None
    if head is not None:
        _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        if isinstance(text, str | Mapping):
            num_new = max_new_tokens or WRITTEN
            prompt = read_prompt(pretrained, text_or_ids(text), max_new_tokens=num_new, truncate=None)
        else:
            prompt = text if isinstance(text, Prompt) else prompt_of_sound(text, pretrained)
        most = max_new_tokens or (WRITTEN if prompt.heard is None else None)
        decoding = Decoding(most, temperature, top_p, seed, prefill_chunk)
        return written(
            pretrained,
            prompt,
            decoding,
            layer=layer,
            head=number,
            top_k=top_k,
            whole_rows=maps,
            on_text=on_text,
        )


@checked
def answer_sources(
    model: Model,
    question: str | None,
    sources: Sources,
    *,
    split: Split | None = None,
    chat: bool = False,
    answer: NonBlankText | None = None,
    max_new_tokens: Size = 24,
    heads: HeadsArgument = (),
    method: SourceMethod = "weights",
    num_runs: Size = 64,
    seed: Seed = 0,
    on_text: Callable[[str], None] | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> AnswerSources:
    """Which sources an answer came from: one that is given, or what the model writes.

    `sources` are documents above the question (with `split` their parts), a text whose parts are the sources
    (sentences, or `split`; not what asks at its end, where no question is given), or a prompt of your own
    with its sources. `heads`, as `retrieving_heads` chose them, are told apart from all heads; `method` is
    weights, removal or sampled. `on_text` gets what is written as it comes, and a blank line
    after it. UserError for what the model cannot do; MemoryError.
    """
    with in_use(model) as pretrained:
        num_new = max_new_tokens if answer is None else 0
        reading = _sources_read(pretrained, question, sources, split, chat=chat, num_new=num_new)
        answered = SourcedAnswer.of(
            pretrained,
            reading,
            answer,
            heads=head_names(heads),
            max_new_tokens=max_new_tokens,
            method=method,
            num_runs=num_runs,
            seed=seed,
            on_text=on_text,
            progress=progress,
        )
        return answered.sources(head_names(heads))


@dataclass(frozen=True)
class SourcedAnswer:
    """An answer, given or written, whose sources are not measured yet: `sources` does."""

    pretrained: Pretrained
    reading: SourcedReading
    answer: "Answer"
    method: SourceMethod
    num_runs: int
    seed: int
    work: "AnswerWork | None"

    @classmethod
    def of(
        cls,
        pretrained: Pretrained,
        reading: SourcedReading,
        answer: str | None,
        *,
        heads: Sequence[str],
        max_new_tokens: int,
        method: SourceMethod,
        num_runs: int,
        seed: int,
        on_text: Callable[[str], None] | None,
        progress: Callable[[Stage], None] | None,
    ) -> "SourcedAnswer":
        """The answer that is given, else what the model writes.

        UserError for neither, and for `heads` that the model does not have; MemoryError.
        """
        from attncli.measure.sources import AnswerWork, answer_to, check_heads

        check_heads(pretrained, reading, heads)
        work = None
        if progress is not None:
            num_new = max_new_tokens if answer is None else 0
            work = AnswerWork(progress, reading, num_new, method, num_runs)
        decoding = Decoding(max_new_tokens, seed=seed)
        found = answer_to(pretrained, reading, answer, decoding, on_text=on_text, work=work)
        if on_text is not None and answer is None:
            on_text("\n\n")
        return cls(pretrained, reading, found, method, num_runs, seed, work)

    def sources(self, heads: Sequence[str]) -> AnswerSources:
        """Where the answer came from, with the weight of these heads told apart."""
        from attncli.measure.sources import answer_sources as sources_of_answer

        return sources_of_answer(
            self.pretrained,
            self.reading,
            self.answer,
            heads=heads,
            method=self.method,
            num_runs=self.num_runs,
            seed=self.seed,
            work=self.work,
        )


def _sources_read(
    pretrained: Pretrained,
    question: str | None,
    sources: Sources,
    split: Split | None,
    *,
    chat: bool,
    num_new: int,
) -> SourcedReading:
    """The sources in their prompt, with room for the tokens to be written; UserError for a wrong prompt."""
    if isinstance(sources, SourcedReading):
        return sources
    sourced = sourced_text(question, sources, split)
    if chat:
        sourced = sourced.in_template(pretrained)
    num_kept = 0 if pretrained.has_decoder else max(0, num_new - 1)
    return read_sourced(pretrained, sourced, num_new=num_kept, key="sources")


@checked
def retrieving_heads(
    model: Model, *, seed: Seed = 0, progress: Callable[[float], None] | None = None
) -> RetrievingHeads:
    """The heads that look at the right sentence of 24 synthetic contexts, from the seed.

    UserError for a model that cannot read these, and where no head does; MemoryError.
    """
    from attncli.measure.retrieving_heads import retrieving_heads as heads_that_retrieve

    with in_use(model) as pretrained:
        return heads_that_retrieve(pretrained, seed=seed, progress=progress)


def search_takes_less(model: Pretrained, sources: SourcedReading, answer: str | None) -> bool:
    """Whether `retrieving_heads` reads fewer tokens than a prompt has, with an answer that is given."""
    from attncli.measure.retrieving_heads import search_takes_less as takes_less

    return takes_less(model, sources, answer)
