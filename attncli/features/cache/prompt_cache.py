"""The increase in loss if a prompt's cache keeps only some of its keys, or is rounded to a few bits."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.engines import FusedAttention
from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.names import cache_ends
from attncli.core.process import SharedChange
from attncli.core.progress import Stage, Work
from attncli.errors import UserError
from attncli.features.cache.limited_heads import Judge, Limit, output_by, report_layer
from attncli.features.cache.names import CACHE_POLICIES, USUAL_BUDGETS
from attncli.features.cache.policies import (
    COUNTS,
    SCORES,
    CacheScores,
    PromptLayer,
    PromptStatistics,
    Rotation,
    even_counts,
)
from attncli.features.cache.results import Lost, PolicyCost, PolicyCosts, PromptBaseline, budget_lines
from attncli.models.layers import CapturedLayer
from attncli.models.model_blocks import Forward
from attncli.models.patched_heads import LayerChange, RunningLayer
from attncli.models.predicted import Judged, judged_reading
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.removal import Removed, Whole
from attncli.models.removal_runs import FirstTokens, RemovalRuns, run_work
from attncli.records.columns import Record

SCORING_COST = 0.17
"""The approximate cost of one policy's scores, in plain runs of the prompt."""
ROUNDED_TOGETHER = 32
"""The number of values that share a scale in a cache of few bits."""

KeptKeys = Sequence[Int[Tensor, " _"]]
"""The keys that stay, for each head of a layer."""


class SmallerCaches:
    """Copies of a text whose later tokens see only some of the first tokens, which differ by copy."""

    def __init__(self, copies: Sequence["PartsForCall"], starts: Sequence[FirstTokens]) -> None:
        self.copies, self.starts = copies, starts
        self.fused = FusedAttention()

    def of_call(self, call: int, removed: Sequence[Removed], whole: Whole) -> Sequence[LayerChange]:
        """Replace the output of a call: a copy's queries see the keys that it keeps and their own keys."""
        start = self.starts[call]

        def output(layer: RunningLayer) -> Tensor:
            attention = whole(layer.attention)
            return torch.cat(
                [
                    _output(attention, copy, parts(call, start), self.fused)
                    for copy, parts in enumerate(self.copies)
                ]
            )

        return (LayerChange("output", output),)


class KeptPart(NamedTuple):
    """Heads that keep equally many keys: their keys and values among the first tokens, with the positions."""

    heads: "slice[int, int, None]"
    key: Float[Tensor, "kv_head kept dim"]
    value: Float[Tensor, "kv_head kept value_dim"]
    positions: Int[Tensor, "kv_head kept"]


PartsForCall = Callable[[int, FirstTokens], Sequence[KeptPart]]
"""The remaining parts of a call for one copy, from the keys and values of the first tokens."""


def _output(
    layer: AttentionLayer, copy: int, parts: Sequence[KeptPart], fused: FusedAttention
) -> Float[Tensor, "1 head query value_dim"]:
    """Compute the output for one copy, with one batch entry per key/value head."""
    num_queries, num_keys = layer.shape[2:]
    start, seen, group = num_keys - num_queries, layer.visibility, layer.group
    outputs = []
    for part in parts:
        sharing = slice(part.heads.start * group, part.heads.stop * group)
        query = layer.query[copy, sharing].view(-1, group, *layer.query.shape[2:])
        key, value = (
            torch.cat([stored, tokens[copy, part.heads, start:]], dim=1).unsqueeze(1)
            for stored, tokens in ((part.key, layer.key), (part.value, layer.value))
        )
        num_stored = part.positions.shape[1]
        visibility = Visibility(num_queries, num_stored + num_queries, causal=True)
        if seen != Visibility(num_queries, num_keys, causal=True):
            visibility = _as_before(seen, part, start, num_queries)
        rules = layer.rules
        if rules.sink is not None:
            rules = replace(rules, sink=rules.sink.expand(1, layer.num_heads)[0, sharing].view(-1, group))
        limited = AttentionLayer(query, key, value, visibility, layer.scale, rules)
        outputs.append(output_by(fused, limited).flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0)


def _as_before(seen: Visibility, part: KeptPart, start: int, num_queries: int) -> Visibility:
    """The layer's own visibility rule, applied at the original positions of the keys."""
    later = torch.arange(start, start + num_queries, device=part.positions.device)
    positions = torch.cat([part.positions, later.expand(len(part.positions), -1)], dim=1)
    full = seen.whole(part.positions.device)[0]
    masks = torch.stack([full[:, head_positions] for head_positions in positions])
    return Visibility(num_queries, positions.shape[1], rule=lambda i, j: masks[:, i][:, :, j])


def _call_parts(kept: Sequence[KeptKeys], call: int, start: FirstTokens) -> list[KeptPart]:
    """The remaining parts of a call for one copy."""
    return _cached_parts(kept[call], start)


def _cached_parts(kept: KeptKeys, start: FirstTokens) -> list[KeptPart]:
    """Return one part with all heads if they keep equally many keys, otherwise one part per head."""
    counts = {len(keys) for keys in kept}
    if len(counts) == 1:
        keys = torch.stack([*kept])
        return [KeptPart(slice(0, len(keys)), *_gathered(start, slice(None), keys), keys)]
    return [
        KeptPart(slice(head, head + 1), *_gathered(start, slice(head, head + 1), keys[None]), keys[None])
        for head, keys in enumerate(kept)
    ]


def _gathered(
    start: FirstTokens, heads: "slice[int | None, int | None, None]", keys: Int[Tensor, "kv_head kept"]
) -> tuple[Float[Tensor, "kv_head kept dim"], Float[Tensor, "kv_head kept value_dim"]]:
    key, value = (
        tensor[0, heads].gather(1, keys.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))
        for tensor in (start.key, start.value)
    )
    return key, value


def rounded(numbers: Float[Tensor, "*batch group"], bits: int) -> Float[Tensor, "*batch group"]:
    """Round to the nearest of 2^bits levels between the minimum and maximum of each group."""
    least, most = numbers.amin(dim=-1, keepdim=True), numbers.amax(dim=-1, keepdim=True)
    step = ((most - least) / (2**bits - 1)).clamp(min=torch.finfo(numbers.dtype).tiny)
    nearest: Tensor = ((numbers - least) / step).round() * step + least
    return nearest


def rounded_cache(start: FirstTokens, bits: int) -> tuple[Tensor, Tensor]:
    """Keys rounded by channel in groups of 32 tokens, values rounded by token in groups of 32 channels; the
    last tokens, which do not fill a group, are not rounded. KIVI: Liu et al. 2024 (2402.02750), section 3.
    """
    size, key, value = ROUNDED_TOGETHER, start.key[0], start.value[0]
    whole = key.shape[1] // size * size
    by_channel = key[:, :whole].mT.reshape(*key.shape[::2], -1, size)
    keys = torch.cat([rounded(by_channel, bits).flatten(-2).mT, key[:, whole:]], dim=1)
    channels = size if value.shape[-1] % size == 0 else value.shape[-1]
    values = rounded(value.reshape(*value.shape[:2], -1, channels), bits).flatten(-2)
    return keys, torch.cat([values[:, :whole], value[:, whole:]], dim=1)


_note_rotation: ContextVar[Callable[[], None]] = ContextVar("note_rotation")
"""The callback of the current run; models in other threads may share the same code."""


_noted: dict[ModuleType, SharedChange] = {}


def _rotations_noted(code: ModuleType) -> SharedChange:
    """Patch a model's rotation functions so that each call first invokes `_note_rotation`."""

    def functions() -> dict[str, Forward]:
        return {name: function for name, function in vars(code).items() if name.startswith("apply_rotary")}

    def noting(function: Forward) -> Forward:
        def called(*parts: object, **options: object) -> object:
            _note_rotation.get(lambda: None)()
            return function(*parts, **options)

        return called

    def note() -> None:
        vars(code).update({name: noting(function) for name, function in functions().items()})

    return _noted.setdefault(code, SharedChange(lambda: partial(vars(code).update, functions()), note))


class PromptCache:
    """A prompt that has been read once: its keys and values, and the policies' scores."""

    def __init__(
        self,
        pretrained: Pretrained,
        reading: Judged,
        start: int,
        policies: Sequence[str],
        work: Work | None = None,
    ) -> None:
        self.start, self.name = start, pretrained.name
        self._work, self._reading_cost = work or Work(), _reading_cost(pretrained, reading, policies)
        self.rules = {name: SCORES[name] for name in policies}
        self.scores: list[dict[str, CacheScores]] = []
        self.held: list[Bool[Tensor, " key"]] = []
        self.needs: list[Tensor] = []
        self.num_layers = pretrained.num_layers
        self.model = pretrained.whole
        self.wants_heads = "heads" in policies
        ends = cache_ends(start)
        self._limit = Limit(ends.sink, ends.window)
        self._fused, self._limited_fused = FusedAttention(), FusedAttention(self._limit.columns)
        self._turns: dict[str, object] = {}
        self._turned: set[str] = set()
        self._last_module = ""
        judged = replace(
            reading,
            places=reading.places[reading.places >= start],
            targets=reading.targets[reading.places >= start],
            needle=tuple(place - int((reading.places < start).sum()) for place in reading.needle),
        )
        with ExitStack() as hooks:
            if "expected" in policies:
                for name, module in self.model.named_modules():
                    hook = module.register_forward_pre_hook(
                        lambda _module, _inputs, options, name=name: self._note(name, options),
                        with_kwargs=True,
                    )
                    hooks.enter_context(hook)
                for code in {sys.modules[type(module).__module__] for module in self.model.modules()}:
                    hooks.enter_context(self._noting_rotations(code))
            self.run = RemovalRuns(pretrained, judged, self._take, key="cache", start=start)
        if not self.run.start:
            raise UserError(
                f"model: {pretrained.name} cannot continue from a prompt's cached keys: omit `policy`"
            )
        self.judge = Judge(self.run.output, judged)

    def _note(self, name: str, options: Mapping[str, object]) -> None:
        if (turns := options.get("position_embeddings")) is not None:
            self._turns[name] = turns
            self._last_module = name

    @contextmanager
    def _noting_rotations(self, code: ModuleType) -> Iterator[None]:
        """Record which layers really rotate; some models receive angles and ignore them (SmolLM3).

        Only a call of the rotation reveals this, so the model's functions are temporarily wrapped.
        """
        token = _note_rotation.set(lambda: self._turned.add(self._last_module))
        try:
            with _rotations_noted(code).made():
                yield
        finally:
            _note_rotation.reset(token)

    def _take(self, layer: CapturedLayer) -> Tensor:
        """Record the policies' scores during the full run, and return the layer's output."""
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        prompt = self._prompt(attention)
        number = len(self.scores)
        report_layer(self._work, self._reading_cost, number + 1, self.num_layers)
        read = PromptLayer(prompt, number, self.num_layers, self._rotation(layer.module, prompt))
        self.scores.append({name: rule(read) for name, rule in self.rules.items()})
        last = torch.tensor([self.start - 1], device=prompt.key.device)
        keys = torch.arange(self.start, device=prompt.key.device)
        self.held.append(prompt.visibility.block(last, keys)[0, 0])
        output = output_by(self._fused, attention)
        needs = torch.zeros(read.num_kv_heads)
        if self.wants_heads:
            needs = self._needs(attention, output)
        self.needs.append(needs)
        return output

    def _prompt(self, attention: AttentionLayer) -> AttentionLayer:
        """The layer, restricted to the tokens of the prompt."""
        count, seen = self.start, attention.visibility
        key_mask = None if seen.key_mask is None else seen.key_mask[:, :count]
        first = replace(seen, num_queries=count, num_keys=count, key_mask=key_mask)
        query, key, value = (part[:, :, :count] for part in (attention.query, attention.key, attention.value))
        return replace(attention, query=query, key=key, value=value, visibility=first)

    def _needs(self, attention: AttentionLayer, output: Tensor) -> Float[Tensor, " kv_head"]:
        """The relative change in each cache's output if its heads keep few keys, averaged over queries."""
        limited = replace(attention, visibility=self._limit.visibility(attention.visibility))
        change = (output_by(self._limited_fused, limited) - output)[0].float()
        sizes = torch.linalg.vector_norm(change, dim=-1) / torch.linalg.vector_norm(output[0].float(), dim=-1)
        head_changes: Tensor = sizes.nan_to_num(0.0).square().mean(dim=-1)
        return head_changes.view(-1, attention.group).mean(dim=1).cpu()

    def _rotation(self, name: str, attention: AttentionLayer) -> Rotation | None:
        is_traced = self._turned <= self._turns.keys()
        if is_traced and name not in self._turned:
            return None
        module, turns = self.model.get_submodule(name), self._turns.get(name)
        apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        match turns:
            case (Tensor(ndim=3) as cosines, Tensor(ndim=3) as sines) if is_traced and apply is not None:
                pass
            case _:
                raise UserError(
                    f"policy: `expected` cannot undo the rotations of {self.name}: omit `expected`"
                )
        # Some models rotate only part of each head: the function extracts that part itself (GPT-NeoX), or
        # receives only that part, which is the first dimensions (Phi) or the last (MLA).
        first, num_turned = attention.query[:, :, :1], cosines.shape[-1]
        turned = slice(None)
        try:
            apply(first, first, cosines[:, :1], sines[:, :1])
        except RuntimeError:
            is_mla = getattr(module, "qk_rope_head_dim", None) == num_turned
            turned = slice(-num_turned, None) if is_mla else slice(num_turned)
        return Rotation(apply, cosines, sines, turned)

    def select_keys(self, policy: str, budget: float) -> list[KeptKeys]:
        """For each layer and head, the keys that stay, in order, among the keys that the layer holds."""
        sizes = [int(held.sum()) for held in self.held]
        counts = COUNTS.get(policy, even_counts)(PromptStatistics(sizes, self.needs), budget)
        return [
            [_largest(scores[policy][head], held, count) for head, count in enumerate(layer_counts)]
            for scores, held, layer_counts in zip(self.scores, self.held, counts, strict=True)
        ]

    def share(self, kept: Sequence[KeptKeys]) -> float:
        """The remaining share of the prompt's cache, in bytes."""
        whole = left = 0
        for start, held, layer_keys in zip(self.run.starts, self.held, kept, strict=True):
            size = start.key.shape[-1] + start.value.shape[-1]
            whole += size * int(held.sum()) * len(layer_keys)
            left += size * sum(map(len, layer_keys))
        return left / whole

    def lost(self, copies: Sequence[PartsForCall]) -> list[Lost]:
        """Measure the changes with each of these caches, several at a time."""
        lost: list[Lost] = []
        size = self.run.num_together()
        for first in range(0, len(copies), size):
            some = copies[first : first + size]
            cost = len(some) * self.run.work_without(())
            self._work.begin("smaller cache", cost, first + 1, len(copies))
            outputs = self.run.without([()] * len(some), SmallerCaches(some, self.run.starts), 0)
            lost += [self.judge.lost(output) for output in outputs]
        return lost


def _largest(scores: Float[Tensor, " key"], held: Bool[Tensor, " key"], count: int) -> Int[Tensor, " kept"]:
    """The keys with the highest scores among those held, in order of position."""
    (places,) = held.nonzero(as_tuple=True)
    return places[scores[places].topk(count).indices.sort().values]


def num_judged(reading: Judged) -> int:
    """The number of last tokens that are judged: a tenth of the text, at most 200, or the second copy of the
    probe. The needle is always included.
    """
    num_tokens = len(reading.text.ids)
    count = min(200, max(1, num_tokens // 10)) if reading.repeat is None else reading.repeat - 1
    if reading.needle:
        count = max(count, num_tokens - 1 - min(reading.needle_positions()))
    return count


def windows(pretrained: Pretrained, reading: Judged, every: int | None) -> list[Judged]:
    """The windows of a text, one per `every` judged tokens, each as long as the model's context allows.

    A window's last `every` tokens are judged, with at least as many tokens before them. Each window starts
    with the text's first token if that token is special. Without `every`, the whole text is one window.
    Raises UserError if a window has no room for both parts.
    """
    if every is None:
        return [reading]
    ids, most = reading.text.ids, pretrained.most_tokens() or len(reading.text.ids)
    if 2 * every + 1 > min(most, len(ids)):
        raise UserError(
            f"every: must be below {min(most, len(ids)) // 2} for this text, to leave room for a prompt "
            f"(got {every})"
        )
    is_special = int(ids[0]) in pretrained.special_ids
    parts = []
    for end in range(len(ids), 2 * every, -every):
        first = max(0, end - most)
        window = ids[first:end].clone()
        if is_special:
            window[0] = ids[0]
        text = replace(reading.text, tokens=pretrained.labels(window.tolist()), ids=window, spans=None)
        part = judged_reading(Reading(text), pretrained, key=reading.key)
        places = [position - first for position in reading.needle_positions()]
        has_needle = places and end - first - every - 1 <= min(places) and max(places) < end - first - 1
        parts.append(replace(part, offset=first, needle=tuple(places) if has_needle else ()))
    return parts[::-1]


@torch.no_grad()
def policy_costs(
    pretrained: Pretrained,
    readings: Sequence[Judged],
    *,
    policies: Sequence[str] = tuple(CACHE_POLICIES),
    budgets: Sequence[float] = USUAL_BUDGETS,
    bits: int | None = None,
    every: int | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> PolicyCosts:
    """Measure the increase in loss on the last tokens of a text if the earlier tokens' cache is smaller.

    The prompt is read once, with the full cache. Each policy then keeps the share of its keys that a budget
    allows, and the last tokens are read with these keys and all of their own. Keys keep their rotation. With
    `bits`, all keys and values are also rounded (see `rounded_cache`). If there are several `readings`
    (windows of a text, in each of which `every` tokens are judged), the results are averaged. Raises
    UserError for a text that is too short to split, or a model that cannot continue from cached keys, and
    MemoryError if memory runs out.
    """
    window_costs = []
    num_caches = len(policies) * len(budgets) + (bits is not None)
    costs = [_reading_cost(pretrained, reading, policies) for reading in readings]
    costs += [num_caches * _cache_cost(pretrained, reading, every) for reading in readings]
    work = Work(progress, float(sum(costs)))
    work.begin("reading", 0.0)
    for reading in readings:
        judged = num_judged(reading) if every is None else every
        start = len(reading.text.ids) - judged - 1  # the token that predicts the first judged one
        if start < 3:
            count = len(reading.text.ids)
            raise UserError(
                f"{reading.key}: is too short for a prompt and judged tokens (got {count} tokens): use a "
                "longer text"
            )
        window_costs.append(_costs(pretrained, reading, start, policies, budgets, bits, work))
    return window_costs[0] if len(window_costs) == 1 else _mean_costs(window_costs)


def _costs(
    pretrained: Pretrained,
    reading: Judged,
    start: int,
    policies: Sequence[str],
    budgets: Sequence[float],
    bits: int | None,
    work: Work,
) -> PolicyCosts:
    """The costs on one reading, whose prompt ends at `start`."""
    cache = PromptCache(pretrained, reading, start, policies, work)
    runs = [(policy, budget, cache.select_keys(policy, budget)) for policy in policies for budget in budgets]
    copies: list[PartsForCall] = [partial(_call_parts, kept) for *_, kept in runs]
    if bits is not None:
        copies.append(lambda call, first: [_rounded_part(first, bits)])
    lost = cache.lost(copies)
    rows = [
        {"policy": policy, "budget": budget, "cache": cache.share(kept), **numbers}
        for (policy, budget, kept), numbers in zip(runs, lost, strict=False)
    ]
    if bits is not None:
        share = _bits_share(cache.run.starts[0], bits)
        rows.append({"policy": f"{bits} bits", "budget": None, "cache": share, **lost[-1]})
    judged = len(reading.text.ids) - start - 1
    costs = PolicyCost.rows(rows)
    return PolicyCosts(
        policies=costs,
        lines=budget_lines(costs),
        baseline=PromptBaseline.single(**cache.judge.baseline(), prompt=start, judged=judged),
        notes=tuple(cache.run.way.notes()),
    )


def _reading_cost(pretrained: Pretrained, reading: Judged, policies: Sequence[str]) -> float:
    """The cost of reading the prompt and scoring its keys by each policy."""
    return run_work(pretrained, reading, num_places=0) * (1.5 + SCORING_COST * len(policies))


def _cache_cost(pretrained: Pretrained, reading: Judged, every: int | None) -> float:
    """The cost of continuing from a smaller cache."""
    count = num_judged(reading) if every is None else every
    return run_work(pretrained, reading, max(0, len(reading.text.ids) - count - 1), count)


def _mean_costs(window_costs: Sequence[PolicyCosts]) -> PolicyCosts:
    """The mean costs over windows with equal numbers of judged tokens, without the worst token and needle."""
    costs = PolicyCost.rows(map(_mean_cost, zip(*(window.policies for window in window_costs), strict=True)))
    return PolicyCosts(
        policies=costs,
        lines=budget_lines(costs),
        baseline=PromptBaseline.single(
            **_means([window.baseline for window in window_costs], ("loss", "needle")),
            prompt=max(window.prompt for window in window_costs),
            judged=sum(window.judged for window in window_costs),
        ),
        notes=tuple(dict.fromkeys(note for window in window_costs for note in window.notes)),
    )


def _mean_cost(rows: Sequence[PolicyCost]) -> dict[str, object]:
    """A policy's mean cost at a budget, by column name, in the order of the columns."""
    worst = max(rows, key=lambda row: _number(row.worst))
    cells = {**worst, **_means(rows, ("cache", "kl", "loss", "needle"))}
    return {name: cells[name] for name in PolicyCost.columns if name in cells}


def _means(rows: Sequence[Record], names: Sequence[str]) -> dict[str, float]:
    columns = {name: [_number(row.number(name)) for row in rows if name in row] for name in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in columns.items() if numbers}


def _number(cell: float | None) -> float:
    return math.nan if cell is None else cell


def _rounded_part(start: FirstTokens, bits: int) -> KeptPart:
    key, value = rounded_cache(start, bits)
    positions = torch.arange(key.shape[1], device=key.device).expand(len(key), -1)
    return KeptPart(slice(0, len(key)), key, value, positions)


def _bits_share(start: FirstTokens, bits: int) -> float:
    """The size relative to the model's own numbers, with a half-precision scale and offset per 32 values."""
    return (bits + 2 * 16 / ROUNDED_TOGETHER) / (8 * start.key.element_size())
