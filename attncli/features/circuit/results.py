"""Which heads feed which: shares of what heads do on texts, and compositions of their weights."""

from dataclasses import dataclass, field
from functools import partial

from attncli.records.columns import Record, Records, Result, column, group, number


class PartShare(Record):
    """The share of what a head does that an earlier part of the model wrote; of the logits without a head.

    `side` is key, query, value or logit; `kind` that of the part: embedding, head, linear (a
    head without a softmax), mlp or bias. The ends of the 95 % interval are there for several texts. Shares
    are None where a head looks at nothing beyond the first key, and where the parts of a side cancel: their
    sum is less than a tenth of the largest. `logit` is what reaches the next token's logit this way, None for
    models whose logits are no sum of the parts.
    """

    layer: int | None
    head: int | None
    side: str
    kind: str
    from_layer: int | None
    from_head: int | None
    share: float | None
    share_low: float | None = column(is_needed=False)
    share_high: float | None = column(is_needed=False)
    strength: float | None
    logit: float | None = column(unit="logit", is_needed=False)


class PartEdge(Record):
    """The same by the names of the two ends, as 16:0 or MLP 16, and 18:6 or logits."""

    start: str = column("from")
    end: str = column("to")
    side: str
    share: float | None
    share_low: float | None = column(is_needed=False)
    share_high: float | None = column(is_needed=False)
    strength: float | None
    logit: float | None = column(unit="logit", is_needed=False)
    from_layer: int | None = column(is_needed=False)
    from_head: int | None = column(is_needed=False)
    to_layer: int | None = column(is_needed=False)
    to_head: int | None = column(is_needed=False)


class FedHead(Record):
    """The mean weight of a head on its keys beyond the first; the shares of all earlier heads together.

    `logit_share` is what the head itself adds to the logits of a decoder.
    """

    stack: str = column(is_needed=False)
    layer: int
    head: int
    weight: float | None
    key_of_heads: float | None = column(is_needed=False)
    query_of_heads: float | None = column(is_needed=False)
    value_of_heads: float | None = column(is_needed=False)
    logit_share: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadEdges(Result):
    """How much of what each head does, and of the logits, comes from each earlier part of the model.

    `rows` have every part of every side, in the order of the model; over the parts of a side the shares add
    up to 1. A share above 1 in size is that of a part larger than the sum of all, since parts of the other
    sign cancel most of it: read its sign, not its size. Of several texts a share is the mean of those where
    it is a number. `edges` are those of at least
    1 %, or of 1 % of what reaches the logit through the first one; first those that most reaches the logit
    through or, of a model without logits, the strongest.
    key, query: of how far the score of the key that a query looks at most, beyond the first, is above the
    mean of those that it sees, the queries weighted by the weight that they give it. value: of the head's
    output, through its weights, along that output. logit, without layer and head: of how far the logit of
    each token that is predicted is above the mean of all tokens.
    `strength` is the share times the head's mean weight on those keys, since the score of a head that looks
    at the first key alone decides little; of the logits the share.
    `logit` is what reaches the logit of the likeliest token after the text through the edge and its head
    (or is what the part adds to it, as in `why`). value: of all that the head adds. key, query: of what its
    scores decide, which is what the head adds less what even weights would (integrated gradients,
    Sundararajan et al. 2017). Of several texts it is a mean. Later heads and MLPs that read the head do not
    count.
    """

    edges: Records[PartEdge] = group(is_kept=False)
    heads: Records[FedHead] = group()
    num_texts: int = number("texts")
    rows: Records[PartShare] = field(default_factory=partial(PartShare.rows, ()))
    notes: tuple[str, ...] = ()
    unshown: str = ""

    @property
    def weight(self) -> dict[tuple[int, int], float | None]:
        """The mean weight of each head, by layer and head."""
        return {(row.layer, row.head): row.weight for row in self.heads}

    def strongest_between_heads(self) -> PartEdge | None:
        """The strongest edge from a head to a head."""
        return next((edge for edge in self.edges if None not in (edge.from_head, edge.to_head)), None)


class Composition(Record):
    """The composition score of what an earlier head can write and a side of a later head can read."""

    layer: int
    head: int
    side: str
    from_layer: int
    from_head: int
    score: float | None


class CompositionEdge(Record):
    """The same by the names of the two heads."""

    start: str = column("from")
    end: str = column("to")
    side: str
    score: float | None
    from_layer: int | None = column(is_needed=False)
    from_head: int | None = column(is_needed=False)
    to_layer: int | None = column(is_needed=False)
    to_head: int | None = column(is_needed=False)


class HeadCopying(Record):
    """The copying score of a head."""

    layer: int
    head: int
    score: float | None

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Compositions(Result):
    """How much of what earlier heads can write each head can read, from weights alone.

    `rows` have one row per pair of heads and side, in the order of the model, `edges` the same, the highest
    first; the composition `score` is ||W_1 W_2||_F / (||W_1||_F ||W_2||_F), W_1 the W_OV of the earlier head,
    W_2 the W_QK of the later one (query), its transpose (key) or its W_OV (value): Elhage et al. 2021, K-, Q-
    and V-composition. The gains of the norms belong to W_Q, W_K and W_V; rotations are left out.
    `copying` has one row per head, with its copying `score`, sum Re(e) / sum |e| of the eigenvalues e of
    W_U W_OV W_E: 1 where it raises the logits of the tokens that it looks at; products of matrices between
    the embedding or W_U and the stream belong to W_E and W_U. Empty for models that predict no next token, or
    that transform the stream otherwise before W_U.
    """

    edges: Records[CompositionEdge] = group(is_kept=False)
    copying: Records[HeadCopying] = group()
    rows: Records[Composition] = field(default_factory=partial(Composition.rows, ()))
    notes: tuple[str, ...] = ()
