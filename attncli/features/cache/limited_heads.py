"""What a model loses where a key/value head keeps the first keys and the last ones alone: each by itself, and
together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncli.core.engines import FusedAttention, attend
from attncli.core.layer import AttentionLayer, Visibility, Wanted
from attncli.core.names import LOOKED_AT, cache_ends
from attncli.core.predictions import Predictions
from attncli.core.progress import Stage, Work
from attncli.core.row_tiles import GivenWeights
from attncli.core.runtime import idle_core_threads
from attncli.errors import UserError
from attncli.features.cache.results import (
    CacheBaseline,
    ForgottenKey,
    HeadNeed,
    KeyValueHead,
    LimitedHeads,
    Lost,
    LostTogether,
    need_in,
)
from attncli.measure.looks import rows_at
from attncli.models.capture import run_model
from attncli.models.layers import CapturedLayer
from attncli.models.patched_heads import LayerChange
from attncli.models.predicted import Judged
from attncli.models.pretrained import Pretrained
from attncli.models.removal import HeadPlace, Removed, Whole
from attncli.models.removal_runs import RemovalRuns, runs_together, work_of_run
from attncli.records.columns import Records


class Limit:
    """Key/value heads that keep the first `sink` keys and, with the query's own, the last `window`.

    Keys stay where they are: their rotations, and so the distances, are those of the whole text. What a layer
    hides anyway (a window, padding) stays hidden. Xiao et al. 2023 (2309.17453), section 3.2, who move the
    keys that are left together.
    """

    def __init__(self, sink: int, window: int) -> None:
        self.sink, self.window = sink, window
        self.whole, self._few = FusedAttention(), FusedAttention(self.columns)
        self._last: tuple[Visibility, Visibility] | None = None

    def of_call(self, call: int, limited: Sequence[Removed], whole: Whole) -> Sequence[LayerChange]:
        """The output of a call, each text with its own heads limited."""
        places = [[place.head for place in of_text if place.call == call] for of_text in limited]
        return (LayerChange("output", lambda layer: self._output(whole(layer.attention), places)),)

    def _output(
        self, attention: AttentionLayer, limited: Sequence[Sequence[int]]
    ) -> Float[Tensor, "text head query value_dim"]:
        is_limited = torch.zeros(len(limited), attention.key.shape[1], dtype=torch.bool)
        for text, heads in enumerate(limited):
            is_limited[text, [*heads]] = True
        few = None
        if is_limited.any():
            few = output_by(self._few, replace(attention, visibility=self.visibility(attention.visibility)))
            if is_limited.all():
                return few
        whole = output_by(self.whole, attention)
        if few is None:
            return whole
        of_heads = is_limited.repeat_interleave(attention.group, dim=1).to(whole.device)
        return torch.where(of_heads[..., None, None], few, whole)

    def columns(self, seen: Visibility, queries: "slice[int, int, None]") -> Int[Tensor, " key"]:
        """The keys that some queries may see where heads keep no other keys."""
        end = min(queries.stop + seen.shift, seen.num_keys) if seen.causal else seen.num_keys
        sink = min(self.sink, end)
        window_start = queries.start + seen.shift - self.window + 1
        return torch.cat([torch.arange(sink), torch.arange(max(sink, window_start), end)])

    def visibility(self, seen: Visibility) -> Visibility:
        """Who sees whom, where heads keep no other keys. The layers of a run share it."""
        if self._last is None or self._last[0] is not seen:
            self._last = seen, replace(seen, rule=_Ends(self.sink, self.window, seen))
        return self._last[1]


@dataclass(frozen=True)
class _Ends:
    """The rule of `Limit`, beside one that there is already."""

    sink: int
    window: int
    seen: Visibility

    def __call__(
        self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]
    ) -> Bool[Tensor, "#text query key"]:
        behind = queries.unsqueeze(-1) + self.seen.shift - keys
        kept = ((keys < self.sink) | (behind < self.window)).unsqueeze(0)
        return kept if self.seen.rule is None else kept & self.seen.rule(queries, keys)


def output_by(fused: FusedAttention, layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """The output of a layer: fused where torch has its rules."""
    output = fused.output(layer) if layer.visibility.num_keys > 0 else None
    if output is None:
        output = attend(layer, Wanted(output=True)).output
    assert output is not None
    return output


def kept_weight(layer: AttentionLayer, few: Visibility) -> Float[Tensor, " kv_head"]:
    """The share of a head's weight that is on the keys it would keep, mean over the queries and its heads.

    sum p over the kept keys is exp(logsumexp over them - logsumexp over all) times their sum without a sink.
    """
    all_keys, kept = (attend(attention, Wanted()) for attention in (layer, replace(layer, visibility=few)))
    assert all_keys.logsumexp is not None and kept.logsumexp is not None and kept.sums is not None
    share = kept.sums.double() * (kept.logsumexp.double() - all_keys.logsumexp.double()).exp()
    assert all_keys.sums is not None
    share = (share / all_keys.sums.double()).nanmean(dim=(0, 2))
    return share.view(-1, layer.group).mean(dim=1)


class Judge:
    """The predictions with the whole cache, and what is lost in others.

    The first places of the text may be left out of the predictions: they are the same.
    """

    def __init__(self, logits: Float[Tensor, "place vocabulary"], reading: Judged, num_same: int = 0) -> None:
        self.reading, self.num_same = reading, num_same
        self.expected = Predictions(logits, reading.targets)

    def baseline(self) -> dict[str, float]:
        """The losses with the whole cache."""
        losses = self.expected.losses
        return {"loss": float(losses.mean()), **self._needle(losses)}

    def lost(self, logits: Float[Tensor, "place vocabulary"]) -> Lost:
        """What is lost with these predictions."""
        same, expected = self.num_same, self.expected
        losses, divergences = expected.compared(logits, first=same)
        divergence = nn.functional.pad(divergences, (same, 0))
        rises = nn.functional.pad(losses - expected.losses[same:], (same, 0))
        worst = int(divergence.argmax())
        return Lost.single(
            kl=float(divergence.mean()),
            loss=float(rises.mean()),
            **self._needle(rises),
            worst=float(divergence[worst]),
            worst_at=int(self.reading.places[worst]) + 1 + self.reading.offset,
        )

    def _needle(self, losses: Float[Tensor, " place"]) -> dict[str, float]:
        needle = [*self.reading.needle]
        return {"needle": float(losses[needle].mean())} if needle else {}


@dataclass(frozen=True)
class CacheHead:
    """A key/value head: its place, the share of its weight on the keys that it would keep, the bytes of a key
    with its value, how many keys it keeps of the text.
    """

    place: HeadPlace
    stack: str
    layer: int
    kept_weight: float
    bytes_per_key: int
    whole: int
    few: int

    def where(self) -> dict[str, str | int]:
        """Its place, by the names of columns."""
        return {"stack": self.stack, "layer": self.layer, "head": self.place.head}

    def num_bytes(self, *, limited: bool) -> int:
        """What it takes of the cache when the text is read."""
        return self.bytes_per_key * (self.few if limited else self.whole)


READING_RUNS = 2.0
"""What the reading with the whole cache costs, in plain runs: weights are summed twice more, and it is tried
whether runs may begin later.
"""
SEARCH_COST = 0.7
"""What the search for a budget's heads adds to the cost of all heads alone, about."""
MOST_FORGOTTEN = 5
"""Keys of a head that are named."""
LIMITED_SHARE = 3
"""By default heads that are limited take no more of a budget than a third."""
SHARES = tuple(tenths / 10 for tenths in range(1, 11))
"""Of the heads that are limited together on the curve."""


class Limiting:
    """Limits the heads of a model on one text."""

    def __init__(
        self,
        pretrained: Pretrained,
        reading: Judged,
        limit: Limit,
        work: Work | None = None,
    ) -> None:
        self.limit, self.reading = limit, reading
        self.work_told, self.num_layers = work or Work(), pretrained.num_layers
        self._reading_cost = READING_RUNS * work_of_run(pretrained, reading)
        self.heads: list[CacheHead] = []
        # Queries that see no more keys than heads keep lose nothing.
        start = min(limit.sink + limit.window, len(reading.text.ids) - 1)
        self.run = RemovalRuns(pretrained, reading, self._take, key="cache", start=start)
        self.judge = Judge(self.run.output, reading, self.run.num_same)

    def _take(self, layer: CapturedLayer) -> Tensor | None:
        """Every call of a layer, as the text is read with the whole cache."""
        attention = layer.attention
        assert not isinstance(attention, GivenWeights)
        call = self.num_calls
        self.num_calls += 1
        tell_of_layer(self.work_told, self._reading_cost, self.num_calls, self.num_layers)
        few = self.limit.visibility(attention.visibility)
        shares = kept_weight(attention, few).tolist()
        last = torch.tensor([attention.shape[2] - 1])
        keys = torch.arange(attention.shape[3])
        counts = [int(seen.block(last, keys)[0].sum()) for seen in (attention.visibility, few)]
        itemsize = attention.key.element_size()
        size = itemsize * (attention.key.shape[-1] + attention.value.shape[-1])
        for head, share in enumerate(shares):
            place = HeadPlace(call, head)
            self.heads.append(CacheHead(place, layer.stack_name, layer.layer, share, size, *counts))
        return None

    num_calls = 0

    def losses(
        self,
        limited: Sequence[Removed],
        what: str,
        *,
        beside: Removed = (),
    ) -> Records[Lost]:
        """What is lost in each of these runs, some of them together; `beside` those of `begin_from`.

        `what` is told of each, as it begins.
        """
        lost: dict[int, Lost] = {}
        number = 1
        for some in runs_together(self.run, limited):
            cost = sum(self.run.work_without(limited[index]) for index in some)
            self.work_told.begin(what, cost, number, len(limited))
            number += len(some)
            first_call = min(place.call for index in some for place in limited[index])
            runs = [[*beside, *limited[index]] for index in some]
            for index, output in zip(some, self.run.without(runs, self.limit, first_call), strict=True):
                lost[index] = self.judge.lost(output)
        return Lost.rows(lost[index] for index in range(len(limited)))

    def work(self, order: Sequence[CacheHead], counts: Sequence[int], tried: Sequence[int]) -> float:
        """About what the whole takes: each head alone, so many of them together, the rounds of a search."""
        alone = sum(self.run.work_without([head.place]) for head in order)
        whole = self.run.work_without(())
        rounds = sum(tried) * alone / len(order) + len(tried) * whole
        return alone + len(counts) * whole + rounds + whole

    def most_needed(self, order: Sequence[CacheHead], count: int) -> list[CacheHead]:
        """The `count` heads that are needed most where all others are limited, the most needed first.

        Heads that stand in for each other are hardly missed one by one. So of the last ones of an order,
        twice as many as are wanted, those go that are least needed beside all that are limited already, a
        third at a time.
        """
        sizes = tried_sizes(len(order), count)
        kept = [*order[len(order) - sizes[0] :]]
        limited = [head.place for head in order[: len(order) - sizes[0]]]
        for size in sizes[1:]:
            self.work_told.begin("the others together", self.run.work_without(()))
            self.run.begin_from(limited, self.limit)
            lost = self.losses([[head.place] for head in kept], "head beside others", beside=limited)
            needs = lost.column("needle" if self.reading.needle else "kl").tolist()
            kept = [kept[index] for index in sorted(range(len(kept)), key=needs.__getitem__)]
            limited += [head.place for head in kept[: len(kept) - size]]
            kept = kept[len(kept) - size :]
        self.run.begin_from((), self.limit)
        return kept[::-1]

    def forgotten(self, queries: Sequence[int]) -> list[Records[ForgottenKey]]:
        """Of each head the keys with most weight from one query among those that it would not keep."""
        tokens, of_heads = self.reading.text.tokens, list[Records[ForgottenKey]]()

        def take(layer: CapturedLayer) -> Tensor:
            attention = layer.attention
            assert isinstance(attention, AttentionLayer)
            num_keys = attention.shape[3]
            few = self.limit.visibility(attention.visibility)
            for head in range(attention.key.shape[1]):
                place, query = self.heads[len(of_heads)].where(), queries[len(of_heads)]
                group = slice(head * attention.group, (head + 1) * attention.group)
                row = rows_at(attention, [query], 0)[group, 0].mean(dim=0).cpu()
                row = row.masked_fill(few.block(torch.tensor([query]), torch.arange(num_keys))[0, 0], 0.0)
                weights, keys = row.topk(min(MOST_FORGOTTEN, num_keys))
                of_heads.append(
                    ForgottenKey.rows(
                        {**place, "query": query, "query_token": tokens[query], "key": key}
                        | {"key_token": tokens[key], "key_weight": weight}
                        for key, weight in zip(keys.tolist(), weights.tolist(), strict=True)
                        if weight > 0
                    )
                )
            return output_by(self.limit.whole, attention)

        self.work_told.begin("the keys they forget", self.run.work_without(()))
        run_model(self.run.model, self.run.inputs, take)
        return of_heads

    def together(self, order: Sequence[CacheHead], counts: Sequence[int]) -> Records[LostTogether]:
        """What is lost, and left of the cache, with so many heads limited, the first of an order first."""
        runs = [[head.place for head in order[:count]] for count in counts]
        whole, sizes = num_bytes(order), [num_bytes(order, count) for count in counts]
        return LostTogether.table(
            limited=[*counts],
            share=[count / len(order) for count in counts],
            **self.losses(runs, "heads together").cells,
            bytes=sizes,
            cache=[size / whole for size in sizes],
        )


def num_bytes(order: Sequence[CacheHead], num_limited: int = 0) -> int:
    """What the cache takes when the text is read, with so many heads limited, the first ones of an order."""
    return sum(head.num_bytes(limited=rank < num_limited) for rank, head in enumerate(order))


def tried_sizes(num_heads: int, count: int) -> list[int]:
    """How many heads are still tried, from twice as many as are wanted down to these."""
    sizes = [min(num_heads, 2 * count)]
    while sizes[-1] > count:
        sizes.append(max(count, sizes[-1] - max(1, sizes[-1] // 3)))
    return sizes


@torch.no_grad()
def limited_heads(
    pretrained: Pretrained,
    reading: Judged,
    *,
    sink: int | None = None,
    window: int | None = None,
    budget: float | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> LimitedHeads:
    """What the model loses on a text where each key/value head alone keeps `sink` and `window` keys.

    By default 4 and 64, fewer for short texts (`cache_ends`). The prefix of a run is shared: a head of the
    last layer costs one layer. With a `budget`, a share of the cache, the heads are found that keep
    everything (`Limiting.most_needed`), so that the cache takes no more than that; by default the first and
    last keys then take a third of it at most. UserError for a model that keeps no cache, and a budget that not even
    limited heads meet; MemoryError.
    """
    limit = _usual_limit(reading, sink, window, budget)
    with idle_core_threads() as adapt:

        def tell(stage: Stage) -> None:
            adapt()
            if progress is not None:
                progress(stage)

        work = Work(tell, _expected_work(pretrained, reading, limit, budget))
        work.begin("reading", 0.0)
        limiting = _limiting(pretrained, reading, limit, work, budget=budget, sink=sink, window=window)
        return _measured(limiting, budget)


def tell_of_layer(work: Work, cost: float, number: int, count: int) -> None:
    """A layer of a reading of that cost begins; a model may have more layers than it says."""
    if number <= count:
        work.begin("reading layer", cost / count, number, count)


def _expected_work(pretrained: Pretrained, reading: Judged, limit: Limit, budget: float | None) -> float:
    """What all passes cost, before the text is read: each head alone half of the layers, about."""
    config, whole = pretrained.whole.config.get_text_config(), work_of_run(pretrained, reading)
    of_layer: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    start = min(limit.sink + limit.window, len(reading.text.ids) - 1)
    alone = pretrained.num_layers * of_layer * work_of_run(pretrained, reading, start, share=0.5)
    search = 0.0 if budget is None else SEARCH_COST * alone
    return READING_RUNS * whole + alone + search + (len(SHARES) + 1) * whole


def _usual_limit(reading: Judged, sink: int | None, window: int | None, budget: float | None) -> Limit:
    """What a limited head keeps of this text; UserError for numbers that cannot be, or limit nothing."""
    if sink is not None and sink < 0:
        raise UserError(f"sink: must be at least 0 (got {sink})")
    if window is not None and window < 1:
        raise UserError(f"window: must be at least 1 (got {window})")
    if budget is not None and not 0 < budget < 1:
        raise UserError(f"budget: must be a share of the cache below 1 (got {budget:g})")
    ends = cache_ends(len(reading.text.ids))
    limit = Limit(ends.sink if sink is None else sink, ends.window if window is None else window)
    most_seen = int(reading.places.max()) + 1 if reading.num_places else 0
    if limit.sink + limit.window >= most_seen:
        kept = f"a limited head keeps {limit.sink} + {limit.window} keys"
        instead = "give a longer text, or a smaller `sink` or `window`"
        raise UserError(f"window: {kept}, and no judged token sees more than {most_seen}: {instead}")
    return limit


def _limiting(
    pretrained: Pretrained,
    reading: Judged,
    limit: Limit,
    work: Work,
    *,
    budget: float | None,
    sink: int | None,
    window: int | None,
) -> Limiting:
    """The text read with the whole cache; once more where first and last keys take too much of a budget."""
    limiting = Limiting(pretrained, reading, limit, work)
    if budget is None:
        return limiting
    smaller = _within(limiting.heads, limit, budget / LIMITED_SHARE, sink, window)
    if (smaller.sink, smaller.window) == (limit.sink, limit.window):
        return limiting
    return Limiting(pretrained, reading, smaller, work)


def _measured(limiting: Limiting, budget: float | None) -> LimitedHeads:
    """What is lost by each head alone, by shares of them together, and with a budget."""
    heads, judge = limiting.heads, limiting.judge
    counts = list(dict.fromkeys(max(1, round(share * len(heads))) for share in SHARES))
    _expect_work(limiting, counts, budget)
    alone = limiting.losses([[head.place] for head in heads], "head")
    needs = alone.column(need_in(alone)).tolist()
    order = [heads[index] for index in sorted(range(len(heads)), key=needs.__getitem__)]
    curve = limiting.together(order, counts)
    by_need = sorted(range(len(heads)), key=lambda index: -needs[index])
    missed = limiting.forgotten([lost.worst_at - 1 for lost in alone])
    full, at_budget = (None, None) if budget is None else _at_budget(limiting, order, budget)
    return LimitedHeads(
        heads=HeadNeed.rows(
            {
                **heads[index].where(),
                "kept_weight": heads[index].kept_weight,
                **alone[index],
                "bytes": heads[index].num_bytes(limited=False),
                **_most_missed(missed[index]),
            }
            for index in by_need
        ),
        forgotten=ForgottenKey.rows(row for index in by_need for row in missed[index]),
        curve=curve,
        baseline=CacheBaseline.single(
            **judge.baseline(),
            bytes=num_bytes(heads),
            tokens=len(judge.reading.text.ids),
            sink=limiting.limit.sink,
            window=limiting.limit.window,
        ),
        full=None if full is None else KeyValueHead.rows(head.where() for head in full),
        at_budget=at_budget,
        notes=tuple(limiting.run.way.notes()),
    )


def _most_missed(forgotten: Records[ForgottenKey]) -> dict[str, str | int | float | None]:
    """The key with most weight of those that a head forgets, where there is one."""
    if not forgotten:
        return dict.fromkeys(LOOKED_AT)
    head = forgotten[0]
    return {
        "query": head.query,
        "query_token": head.query_token,
        "key": head.key,
        "key_token": head.key_token,
        "key_weight": head.key_weight,
    }


def _expect_work(limiting: Limiting, counts: Sequence[int], budget: float | None) -> None:
    """What the passes to come cost, now that the heads are known."""
    heads, tried = limiting.heads, list[int]()
    if budget is not None:
        tried = tried_sizes(len(heads), _num_full(heads, budget))[:-1]
    limiting.work_told.expect(limiting.work(heads, [*counts, *([0] if tried else [])], tried))


def _at_budget(
    limiting: Limiting, order: Sequence[CacheHead], budget: float
) -> tuple[list[CacheHead], LostTogether]:
    """The heads that keep everything, the most needed first, and what is lost where all others are limited.

    `order` has all heads, the least needed first.
    """
    order = sorted(order, key=_can_forget)
    full = limiting.most_needed(order, _num_full(order, budget))
    order = [*(head for head in order if head not in full), *full[::-1]]
    num_limited = _num_limited(order, budget)
    (at_budget,) = limiting.together(order, [num_limited])
    return order[num_limited:][::-1], at_budget


def _num_full(heads: Sequence[CacheHead], budget: float) -> int:
    """How many heads may keep everything; those that have nothing to forget are limited first."""
    return len(heads) - _num_limited(sorted(heads, key=_can_forget), budget)


def _can_forget(head: CacheHead) -> bool:
    """Whether there are keys that it would not keep: its layer's own window may hold no more than that."""
    return head.few < head.whole


def _within(
    heads: Sequence[CacheHead], limit: Limit, share: float, sink: int | None, window: int | None
) -> Limit:
    """The usual limit, or fewer keys where these take more than a share of the cache; those named stay."""
    most, sinks, last = share * num_bytes(heads), limit.sink, limit.window
    while sum(head.bytes_per_key * min(head.whole, sinks + last) for head in heads) > most:
        if window is None and last > 1:
            last -= 1
        elif sink is None and sinks > 1:
            sinks -= 1
        else:
            break
    return Limit(sinks, last)


def _num_limited(order: Sequence[CacheHead], budget: float) -> int:
    """How few heads are to be limited, the first of an order first, for the cache to take that share."""
    whole = num_bytes(order)
    for count in range(len(order) + 1):
        if num_bytes(order, count) <= budget * whole:
            return count
    least = num_bytes(order, len(order)) / whole
    raise UserError(
        f"budget: must be at least {least:.2g}, what all heads take with these first and last keys (got "
        f"{budget:g})"
    )
