"""Files of labelled texts: each line has the parts of a text, its label and its group."""

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
"""Text columns, in the order in which a model reads them."""
MARKED = "marked"
YES, NO = ("1", "true", "yes"), ("0", "false", "no")
MARKED_SPAN = re.compile(r"<<([^<>]+)>>")


class LabelNames(NamedTuple):
    """The label column, and its positive value if the user chose one.

    When a detector is applied, the texts may have only one value; `fitted` then holds the negative and
    positive values that the detector was fitted with for the same column.
    """

    column: str
    positive: str | None = None
    fitted: tuple[str, str] | None = None
    is_applied: bool = False

    @classmethod
    def of(cls, text: str) -> "LabelNames":
        """Parse `injected`, or `kind=injected` with the positive value."""
        column, equals, positive = text.partition("=")
        return cls(column, _plain_label(positive) if equals else None)

    def as_fitted(self, negative: str, positive: str) -> "LabelNames":
        """Return the names with a detector's values (`kind=plain`) if the detector has the same column."""
        values = [name.removeprefix(f"{self.column}=") for name in (negative, positive)]
        is_same = all(name.startswith(f"{self.column}=") for name in (negative, positive))
        return self._replace(is_applied=True, fitted=(values[0], values[1]) if is_same else None)


@dataclass(frozen=True)
class LabelledText:
    """A text, the columns that it consists of, its label, and its group, which is held out as a whole."""

    line: TextLine
    parts: Mapping[str, str]
    label: str | None = None
    group: str | None = None

    @property
    def kinds(self) -> list[str]:
        """The names of the text's parts in reading order, followed by `marked` if spans are marked."""
        is_marked = not isinstance(self.line.text, TokenIds) and MARKED_SPAN.search(self.line.text)
        return [*self.parts, *([MARKED] if is_marked else [])]

    @property
    def words(self) -> str:
        """The text of all parts, without marks."""
        return "\n".join(without_marks(text)[0] for text in self.parts.values())

    @property
    def digest(self) -> str:
        """The first 16 digits of the SHA-256 of the text."""
        return sha256(self.words.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class LabelledFile(LineFile):
    """CSV or JSON Lines with text columns and a label column; other columns are ignored.

    `rows` are mappings used instead of a file. Without `label`, no text has a label.
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
                raise UserError(f"{key}: must not be {name}, which is a text column")
        self._rows: list[Mapping[str, object]] | None = None
        self.values: tuple[str, str] | None = None
        """The negative and the positive value, set when the texts are counted."""
        self.groups: Counter[str] = Counter()
        if isinstance(texts, str | PathLike):
            super().__init__(fspath(texts), f"texts: {fspath(texts)}")
            if self._spool is not None and not self.is_json:
                self.is_csv = self.is_json = True
            if not self.is_json:
                raise UserError(
                    f"texts: {self.label}: must be JSON Lines or CSV (.jsonl, .csv) with a label column"
                )
        else:
            self._rows, self._spool, self.label, self.is_json, self.is_csv = (
                [*texts],
                None,
                "texts",
                True,
                False,
            )

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield lines as `LineFile.lines` does; mappings get line numbers from 1."""
        if self._rows is None:
            return super().lines()
        columns = {*self.columns, IDS, LABELS}
        rows = ({name: row[name] for name in row if name in columns} for row in self._rows)
        return (
            (number, json.dumps(row, default=_plain).encode()) for number, row in enumerate(rows, start=1)
        )

    def _check_columns(self) -> None:
        """Raise UserError if the first line has no text because the file has no text column."""
        data = next((data for _, data in self.lines()), b"[]")
        fields = _read_columns(data, {*self.known, IDS, LABELS})
        if fields is None or json.loads(fields).get("text") or IDS in json.loads(fields):
            return
        if self._rows is not None:
            columns = [str(name) for name in self._rows[0]]
        elif self.is_csv:
            columns = self.header()
        else:
            columns = [*json.loads(data)]
        if not {"text", "document"} & {*columns}:
            has = f"it has {', '.join(columns)[:60]}" if columns else "it is empty"
            raise UserError(f"{self.label}:1: must have a text column ({has})")

    def count(self) -> int:
        """Return the number of texts.

        Raises UserError for invalid lines, and unless the labels have two values.
        """
        count, values = 0, Counter[str]()
        kinds: list[list[str]] = []
        self.groups.clear()

        def check(number: int, data: bytes) -> None:
            nonlocal count
            text = self._labelled(number, data)
            kinds.append(text.kinds)
            if kinds[-1] != kinds[0]:
                got = " and ".join(kinds.pop())
                same = f"must have the text columns of the first text, {' and '.join(kinds[0])} (got {got})"
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
            raise UserError(f"texts: {self.label}: contains no texts")
        if self._hold_out is not None and not self.groups:
            raise UserError(f"hold_out: must be a column of the texts (no text has {self._hold_out})")
        if self.label_names is not None:
            self.values = self._two_values(self.label_names, values)
        return count

    def numbered(self) -> Iterator[tuple[int, LabelledText]]:
        """Yield every text with its line number."""
        return ((number, self._labelled(number, data)) for number, data in self.lines())

    def is_positive(self, text: LabelledText) -> bool:
        """Return True if a text has the positive value. The texts must have been counted."""
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
        for positive_names in (YES, (label.column.lower(),)):
            if len(positive := [folded[name] for name in positive_names if name in folded]) == 1:
                (negative,) = {first, second} - {*positive}
                return negative, positive[0]
        example = f"{label.column}={second}"
        raise UserError(f"label: must name the positive value, such as {example} (got {got})")

    def _labelled(self, number: int, data: bytes) -> LabelledText:
        record = _read_columns(data, {*self.known, IDS, LABELS})
        names = ["id", *self.names]
        texts = ["text", *(part for part in PARTS if part != "text")]
        fields = self.fields(number, data if record is None else record, texts, names)
        where = f"{self.label}:{number}"
        label = None
        if self.label_names is not None:
            label = _plain_label(fields.get(self.label_names.column) or "")
            if not label:
                raise UserError(
                    f"{where}: {self.label_names.column}: is required, since it is the label column"
                )
        parts = {part: text for part in PARTS if (text := fields.get(part)) is not None}
        if isinstance(parts["text"], TokenIds) and len(parts) > 1:
            raise UserError(
                f"{where}: text: token ids cannot be combined with {next(iter({*parts} - {'text'}))}"
            )
        group = None if self._hold_out is None else (fields.get(self._hold_out) or "").strip() or None
        return LabelledText(TextLine(number, parts["text"], fields.get("id")), parts, label, group)


class WholeLines(LabelledFile):
    """The same file with all columns of each line, as a store saves its lines.

    Thus a text is recognised when its label has changed, while an edited line counts as a different text.
    """

    def __init__(self, name: str, label: LabelNames | None = None, hold_out: str | None = None) -> None:
        super().__init__(name, label, hold_out)
        if self.is_csv:
            self.columns = [*dict.fromkeys(("text", *filter(None, self.header())))]

    def __iter__(self) -> Iterator[TextLine]:
        """Yield every text, with its whole line as a JSON object in `context`.

        Raises UserError for an invalid line.
        """
        for number, data in self.lines():
            text = self._labelled(number, data).line
            record = json.loads(data)
            columns = {
                name: value for name, value in record.items() if name in (IDS, LABELS) or _is_cell(value)
            }
            yield text._replace(context=json.dumps(columns, ensure_ascii=False, sort_keys=True))


WHOLE = re.compile(r"([+-]?\d+)\.0+")


def _plain_label(value: str) -> str:
    """Return a label without surrounding whitespace; 1.0, as in a column with missing values, becomes 1."""
    value = value.strip()
    return whole[1] if (whole := WHOLE.fullmatch(value)) else value


def _as_fitted(label: LabelNames, fitted: tuple[str, str], values: tuple[str, str]) -> tuple[str, str]:
    """Return the detector's negative and positive values.

    Raises UserError if the user's values are reversed.
    """
    fitted_index = 1 if fitted[1] in values else 0
    (second,) = {*values} - {fitted[fitted_index]}
    negative, positive = (second, fitted[1]) if fitted_index else (fitted[0], second)
    if label.positive not in (None, positive):
        wrong, right = f"{label.column}={label.positive}", f"{label.column}={positive}"
        raise UserError(f"label: {wrong} is the detector's negative value: use {right}")
    return negative, positive


def _one_value(label: LabelNames, value: str, got: str) -> tuple[str, str]:
    """Return the negative and the positive value for a detector if the texts have only one of the two."""
    if label.fitted is not None and value in label.fitted:
        (second,) = {*label.fitted} - {value}
        return _as_fitted(label, label.fitted, (value, second))
    if label.positive is not None:
        return (f"not {value}", value) if label.positive == value else (value, label.positive)
    fitted = f" or use the detector's values, {' and '.join(label.fitted)}" if label.fitted else ""
    choose = f"name the positive value, such as {label.column}={value},{fitted}"
    raise UserError(f"label: {label.column} has only one value in these texts: {choose} (got {got})")


def _is_cell(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def line_text(line: str) -> LabelledText:
    """Return the text in a line from `WholeLines`, whatever its label."""
    return next(text for _, text in LabelledFile([json.loads(line)]).numbered())


def _plain(value: object) -> object:
    """Convert numpy numbers and arrays to Python's, and anything else to a string."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _as_text_or_whole(value: object) -> object:
    """Return a boolean as a string and a whole number as an int, even if the number has a decimal point."""
    if isinstance(value, bool):
        return str(value).lower()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_columns(data: bytes, columns: set[str]) -> bytes | None:
    """Reduce a JSON line to the columns that are read, with booleans as strings; return None for non-objects.

    The document becomes the text if there is no text.
    """
    try:
        record = parsed_json(data)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    fields = {
        name: _as_text_or_whole(value) if name not in PARTS else value
        for name, value in record.items()
        if name in columns
    }
    if not fields.get("text") and not fields.get(IDS) and fields.get("document"):
        fields["text"] = fields.pop("document")
    return json.dumps(fields).encode()


def without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its `<<...>>` marks, and the character spans that were marked."""
    plain, spans, end = "", list[tuple[int, int]](), 0
    for marked in MARKED_SPAN.finditer(text):
        plain += text[end : marked.start()]
        spans.append((len(plain), len(plain) + len(marked[1])))
        plain, end = plain + marked[1], marked.end()
    return plain + text[end:], spans
