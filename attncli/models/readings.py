"""Many texts as a model reads them: some at a time, those of equal counts together; and their words."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch

from attncli.core.row_tiles import GivenWeights
from attncli.core.rows import merged_into_words
from attncli.errors import UserError
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading, WordsOfCharacters, repeated_probe
from attncli.models.text_files import TextLine

WORDS_NOTE = (
    "Tokens are merged into words: weights are summed over the keys of a word, averaged over its queries."
)


def read_text(
    pretrained: Pretrained,
    text: str,
    *,
    context: str | None = None,
    key: str = "text",
    truncate: bool = False,
    words: WordsOfCharacters | None = None,
) -> Reading:
    """A text as a model reads it; with a decoder the context, else the same text, goes to the encoder.

    `words` are those that tokens are merged into where that is wanted. UserError, which names `key`, for a
    text that has no tokens or more than the model reads, unless `truncate` cuts it.
    """
    read = pretrained.read(text, key, truncate=truncate, words=words)
    if not pretrained.has_decoder:
        if context is not None:
            raise UserError(f"context: {pretrained.name} has no decoder: it reads one text")
        return Reading(read)
    of_encoder = read
    if context is not None:
        of_encoder = pretrained.read(context, "context", truncate=truncate, words=words)
    return Reading(pretrained.shifted_right(read), of_encoder)


def read_probe(pretrained: Pretrained, num_tokens: int, generator: torch.Generator) -> Reading:
    """[BOS] + r + r with `num_tokens` random tokens r, on which induction heads show."""
    probe = repeated_probe(pretrained, num_tokens, generator)
    return Reading(probe, probe if pretrained.has_decoder else None, repeat=num_tokens)


def texts_of_stack(reading: Reading, stack: str) -> tuple[ModelText, ModelText]:
    """The texts of queries and keys: an encoder reads the context, cross-attention looks at it."""
    text, context = reading.text, reading.context or reading.text
    sides = {"self": (text, text), "cross": (text, context), "encoder": (context, context)}
    return sides["self" if stack == "decoder" else stack]


def attention_between_words(layer: CapturedLayer, readings: Sequence[Reading]) -> GivenWeights:
    """The weights of a layer between the words of the texts that were read together."""
    sides = zip(*(texts_of_stack(reading, layer.stack_name) for reading in readings), strict=True)
    queries, keys = (
        torch.tensor([text.words.of_token for text in texts if text.words is not None]) for texts in sides
    )
    return merged_into_words(layer.attention, queries, keys)


MAX_TEXTS = 32
MAX_WEIGHTS = 2**17
"""Weights of a head in texts that run together: 8 texts of 128 tokens, whose matrices may all be asked for.

Products of matrices with a thousand rows gain nothing from more of them.
"""
TEXTS_PER_WINDOW = 2048
"""Texts whose tokens are in memory: of a thousand sentences some dozen have the same count of tokens."""

Text = TypeVar("Text", covariant=True)


@runtime_checkable
class NumberedTexts(Protocol[Text]):
    """A file of texts, each with the number of its first line."""

    @property
    def label(self) -> str:
        """Its name in messages."""
        ...

    def count(self) -> int:
        """How many texts there are; UserError where one cannot be read, and where there is none."""
        ...

    def numbered(self) -> Iterator[tuple[int, Text]]:
        """Every text, from the start."""
        ...


@dataclass(frozen=True)
class ListedTexts:
    """Texts that are in memory, numbered from 1."""

    texts: Sequence[str]
    label: str = "texts"

    def count(self) -> int:
        """How many texts there are; UserError where there is none."""
        if not self.texts:
            raise UserError(f"{self.label}: holds no text")
        return len(self.texts)

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Every text, from the start."""
        return ((number, TextLine(number, text)) for number, text in enumerate(self.texts, start=1))


def run_together(readings: Mapping[int, Reading]) -> Iterator[list[int]]:
    """The places of readings that run together: of equal counts, of words too, so that none is padded.

    A padded one would affect its neighbours in models that mix tokens outside of attention.
    """
    by_counts: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = {}
    for place, reading in readings.items():
        by_counts.setdefault((reading.counts, reading.in_words().counts), []).append(place)
    for (counts, _), places in by_counts.items():
        step = max(1, min(MAX_TEXTS, MAX_WEIGHTS // max(counts) ** 2))
        for start in range(0, len(places), step):
            yield places[start : start + step]


@dataclass
class ManyTexts(Generic[Text]):
    """The texts of a file, named by the setting `key`, in batches that run together.

    `read` may refuse one, which is left out. `progress` is called with the share that is done.
    """

    file: NumberedTexts[Text]
    read: Callable[[Text], Reading]
    progress: Callable[[float], None] | None = None
    key: str = "texts"
    num_read: int = 0
    num_tokens: int = 0
    num_cut: int = 0
    num_left_out: int = 0
    first_left_out: str = ""

    def batches(self) -> Iterator[list[tuple[Text, Reading]]]:
        """Every text once, in windows of the file; UserError where one is invalid or none could be read."""
        count, texts = self.file.count(), self.file.numbered()
        while window := list(islice(texts, TEXTS_PER_WINDOW)):
            readings = dict(self._read(window))
            for places in run_together(readings):
                batch = [(window[place][1], readings[place]) for place in places]
                self.num_read += len(batch)
                self.num_tokens += sum(len(reading.text.ids) for _, reading in batch)
                self.num_cut += sum(reading.text.left_out > 0 for _, reading in batch)
                yield batch
                if self.progress is not None:
                    self.progress((self.num_read + self.num_left_out) / count)
        if not self.num_read:
            raise UserError(self.first_left_out)

    def _read(self, window: Iterable[tuple[int, Text]]) -> Iterator[tuple[int, Reading]]:
        for place, (line, text) in enumerate(window):
            try:
                yield place, self.read(text)
            except UserError as error:
                self.num_left_out += 1
                # An error about the setting is one about this line of its file.
                about = f"{self.file.label}:{line}: {error.lines[0].removeprefix(f'{self.key}: ')}"
                self.first_left_out = self.first_left_out or about

    def notes(self) -> list[str]:
        """How many texts were cut, how many left out, and why the first of these was."""
        notes = []
        if self.num_cut:
            notes.append(f"{_texts(self.num_cut)} cut to what the model reads.")
        if self.num_left_out:
            notes.append(f"{_texts(self.num_left_out)} left out: {self.first_left_out}.")
        return notes


def _texts(count: int) -> str:
    return "1 text is" if count == 1 else f"{count:,} texts are"
