"""The results of `attn circuit`: the shares of parts in heads on texts, and composition scores of weights."""

from dataclasses import dataclass, field
from functools import partial

from attncli.records.columns import Record, Records, Result, column, group, number
from attncli.records.meanings import Meaning

ENDS = {
    "from": Meaning("Earlier part: a head as LAYER:HEAD, MLP and layer, embedding or biases"),
    "to": Meaning("Later head as LAYER:HEAD, or logits"),
    "from_layer": Meaning("Layer of the earlier part"),
    "from_head": Meaning("Head of the earlier part; none for other parts"),
    "to_layer": Meaning("Layer of the later head; none for the logits"),
    "to_head": Meaning("Number of the later head; none for the logits"),
}
"""The ends of an edge."""
STRENGTH = "Share times the later head's mean weight on its keys after the first; to the logits, the share"
LOGIT_EFFECT = "What the part, through this edge, adds to the logit of the likeliest next token"


class PartShare(Record, shared=ENDS):
    """The share of an earlier part of the model in one side of a head or, without a head, in the logits.

    For several texts, there are 95 % intervals. Shares are None if a head looks only at the first key, and if
    the parts of a side cancel, so that their sum is less than a tenth of the largest part. `logit` is None
    for a model whose logits are not a sum of parts.
    """

    layer: int | None
    head: int | None
    side: str = column(about="Where the part is read: key, query or value of the head, or logit")
    kind: str = column(about="Kind of part: embedding, head, linear (a head without a softmax), mlp or bias")
    from_layer: int | None
    from_head: int | None
    share: float | None = column(
        about="Share of the part in this side of the head: in its score, output, or the logits"
    )
    share_low: float | None = column(is_needed=False)
    share_high: float | None = column(is_needed=False)
    strength: float | None = column(about=STRENGTH)
    logit: float | None = column(unit="logit", about=LOGIT_EFFECT, is_needed=False)


class PartEdge(Record, shared=ENDS):
    """The share of one part in another, with the names of both, such as 16:0 or MLP 16 and 18:6 or logits."""

    start: str = column("from")
    end: str = column("to")
    side: str = column(about="Where the part is read: key, query or value of the head, or logit")
    share: float | None = column(
        about="Share of the part in this side of the head: in its score, output, or the logits"
    )
    share_low: float | None = column(is_needed=False)
    share_high: float | None = column(is_needed=False)
    strength: float | None = column(about=STRENGTH)
    logit: float | None = column(unit="logit", about=LOGIT_EFFECT, is_needed=False)
    from_layer: int | None = column(is_needed=False)
    from_head: int | None = column(is_needed=False)
    to_layer: int | None = column(is_needed=False)
    to_head: int | None = column(is_needed=False)


class FedHead(Record):
    """A head, and the total share of all earlier heads in each of its sides."""

    stack: str = column(is_needed=False)
    layer: int
    head: int
    weight: float | None = column(about="Mean weight of the head on its keys after the first")
    key_of_heads: float | None = column(
        about="Total share of all earlier heads on the key side", is_needed=False
    )
    query_of_heads: float | None = column(
        about="Total share of all earlier heads on the query side", is_needed=False
    )
    value_of_heads: float | None = column(
        about="Total share of all earlier heads on the value side", is_needed=False
    )
    logit_share: float | None = column(about="Share of this head in the logits", is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadEdges(Result):
    """The share of each earlier part of the model in the work of each head, and in the logits.

    `rows` has every part of every side, in model order; the shares of a side add up to 1. A share above 1 in
    size belongs to a part larger than the sum, because parts of the other sign cancel most of it: only its
    sign is meaningful, not its size. For several texts, a share is the mean over the texts in which the share
    is a number. `edges` has the shares of at least 1 %, and those with at least 1 % of the largest effect on
    the logit, sorted by that effect or, for a model without logits, by strength.

    A share on side key or query is a share of the score of a query's strongest key after the first, minus the
    mean score of the keys that the query sees; queries are weighted by the weight of that key. On side value,
    it is a share of the head's output, along that output. On side logit, which has no layer or head, it is a
    share of the logits of the predicted tokens, minus the mean over the vocabulary.

    `strength` is the share times the head's mean weight on those keys, because the score of a head that looks
    only at the first key decides little; for the logits, `strength` is the share.

    `logit` is the effect on the logit of the likeliest next token through the edge and its head; on side
    logit, it is the contribution of the part, as in `attn why`. On side value, it is a part of the head's
    whole contribution; on sides key and query, it is a part of the difference from uniform weights
    (integrated gradients, Sundararajan et al. 2017). For several texts, it is a mean. Effects through later
    heads and MLPs are ignored.
    """

    edges: Records[PartEdge] = group(label="Edges", is_kept=False)
    heads: Records[FedHead] = group(label="Heads")
    num_texts: int = number("texts", label="texts", about="Number of texts")
    rows: Records[PartShare] = field(default_factory=partial(PartShare.rows, ()))
    notes: tuple[str, ...] = ()
    unshown: str = ""

    @property
    def weight(self) -> dict[tuple[int, int], float | None]:
        """The mean weight of each head, by layer and head."""
        return {(row.layer, row.head): row.weight for row in self.heads}

    def strongest_between_heads(self) -> PartEdge | None:
        """The strongest edge from one head to another, or None if no edge joins two heads."""
        return next((edge for edge in self.edges if None not in (edge.from_head, edge.to_head)), None)


class Composition(Record, shared=ENDS):
    """The composition score of an earlier head with one side of a later head."""

    layer: int
    head: int
    side: str = column(about="What the earlier head composes with: query, key or value of the later one")
    from_layer: int
    from_head: int
    score: float | None = column(about="Composition: ‖W₁ W₂‖ / (‖W₁‖ ‖W₂‖) of the two heads' matrices")


class CompositionEdge(Record, shared=ENDS):
    """The composition score of two heads, with their names."""

    start: str = column("from")
    end: str = column("to")
    side: str = column(about="What the earlier head composes with: query, key or value of the later one")
    score: float | None = column(about="Composition: ‖W₁ W₂‖ / (‖W₁‖ ‖W₂‖) of the two heads' matrices")
    from_layer: int | None = column(is_needed=False)
    from_head: int | None = column(is_needed=False)
    to_layer: int | None = column(is_needed=False)
    to_head: int | None = column(is_needed=False)


class HeadCopying(Record):
    """The copying score of a head."""

    layer: int
    head: int
    score: float | None = column(
        about="Copying: 1 if the head raises the logits of the tokens that it looks at, -1 if it lowers them"
    )

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Compositions(Result):
    """Composition scores of pairs of heads, and copying scores of heads, from the weights.

    `rows` has one row per pair of heads and side, in the order of the model; `edges` has these rows with
    names, highest score first. The composition `score` is ||W_1 W_2||_F / (||W_1||_F ||W_2||_F), where W_1 is
    the W_OV of the earlier head and W_2 the W_QK of the later head (query), its transpose (key) or its W_OV
    (value): K-, Q- and V-composition of Elhage et al. 2021. W_Q, W_K and W_V include the gains of the norms;
    rotations are ignored.

    `copying` has one row per head with its copying `score`, sum Re(e) / sum |e| of the eigenvalues e of W_U
    W_OV W_E: 1 for a head that raises the logits of the tokens that it looks at. W_E and W_U include the
    matrices between them and the stream. `copying` is empty for models that do not predict the next token,
    and for models whose transformation of the stream before W_U is not linear.
    """

    edges: Records[CompositionEdge] = group(label="Edges", is_kept=False)
    copying: Records[HeadCopying] = group(label="Copying")
    rows: Records[Composition] = field(default_factory=partial(Composition.rows, ()))
    notes: tuple[str, ...] = ()
