"""What is asked of a model, from texts to rows: the doors of `measure` (docs/python.md).

`model` is what `open_model` gives, or the name of a folder, which the first of several calls loads.
`text` is a text or what `read_text`, `read_picture` and `read_probe` made; `texts` are many, or the name of a
file of them. Heads are "0:1,1:3", ["0:1", "1:3"] or [(0, 1), (1, 3)], one is "0:1" or (0, 1). Every result
has lists of plain dicts: `pandas.DataFrame(found.heads)` is a data frame.

Each call is held to its annotations before a model is loaded (`attncli.arguments`): UserError with a line for
each argument that does not fit.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from typing import Annotated, Any, Literal

import torch

from attncli.arguments import (
    Budgets,
    Count,
    FilePath,
    HeadArgument,
    HeadsArgument,
    HeadsWithoutStack,
    HeadWithoutStack,
    KeyValueBits,
    Layers,
    NonBlankText,
    Position,
    Seed,
    Share,
    Size,
    Temperature,
    TokenNames,
    TopShare,
    by,
    check_text,
    checked,
    file_name,
    head_name,
    head_name_without_stack,
    head_names,
    head_names_without_stack,
    listed,
    named,
    one_of,
    shares,
    shown,
    token_names,
    whole_numbers,
)
from attncli.core.layer import AttentionLayer
from attncli.core.names import CACHE_POLICIES, PATTERNS, ROW_STATISTICS, named_head
from attncli.errors import UserError, refuse_bytes
from attncli.measure.ablate import ablated
from attncli.measure.cache import Judged, judged_reading, limited_heads, read_judged
from attncli.measure.circuit import compositions as compositions_of_heads
from attncli.measure.circuit import head_edges as edges_of_heads
from attncli.measure.examples import head_examples
from attncli.measure.heads import HeadOptions, check_reading, head_totals, surveyed
from attncli.measure.predicted import predicted_pair, predicted_reading
from attncli.measure.prompt_cache import policy_costs, windows
from attncli.measure.prompts import read_prompt
from attncli.measure.relations import SentenceFile, sentences_of
from attncli.measure.relations import relations as relations_of
from attncli.measure.removal import RemovalMethod
from attncli.measure.scores import score_parts as parts_of_score
from attncli.measure.sources import SourceMethod, answer_to
from attncli.measure.sources import answer_sources as sources_of_answer
from attncli.measure.sources import retrieving_heads as heads_that_retrieve
from attncli.measure.two_texts import text_differences as differences_of_texts
from attncli.measure.why import attribution
from attncli.measure.writing import written
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.loading import in_use
from attncli.models.pretrained import (
    Pretrained,
    Reading,
    check_made_for,
    read_text,
    reader_of,
    words_of_characters,
)
from attncli.models.source_texts import SourcedText, Split, read_sourced, split_text, with_documents
from attncli.models.text_files import ListedTexts, ManyTexts, TextFile, TextLine
from attncli.models.writing import Decoding
from attncli.records.caches import LimitedHeads, PolicyCosts
from attncli.records.changes import TextDifferences
from attncli.records.circuit import Compositions, HeadEdges
from attncli.records.effects import HeadEffects
from attncli.records.examples import HeadExamples
from attncli.records.logits import LogitAttribution, ScoreParts
from attncli.records.relations import HeadRelations
from attncli.records.sources import AnswerSources, RetrievingHeads
from attncli.records.surveys import HeadSurvey
from attncli.records.writings import WrittenText


def _model(value: Any) -> Any:
    if isinstance(value, Pretrained):
        return value
    if hasattr(value, "config"):
        kind = type(value).__name__
        raise ValueError(f"must be what open_model gives, as open_model(model, tokenizer) (got a {kind})")
    try:
        return file_name(value)
    except ValueError:
        instead = "must be what open_model gives, or the name of a model's folder"
        raise ValueError(f"{instead} (got {shown(value)})") from None


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return check_text(value)
    if not isinstance(value, Reading):
        raise ValueError(f"must be text, or what read_text gives (got {shown(value)})")
    return value


def _one_or_more_texts(value: Any) -> Any:
    texts = [value] if isinstance(value, str | Reading) else listed(value)
    if not texts:
        raise ValueError("must hold at least one text (got none)")
    return [_text(text) for text in texts]


def _texts(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    texts = listed(value)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"must hold texts (got {shown(text)})")
    return texts


def _sources(value: Any) -> Any:
    if isinstance(value, str):
        return check_text(value)
    texts = value.sources if isinstance(value, SourcedText) else listed(value)
    if not texts:
        raise ValueError("must hold at least one source (got none)")
    if isinstance(value, SourcedText):
        return value
    for source in texts:
        if not isinstance(source, str):
            raise ValueError(f"must be texts (got {shown(source)})")
        check_text(source)
    return texts


TextOrReading = Annotated[str | Reading, by(_text)]
OneOrMoreTexts = Annotated[str | Reading | Sequence[str | Reading], by(_one_or_more_texts)]
TextsOrFile = Annotated[str | PathLike[str] | Iterable[str], by(_texts)]
Model = Annotated[Pretrained | str | PathLike[str], by(_model)]
Sources = Annotated[str | Sequence[str] | SourcedText, by(_sources)]
Policies = Annotated[str | Iterable[str], by(named(tuple(CACHE_POLICIES)))]
StatisticName = Annotated[str, by(one_of((*ROW_STATISTICS, *PATTERNS)))]


def _read(model: Pretrained, text: str | Reading, key: str = "text") -> Reading:
    if isinstance(text, str):
        return read_text(model, text, key=key)
    return check_made_for(model, text, key)


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
        )
        check_reading(reading, pretrained, options, ("queries", "keys"))
        run = surveyed(pretrained, [reading], options, ablate=head_names(ablate))
        (of_text,) = run.texts
    looks = run.looks[0] if run.looks else None
    look_rollout = None if looks is None else looks.rolled()
    return replace(
        of_text.survey(),
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
    model: Model, texts: TextsOrFile, options: HeadOptions, *, truncate: bool
) -> Iterator[tuple[Pretrained, ManyTexts[TextLine]]]:
    """The model in use, and the texts as it reads them."""

    def read(line: TextLine) -> Reading:
        words = words_of_characters if options.words else None
        reading = read_text(pretrained, line.text, key="texts", truncate=truncate, words=words)
        check_reading(reading, pretrained, options)
        return reading

    file: TextFile | ListedTexts
    with ExitStack() as opened:
        if isinstance(texts, str | PathLike):
            file = opened.enter_context(TextFile(fspath(texts)))
        else:
            file = ListedTexts([*texts])
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
    _check_weighted(weighted, head_names(ablate), words=words)
    options = HeadOptions(
        skip_sink=skip_sink, words=words, weighted=weighted, rest=not (skip_sink or weighted)
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
    _, layer, number = named_head(head_name_without_stack(head))
    options = HeadOptions(skip_sink=skip_sink, words=words)
    with _many(model, texts, options, truncate=truncate) as (pretrained, many):
        result = head_examples(
            pretrained, many, layer=layer, head=number, statistic=statistic, count=count, options=options
        )
    return replace(result, notes=(*many.notes(), *result.notes))


@checked
def relations(
    model: Model,
    sentences: FilePath,
    *,
    truncate: bool = False,
    ablate: HeadsArgument = (),
) -> HeadRelations:
    """How often each head looks along each syntactic relation of a CoNLL-U file, with 95 % intervals.

    UserError for a file that is no such file, and for a model of two stacks; see `HeadRelations`.
    """
    with SentenceFile(fspath(sentences)) as file, in_use(model) as pretrained:
        many = sentences_of(file, pretrained, truncate=truncate)
        result = relations_of(pretrained, many, ablate=head_names(ablate))
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
    answer: str | None = None,
    against: str | None = None,
    other: OneOrMoreTexts | None = None,
    token: Position | Literal["each"] | None = None,
    into: HeadArgument | None = None,
    seed: Seed = 0,
) -> HeadEffects:
    """What the model loses on a text, or on several, without each of some heads, as 5:11, or of all.

    What is predicted: every token from those before it; for an encoder tokens masked at random, from the
    `seed`; or the `answer` alone, and with `against` by how much its logit is above that of another token.
    `method`: zero, mean, sink or swap, what replaces a head's output (see `Removal`). `jointly` also takes
    out all of them at once; `approximate` orders every head by one backward pass.
    With swap a head gives what it gave on the `other` prompt, one for each text: at all tokens, at the
    position `token`, or at each by itself; `into` one later head alone, or into all. `back` is the other
    direction. UserError for heads that are not there, and for what the model cannot do; MemoryError.
    """
    generator = torch.Generator().manual_seed(seed)
    texts = [text] if isinstance(text, str | Reading) else text
    others = [other] if isinstance(other, str | Reading) else other
    names, later = head_names(heads), None if into is None else head_name(into)
    _check_swap(method, len(texts), None if others is None else len(others), token, later)

    with in_use(model) as pretrained:
        readings = []
        for place, prompt in enumerate(texts):
            reading = _read(pretrained, prompt)
            if others is None:
                predicted = predicted_reading(reading, pretrained, generator, answer=answer, against=against)
            else:
                predicted = predicted_pair(
                    reading,
                    _read(pretrained, others[place], "other"),
                    pretrained,
                    generator,
                    answer=answer,
                    against=against,
                    token=None if token == "each" else token,
                )
            readings.append(predicted)
        return ablated(
            pretrained,
            readings,
            heads=names,
            method=method,
            jointly=jointly,
            approximate=approximate,
            each_token=token == "each",
            into=later,
        )


def _check_swap(
    method: str, num_texts: int, num_others: int | None, token: int | str | None, into: str | None
) -> None:
    """UserError where what swaps heads between two prompts is not given whole, or to another method."""
    if method != "swap":
        for key, value in {"other": num_others, "token": token, "into": into}.items():
            if value is not None:
                raise UserError(f"{key}: needs method swap (got {method})")
    elif num_others is None:
        raise UserError("other: must be given with method swap: another prompt")
    elif num_others != num_texts:
        raise UserError(f"other: must hold one prompt for each text, {num_texts} (got {num_others})")


@checked
def cache(
    model: Model,
    text: TextOrReading,
    *,
    sink: Count | None = None,
    window: Size | None = None,
    needle: NonBlankText | None = None,
    budget: Share | None = None,
) -> LimitedHeads:
    """What the model loses on a text where a key/value head keeps the first `sink` and last `window` keys.

    Each head alone, then shares of them together, the least needed first. A `needle` is a part of the text
    that its end asks for: heads are ordered by what is lost on it. A `budget`, a share of the cache, names
    the heads that keep everything. UserError for a model that keeps no cache, and a budget that is too small;
    MemoryError.
    """
    with in_use(model) as pretrained:
        reading = _judged(pretrained, text, needle)
        return limited_heads(pretrained, reading, sink=sink, window=window, budget=budget)


@checked
def cache_policies(
    model: Model,
    text: TextOrReading,
    *,
    policies: Policies = tuple(CACHE_POLICIES),
    budgets: Budgets = (0.1, 0.3, 0.5),
    bits: KeyValueBits | None = None,
    needle: NonBlankText | None = None,
    every: Size | None = None,
) -> PolicyCosts:
    """What the model loses on the end of a text where a policy keeps a share of the keys before it.

    The prompt is read once; the last tenth of the text, at most 200 tokens, is judged, or with `every` so
    many tokens again and again. `bits` rounds keys and values. UserError for a policy that there is not, a
    text too short, and a model that cannot read on from kept keys; MemoryError.
    """
    names = listed(policies)
    if not names and bits is None:
        raise UserError("policies: must name at least one, where `bits` is not given (got none)")
    with in_use(model) as pretrained:
        reading = _judged(pretrained, text, needle, every)
        readings = windows(pretrained, reading, every)
        return policy_costs(
            pretrained, readings, policies=names, budgets=shares(budgets), bits=bits, every=every
        )


def _judged(model: Pretrained, text: str | Reading, needle: str | None, every: int | None = None) -> Judged:
    if isinstance(text, str):
        return read_judged(model, text, needle=needle, every=every)
    if needle is not None:
        raise UserError("needle: needs the text itself, which says where it stands")
    return judged_reading(check_made_for(model, text, "text"), model)


@checked
def text_differences(model: Model, a: TextOrReading, b: TextOrReading) -> TextDifferences:
    """What a model does otherwise on text B than on text A: which heads look elsewhere, what comes next.

    UserError for what the model cannot do; MemoryError.
    """
    with in_use(model) as pretrained:
        return differences_of_texts(pretrained, _read(pretrained, a, "a"), _read(pretrained, b, "b"))


@checked
def why(
    model: Model,
    text: TextOrReading,
    *,
    answer: str | None = None,
    against: str | None = None,
    head: HeadArgument | None = None,
) -> LogitAttribution:
    """What each head adds to the logit of the next token, the likeliest or the `answer`.

    With `against`, to how far it is above that token's. `head`, as 5:11, is split by tokens: by default the
    one that adds most. UserError for a model whose logits are not such a sum; MemoryError.
    """
    name = None if head is None else head_name(head)
    with in_use(model) as pretrained:
        return attribution(pretrained, _read(pretrained, text), answer=answer, against=against, head=name)


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
    _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        reading = _read(pretrained, text)
        return parts_of_score(pretrained, reading, layer=layer, head=number, query=query, key=key, over=over)


@checked
def head_edges(model: Model, text: OneOrMoreTexts, *, heads: HeadsWithoutStack = ()) -> HeadEdges:
    """How much of what each head does, and of the logits, comes from each earlier part of the model.

    On a text, or means over several with 95 % intervals; of some heads, as 18:6, or of all. UserError for a
    model whose scores are not sums, and heads that are not there; MemoryError.
    """
    texts = [text] if isinstance(text, str | Reading) else text
    names = head_names_without_stack(heads)
    with in_use(model) as pretrained:
        readings = [_read(pretrained, each) for each in texts]
        return edges_of_heads(pretrained, readings, heads=names)


@checked
def compositions(model: Model, *, head: HeadWithoutStack | None = None) -> Compositions:
    """How much of what earlier heads can write each head can read, and how much each copies, without a text.

    Of all pairs of heads, or of those with one `head`, as 18:6. UserError for a model whose heads do not add
    to a stream that later heads read; MemoryError.
    """
    name = None if head is None else head_name_without_stack(head)
    with in_use(model) as pretrained:
        return compositions_of_heads(pretrained, head=name)


@checked
def generate(
    model: Model,
    text: NonBlankText,
    *,
    max_new_tokens: Size = 20,
    temperature: Temperature | None = None,
    top_p: TopShare | None = None,
    seed: Seed = 0,
    top_k: Size = 3,
) -> WrittenText:
    """The model continues a text; where each head looked for each new token, at the `top_k` keys first.

    The likeliest token each time, or one sampled at a temperature among the likeliest with `top_p` of the
    probability. UserError for a model that cannot write; MemoryError.
    """
    decoding = Decoding(max_new_tokens, temperature, top_p, seed)
    with in_use(model) as pretrained:
        prompt = read_prompt(pretrained, text, max_new_tokens=max_new_tokens)
        return written(pretrained, prompt, decoding, top_k=top_k)


@checked
def answer_sources(
    model: Model,
    question: str | None,
    sources: Sources,
    *,
    split: Split = "sentence",
    chat: bool = False,
    answer: NonBlankText | None = None,
    max_new_tokens: Size = 24,
    heads: HeadsArgument = (),
    method: SourceMethod = "weights",
    num_runs: Size = 64,
    seed: Seed = 0,
) -> AnswerSources:
    """Which sources an answer came from: one that is given, or what the model writes.

    `sources` are documents above the question, a text whose parts (`split`) are the sources, or a prompt of
    your own with its sources. `heads`, as `retrieving_heads` chose them, are told apart from all heads;
    `method` is weights, removal or sampled. UserError for what the model cannot do; MemoryError.
    """
    if isinstance(sources, str):
        sourced = split_text(sources, split, question=question, key="sources")
    elif isinstance(sources, SourcedText):
        sourced = sources
    else:
        documents = [(str(number), text) for number, text in enumerate(sources, start=1)]
        sourced = with_documents(documents, question or "")
    with in_use(model) as pretrained:
        if chat:
            sourced = sourced.in_template(pretrained)
        num_new = max_new_tokens - 1 if answer is None and not pretrained.has_decoder else 0
        reading = read_sourced(pretrained, sourced, num_new=num_new, key="sources")
        ids = answer_to(pretrained, reading, answer, Decoding(max_new_tokens))
        return sources_of_answer(
            pretrained, reading, ids, heads=head_names(heads), method=method, num_runs=num_runs, seed=seed
        )


@checked
def retrieving_heads(model: Model, *, seed: Seed = 0) -> RetrievingHeads:
    """The heads that look at the right sentence of 24 synthetic contexts, from the seed.

    UserError for a model that cannot read these, and where no head does; MemoryError.
    """
    with in_use(model) as pretrained:
        return heads_that_retrieve(pretrained, seed=seed)
