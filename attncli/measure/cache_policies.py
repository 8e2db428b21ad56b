"""What a model loses where the cache of a prompt keeps some of its keys, by policies from the literature, or
keeps numbers of few bits.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncli.core.engines import FusedAttention, attend
from attncli.core.layer import AttentionLayer, Visibility, Wanted
from attncli.core.names import CACHE_POLICIES, ends_of
from attncli.core.process import SharedChange
from attncli.core.progress import Stage, Work
from attncli.errors import UserError
from attncli.measure.ablate import Start, TextRun, work_of_run
from attncli.measure.cache import Judge, Judged, Limit, judged_reading, output_by, tell_of_layer
from attncli.measure.removal import Removed
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading
from attncli.records.caches import Lost, PolicyCost, PolicyCosts, PromptBaseline, lines_of
from attncli.records.columns import Record

Scores = Float[Tensor, "kv_head key"]
"""The keys of the highest scores stay."""
SINKS = 4
LAST_QUERIES = 64
"""Of the prompt, which SnapKV takes its scores from."""
SMOOTHED_OVER = 5
FUTURE = 512
"""Queries to come that expected attention averages its rotations over."""
STEEPNESS = 20
"""PyramidKV's beta: the lowest layer has up to so many times the keys of the highest."""
ROOM_FOR_ROUNDING = 1e-6
"""Of a key: what a budget times many keys may be off by."""
SCORING_COST = 0.17
"""What the scores of one policy cost, in plain runs of the prompt, about."""
ROUNDED_TOGETHER = 32
"""Numbers that share a scale in a cache of few bits."""


class Rotation(NamedTuple):
    """How a layer turns queries and keys: its model's own function, cosines and sines of each position.

    Only the dimensions `turned` of a head go through the function.
    """

    apply: Callable[..., tuple[Tensor, Tensor]]
    cosines: Float[Tensor, "1 key angle"]
    sines: Float[Tensor, "1 key angle"]
    turned: slice

    def undone(self, query: Float[Tensor, "1 head query dim"]) -> Float[Tensor, "1 head query dim"]:
        """The queries of the first positions before they were turned; what also scales them is divided by."""
        count = query.shape[2]
        cosines, sines = self.cosines[:, :count], self.sines[:, :count]
        size = (cosines.square() + sines.square()).mean()
        part, found = query[..., self.turned], query.clone()
        found[..., self.turned] = self.apply(part, part, cosines, -sines)[0] / size
        return found

    def mean_matrix(self, first: int, dim: int) -> Float[Tensor, "dim dim"]:
        """The mean of the matrices that turn a vector at the positions to come."""
        size = (self.cosines.square() + self.sines.square()).mean().sqrt().double()
        angles = torch.atan2(self.sines[0, 1].double(), self.cosines[0, 1].double())
        turns = torch.arange(first, first + FUTURE, device=angles.device).unsqueeze(-1) * angles
        cosines, sines = ((part * size).mean(dim=0) for part in (turns.cos(), turns.sin()))
        found = torch.eye(dim, dtype=self.cosines.dtype, device=angles.device)
        unit = found[self.turned, self.turned][None, None].clone()
        cosines, sines = (part.to(unit).expand(1, unit.shape[2], -1) for part in (cosines, sines))
        # Of a row of the unit matrix a column.
        found[self.turned, self.turned] = self.apply(unit, unit, cosines, sines)[0][0, 0].mT
        return found


@dataclass(frozen=True)
class PromptLayer:
    """A layer as it read the prompt, of `num_layers` the one with this `number`, from 0."""

    attention: AttentionLayer
    number: int
    num_layers: int
    rotation: Rotation | None

    @property
    def num_keys(self) -> int:
        """The tokens of the prompt."""
        return self.attention.shape[3]

    @property
    def num_kv_heads(self) -> int:
        """Heads that share no cache."""
        return self.attention.key.shape[1]

    def of_groups(self, numbers: Float[Tensor, "head key"]) -> Scores:
        """The mean over the heads that share a cache."""
        return numbers.view(self.num_kv_heads, self.attention.group, -1).mean(dim=1)

    def last_weights(self, count: int) -> Float[Tensor, "head query key"]:
        """The weights of the last queries of the prompt."""
        attention, every = self.attention, slice(None)
        seen = attention.visibility[every, every, self.num_keys - count :, every]
        few = replace(attention, query=attention.query[:, :, -count:], visibility=seen)
        weights = attend(few, Wanted(weights=True)).weights
        assert weights is not None
        return weights[0]

    def even(self, scores: Float[Tensor, " key"]) -> Scores:
        """The same scores for every head."""
        return scores.to(self.attention.key.device).expand(self.num_kv_heads, -1)


def by_position(layer: PromptLayer) -> Scores:
    """j: the last keys stay. Beltagy et al. 2020 (2004.05150), section 3.1."""
    return layer.even(torch.arange(layer.num_keys).float())


def by_ends(layer: PromptLayer) -> Scores:
    """j, the first four above all: the first keys and the last stay. Xiao et al. 2023 (2309.17453)."""
    scores = torch.arange(layer.num_keys).float()
    scores[:SINKS] = torch.arange(2 * layer.num_keys, 2 * layer.num_keys - len(scores[:SINKS]), -1).float()
    return layer.even(scores)


def by_received_weight(layer: PromptLayer) -> Scores:
    """sum_i p_ij / (n - j), mean over the heads of a cache: the mean weight from the queries that see a key.

    H2O (Zhang et al. 2023, 2306.14048) ranks by the sum, and keeps half of the cache for the last keys; the
    mean, which does not favour what came first, is kvpress's ObservedAttentionPress.
    """
    received = attend(layer.attention, Wanted(received_mass=True)).received_mass
    assert received is not None
    seen_by = torch.arange(layer.num_keys, 0, -1, device=received.device)
    return layer.of_groups(received[0] / seen_by)


def by_last_query(layer: PromptLayer) -> Scores:
    """p of the last query, mean over all heads; the last key stays. Oren et al. 2024 (2401.06104)."""
    scores = layer.last_weights(1)[:, 0].mean(dim=0)
    scores[-1] = torch.inf
    return layer.even(scores)


def by_last_queries(layer: PromptLayer) -> Scores:
    """p, mean over the last queries, then over five neighbours and the heads of a cache; those queries' own
    keys stay. Li et al. 2024 (2404.14469), section 3, with kvpress's mean for their maximum.
    """
    count = min(LAST_QUERIES, max(1, layer.num_keys // 2))
    weights = layer.last_weights(count)[..., :-count].mean(dim=1)
    smoothed = nn.functional.avg_pool1d(weights, SMOOTHED_OVER, stride=1, padding=SMOOTHED_OVER // 2)
    return nn.functional.pad(layer.of_groups(smoothed), (0, count), value=torch.inf)


def by_key_norm(layer: PromptLayer) -> Scores:
    """-||k||: short keys get much weight. Devoto et al. 2024 (2406.11430), section 4."""
    dtype = torch.promote_types(layer.attention.key.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(layer.attention.key[0], dim=-1, dtype=dtype)
    return -lengths


def by_expected_weight(layer: PromptLayer) -> Scores:
    """softmax_j(m k_j s + k_j C k_j s^2 / 2) ||v_j||: the weight that a key has for queries to come, were
    they Gaussian with the mean m and the covariance C of those read so far; the first four keys stay.

    m and C are of queries before their rotation, turned by the mean rotation of the 512 positions to come.
    Devoto et al. 2025 (2510.00636), section 3.
    """
    attention = layer.attention
    skipped = min(SINKS, layer.num_keys - 1)
    query = attention.query
    if layer.rotation is not None:
        query = layer.rotation.undone(query)
    query = query[0, :, skipped:]
    mean = query.mean(dim=1)
    centred = query - mean.unsqueeze(1)
    covariance = centred.mT @ centred / query.shape[1]
    if layer.rotation is not None:
        turn = layer.rotation.mean_matrix(layer.num_keys, mean.shape[-1]).to(mean.dtype)
        mean, covariance = mean @ turn.mT, turn @ covariance @ turn.mT
    group, scale = attention.group, attention.scale
    found = []
    for head, key in enumerate(attention.key[0, :, skipped:]):
        own = slice(head * group, (head + 1) * group)
        linear = mean[own] @ key.mT * scale
        square = ((key @ covariance[own]) * key).sum(dim=-1) * scale**2 / 2
        found.append((linear + square).softmax(dim=-1).mean(dim=0))
    scores = torch.stack(found) * torch.linalg.vector_norm(attention.value[0, :, skipped:], dim=-1)
    return nn.functional.pad(scores, (skipped, 0), value=torch.inf)


def by_chance(layer: PromptLayer) -> Scores:
    """A random order, from a seed that is the layer's number."""
    generator = torch.Generator().manual_seed(layer.number)
    scores = torch.rand(layer.num_kv_heads, layer.num_keys, generator=generator)
    return scores.to(layer.attention.key.device)


class Read(NamedTuple):
    """What counts depend on: how many keys the cache of each layer holds of the prompt and, of each of its
    heads, how much its output changes where it keeps few keys, relative to the others'.

    A layer holds what the prompt's last token sees: a window, where it has one.
    """

    num_keys: Sequence[int]
    needs: Sequence[Float[Tensor, " _"]]


def even_counts(read: Read, budget: float) -> list[list[int]]:
    """The same share of its keys for every head."""
    return [
        [max(1, int(num_keys * budget))] * len(needs)
        for num_keys, needs in zip(read.num_keys, read.needs, strict=True)
    ]


def pyramid_counts(read: Read, budget: float) -> list[list[int]]:
    """Fewer keys from layer to layer, the same number in all. Cai et al. 2024 (2406.02069), section 4.2, as
    in their code and in kvpress; where the lowest layer would have less than the last queries, even counts.

    Layers that hold as many keys are a pyramid of their own.
    """
    counts = [0] * len(read.needs)
    for num_keys in {*read.num_keys}:
        alike = [layer for layer, size in enumerate(read.num_keys) if size == num_keys]
        for layer, count in zip(alike, _pyramid(num_keys, len(alike), budget), strict=True):
            counts[layer] = count
    return [[count] * len(needs) for count, needs in zip(counts, read.needs, strict=True)]


def _pyramid(num_keys: int, num_layers: int, budget: float) -> list[int]:
    total = num_keys * budget
    least = total / STEEPNESS
    most = total * 2 - least
    if most >= num_keys - LAST_QUERIES:
        most = num_keys - LAST_QUERIES
        least = total * 2 - most
    if not num_keys >= most >= least >= LAST_QUERIES:
        return [max(1, round(total))] * num_layers
    step = (most - least) / max(1, num_layers - 1)
    return [round(most - number * step) for number in range(num_layers)]


def head_counts(read: Read, budget: float) -> list[list[int]]:
    """All keys for the heads that need them most, few for the others: as many whole heads as there is room
    for. Xiao et al. 2024 (2410.10819) train which; here it is measured.
    """
    few = [max(1, min(sum(ends_of(size)), int(size * budget))) for size in read.num_keys]
    order = sorted(
        (
            (float(need), number, head)
            for number, needs in enumerate(read.needs)
            for head, need in enumerate(needs)
        ),
        reverse=True,
    )
    room = sum(read.num_keys[number] * budget - few[number] for _, number, _ in order)
    counts = [[count] * len(needs) for count, needs in zip(few, read.needs, strict=True)]
    for _, number, head in order:
        more = read.num_keys[number] - few[number]
        if more <= room + ROOM_FOR_ROUNDING:
            counts[number][head] += more
            room -= more
    return counts


SCORES: dict[str, Callable[[PromptLayer], Scores]] = {
    "window": by_position,
    "sinks": by_ends,
    "h2o": by_received_weight,
    "tova": by_last_query,
    "snapkv": by_last_queries,
    "pyramidkv": by_last_queries,
    "knorm": by_key_norm,
    "expected": by_expected_weight,
    "random": by_chance,
    "heads": by_ends,
}
"""What each of CACHE_POLICIES ranks the keys by."""
COUNTS: dict[str, Callable[[Read, float], list[list[int]]]] = {
    "pyramidkv": pyramid_counts,
    "heads": head_counts,
}
"""How many keys stay, of those that keep other than even counts."""


Kept = Sequence[Int[Tensor, " _"]]
"""Of each head of a layer the keys that stay."""


class KeptKeys:
    """Of the first tokens of a text only some keys are seen by the others; each copy has its own."""

    def __init__(
        self, copies: Sequence[Callable[[int, Start], Sequence["Part"]]], starts: Sequence[Start]
    ) -> None:
        self.copies, self.starts = copies, starts
        self.fused = FusedAttention()

    def applied(
        self, model: nn.Module, layer: CapturedLayer, call: int, removed: Sequence[Removed], hooks: ExitStack
    ) -> Float[Tensor, "copy head query value_dim"]:
        """The output of a call: each copy's queries see what it keeps, and their own keys."""
        attention, start = layer.attention, self.starts[call]
        assert isinstance(attention, AttentionLayer)
        return torch.cat(
            [
                _output(attention, copy, parts(call, start), self.fused)
                for copy, parts in enumerate(self.copies)
            ]
        )


class Part(NamedTuple):
    """Some heads that keep as many keys: what is left of the first tokens, and where those stood."""

    heads: slice
    key: Float[Tensor, "kv_head kept dim"]
    value: Float[Tensor, "kv_head kept value_dim"]
    positions: Int[Tensor, "kv_head kept"]


def _output(
    layer: AttentionLayer, copy: int, parts: Sequence[Part], fused: FusedAttention
) -> Float[Tensor, "1 head query value_dim"]:
    """The output of one copy; the heads that share a cache are the texts of a layer of their own."""
    num_queries, num_keys = layer.shape[2:]
    start, seen, group = num_keys - num_queries, layer.visibility, layer.group
    outputs = []
    for part in parts:
        own = slice(part.heads.start * group, part.heads.stop * group)
        query = layer.query[copy, own].view(-1, group, *layer.query.shape[2:])
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
            rules = replace(rules, sink=rules.sink.expand(1, layer.num_heads)[0, own].view(-1, group))
        limited = AttentionLayer(query, key, value, visibility, layer.scale, rules)
        outputs.append(output_by(fused, limited).flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0)


def _as_before(seen: Visibility, part: Part, start: int, num_queries: int) -> Visibility:
    """Who sees whom by the layer's own rule, at the positions where the keys stood."""
    own = torch.arange(start, start + num_queries, device=part.positions.device)
    positions = torch.cat([part.positions, own.expand(len(part.positions), -1)], dim=1)
    whole = seen.whole(part.positions.device)[0]
    masks = torch.stack([whole[:, of_head] for of_head in positions])
    return Visibility(num_queries, positions.shape[1], rule=lambda i, j: masks[:, i][:, :, j])


def _kept_parts(kept: Sequence[Kept], call: int, start: Start) -> list[Part]:
    """What a copy keeps of a call."""
    return _parts_of(kept[call], start)


def _parts_of(kept: Kept, start: Start) -> list[Part]:
    """The heads side by side where all keep as many keys, else one by one."""
    counts = {len(keys) for keys in kept}
    if len(counts) == 1:
        keys = torch.stack([*kept])
        return [Part(slice(0, len(keys)), *_gathered(start, slice(None), keys), keys)]
    return [
        Part(slice(head, head + 1), *_gathered(start, slice(head, head + 1), keys[None]), keys[None])
        for head, keys in enumerate(kept)
    ]


def _gathered(
    start: Start, heads: slice, keys: Int[Tensor, "kv_head kept"]
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
    found: Tensor = ((numbers - least) / step).round() * step + least
    return found


def rounded_cache(start: Start, bits: int) -> tuple[Tensor, Tensor]:
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

    def functions() -> dict[str, Callable[..., Any]]:
        return {name: of for name, of in vars(code).items() if name.startswith("apply_rotary")}

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*parts: Any, **options: Any) -> Any:
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
        self.scores: list[dict[str, Scores]] = []
        self.held: list[Bool[Tensor, " key"]] = []
        self.needs: list[Tensor] = []
        self.num_layers = pretrained.num_layers
        self.model = pretrained.whole
        self.wants_heads = "heads" in policies
        ends = ends_of(start)
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
            self.run = TextRun(pretrained, judged, self._take, key="cache", start=start)
        if not self.run.start:
            raise UserError(
                f"model: {pretrained.name} cannot read on from the keys of a prompt: leave `policy` out"
            )
        self.judge = Judge(self.run.output, judged)

    def _note(self, name: str, named: dict[str, Any]) -> None:
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

    def kept(self, policy: str, budget: float) -> list[Kept]:
        """The keys of each head of each layer that stay, in their order, of those that the layer holds."""
        sizes = [int(held.sum()) for held in self.held]
        counts = COUNTS.get(policy, even_counts)(Read(sizes, self.needs), budget)
        return [
            [_largest(scores[policy][head], held, count) for head, count in enumerate(of_layer)]
            for scores, held, of_layer in zip(self.scores, self.held, counts, strict=True)
        ]

    def share(self, kept: Sequence[Kept]) -> float:
        """What stays of the prompt's cache, in bytes."""
        whole = left = 0
        for start, held, of_layer in zip(self.run.starts, self.held, kept, strict=True):
            size = start.key.shape[-1] + start.value.shape[-1]
            whole += size * int(held.sum()) * len(of_layer)
            left += size * sum(map(len, of_layer))
        return left / whole

    def lost(self, copies: Sequence[Callable[[int, Start], Sequence[Part]]]) -> list[Lost]:
        """What is lost with each of these caches, some of them together."""
        lost: list[Lost] = []
        size = self.run.num_together()
        for first in range(0, len(copies), size):
            some = copies[first : first + size]
            cost = len(some) * self.run.work_without(())
            self._work.begin("smaller cache", cost, first + 1, len(copies))
            outputs = self.run.without([()] * len(some), KeptKeys(some, self.run.starts), 0)
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


def windows(pretrained: Pretrained, reading: Judged, every: int) -> list[Judged]:
    """The parts of a text that end every so many tokens, each with as much before as the model reads.

    What a window judges are its last tokens; at least as many are before them. The first token of the text,
    where it is special, begins each. UserError where a window has no room for both.
    """
    ids, most = reading.text.ids, pretrained.most_tokens() or len(reading.text.ids)
    if 2 * every + 1 > min(most, len(ids)):
        raise UserError(
            f"every: must be below {min(most, len(ids)) // 2} here: a prompt comes before (got {every})"
        )
    is_special = int(ids[0]) in pretrained.special_ids
    parts = []
    for end in range(len(ids), 2 * every, -every):
        first = max(0, end - most)
        own = ids[first:end].clone()
        if is_special:
            own[0] = ids[0]
        text = replace(reading.text, tokens=pretrained.labels(own.tolist()), ids=own, spans=None)
        part = judged_reading(Reading(text), pretrained)
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
    budgets: Sequence[float] = (0.1, 0.3, 0.5),
    bits: int | None = None,
    every: int | None = None,
    progress: Callable[[Stage], None] | None = None,
    key: str = "text",
) -> PolicyCosts:
    """What the model loses on the last tokens of a text where the cache of those before keeps less.

    The prompt is read once, with the whole cache; then each policy keeps the share of its keys that a budget
    allows, and the last tokens are read with what is left, and with all keys of their own. Keys keep their
    rotation. `bits` rounds all keys and values instead (see `rounded_cache`). Of several `readings`, windows
    of a text that judge `every` tokens each, means. UserError, at `key`, for a text too short to be cut, and
    for a model that cannot read on from kept keys; MemoryError.
    """
    of_windows = []
    num_caches = len(policies) * len(budgets) + (bits is not None)
    costs = [_reading_cost(pretrained, one, policies) for one in readings]
    costs += [num_caches * _cost_of_cache(pretrained, one, every) for one in readings]
    work = Work(progress, float(sum(costs)))
    work.begin("reading", 0.0)
    for reading in readings:
        judged = num_judged(reading) if every is None else every
        start = len(reading.text.ids) - judged - 1  # the token before the first that is judged predicts it
        if start < 3:
            count = len(reading.text.ids)
            raise UserError(f"{key}: must be longer, for a prompt and tokens behind it (got {count} tokens)")
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
    copies: list[Callable[[int, Start], Sequence[Part]]] = [partial(_kept_parts, kept) for *_, kept in runs]
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


def _mean_cost(of_windows: Sequence[PolicyCost]) -> dict[str, str | int | float | None]:
    """What a policy costs at a budget, by the names of the columns, in their order."""
    worst = max(of_windows, key=lambda row: _number(row.worst))
    cells = {**worst, **_means(of_windows, ("cache", "kl", "loss", "needle"))}
    return {name: cells[name] for name in PolicyCost.columns if name in cells}


def _means(rows: Sequence[Record], names: Sequence[str]) -> dict[str, float]:
    known = {name: [_number(row[name]) for row in rows if name in row] for name in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in known.items() if numbers}


def _number(cell: float | None) -> float:
    return math.nan if cell is None else cell


def _rounded_part(start: Start, bits: int) -> Part:
    key, value = rounded_cache(start, bits)
    positions = torch.arange(key.shape[1], device=key.device).expand(len(key), -1)
    return Part(slice(0, len(key)), key, value, positions)


def _share_of_bits(start: Start, bits: int) -> float:
    """With a scale and an offset in half precision for every 32 numbers; of the model's own numbers."""
    return (bits + 2 * 16 / ROUNDED_TOGETHER) / (8 * start.key.element_size())
