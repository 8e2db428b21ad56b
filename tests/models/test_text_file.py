"""Files of many texts: one per line, or JSON Lines with text, id and group."""

import csv
import json
from pathlib import Path

import pytest

from attncli.errors import MOST_LINES, UserError
from attncli.models import text_files
from attncli.models.text_files import TextFile, TextLine


def test_plain_lines_and_json_lines_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "a.txt"
    plain.write_bytes('\ufeffa b\n\n  c \r\n{"text": 1}'.encode())
    assert list(TextFile(str(plain))) == [TextLine(1, "a b"), TextLine(3, "c"), TextLine(4, '{"text": 1}')]
    lines = [{"text": "a"}, {"text": "b", "id": 7, "group": "news"}, {"text": "c", "group": 2}]
    named = tmp_path / "a.jsonl"
    named.write_text("\n".join(map(json.dumps, lines)))
    file = TextFile(str(named))
    assert list(file) == [TextLine(1, "a"), TextLine(2, "b", "7", "news"), TextLine(3, "c", None, "2")]
    assert [line.label for line in file] == ["1", "7", "3"]
    other = tmp_path / "a.json"
    other.write_text('{"text": "a", "id": ""}\n{"text": "b"}')
    assert list(TextFile(str(other))) == [TextLine(1, "a"), TextLine(2, "b")]
    assert file.count() == 3


def test_a_csv_file_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.CSV"
    path.write_text('id,text,label\r\n7,"the cat, the ""mat""",x\r\n,"a\nb",y\r\n\r\nz,12,\r\n')
    file = TextFile(str(path))
    assert list(file) == [TextLine(2, 'the cat, the "mat"', "7"), TextLine(4, "a\nb"), TextLine(6, "12", "z")]
    assert file.count() == 3
    path.write_text("\ufeffgroup,text\nx,a\ny,b\n")
    assert [line.text for line in TextFile(str(path), group="y")] == ["b"]
    path.write_text(f"id, text\n7,{'a' * 200_000}\n")
    assert [(line.id, len(line.text)) for line in TextFile(str(path))] == [("7", 200_000)]
    tabs = tmp_path / "a.tsv"
    tabs.write_text('text\tid\na, "b"\t7\n')
    assert list(TextFile(str(tabs))) == [TextLine(2, 'a, "b"', "7")]


def test_an_unclosed_cell_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_CELL", 1000)
    path = tmp_path / "a.csv"
    path.write_text('text\na\n"' + "a\n" * 5000)
    of_process = csv.field_size_limit()
    with pytest.raises(UserError, match=r"a\.csv:\d+: is not valid CSV: field larger than field limit"):
        TextFile(str(path)).count()
    csv.field_size_limit(of_process)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (
            b"id,txt\na,b\n",
            ":1: must have a column text (it has id, txt); alternatively, use JSON Lines, or ",
        ),
        (b"", ":1: must have a column text (it is empty); "),
        (
            b"text,id\nthe cat, sat,3\n",
            ":2: must have 2 cells, like the header: put cells that contain commas in quotes",
        ),
        (b"text,id\na,1\nb\n", ":3: must have 2 cells, like the header"),
        (b'text\n""\n', ":2: text: must hold at least one token (got an empty text)"),
        (b"text\n\xff\n", ": is not UTF-8 text (invalid start byte)"),
        (b'text\nthe cat\n"the dog\nthe cow\nthe pig\n', ":3: is not valid CSV: the quote that opens"),
        (b'id,text\r\n"7\r\n8","a\r\nb', ":3: is not valid CSV: the quote that opens"),
        (b'text\na"b\n"', ":3: is not valid CSV: the quote that opens"),
        (b'"text\na\n', ":1: is not valid CSV: the quote that opens"),
        (b'text\n"the cat" sat\n', ":2: is not valid CSV: text after a closing quote"),
        (
            b'text\n\n"the dog\nthe cow\n"the pig"\n',
            ':5: is not valid CSV: text after a closing quote: write "" for a quote in a quoted cell '
            "(the record begins on line 3)",
        ),
        (b"text,id,text\na,1,b\n", ":1: has two columns named text: remove one"),
    ],
)
def test_errors_in_csv_files_have_line_numbers(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        TextFile(str(path)).count()
    assert caught.value.lines[0].startswith(f"{path}{error}")


def test_one_group_of_texts_is_selected(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "group": "x"}\n{"text": "b"}\n{"text": "c", "group": "x"}\n')
    file = TextFile(str(path), group="x")
    assert [line.text for line in file] == ["a", "c"] and file.count() == 2
    with pytest.raises(UserError) as caught:
        TextFile(str(path), group="y").count()
    assert caught.value.lines == (f"text_group: must be a group of {path}, which has x (got y)",)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"txt": "a"}', "txt: unknown key (did you mean 'text'?)"),
        ('{"prompt": "a"}', "text: is required (unknown: prompt)"),
        ('{"text": "a", "sentence": "b"}', "sentence: unknown key"),
        ("[]", 'must be an object like {"text": "..."}'),
        ('{"text": ""}', "text: must hold at least one token (got an empty text)"),
        ('{"text": "a", "group": [1]}', "group: must be text or a whole number (got [1])"),
        ('{"text": "\\ud800"}', "text: must be valid UTF-8 text"),
        ("{", "is not valid JSON: Expecting property name enclosed in double quotes"),
    ],
)
def test_errors_in_json_lines_have_line_numbers(tmp_path: Path, line: str, error: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{line}\n')
    with pytest.raises(UserError) as caught:
        TextFile(str(path)).count()
    assert caught.value.lines[0] == f"{path}:3: {error}"


def test_repeated_errors_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\n" * 100 + b"".join(b"%s\xff\n" % (b"a" * number) for number in range(1, 100)))
    with pytest.raises(UserError) as caught:
        TextFile(str(path)).count()
    assert len(caught.value.lines) == MOST_LINES + 1
    assert caught.value.lines[0] == f"{path}:1: is not UTF-8 text (byte 0) (and on 99 more lines)"
    path.write_text("\n \n")
    with pytest.raises(UserError, match="contains no texts"):
        TextFile(str(path)).count()
