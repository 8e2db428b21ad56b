"""Files of texts with labels: each line with its parts, its label and its group."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike, fspath
from typing import NamedTuple

from attncli.errors import UserError
from attncli.models.text_files import LineFile, TextLine
from attncli.records.token_ids import IDS, LABELS, TokenIds
from attncli.system.plain_text import parsed_json

PARTS = ("instruction", "document", "text", "answer")
"""The columns of texts, in the order in which a model reads them."""
MARKED = "marked"
YES, NO = ("1", "true", "yes"), ("0", "false", "no")
MARKED_SPAN = re.compile(r"<<([^<>]+)>>")


class LabelNames(NamedTuple):
    """The column of labels, and which of its two values is the positive one, where that is given.

    For a detector that is applied texts may have one value, and `fitted` are the negative and the positive
    value of the same column.
    """

    column: str
    positive: str | None = None
    fitted: tuple[str, str] | None = None
    is_applied: bool = False

    @classmethod
    def of(cls, text: str) -> "LabelNames":
        """`injected`, or `kind=injected` with the positive value."""
        column, equals, positive = text.partition("=")
        return cls(column, _plain_label(positive) if equals else None)

    def as_fitted(self, negative: str, positive: str) -> "LabelNames":
        """With the values of a detector, which are written as `kind=plain`; of another column as it is."""
        values = [name.removeprefix(f"{self.column}=") for name in (negative, positive)]
        is_same = all(name.startswith(f"{self.column}=") for name in (negative, positive))
        return self._replace(is_applied=True, fitted=(values[0], values[1]) if is_same else None)


@dataclass(frozen=True)
class LabelledText:
    """A text, the columns it consists of, its label and the group that is held out together."""

    line: TextLine
    parts: Mapping[str, str]
    label: str | None = None
    group: str | None = None

    @property
    def kinds(self) -> list[str]:
        """Which parts it has, in the order in which a model reads them; `marked` where spans are marked."""
        is_marked = not isinstance(self.line.text, TokenIds) and MARKED_SPAN.search(self.line.text)
        return [*self.parts, *([MARKED] if is_marked else [])]

    @property
    def words(self) -> str:
        """All that is written in it, without marks."""
        return "\n".join(without_marks(text)[0] for text in self.parts.values())

    @property
    def digest(self) -> str:
        """The beginning of the SHA-256 of its words."""
        return sha256(self.words.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class LabelledFile(LineFile):
    """CSV or JSON Lines with text and a column of labels; other columns are for somebody else.

    `rows` are mappings in place of a file. Without `label` no text has one.
    """

    def __init__(
        self,
        texts: str | PathLike[str] | Iterable[Mapping[str, object]],
        label: LabelNames | None = None,
        hold_out: str | None = None,
    ) -> None:
        self.names = [name for name in (label and label.column, hold_out) if name]
        self.columns = self.known = [*dict.fromkeys((*PARTS[2:3], *PARTS, "id", *self.names))]
        self.needed = self.names or ["text"]
        self.label_names, self._hold_out = label, hold_out
        for key, name in (("label", label and label.column), ("hold_out", hold_out)):
            if name in (*PARTS, MARKED):
                raise UserError(f"{key}: must be another column than {name}, which is read as text")
        self._rows: list[Mapping[str, object]] | None = None
        self.values: tuple[str, str] | None = None
        """The negative and the positive value, once the texts have been counted."""
        self.groups: Counter[str] = Counter()
        if isinstance(texts, str | PathLike):
            super().__init__(fspath(texts), f"texts: {fspath(texts)}")
            if self._spool is not None and not self.is_json:
                self.is_csv = self.is_json = True
            if not self.is_json:
                raise UserError(f"texts: {self.label}: must be JSON Lines or CSV (.jsonl, .csv) with a label")
        else:
            self._rows, self._spool, self.label, self.is_json, self.is_csv = (
                [*texts],
                None,
                "texts",
                True,
                False,
            )

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """See `LineFile.lines`; of mappings their numbers from 1."""
        if self._rows is None:
            return super().lines()
        columns = {*self.columns, IDS, LABELS}
        rows = ({name: row[name] for name in row if name in columns} for row in self._rows)
        return (
            (number, json.dumps(row, default=_plain).encode()) for number, row in enumerate(rows, start=1)
        )

    def _check_columns(self) -> None:
        """UserError where the first line has no text, which the others lack, too, if no column has it."""
        data = next((data for _, data in self.lines()), b"[]")
        known = _known_columns(data, {*self.known, IDS, LABELS})
        if known is None or json.loads(known).get("text") or IDS in json.loads(known):
            return
        if self._rows is not None:
            columns = [str(name) for name in self._rows[0]]
        elif self.is_csv:
            columns = self.header()
        else:
            columns = [*json.loads(data)]
        if not {"text", "document"} & {*columns}:
            has = f"it has {', '.join(columns)[:60]}" if columns else "it is empty"
            raise UserError(f"{self.label}:1: must have a column text ({has})")

    def count(self) -> int:
        """The number of texts. Raises UserError with the invalid lines, and unless labels have two values."""
        count, values = 0, Counter[str]()
        kinds: list[list[str]] = []
        self.groups.clear()

        def check(number: int, data: bytes) -> None:
            nonlocal count
            text = self._labelled(number, data)
            kinds.append(text.kinds)
            if kinds[-1] != kinds[0]:
                got = " and ".join(kinds.pop())
                same = f"must have the parts of the first text, {' and '.join(kinds[0])} (got {got})"
                raise UserError(f"{self.label}:{number}: {same}")
            del kinds[1:]
            count += 1
            if text.label is not None:
                values[text.label] += 1
            if text.group is not None:
                self.groups[text.group] += 1

        self._check_columns()
        self.check_lines(check)
        if not count:
            raise UserError(f"texts: {self.label}: holds no text")
        if self._hold_out is not None and not self.groups:
            raise UserError(f"hold_out: must be a column that texts have (no text has {self._hold_out})")
        if self.label_names is not None:
            self.values = self._two_values(self.label_names, values)
        return count

    def numbered(self) -> Iterator[tuple[int, LabelledText]]:
        """Every text with the number of its line."""
        return ((number, self._labelled(number, data)) for number, data in self.lines())

    def is_positive(self, text: LabelledText) -> bool:
        """Whether a text has the positive value; the texts have been counted."""
        assert self.values is not None, "counted before"
        return text.label == self.values[1]

    def _two_values(self, label: LabelNames, values: Counter[str]) -> tuple[str, str]:
        got = ", ".join(f"{value} ({number:,})" for value, number in values.most_common(4))
        if label.is_applied and len(values) == 1:
            return _one_value(label, next(iter(values)), got)
        if len(values) != 2:
            more = ", ..." if len(values) > 4 else ""
            raise UserError(f"label: {label.column} must have exactly two values (got {got}{more})")
        first, second = sorted(values)
        if label.positive is not None and label.positive not in values:
            raise UserError(f"label: {label.positive} must be a value of {label.column} (got {got})")
        if label.fitted is not None and {first, second} & {*label.fitted}:
            return _as_fitted(label, label.fitted, (first, second))
        if label.positive is not None:
            return (second, first) if label.positive == first else (first, second)
        folded = {value.lower(): value for value in values}
        for known in (YES, (label.column.lower(),)):
            if len(positive := [folded[name] for name in known if name in folded]) == 1:
                (other,) = {first, second} - {*positive}
                return other, positive[0]
        example = f"{label.column}={second}"
        raise UserError(f"label: must say which value is the positive one, as {example} (got {got})")

    def _labelled(self, number: int, data: bytes) -> LabelledText:
        record = _known_columns(data, {*self.known, IDS, LABELS})
        names = ["id", *self.names]
        texts = ["text", *(part for part in PARTS if part != "text")]
        fields = self.fields(number, data if record is None else record, texts, names)
        where = f"{self.label}:{number}"
        label = None
        if self.label_names is not None:
            label = _plain_label(fields.get(self.label_names.column) or "")
            if not label:
                raise UserError(f"{where}: {self.label_names.column}: must be given: it is the label")
        parts = {part: text for part in PARTS if (text := fields.get(part)) is not None}
        if isinstance(parts["text"], TokenIds) and len(parts) > 1:
            raise UserError(
                f"{where}: text: token ids stand alone, without {next(iter({*parts} - {'text'}))}"
            )
        group = None if self._hold_out is None else (fields.get(self._hold_out) or "").strip() or None
        return LabelledText(TextLine(number, parts["text"], fields.get("id")), parts, label, group)


class WholeLines(LabelledFile):
    """The same file, each line with all of its columns: what a store keeps of a text.

    So that the same texts are known again with another label, and a line that was edited is another text.
    """

    def __init__(self, name: str, label: LabelNames | None = None, hold_out: str | None = None) -> None:
        super().__init__(name, label, hold_out)
        if self.is_csv:
            self.columns = [*dict.fromkeys(("text", *filter(None, self.header())))]

    def __iter__(self) -> Iterator[TextLine]:
        """Every text, and as its `context` the line as an object of JSON. UserError for an invalid line."""
        for number, data in self.lines():
            text = self._labelled(number, data).line
            record = json.loads(data)
            kept = {name: value for name, value in record.items() if name in (IDS, LABELS) or _is_cell(value)}
            yield text._replace(context=json.dumps(kept, ensure_ascii=False, sort_keys=True))


WHOLE = re.compile(r"([+-]?\d+)\.0+")


def _plain_label(value: str) -> str:
    """A label without blanks around it; 1.0, as a column with gaps has it, is 1."""
    value = value.strip()
    return whole[1] if (whole := WHOLE.fullmatch(value)) else value


def _as_fitted(label: LabelNames, fitted: tuple[str, str], values: tuple[str, str]) -> tuple[str, str]:
    """The negative and the positive value as a detector has them. UserError for the other direction."""
    known = 1 if fitted[1] in values else 0
    (other,) = {*values} - {fitted[known]}
    negative, positive = (other, fitted[1]) if known else (fitted[0], other)
    if label.positive not in (None, positive):
        asked, right = f"{label.column}={label.positive}", f"{label.column}={positive}"
        raise UserError(f"label: {asked} is negative to the detector, which finds {right}: give {right}")
    return negative, positive


def _one_value(label: LabelNames, value: str, got: str) -> tuple[str, str]:
    """The negative and the positive value for a detector, where texts have only one of them."""
    if label.fitted is not None and value in label.fitted:
        (other,) = {*label.fitted} - {value}
        return _as_fitted(label, label.fitted, (value, other))
    if label.positive is not None:
        return (f"not {value}", value) if label.positive == value else (value, label.positive)
    known = (
        f" or have those that the detector was fitted to, {' and '.join(label.fitted)}"
        if label.fitted
        else ""
    )
    give = f"name the positive one, as {label.column}={value},{known}"
    raise UserError(f"label: {label.column} has one value in these texts: {give} (got {got})")


def _is_cell(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def text_of_line(line: str) -> LabelledText:
    """The text of a line as `WholeLines` gives it, whatever its label."""
    return next(text for _, text in LabelledFile([json.loads(line)]).numbered())


def _plain(value: object) -> object:
    """A number or an array of numpy's as Python's, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _as_text_or_whole(value: object) -> object:
    """A truth value as text, a whole number as such, whether or not it is written with a point."""
    if isinstance(value, bool):
        return str(value).lower()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _known_columns(data: bytes, columns: set[str]) -> bytes | None:
    """A line of JSON with the columns that are read; truth values as text. None where it is no object.

    A document without a text is the text.
    """
    try:
        record = parsed_json(data)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    kept = {
        name: _as_text_or_whole(value) if name not in PARTS else value
        for name, value in record.items()
        if name in columns
    }
    if not kept.get("text") and not kept.get(IDS) and kept.get("document"):
        kept["text"] = kept.pop("document")
    return json.dumps(kept).encode()


def without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without the marks of `<<...>>`, and the characters that stood between them; others stay."""
    plain, spans, end = "", list[tuple[int, int]](), 0
    for marked in MARKED_SPAN.finditer(text):
        plain += text[end : marked.start()]
        spans.append((len(plain), len(plain) + len(marked[1])))
        plain, end = plain + marked[1], marked.end()
    return plain + text[end:], spans
