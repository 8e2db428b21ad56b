"""The results of `attn why`: a logit, or a head's score, as a sum over parts of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group, number
from attncli.records.meanings import LOOKED_AT

LOGIT = "logit"
LINEAR = "linear"


SUM_OF, AT_LAST = (
    "Contribution of each part to ",
    " at the last token; the last norm scales all parts equally.",
)


def explained_logit(how_to_read: str) -> str:
    """Return what a sum explains, such as `the logit of 's'`, or an empty string for an edited report."""
    is_known = how_to_read.startswith(SUM_OF) and how_to_read.endswith(AT_LAST)
    return how_to_read.removeprefix(SUM_OF).removesuffix(AT_LAST) if is_known else ""


class HeadLogit(Record, shared=LOOKED_AT):
    """The contribution of a head to a logit, and its strongest key at the last token, the `query`."""

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str = column(is_needed=False)
    head: int
    pattern: str = column(about="Pattern of the head; of a linear head, the kind of its layer")
    contribution: float | None = column(
        unit=LOGIT,
        about="What the head adds to the logit, or to the difference of two logits",
        has_interval=True,
    )
    query: int | None = column(about="Position of the last token", is_kept=False, is_needed=False)
    query_token: str | None = column(is_needed=False)
    key: int | None = column(
        about="Position of the key with the head's largest weight at the last token",
        is_kept=False,
        is_needed=False,
    )
    key_token: str | None = column(is_needed=False)
    key_weight: float | None = column(is_kept=False, is_needed=False)

    @property
    def name(self) -> str:
        """LAYER:HEAD, or linear:LAYER:HEAD for a head without a softmax if the model has both kinds."""
        stack = f"{LINEAR}:" if self.get("stack") == LINEAR else ""
        return f"{stack}{self.layer}:{self.head}"


class LayerLogit(Record):
    """A layer's contribution to a logit: the total of its heads, and its MLP."""

    layer: int
    attention: float | None = column(
        unit=LOGIT, about="What all heads of the layer add to the logit", has_interval=True, is_needed=False
    )
    mlp: float = column(
        unit=LOGIT, label="MLP", about="What the layer's MLP adds to the logit", has_interval=True
    )


class LogitParts(Record):
    """The contributions by kind of part, and their sum.

    The interval of `above` is that of Wilson 1927.
    """

    embedding: float = column(
        unit=LOGIT, about="What the embedding of the last token adds to the logit", has_interval=True
    )
    heads: float = column(unit=LOGIT, about="What all heads add to the logit", has_interval=True)
    mlps: float = column(unit=LOGIT, label="MLPs", about="What all MLPs add to the logit", has_interval=True)
    biases: float = column(unit=LOGIT, about="What the biases add to the logit", has_interval=True)
    sum: float | None = column(
        unit=LOGIT, about="Sum of the contributions", has_interval=True, is_needed=False
    )
    logit: float = column(
        unit=LOGIT,
        about="The logit that the model computes, or the difference of two logits",
        has_interval=True,
    )
    above: float | None = column(
        about="Share of the texts in which the answer's logit is above the other token's",
        has_interval=True,
        is_needed=False,
    )
    norm_scale: float | None = column(about="Factor of the last norm on the residual stream", is_needed=False)


class KeyLogit(Record):
    """The contribution of one token to a head at the last token."""

    contribution: float | None = column(
        unit=LOGIT, about="What the head's weight on this token adds to the logit: p_ij v_j W_O · direction"
    )
    weight: float = column(about="Weight of the last token on this token")


class TextLogit(Record):
    """The logit of one text."""

    text: str = column(about="Number or id of the text")
    logit: float = column(unit=LOGIT, about="Logit of the text, or the difference of two logits")


@dataclass(frozen=True, kw_only=True, repr=False)
class LogitAttribution(Result):
    """The contributions of a decoder's parts to a logit, or to a difference between two logits, as a sum.

    The scale of the last norm is frozen. `heads` and `layers` are in the order of the model; `parts` add up
    to the logit. `ids` contains the token of the logit and, with `against`, the token of the other logit.
    `keys` splits the contribution of `head`, LAYER:HEAD, by token. For several texts, the numbers are means
    with 95 % intervals, `texts` contains the logit of each text, and `keys` is None. `unshown` is a sentence
    that names the layers whose heads are left out; the notes also include this sentence.
    """

    covers_all_heads: ClassVar[bool] = True
    explains_figure: ClassVar[bool] = True

    heads: Records[HeadLogit] = group(label="Heads")
    layers: Records[LayerLogit] = group(label="Layers")
    parts: LogitParts = group(label="Kinds of parts")
    keys: Records[KeyLogit] | None = group(label="Tokens", axes=("key",), is_needed=False)
    texts: Records[TextLogit] | None = group(label="Texts", is_needed=False)
    ids: Sequence[int] = ()
    head: str = ""
    notes: tuple[str, ...] = ()
    unshown: str = ""

    def ranked(self) -> Records[HeadLogit]:
        """Return the heads by the size of their contributions, largest first."""
        return self.heads.sorted(lambda row: -abs(row.contribution or 0.0))


class ScoreOfPart(Record):
    """The contribution of a part of the model to a score, on the query side or the key side.

    Scores are scaled, before a softcap.
    """

    side: str = column(about="key or query: the part wrote to the key or to the query")
    part: str = column(about="Part of the model, such as 16:0, MLP 16 or embedding")
    kind: str = column(about="Kind of part", is_needed=False)
    layer: int | None = column(is_needed=False)
    head: int | None = column(is_needed=False)
    score: float = column(
        unit="score", about="What the part adds to the score, relative to the mean over the visible keys"
    )
    weight_without: float = column(
        unit="weight", about="Weight on the key without the part, at all keys or at the query"
    )


class PairOfParts(Record):
    """The joint contribution to a score of a part that wrote the query and a part that wrote the key."""

    query_part: str = column(about="Part that wrote the query")
    key_part: str = column(about="Part that wrote the key")
    score: float = column(unit="score", about="What both parts together add to the score")


class RowWeight(Record):
    """The weight of one key in a head's row."""

    weight: float = column(about="Weight of the query on the key")


class KeyScores(Record):
    """A part's contribution to the score of each key on either side, and the key's weight without the part.

    Contributions to keys that the query does not see are NaN.
    """

    key_adds: npt.NDArray[np.float64] = column(
        about="What the part, on the key's side, adds to the score of each key"
    )
    key_without: npt.NDArray[np.float64] = column(
        about="Weight of each key without the part on the key's side"
    )
    query_adds: npt.NDArray[np.float64] = column(
        about="What the part, on the query's side, adds to the score of each key"
    )
    query_without: npt.NDArray[np.float64] = column(
        about="Weight of each key without the part on the query's side"
    )


class PartName(Record):
    """The name of a part that writes to the residual stream."""

    part: str = column(
        about="Part that writes to the residual stream, such as 16:0, MLP 16, embedding or biases"
    )


class WritingHead(Record):
    """A head that wrote to a query or a key, and the strongest key of that head at that token."""

    side: str = column(about="key or query: the head wrote to the key or to the query")
    layer: int
    head: int
    query: int = column(about="Position that the head wrote to")
    key: int = column(about="Position of the head's strongest key there")
    weight: float = column(about="Weight of the head on that key")
    key_token: str | None = column(about="Token of that key", is_needed=False)

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


@dataclass(frozen=True, kw_only=True, repr=False)
class ScoreParts(Result):
    """One head's score for a query and a key, as a sum over what earlier parts of the model wrote.

    `sides` contains the parts that wrote the key, then the parts that wrote the query, with the largest of
    each side first. `strongest_pairs` contains the largest pairs of a query part and a key part; `pairs`
    (query part, key part) contains all pairs, in the order of `parts`. The contributions of each side, and
    those of all pairs, add up to `above_mean`, the score minus the mean over the keys that the query sees.
    `key_scores` contains the contributions for every key. `writers` are the most important heads. `position`
    is the term of ALiBi or of a relative bias. `missing` is the difference between the model's score and the
    sum over the parts, relative to the largest part.
    """

    sides: Records[ScoreOfPart] = group(label="Parts of the score")
    query: int = number("score", about="Position of the query")
    key: int = number("score", about="Position of the key")
    weight: float = number("score", about="Weight of the query on the key")
    score: float | None = number("score", about="The head's scaled score for the query and the key")
    above_mean: float | None = number(
        "score", about="The score minus the mean over the keys that the query sees"
    )
    position: float | None = number("score", about="Term of ALiBi or of a relative bias")
    missing: float = number(
        "score", about="Difference between the score and the sum of its parts, relative to the largest part"
    )
    strongest_pairs: Records[PairOfParts] = group("pairs", label="Pairs of parts")
    keys: Records[RowWeight] = group(label="Keys", axes=("key",))
    key_scores: Records[KeyScores] | None = group(
        "key_parts", label="Parts at each key", axes=("part", "key"), is_kept=False, is_needed=False
    )
    parts: Records[PartName] | None = group("part_names", label="Names of the parts", is_needed=False)
    writers: Records[WritingHead] | None = group(
        label="Heads that wrote to the query or key", is_needed=False
    )
    pairs: npt.NDArray[np.float64] | None = None
    layer: int | None = None
    head: int | None = None
    notes: tuple[str, ...] = ()
    unshown: str = ""

    def side(self, name: str) -> Records[ScoreOfPart]:
        """Return the parts on one side, `key` or `query`."""
        return self.sides.where(lambda row: row.side == name)

    @property
    def key_side(self) -> Records[ScoreOfPart]:
        """The parts that wrote the key."""
        return self.side("key")

    @property
    def query_side(self) -> Records[ScoreOfPart]:
        """The parts that wrote the query."""
        return self.side("query")
