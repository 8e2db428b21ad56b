"""The increase in loss if key/value heads keep only the first and last keys, one at a time and together."""

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
from attncli.models.removal_runs import RemovalRuns, run_work, runs_together
from attncli.records.columns import Records
from attncli.system.plain_text import counted


class Limit:
    """Key/value heads that keep only the first `sink` keys and the last `window` keys, up to the query's own.

    Keys keep the positions, and so the rotations, that they have in the full text; Xiao et al. 2023
    (2309.17453), section 3.2, instead move the remaining keys together. Keys that the layer masks anyway (a
    window, padding) stay masked.
    """

    def __init__(self, sink: int, window: int) -> None:
        self.sink, self.window = sink, window
        self.whole, self._limited = FusedAttention(), FusedAttention(self.columns)
        self._last: tuple[Visibility, Visibility] | None = None

    def of_call(self, call: int, limited: Sequence[Removed], whole: Whole) -> Sequence[LayerChange]:
        """Replace the output of a call; each text has its own set of limited heads."""
        heads = [[place.head for place in removed if place.call == call] for removed in limited]
        return (LayerChange("output", lambda layer: self._output(whole(layer.attention), heads)),)

    def _output(
        self, attention: AttentionLayer, limited: Sequence[Sequence[int]]
    ) -> Float[Tensor, "text head query value_dim"]:
        is_limited = torch.zeros(len(limited), attention.key.shape[1], dtype=torch.bool)
        for text, heads in enumerate(limited):
            is_limited[text, [*heads]] = True
        limited_output = None
        if is_limited.any():
            limited_output = output_by(
                self._limited, replace(attention, visibility=self.visibility(attention.visibility))
            )
            if is_limited.all():
                return limited_output
        whole = output_by(self.whole, attention)
        if limited_output is None:
            return whole
        head_mask = is_limited.repeat_interleave(attention.group, dim=1).to(whole.device)
        return torch.where(head_mask[..., None, None], limited_output, whole)

    def columns(self, seen: Visibility, queries: "slice[int, int, None]") -> Int[Tensor, " key"]:
        """The keys that limited heads let the queries of a range see."""
        end = min(queries.stop + seen.shift, seen.num_keys) if seen.causal else seen.num_keys
        sink = min(self.sink, end)
        window_start = queries.start + seen.shift - self.window + 1
        return torch.cat([torch.arange(sink), torch.arange(max(sink, window_start), end)])

    def visibility(self, seen: Visibility) -> Visibility:
        """The layer's visibility, restricted to the keys that limited heads keep; cached for all layers of a
        run.
        """
        if self._last is None or self._last[0] is not seen:
            self._last = seen, replace(seen, rule=_Ends(self.sink, self.window, seen))
        return self._last[1]


@dataclass(frozen=True)
class _Ends:
    """The visibility rule of `Limit`, combined with the layer's own rule."""

    sink: int
    window: int
    seen: Visibility

    def __call__(
        self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]
    ) -> Bool[Tensor, "#text query key"]:
        behind = queries.unsqueeze(-1) + self.seen.shift - keys
        visible = ((keys < self.sink) | (behind < self.window)).unsqueeze(0)
        return visible if self.seen.rule is None else visible & self.seen.rule(queries, keys)


def output_by(fused: FusedAttention, layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """Return the output of a layer, using a fused kernel if torch supports the layer's rules."""
    output = fused.output(layer) if layer.visibility.num_keys > 0 else None
    if output is None:
        output = attend(layer, Wanted(output=True)).output
    assert output is not None
    return output


def kept_weight(layer: AttentionLayer, limited: Visibility) -> Float[Tensor, " kv_head"]:
    """The share of a head's weight on the keys that it would keep, averaged over queries and query heads.

    The sum of p over those keys is exp(their logsumexp - the logsumexp of all keys), times the total weight
    of all keys without a sink.
    """
    all_keys, limited_keys = (
        attend(attention, Wanted()) for attention in (layer, replace(layer, visibility=limited))
    )
    assert (
        all_keys.logsumexp is not None
        and limited_keys.logsumexp is not None
        and limited_keys.sums is not None
    )
    share = limited_keys.sums.double() * (limited_keys.logsumexp.double() - all_keys.logsumexp.double()).exp()
    assert all_keys.sums is not None
    share = (share / all_keys.sums.double()).nanmean(dim=(0, 2))
    return share.view(-1, layer.group).mean(dim=1)


class Judge:
    """Compares predictions made with a smaller cache to those made with the full cache.

    The logits may omit the first `num_same` predictions, which a smaller cache does not change.
    """

    def __init__(self, logits: Float[Tensor, "place vocabulary"], reading: Judged, num_same: int = 0) -> None:
        self.reading, self.num_same = reading, num_same
        self.expected = Predictions(logits, reading.targets)

    def baseline(self) -> dict[str, float]:
        """The losses with the full cache."""
        losses = self.expected.losses
        return {"loss": float(losses.mean()), **self._needle(losses)}

    def lost(self, logits: Float[Tensor, "place vocabulary"]) -> Lost:
        """The changes in these predictions relative to those with the full cache."""
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
    """A key/value head: its place, the share of its weight on the keys that it would keep, the size in bytes
    of one key with its value, and the numbers of keys that it sees and would keep.
    """

    place: HeadPlace
    stack: str
    layer: int
    kept_weight: float
    bytes_per_key: int
    visible_keys: int
    limited_keys: int

    def where(self) -> dict[str, str | int]:
        """The head's place, by column name."""
        return {"stack": self.stack, "layer": self.layer, "head": self.place.head}

    def num_bytes(self, *, limited: bool) -> int:
        """The size of the head's cache in bytes after reading the text."""
        return self.bytes_per_key * (self.limited_keys if limited else self.visible_keys)


READING_RUNS = 2.0
"""Cost of the reading with the full cache, in plain runs: it also sums the weights twice, and tests whether
runs may start at a later token.
"""
SEARCH_COST = 0.7
"""Approximate cost of the search for a budget's heads, as a fraction of the cost of limiting each
head once.
"""
MOST_FORGOTTEN = 5
"""The number of forgotten keys listed for each head."""
LIMITED_SHARE = 3
"""By default, the limited heads take up at most a third of a budget."""
SHARES = tuple(tenths / 10 for tenths in range(1, 11))
"""The shares of heads that are limited together for the curve."""


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
        self.stages, self.num_layers = work or Work(), pretrained.num_layers
        self._reading_cost = READING_RUNS * run_work(pretrained, reading)
        self.heads: list[CacheHead] = []
        # Queries that see no more keys than a limited head keeps are not affected.
        start = min(limit.sink + limit.window, len(reading.text.ids) - 1)
        self.run = RemovalRuns(pretrained, reading, self._take, key="cache", start=start)
        self.judge = Judge(self.run.output, reading, self.run.num_same)

    def _take(self, layer: CapturedLayer) -> Tensor | None:
        """Record the heads of a call while the text is read with the full cache."""
        attention = layer.attention
        assert not isinstance(attention, GivenWeights)
        call = self.num_calls
        self.num_calls += 1
        report_layer(self.stages, self._reading_cost, self.num_calls, self.num_layers)
        limited = self.limit.visibility(attention.visibility)
        shares = kept_weight(attention, limited).tolist()
        last = torch.tensor([attention.shape[2] - 1])
        keys = torch.arange(attention.shape[3])
        counts = [int(seen.block(last, keys)[0].sum()) for seen in (attention.visibility, limited)]
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
        """Measure the changes in each run, several at a time; `beside` are the heads limited by `begin_from`.

        `what` is the name of the stage that each run reports.
        """
        lost: dict[int, Lost] = {}
        number = 1
        for some in runs_together(self.run, limited):
            cost = sum(self.run.work_without(limited[index]) for index in some)
            self.stages.begin(what, cost, number, len(limited))
            number += len(some)
            first_call = min(place.call for index in some for place in limited[index])
            runs = [[*beside, *limited[index]] for index in some]
            for index, output in zip(some, self.run.without(runs, self.limit, first_call), strict=True):
                lost[index] = self.judge.lost(output)
        return Lost.rows(lost[index] for index in range(len(limited)))

    def expected_work(self, order: Sequence[CacheHead], counts: Sequence[int], tried: Sequence[int]) -> float:
        """The expected work: a run per head, a run per count of heads limited together, and the search
        rounds.
        """
        head_runs = sum(self.run.work_without([head.place]) for head in order)
        whole = self.run.work_without(())
        rounds = sum(tried) * head_runs / len(order) + len(tried) * whole
        return head_runs + len(counts) * whole + rounds + whole

    def most_needed(self, order: Sequence[CacheHead], count: int) -> list[CacheHead]:
        """The `count` heads that are needed most when all others are limited, most needed first.

        Heads that can replace each other are hardly missed one at a time. The search therefore starts with
        the last 2 * `count` heads of `order` and repeatedly limits a third of these: the heads that are
        needed least beside those limited so far.
        """
        sizes = candidate_counts(len(order), count)
        remaining = [*order[len(order) - sizes[0] :]]
        limited = [head.place for head in order[: len(order) - sizes[0]]]
        for size in sizes[1:]:
            self.stages.begin("the other heads together", self.run.work_without(()))
            self.run.begin_from(limited, self.limit)
            lost = self.losses([[head.place] for head in remaining], "head beside the others", beside=limited)
            needs = lost.column("needle" if self.reading.needle else "kl").tolist()
            remaining = [remaining[index] for index in sorted(range(len(remaining)), key=needs.__getitem__)]
            limited += [head.place for head in remaining[: len(remaining) - size]]
            remaining = remaining[len(remaining) - size :]
        self.run.begin_from((), self.limit)
        return remaining[::-1]

    def forgotten(self, queries: Sequence[int]) -> list[Records[ForgottenKey]]:
        """For each head, the keys that it would not keep and that get the most weight from one query."""
        tokens, head_rows = self.reading.text.tokens, list[Records[ForgottenKey]]()

        def take(layer: CapturedLayer) -> Tensor:
            attention = layer.attention
            assert isinstance(attention, AttentionLayer)
            num_keys = attention.shape[3]
            limited = self.limit.visibility(attention.visibility)
            for head in range(attention.key.shape[1]):
                place, query = self.heads[len(head_rows)].where(), queries[len(head_rows)]
                group = slice(head * attention.group, (head + 1) * attention.group)
                row = rows_at(attention, [query], 0)[group, 0].mean(dim=0).cpu()
                row = row.masked_fill(limited.block(torch.tensor([query]), torch.arange(num_keys))[0, 0], 0.0)
                weights, keys = row.topk(min(MOST_FORGOTTEN, num_keys))
                head_rows.append(
                    ForgottenKey.rows(
                        {**place, "query": query, "query_token": tokens[query], "key": key}
                        | {"key_token": tokens[key], "key_weight": weight}
                        for key, weight in zip(keys.tolist(), weights.tolist(), strict=True)
                        if weight > 0
                    )
                )
            return output_by(self.limit.whole, attention)

        self.stages.begin("forgotten keys", self.run.work_without(()))
        run_model(self.run.model, self.run.inputs, take)
        return head_rows

    def together(self, order: Sequence[CacheHead], counts: Sequence[int]) -> Records[LostTogether]:
        """Measure the changes, and the remaining cache, with the first `counts` heads of `order` limited."""
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
    """The size of the cache after reading the text, with the first `num_limited` heads of `order` limited."""
    return sum(head.num_bytes(limited=rank < num_limited) for rank, head in enumerate(order))


def candidate_counts(num_heads: int, count: int) -> list[int]:
    """The number of candidates in each round of the search, from twice `count` down to `count`."""
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
    """Measure the increase in loss on a text if one key/value head at a time keeps `sink` and `window` keys.

    The defaults are 4 and 64, or fewer for short texts (`cache_ends`). Runs share the layers below the
    limited head, so limiting a head of the last layer costs only one layer. With a `budget`, a share of the
    cache, the result also has the heads that may keep all keys (`Limiting.most_needed`) without exceeding the
    budget; the default `sink` and `window` then take up at most a third of the budget. Raises UserError for a
    model without a cache, or a budget that is exceeded even with all heads limited, and MemoryError if memory
    runs out.
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


def report_layer(work: Work, cost: float, number: int, count: int) -> None:
    """Report that a layer is being read; a model may have more layers than its config declares."""
    if number <= count:
        work.begin("reading layer", cost / count, number, count)


def _expected_work(pretrained: Pretrained, reading: Judged, limit: Limit, budget: float | None) -> float:
    """The expected cost of all passes before the text is read; limiting a head costs half of the layers."""
    config, full_run = pretrained.whole.config.get_text_config(), run_work(pretrained, reading)
    heads_per_layer: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    start = min(limit.sink + limit.window, len(reading.text.ids) - 1)
    head_runs = pretrained.num_layers * heads_per_layer * run_work(pretrained, reading, start, share=0.5)
    search = 0.0 if budget is None else SEARCH_COST * head_runs
    return READING_RUNS * full_run + head_runs + search + (len(SHARES) + 1) * full_run


def _usual_limit(reading: Judged, sink: int | None, window: int | None, budget: float | None) -> Limit:
    """The limit for this text. Raises UserError for impossible numbers or numbers that limit nothing."""
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
        size = f"a limited head keeps {limit.sink} + {limit.window} keys"
        instead = "use a longer text, or a smaller `sink` or `window`"
        raise UserError(
            f"window: {size}, but no evaluated token sees more than {counted(most_seen, 'key')}: {instead}"
        )
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
    """Read the text with the full cache, and again if the first and last keys exceed their share."""
    limiting = Limiting(pretrained, reading, limit, work)
    if budget is None:
        return limiting
    smaller = _within(limiting.heads, limit, budget / LIMITED_SHARE, sink, window)
    if (smaller.sink, smaller.window) == (limit.sink, limit.window):
        return limiting
    return Limiting(pretrained, reading, smaller, work)


def _measured(limiting: Limiting, budget: float | None) -> LimitedHeads:
    """Measure the changes with each head limited, with shares of them limited together, and at a budget."""
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
    """The forgotten key with the most weight; all values are None if the head forgets no key."""
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
    """Update the expected cost now that the heads are known."""
    heads, rounds = limiting.heads, list[int]()
    if budget is not None:
        rounds = candidate_counts(len(heads), _num_full(heads, budget))[:-1]
    limiting.stages.expect(limiting.expected_work(heads, [*counts, *([0] if rounds else [])], rounds))


def _at_budget(
    limiting: Limiting, order: Sequence[CacheHead], budget: float
) -> tuple[list[CacheHead], LostTogether]:
    """The heads that keep all keys, most needed first, and the changes with all other heads limited.

    `order` has all heads, least needed first.
    """
    order = sorted(order, key=_can_forget)
    full = limiting.most_needed(order, _num_full(order, budget))
    order = [*(head for head in order if head not in full), *full[::-1]]
    num_limited = _num_limited(order, budget)
    (at_budget,) = limiting.together(order, [num_limited])
    return order[num_limited:][::-1], at_budget


def _num_full(heads: Sequence[CacheHead], budget: float) -> int:
    """The number of heads that may keep all keys; heads with nothing to forget are limited first."""
    return len(heads) - _num_limited(sorted(heads, key=_can_forget), budget)


def _can_forget(head: CacheHead) -> bool:
    """True if the head sees more keys than it would keep; in a layer with a window, it may see fewer."""
    return head.limited_keys < head.visible_keys


def _within(
    heads: Sequence[CacheHead], limit: Limit, share: float, sink: int | None, window: int | None
) -> Limit:
    """The limit, lowered if its keys exceed a share of the cache, except an explicit `sink` or `window`."""
    most, sinks, last = share * num_bytes(heads), limit.sink, limit.window
    while sum(head.bytes_per_key * min(head.visible_keys, sinks + last) for head in heads) > most:
        if window is None and last > 1:
            last -= 1
        elif sink is None and sinks > 1:
            sinks -= 1
        else:
            break
    return Limit(sinks, last)


def _num_limited(order: Sequence[CacheHead], budget: float) -> int:
    """The smallest number of heads to limit, from the start of `order`, so that the budget is met."""
    whole = num_bytes(order)
    for count in range(len(order) + 1):
        if num_bytes(order, count) <= budget * whole:
            return count
    least = num_bytes(order, len(order)) / whole
    raise UserError(
        f"budget: must be at least {least:.2g}, the share of the cache that the first and last keys of "
        f"all heads take up (got {budget:g})"
    )
