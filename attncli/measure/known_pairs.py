"""Which heads look from one position of known pairs to the other, tested on texts that were held out."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.names import PairMethod
from attncli.core.row_tiles import side_by_side
from attncli.core.summaries import clustered_interval
from attncli.errors import UserError, refuse_bytes
from attncli.measure.heads import refuse_merged
from attncli.measure.held_out import Choice, HeadPlace, PairTable, PairTotals, Split, chosen
from attncli.measure.pair_counts import (
    MASS,
    MEASURES,
    NOBODY,
    BatchOfPairs,
    CellsOfText,
    LeftOut,
    PairOptions,
    cells_of,
    merging_of,
)
from attncli.measure.removal import AblatedHeads
from attncli.models.capture import Way, capture, in_step, together
from attncli.models.known_pairs import PairedText, words_between_blanks
from attncli.models.layers import CapturedLayer, DeferredLayers
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.text_files import ManyTexts, TokenIds
from attncli.plain_text import counted
from attncli.records.columns import Records
from attncli.records.known_pairs import (
    BestNumbers,
    BestOnPairs,
    CombinedHeads,
    ExampleOfPair,
    FittedRegression,
    HeadCoefficient,
    HeadOnMeasure,
    HeadOnPairs,
    HeadsOnPairs,
    ScoresOfPositions,
)
from attncli.records.values import NamedTensor

NO_OFFSETS = (
    'does not say where its tokens stand in the text: give pairs with "unit": "token", counted as the model '
    "reads them, special tokens and all"
)


class PairReader:
    """Reads texts as a model does, and finds where their pairs stand."""

    def __init__(
        self, pretrained: Pretrained, options: PairOptions | None = None, *, truncate: bool = False
    ) -> None:
        self.pretrained, self.options, self.truncate = pretrained, options or PairOptions(), truncate
        self.left_out = LeftOut()
        self.unit = ""
        self._read: dict[int, tuple[CellsOfText, Reading]] = {}

    def read(self, paired: PairedText) -> Reading:
        """A text as the model reads it, in tokens. Raises UserError for one without a pair that counts."""
        self.unit = paired.unit
        reading = self.reading(paired)
        left_out = LeftOut()
        cells = cells_of(paired, reading, self.pretrained, self.options, left_out)
        if not cells.known.any():
            raise UserError(f"pairs: {_why_none_counts(paired, left_out)}")
        self.left_out.add_all(left_out)
        self._read[paired.line.line] = cells, reading
        # Texts of as many tokens run together, of however many words.
        context = None if reading.context is None else replace(reading.context, words=None)
        return Reading(replace(reading.text, words=None), context)

    def reading(self, paired: PairedText) -> Reading:
        """A text with its words; with a decoder its context goes to the encoder."""
        model, line = self.pretrained, paired.line
        if paired.names:
            line = line._replace(text=ids_of_names(model, paired.names))
        if line.context is not None and self.options.symmetric:
            raise UserError("symmetric: pairs of two texts have a direction: leave it out")
        if line.context is not None and not model.has_decoder:
            raise UserError(f"context: {model.name} has no decoder: it reads one text")
        if line.context is None and model.has_decoder:
            raise UserError(
                f"context: must be given for {model.name}, whose decoder looks at what its encoder reads"
            )
        texts = []
        for text in (line.text, line.context) if line.context is not None else (line.text,):
            if paired.unit == "character" and model.has_decoder:
                raise UserError(f"unit: characters are not for {model.name}, which has a decoder: give words")
            is_spelled = paired.unit == "character" and not model.tokenizer.is_fast
            if paired.unit == "word" and not model.tokenizer.is_fast:
                raise UserError(f"unit: the tokenizer of {model.name} {NO_OFFSETS}")
            read = model.read(
                text,
                "pairs",
                truncate=self.truncate,
                words=paired.words_of if paired.unit == "word" else None,
                with_spans=paired.unit == "character" and not is_spelled,
            )
            texts.append(
                replace(read, spans=spans_of_spelling(read, str(text), model)) if is_spelled else read
            )
        reading = Reading(texts[0]) if len(texts) == 1 else Reading(model.shifted_right(texts[0]), texts[1])
        if paired.unit == "word":
            refuse_merged(reading, model, "shorter texts")
        return reading

    def batch(self, texts: Sequence[PairedText]) -> BatchOfPairs:
        """Texts that run together, once each has been read."""
        cells, readings = zip(*(self._read.pop(text.line.line) for text in texts), strict=True)
        merging = merging_of(readings) if self.unit == "word" else None
        is_cross = readings[0].context is not None
        return BatchOfPairs(cells, self.options, is_cross=is_cross, merging=merging)


def spans_of_spelling(read: ModelText, text: str, pretrained: Pretrained) -> list[tuple[int, int]]:
    """The characters of each token of a text that its tokens spell one after another, as amino acids do.

    Raises UserError where they do not: a tokenizer without offsets says no more of them.
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
    """Why a text has no pair that counts."""
    if not paired.pairs:
        return "has no pairs"
    why, first = next(iter(left_out.first.items()))
    words = words_between_blanks(paired.line.text)
    is_one_word = paired.unit == "word" and max(words, default=0) == 0
    hint = '; the text is one word: is "unit": "character" missing?' if is_one_word else ""
    pair = first.partition(": ")[2]
    return f"none of its {counted(len(paired.pairs), 'pair')} counts: {pair} is {why}{hint}"


def ids_of_names(pretrained: Pretrained, names: Sequence[str]) -> TokenIds:
    """The ids of tokens. Raises UserError for one that the vocabulary does not have."""
    tokenizer = pretrained.tokenizer
    ids = tokenizer.convert_tokens_to_ids([*names])
    assert isinstance(ids, list), "of a list"
    for place, (name, number) in enumerate(zip(names, ids, strict=True)):
        if number is None or (number == tokenizer.unk_token_id and name != tokenizer.unk_token):
            raise UserError(f"tokens[{place}]: {name!r:.60} is not in the vocabulary of {pretrained.name}")
    return TokenIds.of({"ids": ids, "tokens": [*names]})


class BatchTaker:
    """Takes the weights of the layers of texts that run together, and then what follows from all of them."""

    def take(self, places: Sequence[HeadPlace], weights: Float[Tensor, "text head query key"]) -> None:
        """Take the weights of some heads."""
        raise NotImplementedError

    def end(self) -> None:
        """All layers are there."""
        raise NotImplementedError


class PairRun:
    """Runs a model over texts with pairs, and hands over the weights between their positions."""

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
        """Run all texts; of each batch that ran together `begin` gives what takes its layers, and its end."""
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
        """Run the model on texts of equal counts."""
        pretrained = self.reader.pretrained

        def measure(layers: Sequence[CapturedLayer]) -> None:
            if pairs.is_cross == (layers[0].kind == "cross"):
                places = [
                    HeadPlace(layer.stack_name, layer.layer, head)
                    for layer in layers
                    for head in range(layer.attention.shape[1])
                ]
                together = side_by_side([layer.attention for layer in layers])
                weights = replace(layers[0], attention=together).weights().float().cpu()
                taker.take(places, pairs.between_positions(weights))

        later = DeferredLayers(measure)
        with ExitStack() as hooks:
            ablated = AblatedHeads(self.ablate, pretrained, later.take, hooks)
            way = capture(pretrained.model, pretrained.inputs(readings), ablated.take)
        later.finish()
        ablated.check_all_found()
        return way


class CountingTaker(BatchTaker):
    """Counts what heads find, and keeps their scores of all cells where a regression is fitted to them."""

    def __init__(
        self,
        texts: Sequence[PairedText],
        pairs: BatchOfPairs,
        totals: PairTotals,
        features: "PairFeatures | None",
    ) -> None:
        self.texts, self.pairs, self.totals, self.features = texts, pairs, totals, features
        self._places: list[HeadPlace] = []
        self._numbers: list[Tensor] = []
        self._scores: list[Tensor] = []

    def take(self, places: Sequence[HeadPlace], weights: Float[Tensor, "text head query key"]) -> None:
        self._places += places
        self._numbers.append(self.pairs.numbers(weights))
        if self.features is not None:
            self._scores.append(torch.stack(self.pairs.scores(weights), dim=1))

    def end(self) -> None:
        order = sorted(range(len(self._places)), key=self._places.__getitem__)
        places = [self._places[number] for number in order]
        self.totals.add(self.pairs, self.texts, places, torch.cat(self._numbers, dim=2)[:, :, order])
        if self.features is not None:
            self.features.add(self.texts, self.pairs, torch.cat(self._scores, dim=2)[:, :, order])


class PairFeatures:
    """The scores of every head at each two positions that count, text by text, to fit a regression to."""

    def __init__(self) -> None:
        self._texts: list[tuple[int, BatchOfPairs, Float[Tensor, "cell map"]]] = []
        self._bytes = 0

    def add(
        self,
        texts: Sequence[PairedText],
        pairs: BatchOfPairs,
        of_heads: Float[Tensor, "text direction head query key"],
    ) -> None:
        """Add texts that ran together. Raises UserError where all scores do not fit into memory."""
        scores = of_heads.flatten(1, 2)
        self._bytes += int(pairs.cells.sum()) * scores.shape[1] * BYTES_PER_SCORE
        refuse_bytes("pairs", self._bytes, "fewer or shorter texts")
        for number, text in enumerate(texts):
            of_text = scores[number][:, pairs.cells[number]].T.contiguous()
            self._texts.append((text.line.line, pairs.of_text(number), of_text))

    def in_order(self) -> "list[tuple[BatchOfPairs, Float[Tensor, 'cell map']]]":
        """The texts in the order of the file, each with the scores of its cells, row by row."""
        return [(pairs, scores) for _, pairs, scores in sorted(self._texts, key=lambda each: each[0])]

    def table(self, totals: PairTotals) -> Records[ScoresOfPositions]:
        """A row for each two positions, with a column for each head and direction."""
        parts = sorted(self._texts, key=lambda each: each[0])
        places = [pairs.cells[0].nonzero().numpy() for _, pairs, _ in parts]
        firsts, seconds = (
            np.concatenate(
                [
                    np.array(pairs.positions[0][side])[of_text[:, side]]
                    for (_, pairs, _), of_text in zip(parts, places, strict=True)
                ]
            )
            for side in (0, 1)
        )
        scores = torch.cat([scores for _, _, scores in parts]).double().numpy()
        named = [
            f"{place.layer}:{place.head}" + " backward" * (direction == "backward")
            for direction in totals.directions
            for place in totals.heads
        ]
        return ScoresOfPositions.table(
            text=np.repeat([line for line, *_ in parts], [len(each) for each in places]),
            first=firsts,
            second=seconds,
            weight=torch.cat([pairs.known[pairs.cells] for _, pairs, _ in parts]).double().numpy(),
            **{name: scores[:, number] for number, name in enumerate(named)},
        )

    def fit(self, texts: Bool[Tensor, " text"], seed: int) -> "PairRegression":
        """The regression of some of the texts."""
        parts = [part for part, is_chosen in zip(self.in_order(), texts.tolist(), strict=True) if is_chosen]
        is_pair = [(pairs.known > 0)[pairs.cells] for pairs, _ in parts]
        return fitted_regression(torch.cat([scores for _, scores in parts]), torch.cat(is_pair), seed=seed)

    def probabilities(self, regression: "PairRegression", line: int) -> Float[Tensor, "query key"]:
        """The probability of each two positions of a text to be a pair."""
        pairs, scores = next((pairs, scores) for number, pairs, scores in self._texts if number == line)
        return pairs.as_map(regression.probabilities(scores))[0, 0]

    def shares(self, regression: "PairRegression") -> Float[Tensor, "text measure"]:
        """What the probabilities of a regression find, text by text."""
        found = []
        for pairs, scores in self.in_order():
            found.append(pairs.shares(pairs.as_map(regression.probabilities(scores)))[0, 0])
        return torch.stack(found)


def scores_of_positions(
    reader: PairReader, many: ManyTexts[PairedText], *, ablate: Sequence[str] = ()
) -> Records[ScoresOfPositions]:
    """The scores of every head at each two positions that count: what regressions are fitted to."""
    totals, features = PairTotals(), PairFeatures()
    run = PairRun(reader, many, ablate=ablate)
    run.go(lambda texts, pairs: CountingTaker(texts, pairs, totals, features))
    return features.table(totals)


BYTES_PER_SCORE = 24
"""In float32, joined, and in the float64 of scikit-learn."""
PENALTY = 0.15
"""Inverse strength of the L1 penalty, C: Rao et al. 2021 (10.1101/2020.12.15.422761)."""


@dataclass(frozen=True)
class PairRegression:
    """P(pair) = 1 / (1 + exp(-(sum_h w_h s_h + b))) of the scores s of all heads at two positions."""

    coefficients: Float[Tensor, " map"]
    intercept: float

    def record(self) -> FittedRegression:
        """What a result has of it beside its coefficients."""
        return FittedRegression.single(intercept=self.intercept, c=PENALTY)

    def probabilities(self, scores: Float[Tensor, "*cell map"]) -> Float[Tensor, "*cell"]:
        """The probability that two positions are a pair, from the scores of all heads."""
        return (scores.double() @ self.coefficients + self.intercept).sigmoid()


def fitted_regression(
    scores: Float[Tensor, "cell map"], is_pair: Bool[Tensor, " cell"], *, seed: int = 0
) -> PairRegression:
    """The logistic regression with an L1 penalty that Rao et al. (2021) fit to contacts: liblinear, C = 0.15.

    UserError without scikit-learn, and where there is nothing to tell apart.
    """
    try:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # an extra
    except ImportError:
        raise UserError('method: logistic needs: pip install "attncli[probe]"') from None
    if bool(is_pair.all()) or not bool(is_pair.any()):
        raise UserError("method: logistic needs texts in which some positions are pairs and some are not")
    model = LogisticRegression(l1_ratio=1, C=PENALTY, solver="liblinear", random_state=seed)
    model.fit(scores.numpy(), is_pair.numpy())
    return PairRegression(torch.from_numpy(model.coef_[0]), float(model.intercept_[0]))


class MeanTaker(BatchTaker):
    """Adds up the scores of the best heads in several orders, and counts what the first K of them find."""

    def __init__(
        self,
        texts: Sequence[PairedText],
        pairs: BatchOfPairs,
        orders: Sequence[Sequence[tuple[int, HeadPlace]]],
        sizes: Sequence[int],
        totals: "dict[int, Float[Tensor, 'order size measure']]",
    ) -> None:
        self.texts, self.pairs, self.orders, self.sizes, self.totals = texts, pairs, orders, sizes, totals
        num_texts, num_queries, num_keys = pairs.known.shape
        self._sums = torch.zeros(num_texts, len(orders) * len(sizes), num_queries, num_keys)

    def take(self, places: Sequence[HeadPlace], weights: Float[Tensor, "text head query key"]) -> None:
        scores, numbers = self.pairs.scores(weights), {place: number for number, place in enumerate(places)}
        for start, order in zip(range(0, self._sums.shape[1], len(self.sizes)), self.orders, strict=True):
            for rank, (direction, place) in enumerate(order):
                if place not in numbers:
                    continue
                of_head = scores[direction][:, numbers[place]]
                for number, size in enumerate(self.sizes):
                    if rank < size:
                        self._sums[:, start + number] += of_head

    def end(self) -> None:
        shares = self.pairs.shares(self._sums)
        for text, of_text in zip(self.texts, shares, strict=True):
            self.totals[text.line.line] = of_text.view(len(self.orders), len(self.sizes), -1)


class ExampleTaker(BatchTaker):
    """Keeps the weights of one head in a text."""

    def __init__(self, place: HeadPlace) -> None:
        self.place = place
        self.weights = torch.empty(0)

    def take(self, places: Sequence[HeadPlace], weights: Float[Tensor, "text head query key"]) -> None:
        if self.place in places:
            number = places.index(self.place)
            self.weights = weights[:, number : number + 1].clone()

    def end(self) -> None:
        """Nothing follows."""


NO_HEAD_NOTE = "The regression gives every head the weight 0: it tells no more than chance."
MEAN_SIZES = (1, 2, 4, 8, 16)
"""How many of the best heads are averaged, as far as there are so many."""
LONGEST_EXAMPLE, MOST_STRONGEST = 40, 10
Row = dict[str, str | float | int | None]


def known_pairs(
    pretrained: Pretrained,
    many: ManyTexts[PairedText],
    reader: PairReader,
    *,
    method: PairMethod = "heads",
    folds: int | None = None,
    seed: int = 0,
    ablate: Sequence[str] = (),
) -> HeadsOnPairs:
    """Which heads look from one position of the known pairs of some texts to the other.

    The best head of each measure is chosen on one half of the groups of texts, and its number is that of the
    other half, sampled by `seed`; with `folds` each of so many parts is held out in turn. By `method` also
    the mean of the scores of the best heads, or an L1 logistic regression over all (Rao et al. 2021), is
    chosen and tested likewise. UserError where no text has a pair that counts, or fewer groups than folds;
    MemoryError.
    """
    totals, features = PairTotals(), PairFeatures() if method == "logistic" else None
    run = PairRun(reader, many, ablate=ablate)
    run.go(lambda texts, pairs: CountingTaker(texts, pairs, totals, features))
    table = PairTable(totals, folds, seed)
    left_out, notes = reader.left_out.table(), (*many.notes(), *run.notes)
    best = [best_head(table, measure) for measure in range(len(MEASURES))]
    combined: list[Row] = []
    regression = probability = None
    strongest, line = best[reader.options.primary], _example_line(table)
    example = example_of_head(reader, many, line, strongest.place, strongest.direction, ablate=ablate)
    if features is not None:
        combined, regression = _regression(table, features, best, seed)
        probability = example.turned(features.probabilities(regression, line))
        notes += (NO_HEAD_NOTE,) * (not combined)
    elif method == "mean":
        combined = _means(table, reader, many, best, ablate)
    matrices, intervals = example.matrices(probability), _intervals(table)
    return HeadsOnPairs(
        best=BestNumbers.single(**{each.measure: each.choice.held_out for each in best}),
        num_texts=len(table.lines),
        num_positions=int(table.divisors[:, 0, 0].sum()),
        num_pairs=table.num_pairs,
        num_groups=table.num_groups,
        measures=BestOnPairs.rows(each.row() for each in best),
        strongest=_strongest(intervals, reader.options),
        combined=CombinedHeads.rows(combined),
        coefficients=_coefficients(table, regression),
        regression=None if regression is None else regression.record(),
        left_out=left_out,
        example=example.rows,
        tokens=example.tokens,
        context_tokens=example.context_tokens,
        weights=matrices.get("weights"),
        pair_scores=matrices.get("pair_scores"),
        probability=matrices.get("probability"),
        pairs=matrices["pairs"],
        unit=reader.unit,
        heads=_heads(table),
        intervals=intervals,
        notes=notes,
    )


class BestHead(NamedTuple):
    """The head that most splits chose by a measure, and beside it the best offset and chance."""

    measure: str
    place: HeadPlace
    direction: str
    choice: Choice
    baselines: Row

    def row(self) -> Row:
        """What the table has of it."""
        return {
            "measure": self.measure,
            **self.place._asdict(),
            "direction": self.direction,
            **self.choice.numbers(),
            **self.baselines,
            "agreeing": self.choice.of_splits.count(self.choice.most_often),
            "folds": len(self.choice.of_splits),
        }


def best_head(table: PairTable, measure: int) -> BestHead:
    """The best head by a measure, tested on the texts that were held out."""
    num_heads = len(table.heads)

    def choose(split: Split) -> int:
        shares = table.shares(table.sums, split.choosing)[..., measure]
        return int(shares.nan_to_num(-1.0).flatten().argmax())

    def sums_of(pick: int) -> tuple[Tensor, Tensor]:
        direction, head = divmod(pick, num_heads)
        return table.sums[:, direction, head, measure], table.divisors[:, direction, measure]

    choice = chosen(table, measure, choose, sums_of)
    direction, head = divmod(choice.most_often, num_heads)
    baselines = _baselines(table, measure, direction, head)
    return BestHead(MEASURES[measure], table.heads[head], table.directions[direction], choice, baselines)


def _baselines(table: PairTable, measure: int, direction: int, head: int) -> Row:
    """What the best fixed offset and chance reach on the texts held out, or on all without a split."""
    divisors = table.divisors[:, direction, measure]
    offset = chosen(
        table,
        measure,
        lambda split: table.best_offset(measure, split.choosing),
        lambda pick: (table.sums_of_offset(pick, measure), divisors),
    )
    texts = table.tested if table.splits else table.every
    chance = float(table.chance[texts, direction, head, measure].sum() / divisors[texts].sum())
    share = offset.held_out if table.splits else offset.choosing
    return {"offset": offset.most_often, "offset_share": share, "chance": chance}


def _means(
    table: PairTable,
    reader: PairReader,
    many: ManyTexts[PairedText],
    best: Sequence[BestHead],
    ablate: Sequence[str],
) -> list[Row]:
    """The mean of the best K heads for each measure, with K chosen as the heads are."""
    num_heads, num_maps = len(table.heads), len(table.heads) * len(table.directions)
    sizes = [size for size in MEAN_SIZES if size <= num_maps]
    splits, orders = table.tried, []
    for split in splits:
        shares = table.shares(table.sums, split.choosing).nan_to_num(-1.0).flatten(0, 1)
        for of_measure in shares.T[:MASS]:
            strongest = of_measure.argsort(descending=True, stable=True)[: sizes[-1]].tolist()
            orders.append([(pick // num_heads, table.heads[pick % num_heads]) for pick in strongest])
    totals: dict[int, Tensor] = {}
    again = PairReader(reader.pretrained, reader.options, truncate=reader.truncate)
    run = PairRun(again, replace(many, read=again.read, num_read=0, num_left_out=0), ablate=ablate)
    run.go(lambda texts, pairs: MeanTaker(texts, pairs, orders, sizes, totals))
    sums = torch.stack([totals[line] for line in table.lines])
    sums = sums.view(len(sums), len(splits), MASS, len(sizes), -1)
    rows = []
    for measure, name in enumerate(MEASURES[:MASS]):
        of_measure, divisors = sums[:, :, measure, :, measure], table.divisors[:, 0, measure]

        def choose(split: Split, of_measure: Tensor = of_measure) -> int:
            number = _place_of(splits)(split)
            of_split = of_measure[split.choosing, number].sum(dim=0)
            return number * len(sizes) + int(of_split.argmax())

        def sums_of(
            pick: int, of_measure: Tensor = of_measure, divisors: Tensor = divisors
        ) -> tuple[Tensor, Tensor]:
            return of_measure[:, pick // len(sizes), pick % len(sizes)], divisors

        choice = chosen(table, measure, choose, sums_of)
        chosen_sizes = Counter(sizes[pick % len(sizes)] for pick in choice.of_splits)
        ((size, _),) = chosen_sizes.most_common(1)
        rows.append({"measure": name, "num_heads": size, **choice.numbers(), **best[measure].baselines})
    return rows


def _regression(
    table: PairTable, features: PairFeatures, best: Sequence[BestHead], seed: int
) -> tuple[list[Row], PairRegression]:
    """A regression for each split, tested on what was held out; of several splits that of all texts."""
    splits = table.tried
    fitted = [features.fit(split.choosing, seed) for split in splits]
    sums = torch.stack([features.shares(each) for each in fitted])
    final = fitted[0] if len(fitted) == 1 else features.fit(table.every, seed)
    rows: list[Row] = []
    if any(not each.coefficients.any() for each in fitted):
        return rows, final
    for measure, name in enumerate(MEASURES[:MASS]):
        of_measure, divisors = sums[..., measure], table.divisors[:, 0, measure]
        parts = [(of_split, divisors) for of_split in of_measure]
        choice = chosen(table, measure, _place_of(splits), parts.__getitem__)
        num_heads = int((final.coefficients != 0).sum())
        rows.append({"measure": name, "num_heads": num_heads, **choice.numbers(), **best[measure].baselines})
    return rows, final


def _place_of(splits: Sequence[Split]) -> Callable[[Split], int]:
    """The number of a split."""
    return lambda split: next(number for number, each in enumerate(splits) if each is split)


def _coefficients(table: PairTable, regression: PairRegression | None) -> Records[HeadCoefficient]:
    """The heads that a regression uses, the largest weight first."""
    places = [(direction, place) for direction in table.directions for place in table.heads]
    weights = [] if regression is None else regression.coefficients.tolist()
    rows = [
        {**place._asdict(), "direction": direction, "coefficient": weight}
        for (direction, place), weight in zip(places, weights, strict=False)
        if weight
    ]
    return HeadCoefficient.rows(rows).sorted(lambda row: -abs(row.coefficient))


def _strongest(intervals: Records[HeadOnMeasure], options: PairOptions) -> Records[HeadOnMeasure]:
    """The heads with the largest numbers on the texts chosen on, each in its better direction."""
    name = MEASURES[options.primary]

    def share(row: HeadOnMeasure) -> float:
        number = row.mean if row.choosing is None else row.choosing
        return -(number or 0.0)

    places: set[tuple[str, int, int]] = set()
    strongest = []
    for number in sorted(range(len(intervals)), key=lambda number: share(intervals[number])):
        row = intervals[number]
        place = row.stack, row.layer, row.head
        if row.measure == name and place not in places:
            places.add(place)
            strongest.append(number)
        if len(strongest) == MOST_STRONGEST:
            break
    return intervals.taken(strongest)


def _heads(table: PairTable) -> Records[HeadOnPairs]:
    """Every head, with each measure over all texts."""
    shares = table.shares(table.sums, table.every)
    named = {
        f"{measure}.{direction}": shares[at, :, number].tolist()
        for number, measure in enumerate(MEASURES)
        for at, direction in enumerate(table.directions)
    }
    places = [place._asdict() for place in table.heads]
    return HeadOnPairs.table(**{name: [place[name] for place in places] for name in places[0]}, **named)


def _intervals(table: PairTable) -> Records[HeadOnMeasure]:
    """Each head in each direction by each measure: over all texts, on both sides of a split, by chance."""
    trials = table.trials.sum(dim=0)[:, None]
    divisors = table.divisors[:, :, None]
    lower, upper = clustered_interval(table.sums, divisors, table.groups, trials)
    columns = {"mean": table.shares(table.sums, table.every), "lower": lower, "upper": upper}
    columns["chance"] = table.shares(table.chance, table.every)
    if len(table.splits) == 1:
        (split,) = table.splits
        columns["choosing"] = table.shares(table.sums, split.choosing)
        columns["held_out"] = table.shares(table.sums, split.held_out)
    places = [
        (direction, place, measure)
        for direction in table.directions
        for place in table.heads
        for measure in MEASURES
    ]
    nothing = [None] * len(places)
    return HeadOnMeasure.table(
        stack=[place.stack for _, place, _ in places],
        layer=[place.layer for _, place, _ in places],
        head=[place.head for _, place, _ in places],
        statistic=[f"{measure}.{direction}" for direction, _, measure in places],
        direction=[direction for direction, *_ in places],
        measure=[measure for *_, measure in places],
        **{
            name: columns[name].flatten().tolist() if name in columns else nothing
            for name in ("mean", "lower", "upper", "chance", "choosing", "held_out")
        },
    )


class ExampleOfHead(NamedTuple):
    """A text, what a head looks at in it, and which cells are pairs."""

    rows: Records[ExampleOfPair]
    tokens: tuple[str, ...]
    context_tokens: tuple[str, ...]
    scores: Float[Tensor, "query key"]
    pairs: BatchOfPairs
    direction: str

    def turned(self, matrix: Tensor) -> Tensor:
        """A matrix of pairs as the head looks: turned where the second position looks at the first."""
        return matrix.mT if self.direction == "backward" else matrix

    def matrices(self, probability: Float[Tensor, "query key"] | None) -> dict[str, NamedTensor]:
        """What the head looks at, or by what symmetric pairs are ranked; and the pairs, by their names."""
        scores = self.turned(self.scores)
        is_counted = self.pairs.allowed[0]
        named = {"weights": scores}
        if self.direction == "symmetric":
            named = {"pair_scores": scores.masked_fill(~is_counted, torch.nan)}
        if probability is not None:
            named["probability"] = probability.masked_fill(~self.turned(is_counted), torch.nan)
        named["pairs"] = self.turned(self.pairs.known[0])
        return {name: NamedTensor(("query", "key"), matrix.numpy()) for name, matrix in named.items()}


def _example_line(table: PairTable) -> int:
    """The line of the text that is shown: of those held out that are not long the one with most pairs."""
    places = table.tested.nonzero().flatten().tolist() if table.splits else [*range(len(table.lines))]
    lengths = {place: table.num_queries(place) for place in places}
    short = [place for place, length in lengths.items() if length <= LONGEST_EXAMPLE]
    short.sort(key=lambda place: -table.num_pairs_of(place))
    return int(table.lines[short[0] if short else min(lengths, key=lambda place: lengths[place])])


def example_of_head(
    reader: PairReader,
    many: ManyTexts[PairedText],
    line: int,
    place: HeadPlace,
    direction: str,
    ablate: Sequence[str] = (),
) -> ExampleOfHead:
    """What a head looks at in the text of a line: a row for each position that has a pair."""
    paired = next(text for number, text in many.file.numbered() if number == line)
    again = PairReader(reader.pretrained, reader.options, truncate=reader.truncate)
    reading = again.read(paired)
    pairs, taker = again.batch([paired]), ExampleTaker(place)
    PairRun(again, many, ablate=ablate).capture(pairs, [reading], taker)
    number = pairs.directions.index(direction)
    scores = pairs.scores(taker.weights)[number]
    looked_at = pairs.looked_at(scores)[:, 0].tolist()
    words = again.reading(paired).in_words()
    tokens = words.text.tokens
    context = () if words.context is None else words.context.tokens
    queries, keys = (
        [*zip(of_side, named, strict=True)]
        for of_side, named in zip(pairs.positions[0], (tokens, context or tokens), strict=True)
    )
    rows = [
        _row_of_example(pairs.known[0, query], query, key, scores[0, 0, query], queries, keys)
        for query, key in zip(pairs.queries.tolist(), looked_at, strict=True)
    ]
    return ExampleOfHead(ExampleOfPair.rows(rows), tokens, context, scores[0, 0], pairs, direction)


def _row_of_example(
    known: Float[Tensor, " key"],
    query: int,
    key: int,
    scores: Float[Tensor, " key"],
    queries: Sequence[tuple[int, str]],
    keys: Sequence[tuple[int, str]],
) -> Row:
    partners = known.nonzero().flatten().tolist()
    position, token = queries[query]
    looked_at, looked_at_token = (None, "") if key == NOBODY else keys[key]
    return {
        "query": query,
        "position": position,
        "token": token,
        "partners": ", ".join("{} {}".format(*keys[partner]) for partner in partners),
        "key": None if key == NOBODY else key,
        "looked_at": looked_at,
        "looked_at_token": looked_at_token,
        "weight": None if key == NOBODY else float(scores[key]),
        "is_hit": int(key in partners),
    }
