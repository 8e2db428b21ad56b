"""Where in a recording each word is, and which heads of a model say so."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number

SECONDS = "seconds"


class SpokenWord(Record):
    """A word as it is written, where it begins and ends, and how probable its tokens were to the model.

    `after_blank`: a blank stands before it, as before most, and not before `'clock` of `o'clock`.
    """

    word: str
    begin: float = column(unit=SECONDS)
    end: float = column(unit=SECONDS)
    probability: float
    after_blank: bool = column(is_kept=False, is_needed=False)


class AligningHead(Record):
    """A head of cross-attention, and how well it alone times words.

    `error` is the median distance of the begins of words, by this head alone, from where they are; `shift`
    the median of the signed distance (positive: later). `concentration` is the filter of Yeh et al. 2025
    (2509.09987): the sum of the norms of columns and rows of its weights. `is_published`: the model's
    generation_config.json names it.
    """

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    error: float = column(unit=SECONDS)
    shift: float = column(unit=SECONDS)
    concentration: float
    is_published: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class SpokenWords(Result):
    """The words of a sound in their order; `seconds` is how long it is, `step` the distance of two frames."""

    words: Records[SpokenWord] = group()
    seconds: float = number("sound")
    step: float = number("sound")
    aligned_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class AligningHeads(Result):
    """Every head of cross-attention on speech whose times are known, the best first.

    Median errors of the begins of all words: by the first `num_found` heads together (`error_of_found`), and
    by those that the model's generation_config.json names (`error_of_published`; None without any), of which
    `published_among_first` are among the first eight.
    """

    heads: Records[AligningHead] = group()
    num_words: int = number("speech")
    num_found: int = number("speech")
    error_of_found: float = number("speech")
    error_of_published: float | None = number("speech")
    num_published: int = number("speech")
    published_among_first: int = number("speech")
    notes: tuple[str, ...] = ()
