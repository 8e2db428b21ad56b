"""Library functions that take a model and texts (docs/python.md).

Commands and users call the same functions, which import their measurements when they are called. `model` is a
model from `open_model` or the name of a folder. A named model is loaded on the first call and reused by later
calls. `text` is a string or a reading from `read_text` or `read_probe`; `texts` are several of them, or the
name of a file of texts. Heads are "0:1,1:3", ["0:1", "1:3"] or [(0, 1), (1, 3)]; a single head is "0:1" or
(0, 1). `progress` is called with the finished fraction, or with the current stage of long work. Results have
tables of typed rows: `pandas.DataFrame(result.heads)` is a data frame.

Each call is checked against its annotations before a model is loaded (`attncli.records.arguments`), and
raises UserError with one line per invalid argument.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING

from attncli.core.layer import AttentionLayer
from attncli.errors import UserError, refuse_bytes
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading, TextsOrFile
from attncli.models.pretrained import Pretrained, Reading, reader_of
from attncli.models.reading_text import read_text, reading_for
from attncli.models.text_files import ListedTexts, ManyTexts, TextFile, TextLine
from attncli.models.words import words_of_characters
from attncli.records.arguments import (
    HeadsArgument,
    Layers,
    Size,
    checked,
    head_names,
    whole_numbers,
)
from attncli.records.next_tokens import NextTokens
from attncli.records.token_ids import text_or_ids

if TYPE_CHECKING:
    from attncli.measure.heads import HeadOptions


@checked
def layers(model: Model, text: TextOrReading, *, numbers: Layers = ()) -> list[CapturedLayer]:
    """Return the attention of each layer on a text, in the order of the run, on the model's device.

    `layer.attention` is an AttentionLayer: query (text, head, query, dim), key and value (text, kv_head, key,
    dim), the visibility, and the rules for scores; for a model that computes its attention itself,
    `layer.attention` holds only the weights. `layer.weights()` has the axes (text, head, query, key), with
    one text. `layer.layer` counts from 0 in each stack; `layer.stack_name` is self, encoder, decoder or
    cross.

    All layers, or only those in `numbers`, are held in memory. Raises UserError for numbers that the model
    lacks.
    """
    chosen = whole_numbers(numbers)
    captured: list[CapturedLayer] = []

    def keep(layer: CapturedLayer) -> None:
        if chosen and layer.layer not in chosen:
            return
        if not captured:
            num_layers = (len(chosen) or pretrained.num_layers) * (3 if pretrained.has_decoder else 1)
            refuse_bytes("layers", num_layers * _num_bytes(layer), "fewer tokens or fewer layers")
        captured.append(layer.copied())
        if len(captured) == len(chosen) and not pretrained.has_decoder:
            raise StopCapture

    with in_use(model) as whole:
        reading = reading_for(whole, text)
        pretrained = reader_of(whole, reading)
        capture(pretrained.model, pretrained.inputs([reading]), keep)
    missing = sorted({*chosen} - {layer.layer for layer in captured})
    if missing:
        raise UserError(f"numbers: {pretrained.name} has no attention in layer {missing[0]}")
    return captured


def _num_bytes(layer: CapturedLayer) -> int:
    attention = layer.attention
    if isinstance(attention, AttentionLayer):
        return attention.query.nbytes + attention.key.nbytes + attention.value.nbytes
    return attention.weights.nbytes


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
    """Open the model, and yield the texts as the model reads them; `group` selects one group in a file."""
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
def next_tokens(
    model: Model, text: TextOrReading, *, heads: HeadsArgument = (), top: Size = 10
) -> NextTokens:
    """Find the likeliest next tokens after a text, with their probabilities with and without `heads` (5:11).

    Tokens are ranked by the larger of the two probabilities. Raises UserError for a model that predicts no
    next token and for heads that it does not have, and MemoryError if memory runs out.
    """
    from attncli.measure.next_tokens import expected_next

    names = head_names(heads)
    with in_use(model) as pretrained:
        return expected_next(pretrained, reading_for(pretrained, text), heads=names, top=top)
