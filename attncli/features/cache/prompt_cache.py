"""What a model loses where the cache of a prompt keeps less: some of its keys, or numbers of few bits."""

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
from attncli.features.cache.limited_heads import Judge, Limit, output_by, tell_of_layer
from attncli.features.cache.names import CACHE_POLICIES, USUAL_BUDGETS
from attncli.features.cache.policies import (
    COUNTS,
    SCORES,
    CacheScores,
    PromptLayer,
    Read,
    Rotation,
    even_counts,
)
from attncli.features.cache.results import Lost, PolicyCost, PolicyCosts, PromptBaseline, lines_of
from attncli.models.layers import CapturedLayer
from attncli.models.model_blocks import Forward
from attncli.models.patched_heads import LayerChange, RunningLayer
from attncli.models.predicted import Judged, judged_reading
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.removal import Removed, Whole
from attncli.models.removal_runs import FirstTokens, RemovalRuns, work_of_run
from attncli.records.columns import Record

SCORING_COST = 0.17
"""What the scores of one policy cost, in plain runs of the prompt, about."""
ROUNDED_TOGETHER = 32
"""Numbers that share a scale in a cache of few bits."""

KeptOfHeads = Sequence[Int[Tensor, " _"]]
"""Of each head of a layer the keys that stay."""


class SmallerCaches:
    """Of the first tokens of a text only some keys are seen by the others; each copy has its own."""

    def __init__(self, copies: Sequence["PartsOfCall"], starts: Sequence[FirstTokens]) -> None:
        self.copies, self.starts = copies, starts
        self.fused = FusedAttention()

    def of_call(self, call: int, removed: Sequence[Removed], whole: Whole) -> Sequence[LayerChange]:
        """The output of a call: each copy's queries see what it keeps, and their own keys."""
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
    """Some heads that keep as many keys: what is left of the first tokens, and where those stood."""

    heads: "slice[int, int, None]"
    key: Float[Tensor, "kv_head kept dim"]
    value: Float[Tensor, "kv_head kept value_dim"]
    positions: Int[Tensor, "kv_head kept"]


PartsOfCall = Callable[[int, FirstTokens], Sequence[KeptPart]]
"""What a copy keeps of a call, from the keys and values of the first tokens."""


def _output(
    layer: AttentionLayer, copy: int, parts: Sequence[KeptPart], fused: FusedAttention
) -> Float[Tensor, "1 head query value_dim"]:
    """The output of one copy; the heads that share a cache are the texts of a layer of their own."""
    num_queries, num_keys = layer.shape[2:]
    start, seen, group = num_keys - num_queries, layer.visibility, layer.group
    outputs = []
    for part in parts:
        sharing = slice(part.heads.start * group, part.heads.stop * group)
        query = layer.query[copy, sharing].view(-1, group, *layer.query.shape[2:])
        key, value = (
            torch.cat([kept, whole[copy, part.heads, start:]], dim=1).unsqueeze(1)
            for kept, whole in ((part.key, layer.key), (part.value, layer.value))
        )
        num_kept = part.positions.shape[1]
        visibility = Visibility(num_queries, num_kept + num_queries, causal=True)
        if seen != Visibility(num_queries, num_keys, causal=True):
            visibility = _as_before(seen, part, start, num_queries)
        rules = layer.rules
        if rules.sink is not None:
            rules = replace(rules, sink=rules.sink.expand(1, layer.num_heads)[0, sharing].view(-1, group))
        limited = AttentionLayer(query, key, value, visibility, layer.scale, rules)
        outputs.append(output_by(fused, limited).flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0)


def _as_before(seen: Visibility, part: KeptPart, start: int, num_queries: int) -> Visibility:
    """Who sees whom by the layer's own rule, at the positions where the keys stood."""
    later = torch.arange(start, start + num_queries, device=part.positions.device)
    positions = torch.cat([part.positions, later.expand(len(part.positions), -1)], dim=1)
    whole = seen.whole(part.positions.device)[0]
    masks = torch.stack([whole[:, of_head] for of_head in positions])
    return Visibility(num_queries, positions.shape[1], rule=lambda i, j: masks[:, i][:, :, j])


def _kept_parts(kept: Sequence[KeptOfHeads], call: int, start: FirstTokens) -> list[KeptPart]:
    """What a copy keeps of a call."""
    return _parts_of(kept[call], start)


def _parts_of(kept: KeptOfHeads, start: FirstTokens) -> list[KeptPart]:
    """The heads side by side where all keep as many keys, else one by one."""
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
    """The nearest of 2^bits numbers from the smallest of a group to its largest."""
    least, most = numbers.amin(dim=-1, keepdim=True), numbers.amax(dim=-1, keepdim=True)
    step = ((most - least) / (2**bits - 1)).clamp(min=torch.finfo(numbers.dtype).tiny)
    nearest: Tensor = ((numbers - least) / step).round() * step + least
    return nearest


def rounded_cache(start: FirstTokens, bits: int) -> tuple[Tensor, Tensor]:
    """Keys rounded by channel, in groups of 32 tokens, values by token, in groups of 32 channels; the last
    tokens, which fill no group, keep all bits. KIVI: Liu et al. 2024 (2402.02750), section 3.
    """
    size, key, value = ROUNDED_TOGETHER, start.key[0], start.value[0]
    whole = key.shape[1] // size * size
    by_channel = key[:, :whole].mT.reshape(*key.shape[::2], -1, size)
    keys = torch.cat([rounded(by_channel, bits).flatten(-2).mT, key[:, whole:]], dim=1)
    channels = size if value.shape[-1] % size == 0 else value.shape[-1]
    values = rounded(value.reshape(*value.shape[:2], -1, channels), bits).flatten(-2)
    return keys, torch.cat([values[:, :whole], value[:, whole:]], dim=1)


_note_rotation: ContextVar[Callable[[], None]] = ContextVar("note_rotation")
"""What this run wants to know of: models of other threads may have the same code."""


_noted: dict[ModuleType, SharedChange] = {}


def _rotations_noted(code: ModuleType) -> SharedChange:
    """While it is made, a model's own functions that turn vectors tell `_note_rotation` of each call."""

    def functions() -> dict[str, Forward]:
        return {name: of for name, of in vars(code).items() if name.startswith("apply_rotary")}

    def noting(function: Forward) -> Forward:
        def called(*parts: object, **options: object) -> object:
            _note_rotation.get(lambda: None)()
            return function(*parts, **options)

        return called

    def note() -> None:
        vars(code).update({name: noting(function) for name, function in functions().items()})

    return _noted.setdefault(code, SharedChange(lambda: partial(vars(code).update, functions()), note))


class PromptCache:
    """A prompt that was read once: its keys and values, and the scores of policies."""

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
        self._fused, self._few = FusedAttention(), FusedAttention(self._limit.columns)
        self._turns: dict[str, object] = {}
        self._turned: set[str] = set()
        self._last_given = ""
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
                        lambda _module, _inputs, named, name=name: self._note(name, named), with_kwargs=True
                    )
                    hooks.enter_context(hook)
                for code in {sys.modules[type(module).__module__] for module in self.model.modules()}:
                    hooks.enter_context(self._noting_rotations(code))
            self.run = RemovalRuns(pretrained, judged, self._take, key="cache", start=start)
        if not self.run.start:
            raise UserError(
                f"model: {pretrained.name} cannot read on from the keys of a prompt: leave `policy` out"
            )
        self.judge = Judge(self.run.output, judged)

    def _note(self, name: str, named: Mapping[str, object]) -> None:
        if (turns := named.get("position_embeddings")) is not None:
            self._turns[name] = turns
            self._last_given = name

    @contextmanager
    def _noting_rotations(self, code: ModuleType) -> Iterator[None]:
        """Note which layers turn what they are given angles for: some are given them and do not (SmolLM3).

        Nothing but the call tells: for the while, a model's own functions are replaced by ones that note it.
        """
        token = _note_rotation.set(lambda: self._turned.add(self._last_given))
        try:
            with _rotations_noted(code).made():
                yield
        finally:
            _note_rotation.reset(token)

    def _take(self, layer: CapturedLayer) -> Tensor:
        """The output of a call in the whole run; what policies make of the prompt."""
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        prompt = self._prompt(attention)
        number = len(self.scores)
        tell_of_layer(self._work, self._reading_cost, number + 1, self.num_layers)
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
        """The layer on the tokens of the prompt alone."""
        count, seen = self.start, attention.visibility
        key_mask = None if seen.key_mask is None else seen.key_mask[:, :count]
        first = replace(seen, num_queries=count, num_keys=count, key_mask=key_mask)
        query, key, value = (part[:, :, :count] for part in (attention.query, attention.key, attention.value))
        return replace(attention, query=query, key=key, value=value, visibility=first)

    def _needs(self, attention: AttentionLayer, output: Tensor) -> Float[Tensor, " kv_head"]:
        """How much the output of the heads of a cache changes where they keep few keys, mean over queries."""
        few = replace(attention, visibility=self._limit.visibility(attention.visibility))
        change = (output_by(self._few, few) - output)[0].float()
        sizes = torch.linalg.vector_norm(change, dim=-1) / torch.linalg.vector_norm(output[0].float(), dim=-1)
        of_heads: Tensor = sizes.nan_to_num(0.0).square().mean(dim=-1)
        return of_heads.view(-1, attention.group).mean(dim=1).cpu()

    def _rotation(self, name: str, attention: AttentionLayer) -> Rotation | None:
        is_told = self._turned <= self._turns.keys()
        if is_told and name not in self._turned:
            return None
        module, turns = self.model.get_submodule(name), self._turns.get(name)
        apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        match turns:
            case (Tensor(ndim=3) as cosines, Tensor(ndim=3) as sines) if is_told and apply is not None:
                pass
            case _:
                raise UserError(f"policy: expected cannot undo the rotations of {self.name}: leave it out")
        # A part of each head is turned: the function takes it out itself (GPT-NeoX), or gets it alone, the
        # first dimensions (Phi), or of MLA the last.
        first, num_turned = attention.query[:, :, :1], cosines.shape[-1]
        turned = slice(None)
        try:
            apply(first, first, cosines[:, :1], sines[:, :1])
        except RuntimeError:
            of_mla = getattr(module, "qk_rope_head_dim", None) == num_turned
            turned = slice(-num_turned, None) if of_mla else slice(num_turned)
        return Rotation(apply, cosines, sines, turned)

    def kept(self, policy: str, budget: float) -> list[KeptOfHeads]:
        """The keys of each head of each layer that stay, in their order, of those that the layer holds."""
        sizes = [int(held.sum()) for held in self.held]
        counts = COUNTS.get(policy, even_counts)(Read(sizes, self.needs), budget)
        return [
            [_largest(scores[policy][head], held, count) for head, count in enumerate(of_layer)]
            for scores, held, of_layer in zip(self.scores, self.held, counts, strict=True)
        ]

    def share(self, kept: Sequence[KeptOfHeads]) -> float:
        """What stays of the prompt's cache, in bytes."""
        whole = left = 0
        for start, held, of_layer in zip(self.run.starts, self.held, kept, strict=True):
            size = start.key.shape[-1] + start.value.shape[-1]
            whole += size * int(held.sum()) * len(of_layer)
            left += size * sum(map(len, of_layer))
        return left / whole

    def lost(self, copies: Sequence[PartsOfCall]) -> list[Lost]:
        """What is lost with each of these caches, some of them together."""
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
    """The keys of the highest scores among those that are held, in their order."""
    (places,) = held.nonzero(as_tuple=True)
    return places[scores[places].topk(count).indices.sort().values]


def num_judged(reading: Judged) -> int:
    """How many of the last tokens are judged: a tenth, at most 200; of the probe the second copy; the needle
    with them.
    """
    num_tokens = len(reading.text.ids)
    count = min(200, max(1, num_tokens // 10)) if reading.repeat is None else reading.repeat - 1
    if reading.needle:
        count = max(count, num_tokens - 1 - min(reading.needle_positions()))
    return count


def windows(pretrained: Pretrained, reading: Judged, every: int | None) -> list[Judged]:
    """The parts of a text that end every so many tokens, each with as much before as the model reads.

    What a window judges are its last tokens; at least as many are before them. The first token of the text,
    where it is special, begins each. Without `every` it is the text alone. UserError where a window has no
    room for both.
    """
    if every is None:
        return [reading]
    ids, most = reading.text.ids, pretrained.most_tokens() or len(reading.text.ids)
    if 2 * every + 1 > min(most, len(ids)):
        raise UserError(
            f"every: must be below {min(most, len(ids)) // 2} here: a prompt comes before (got {every})"
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
    """What the model loses on the last tokens of a text where the cache of those before keeps less.

    The prompt is read once, with the whole cache; then each policy keeps the share of its keys that a budget
    allows, and the last tokens are read with what is left, and with all keys of their own. Keys keep their
    rotation. `bits` rounds all keys and values instead (see `rounded_cache`). Of several `readings`, windows
    of a text that judge `every` tokens each, means. UserError for a text too short to be cut, and
    for a model that cannot read on from kept keys; MemoryError.
    """
    of_windows = []
    num_caches = len(policies) * len(budgets) + (bits is not None)
    costs = [_reading_cost(pretrained, reading, policies) for reading in readings]
    costs += [num_caches * _cost_of_cache(pretrained, reading, every) for reading in readings]
    work = Work(progress, float(sum(costs)))
    work.begin("reading", 0.0)
    for reading in readings:
        judged = num_judged(reading) if every is None else every
        start = len(reading.text.ids) - judged - 1  # the token before the first that is judged predicts it
        if start < 3:
            count = len(reading.text.ids)
            raise UserError(
                f"{reading.key}: must be longer, for a prompt and tokens behind it (got {count} tokens)"
            )
        of_windows.append(_costs(pretrained, reading, start, policies, budgets, bits, work))
    return of_windows[0] if len(of_windows) == 1 else _mean_costs(of_windows)


def _costs(
    pretrained: Pretrained,
    reading: Judged,
    start: int,
    policies: Sequence[str],
    budgets: Sequence[float],
    bits: int | None,
    work: Work,
) -> PolicyCosts:
    """Those of one reading, whose prompt ends at `start`."""
    cache = PromptCache(pretrained, reading, start, policies, work)
    runs = [(policy, budget, cache.kept(policy, budget)) for policy in policies for budget in budgets]
    copies: list[PartsOfCall] = [partial(_kept_parts, kept) for *_, kept in runs]
    if bits is not None:
        copies.append(lambda call, first: [_rounded_part(first, bits)])
    lost = cache.lost(copies)
    rows = [
        {"policy": policy, "budget": budget, "cache": cache.share(kept), **numbers}
        for (policy, budget, kept), numbers in zip(runs, lost, strict=False)
    ]
    if bits is not None:
        share = _share_of_bits(cache.run.starts[0], bits)
        rows.append({"policy": f"{bits} bits", "budget": None, "cache": share, **lost[-1]})
    judged = len(reading.text.ids) - start - 1
    costs = PolicyCost.rows(rows)
    return PolicyCosts(
        policies=costs,
        lines=lines_of(costs),
        baseline=PromptBaseline.single(**cache.judge.baseline(), prompt=start, judged=judged),
        notes=tuple(cache.run.way.notes()),
    )


def _reading_cost(pretrained: Pretrained, reading: Judged, policies: Sequence[str]) -> float:
    """What it costs to read the prompt and to score its keys by each policy."""
    return work_of_run(pretrained, reading, num_places=0) * (1.5 + SCORING_COST * len(policies))


def _cost_of_cache(pretrained: Pretrained, reading: Judged, every: int | None) -> float:
    """What it costs to read on from a smaller cache."""
    count = num_judged(reading) if every is None else every
    return work_of_run(pretrained, reading, max(0, len(reading.text.ids) - count - 1), count)


def _mean_costs(of_windows: Sequence[PolicyCosts]) -> PolicyCosts:
    """Means over windows that judge as many tokens each; the worst token of all, the one window's needle."""
    costs = PolicyCost.rows(map(_mean_cost, zip(*(window.policies for window in of_windows), strict=True)))
    return PolicyCosts(
        policies=costs,
        lines=lines_of(costs),
        baseline=PromptBaseline.single(
            **_means([window.baseline for window in of_windows], ("loss", "needle")),
            prompt=max(window.prompt for window in of_windows),
            judged=sum(window.judged for window in of_windows),
        ),
        notes=tuple(dict.fromkeys(note for window in of_windows for note in window.notes)),
    )


def _mean_cost(of_windows: Sequence[PolicyCost]) -> dict[str, object]:
    """What a policy costs at a budget, by the names of the columns, in their order."""
    worst = max(of_windows, key=lambda row: _number(row.worst))
    cells = {**worst, **_means(of_windows, ("cache", "kl", "loss", "needle"))}
    return {name: cells[name] for name in PolicyCost.columns if name in cells}


def _means(rows: Sequence[Record], names: Sequence[str]) -> dict[str, float]:
    known = {name: [_number(row.number(name)) for row in rows if name in row] for name in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in known.items() if numbers}


def _number(cell: float | None) -> float:
    return math.nan if cell is None else cell


def _rounded_part(start: FirstTokens, bits: int) -> KeptPart:
    key, value = rounded_cache(start, bits)
    positions = torch.arange(key.shape[1], device=key.device).expand(len(key), -1)
    return KeptPart(slice(0, len(key)), key, value, positions)


def _share_of_bits(start: FirstTokens, bits: int) -> float:
    """With a scale and an offset in half precision for every 32 numbers; of the model's own numbers."""
    return (bits + 2 * 16 / ROUNDED_TOGETHER) / (8 * start.key.element_size())
