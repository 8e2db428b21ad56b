"""Tiles of whole rows: scores and weights of some texts, heads and queries with every key they may see."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.attention.engines.row_softmax import softmax_rows
from attncli.attention.engines.scratch import Scratch
from attncli.attention.layer import AttentionLayer
from attncli.statistics.rows import Rows

NUM_BUFFERS = 3
"""What `Scratch` holds for a tile: scores, weights and, by torch, exponents."""
TILE = 2**20
"""Scores of a tile: 4 MB of scores and as much of weights; by torch of exponents, too."""
LEAST_ROWS = 64
"""Rows of a head in a tile; of long rows fewer heads at a time, rather than fewer rows: products of few rows
take longer."""
MOST_ROWS = 256
"""Rows of a head in a tile at most: causal rows leave out the keys after the tile's last query."""


@dataclass(frozen=True)
class Block:
    """Where a tile lies."""

    texts: slice
    heads: slice
    queries: slice


@dataclass(frozen=True)
class Tile:
    """The rows of a block with the keys that some of them see.

    Scores and logsumexp are there where the weights came of scores; hidden scores are -inf, and `masked`
    tells whether there are any; `blind` are queries that see no key, None where there is none. The tensors
    are overwritten by the next tile.
    """

    block: Block
    keys: slice
    rows: Rows
    masked: bool
    blind: Bool[Tensor, "#text 1 query"] | None
    scores: Float[Tensor, "text head query key"] | None = None
    raw_scores: Float[Tensor, "text head query key"] | None = None
    logsumexp: Float[Tensor, "text head query"] | None = None
    seen: Bool[Tensor, "#text query key"] | None = None

    @property
    def weights(self) -> Float[Tensor, "text head query key"]:
        """The weights of the rows."""
        return self.rows.weights

    def ranking(self) -> Float[Tensor, "text head query key"]:
        """What the largest weights are found by: -inf where hidden."""
        if self.scores is not None:
            return self.scores
        assert self.seen is not None
        return self.weights.masked_fill(~self.seen.unsqueeze(1), -torch.inf)


def blocks(shape: tuple[int, int, int, int], group: int = 1) -> Iterator[Block]:
    """All rows in tiles of about TILE entries: whole texts together, or some queries of some heads.

    Heads that share a key/value head, `group` of them, stay together. The same queries of all heads come one
    after the other: what depends on places alone is there already.
    """
    num_texts, num_heads, num_queries, num_keys = shape
    if 0 in shape:
        return
    per_text = num_heads * num_queries * num_keys
    texts, heads, queries = max(1, TILE // max(1, per_text)), num_heads, num_queries
    if per_text > TILE or num_queries > MOST_ROWS:
        texts = 1
        heads = min(num_heads, max(1, TILE // (LEAST_ROWS * num_keys * group)) * group)
        queries = min(MOST_ROWS, max(1, TILE // (heads * num_keys)))
    for text in range(0, num_texts, texts):
        own = slice(text, min(text + texts, num_texts))
        for query in range(0, num_queries, queries):
            some = slice(query, min(query + queries, num_queries))
            for head in range(0, num_heads, heads):
                yield Block(own, slice(head, min(head + heads, num_heads)), some)


@dataclass(frozen=True)
class GivenWeights:
    """Weights that are there already, from a model that gives nothing else or from another tool.

    `seen` tells which entries a query may see; weights may be negative, and rows may sum to anything.
    """

    weights: Float[Tensor, "text head query key"]
    seen: Bool[Tensor, "#text query key"]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Texts, heads, queries, keys."""
        num_texts, num_heads, num_queries, num_keys = self.weights.shape
        return num_texts, num_heads, num_queries, num_keys

    @cached_property
    def like(self) -> Tensor:
        """An empty tensor of the type and on the device of the computation."""
        return self.weights.new_empty(0, dtype=torch.promote_types(self.weights.dtype, torch.float32))


Source = AttentionLayer | GivenWeights


def blocks_of(source: Source) -> list[list[Block]]:
    """Where the tiles lie that cover every row: in one list the heads of the same queries."""
    found = blocks(source.shape, 1 if isinstance(source, GivenWeights) else source.group)
    same_queries = groupby(found, lambda block: (block.texts.start, block.queries.start))
    return [list(heads) for _, heads in same_queries]


def tiles(
    source: Source, some: Iterable[Block], scratch: Scratch, *, keep_raw: bool = False
) -> Iterator[Tile]:
    """The tiles there; with `keep_raw` query . key as well."""
    if isinstance(source, GivenWeights):
        for block in some:
            yield _given_tile(source, block)
        return
    for block in some:
        size = _count(block.texts) * _count(block.heads) * _count(block.queries) * source.shape[3]
        with scratch.lent(size) as buffers:
            yield _softmax_tile(source, block, buffers, keep_raw=keep_raw)


def part_of(tensor: Tensor, *parts: slice) -> Tensor:
    """The tensor in these parts of its first axes: itself where they are all of it."""
    if all(_count(part) == size for part, size in zip(parts, tensor.shape, strict=False)):
        return tensor
    return tensor[parts]


def _count(part: slice) -> int:
    return int(part.stop - part.start)


def _given_tile(given: GivenWeights, block: Block) -> Tile:
    weights = given.weights[block.texts, block.heads, block.queries]
    seen = given.seen[block.texts if len(given.seen) > 1 else slice(None), block.queries]
    positions = torch.arange(block.queries.start, block.queries.stop, device=weights.device)
    columns = torch.arange(weights.shape[-1], device=weights.device)
    rows = Rows(weights, seen.sum(dim=-1).unsqueeze(1), positions, columns)
    blind = rows.visible == 0 if (rows.visible == 0).any() else None
    return Tile(block, slice(0, weights.shape[-1]), rows, not bool(seen.all()), blind, seen=seen)


def _softmax_tile(
    layer: AttentionLayer, block: Block, buffers: Float[Tensor, "3 size"], *, keep_raw: bool
) -> Tile:
    """Scores and weights, each in a buffer of its own: one exponential of each score."""
    seen = layer.visibility.of_texts(block.texts).seen_keys(block.queries, buffers)
    shape = (_count(block.texts), _count(block.heads), _count(block.queries), len(seen.columns))
    scores = buffers[0][: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)
    raw = _scaled_products(layer, block, seen.keys, scores, keep_raw=keep_raw)
    _apply_rules(layer, block, seen.keys, scores)
    if seen.hidden is not None:
        # Adding is several times as fast as filling by a mask that is broadcast over heads.
        scores[..., seen.masked].add_(seen.hidden)

    sink = layer.rules.softmax_sink
    if sink is not None:
        parts = zip((block.texts, block.heads), sink.shape, strict=True)
        sink = sink.to(scores)[tuple(part if size > 1 else slice(None) for part, size in parts)].unsqueeze(-1)
    weights, logsumexp, softmax = softmax_rows(scores, seen, sink, buffers[1:])
    rows = Rows(weights, seen.visible, seen.positions, seen.columns, softmax, seen.shared)
    is_masked = seen.hidden is not None
    return Tile(block, seen.keys, rows, is_masked, seen.blind, scores, raw, logsumexp)


def _scaled_products(
    layer: AttentionLayer,
    block: Block,
    keys: slice,
    into: Float[Tensor, "text head query key"],
    *,
    keep_raw: bool,
) -> Float[Tensor, "text head query key"] | None:
    """scale query . key, for groups of heads that share a key; gives query . key where it is to be kept."""
    group = layer.group
    kv_heads = slice(block.heads.start // group, -(-block.heads.stop // group))
    query = part_of(layer.query, block.texts, block.heads, block.queries).to(into.dtype)
    key = part_of(layer.key, block.texts, kv_heads, keys).to(into.dtype)
    if not keep_raw:
        query = query * layer.scale
    num_texts, num_kv_heads = key.shape[:2]
    products = into.view(num_texts, num_kv_heads, -1, into.shape[-1])
    torch.matmul(query.reshape(num_texts, num_kv_heads, -1, query.shape[-1]), key.mT, out=products)
    if not keep_raw:
        return None
    raw = into.clone()
    into.mul_(layer.scale)
    return raw


def _apply_rules(
    layer: AttentionLayer, block: Block, keys: slice, scores: Float[Tensor, "text head query key"]
) -> None:
    """From scaled scores to those that the softmax takes, in place."""
    rules = layer.rules
    if rules.softcap is not None:
        scores.div_(rules.softcap).tanh_().mul_(rules.softcap)
    if rules.bias is not None:
        parts = (block.texts, block.heads, block.queries, keys)
        own = (part if size > 1 else slice(None) for part, size in zip(parts, rules.bias.shape, strict=True))
        scores.add_(rules.bias[tuple(own)])
    if rules.temperature != 1.0:
        scores.div_(rules.temperature)
