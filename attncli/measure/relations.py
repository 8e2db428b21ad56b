"""How often each head looks along each syntactic relation, beside the best fixed offset."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.summaries import share_interval
from attncli.errors import UserError
from attncli.files import LINE_BYTES, MEBIBYTE
from attncli.measure.heads import refuse_merged
from attncli.measure.removal import AblatedHeads
from attncli.models.capture import Way, capture, in_step, together
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading, attention_between_words
from attncli.models.text_files import LineFile, ManyTexts
from attncli.records.columns import Records
from attncli.records.relations import BestOfRelation, HeadOnRelation, HeadOnRelations, HeadRelations

if TYPE_CHECKING:
    from conllu import Token


class Relation(NamedTuple):
    """The number of a word and of the word it depends on, from 0, and what the file calls the relation."""

    dependent: int
    head: int
    name: str


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence as it is written, with the number of the word of each character, and its relations.

    Words are those of the written text: "al" (a + el) is one.
    """

    text: str
    of_character: list[int]
    num_words: int
    relations: tuple[Relation, ...]


class SentenceFile(LineFile):
    """A CoNLL-U file, a sentence at a time. https://universaldependencies.org/format.html"""

    def __init__(self, name: str) -> None:
        if find_spec("conllu") is None:
            raise UserError('relations: needs: pip install "attncli[models]"')
        super().__init__(name, f"relations: {name}")

    def count(self) -> int:
        """How many sentences there are; UserError at the first invalid one, and where there is none."""
        count = sum(1 for _ in self.numbered())
        if not count:
            raise UserError(f"relations: {self.label}: holds no sentence")
        return count

    def numbered(self) -> Iterator[tuple[int, ParsedSentence]]:
        """Every sentence with the number of its first line; UserError there for an invalid one."""
        for line, block in self._blocks():
            where = f"relations: {self.label}:{line}"
            try:
                yield line, _parsed(block.decode())
            except UnicodeDecodeError:
                raise UserError(f"{where}: is not UTF-8 text") from None
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """The lines of each sentence, without comments, and the number of the first one."""
        lines: list[bytes] = []
        start = size = 0
        with self._opened() as file:
            for number, line in self._numbered_lines(file):
                if b"\t" in line:  # conllu would split at two blanks, too
                    line = re.sub(rb" {2,}", b" ", line)
                if line.startswith(b"#"):
                    continue
                if line.strip():
                    start = number if not lines else start
                    lines.append(line)
                    size += len(line)
                    if size > LINE_BYTES:
                        most = f"{LINE_BYTES // MEBIBYTE} MiB"
                        raise UserError(f"relations: {self.label}:{start}: a sentence holds more than {most}")
                elif lines:
                    yield start, b"".join(lines)
                    lines, size = [], 0
        if lines:
            yield start, b"".join(lines)


def _parsed(block: str) -> ParsedSentence:
    """ValueError for a block that is not a sentence in CoNLL-U."""
    from conllu import parse
    from conllu.exceptions import ParseException

    try:
        (rows,) = parse(block)
    except ParseException as error:
        raise ValueError(f"is not CoNLL-U: {error}") from None
    number_of, written = _written_words(list(rows))
    text, of_character = _joined(written)
    return ParsedSentence(text, of_character, len(written), tuple(_relations(list(rows), number_of)))


def _written_words(rows: "list[Token]") -> "tuple[dict[int, int], list[Token]]":
    """The number of the written word of each syntactic word, by its id, and the written words."""
    number_of: dict[int, int] = {}
    written: list[Token] = []
    last = 0
    for row in rows:
        if not row["form"].strip():
            raise ValueError(f"word {row['id']} has no form (column 2)")
        match row["id"]:
            case int(word):
                if word != len(number_of) + 1:
                    raise ValueError(f"word {len(number_of) + 1} is missing (found {word})")
                if word > last:
                    written.append(row)
                number_of[word] = len(written) - 1
            case (_, "-", int(end)):
                written.append(row)
                last = end
    return number_of, written


def _joined(written: "list[Token]") -> tuple[str, list[int]]:
    """The text of words, and the number of the word of each character; a blank belongs to the next word."""
    text, of_character = "", list[int]()
    blank = ""
    for number, row in enumerate(written):
        text += blank + row["form"]
        of_character += [number] * len(blank + row["form"])
        blank = "" if (row.get("misc") or {}).get("SpaceAfter") == "No" else " "
    return text, of_character


def _relations(rows: "list[Token]", number_of: dict[int, int]) -> Iterator[Relation]:
    """Those between written words: neither of the root nor inside one word."""
    for row in rows:
        word, head, name = row["id"], row.get("head"), row.get("deprel")
        if not isinstance(word, int):
            continue
        if not isinstance(head, int) or not name or name == "_":
            raise ValueError(f"word {word} has no syntactic head, or no relation to it (columns 7 and 8)")
        if not name.isprintable() or any(map(str.isspace, name)):
            raise ValueError(f"word {word}: a relation is a word without blanks (got {name!r})")
        if head and head not in number_of:
            raise ValueError(f"word {word}: the head must be at most {len(number_of)} (got {head})")
        if head and number_of[word] != number_of[head]:
            yield Relation(number_of[word], number_of[head], name)


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


class Offset(NamedTuple):
    """So many words after its dependent, and how many heads are there."""

    words: int
    heads: int


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
        is_hit: Bool[Tensor, "direction word head"],
    ) -> None:
        """Count which words the heads of a layer found, each in the relation of this number."""
        hits = self.hits.get(layer, torch.zeros(len(is_hit), 0, is_hit.shape[2], dtype=torch.int64))
        missing = len(self.numbers) - hits.shape[1]
        hits = torch.cat([hits, hits.new_zeros(len(is_hit), missing, is_hit.shape[2])], dim=1)
        hits.index_add_(1, relations, is_hit.to(torch.int64))
        hits[:, self.numbers[ALL]] += is_hit.sum(dim=1)
        self.hits[layer] = hits

    def hits_of(self, name: str) -> list[int]:
        """The words of a relation that each head found, by layer, direction and head."""
        number = self.numbers[name]
        # A layer may have been seen last before the relation was: its heads found none of it.
        of_layers = (
            hits[:, number] if number < hits.shape[1] else torch.zeros_like(hits[:, 0])
            for hits in self.hits.values()
        )
        return [count for hits in of_layers for count in hits.flatten().tolist()]

    def most_frequent_offset(self, name: str) -> Offset:
        """Where most heads of a relation are; of equal ones the nearest, the one before the word first."""
        offsets = self.offsets[name].items()
        return Offset(*min(offsets, key=lambda item: (-item[1], abs(item[0]), item[0])))


class RelationCounter:
    """Takes the layers of a model on some sentences of equal counts, and counts what their heads find."""

    def __init__(
        self, sentences: Sequence[ParsedSentence], readings: Sequence[Reading], counts: RelationCounts
    ) -> None:
        self.counts = counts
        self.readings = readings
        aligned: list[tuple[int, int, int, int]] = []
        is_word = []
        for text, (sentence, reading) in enumerate(zip(sentences, readings, strict=True)):
            assert reading.text.words is not None
            words = reading.text.words.of_text
            place_of = {held.start: place for place, held in enumerate(words) if len(held) == 1}
            counts.num_words += sentence.num_words
            for dependent, head, name in sentence.relations:
                if dependent in place_of and head in place_of:
                    number = counts.count(name, head - dependent)
                    aligned.append((text, place_of[dependent], place_of[head], number))
                else:  # a word without a token of its own, or one that was cut off
                    counts.num_unaligned += 1
            is_word.append([len(held) > 0 for held in words])
        columns = torch.tensor(aligned, dtype=torch.int64).reshape(-1, 4).unbind(dim=1)
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
        is_hit = torch.stack(by_direction) == self.heads[:, None]
        self.counts.add(layer.layer, self.relations, is_hit)


def sentences_of(
    file: SentenceFile,
    pretrained: Pretrained,
    *,
    truncate: bool = False,
    progress: Callable[[float], None] | None = None,
) -> ManyTexts[ParsedSentence]:
    """The sentences of a file as the model reads them.

    UserError for a model of two stacks, and for a tokenizer that does not tell where its tokens are.
    """
    name = pretrained.name
    if pretrained.has_decoder:
        raise UserError(f"relations: {name} has an encoder and a decoder: relations are for one stack")
    if not pretrained.tokenizer.is_fast:
        raise UserError(f"relations: the tokenizer of {name} does not say where its tokens stand in the text")

    def read(sentence: ParsedSentence) -> Reading:
        text = pretrained.read(
            sentence.text, "relations", truncate=truncate, words=lambda _: sentence.of_character
        )
        refuse_merged(Reading(text).in_words(), pretrained, "shorter sentences")
        return Reading(text)

    return ManyTexts(file, read, progress, key="relations")


def relations(
    pretrained: Pretrained, many: ManyTexts[ParsedSentence], *, ablate: Sequence[str] = ()
) -> HeadRelations:
    """The best head of each relation, and every head's share of every relation's words.

    Clark et al. 2019 (1906.04341), section 4.2 and table 1. `ablate` names heads, as 5:11, that give nothing
    meanwhile. UserError where no relation is between two words that the model can tell apart.
    """
    counts = RelationCounts()
    notes: dict[str, None] = {}

    def counted(batch: Sequence[tuple[ParsedSentence, Reading]]) -> Way:
        sentences, readings = zip(*batch, strict=True)
        counter = RelationCounter(sentences, readings, counts)
        with ExitStack() as hooks:
            ablated = AblatedHeads(ablate, pretrained, counter.take, hooks)
            way = capture(pretrained.model, pretrained.inputs(readings), ablated.take)
        ablated.check_all_found()
        return way

    for batches in together(pretrained.model, many.batches()):
        for way in in_step(pretrained.model, [partial(counted, batch) for batch in batches]):
            notes |= dict.fromkeys(way.notes())
    if not counts.hits:
        name = pretrained.name
        raise UserError(
            f"relations: {many.file.label}: has no relation between two words that {name} can tell apart"
        )
    intervals = _every_head(counts)
    return HeadRelations(
        best=_best(intervals, counts),
        heads=_shares_of_heads(intervals),
        intervals=intervals,
        num_sentences=many.num_read,
        num_words=counts.num_words,
        num_relations=counts.words[ALL],
        num_unaligned=counts.num_unaligned,
        notes=tuple(notes),
    )


def _every_head(counts: RelationCounts) -> Records[HeadOnRelation]:
    """One row per relation, direction and head; the relations with the most words first."""
    order = sorted(counts.words, key=lambda name: (name != ALL, -counts.words[name], name))
    places = [
        (name, layer, direction, head)
        for name in order
        for layer, hits in counts.hits.items()
        for direction in DIRECTIONS
        for head in range(hits.shape[2])
    ]
    names, layers, directions, heads = map(list, zip(*places, strict=True))
    every_hit = [hits for name in order for hits in counts.hits_of(name)]
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
    """For each relation the head that finds the most words, and the offset of the most syntactic heads."""
    hits = intervals.column("hits").reshape(len(counts.words), -1)
    # Of heads that find as many words the first.
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


def _shares_of_heads(intervals: Records[HeadOnRelation]) -> Records[HeadOnRelations]:
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
