"""Counts of the known pairs that heads find: hits, pairs among the largest weights, and mass."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from attncli.core.formulas import average_product_correction
from attncli.features.pairs.pair_files import KnownPair, PairedText
from attncli.features.pairs.results import LeftOutPairs
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.records.columns import Records

ROUNDING = 1e-5
"""Weights that differ by less than this share of the largest are tied; the first position wins."""
NOBODY = -1
MEASURES = ("hit", "precision", "precision_half", "precision_fifth", "mass")
"""See `HeadsOnPairs`."""
PARTS = (1, 2, 5)
"""The divisors of L: the precision measures look at the L, L/2 and L/5 largest weights."""
MASS = 4


@dataclass(frozen=True)
class PairOptions:
    """Options for selecting positions and combining weights.

    Positions nearer than `apart` are ignored. `symmetric` adds the weights of both directions; `corrected`
    then applies the average product correction.
    """

    apart: int = 0
    symmetric: bool = False
    corrected: bool = False

    @property
    def primary(self) -> int:
        """The measure that ranks heads: precision for symmetric pairs, such as contacts, otherwise hits."""
        return MEASURES.index("precision" if self.symmetric else "hit")

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions in which heads are measured within a text."""
        return ("symmetric",) if self.symmetric else ("forward", "backward")


def most_looked_at(
    weights: Float[Tensor, "*row key"], among: Bool[Tensor, "*#row key"]
) -> Int[Tensor, "*row"]:
    """The argmax over the keys in `among`, or -1 if none of their weights is above 0."""
    left = weights.masked_fill(~among, 0.0)
    largest = left.amax(dim=-1, keepdim=True)
    first = (left >= largest * (1 - ROUNDING)).int().argmax(dim=-1)
    return first.masked_fill(largest.squeeze(-1) <= 0, NOBODY)


class LeftOut:
    """The numbers of ignored pairs by reason, with the first such pair as written in the file."""

    def __init__(self) -> None:
        self.pairs: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add_all(self, other: "LeftOut") -> None:
        """Add the counts from a text."""
        self.pairs += other.pairs
        self.first = {**other.first, **self.first}

    def add(self, why: str, paired: PairedText, pair: KnownPair) -> None:
        """Count a pair."""
        self.pairs[why] += 1
        self.first.setdefault(why, f"{paired.line.label}: {pair}")

    def table(self) -> Records[LeftOutPairs]:
        """One row per reason."""
        rows = [{"pairs": pairs, "why": why, "first": self.first[why]} for why, pairs in self.pairs.items()]
        return LeftOutPairs.rows(rows)


class Positions(NamedTuple):
    """The tokens or words of a reading that correspond to the positions of a text.

    `places` maps positions to these tokens or words; `places` omits positions that were cut off or have no
    token of their own. `special` has the places of special tokens.
    """

    places: Mapping[int, int]
    num_positions: int
    special: frozenset[int]

    @classmethod
    def of(
        cls, paired: PairedText, text: ModelText, written: str, pretrained: Pretrained, *, shift: int = 0
    ) -> "Positions":
        """The positions of a text read from `written`; a decoder reads its tokens `shift` places later."""
        if paired.unit == "word":
            assert text.words is not None
            word_spans = text.words.of_text
            places = {words.start: place for place, words in enumerate(word_spans) if len(words) == 1}
            numbers = paired.word_numbers(written)
            special = frozenset(place for place, words in enumerate(word_spans) if not words)
            return cls(places, numbers[-1] + 1 if numbers else 0, special)
        roles = pretrained.special_ids - pretrained.unknown_ids
        special = frozenset(place for place, number in enumerate(text.ids.tolist()) if number in roles)
        if paired.unit == "character":
            assert text.spans is not None
            character_places: dict[int, int] = {}
            for place, (start, end) in enumerate(text.spans):
                character_places |= dict.fromkeys(range(start, end), place) | character_places
            return cls(character_places, len(written), special)
        before = text.left_out if text.left_out_side == "first" else 0
        count = len(text.ids) - shift
        return cls({place + before: place + shift for place in range(count)}, count + text.left_out, special)

    def first_positions(self, count: int) -> tuple[int, ...]:
        """The first position at each of `count` places, or -1 for a place without a position."""
        positions_by_place = {
            place: position for position, place in sorted(self.places.items(), reverse=True)
        }
        return tuple(positions_by_place.get(place, NOBODY) for place in range(count))


class CellsOfText(NamedTuple):
    """The cells of a text's matrix: pair weights, cells that count, and tokens that are not special."""

    pair_weights: Float[Tensor, "query key"]
    allowed: Bool[Tensor, "query key"]
    real_queries: Bool[Tensor, " query"]
    real_keys: Bool[Tensor, " key"]
    positions: tuple[tuple[int, ...], tuple[int, ...]]
    """The positions of the queries and keys in the file."""


def text_cells(
    paired: PairedText, reading: Reading, pretrained: Pretrained, options: PairOptions, left_out: LeftOut
) -> CellsOfText:
    """The cells of a text, without special tokens, the diagonal and near positions.

    Ignored pairs are counted in `left_out`.
    """
    shift = int(pretrained.has_decoder)
    queries = Positions.of(paired, reading.text, paired.line.text, pretrained, shift=shift)
    keys, is_cross = queries, reading.context is not None
    if reading.context is not None:
        keys = Positions.of(paired, reading.context, str(paired.line.context), pretrained)
    num_queries, num_keys = reading.in_words().counts
    num_keys = num_keys or num_queries
    real_queries, real_keys = (
        torch.ones(num_queries, dtype=torch.bool),
        torch.ones(num_keys, dtype=torch.bool),
    )
    real_queries[[*queries.special]], real_keys[[*keys.special]] = False, False
    allowed = real_queries[:, None] & real_keys
    least = 0 if is_cross else max(1, options.apart)
    distance = (torch.arange(num_queries)[:, None] - torch.arange(num_keys)).abs()
    allowed &= distance >= least
    pair_weights = torch.zeros(num_queries, num_keys)
    for pair in paired.pairs:
        place = queries.places.get(pair.first, NOBODY), keys.places.get(pair.second, NOBODY)
        why = ""
        if pair.first >= queries.num_positions or pair.second >= keys.num_positions:
            why = "a position is beyond the end of the text"
        elif NOBODY in place:
            cut = reading.text.left_out or (reading.context is not None and reading.context.left_out)
            why = (
                "a position was cut off at the model's maximum length"
                if cut
                else f"a {paired.unit} has no token of its own"
            )
        elif place[0] in queries.special or place[1] in keys.special:
            why = "a position is a special token"
        elif not is_cross and place[0] == place[1]:
            why = "the two positions are equal"
        elif distance[place] < least:
            why = f"the positions are less than {least} apart"
        elif pair_weights[place] or (options.symmetric and pair_weights[place[::-1]]):
            why = "listed twice"
        if why:
            left_out.add(why, paired, pair)
            continue
        pair_weights[place] = pair.weight
        if options.symmetric:
            pair_weights[place[::-1]] = pair.weight
    positions = queries.first_positions(num_queries), keys.first_positions(num_keys)
    return CellsOfText(pair_weights, allowed, real_queries, real_keys, positions)


class Merging(NamedTuple):
    """Matrices that merge tokens into words, padded to the text with the most words."""

    queries: Float[Tensor, "text query token"]
    keys: Float[Tensor, "text key_token key"]


def word_merging(readings: Sequence[Reading]) -> Merging:
    """Queries are averaged over the tokens of a word, and keys are summed over them."""
    queries = _word_membership([reading.text for reading in readings])
    contexts = [reading.context for reading in readings if reading.context is not None]
    keys = _word_membership(contexts) if contexts else queries
    return Merging(queries / queries.sum(dim=2, keepdim=True).clamp(min=1), keys.mT.contiguous())


def _word_membership(texts: Sequence[ModelText]) -> Float[Tensor, "text word token"]:
    """1 if a token belongs to a word, otherwise 0."""
    words = [text.words for text in texts if text.words is not None]
    belongs = torch.zeros(len(words), max(len(each.texts) for each in words), len(words[0].of_token))
    for number, each in enumerate(words):
        belongs[number, each.of_token, range(len(each.of_token))] = 1
    return belongs


def padded(texts: Sequence[CellsOfText]) -> list[CellsOfText]:
    """Pad texts to the same number of positions; added cells do not count."""
    num_queries, num_keys = (max(text.pair_weights.shape[axis] for text in texts) for axis in (0, 1))
    if all(text.pair_weights.shape == (num_queries, num_keys) for text in texts):
        return [*texts]
    bigger = []
    for text in texts:
        more = num_queries - text.pair_weights.shape[0], num_keys - text.pair_weights.shape[1]
        pair_weights, allowed = (
            pad(each, (0, more[1], 0, more[0])) for each in (text.pair_weights, text.allowed)
        )
        real = pad(text.real_queries, (0, more[0])), pad(text.real_keys, (0, more[1]))
        bigger.append(CellsOfText(pair_weights, allowed, *real, text.positions))
    return bigger


class BatchOfPairs:
    """Texts that are run together, with the measures of a layer's heads on their pairs."""

    def __init__(
        self,
        texts: Sequence[CellsOfText],
        options: PairOptions,
        *,
        is_cross: bool,
        merging: Merging | None = None,
    ) -> None:
        self.options, self.is_cross, self._merging = options, is_cross, merging
        self.positions = [text.positions for text in texts]
        texts = padded(texts)
        self.directions = ("forward",) if is_cross else options.directions
        self.pair_weights = torch.stack([each.pair_weights for each in texts])
        self.allowed = torch.stack([each.allowed for each in texts])
        self.real_queries = torch.stack([each.real_queries for each in texts])
        self.real_keys = torch.stack([each.real_keys for each in texts])
        # In a symmetric matrix, two positions share one cell.
        self.cells = self.allowed.triu(1) if options.symmetric else self.allowed
        self.num_ranked = torch.stack(
            [
                (self.real_queries.sum(dim=1) // part).clamp(min=1).minimum(self.cells.sum(dim=(1, 2)))
                for part in PARTS
            ],
            dim=1,
        )
        self.texts, self.queries = (self.pair_weights > 0).any(dim=2).nonzero().unbind(dim=1)

    def between_positions(
        self, weights: Float[Tensor, "text head token key_token"]
    ) -> Float[Tensor, "text head query key"]:
        """Merge weights between tokens into weights between words, if positions are words.

        W_ab = mean over the tokens i of word a of the sum over the tokens j of word b of p_ij: Clark et al.
        2019 (1906.04341), section 4.1.
        """
        if self._merging is None:
            return weights
        return self._merging.queries[:, None] @ weights @ self._merging.keys[:, None]

    def scores(
        self, weights: Float[Tensor, "text head query key"]
    ) -> list[Float[Tensor, "text head query key"]]:
        """The scores of pairs in each direction, where entry (i, j) scores the pair (i, j)."""
        if not self.options.symmetric:
            return [weights] if self.is_cross else [weights, weights.mT]
        both = weights + weights.mT
        if self.options.corrected:
            inside = (self.real_queries[:, :, None] & self.real_keys[:, None, :])[:, None]
            both = average_product_correction(both.where(inside, 0.0)).where(inside, 0.0)
        return [both]

    def looked_at(self, scores: Float[Tensor, "text map query key"]) -> Int[Tensor, "row map"]:
        """For each row that has a pair, the position of its largest entry, or -1 if no entry is above 0."""
        rows = scores[self.texts, :, self.queries]
        among = self.allowed[self.texts, self.queries][:, None]
        if self.options.corrected:  # values may have any sign
            return rows.masked_fill(~among, -torch.inf).argmax(dim=-1)
        return most_looked_at(rows, among)

    def shares(self, scores: Float[Tensor, "text map query key"]) -> Float[Tensor, "text map measure"]:
        """For each map, the sum of hits, and the shares of pairs among the largest entries."""
        num_maps, looked_at = scores.shape[1], self.looked_at(scores)
        hit = (self.pair_weights * self.allowed)[self.texts, self.queries].gather(1, looked_at.clamp(min=0))
        hits = torch.zeros(len(scores), num_maps, dtype=torch.float64)
        hits.index_add_(0, self.texts, hit.masked_fill(looked_at == NOBODY, 0.0).double())
        cells = self.cells.flatten(1)
        most = int(self.num_ranked.max())
        strongest = scores.flatten(2).masked_fill(~cells[:, None], -torch.inf).topk(most, dim=-1)
        pair_weights = (self.pair_weights.flatten(1) * cells)[:, None].expand(-1, num_maps, -1)
        pair_weights = pair_weights.gather(2, strongest.indices)
        if not self.options.corrected:  # weights of zero are not chosen
            pair_weights = pair_weights * (strongest.values > 0)
        total = pair_weights.double().cumsum(dim=-1)
        precision = total.gather(2, (self.num_ranked - 1)[:, None].expand(-1, num_maps, -1))
        return torch.cat([hits.unsqueeze(-1), precision / self.num_ranked[:, None]], dim=-1)

    def numbers(
        self, weights: Float[Tensor, "text head query key"]
    ) -> Float[Tensor, "text direction head number"]:
        """The sum of each measure per head and direction, then the sum of mass expected by chance."""
        directions = [
            torch.cat([self.shares(scores), self._masses(weights, direction)], dim=-1)
            for direction, scores in zip(self.directions, self.scores(weights), strict=True)
        ]
        return torch.stack(directions, dim=1)

    def _masses(
        self, weights: Float[Tensor, "text head query key"], direction: str
    ) -> Float[Tensor, "text head 2"]:
        """Sums, over rows with pairs, of the weight on pairs and of the expected weight on random cells."""
        pair_weights = self.pair_weights.mT if direction == "backward" else self.pair_weights
        allowed = self.allowed.mT if direction == "backward" else self.allowed
        texts, rows = (pair_weights > 0).any(dim=2).nonzero().unbind(dim=1)
        row_weights, row_pairs, cells = (
            weights[texts, :, rows],
            pair_weights[texts, rows],
            allowed[texts, rows],
        )
        on_pairs = (row_weights * row_pairs[:, None]).sum(dim=-1)
        on_cells = (row_weights * cells[:, None]).sum(dim=-1)
        by_chance = on_cells * (row_pairs.sum(dim=-1) / cells.sum(dim=-1))[:, None]
        sums = torch.zeros(len(weights), weights.shape[1], 2, dtype=torch.float64)
        return sums.index_add_(0, texts, torch.stack([on_pairs, by_chance], dim=-1).double())

    def single_text(self, number: int) -> "BatchOfPairs":
        """A batch that contains only one of the texts."""
        cells = CellsOfText(
            self.pair_weights[number],
            self.allowed[number],
            self.real_queries[number],
            self.real_keys[number],
            self.positions[number],
        )
        return BatchOfPairs([cells], self.options, is_cross=self.is_cross)

    def as_map(self, numbers: Float[Tensor, " cell"]) -> Float[Tensor, "1 1 query key"]:
        """Arrange the numbers of a text's cells, row by row, in a matrix, symmetric if the pairs are."""
        matrix = torch.zeros_like(self.pair_weights[0], dtype=numbers.dtype)
        matrix[self.cells[0]] = numbers
        return (matrix + matrix.mT if self.options.symmetric else matrix)[None, None]

    def counts(self) -> "list[TextCounts]":
        """The divisors of each text's sums, with the sums for chance and for fixed offsets."""
        return [
            TextCounts.of(
                self.pair_weights[text],
                self.allowed[text],
                self.cells[text],
                self.num_ranked[text],
                self.directions,
                origin=int(self.real_keys[text].int().argmax() - self.real_queries[text].int().argmax()),
            )
            for text in range(len(self.pair_weights))
        ]


class TextCounts(NamedTuple):
    """The counts of a text by direction and measure: divisor, number of trials, sum expected by chance.

    `offsets` has one row per offset, starting at `first_offset`: the sums of a head that always looks at that
    distance.
    """

    divisors: Float[Tensor, "direction measure"]
    trials: Float[Tensor, "direction measure"]
    chance: Float[Tensor, "direction measure"]
    offsets: Float[Tensor, "offset measure"]
    num_queries: int
    num_pairs: int
    origin: int
    """The distance from the first query position to the first key position."""

    @property
    def first_offset(self) -> int:
        """The offset of the first row."""
        return 1 - self.num_queries - self.origin

    def at(self, offset: int) -> Float[Tensor, " measure"]:
        """The sums of a head that always looks at this offset."""
        row = offset - self.first_offset
        return self.offsets[row] if 0 <= row < len(self.offsets) else self.beyond()

    def beyond(self) -> Float[Tensor, " measure"]:
        """The sums for an offset that no two positions of the text have."""
        sums = self.chance[0].clone()
        sums[[0, MASS]] = 0.0
        return sums

    @classmethod
    def of(
        cls,
        pair_weights: Float[Tensor, "query key"],
        allowed: Bool[Tensor, "query key"],
        cells: Bool[Tensor, "query key"],
        num_ranked: Int[Tensor, " part"],
        directions: Sequence[str],
        origin: int,
    ) -> "TextCounts":
        """Count a text; see `BatchOfPairs`."""
        pair_weights, ranked = pair_weights.double(), num_ranked.double()
        num_rows, num_columns = ((pair_weights > 0).any(dim=dim).sum().double() for dim in (1, 0))
        ones = torch.ones(len(PARTS), dtype=torch.float64)
        cell_share = (pair_weights * cells).sum() / cells.sum()
        by_chance = (pair_weights.sum(dim=1) / allowed.sum(dim=1).clamp(min=1)).sum()
        divisors, trials, chance = [], [], []
        for direction in directions:
            looking = num_columns if direction == "backward" else num_rows
            divisors.append(torch.cat([num_rows[None], ones, looking[None]]))
            trials.append(torch.cat([num_rows[None], ranked, torch.full((1,), torch.inf)]))
            chance.append(torch.cat([by_chance[None], cell_share * ones, torch.full((1,), torch.nan)]))
        offsets = _offset_sums(pair_weights * allowed, cells, ranked)
        num_pairs = int((pair_weights > 0).logical_and(cells).sum())
        rows = torch.stack(divisors), torch.stack(trials), torch.stack(chance)
        return cls(*rows, offsets, len(pair_weights), num_pairs, origin)


def _offset_sums(
    pair_weights: Float[Tensor, "query key"], cells: Bool[Tensor, "query key"], ranked: Float[Tensor, " part"]
) -> Float[Tensor, "offset measure"]:
    """The sums of a head that always looks at a fixed offset, and so ranks the cells at that offset first."""
    num_queries, num_keys = pair_weights.shape
    offset = (torch.arange(num_keys) - torch.arange(num_queries)[:, None] + num_queries - 1).flatten()
    zeros = torch.zeros(num_queries + num_keys - 1, dtype=torch.float64)
    at_offset = zeros.index_add(0, offset, pair_weights.flatten())
    inside, pairs = cells.double(), pair_weights * cells
    num_cells = zeros.index_add(0, offset, inside.flatten())
    num_pairs = zeros.index_add(0, offset, pairs.flatten())
    first = torch.minimum(num_cells[:, None], ranked)
    other_share = (pairs.sum() - num_pairs) / (inside.sum() - num_cells).clamp(min=1)
    among = (
        num_pairs[:, None] * first / num_cells.clamp(min=1)[:, None] + (ranked - first) * other_share[:, None]
    )
    return torch.cat([at_offset[:, None], among / ranked, at_offset[:, None]], dim=1)
