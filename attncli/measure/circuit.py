"""Which heads feed which: shares of what each head does, on texts, and compositions of their weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.formulas import mean_interval
from attncli.core.layer import AttentionLayer
from attncli.core.names import named_head
from attncli.core.runtime import threads_of_idle_cores
from attncli.measure.ablate import predicted_reading
from attncli.measure.heads import NOTHING_MORE, surveyed
from attncli.measure.scores import Part, Stream, Vectors, call_of, seen_by
from attncli.measure.stream_ends import Copied, ToUnembedding, copied_by, embedding_of, unembedding_of
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading

EdgeSide = Literal["key", "query", "value", "logit"]
SIDES: tuple[EdgeSide, ...] = ("key", "query", "value")


class _Target(NamedTuple):
    """A side of a head, or the logits (without layer and head), that parts write to."""

    layer: int | None
    head: int | None
    side: EdgeSide


@dataclass(frozen=True)
class HeadEdges:
    """How much of what each head does, and of the logits, comes from each earlier part of the model.

    One row per head (`layer`, `head`), `side` and part (`kind`, `from_layer`, `from_head`), with the `share`
    of what the head does that is the part's; over the parts of a side these add up to 1. It is nan where a
    head looks at nothing beyond the first key, as in a text of one token. Of several texts it is the mean of
    those where it is a number, with the ends of its 95 % interval (`share_low`, `share_high`; Student's t).
    key, query: of how far the score of the key that a query looks at most, beyond the first, is above the
    mean of those that it sees, the queries weighted by the weight that they give it. value: of the head's
    output, through its weights, along that output. logit, without layer and head: of how far the logit of
    each token that is predicted is above the mean of all tokens.
    `weight` is the mean weight on those keys, by head. `strength` is the share times that weight, since the
    score of a head that looks at the first key alone decides little; of the logits the share.
    """

    rows: list[dict[str, Any]]
    weight: dict[tuple[int, int], float]
    num_texts: int
    notes: tuple[str, ...] = ()


@dataclass
class _Means:
    """Means over texts of numbers in one order, each of the texts where it is a number."""

    count: Tensor = field(default_factory=lambda: torch.zeros(0))
    mean: Tensor = field(default_factory=lambda: torch.zeros(0))
    squares: Tensor = field(default_factory=lambda: torch.zeros(0))

    def add(self, numbers: Float[Tensor, " edge"]) -> None:
        """Add those of a text (Welford 1962)."""
        if not len(self.mean):
            self.count = torch.zeros(len(numbers), dtype=torch.long)
            self.mean, self.squares = (torch.zeros(len(numbers), dtype=torch.float64) for _ in range(2))
        is_number = ~numbers.isnan()
        self.count += is_number
        change = torch.where(is_number, numbers - self.mean, 0.0)
        self.mean += change / self.count.clamp_min(1)
        self.squares += torch.where(is_number, change * (numbers - self.mean), 0.0)

    def means(self) -> list[float]:
        """The means; nan of no number."""
        return self.mean.masked_fill(self.count == 0, nan).tolist()

    def intervals(self) -> tuple[list[float], list[float]]:
        """The ends of the 95 % intervals; nan below two texts."""
        low, high = mean_interval(self.count, self.mean, self.squares)
        return low.tolist(), high.tolist()


@torch.no_grad()
def head_edges(
    pretrained: Pretrained,
    readings: Sequence[Reading],
    *,
    heads: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> HeadEdges:
    """The shares of all parts in the named heads, as 18:6, or in all heads, and in the logits of a decoder.

    UserError for a model whose scores are not sums, and a head that is not there; MemoryError.
    """
    targets: list[tuple[_Target, list[Part]]] = []
    shares, weights = _Means(), _Means()
    weight: dict[tuple[int, int], float] = {}
    notes: dict[str, None] = {}
    with threads_of_idle_cores() as adapt:
        for number, reading in enumerate(readings):
            stream = Stream(pretrained, reading)
            notes |= dict.fromkeys(stream.way.notes())
            of_text: list[Tensor] = []
            targets, weight = [], {}
            for target, parts, added, mean_weight in _targets(stream, heads, notes):
                targets.append((target, parts))
                of_text.append(added / (float(added.sum()) or nan))
                if target.layer is not None and target.head is not None:
                    weight[target.layer, target.head] = mean_weight
                adapt()
                if progress is not None and target.layer is not None:
                    progress((number + target.layer / pretrained.num_layers) / len(readings))
            shares.add(torch.cat(of_text))
            weights.add(torch.tensor([*weight.values()], dtype=torch.float64))
    mean_weights = dict(zip(weight, weights.means(), strict=True))
    rows = [
        {**target._asdict(), "kind": part.kind, "from_layer": part.layer, "from_head": part.head}
        for target, parts in targets
        for part in parts
    ]
    columns = {"share": shares.means()}
    if len(readings) > 1:
        columns["share_low"], columns["share_high"] = shares.intervals()
    for name, numbers in columns.items():
        for row, number_of_row in zip(rows, numbers, strict=True):
            row[name] = number_of_row
    for row in rows:
        row["strength"] = row["share"] * mean_weights.get((row["layer"], row["head"]), 1.0)
    return HeadEdges(rows, mean_weights, len(readings), tuple(notes))


def _targets(
    stream: Stream, heads: Sequence[str], notes: dict[str, None]
) -> Iterator[tuple[_Target, list[Part], Float[Tensor, " part"], float]]:
    """Each side of the heads, and the logits: the parts, what each adds, the mean weight of the head.

    `notes` get why there are no logits, where they are no sum of the parts.
    """
    chosen: dict[int, list[int]] = {}
    for name in heads:
        _, layer, head = named_head(name)
        chosen.setdefault(call_of(stream, layer, head), []).append(head)
    for call, captured in enumerate(stream.attention):
        numbers = sorted(chosen.get(call, ())) if heads else range(captured.attention.shape[1])
        if not numbers:
            continue
        looks = [_Look(captured, head) for head in numbers]
        parts = stream.parts_before(call)
        added = _added(stream, call, [vectors for _, vectors in parts], looks)
        for look, of_look in zip(looks, added.view(len(looks), len(SIDES), -1), strict=True):
            for side, of_side in zip(SIDES, of_look, strict=True):
                target = _Target(captured.layer, look.head, side)
                yield target, [part for part, _ in parts], of_side, look.mean_weight
    unembedding = unembedding_of(stream.pretrained)
    if unembedding is None:
        return
    out = ToUnembedding(stream, unembedding)
    if (reason := out.refusal()) is not None:
        notes[f"No shares of the logits of {stream.pretrained.name}: {reason}."] = None
    elif (of_logits := _added_to_logits(stream, unembedding, out)) is not None:
        yield _Target(None, None, "logit"), *of_logits, nan


class _Look:
    """What a head does, as directions that its key, query and value have at each token.

    All three are linear in what a part wrote, so the inner product with these is what it adds.
    """

    def __init__(self, captured: CapturedLayer, head: int) -> None:
        attention = captured.attention
        assert isinstance(attention, AttentionLayer)
        self.head, self.kv_head = head, head // attention.group
        query, key = (one.double() for one in (attention.query[0, head], attention.key[0, self.kv_head]))
        weights = captured.weights()[0, head].double()
        seen = seen_by(attention, head, torch.arange(len(query), device=query.device)).double()
        beyond = weights.clone()
        beyond[:, 0] = 0
        at, looked_at = beyond.max(dim=-1)
        at = at.where(seen.sum(dim=-1) > 1, 0)  # one key alone is above no mean
        less_mean = -seen / seen.sum(dim=-1, keepdim=True).clamp_min(1)
        less_mean.scatter_add_(1, looked_at.unsqueeze(-1), torch.ones_like(less_mean))
        of_rows = attention.scale * at.unsqueeze(-1) * less_mean
        self.mean_weight = float(at.mean())
        self.key = of_rows.mT @ query
        self.query = of_rows @ key
        self.value = weights.mT @ weights @ attention.value[0, self.kv_head].double()


def _added(
    stream: Stream, call: int, vectors: Sequence[Vectors], looks: Sequence[_Look]
) -> Float[Tensor, "side part"]:
    """What each part, the biases last, adds to the sides of each head, one head after the other.

    What the block gives of nothing, from the biases of norms, W_Q, W_K and W_V, belongs to the biases.
    """
    attention = stream.attention[call].attention
    assert isinstance(attention, AttentionLayer)
    directions = [
        torch.zeros(len(looks) * len(SIDES), *one.shape[1:], dtype=torch.float64, device=one.device)
        for one in (attention.query, attention.key, attention.value)
    ]
    query, key, value = directions
    for place, look in enumerate(looks):
        key[len(SIDES) * place, look.kv_head] = look.key
        query[len(SIDES) * place + 1, look.head] = look.query
        value[len(SIDES) * place + 2, look.kv_head] = look.value
    gradients, constants = stream.along(call, directions)
    flat = gradients.flatten(1).double()
    added = torch.cat([flat @ some.flatten(1).double().mT for some in stream.chunks(vectors)], dim=1)
    added[:, -1] += constants
    return added.cpu()


def _added_to_logits(
    stream: Stream, unembedding: nn.Linear, out: ToUnembedding
) -> tuple[list[Part], Float[Tensor, " part"]] | None:
    """What each part adds to the logits of the tokens that are predicted, above the mean of all tokens.

    The scale of the last norm is frozen; a factor or cap behind W_U is left out, which leaves the shares of
    a factor as they are. None for a text of one token, which predicts none.
    """
    if stream.num_tokens < 2:
        return None
    predicted = predicted_reading(stream.reading, stream.pretrained, torch.Generator())
    if not predicted.num_places:
        return None
    matrix = unembedding.weight.detach()
    directions = (matrix[predicted.targets] - matrix.mean(dim=0)).double()
    parts = stream.parts_before(len(stream.attention))
    reads = (out.of(vectors) for vectors in stream.chunks([vectors for _, vectors in parts]))
    added = torch.cat([(some[:, predicted.places].double() * directions).sum(dim=(1, 2)) for some in reads])
    added[-1] += (out.of_nothing[predicted.places].double() * directions).sum()
    if unembedding.bias is not None:
        bias = unembedding.bias.detach().double()
        added[-1] += (bias[predicted.targets] - bias.mean()).sum()
    return [part for part, _ in parts], added.cpu()


def heads_with_pattern(pretrained: Pretrained, readings: Sequence[Reading], pattern: str) -> list[str]:
    """The heads, as 18:6, that a survey names so on most of the texts."""
    counts: dict[str, int] = {}
    for reading in readings:
        for row in surveyed(pretrained, [reading], NOTHING_MORE).texts[0].rows:
            name = f"{row['layer']}:{row['head']}"
            counts[name] = counts.get(name, 0) + (row["pattern"] == pattern)
    return [name for name, count in counts.items() if 2 * count > len(readings)]


@dataclass(frozen=True)
class Compositions:
    """How much of what earlier heads can write each head can read, from weights alone.

    `rows` have one row per pair of heads and `side`, with the composition `score`
    ||W_1 W_2||_F / (||W_1||_F ||W_2||_F), W_1 the W_OV of the earlier head (`from_layer`, `from_head`), W_2
    the W_QK of the later one (query), its transpose (key) or its W_OV (value): Elhage et al. 2021, K-, Q- and
    V-composition. The gains of the norms belong to W_Q, W_K and W_V; rotations are left out.
    `copying` has one row per head, with its copying `score`, sum Re(e) / sum |e| of the eigenvalues e of
    W_U W_OV W_E: 1 where it raises the logits of the tokens that it looks at; products of matrices between
    the embedding or W_U and the stream belong to W_E and W_U. Empty for models that predict no next token, or
    that transform the stream otherwise before W_U.
    """

    rows: list[dict[str, Any]]
    copying: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


class _Maps(NamedTuple):
    """What a block reads with and writes with, one matrix per head, as x W."""

    layer: int
    query: Float[Tensor, "head embed dim"]
    key: Float[Tensor, "head embed dim"]
    value: Float[Tensor, "head embed value_dim"]
    output: Float[Tensor, "head value_dim embed"]


@torch.no_grad()
def compositions(
    pretrained: Pretrained,
    *,
    head: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Compositions:
    """The composition scores of all pairs of heads, or of those with one head, as 18:6; the copying scores.

    UserError for a model whose heads do not add to a stream that later heads read; MemoryError.
    """
    # What a head reads with is linear once the norms' scales are frozen; at the first position no rotation
    # turns it. These scales, of any token, do not count: each score is a ratio.
    token = embedding_of(pretrained).norm(dim=1).argmax()
    text = ModelText(tuple(pretrained.labels([int(token)])), token.reshape(1).cpu())
    stream = Stream(pretrained, Reading(text))
    chosen = None if head is None else named_head(head)
    if chosen is not None:
        call_of(stream, chosen.layer, chosen.head)
    rows: list[dict[str, Any]] = []
    copying: list[dict[str, Any]] = []
    earlier: list[tuple[int, Tensor]] = []
    unembedding = unembedding_of(pretrained)
    copied = Copied(None) if unembedding is None else copied_by(stream, unembedding)
    num_layers = len(stream.attention)
    with threads_of_idle_cores() as adapt:
        for call in range(num_layers):
            maps = _maps(stream, call)
            of_chosen = chosen is None or chosen.layer == maps.layer
            for layer, written in earlier:
                if not (of_chosen or (chosen is not None and chosen.layer == layer)):
                    continue
                rows += _composed(layer, written, maps)
                adapt()
            # ||V O X|| = ||R O X||, R of the QR decomposition of V.
            writes = _triangle(maps.value) @ maps.output
            earlier.append((maps.layer, writes / writes.flatten(1).norm(dim=1).view(-1, 1, 1)))
            copying += [] if copied.matrix is None else _copying(maps, copied.matrix)
            if progress is not None:
                progress(((call + 1) / num_layers) ** 2)
    if chosen is not None:
        ends = (("layer", "head"), ("from_layer", "from_head"))
        rows = [row for row in rows if any((row[a], row[b]) == (chosen.layer, chosen.head) for a, b in ends)]
        copying = [row for row in copying if (row["layer"], row["head"]) == (chosen.layer, chosen.head)]
    notes = [f"No copying scores of {pretrained.name}: {copied.reason}."] if copied.reason else []
    return Compositions(rows, copying, tuple(notes))


def _composed(
    from_layer: int, written: Float[Tensor, "head value_dim embed"], maps: _Maps
) -> Iterator[dict[str, Any]]:
    """The scores of what the heads of a layer write, of norm 1, and those of a later one read."""
    sides = {
        "key": (maps.key, maps.query),
        "query": (maps.query, maps.key),
        "value": (maps.value, maps.output.mT),
    }
    for side, (near, far) in sides.items():
        read = near @ _triangle(far).mT
        norms = (_triangle(near) @ _triangle(far).mT).flatten(1).norm(dim=1)
        product = written.flatten(0, 1) @ read.transpose(0, 1).flatten(1)
        shape = (len(written), written.shape[1], len(read), read.shape[2])
        scores = (product.view(shape).square().sum(dim=(1, 3)).sqrt() / norms).tolist()
        for from_head, of_head in enumerate(scores):
            for head, score in enumerate(of_head):
                place = {"layer": maps.layer, "head": head, "side": side}
                yield {**place, "from_layer": from_layer, "from_head": from_head, "score": score}


def _copying(maps: _Maps, copied: Float[Tensor, "embed embed"]) -> Iterator[dict[str, Any]]:
    """sum Re(e) / sum |e| of each head; e are those of a matrix as small as its values."""
    values = torch.linalg.eigvals((maps.output @ copied @ maps.value).double())
    ratios = values.real.sum(dim=-1) / values.abs().sum(dim=-1)
    for head, score in enumerate(ratios.tolist()):
        yield {"layer": maps.layer, "head": head, "score": score}


def _triangle(matrices: Float[Tensor, "head embed dim"]) -> Float[Tensor, "head dim dim"]:
    triangle: Tensor = torch.linalg.qr(matrices, mode="r").R
    return triangle


def _maps(stream: Stream, call: int) -> _Maps:
    """The matrices of a block, from what its attention makes of each direction of the stream."""
    captured = stream.attention[call]
    columns = stream.columns(call)
    num_heads, embed_dim, value_dim = columns.shape
    directions = torch.eye(embed_dim, dtype=columns.dtype, device=columns.device)
    layer = stream.attention_on(call, torch.cat([0 * directions[:1], directions]).unsqueeze(1))
    query, key, value = (
        (one[1:, :, 0] - one[:1, :, 0]).transpose(0, 1) for one in (layer.query, layer.key, layer.value)
    )
    group = num_heads // len(key)
    key, value = (one.repeat_interleave(group, dim=0) for one in (key, value))
    writes = columns.transpose(1, 2).reshape(num_heads * value_dim, 1, embed_dim)
    output = stream.written(call, writes).view(num_heads, value_dim, embed_dim)
    return _Maps(captured.layer, query, key, value, output)
