"""The edges of a circuit: the shares of parts in heads, from texts, and composition scores, from weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import AttentionLayer
from attncli.core.names import named_head
from attncli.core.runtime import idle_core_threads
from attncli.core.summaries import mean_interval
from attncli.errors import UserError
from attncli.features.circuit.logit_paths import LogitDirections, LogitPaths
from attncli.features.circuit.results import (
    Composition,
    CompositionEdge,
    Compositions,
    FedHead,
    HeadCopying,
    HeadEdges,
    PartEdge,
    PartShare,
)
from attncli.features.circuit.stream_ends import (
    Copied,
    ToUnembedding,
    copied_by,
    embedding_weight,
    unembedding_layer,
)
from attncli.measure.frozen_blocks import PartVectors
from attncli.measure.heads import NOTHING_MORE, surveyed
from attncli.measure.residual_stream import Stream, StreamPart
from attncli.measure.scores import head_call, seen_by
from attncli.models.layers import CapturedLayer
from attncli.models.predicted import NO_PLACES, predicted_reading
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.projected_heads import LINEAR
from attncli.records.columns import Records

EdgeSide = Literal["key", "query", "value", "logit"]
SIDES: tuple[EdgeSide, ...] = ("key", "query", "value")
INTO_LINEAR = (
    "Edges into heads without a softmax are left out: an activation comes before their values, which are "
    "therefore not a sum of what earlier parts wrote. What such heads write is exact."
)
LEAST_SHARE = 0.01
"""Edges with a smaller share, which are the majority, are left out."""
COMPARED_DECIMALS = 12
"""The decimals that select and sort edges; further decimals vary with the number of threads."""
LEAST_SUM = 0.1
"""The smallest sum relative to its largest part; parts with a smaller sum cancel and have no shares."""


class _EdgeEnd(NamedTuple):
    """A side of a head, or the logits, to which parts write; the logits have no layer or head."""

    layer: int | None
    head: int | None
    side: EdgeSide


@dataclass
class _Means:
    """Means over texts of numbers in a fixed order; NaN values are skipped."""

    count: Tensor = field(default_factory=lambda: torch.zeros(0))
    mean: Tensor = field(default_factory=lambda: torch.zeros(0))
    squares: Tensor = field(default_factory=lambda: torch.zeros(0))

    def add(self, numbers: Float[Tensor, " edge"]) -> None:
        """Add the numbers of a text (Welford 1962)."""
        if not len(self.mean):
            self.count = torch.zeros(len(numbers), dtype=torch.long)
            self.mean, self.squares = (torch.zeros(len(numbers), dtype=torch.float64) for _ in range(2))
        is_number = ~numbers.isnan()
        self.count += is_number
        change = torch.where(is_number, numbers - self.mean, 0.0)
        self.mean += change / self.count.clamp_min(1)
        self.squares += torch.where(is_number, change * (numbers - self.mean), 0.0)

    def means(self) -> npt.NDArray[np.float64]:
        """The means; NaN if there were no numbers."""
        return self.mean.masked_fill(self.count == 0, nan).numpy()

    def intervals(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The ends of the 95 % intervals; NaN if there are fewer than two texts."""
        low, high = mean_interval(self.count, self.mean, self.squares)
        return low.numpy(), high.numpy()


@torch.no_grad()
def head_edges(
    pretrained: Pretrained,
    readings: Sequence[Reading],
    *,
    heads: Sequence[str] = (),
    pattern: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> HeadEdges:
    """Measure the shares of all parts in the given heads, or in all heads, and in a decoder's logits.

    Heads are named as 18:6. With a `pattern`, the heads are those that a survey gives this pattern on most of
    the texts. Raises UserError for a model whose scores are not sums of parts, for a head that does not exist
    and for a pattern that no head has, and MemoryError if memory runs out.
    """
    if pattern is not None:
        heads = heads_with_pattern(pretrained, readings, pattern)
        if not heads:
            raise UserError(
                f"pattern: no head of {pretrained.name} has this pattern on this input (got {pattern})"
            )
    targets: list[tuple[_EdgeEnd, list[StreamPart]]] = []
    shares, weights, logits = _Means(), _Means(), _Means()
    weight: dict[tuple[int, int], float] = {}
    notes: dict[str, None] = {}
    unshown = ""
    with idle_core_threads() as adapt:
        for number, reading in enumerate(readings):
            stream = Stream(pretrained, reading)
            notes |= dict.fromkeys([*stream.way.notes(), *([INTO_LINEAR] if stream.linear else [])])
            unshown = stream.way.unshown
            text_shares, text_logits = list[Tensor](), list[Tensor]()
            targets, weight = [], {}

            def report_progress(share: float, number: int = number) -> None:
                adapt()
                if progress is not None:
                    progress((number + share) / len(readings))

            for target, parts, added, logit_sums, mean_weight in _edge_ends(
                stream, heads, notes, report_progress
            ):
                targets.append((target, parts))
                text_shares.append(_shares(added))
                text_logits.append(logit_sums)
                if target.layer is not None and target.head is not None:
                    weight[target.layer, target.head] = mean_weight
            shares.add(torch.cat(text_shares))
            logits.add(torch.cat(text_logits))
            weights.add(torch.tensor([*weight.values()], dtype=torch.float64))
    mean_weights = dict(zip(weight, weights.means().tolist(), strict=True))
    rows = _share_rows(targets, shares, logits, mean_weights, has_intervals=len(readings) > 1)
    return HeadEdges(
        edges=_edges(rows),
        heads=_fed_heads(rows, mean_weights),
        num_texts=len(readings),
        rows=rows,
        notes=tuple(notes),
        unshown=unshown,
    )


def _shares(added: Float[Tensor, " part"]) -> Float[Tensor, " part"]:
    """The share of each part in the sum of all parts; NaN if the parts cancel."""
    total = added.sum()
    return added / total.where(total.abs() > LEAST_SUM * added.abs().max(), nan)


def _share_rows(
    targets: Sequence[tuple[_EdgeEnd, list[StreamPart]]],
    shares: _Means,
    logits: _Means,
    mean_weights: Mapping[tuple[int, int], float],
    *,
    has_intervals: bool,
) -> Records[PartShare]:
    """One row per target and part, in the order in which they are given."""
    pairs = [(target, part) for target, parts in targets for part in parts]
    weights = [
        1.0 if target.layer is None or target.head is None else mean_weights[target.layer, target.head]
        for target, _ in pairs
    ]
    share = shares.means()
    intervals = zip(("share_low", "share_high"), shares.intervals(), strict=True) if has_intervals else ()
    return PartShare.table(
        layer=[target.layer for target, _ in pairs],
        head=[target.head for target, _ in pairs],
        side=[target.side for target, _ in pairs],
        kind=[part.kind for _, part in pairs],
        from_layer=[part.layer for _, part in pairs],
        from_head=[part.head for _, part in pairs],
        share=share,
        **dict(intervals),
        strength=share * np.array(weights),
        **({} if np.isnan(logit := logits.means()).all() else {"logit": logit}),
    )


def _edges(rows: Records[PartShare]) -> Records[PartEdge]:
    """The edges with a share of at least LEAST_SHARE and the names of their ends, largest effect first."""
    is_selected = np.abs(rows.column("share")).round(COMPARED_DECIMALS) >= LEAST_SHARE
    by = np.abs(rows.column("logit" if "logit" in rows.cells else "strength")).round(COMPARED_DECIMALS)
    if "logit" in rows.cells:
        is_selected |= by >= LEAST_SHARE * by.max(initial=0.0)
    order = np.argsort(-by, kind="stable")
    strongest = rows.taken(order[is_selected[order]].tolist())
    cells = strongest.cells
    parts = map(StreamPart, cells["kind"], cells["from_layer"], cells["from_head"])
    heads = zip(cells["layer"], cells["head"], strict=True)
    columns = ("side", "share", "share_low", "share_high", "strength", "logit", "from_layer", "from_head")
    return PartEdge.table(
        **{"from": [part.name for part in parts]},
        to=["logits" if layer is None else f"{layer}:{head}" for layer, head in heads],
        **{name: cells[name] for name in columns if name in cells},
        to_layer=cells["layer"],
        to_head=cells["head"],
    )


def _fed_heads(rows: Records[PartShare], mean_weights: Mapping[tuple[int, int], float]) -> Records[FedHead]:
    """The mean weight of each head, and the total share of all earlier heads in each of its sides."""
    shares: dict[tuple[int, int, str], float] = {}
    logit_shares: dict[tuple[int, int], float] = {}
    names = ("layer", "head", "side", "kind", "from_layer", "from_head", "share")
    for layer, head, side, kind, from_layer, from_head, share in zip(
        *(rows.cells[name] for name in names), strict=True
    ):
        if layer is None:
            if kind == "head":
                logit_shares[from_layer, from_head] = share
        elif kind in ("head", LINEAR):
            shares[layer, head, side] = shares.get((layer, head, side), 0.0) + (
                nan if share is None else share
            )
    logit_share = [logit_shares[place] for place in mean_weights] if logit_shares else None
    return FedHead.table(
        stack=["self"] * len(mean_weights),
        layer=[layer for layer, _ in mean_weights],
        head=[head for _, head in mean_weights],
        weight=[*mean_weights.values()],
        **{f"{side}_of_heads": [shares.get((*place, side), 0.0) for place in mean_weights] for side in SIDES},
        **({} if logit_share is None else {"logit_share": logit_share}),
    )


def _edge_ends(
    stream: Stream, heads: Sequence[str], notes: dict[str, None], progress: Callable[[float], None]
) -> Iterator[tuple[_EdgeEnd, list[StreamPart], Float[Tensor, " part"], Float[Tensor, " part"], float]]:
    """Yield each side of the heads, then the logits, with the parts and their contributions.

    The numbers are the contribution of each part, its effect on the next token's logit (NaN for a model whose
    logits are not a sum of parts; a note is added to `notes`), and the mean weight of the head.
    """
    chosen: dict[int, list[int]] = {}
    for name in heads:
        _, layer, head = named_head(name)
        chosen.setdefault(head_call(stream, layer, head), []).append(head)
    paths = _logit_paths(stream, notes)
    for call, captured in stream.attention.items():
        progress(call / (stream.num_blocks + 1))
        numbers = sorted(chosen.get(call, ())) if heads else range(captured.attention.shape[1])
        if not numbers:
            continue
        looks = [_HeadDirections(captured, head) for head in numbers]
        parts = stream.parts_before(call)
        directions = [*looks, *(paths.head_directions(call, numbers) if paths is not None else ())]
        added = _added(stream, call, [vectors for _, vectors in parts], directions)
        side_sums = added.view(-1, len(looks), len(SIDES), len(parts))
        logit_shares = side_sums[1] if paths is not None else torch.full_like(side_sums[0], nan)
        for look, head_sums, logit_sums in zip(looks, side_sums[0], logit_shares, strict=True):
            for place, side in enumerate(SIDES):
                target = _EdgeEnd(captured.layer, look.head, side)
                yield (
                    target,
                    [part for part, _ in parts],
                    head_sums[place],
                    logit_sums[place],
                    look.mean_weight,
                )
    if paths is not None:
        progress(stream.num_blocks / (stream.num_blocks + 1))
        yield _EdgeEnd(None, None, "logit"), *_added_to_logits(stream, paths), nan
    progress(1.0)


def _logit_paths(stream: Stream, notes: dict[str, None]) -> LogitPaths | None:
    """The paths to the next token's logit; None, with a note, if the logits are not a sum of parts."""
    unembedding = unembedding_layer(stream.pretrained)
    if unembedding is None:
        return None
    out = ToUnembedding(stream, unembedding)
    if (reason := out.refusal()) is not None:
        notes[f"No shares of the logits of {stream.pretrained.name}: {reason}."] = None
        return None
    return LogitPaths(stream, out)


class _HeadDirections:
    """Directions in a head's key, query and value at each token.

    All three are linear in what a part wrote, so the inner product of that part with a direction is its
    contribution.
    """

    def __init__(self, captured: CapturedLayer, head: int) -> None:
        attention = captured.attention
        assert isinstance(attention, AttentionLayer)
        self.head, self.kv_head = head, head // attention.group
        query, key = (
            vector.double() for vector in (attention.query[0, head], attention.key[0, self.kv_head])
        )
        weights = captured.weights()[0, head].double()
        seen = seen_by(attention, head, torch.arange(len(query), device=query.device)).double()
        beyond = weights.clone()
        beyond[:, 0] = 0
        at, looked_at = beyond.max(dim=-1)
        at = at.where(seen.sum(dim=-1) > 1, 0)  # a single key equals the mean
        less_mean = -seen / seen.sum(dim=-1, keepdim=True).clamp_min(1)
        less_mean.scatter_add_(1, looked_at.unsqueeze(-1), torch.ones_like(less_mean))
        row_weights = attention.scale * at.unsqueeze(-1) * less_mean
        self.mean_weight = float(at.mean())
        self.key = row_weights.mT @ query
        self.query = row_weights @ key
        self.value = weights.mT @ weights @ attention.value[0, self.kv_head].double()


def _added(
    stream: Stream,
    call: int,
    vectors: Sequence[PartVectors],
    looks: Sequence[_HeadDirections | LogitDirections],
) -> Float[Tensor, "side part"]:
    """The contribution of each part to the sides of each head, one head after the other.

    The last part is the biases, which include the block's output for a zero input: it comes from the biases
    of norms, W_Q, W_K and W_V.
    """
    attention = stream.attention[call].attention
    assert isinstance(attention, AttentionLayer)
    directions = [
        torch.zeros(len(looks) * len(SIDES), *vectors.shape[1:], dtype=torch.float64, device=vectors.device)
        for vectors in (attention.query, attention.key, attention.value)
    ]
    query, key, value = directions
    for place, look in enumerate(looks):
        key[len(SIDES) * place, look.kv_head] = look.key
        query[len(SIDES) * place + 1, look.head] = look.query
        value[len(SIDES) * place + 2, look.kv_head] = look.value
    gradients, constants = stream.frozen.along(call, directions)
    flat = gradients.flatten(1).double()
    added = torch.cat([flat @ some.flatten(1).double().mT for some in stream.frozen.chunks(vectors)], dim=1)
    added[:, -1] += constants
    return added.cpu()


def _added_to_logits(
    stream: Stream, paths: LogitPaths
) -> tuple[list[StreamPart], Float[Tensor, " part"], Float[Tensor, " part"]]:
    """The contribution of each part to the logits of the predicted tokens, and to the next token's logit.

    The logits of predicted tokens are relative to the mean over the vocabulary, and NaN for a text of one
    token. The scale of the last norm is frozen. A factor or cap after W_U is ignored; a factor would not
    change the shares.
    """
    out, unembedding = paths.out, paths.out.unembedding
    parts = stream.parts_before(stream.num_blocks)
    places, targets = NO_PLACES, NO_PLACES
    if stream.num_tokens > 1:
        predicted = predicted_reading(stream.reading, stream.pretrained, torch.Generator())
        places, targets = predicted.places, predicted.targets
    matrix = unembedding.weight.detach()
    directions = (matrix[targets] - matrix.mean(dim=0)).double()
    target_sums, next_sums = list[Tensor](), list[Tensor]()
    for some in stream.frozen.chunks([vectors for _, vectors in parts]):
        reads = out.outputs(some)
        target_sums.append((reads[:, places].double() * directions).sum(dim=(1, 2)))
        next_sums.append(paths.added(reads))
    added, logit = torch.cat(target_sums), torch.cat(next_sums)
    added[-1] += (out.zero_output[places].double() * directions).sum()
    logit[-1] += paths.bias
    if unembedding.bias is not None:
        bias = unembedding.bias.detach().double()
        added[-1] += (bias[targets] - bias.mean()).sum()
    if not len(places):
        added = torch.full_like(added, nan)
    return [part for part, _ in parts], added.cpu(), logit.cpu()


def heads_with_pattern(pretrained: Pretrained, readings: Sequence[Reading], pattern: str) -> list[str]:
    """The heads, such as 18:6, that show a pattern on most of the texts."""
    counts: dict[str, int] = {}
    for reading in readings:
        for head in surveyed(pretrained, [reading], NOTHING_MORE).texts[0].heads:
            name = f"{head.layer}:{head.head}"
            counts[name] = counts.get(name, 0) + (head.pattern == pattern)
    return [name for name, count in counts.items() if 2 * count > len(readings)]


class _Maps(NamedTuple):
    """The matrices that each head of a block reads and writes with, applied as x W."""

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
    """Compute composition scores of all pairs of heads, or of those with `head`, and copying scores.

    Raises UserError for a model whose heads do not write to a residual stream that later heads read, and
    MemoryError if memory runs out.
    """
    # A head reads linearly once the scales of the norms are frozen; the first position is not rotated.
    # The token, and therefore the scales, make no difference because each score is a ratio.
    token = embedding_weight(pretrained).norm(dim=1).argmax()
    text = ModelText(tuple(pretrained.labels([int(token)])), token.reshape(1).cpu())
    stream = Stream(pretrained, Reading(text))
    chosen = None if head is None else named_head(head)
    if chosen is not None:
        head_call(stream, chosen.layer, chosen.head)
    scores: list[_Score] = []
    copying: list[Mapping[str, int | float]] = []
    earlier: list[tuple[int, Tensor]] = []
    unembedding = unembedding_layer(pretrained)
    copied = Copied(None) if unembedding is None else copied_by(stream, unembedding)
    num_layers = len(stream.attention)
    with idle_core_threads() as adapt:
        for number, call in enumerate(stream.attention):
            maps = _maps(stream, call)
            is_chosen = chosen is None or chosen.layer == maps.layer
            for layer, written in earlier:
                if not (is_chosen or (chosen is not None and chosen.layer == layer)):
                    continue
                scores += _composed(layer, written, maps)
                adapt()
            # ||V O X|| = ||R O X||, with R from the QR decomposition of V.
            writes = _triangle(maps.value) @ maps.output
            earlier.append((maps.layer, writes / writes.flatten(1).norm(dim=1).view(-1, 1, 1)))
            copying += [] if copied.matrix is None else _copying(maps, copied.matrix)
            if progress is not None:
                progress(((number + 1) / num_layers) ** 2)
    copying_scores = HeadCopying.rows(copying)
    if chosen is not None:
        place = (chosen.layer, chosen.head)
        scores = [score for score in scores if place in (score[:2], score[3:5])]
        copying_scores = copying_scores.where(lambda row: (row.layer, row.head) == place)
    notes = [f"No copying scores of {pretrained.name}: {copied.reason}."] if copied.reason else []
    rows = Composition.rows(score._asdict() for score in scores)
    return Compositions(edges=_composition_edges(rows), copying=copying_scores, rows=rows, notes=tuple(notes))


def _composition_edges(rows: Records[Composition]) -> Records[CompositionEdge]:
    """The pairs of heads with their names, highest score first."""
    cells = rows.taken(np.argsort(-rows.column("score"), kind="stable").tolist()).cells
    names = {
        "from": zip(cells["from_layer"], cells["from_head"], strict=True),
        "to": zip(cells["layer"], cells["head"], strict=True),
    }
    return CompositionEdge.table(
        **{end: [f"{layer}:{head}" for layer, head in heads] for end, heads in names.items()},
        **{name: cells[name] for name in ("side", "score", "from_layer", "from_head")},
        to_layer=cells["layer"],
        to_head=cells["head"],
    )


class _Score(NamedTuple):
    """The composition score of an earlier head with one side of a later head."""

    layer: int
    head: int
    side: EdgeSide
    from_layer: int
    from_head: int
    score: float


def _composed(
    from_layer: int, written: Float[Tensor, "head value_dim embed"], maps: _Maps
) -> Iterator[_Score]:
    """Yield the composition scores of a layer's heads, whose writes have norm 1, with later heads."""
    sides: dict[EdgeSide, tuple[Tensor, Tensor]] = {
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
        for from_head, head_scores in enumerate(scores):
            for head, score in enumerate(head_scores):
                yield _Score(maps.layer, head, side, from_layer, from_head, score)


def _copying(maps: _Maps, copied: Float[Tensor, "embed embed"]) -> Iterator[Mapping[str, int | float]]:
    """Yield sum Re(e) / sum |e| for each head, where e are the eigenvalues of a value-sized matrix."""
    values = torch.linalg.eigvals((maps.output @ copied @ maps.value).double())
    ratios = values.real.sum(dim=-1) / values.abs().sum(dim=-1)
    for head, score in enumerate(ratios.tolist()):
        yield {"layer": maps.layer, "head": head, "score": score}


def _triangle(matrices: Float[Tensor, "head embed dim"]) -> Float[Tensor, "head dim dim"]:
    triangle: Tensor = torch.linalg.qr(matrices, mode="r").R
    return triangle


def _maps(stream: Stream, call: int) -> _Maps:
    """The matrices of a block, computed from its attention output for each direction of the stream."""
    captured = stream.attention[call]
    columns = stream.runs[call].mixers[0].columns
    num_heads, embed_dim, value_dim = columns.shape
    directions = torch.eye(embed_dim, dtype=columns.dtype, device=columns.device)
    layer = stream.frozen.attention_on(call, torch.cat([0 * directions[:1], directions]).unsqueeze(1))
    query, key, value = (
        (vectors[1:, :, 0] - vectors[:1, :, 0]).transpose(0, 1)
        for vectors in (layer.query, layer.key, layer.value)
    )
    group = num_heads // len(key)
    key, value = (matrices.repeat_interleave(group, dim=0) for matrices in (key, value))
    writes = columns.transpose(1, 2).reshape(num_heads * value_dim, 1, embed_dim)
    output = stream.frozen.written(call, writes).view(num_heads, value_dim, embed_dim)
    return _Maps(captured.layer, query, key, value, output)
