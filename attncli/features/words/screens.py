"""The first screens of spoken words and of the heads that time them (`attn heads`), and subtitles."""

from collections.abc import Iterable, Iterator
from typing import TextIO

from attncli.features.words.results import AligningHeads, SpokenWord, SpokenWords
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display, NothingToDraw
from attncli.views.findings import number, quoted
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    NamingLine,
    Notes,
    NumberCells,
    PageTable,
    Ranked,
    RowCells,
    Sentences,
    SpecialCells,
    TextCells,
)
from attncli.views.matrices import head_name
from attncli.views.report_sections import model_name
from attncli.views.sections import Column
from attncli.views.texts import NO_NUMBER, file_name

MOST_WORDS, MOST_HEADS, MOST_WORD, DECIMALS = 14, 10, 24, 2
BAR = 30
"""The number of columns of the bar that shows a word's time."""
LINE_SECONDS, LINE_WORDS, PAUSE = 6.0, 10, 0.8
"""Limits of a subtitle line in seconds and words; a pause of PAUSE seconds also ends it."""
SENTENCE_ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")


def _words_read(report: Report) -> str:
    result = report.result_of(SpokenWords)
    words = counted(len(result.words), "word")
    name = file_name(report.spec.get("sound"))
    return f"heads: {model_name(report)}, {words} in {result.seconds:.2f} s of {name}"


def _bars(report: Report, rows: Records[SpokenWord], display: Display) -> list[Column]:
    """Bars that show which part of the sound each word takes up."""
    seconds = report.result_of(SpokenWords).seconds or 1.0
    bars = []
    for row in rows:
        first = min(BAR - 1, int(BAR * row.begin / seconds))
        last = max(first + 1, min(BAR, round(BAR * row.end / seconds)))
        bars.append("·" * first + "━" * (last - first) + "·" * (BAR - last))
    return [Column(("in the", "recording"), bars, left=True)]


def _words_finding(report: Report) -> Iterator[str]:
    """Yield the first and last word with their times, and the least certain word."""
    result = report.result_of(SpokenWords)
    first, last = result.words[0], result.words[-1]
    begin = f"{quoted(first.word)}, which begins at {first.begin:.2f} s"
    end = f"{quoted(last.word)}, which ends at {last.end:.2f} s"
    words = counted(len(result.words), "word")
    yield f"{words} in {result.seconds:.2f} s of sound: from {begin}, to {end}."
    least = min(result.words, key=lambda word: word.probability)
    if float(number(least.probability)) < 1:
        yield f"The least certain word is {quoted(least.word)} (probability {number(least.probability)})."


WORDS_SCREEN = FirstScreen(
    SpokenWords,
    (
        NamingLine(_words_read),
        Ranked(
            "words",
            (
                RowCells("begin", lambda row: f"{row.begin:.2f} s"),
                RowCells("end", lambda row: f"{row.end:.2f} s"),
                SpecialCells(_bars),
                NumberCells("probability", decimals=DECIMALS),
            ),
            label=TextCells("word", most=MOST_WORD),
            left_out=lambda rows, total: f"Not shown: {total - len(rows)} more words. See --show all.",
            usual=MOST_WORDS,
        ),
        Notes(),
    ),
    page_table=lambda _: PageTable("words", ("word", "begin", "end")),
    finding=_words_finding,
)
"""Each word with its beginning and end."""


def _heads_read(report: Report) -> str:
    result = report.result_of(AligningHeads)
    heads = f"{len(result.heads)} cross-attention heads on {result.num_words} spoken words"
    return f"heads: {model_name(report)}, {heads}"


def _together(report: Report, display: Display) -> Iterator[str]:
    result = report.result_of(AligningHeads)
    error = f"{1000 * result.error_of_found:.0f} ms"
    first = f"The median error is {error} for the first {result.num_found} heads together"
    if result.error_of_published is None:
        yield f"{first}."
        return
    published = f"{1000 * result.error_of_published:.0f} ms for the {result.num_published} published heads"
    yield f"{first} and {published}; {result.published_among_first} heads are in both groups."


def _aligning_finding(report: Report) -> Iterator[str]:
    """Yield the head with the smallest error, and the error of several heads together."""
    best = min(report.result_of(AligningHeads).heads, key=lambda head: head.error)
    error = f"a median error of {1000 * best.error:.0f} ms"
    yield f"Head {head_name(best)} finds best where words begin, with {error}."
    yield from _together(report, Display())


ALIGNING_SCREEN = FirstScreen(
    AligningHeads,
    (
        NamingLine(_heads_read),
        Ranked(
            "heads",
            (
                RowCells(("median", "error"), lambda row: f"{1000 * row.error:.0f} ms"),
                RowCells(("median", "shift"), lambda row: f"{1000 * row.shift:+.0f} ms"),
                RowCells("published", lambda row: "yes" if row.is_published else NO_NUMBER, left=True),
                NumberCells("concentration"),
            ),
            label=HeadLabel(has_stacks=False),
            left_out=lambda rows, total: f"Not shown: {total - len(rows)} more heads. See --show all.",
            usual=MOST_HEADS,
        ),
        Sentences(_together),
        Notes(),
    ),
    page_table=lambda _: PageTable("heads", ("error", "shift")),
    finding=_aligning_finding,
)
"""The heads that time words best, and their joint error."""


def _lines(words: Records[SpokenWord]) -> Iterator[list[SpokenWord]]:
    """Yield the words, grouped into lines of readable length."""
    line: list[SpokenWord] = []
    for word in words:
        is_full = line and (
            word.end - line[0].begin > LINE_SECONDS
            or len(line) >= LINE_WORDS
            or word.begin - line[-1].end > PAUSE
            or line[-1].word.endswith(SENTENCE_ENDS)
        )
        has_blanks = any(map(_blank_before, line[1:])) and len(line) < 2 * LINE_WORDS
        if is_full and (_blank_before(word) or not has_blanks):
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def _blank_before(word: SpokenWord) -> str:
    return "" if word.after_blank is False else " "  # reports from older versions lack this column


def _clock(seconds: float, mark: str) -> str:
    """Format seconds as `00:01:02,345`."""
    thousandths = round(1000 * seconds)
    minutes, remainder = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{remainder // 1000:02}{mark}{remainder % 1000:03}"


def _report_words(report: Report) -> Records[SpokenWord]:
    if not isinstance(report.result, SpokenWords):
        how = "create one with attn heads --sound FILE --words"
        raise NothingToDraw(f"this {report.experiment} report has no spoken words: {how}")
    return report.result.words


def write_srt(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write subtitles in the SubRip format."""
    number = 0
    for report in reports:
        for words in _lines(_report_words(report)):
            number += 1
            text = "".join(_blank_before(word) + word.word for word in words).lstrip()
            arrow = f"{_clock(words[0].begin, ',')} --> {_clock(words[-1].end, ',')}"
            stream.write(f"{number}\n{arrow}\n{plain_text(text)}\n\n")


def write_vtt(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write subtitles in the WebVTT format, with the time of each word."""
    stream.write("WEBVTT\n\n")
    for report in reports:
        for words in _lines(_report_words(report)):
            text = ""
            for word in words:
                safe = plain_text(word.word).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
                blank = _blank_before(word)
                text += f"{blank}<{_clock(word.begin, '.')}>{safe}" if text else safe
            stream.write(f"{_clock(words[0].begin, '.')} --> {_clock(words[-1].end, '.')}\n{text}\n\n")
