"""Results on spoken words: their times in a recording, and the heads that time them."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number

SECONDS = "seconds"


class SpokenWord(Record):
    """A spoken word."""

    word: str = column(about="The word")
    begin: float = column(unit=SECONDS, about="Beginning of the word in the recording")
    end: float = column(unit=SECONDS, about="End of the word in the recording")
    probability: float = column(about="Mean probability of the word's tokens")
    after_blank: bool = column(
        about="True if a space precedes the word, unlike in o'clock", is_kept=False, is_needed=False
    )


class AligningHead(Record):
    """A cross-attention head, and how well it times words.

    `concentration` is the criterion of Yeh et al. 2025 (2509.09987).
    """

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    error: float = column(
        unit=SECONDS,
        about="Median distance between the beginnings of words that the head finds and the known ones",
    )
    shift: float = column(unit=SECONDS, about="Median difference of these beginnings; positive means later")
    concentration: float = column(
        about="Sum of the norms of the columns and rows of the head's weights (Yeh et al. 2025)"
    )
    is_published: bool = column(
        label="published", about="True if the model's generation_config.json lists the head"
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class SpokenWords(Result):
    """The words of a sound in order, its duration `seconds`, and the time `step` between two frames."""

    words: Records[SpokenWord] = group(label="Words")
    seconds: float = number("sound", about="Duration of the recording")
    step: float = number("sound", about="Time between two frames")
    aligned_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class AligningHeads(Result):
    """The cross-attention heads on speech with known times, best first.

    `error_of_found` is the median error of the beginnings of all words with the first `num_found` heads
    together, and `error_of_published` is the error with the heads in the model's generation_config.json, or
    None if that file lists no heads; `published_among_first` of these heads are among the first eight.
    """

    heads: Records[AligningHead] = group(label="Heads")
    num_words: int = number("speech", label="words", about="Number of words with known times")
    num_found: int = number("speech", label="chosen heads", about="Number of heads that are chosen")
    error_of_found: float = number(
        "speech", about="Median error of the beginnings of words with the chosen heads together"
    )
    error_of_published: float | None = number("speech", about="Median error with the published heads")
    num_published: int = number("speech", label="published heads", about="Number of published heads")
    published_among_first: int = number("speech", about="Number of published heads among the first eight")
    notes: tuple[str, ...] = ()
