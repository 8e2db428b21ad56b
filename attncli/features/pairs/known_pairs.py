"""Heads that look from one position of known pairs to the other, tested on held-out texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.names import PairMethod
from attncli.core.summaries import clustered_interval
from attncli.features.pairs.held_out import PairTable, PairTotals, StackedHead, TestedChoice, chosen
from attncli.features.pairs.pair_counts import MASS, MEASURES, NOBODY, BatchOfPairs, PairOptions
from attncli.features.pairs.pair_files import PairedText
from attncli.features.pairs.pair_runs import BatchTaker, PairReader, PairRun
from attncli.features.pairs.pair_scores import CountingTaker, PairFeatures, PairRegression
from attncli.features.pairs.results import (
    BestNumbers,
    BestOnPairs,
    CombinedHeads,
    ExampleOfPair,
    HeadCoefficient,
    HeadOnMeasure,
    HeadOnPairs,
    HeadsOnPairs,
)
from attncli.measure.folds import TextSplit
from attncli.models.text_files import ManyTexts
from attncli.records.columns import Records
from attncli.records.values import NamedTensor


class MeanTaker(BatchTaker):
    """Sums the scores of the best heads in several orders, and measures the first K of each order."""

    def __init__(
        self,
        texts: Sequence[PairedText],
        pairs: BatchOfPairs,
        orders: Sequence[Sequence[tuple[int, StackedHead]]],
        sizes: Sequence[int],
        totals: "dict[int, Float[Tensor, 'order size measure']]",
    ) -> None:
        self.texts, self.pairs, self.orders, self.sizes, self.totals = texts, pairs, orders, sizes, totals
        num_texts, num_queries, num_keys = pairs.pair_weights.shape
        self._sums = torch.zeros(num_texts, len(orders) * len(sizes), num_queries, num_keys)

    def take(self, places: Sequence[StackedHead], weights: Float[Tensor, "text head query key"]) -> None:
        scores, numbers = self.pairs.scores(weights), {place: number for number, place in enumerate(places)}
        for start, order in zip(range(0, self._sums.shape[1], len(self.sizes)), self.orders, strict=True):
            for rank, (direction, place) in enumerate(order):
                if place not in numbers:
                    continue
                head_scores = scores[direction][:, numbers[place]]
                for number, size in enumerate(self.sizes):
                    if rank < size:
                        self._sums[:, start + number] += head_scores

    def end(self) -> None:
        shares = self.pairs.shares(self._sums)
        for text, text_shares in zip(self.texts, shares, strict=True):
            self.totals[text.line.line] = text_shares.view(len(self.orders), len(self.sizes), -1)


class ExampleTaker(BatchTaker):
    """Keeps the weights of one head in one text."""

    def __init__(self, place: StackedHead) -> None:
        self.place = place
        self.weights = torch.empty(0)

    def take(self, places: Sequence[StackedHead], weights: Float[Tensor, "text head query key"]) -> None:
        if self.place in places:
            number = places.index(self.place)
            self.weights = weights[:, number : number + 1].clone()

    def end(self) -> None:
        """Do nothing, because the weights are complete."""


NO_HEAD_NOTE = "The regression gives every head the weight 0: it predicts pairs no better than chance."
MEAN_SIZES = (1, 2, 4, 8, 16)
"""The numbers of best heads to average, up to the number of heads."""
LONGEST_EXAMPLE, MOST_STRONGEST = 40, 10


def known_pairs(
    reader: PairReader,
    many: ManyTexts[PairedText],
    *,
    method: PairMethod = "heads",
    folds: int | None = None,
    seed: int = 0,
    ablate: Sequence[str] = (),
) -> HeadsOnPairs:
    """Measure the heads that look from one position of known pairs to the other.

    The best head by each measure is chosen on half of the text groups and measured on the other half, which
    is sampled with `seed`; with `folds`, each of that many parts is held out in turn. Depending on `method`,
    the mean score of the best heads or an L1 logistic regression over all heads (Rao et al. 2021) is fitted
    and tested in the same way. Raises UserError if no text has a pair that counts, or if there are fewer
    groups than folds, and MemoryError if memory runs out.
    """
    totals, features = PairTotals(), PairFeatures() if method == "logistic" else None
    run = PairRun(reader, many, ablate=ablate)
    run.go(lambda texts, pairs: CountingTaker(texts, pairs, totals, features))
    table = PairTable(totals, folds, seed)
    left_out, notes = reader.left_out.table(), (*many.notes(), *run.notes)
    best = [best_head(table, measure) for measure in range(len(MEASURES))]
    combined = CombinedHeads.rows([])
    regression = probability = None
    strongest, line = best[reader.options.primary], _example_line(table)
    example = head_example(reader, many, line, strongest.place, strongest.direction, ablate=ablate)
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
        measures=BestOnPairs.joined(each.row() for each in best),
        strongest=_strongest(intervals, reader.options),
        combined=combined,
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


class Baselines(NamedTuple):
    """The shares that the best fixed offset and chance reach."""

    offset: int
    offset_share: float | None
    chance: float


class BestHead(NamedTuple):
    """The head that most splits chose by a measure, compared with the best offset and with chance."""

    measure: str
    place: StackedHead
    direction: str
    choice: TestedChoice
    baselines: Baselines

    def row(self) -> Records[BestOnPairs]:
        """The head's row in the table of best heads."""
        cells = {
            "measure": self.measure,
            **self.place._asdict(),
            "direction": self.direction,
            **self.choice.numbers(),
            **self.baselines._asdict(),
            "agreeing": self.choice.split_choices.count(self.choice.most_often),
            "folds": len(self.choice.split_choices),
        }
        return BestOnPairs.rows([cells])

    def combined(self, num_heads: int, choice: TestedChoice) -> Records[CombinedHeads]:
        """A table row for several heads together, with this head's measure."""
        cells = {"measure": self.measure, "num_heads": num_heads, **choice.numbers()}
        return CombinedHeads.rows([{**cells, **self.baselines._asdict()}])


def best_head(table: PairTable, measure: int) -> BestHead:
    """The best head by a measure, tested on held-out texts."""
    num_heads = len(table.heads)

    def choose(split: TextSplit) -> int:
        shares = table.shares(table.sums, split.choosing)[..., measure]
        return int(shares.nan_to_num(-1.0).flatten().argmax())

    def choice_sums(pick: int) -> tuple[Tensor, Tensor]:
        direction, head = divmod(pick, num_heads)
        return table.sums[:, direction, head, measure], table.divisors[:, direction, measure]

    choice = chosen(table, measure, choose, choice_sums)
    direction, head = divmod(choice.most_often, num_heads)
    baselines = _baselines(table, measure, direction, head)
    return BestHead(MEASURES[measure], table.heads[head], table.directions[direction], choice, baselines)


def _baselines(table: PairTable, measure: int, direction: int, head: int) -> Baselines:
    """The shares of the best fixed offset and of chance, on held-out texts or, without a split, all texts."""
    divisors = table.divisors[:, direction, measure]
    offset = chosen(
        table,
        measure,
        lambda split: table.best_offset(measure, split.choosing),
        lambda pick: (table.offset_sums(pick, measure), divisors),
    )
    texts = table.tested if table.splits else table.every
    chance = float(table.chance[texts, direction, head, measure].sum() / divisors[texts].sum())
    share = offset.held_out if table.splits else offset.choosing
    return Baselines(offset.most_often, share, chance)


def _means(
    table: PairTable,
    reader: PairReader,
    many: ManyTexts[PairedText],
    best: Sequence[BestHead],
    ablate: Sequence[str],
) -> Records[CombinedHeads]:
    """The mean of the best K heads for each measure, with K chosen on the same splits as the heads."""
    num_heads, num_maps = len(table.heads), len(table.heads) * len(table.directions)
    sizes = [size for size in MEAN_SIZES if size <= num_maps]
    splits, orders = table.tried, []
    for split in splits:
        shares = table.shares(table.sums, split.choosing).nan_to_num(-1.0).flatten(0, 1)
        for by_measure in shares.T[:MASS]:
            strongest = by_measure.argsort(descending=True, stable=True)[: sizes[-1]].tolist()
            orders.append([(pick // num_heads, table.heads[pick % num_heads]) for pick in strongest])
    totals: dict[int, Tensor] = {}
    again = PairReader(reader.pretrained, reader.options, truncate=reader.truncate)
    run = PairRun(again, replace(many, read=again.read, num_read=0, num_left_out=0), ablate=ablate)
    run.go(lambda texts, pairs: MeanTaker(texts, pairs, orders, sizes, totals))
    sums = torch.stack([totals[line] for line in table.lines])
    sums = sums.view(len(sums), len(splits), MASS, len(sizes), -1)
    rows = []
    for measure in range(MASS):
        by_measure, divisors = sums[:, :, measure, :, measure], table.divisors[:, 0, measure]

        def choose(split: TextSplit, by_measure: Tensor = by_measure) -> int:
            choosing_sums = by_measure[split.choosing, split.number].sum(dim=0)
            return split.number * len(sizes) + int(choosing_sums.argmax())

        def choice_sums(
            pick: int, by_measure: Tensor = by_measure, divisors: Tensor = divisors
        ) -> tuple[Tensor, Tensor]:
            return by_measure[:, pick // len(sizes), pick % len(sizes)], divisors

        choice = chosen(table, measure, choose, choice_sums)
        chosen_sizes = Counter(sizes[pick % len(sizes)] for pick in choice.split_choices)
        ((size, _),) = chosen_sizes.most_common(1)
        rows.append(best[measure].combined(size, choice))
    return CombinedHeads.joined(rows)


def _regression(
    table: PairTable, features: PairFeatures, best: Sequence[BestHead], seed: int
) -> tuple[Records[CombinedHeads], PairRegression]:
    """One regression per split, tested on its held-out texts; with several splits, also one on all texts."""
    splits = table.tried
    fitted = [features.fit(split.choosing, seed) for split in splits]
    sums = torch.stack([features.shares(each) for each in fitted])
    final = fitted[0] if len(fitted) == 1 else features.fit(table.every, seed)
    if any(not each.coefficients.any() for each in fitted):
        return CombinedHeads.rows([]), final
    rows = []
    for measure in range(MASS):
        measure_sums, divisors = sums[..., measure], table.divisors[:, 0, measure]
        parts = [(split_sums, divisors) for split_sums in measure_sums]
        choice = chosen(table, measure, lambda split: split.number, parts.__getitem__)
        num_heads = int((final.coefficients != 0).sum())
        rows.append(best[measure].combined(num_heads, choice))
    return CombinedHeads.joined(rows), final


def _coefficients(table: PairTable, regression: PairRegression | None) -> Records[HeadCoefficient]:
    """The heads that a regression uses, largest weight first."""
    places = [(direction, place) for direction in table.directions for place in table.heads]
    weights = [] if regression is None else regression.coefficients.tolist()
    rows = [
        {**place._asdict(), "direction": direction, "coefficient": weight}
        for (direction, place), weight in zip(places, weights, strict=False)
        if weight
    ]
    return HeadCoefficient.rows(rows).sorted(lambda row: -abs(row.coefficient))


def _strongest(intervals: Records[HeadOnMeasure], options: PairOptions) -> Records[HeadOnMeasure]:
    """The heads with the largest shares on the choosing texts, each in its better direction."""
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
    shares_by_name = {
        f"{measure}.{direction}": shares[at, :, number].tolist()
        for number, measure in enumerate(MEASURES)
        for at, direction in enumerate(table.directions)
    }
    places = [place._asdict() for place in table.heads]
    return HeadOnPairs.table(
        **{name: [place[name] for place in places] for name in places[0]}, **shares_by_name
    )


def _intervals(table: PairTable) -> Records[HeadOnMeasure]:
    """The shares by head, direction and measure: over all texts, on both parts of a split, and by chance."""
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
    """A text, a head's scores in it, and the cells that are pairs."""

    rows: Records[ExampleOfPair]
    tokens: tuple[str, ...]
    context_tokens: tuple[str, ...]
    scores: Float[Tensor, "query key"]
    pairs: BatchOfPairs
    direction: str

    def turned(self, matrix: Tensor) -> Tensor:
        """A matrix as the head sees it: transposed if the second position looks at the first."""
        return matrix.mT if self.direction == "backward" else matrix

    def matrices(self, probability: Float[Tensor, "query key"] | None) -> dict[str, NamedTensor]:
        """The matrices by name: the pairs, and the head's weights or the scores that rank symmetric pairs."""
        scores = self.turned(self.scores)
        is_counted = self.pairs.allowed[0]
        matrices = {"weights": scores}
        if self.direction == "symmetric":
            matrices = {"pair_scores": scores.masked_fill(~is_counted, torch.nan)}
        if probability is not None:
            matrices["probability"] = probability.masked_fill(~self.turned(is_counted), torch.nan)
        matrices["pairs"] = self.turned(self.pairs.pair_weights[0])
        return {name: NamedTensor(("query", "key"), matrix.numpy()) for name, matrix in matrices.items()}


def _example_line(table: PairTable) -> int:
    """The line of the example: of the held-out texts that are not too long, the text with the most pairs."""
    places = table.tested.nonzero().flatten().tolist() if table.splits else [*range(len(table.lines))]
    lengths = {place: table.num_queries(place) for place in places}
    short = [place for place, length in lengths.items() if length <= LONGEST_EXAMPLE]
    short.sort(key=lambda place: -table.num_pairs_in(place))
    return int(table.lines[short[0] if short else min(lengths, key=lambda place: lengths[place])])


def head_example(
    reader: PairReader,
    many: ManyTexts[PairedText],
    line: int,
    place: StackedHead,
    direction: str,
    ablate: Sequence[str] = (),
) -> ExampleOfHead:
    """A head's scores in the text on a line, with one row per position that has a pair."""
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
        [*zip(side_positions, side_tokens, strict=True)]
        for side_positions, side_tokens in zip(pairs.positions[0], (tokens, context or tokens), strict=True)
    )
    written = reader.pretrained.written_tokens(words.context or words.text)
    rows = [
        _example_row(pairs.pair_weights[0, query], query, key, scores[0, 0, query], queries, keys, written)
        for query, key in zip(pairs.queries.tolist(), looked_at, strict=True)
    ]
    return ExampleOfHead(ExampleOfPair.joined(rows), tokens, context, scores[0, 0], pairs, direction)


def _example_row(
    pair_weights: Float[Tensor, " key"],
    query: int,
    key: int,
    scores: Float[Tensor, " key"],
    queries: Sequence[tuple[int, str]],
    keys: Sequence[tuple[int, str]],
    written: Sequence[str],
) -> Records[ExampleOfPair]:
    partners = pair_weights.nonzero().flatten().tolist()
    position, token = queries[query]
    looked_at, looked_at_token = (None, "") if key == NOBODY else keys[key]
    cells = {
        "query": query,
        "position": position,
        "token": token,
        "partners": ", ".join(f"{keys[partner][0]} {written[partner]}" for partner in partners),
        "key": None if key == NOBODY else key,
        "looked_at": looked_at,
        "looked_at_token": looked_at_token,
        "weight": None if key == NOBODY else float(scores[key]),
        "is_hit": int(key in partners),
    }
    return ExampleOfPair.rows([cells])
