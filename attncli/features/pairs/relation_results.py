"""Results of `attn heads --relations`: how often heads look along syntactic relations."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number

ALL = "all relations"
"""All relations together; no relation has a space in its name."""


class BestOfRelation(Record):
    """The head that finds the most words of a relation, compared with the best fixed offset."""

    relation: str = column(about="Syntactic relation")
    words: int = column(about="Number of words with the relation")
    layer: int
    head: int
    direction: str = column(
        about="to_head: the dependent looks most at its head; from_head: no word looks more at it"
    )
    share: float = column(about="Share of the words for which the head looks along the relation")
    lower: float
    upper: float
    offset: int = column(about="Most frequent distance, in words, from a dependent to its head")
    offset_share: float = column(about="Share of the words at that distance")
    offset_lower: float = column(about="Lower end of the 95 % interval of that share")
    offset_upper: float = column(about="Upper end of the 95 % interval of that share")

    @property
    def is_beyond_offset(self) -> bool:
        """True if the interval of the head's share lies entirely above that of the offset."""
        return bool(self.lower > self.offset_upper)


class HeadOnRelations(
    Record,
    others=float,
    others_about="Share of the words of a relation for which the head looks along it, in one direction",
):
    """A head, followed by its share of each relation's words in each direction."""

    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    kind: str
    stack: str


class HeadOnRelation(Record):
    """The share of a relation's words that a head finds in one direction, with its 95 % interval."""

    stack: str
    layer: int
    head: int
    statistic: str = column(about="Relation and direction, as in det.to_head")
    relation: str = column(about="Syntactic relation")
    direction: str = column(about="Direction: to_head or from_head")
    hits: int = column(about="Number of words for which the head looks along the relation")
    words: int = column(about="Number of words with the relation")
    mean: float = column(about="Share of the words for which the head looks along the relation")
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

    best: Records[BestOfRelation] = group("relations", label="Best head of each relation", is_kept=False)
    heads: Records[HeadOnRelations] = group(label="Heads")
    intervals: Records[HeadOnRelation] = group(label="Shares of words with intervals", is_kept=False)
    num_sentences: int = number("sentences", label="sentences", about="Number of sentences")
    num_words: int = number("sentences", label="words", about="Number of words")
    num_relations: int = number(
        "sentences", label="relations", about="Number of measured relations between words"
    )
    num_unaligned: int = number(
        "sentences",
        label="left out",
        about="Number of relations within one written word, or of words without separate tokens",
    )
    notes: tuple[str, ...] = ()
