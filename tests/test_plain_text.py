"""Nothing that a terminal would obey, hide or move passes the sanitiser."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncli.plain_text import plain_text

FINE = ["[/INST]", "[red]x[/red]", ":smile:", "<b>", "$x^2$", "日本語", "🙂", "é", "naïve", "a b", "\\n"]


@pytest.mark.parametrize("text", FINE)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert plain_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\u202eb", r"a\u202eb"),
        ("a\tb\nc\r", r"a\tb\nc\r"),
        ("\x9b31m", r"\x9b31m"),
        ("\u200b", r"\u200b"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
        ("a\xa0b", r"a\xa0b"),
    ],
)
def test_what_is_unseen_becomes_visible(text: str, shown: str) -> None:
    assert plain_text(text) == shown


@given(st.text())
def test_no_control_format_or_separator_is_left(text: str) -> None:
    shown = plain_text(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or c == "\xa0"]
    assert all(unicodedata.category(c) != "Zs" or c == " " for c in shown)


def test_every_format_character_of_unicode_is_covered() -> None:
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
    left = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in unseen and chr(c) != " "]
    assert [c for c in left if plain_text(c) == c] == []
