"""Results on spoken words: their times in a recording, and the heads that time them."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number

SECONDS = "seconds"


class SpokenWord(Record):
    """A word with its beginning and end, and the mean probability of its tokens.

    `after_blank` is True if a space precedes the word, as for most words, but not for `'clock` in `o'clock`.
    """

    word: str
    begin: float = column(unit=SECONDS)
    end: float = column(unit=SECONDS)
    probability: float
    after_blank: bool = column(is_kept=False, is_needed=False)


class AligningHead(Record):
    """A cross-attention head, and how well it times words.

    `error` is the median distance between the onsets that the head finds and the known ones; `shift` is the
    median signed distance (positive means later). `concentration` is the criterion of Yeh et al. 2025
    (2509.09987): the sum of the norms of the columns and rows of the head's weights. `is_published` is True
    if the model's generation_config.json lists the head.
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
    """The words of a sound in order, its duration `seconds`, and the time `step` between two frames."""

    words: Records[SpokenWord] = group()
    seconds: float = number("sound")
    step: float = number("sound")
    aligned_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class AligningHeads(Result):
    """The cross-attention heads on speech with known times, best first.

    `error_of_found` is the median error of the beginnings of all words with the first `num_found` heads
    together, and `error_of_published` is the error with the heads in the model's generation_config.json, or
    None if that file lists no heads; `published_among_first` of these heads are among the first eight.
    """

    heads: Records[AligningHead] = group()
    num_words: int = number("speech")
    num_found: int = number("speech")
    error_of_found: float = number("speech")
    error_of_published: float | None = number("speech")
    num_published: int = number("speech")
    published_among_first: int = number("speech")
    notes: tuple[str, ...] = ()
