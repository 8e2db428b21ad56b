"""What adds up: a logit as a sum over parts of a model, and the score of a head as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group, number

LOGIT = "logit"
LINEAR = "linear"


class HeadLogit(Record):
    """What a head adds to a logit, and what it looks at most from the last token, the `query`.

    `kind` is self, or linear: a head of a layer without a softmax, whose `pattern` is what mixes its tokens.
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
        """LAYER:HEAD, of a head without a softmax linear:LAYER:HEAD where layers have both kinds."""
        stack = f"{LINEAR}:" if self.get("stack") == LINEAR else ""
        return f"{stack}{self.layer}:{self.head}"


class LayerLogit(Record):
    """What the heads of a layer add to a logit together, and what its MLP adds."""

    layer: int
    attention: float | None = column(unit=LOGIT, has_interval=True, is_needed=False)
    mlp: float = column(unit=LOGIT, has_interval=True)


class LogitParts(Record):
    """The sums over the model, which add up to the `sum`; the model's own `logit`.

    `norm_scale` is what the last norm multiplied the residual stream by. `above` is the share of several
    texts on which the answer's logit is above that of the token it is compared with (interval: Wilson 1927).
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
    """p_ij v_j W_O . direction of one head at the last token i, and its weight p_ij, for each token j."""

    contribution: float | None = column(unit=LOGIT)
    weight: float


class TextLogit(Record):
    """The logit of one of several texts, or the difference of two; `text` is its id, or its number."""

    text: str
    logit: float = column(unit=LOGIT)


@dataclass(frozen=True, kw_only=True, repr=False)
class LogitAttribution(Result):
    """What each part of a decoder adds to a logit, or to the difference of two, the last norm's scale frozen.

    `heads` and `layers` are in the order of the model, `parts` add up to the logit. `ids` are the token of
    the logit and, where asked for, the one that it is compared with. `keys` are those of `head`, LAYER:HEAD.
    Of several texts all are means with 95 % intervals, `texts` has the logit of each; there are no `keys`.
    `unshown` names layers whose heads are not there, in a sentence; it is a note as well.
    """

    has_own_place: ClassVar[bool] = True
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
        """The heads, the one that adds most first, up or down."""
        return self.heads.sorted(lambda row: -abs(row.contribution or 0.0))


class ScoreOfPart(Record):
    """What a part of the model adds to a score on one side of it, that of the query or of the key.

    `score` is above the mean over the keys that the query sees (scaled scores, before a softcap);
    `weight_without` is the softmax of the row anew, without what the part wrote at all keys, or at the query.
    """

    side: str
    part: str
    kind: str = column(is_needed=False)
    layer: int | None = column(is_needed=False)
    head: int | None = column(is_needed=False)
    score: float = column(unit="score")
    weight_without: float = column(unit="weight")


class PairOfParts(Record):
    """What a part that wrote the query and one that wrote the key add to a score together."""

    query_part: str
    key_part: str
    score: float = column(unit="score")


class RowWeight(Record):
    """The weights of one row of a head, a key each."""

    weight: float


class KeyScores(Record):
    """What a part adds to the score of each key, and the weight of each key without it, on either side.

    What is added to keys that the query does not see is NaN.
    """

    key_adds: npt.NDArray[np.float64]
    key_without: npt.NDArray[np.float64]
    query_adds: npt.NDArray[np.float64]
    query_without: npt.NDArray[np.float64]


class PartName(Record):
    """A part of a model that writes to the residual stream: 16:0, MLP 16, embedding, biases."""

    part: str


class WritingHead(Record):
    """A head that wrote a query or key, and what it looked at most as it wrote there."""

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
    """The score of a query and a key of one head, as a sum over what earlier parts of the model wrote.

    `sides` has the parts that wrote the key, then those that wrote the query, each side the largest first;
    `strongest_pairs` are pairs of them; `pairs` (query part, key part) are all, in the order of `parts`. Each
    of the three adds up to `above_mean`, how far the score is above the mean over the keys that the query
    sees. `key_scores` say the same of every key. `writers` are the heads that count most.

    `position` is what ALiBi or a relative bias adds besides, `missing` by how much the parts' score differs
    from that of the model, relative to the largest part.
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
        """The parts on one side, `key` or `query`."""
        return self.sides.where(lambda row: row.side == name)

    @property
    def key_side(self) -> Records[ScoreOfPart]:
        """The parts that wrote the key."""
        return self.side("key")

    @property
    def query_side(self) -> Records[ScoreOfPart]:
        """The parts that wrote the query."""
        return self.side("query")
