"""Subtitles from word times: blanks are kept, and lines have a readable length."""

import re
from io import StringIO

import pytest

from attncli.features.words.screens import write_srt, write_vtt
from attncli.views import Display
from tests.views.pictured import spoken


def lines_of(words: list[str]) -> list[str]:
    stream = StringIO()
    write_srt([spoken(words)], stream, Display())
    return stream.getvalue().split("\n")[2::4]


def test_blanks_are_kept() -> None:
    assert lines_of([" It's", " 3", " o", "'clock.", " $5", ".50"]) == ["It's 3 o'clock.", "$5.50"]
    report = spoken([" It's", " 3", " o", "'clock.", " a<b", ">"])
    stream = StringIO()
    write_vtt([report], stream, Display())
    assert stream.getvalue().split("\n")[2:4] == [
        "00:00:00.000 --> 00:00:02.000",
        "It's <00:00:00.500>3 <00:00:01.000>o<00:00:01.500>'clock.",
    ]
    assert re.sub(r"<\d[^>]*>", "", stream.getvalue().split("\n")[6]) == "a&lt;b&gt;"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f" w{n}" for n in range(13)], [10, 3]),
        ([*(f" w{n}" for n in range(9)), " o", "'clock", " then"], [11, 1]),
        (["\u6f22"] * 23, [10, 10, 3]),
        ([" a", " b", *["\u6f22"] * 31], [20, 10, 3]),
    ],
)
def test_subtitle_lines_end_at_blanks(words: list[str], expected: list[int]) -> None:
    lines = lines_of(words)
    place = 0
    for line, count in zip(lines, expected, strict=True):
        assert line == "".join(words[place : place + count]).strip()
        place += count
