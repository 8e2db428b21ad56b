import io
import sys
from pathlib import Path

import pytest

from attncli.errors import UserError
from attncli.settings.text import read_text, tokenize


def test_words_are_lower_case_and_lose_their_punctuation() -> None:
    text = 'Mathematics: "self-contradictory"; (vast), inventory! Is it? Yes.'
    expected = ["mathematics", "self-contradictory", "vast", "inventory", "is", "it", "yes"]
    assert tokenize(text, "words", key="sentence") == expected


def test_whitespace_changes_nothing() -> None:
    assert tokenize("[/INST]  <b>Hi.</b>\n:smile:", "whitespace", key="sentence") == [
        "[/INST]",
        "<b>Hi.</b>",
        ":smile:",
    ]


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="sentence: no tokens left after punctuation was removed"):
        tokenize("...", "words", key="sentence")


def test_files_are_utf8_or_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_bytes("\ufeffüber".encode())
    bad.write_bytes(b"caf\xe9")
    assert read_text(str(good)) == "über"
    with pytest.raises(UserError, match=r"bad.txt is not UTF-8 text \(byte 3\)"):
        read_text(str(bad))


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b")))
    assert read_text("-") == "a b"
