"""Measure how often heads look along syntactic relations, compared with the best fixed offset."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attncli.core.summaries import share_interval
from attncli.errors import UserError
from attncli.features.pairs.pair_counts import most_looked_at
from attncli.features.pairs.pair_files import PairedText, SentenceFile
from attncli.features.pairs.relation_results import (
    ALL,
    BestOfRelation,
    HeadOnRelation,
    HeadOnRelations,
    HeadRelations,
)
from attncli.measure.heads import refuse_merged
from attncli.models.capture import Way, capture, in_step, together
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading, attention_between_words
from attncli.models.reading_text import tokens_of_text
from attncli.models.removal import heads_removed
from attncli.models.text_files import ManyTexts
from attncli.records.columns import Records

DIRECTIONS = ("to_head", "from_head")
"""The dependent gives its head the most weight; no other word gives the dependent as much as its head."""


class Offset(NamedTuple):
    """A distance from dependent to head, in words, and the number of relations that have it."""

    words: int
    heads: int


@dataclass
class RelationCounts:
    """Counts over the sentences so far: each relation's words and their heads' offsets, and each head's hits.

    Each pair of written words counts once per relation, and once in ALL. `offsets` counts distances from
    dependent to head. `hits` is keyed by layer.
    """

    num_words: int = 0
    num_relations: int = 0
    num_unaligned: int = 0
    num_repeated: int = 0
    words: Counter[str] = field(default_factory=Counter)
    offsets: dict[str, Counter[int]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=lambda: {ALL: 0})
    hits: dict[int, Int[Tensor, "direction relation head"]] = field(default_factory=dict)

    def count(self, name: str, offset: int) -> int:
        """Count a word in a relation, which may be ALL, and return the relation's number."""
        self.words[name] += 1
        self.offsets.setdefault(name, Counter())[offset] += 1
        return self.numbers.setdefault(name, len(self.numbers))

    def add(
        self,
        layer: int,
        relations: Int[Tensor, " word"],
        is_hit: Bool[Tensor, "direction word head"],
    ) -> None:
        """Add the hits of a layer's heads; `relations` has the number of each word's relation."""
        hits = self.hits.get(layer, torch.zeros(len(is_hit), 0, is_hit.shape[2], dtype=torch.int64))
        missing = len(self.numbers) - hits.shape[1]
        hits = torch.cat([hits, hits.new_zeros(len(is_hit), missing, is_hit.shape[2])], dim=1)
        hits.index_add_(1, relations, is_hit.to(torch.int64))
        self.hits[layer] = hits

    def head_hits(self, name: str) -> list[int]:
        """The hits of each head for a relation, by layer, direction and head."""
        number = self.numbers[name]
        # A layer that was last seen before the relation appeared has no hits.
        layer_hits = (
            hits[:, number] if number < hits.shape[1] else torch.zeros_like(hits[:, 0])
            for hits in self.hits.values()
        )
        return [count for hits in layer_hits for count in hits.flatten().tolist()]

    def most_frequent_offset(self, name: str) -> Offset:
        """The most frequent distance to the head; ties go to the nearest head, and then to the left."""
        offsets = self.offsets[name].items()
        return Offset(*min(offsets, key=lambda item: (-item[1], abs(item[0]), item[0])))


class RelationCounter:
    """Takes a model's layers on sentences of equal lengths, and counts the hits of their heads."""

    def __init__(
        self, sentences: Sequence[PairedText], readings: Sequence[Reading], counts: RelationCounts
    ) -> None:
        self.counts = counts
        self.readings = readings
        aligned: list[tuple[int, int, int, int]] = []
        is_word = []
        for text, (sentence, reading) in enumerate(zip(sentences, readings, strict=True)):
            assert reading.text.words is not None
            words = reading.text.words.of_text
            word_places = {tokens.start: place for place, tokens in enumerate(words) if len(tokens) == 1}
            counts.num_words += sentence.num_words
            counted: set[tuple[int, int, str]] = set()
            for dependent, head, _, name in sentence.pairs:
                if dependent == head or not {dependent, head} <= word_places.keys():
                    counts.num_unaligned += 1
                    continue
                counts.num_relations += 1
                counts.num_repeated += (dependent, head, ALL) in counted
                for relation in (ALL, name):
                    if (dependent, head, relation) not in counted:
                        number = counts.count(relation, head - dependent)
                        aligned.append((text, word_places[dependent], word_places[head], number))
                        counted.add((dependent, head, relation))
            is_word.append([len(tokens) > 0 for tokens in words])
        columns = torch.tensor(aligned, dtype=torch.int64).reshape(-1, 4).unbind(dim=1)
        self.texts, self.dependents, self.heads, self.relations = columns
        among = torch.tensor(is_word)
        off_diagonal = ~torch.eye(among.shape[1], dtype=torch.bool)
        self.among = (among[:, :, None] & among[:, None, :] & off_diagonal)[:, None]

    def take(self, layer: CapturedLayer) -> None:
        """Count the hits of a layer's heads."""
        if not len(self.texts):
            return
        weights = attention_between_words(layer, self.readings).weights.cpu()
        by_direction = [
            most_looked_at(each, self.among)[self.texts, :, self.dependents] for each in (weights, weights.mT)
        ]
        is_hit = torch.stack(by_direction) == self.heads[:, None]
        self.counts.add(layer.layer, self.relations, is_hit)


def read_sentences(
    file: SentenceFile,
    pretrained: Pretrained,
    *,
    truncate: bool = False,
    progress: Callable[[float], None] | None = None,
) -> ManyTexts[PairedText]:
    """Read the sentences of a file for a model.

    Raises UserError for a model with two stacks or a tokenizer that gives no token positions.
    """
    name = pretrained.name
    if pretrained.has_decoder:
        raise UserError(f"relations: {name} has an encoder and a decoder: use a model with one stack")
    if not pretrained.tokenizer.is_fast:
        raise UserError(f"relations: the tokenizer of {name} does not report token positions in the text")

    def read(sentence: PairedText) -> Reading:
        text = tokens_of_text(
            pretrained, sentence.line.text, "relations", truncate=truncate, words=sentence.word_numbers
        )
        refuse_merged(Reading(text).in_words(), pretrained, "shorter sentences")
        return Reading(text)

    return ManyTexts(file, read, progress, key="relations")


def relations(
    pretrained: Pretrained, many: ManyTexts[PairedText], *, ablate: Sequence[str] = ()
) -> HeadRelations:
    """Find the best head of each relation, and every head's share of each relation's words.

    Clark et al. 2019 (1906.04341), section 4.2 and table 1. `ablate` names heads, such as 5:11, whose output
    is removed. Raises UserError if no relation joins two words with separate tokens.
    """
    counts = RelationCounts()
    notes: dict[str, None] = {}

    def counted(batch: Sequence[tuple[PairedText, Reading]]) -> Way:
        sentences, readings = zip(*batch, strict=True)
        counter = RelationCounter(sentences, readings, counts)
        with heads_removed(ablate, pretrained):
            return capture(pretrained.model, pretrained.inputs(readings), counter.take)

    for batches in together(pretrained.model, many.batches()):
        for way in in_step(pretrained.model, [partial(counted, batch) for batch in batches]):
            notes |= dict.fromkeys(way.notes())
    if not counts.hits:
        name = pretrained.name
        raise UserError(
            f"relations: {many.file.label}: has no relation between two words with separate tokens in {name}"
        )
    intervals = _every_head(counts)
    return HeadRelations(
        best=_best(intervals, counts),
        heads=_head_shares(intervals),
        intervals=intervals,
        num_sentences=many.num_read,
        num_words=counts.num_words,
        num_relations=counts.num_relations,
        num_unaligned=counts.num_unaligned,
        notes=(*_repeated(counts.num_repeated), *notes),
    )


def _repeated(count: int) -> list[str]:
    """A note on words with several parts that share a head."""
    relations = "1 relation is" if count == 1 else f"{count:,} relations are"
    return (
        [
            f"{relations} between two written words that another relation already joins; these words "
            "count once."
        ]
        if count
        else []
    )


def _every_head(counts: RelationCounts) -> Records[HeadOnRelation]:
    """One row per relation, direction and head; relations with the most words come first."""
    order = sorted(counts.words, key=lambda name: (name != ALL, -counts.words[name], name))
    places = [
        (name, layer, direction, head)
        for name in order
        for layer, hits in counts.hits.items()
        for direction in DIRECTIONS
        for head in range(hits.shape[2])
    ]
    names, layers, directions, heads = map(list, zip(*places, strict=True))
    every_hit = [hits for name in order for hits in counts.head_hits(name)]
    words = [counts.words[name] for name in names]
    ends = [share_interval(hits, count) for hits, count in zip(every_hit, words, strict=True)]
    return HeadOnRelation.table(
        stack=["self"] * len(places),
        layer=layers,
        head=heads,
        statistic=[f"{name}.{direction}" for name, direction in zip(names, directions, strict=True)],
        relation=names,
        direction=directions,
        hits=every_hit,
        words=words,
        mean=[hits / count for hits, count in zip(every_hit, words, strict=True)],
        lower=[lower for lower, _ in ends],
        upper=[upper for _, upper in ends],
    )


def _best(intervals: Records[HeadOnRelation], counts: RelationCounts) -> Records[BestOfRelation]:
    """For each relation, the head that finds the most words, and the most frequent offset."""
    hits = intervals.column("hits").reshape(len(counts.words), -1)
    # Among heads with equally many hits, the first.
    best = intervals.taken((np.arange(len(hits)) * hits.shape[1] + hits.argmax(axis=1)).tolist())
    offsets = [counts.most_frequent_offset(row.relation) for row in best]
    ends = [share_interval(offset.heads, row.words) for offset, row in zip(offsets, best, strict=True)]
    return BestOfRelation.table(
        relation=best.cells["relation"],
        words=best.cells["words"],
        layer=best.cells["layer"],
        head=best.cells["head"],
        direction=best.cells["direction"],
        share=best.cells["mean"],
        lower=best.cells["lower"],
        upper=best.cells["upper"],
        offset=[offset.words for offset in offsets],
        offset_share=[offset.heads / row.words for offset, row in zip(offsets, best, strict=True)],
        offset_lower=[lower for lower, _ in ends],
        offset_upper=[upper for _, upper in ends],
    )


def _head_shares(intervals: Records[HeadOnRelation]) -> Records[HeadOnRelations]:
    """One row per head, with its share of each relation's words in each direction."""
    places = dict.fromkeys(zip(intervals.cells["layer"], intervals.cells["head"], strict=True))
    shares: dict[str, list[float]] = {}
    for statistic, share in zip(intervals.cells["statistic"], intervals.cells["mean"], strict=True):
        shares.setdefault(statistic, []).append(share)
    return HeadOnRelations.table(
        layer=[layer for layer, _ in places],
        head=[head for _, head in places],
        kind=["self"] * len(places),
        stack=["self"] * len(places),
        **shares,
    )
