"""The sanitizer lets nothing through that a terminal would obey, hide or move."""

import ast
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncli.system.plain_text import (
    LEGIBLE,
    LIKE,
    parsed_json,
    plain_text,
    readable_token,
    readable_tokens,
    whole_number,
)
from tests.conftest import in_turn

PACKAGE = Path(__file__).parents[2] / "attncli"
GOLDEN = Path(__file__).parents[1] / "views" / "tables" / "golden"
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
        ("pass\u200dword", r"pass\u200dword"),
        ("می\u200c", "می\\u200c"),
        ("\u200d👩", "\\u200d👩"),
        ("👨\u200d\u200d👧", "👨\\u200d\\u200d👧"),
        ("a\ufe0fb", r"a\ufe0fb"),
        ("\ufe0f❤", r"\ufe0f❤"),
        ("→\ufe0f", "→\\ufe0f"),
        ("❤\ufe0f\ufe0f", "❤\ufe0f\\ufe0f"),
    ],
)
def test_invisible_characters_become_visible(text: str, shown: str) -> None:
    assert plain_text(text) == shown


@pytest.mark.parametrize(
    "word",
    ["❤\ufe0f", "👨\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "🧑🏽\u200d✈\ufe0f", "می\u200cروم", "क्\u200dष"],
)
def test_a_word_that_is_written_with_joiners_stays_whole(word: str) -> None:
    assert plain_text(f"{word} x") == f"{word} x"


@pytest.mark.parametrize(
    ("token", "spelling", "shown"),
    [
        ("Ġcapital", "byte-level", "·capital"),
        ("ĊĊ", "byte-level", "↵↵"),
        ("Ã©t", "byte-level", "ét"),
        ("æĹ¥æľ¬", "byte-level", "日本"),
        ("ĠÃ", "byte-level", "·<0xC3>"),
        ("ĠðŁĻĤ", "byte-level", "·🙂"),
        ("<|im_start|>", "byte-level", "<|im_start|>"),
        ("▁capital", "metaspace", "·capital"),
        ("<0x0A>", "metaspace", "↵"),
        ("Ġorġ", "metaspace", "Ġorġ"),
        ("##ing", None, "##ing"),
        ("Ġ▁x", None, "Ġ▁x"),
    ],
)
def test_a_token_of_a_vocabulary_reads_as_text(token: str, spelling: str | None, shown: str) -> None:
    assert readable_token(token, spelling) == shown


@pytest.mark.parametrize(
    ("tokens", "spelling", "shown"),
    [
        ("ĠðŁ ¦ Ļ Ġsat", "byte-level", "·🦙(1/3) 🦙(2/3) 🦙(3/3) ·sat"),
        ("xÃ ¤Ã ¶y", "byte-level", "xä(1/2) ä(2/2)ö(1/2) ö(2/2)y"),
        ("ðŁ x ¦ Ļ", "byte-level", "<0xF0><0x9F> x <0xA6> <0x99>"),
        ("Ã Ã ¤", "byte-level", "<0xC3> ä(1/2) ä(2/2)"),
        ("▁a <0xE1> <0x9A> <0xA0> <0xE1>", "metaspace", "·a ᚠ(1/3) ᚠ(2/3) ᚠ(3/3) <0xE1>"),
        ("<0xC3> <0xA4>", None, "<0xC3> <0xA4>"),
    ],
)
def test_tokens_of_one_character_name_it(tokens: str, spelling: str | None, shown: str) -> None:
    assert readable_tokens(tokens.split(), spelling) == shown.split()


@given(st.text())
def test_byte_level_tokens_are_those_of_gpt2(text: str) -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    of_bytes = bytes_to_unicode()
    token = "".join(of_bytes[byte] for byte in text.encode(errors="ignore"))
    shown = text.encode(errors="ignore").decode().replace(" ", "·").replace("\n", "↵")
    assert readable_token(token, "byte-level") == shown


@given(st.text())
def test_no_control_format_or_separator_is_left(text: str) -> None:
    shown = plain_text(text)
    unseen = [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or c == "\xa0"]
    assert {*unseen} <= {"\u200c", "\u200d"}
    assert all(0 < i < len(shown) - 1 for i, c in enumerate(shown) if c in unseen), "joiners join two"
    assert all(unicodedata.category(c) != "Zs" or c == " " for c in shown)


def test_every_format_character_of_unicode_is_covered() -> None:
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
    left = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in unseen and chr(c) != " "]
    assert [c for c in left if plain_text(c) == c] == []


@pytest.mark.parametrize(
    ("golden", "encoding"),
    in_turn(
        ["multihead-explained-160", "scale-demo-80", "pitfalls-80", "norm-80"], ["cp1252", "cp437", "ascii"]
    ),
)
def test_a_console_without_our_characters_shows_similar_ones(encoding: str, golden: str) -> None:
    """Missing characters are replaced without escapes, and table lines keep their length."""
    text = (GOLDEN / f"{golden}.txt").read_text(encoding="utf-8")
    written = text.encode(encoding, LEGIBLE).decode(encoding)
    assert "\\" not in written
    for line, like in zip(text.splitlines(), written.splitlines(), strict=True):
        is_table = not {*line} & {character for character, other in LIKE.items() if len(other) > 1}
        assert len(line) == len(like) or not is_table


def test_characters_without_a_similar_one_are_escaped() -> None:
    assert "日 é→\u2840".encode("cp1252", LEGIBLE) == b"\\u65e5 \xe9->."
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", LEGIBLE)


def test_every_character_that_we_write_has_a_similar_one() -> None:
    """Characters in screens and explanations, except German words in an example and ends of sentences."""
    sources = [path for room in ("views", "toys") for path in (PACKAGE / room).rglob("*.py")]
    texts = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable()
    }
    characters = {character for text in texts for character in text if not character.isascii()}
    assert len(characters) > 30 and characters - {*LIKE} <= {*"äüß\u3002\uff1f\uff01"}


@pytest.mark.parametrize("opens, closes", [("[", "]"), ('{"a":', "}"), ('[0,{"a":[', "]}]")])
def test_json_is_read_to_a_depth_that_any_walk_through_it_reaches(opens: str, closes: str) -> None:
    levels = opens.count("[") + opens.count("{")
    for depth in (100 // levels, 101, 950, 100_000):
        text = opens * depth + "1" + closes * depth
        if depth * levels <= 100:
            assert parsed_json(text) == parsed_json(text.encode())
            continue
        with pytest.raises(ValueError, match="it is nested too deeply"):
            parsed_json(text)
    assert len(parsed_json(f"[{'[1],' * 5000}0]")) == 5001


def test_a_number_that_somebody_types_has_nine_digits_at_most() -> None:
    assert [whole_number(text) for text in ("0", "007", "9" * 9)] == [0, 7, 999_999_999]
    assert [whole_number(text) for text in ("", "-1", "1.0", "x", "9" * 10, "9" * 6000)] == [None] * 6
