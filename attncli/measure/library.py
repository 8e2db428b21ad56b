"""What is asked of a model, from texts to results: the doors of `measure` (docs/python.md).

Commands and users call the same functions, which import what they measure with when they are called.
`model` is what `open_model` gives, or the name of a folder, which the first of several calls loads.
`text` is a text or what `read_text`, `read_picture` and `read_probe` made; `texts` are many, or the name of a
file of them. Heads are "0:1,1:3", ["0:1", "1:3"] or [(0, 1), (1, 3)], one is "0:1" or (0, 1). `progress` is
called with the share that is done, or with the stage of long work. Every result has tables of typed rows:
`pandas.DataFrame(result.heads)` is a data frame.

Each call is checked against its annotations before a model is loaded (`attncli.records.arguments`): UserError
with a line for each argument that does not fit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING

from attncli.core.layer import AttentionLayer
from attncli.errors import UserError, refuse_bytes
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading, TextsOrFile
from attncli.models.pretrained import Pretrained, Reading, read_text, reader_of, reading_for
from attncli.models.text_files import ListedTexts, ManyTexts, TextFile, TextLine
from attncli.models.words import words_of_characters
from attncli.records.arguments import (
    Count,
    HeadsArgument,
    Layers,
    Size,
    TokenNames,
    checked,
    head_names,
    token_names,
    whole_numbers,
)
from attncli.records.surveys import HeadSurvey
from attncli.records.token_ids import text_or_ids
from attncli.records.writings import NextTokens

if TYPE_CHECKING:
    from attncli.measure.heads import HeadOptions


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
        reading = reading_for(whole, text)
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
        reading = reading_for(whole, text)
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
def many_texts(
    model: Model,
    texts: TextsOrFile,
    options: "HeadOptions",
    *,
    truncate: bool,
    group: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Iterator[tuple[Pretrained, ManyTexts[TextLine]]]:
    """The model in use, and the texts as it reads them; with `group` only those of that group of a file."""
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
            file = opened.enter_context(TextFile(fspath(texts), group))
        else:
            file = ListedTexts([text_or_ids(text) for text in texts])
        pretrained = opened.enter_context(in_use(model))
        yield pretrained, ManyTexts(file, read, progress)


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
    with many_texts(model, texts, options, truncate=truncate) as (pretrained, many):
        totals, notes = head_totals(pretrained, many, options, ablate=head_names(ablate))
    result, _ = totals.survey()
    return replace(result, notes=(*many.notes(), *notes))


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
        return expected_next(pretrained, reading_for(pretrained, text), heads=names, top=top)
