"""The results of `attn why`: a logit, or a head's score, as a sum over parts of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group, number

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


class HeadLogit(Record):
    """The contribution of a head to a logit, and its strongest key at the last token, the `query`.

    `kind` is self, or linear for a head without a softmax. The `pattern` of a linear head is the kind of its
    layer.
    """

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str = column(is_needed=False)
    head: int
    pattern: str
    contribution: float | None = column(unit=LOGIT, has_interval=True)
    query: int | None = column(is_kept=False, is_needed=False)
    query_token: str | None = column(is_needed=False)
    key: int | None = column(is_kept=False, is_needed=False)
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
    attention: float | None = column(unit=LOGIT, has_interval=True, is_needed=False)
    mlp: float = column(unit=LOGIT, has_interval=True)


class LogitParts(Record):
    """The contributions by kind of part, their `sum`, and the `logit` that the model computes.

    The last norm multiplied the residual stream by `norm_scale`. For several texts, `above` is the share of
    texts on which the logit of the answer is above that of the other token (interval: Wilson 1927).
    """

    embedding: float = column(unit=LOGIT, has_interval=True)
    heads: float = column(unit=LOGIT, has_interval=True)
    mlps: float = column(unit=LOGIT, has_interval=True)
    biases: float = column(unit=LOGIT, has_interval=True)
    sum: float | None = column(unit=LOGIT, has_interval=True, is_needed=False)
    logit: float = column(unit=LOGIT, has_interval=True)
    above: float | None = column(has_interval=True, is_needed=False)
    norm_scale: float | None = column(is_needed=False)


class KeyLogit(Record):
    """The contribution p_ij v_j W_O · direction of token j to a head at the last token i, and p_ij."""

    contribution: float | None = column(unit=LOGIT)
    weight: float


class TextLogit(Record):
    """The logit of one text, or the difference between two logits. `text` is the id or number of the text."""

    text: str
    logit: float = column(unit=LOGIT)


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

    heads: Records[HeadLogit] = group()
    layers: Records[LayerLogit] = group()
    parts: LogitParts = group()
    keys: Records[KeyLogit] | None = group(axes=("key",), is_needed=False)
    texts: Records[TextLogit] | None = group(is_needed=False)
    ids: Sequence[int] = ()
    head: str = ""
    notes: tuple[str, ...] = ()
    unshown: str = ""

    def ranked(self) -> Records[HeadLogit]:
        """Return the heads by the size of their contributions, largest first."""
        return self.heads.sorted(lambda row: -abs(row.contribution or 0.0))


class ScoreOfPart(Record):
    """The contribution of a part of the model to a score, on the query side or the key side.

    `score` is relative to the mean over the keys that the query sees (scaled scores, before a softcap).
    `weight_without` is the weight of the key in the softmax of the row without the part, at all keys or at
    the query.
    """

    side: str
    part: str
    kind: str = column(is_needed=False)
    layer: int | None = column(is_needed=False)
    head: int | None = column(is_needed=False)
    score: float = column(unit="score")
    weight_without: float = column(unit="weight")


class PairOfParts(Record):
    """The joint contribution to a score of a part that wrote the query and a part that wrote the key."""

    query_part: str
    key_part: str
    score: float = column(unit="score")


class RowWeight(Record):
    """The weight of one key in a head's row."""

    weight: float


class KeyScores(Record):
    """A part's contribution to the score of each key on either side, and the key's weight without the part.

    Contributions to keys that the query does not see are NaN.
    """

    key_adds: npt.NDArray[np.float64]
    key_without: npt.NDArray[np.float64]
    query_adds: npt.NDArray[np.float64]
    query_without: npt.NDArray[np.float64]


class PartName(Record):
    """The name of a part that writes to the residual stream, such as 16:0, MLP 16, embedding or biases."""

    part: str


class WritingHead(Record):
    """A head that wrote to a query or a key, and the strongest key of that head at that token."""

    side: str
    layer: int
    head: int
    query: int
    key: int
    weight: float
    key_token: str | None = column(is_needed=False)

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

    sides: Records[ScoreOfPart] = group()
    query: int = number("score")
    key: int = number("score")
    weight: float = number("score")
    score: float | None = number("score")
    above_mean: float | None = number("score")
    position: float | None = number("score")
    missing: float = number("score")
    strongest_pairs: Records[PairOfParts] = group("pairs")
    keys: Records[RowWeight] = group(axes=("key",))
    key_scores: Records[KeyScores] | None = group(
        "key_parts", axes=("part", "key"), is_kept=False, is_needed=False
    )
    parts: Records[PartName] | None = group("part_names", is_needed=False)
    writers: Records[WritingHead] | None = group(is_needed=False)
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
