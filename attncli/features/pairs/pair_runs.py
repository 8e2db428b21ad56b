"""Read texts with known pairs, and run a model over them layer by layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from jaxtyping import Float
from torch import Tensor

from attncli.core.row_tiles import side_by_side
from attncli.errors import UserError
from attncli.features.pairs.held_out import StackedHead
from attncli.features.pairs.pair_counts import (
    BatchOfPairs,
    CellsOfText,
    LeftOut,
    PairOptions,
    text_cells,
    word_merging,
)
from attncli.features.pairs.pair_files import PairedText, words_between_blanks
from attncli.measure.heads import refuse_merged
from attncli.models.capture import Way, capture, in_step, together
from attncli.models.layers import CapturedLayer, DeferredLayers
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.reading_text import shifted_right, tokens_of_text
from attncli.models.removal import heads_removed
from attncli.models.text_files import ManyTexts
from attncli.records.token_ids import TokenIds
from attncli.system.plain_text import counted

NO_OFFSETS = (
    'does not report token positions in the text: use pairs with "unit": "token", and count every token '
    "that the model reads, including special tokens"
)


class PairReader:
    """Reads texts for a model, and locates their pairs."""

    def __init__(
        self, pretrained: Pretrained, options: PairOptions | None = None, *, truncate: bool = False
    ) -> None:
        self.pretrained, self.options, self.truncate = pretrained, options or PairOptions(), truncate
        self.left_out = LeftOut()
        self.unit = ""
        self._read: dict[int, tuple[CellsOfText, Reading]] = {}

    def read(self, paired: PairedText) -> Reading:
        """Read a text as tokens. Raises UserError for a text without a pair that counts."""
        self.unit = paired.unit
        reading = self.reading(paired)
        left_out = LeftOut()
        cells = text_cells(paired, reading, self.pretrained, self.options, left_out)
        if not cells.pair_weights.any():
            raise UserError(f"pairs: {_why_none_counts(paired, left_out)}")
        self.left_out.add_all(left_out)
        self._read[paired.line.line] = cells, reading
        # Texts with the same number of tokens run together, regardless of their numbers of words.
        context = None if reading.context is None else replace(reading.context, words=None)
        return Reading(replace(reading.text, words=None), context)

    def reading(self, paired: PairedText) -> Reading:
        """Read a text with its words; in a model with a decoder, the encoder reads the context."""
        model, line = self.pretrained, paired.line
        if paired.names:
            line = line._replace(text=token_ids(model, paired.names))
        if line.context is not None and self.options.symmetric:
            raise UserError(
                "symmetric: cannot be used for pairs between two texts, because they have a direction"
            )
        if line.context is not None and not model.has_decoder:
            raise UserError(f"context: {model.name} has no decoder and reads only one text: omit the context")
        if line.context is None and model.has_decoder:
            raise UserError(f"context: {model.name} needs a context, the text that its encoder reads")
        texts = []
        for text in (line.text, line.context) if line.context is not None else (line.text,):
            if paired.unit == "character" and model.has_decoder:
                raise UserError(
                    f"unit: must not be character for {model.name}, which has a decoder: use words"
                )
            is_spelled = paired.unit == "character" and not model.tokenizer.is_fast
            if paired.unit == "word" and not model.tokenizer.is_fast:
                raise UserError(f"unit: the tokenizer of {model.name} {NO_OFFSETS}")
            read = tokens_of_text(
                model,
                text,
                "pairs",
                truncate=self.truncate,
                words=paired.word_numbers if paired.unit == "word" else None,
                with_spans=paired.unit == "character" and not is_spelled,
            )
            texts.append(replace(read, spans=spelled_spans(read, str(text), model)) if is_spelled else read)
        reading = Reading(texts[0]) if len(texts) == 1 else Reading(shifted_right(model, texts[0]), texts[1])
        if paired.unit == "word":
            refuse_merged(reading, model, "shorter texts")
        return reading

    def batch(self, texts: Sequence[PairedText]) -> BatchOfPairs:
        """Build a batch from texts that have been read."""
        cells, readings = zip(*(self._read.pop(text.line.line) for text in texts), strict=True)
        merging = word_merging(readings) if self.unit == "word" else None
        is_cross = readings[0].context is not None
        return BatchOfPairs(cells, self.options, is_cross=is_cross, merging=merging)


def spelled_spans(read: ModelText, text: str, pretrained: Pretrained) -> list[tuple[int, int]]:
    """The character spans of tokens that spell the text in sequence, as amino acids do.

    Raises UserError for other tokens, because a tokenizer without offsets gives no other clue.
    """
    roles = pretrained.special_ids - pretrained.unknown_ids
    spans, place = [], 0
    for token, number in zip(read.tokens, read.ids.tolist(), strict=True):
        if number in roles:
            spans.append((place, place))
            continue
        while text[place : place + 1].isspace():
            place += 1
        if not text.startswith(token, place):
            raise UserError(f"unit: the tokenizer of {pretrained.name} {NO_OFFSETS}")
        spans.append((place, place + len(token)))
        place += len(token)
    return spans


def _why_none_counts(paired: PairedText, left_out: LeftOut) -> str:
    """The reason why no pair of a text counts."""
    if not paired.pairs:
        return "has no pairs"
    why, first = next(iter(left_out.first.items()))
    words = words_between_blanks(paired.line.text)
    is_one_word = paired.unit == "word" and max(words, default=0) == 0
    hint = '; the text is a single word: try "unit": "character"' if is_one_word else ""
    pair = first.partition(": ")[2]
    return f"none of the text's {counted(len(paired.pairs), 'pair')} counts: {pair}: {why}{hint}"


def token_ids(pretrained: Pretrained, names: Sequence[str]) -> TokenIds:
    """The ids of token names. Raises UserError for a name that is not in the vocabulary."""
    tokenizer = pretrained.tokenizer
    ids = tokenizer.convert_tokens_to_ids([*names])
    assert isinstance(ids, list), "convert_tokens_to_ids returns a list for a list"
    for place, (name, number) in enumerate(zip(names, ids, strict=True)):
        if number is None or (number == tokenizer.unk_token_id and name != tokenizer.unk_token):
            raise UserError(f"tokens[{place}]: {name!r:.60} is not in the vocabulary of {pretrained.name}")
    return TokenIds.of({"ids": ids, "tokens": [*names]})


class BatchTaker:
    """Takes the weights of each layer for a batch, then finishes the batch."""

    def take(self, places: Sequence[StackedHead], weights: Float[Tensor, "text head query key"]) -> None:
        """Take the weights of some heads."""
        raise NotImplementedError

    def end(self) -> None:
        """Finish the batch after the last layer."""
        raise NotImplementedError


class PairRun:
    """Runs a model over texts with pairs, and passes on the weights between their positions."""

    def __init__(
        self,
        reader: PairReader,
        many: ManyTexts[PairedText],
        *,
        ablate: Sequence[str] = (),
    ) -> None:
        self.reader, self.many, self.ablate = reader, many, ablate
        self.notes: dict[str, None] = {}

    def go(self, begin: Callable[[Sequence[PairedText], BatchOfPairs], BatchTaker]) -> None:
        """Run all texts. `begin` returns the `BatchTaker` for each batch."""
        model = self.reader.pretrained.model
        for batches in together(model, self.many.batches()):
            takers = []
            for batch in batches:
                texts, readings = [text for text, _ in batch], [reading for _, reading in batch]
                pairs = self.reader.batch(texts)
                takers.append((pairs, readings, begin(texts, pairs)))
            for way in in_step(model, [partial(self.capture, *taker) for taker in takers]):
                self.notes |= dict.fromkeys(way.notes())
            for _, _, taker in takers:
                taker.end()

    def capture(self, pairs: BatchOfPairs, readings: Sequence[Reading], taker: BatchTaker) -> Way:
        """Run the model on texts of the same length."""
        pretrained = self.reader.pretrained

        def measure(layers: Sequence[CapturedLayer]) -> None:
            if pairs.is_cross == (layers[0].kind == "cross"):
                places = [
                    StackedHead(layer.stack_name, layer.layer, head)
                    for layer in layers
                    for head in range(layer.attention.shape[1])
                ]
                together = side_by_side([layer.attention for layer in layers])
                weights = replace(layers[0], attention=together).weights().float().cpu()
                taker.take(places, pairs.between_positions(weights))

        later = DeferredLayers(measure)
        with heads_removed(self.ablate, pretrained):
            way = capture(pretrained.model, pretrained.inputs(readings), later.take)
        later.finish()
        return way
