"""Which word each head looks at most, and how often that is the other word of a syntactic relation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.experiments.reading.text_words import attention_between_words
from attncli.experiments.relations.sentence_file import ParsedSentence
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import Reading

ALL = "all relations"
"""All of them together: no relation has a blank in its name."""
DIRECTIONS = ("to_head", "from_head")
"""The dependent looks most at its head; the head looks most at the dependent, of all words."""
ROUNDING = 1e-5
"""Weights that differ by less than this share of the largest are a tie, which the first word wins."""
NOBODY = -1


def most_looked_at(
    weights: Float[Tensor, "*batch query key"], among: Bool[Tensor, "*#batch query key"]
) -> Int[Tensor, "*batch query"]:
    """argmax over keys of the weights among these; -1 where no weight there is above 0."""
    left = weights.masked_fill(~among, 0.0)
    largest = left.amax(dim=-1, keepdim=True)
    first = (left >= largest * (1 - ROUNDING)).int().argmax(dim=-1)
    return first.masked_fill(largest.squeeze(-1) <= 0, NOBODY)


@dataclass
class RelationCounts:
    """Over the sentences so far: the words in each relation, where their heads are, and what heads find.

    `offsets` counts the heads that are so many words after their dependent. `hits` are by layer.
    """

    num_words: int = 0
    num_unaligned: int = 0
    words: Counter[str] = field(default_factory=Counter)
    offsets: dict[str, Counter[int]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=lambda: {ALL: 0})
    hits: dict[int, Int[Tensor, "direction relation head"]] = field(default_factory=dict)

    def count(self, name: str, offset: int) -> int:
        """Count a word in a relation; the relation's number."""
        for counted in (ALL, name):
            self.words[counted] += 1
            self.offsets.setdefault(counted, Counter())[offset] += 1
        return self.numbers.setdefault(name, len(self.numbers))

    def add(
        self,
        layer: int,
        relations: Int[Tensor, " word"],
        found: Bool[Tensor, "direction word head"],
    ) -> None:
        """Count what the heads of a layer found of some words, each in the relation of this number."""
        hits = self.hits.get(layer, torch.zeros(len(found), 0, found.shape[2], dtype=torch.int64))
        missing = len(self.numbers) - hits.shape[1]
        hits = torch.cat([hits, hits.new_zeros(len(found), missing, found.shape[2])], dim=1)
        hits.index_add_(1, relations, found.to(torch.int64))
        hits[:, self.numbers[ALL]] += found.sum(dim=1)
        self.hits[layer] = hits


class RelationCounter:
    """Takes the layers of a model on some sentences of equal counts, and counts what their heads find."""

    def __init__(
        self, sentences: Sequence[ParsedSentence], readings: Sequence[Reading], counts: RelationCounts
    ) -> None:
        self.counts = counts
        self.readings = readings
        found: list[tuple[int, int, int, int]] = []
        is_word = []
        for text, (sentence, reading) in enumerate(zip(sentences, readings, strict=True)):
            assert reading.text.words is not None
            words = reading.text.words.of_text
            place_of = {held.start: place for place, held in enumerate(words) if len(held) == 1}
            counts.num_words += sentence.num_words
            for dependent, head, name in sentence.relations:
                if dependent in place_of and head in place_of:
                    number = counts.count(name, head - dependent)
                    found.append((text, place_of[dependent], place_of[head], number))
                else:  # a word without a token of its own, or one that was cut off
                    counts.num_unaligned += 1
            is_word.append([len(held) > 0 for held in words])
        columns = torch.tensor(found, dtype=torch.int64).reshape(-1, 4).unbind(dim=1)
        self.texts, self.dependents, self.heads, self.relations = columns
        among = torch.tensor(is_word)
        others = ~torch.eye(among.shape[1], dtype=torch.bool)
        self.among = (among[:, :, None] & among[:, None, :] & others)[:, None]

    def take(self, layer: CapturedLayer) -> None:
        """Count what the heads of one layer find."""
        if not len(self.texts):
            return
        weights = attention_between_words(layer, self.readings).weights.cpu()
        by_direction = [
            most_looked_at(each, self.among)[self.texts, :, self.dependents] for each in (weights, weights.mT)
        ]
        found = torch.stack(by_direction) == self.heads[:, None]
        self.counts.add(layer.layer, self.relations, found)
