"""The score of a head as a sum over what earlier parts of the model wrote.

With the scales of the norms frozen, query and key are linear in the residual stream, rotations included, and
the stream is the sum of what the embedding, each earlier head, each earlier MLP and the biases wrote:

    score(i, j) = sum over a, b of C[a, b],   C[a, b] = scale (R_i W_Q n(c_a,i)) . (R_j W_K n(c_b,j))

(Elhage et al. 2021, A mathematical framework for transformer circuits). Since softmax depends only on
differences, the mean over the keys that the query sees is subtracted from each C.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import AttentionLayer
from attncli.errors import UserError
from attncli.features.why.results import (
    KeyScores,
    PairOfParts,
    PartName,
    RowWeight,
    ScoreOfPart,
    ScoreParts,
    WritingHead,
)
from attncli.measure.residual_stream import Stream, StreamPart
from attncli.measure.scores import ScoreRow, head_call
from attncli.models.frozen_norms import ROUNDING
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.token_names import checked_position
from attncli.records.columns import Records

ScoreSide = Literal["key", "query"]


@torch.no_grad()
def score_parts(
    pretrained: Pretrained,
    reading: Reading,
    *,
    layer: int,
    head: int,
    query: int = -1,
    key: int | None = None,
    over: int = 2,
) -> ScoreParts:
    """Split the score of a query and a key into the parts that wrote them.

    The default query is the last token; the default key is the query's strongest key other than the first.
    `writers` lists the `over` most important heads of each side with the keys that they looked at. Raises
    UserError for a model whose scores are not a sum of parts, for a head that does not exist and for a key
    that the query does not see, and MemoryError if memory runs out.
    """
    stream = Stream(pretrained, reading)
    call = head_call(stream, layer, head)
    attention = stream.attention[call].attention
    assert isinstance(attention, AttentionLayer)
    query = checked_position(query, stream.num_tokens, "query")
    row = ScoreRow(attention, head, query)
    query_vector = attention.query[0, head, query].double()
    key_vectors = attention.key[0, head // attention.group].double()
    scores = attention.scale * key_vectors @ query_vector
    weights = row.weights(scores)
    key = _key_position(weights, key, row, query)
    parts, queries, keys = _part_vectors(stream, call, attention, head, query)
    key_scores = attention.scale * keys @ query_vector
    query_scores = attention.scale * queries @ key_vectors.mT
    by_side: dict[ScoreSide, Tensor] = {"key": key_scores, "query": query_scores}
    largest = max(float(part_scores.abs().max()) for part_scores in by_side.values())
    differences = [(part_scores.sum(dim=0) - scores)[row.seen] for part_scores in by_side.values()]
    missing = max(float(difference.abs().max()) for difference in differences) / largest
    if missing > ROUNDING:
        stream.refuse(
            f"the parts of a score of {layer}:{head} do not add up: they miss {missing:.1g} of the largest"
        )
    key_scores_table, sides = _sides(parts, row, scores, by_side, key)
    pairs = attention.scale * queries @ (keys[:, key] - keys[:, row.seen].mean(dim=1)).mT
    writers = _writers(stream, sides, {"key": key, "query": query}, over)
    return ScoreParts(
        sides=sides,
        query=query,
        key=key,
        weight=float(weights[key]),
        score=float(scores[key]),
        above_mean=float(row.above_mean(scores, key)),
        position=float(row.above_mean(row.position, key)),
        missing=missing,
        strongest_pairs=_strongest_pairs(parts, pairs),
        keys=RowWeight.table(weight=weights.numpy(force=True)),
        key_scores=key_scores_table,
        parts=PartName.table(part=[part.name for part in parts]),
        writers=writers or None,
        pairs=pairs.numpy(force=True),
        layer=layer,
        head=head,
        notes=tuple(stream.way.notes()),
        unshown=stream.way.unshown,
    )


def _part_vectors(
    stream: Stream, call: int, attention: AttentionLayer, head: int, query: int
) -> tuple[list[StreamPart], Float[Tensor, "part dim"], Float[Tensor, "part key dim"]]:
    """Return the parts of a head's query at one token, and of its keys, in float64."""
    parts: list[StreamPart] = []
    queries, keys = [], []
    for some, layer in stream.read_parts(call):
        parts += some
        queries.append(layer.query[:, head, query].double())
        keys.append(layer.key[:, head // attention.group].double())
    return parts, torch.cat(queries), torch.cat(keys)


def _sides(
    parts: Sequence[StreamPart],
    row: ScoreRow,
    scores: Float[Tensor, " key"],
    by_side: Mapping[ScoreSide, Float[Tensor, "part key"]],
    key: int,
) -> tuple[Records[KeyScores], Records[ScoreOfPart]]:
    """Return the contributions of each part, by side, to the scores of all keys and to that of one key."""
    tables: dict[str, Tensor] = {}
    rows: list[_PartOnSide] = []
    for side, part_scores in by_side.items():
        adds, without = row.all_above_mean(part_scores), row.weights(scores - part_scores)
        tables |= {f"{side}_adds": adds, f"{side}_without": without}
        rows += _on_side(side, parts, adds[:, key], without[:, key])
    columns = zip(*rows, strict=True)
    return KeyScores.table(
        **{name: table.numpy(force=True) for name, table in tables.items()}
    ), ScoreOfPart.table(**dict(zip(_PartOnSide._fields, columns, strict=True)))


MOST_PAIRS = 20


def _strongest_pairs(parts: Sequence[StreamPart], scores: Float[Tensor, "part part"]) -> Records[PairOfParts]:
    """Return the pairs of a query part and a key part with the largest contributions."""
    order = scores.abs().flatten().argsort(descending=True)[:MOST_PAIRS].tolist()
    places = [divmod(place, len(parts)) for place in order]
    return PairOfParts.table(
        query_part=[parts[query_part].name for query_part, _ in places],
        key_part=[parts[key_part].name for _, key_part in places],
        score=[float(scores[place]) for place in places],
    )


def _key_position(weights: Float[Tensor, " key"], key: int | None, row: ScoreRow, query: int) -> int:
    if key is None:
        beyond = weights[1:] if bool(row.seen[1:].any()) else weights
        return int(beyond.argmax()) + len(weights) - len(beyond)
    key = checked_position(key, len(weights), "key")
    if not row.seen[key]:
        raise UserError(f"key: must be a key that query {query} sees (got {key})")
    return key


class _PartOnSide(NamedTuple):
    """The cells of a `ScoreOfPart`, in the order of its columns."""

    side: ScoreSide
    part: str
    kind: str
    layer: int | None
    head: int | None
    score: float
    weight_without: float


def _on_side(
    side: ScoreSide,
    parts: Sequence[StreamPart],
    scores: Float[Tensor, " part"],
    without: Float[Tensor, " part"],
) -> list[_PartOnSide]:
    """Return the parts on one side, sorted by contribution, largest first."""
    rows = [
        _PartOnSide(side, part.name, *part, score, weight)
        for part, score, weight in zip(parts, scores.tolist(), without.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: -abs(row.score))


def _writers(
    stream: Stream, parts: Records[ScoreOfPart], places: Mapping[ScoreSide, int], over: int
) -> Records[WritingHead]:
    """Return the most important heads, with their strongest keys at the tokens to which they wrote."""
    tokens = stream.pretrained.written_tokens(stream.reading.text)
    rows = []
    for side, query in places.items():
        heads = [row for row in parts if row.side == side and row.kind == "head"]
        for writer in heads[:over]:
            assert writer.layer is not None and writer.head is not None
            attention = stream.attention[head_call(stream, writer.layer, writer.head)].attention
            assert isinstance(attention, AttentionLayer)
            keys = attention.key[0, writer.head // attention.group].double()
            scores = attention.scale * keys @ attention.query[0, writer.head, query].double()
            weights = ScoreRow(attention, writer.head, query).weights(scores)
            key = int(weights.argmax())
            place = {"side": side, "layer": writer.layer, "head": writer.head, "query": query}
            rows.append({**place, "key": key, "weight": float(weights[key]), "key_token": tokens[key]})
    return WritingHead.rows(rows)
