"""Results of `attn heads --relations`: how often heads look along syntactic relations."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number


class BestOfRelation(Record):
    """The head that finds the most words of a relation, compared with the best fixed offset on these words.

    `direction` is to_head if the dependent gives the most weight to its head, from_head if no other word
    gives the dependent as much weight as its head. Shares are fractions of the `words`, with 95 % intervals.
    `offset` is the most frequent distance, in words, from a dependent to its head.
    """

    relation: str
    words: int
    layer: int
    head: int
    direction: str
    share: float
    lower: float
    upper: float
    offset: int
    offset_share: float
    offset_lower: float
    offset_upper: float

    @property
    def is_beyond_offset(self) -> bool:
        """True if the interval of the head's share lies entirely above that of the offset."""
        return bool(self.lower > self.offset_upper)


class HeadOnRelations(Record, others=float):
    """A head, followed by its share of each relation's words in each direction."""

    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    kind: str
    stack: str


class HeadOnRelation(Record):
    """The share of a relation's words that a head finds in one direction, with its 95 % interval.

    `statistic` joins the relation and the direction, as in det.to_head.
    """

    stack: str
    layer: int
    head: int
    statistic: str
    relation: str
    direction: str
    hits: int
    words: int
    mean: float
    lower: float
    upper: float


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadRelations(Result):
    """The share of words for which each head looks along each syntactic relation.

    `best` has one row per relation with the head that finds the most words, `heads` has one row per head, and
    `intervals` one row per relation, direction and head. Relations within one written word, and of words
    without separate tokens, are left out (`num_unaligned`). Two relations between the same two written words
    count once in "all relations".
    """

    best: Records[BestOfRelation] = group("relations", is_kept=False)
    heads: Records[HeadOnRelations] = group()
    intervals: Records[HeadOnRelation] = group(is_kept=False)
    num_sentences: int = number("sentences")
    num_words: int = number("sentences")
    num_relations: int = number("sentences")
    num_unaligned: int = number("sentences")
    notes: tuple[str, ...] = ()
