"""The text of reports: numbers, lines and blocks of text, axis labels, titles and settings."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, zip_longest
from math import isnan
from pathlib import Path
from posixpath import basename
from typing import Any, NamedTuple
from unicodedata import category

import numpy as np
from rich.cells import cell_len, chop_cells, set_cell_size

from attncli.core.names import LAST, POSITION
from attncli.feature import ReadingKind
from attncli.index import FEATURES, installed_features
from attncli.records.columns import Result, UntypedResult
from attncli.records.kinds import KINDS, experiment_kinds, read_result
from attncli.records.meanings import meaning_of_name, spaced
from attncli.records.report import PLACES, PictureMaps, Report, Row, Table, Terms
from attncli.settings import SPECS, known_spec_class
from attncli.settings.text import is_vector_file
from attncli.system.plain_text import counted, plain_text, readable_token, readable_tokens
from attncli.views.matrices import KEY_AXES, Matrix, axis_tokens, first_position, in_words, place_names

NO_NUMBER = "-"
NO_CELL = "/"
"""The mark of a map's cells without a number, such as hidden keys. A `·` only marks a space in a token."""
WIDE = 1e7


def fixed(value: Any, precision: int) -> str:
    """Format a number with that many decimals; integers stay as they are, huge numbers get an exponent."""
    if value is None:
        return NO_NUMBER
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, np.integer):  # an index; -1 means none
        return str(value) if value >= 0 else NO_NUMBER
    if not np.isfinite(value):
        return NO_NUMBER
    if abs(value) >= WIDE:
        return f"{value:.{precision}e}"
    text = f"{value:.{precision}f}"
    return text.removeprefix("-") if float(text) == 0 else text


DECIMALS = 2


def half_width(mean: Any, upper: Any, precision: int = DECIMALS) -> str:
    """Return `±0.01`, half of a mean's interval, or an empty string if there is no interval."""
    if not isinstance(mean, float) or not isinstance(upper, float) or isnan(upper - mean):
        return ""
    return f"±{fixed(upper - mean, precision)}"


def range_ends(low: float, high: float, precision: int, scale: str = "linear") -> tuple[str, str]:
    """Format the ends of a range; an end that rounds to zero beside the other is 0, except on a log scale."""
    least = 0.0 if scale == "log" else 0.5 * 10**-precision * max(abs(low), abs(high))
    first, last = (scalar(0.0 if abs(end) < least else end, precision) for end in (low, high))
    return first, last


def scalar(value: Any, precision: int) -> str:
    """Format a single number like `fixed`, but with an exponent if it would round to zero."""
    if isinstance(value, float) and value != 0 and abs(value) < 0.5 * 10**-precision:
        return f"{value:.{precision}e}"
    return fixed(value, precision)


def weight_text(weight: object, precision: int) -> str:
    """Format a weight; weights below 0.1 get two significant digits."""
    number = float(str(weight))
    rounded = fixed(number, precision)
    return f"{number:.2g}" if 0 < number < 0.1 and float(rounded) != number else rounded


def sentences(tokens: Mapping[tuple[str, int], str]) -> list[str]:
    """Yield sentences like `token 12 is self-contradictory`."""
    return [f"{name} {place} is {text}" for (name, place), text in tokens.items()]


BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


class ScreenLine(NamedTuple):
    """A line of text, perhaps with escape sequences, and the number of cells that it takes on the screen."""

    text: str
    cells: int


def plain_line(text: str) -> ScreenLine:
    """Return a line of plain text."""
    return ScreenLine(text, cell_len(text))


def styled(text: str, style: str, has_color: bool) -> ScreenLine:
    """Return a line of plain text, in bold, dim or coloured if the display has colours."""
    return ScreenLine(f"{style}{text}{RESET}" if has_color else text, cell_len(text))


def wrapped(text: str, width: int | None, style: str, has_color: bool) -> list[ScreenLine]:
    """Wrap a text to the width, in bold or dim."""
    lines = wrap_cells(text, width) if width is not None else [text]
    return [styled(line, style, has_color) for line in lines]


def wrap_cells(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most that many cells; longer words continue on the next line."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width) or [""]
    return lines


def text_columns(texts: Sequence[str], width: int) -> list[str]:
    """Arrange strings in as many columns as fit; strings longer than half the width go below, wrapped."""
    short = [text for text in texts if cell_len(text) + 2 <= width // 2]
    size = max(map(cell_len, short), default=0) + 2
    across = max(1, width // size)
    padded = [text + " " * (size - cell_len(text)) for text in short]
    lines = ["".join(padded[i : i + across]).rstrip() for i in range(0, len(padded), across)]
    for text in texts:
        if cell_len(text) + 2 > width // 2:
            lines += chop_cells(text, width)
    return lines


def bar(share: float, width: int) -> str:
    """Return a bar that covers that share of the width, to an eighth of a cell."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8]


def joined(lines: Sequence[ScreenLine]) -> ScreenLine:
    """Join several lines into one."""
    return ScreenLine("".join(line.text for line in lines), sum(line.cells for line in lines))


def beside(blocks: Sequence[Sequence[ScreenLine]], gap: int) -> list[ScreenLine]:
    """Put blocks side by side, aligned at the top, `gap` cells apart."""
    widths = [max((line.cells for line in block), default=0) for block in blocks]
    rows = zip_longest(*blocks, fillvalue=ScreenLine("", 0))
    return [_row(row, widths, gap) for row in rows]


def _row(row: Sequence[ScreenLine], widths: Sequence[int], gap: int) -> ScreenLine:
    pieces: list[ScreenLine] = []
    missing = 0
    for line, width in zip(row, widths, strict=True):
        if line.text:
            pieces += [ScreenLine(" " * missing, missing), line]
            missing = 0
        missing += width - (line.cells if line.text else 0) + gap
    return joined(pieces)


UNPOOLED = {"query_block": "query", "key_block": "key"}
LEAST_TOKEN = 4


def shortened(text: str, most: int | None) -> str:
    """Cut a string to that many cells, with an ellipsis at the end."""
    if most is None or cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1).rstrip() + "…"


PIECE = re.compile(r" *(?:\d[\d.,:/]*|\S)")
"""A number or one character of a word, with any spaces before it."""


def shortened_text(text: str, most: int) -> str:
    """Shorten a text to that many cells, with `…` in place of the words in the middle.

    Words without spaces between them lose characters. Numbers are kept or omitted whole.
    """
    if cell_len(text) <= most:
        return text
    room = most - cell_len(" … ")
    pieces = [
        piece
        for word in re.findall(r" *\S+", text)
        for piece in ([word] if cell_len(word) <= room // 2 else PIECE.findall(word))
    ]
    first = _fitting(pieces, 2 * room // 3)
    last = _fitting(pieces[::-1], room - sum(map(cell_len, first)))[::-1]
    return f"{''.join(first)} … {''.join(last).lstrip()}".strip()


def _fitting(pieces: Sequence[str], room: int) -> list[str]:
    """Return the first pieces that fit in that many cells."""
    ends = accumulate(map(cell_len, pieces))
    return [piece for piece, end in zip(pieces, ends, strict=True) if end <= room]


LEAST_NAME = 8


def shortened_heading(text: str, most: int | None, *names: str) -> str:
    """Shorten the names in a heading to reach that many cells, if possible; numbers stay whole.

    Commands and paths lose their folders first; then names lose their ends.
    """
    if most is None:
        return text
    for name in filter(None, names):
        shorter = " ".join(basename(word) or word for word in name.split(" "))
        if cell_len(text) > most:
            text, name = text.replace(name, shorter, 1), shorter
        if (over := cell_len(text) - most) > 0:
            text = text.replace(name, shortened(name, max(LEAST_NAME, cell_len(name) - over)), 1)
    return text


def token_texts(tokens: tuple[str, ...], count: int, most: int | None = None) -> list[str]:
    """Return the tokens as plain text of at most that many cells each; empty strings without tokens."""
    return [shortened(plain_text(token), most) for token in tokens] if tokens else [""] * count


MARKS = {"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk"}
"""The Unicode categories of punctuation and symbols, except the one of pictorial symbols like `↵`."""


def token_in_line(text: str) -> str:
    """Return a token for use within a sentence: punctuation and spaces are in quotes, like `","`."""
    is_mark = bool(text) and all(category(character) in MARKS for character in text) and "·" not in text
    return f'"{text}"' if is_mark else text


@dataclass(frozen=True)
class LabelledAxis:
    """An axis of a matrix: its name, its length, and its tokens, if it has any.

    `step`: the number of positions per place, from the `first` to the `last` (-1: not positions). `noun`: the
    word for its tokens.
    """

    name: str
    count: int
    tokens: tuple[str, ...]
    step: int
    first: int
    last: int
    noun: str

    @property
    def digits(self) -> int:
        """The number of digits of the last position."""
        return len(str(max(self.last, 0)))

    def skipped(self, first_keys: int) -> int:
        """Return how many of its places hold one of that many first keys, or 0 if they are not keys."""
        return min(-(-first_keys // self.step), self.count) if self.name in KEY_AXES else 0

    def texts(self, most: int | None) -> list[str]:
        """Return the tokens as plain text of at most that many cells each; empty strings without tokens."""
        return token_texts(self.tokens, self.count, most)

    def shortened_places(self, most: int | None) -> set[int]:
        """Return the places whose token is longer than the given number of cells."""
        texts = map(plain_text, self.tokens)
        return {place for place, text in enumerate(texts) if shortened(text, most) != text}

    def token_room(self, most: int | None, rows_per_line: int) -> int | None:
        """Return the number of cells for one token if the labels of that many rows share a line."""
        if rows_per_line == 1 or most is None:
            return most
        return max(LEAST_TOKEN, (most - self.digits - 3) // 2)

    def labels(self, most: int | None = None, block: int = 1, rows_per_line: int = 1) -> list[str]:
        """Return one label per line: `4 the`; `4 the, 5 cat` for two rows per line; `8-15` for a block of
        rows.
        """
        step = block * rows_per_line
        starts = range(0, self.count, step)
        if block > 1 or not self.tokens:
            return [self._positions(start, step) for start in starts]
        texts = self.texts(self.token_room(most, rows_per_line))
        labels = [f"{i:>{self.digits}} {text}" for i, text in enumerate(texts, self.first)]
        return [", ".join(labels[start : start + step]) for start in starts]

    def _positions(self, place: int, num_places: int) -> str:
        first = self.first + place * self.step
        last = min(first + num_places * self.step - 1, self.last)
        return f"{first:>{self.digits}}" + ("" if first == last else f"-{last}")


def labelled_axes(report: Report, matrix: Matrix) -> tuple[LabelledAxis, LabelledAxis]:
    """Return the rows and columns with their tokens; an axis of blocks counts positions."""
    (row_axis, column_axis), (num_rows, num_columns) = matrix.axes, matrix.values.shape
    return (
        _labelled_axis(report, row_axis, num_rows, matrix.rows),
        _labelled_axis(report, column_axis, num_columns, matrix.columns),
    )


def _labelled_axis(report: Report, name: str, count: int, tokens: tuple[str, ...]) -> LabelledAxis:
    noun = "context token" if name == "key" and report.context_tokens else "token"
    num_positions = _num_positions(report, UNPOOLED[name]) if name in UNPOOLED else 0
    step = -(-num_positions // count) or 1
    first = first_position(report, name)
    return LabelledAxis(name, count, tokens, step, first, first + (num_positions or count) - 1, noun)


def _num_positions(report: Report, axis: str) -> int:
    """Return the number of queries or keys, each of which has a number or a token."""
    for tensor in report.tensors_of("rows" if axis == "query" else "keys").values():
        if tensor.axes[-1] == axis:
            return int(tensor.values.shape[-1])
    return len(axis_tokens(report, axis))


# For reports without an experiment, such as weights from another tool.
OTHER_KEYS = ("file", "array", "program", "modules", "calls", "grid")
ARROW = " -> "


def heading(report: Report) -> str:
    """Return a heading like `self: 6 tokens, embedding random, embed_dim 64, ...`."""
    parts = _settings(report)
    return f"{report.experiment}: {', '.join(parts)}" if parts else report.experiment


def title(report: Report, *, name: str = "", without: Sequence[str] = ()) -> str:
    """Return a title like `Self-attention, tiny-induction, head 0:2: the cat walks on the street`.

    `name` replaces the experiment's title; `without` are the removed heads.
    """
    return ": ".join(filter(None, (_title_name(report, name, without), _title_text(report))))


def figure_title(report: Report) -> tuple[str, str]:
    """Return what a figure shows, with the model even if it is the default, and the text that was read."""
    return _title_name(report, model=model_setting(report)), _title_text(report)


def title_lines(report: Report, cells: int) -> list[str]:
    """Return the title on one line if it fits, otherwise the text, shortened, on its own line."""
    name, text = figure_title(report)
    if cell_len(whole := ": ".join(filter(None, (name, text)))) <= cells:
        return [whole]
    return [*wrap_cells(name, cells), *filter(None, [shortened_text(text, cells)])]


def _title_name(report: Report, name: str = "", without: Sequence[str] = (), model: str = "") -> str:
    """Return a title like `Self-attention, tiny-induction, head 0:2`."""
    own = next((kind.title for kind in _classes(report) if kind.title), "")
    spec_class = known_spec_class(report.experiment, report.spec)
    of_settings = spec_class.title_of(report.spec) if spec_class else ""
    parts = [name or of_settings or own or report.experiment]
    named = (model or report.spec.get("model"), report.spec.get("pitfall"))
    parts += [setting(value) for value in named if value]
    if not report.result.covers_all_heads:
        parts.append(place_text(report.spec))
    parts.append(report.result.about_example())
    if without:
        parts.append(f"without {', '.join(without)}")
    return ", ".join(filter(None, parts))


def _title_text(report: Report) -> str:
    """Return the text and the context that it attends to."""
    return ARROW.join(filter(None, (text_of(report, "sentence"), text_of(report, "context"))))


def _classes(report: Report) -> Iterable[type[Result]]:
    """Return the class of the result or, without one, the classes of its experiment."""
    is_untyped = isinstance(report.result, UntypedResult)
    return experiment_kinds(report.experiment).values() if is_untyped else [type(report.result)]


def comparison(report: Report) -> str:
    """Return what a report compares, or an empty string unless its title says that it compares something."""
    return plain_text(report.about) if any(kind.compares for kind in _classes(report)) else ""


def subtitle(report: Report) -> str:
    """Return the settings, preceded by what a comparison varies and a note on random weights."""
    lead = list(filter(None, [comparison(report)]))
    if warning := untrained(report):
        return " ".join([*lead, f"{warning}; {', '.join(_settings(report, without='seed'))}"])
    return " ".join([*lead, ", ".join(_settings(report))])


def untrained(report: Report) -> str:
    """Return `UNTRAINED (random weights, seed 0)`, or an empty string if nothing was sampled."""
    spec = report.spec
    projection, embedding = spec.get("projection"), spec.get("embedding")
    if projection in ("linear", "uniform"):
        return plain_text(f"UNTRAINED (random weights, seed {spec.get('seed')})")
    if projection == "none" and embedding is not None and not is_vector_file(embedding):
        return plain_text(f"UNTRAINED (random embeddings, seed {spec.get('seed')})")
    return ""


def nothing_to_draw(report: Report) -> str:
    """Return the message for a report without a matrix or curve, with an alternative."""
    spec_class = known_spec_class(report.experiment, report.spec)
    steps = spec_class.steps_after(report.spec) if spec_class else ()
    others = [step for step in steps if not step.startswith("-")]
    hint = (
        f": try attn {report.experiment} {others[0]}" if others else ": use --format table to see the numbers"
    )
    return f"this {report.experiment} report has no matrix or curve to draw{hint}"


MOST_OF_TOKENS = 60
"""The terminal cells for tokens in a heading of a report without a text."""


def text_of(report: Report, key: str, most: int | None = MOST_OF_TOKENS) -> str:
    """Return the `sentence` or `context` as given, or else its tokens in at most that many cells."""
    spec = report.spec
    names = [picture.name for picture in report.pictures] if key == "sentence" else []
    if key == "sentence" and report.picture_maps is not None:
        many = next((f"{what}s of {Path(name).name}" for what, name in files_of(report)), "")
        names = (
            [row.picture.name for row in report.picture_maps.rows] if report.picture_maps.title else [many]
        )
    if names:
        return plain_text(" ".join([", ".join(names), *str(spec.get(key) or "").split()]))
    if key == "context" and any(picture.axis == "context_tokens" for picture in report.pictures):
        return ""  # the name is the picture's
    if "sources" in report.statistics:  # the report's tokens belong to an answer
        return plain_text(" ".join(str(spec.get(key) or "").split())) if key == "sentence" else ""
    tokens = report.tokens if key == "sentence" else report.context_tokens
    if not tokens:
        return ""
    if spec.get("probe"):
        return f"random tokens, {spec.get('probe')}"
    if spec.get("num_tokens"):
        return "random vectors" if key == "sentence" else ""
    text = spec.get(key)
    if text and isinstance(text, str):
        return plain_text(" ".join(text.split()))
    text = plain_text(" ".join(" ".join(tokens).split()))
    return text if most is None else shortened_text(text, most)


def summarises_runs(report: Report) -> bool:
    """Return True for a summary of runs, even if it fits its class only in part."""
    return report.kind in KINDS and KINDS[report.kind].summarises_runs


def _settings(report: Report, without: str = "") -> list[str]:
    if summarises_runs(report):
        return []
    spec_class = known_spec_class(report.experiment, report.spec)
    keys = spec_class.heading_keys if spec_class else OTHER_KEYS
    spec = report.spec
    if spec.get("model") is None:
        spec = {**spec, "model": default_model(report)}
    settings = [
        place_text(spec) if key == "layer" else _named_setting(spec, key)
        for key in keys
        if key != without and is_in_heading(spec, key)
    ]
    return token_counts(report) + settings


def model_setting(report: Report) -> str:
    """Return a report's model, by default the shipped model, or an empty string if there is no model."""
    return str(report.spec.get("model") or default_model(report) or "")


def default_model(report: Report) -> str | None:
    """Return an experiment's default model, or None if it needs no model or the user must name one."""
    return getattr(SPECS.get(report.experiment), "default_model", None)


def token_counts(report: Report) -> list[str]:
    """Return counts like `6 tokens` and `3 context tokens`, if the report has them."""
    name = token_name(report)
    other = "source" if "sources" in report.statistics else f"context {name}"
    other = "way" if "ways" in report.statistics else other
    sides = ((report.tokens, name), (report.context_tokens, other))
    return [counted(len(tokens), name) for tokens, name in sides if tokens]


def token_name(report: Report) -> str:
    """Return the word for queries and keys: tokens, or words if tokens were merged into words."""
    return "word" if report.spec.get("words") else "token"


def text_name(report: Report) -> str:
    """Return the word for the items of a report about many items."""
    return next((what for what, _ in files_of(report)), "text")


def _read(report: Report) -> Iterator[tuple[str, ReadingKind]]:
    """Return the kind of input other than text that a report was made from, even if it is switched off."""
    for card in (*FEATURES.values(), *installed_features().values()):
        yield from ((what, kind) for what, kind in card.readings.items() if report.spec.get(kind.setting))


def files_of(report: Report) -> Iterator[tuple[str, str]]:
    """Return the kind of input other than text that a report was made from, and the name of its file."""
    return ((what, str(report.spec[kind.setting])) for what, kind in _read(report))


def kinds_read(report: Report) -> Iterator[ReadingKind]:
    """Return the kinds of files, other than text, that a report was made from."""
    return (kind for _, kind in _read(report))


MOST_NAMED = 6


NAMED_WEIGHT = "from_to_weight"
"""The statistic of the weight between the tokens that --from and --to name."""


def named_weight(report: Report) -> str:
    """Return the weight between named tokens in words, such as `weight from 10 it to 2 animal`."""
    queries, keys = named_tokens(report, "from"), named_tokens(report, "to")
    to = ", ".join(keys) + " (summed)" * (len(keys) > 1)
    of = ", ".join(queries) + " (their mean)" * (len(queries) > 1)
    return f"weight from {of} to {to}" if queries else f"weight on {to}, mean over all tokens"


def number_label(report: Report, name: str) -> str:
    """Return the name for people of a tensor, a column or a statistic of a report."""
    if name == NAMED_WEIGHT and report.spec.get("to"):
        return named_weight(report)
    kinds = (group.kind for group in report.result.groups() if group.kind is not None)
    declared = (kind.meaning(name) for kind in kinds if name in kind.columns)
    return next(declared, meaning_of_name(name)).label or spaced(in_words(name))


def named_tokens(report: Report, key: str) -> list[str]:
    """Return the tokens that a setting names, as `5 ·to` or `13-14 ·liz·ard`; for many texts, the names."""
    from attncli.records.surveys import HeadSurvey

    survey = report.result
    tokens = (
        [token for token in survey.named_tokens if token.setting == key]
        if isinstance(survey, HeadSurvey)
        else []
    )
    if not tokens:
        names = map(str, report.spec.get(key) or ())
        return [the_token(name) for name in names]
    several_texts = len({token.text for token in tokens}) > 1
    named = []
    # A name that covers several consecutive tokens is one word.
    for (_, text, _), run in groupby(
        enumerate(tokens), lambda item: (item[1].name, item[1].text, item[1].position - item[0])
    ):
        word = [token for _, token in run]
        where = "-".join(dict.fromkeys(str(token.position) for token in (word[0], word[-1])))
        named.append(f"{f'{text} ' * several_texts}{where} {''.join(token.token for token in word)}")
    left_out = len(named) - MOST_NAMED
    return named if left_out <= 0 else [*named[:MOST_NAMED], f"{left_out} more"]


def the_token(name: str) -> str:
    """Return the meaning of a name in any text, like `'cat'`, `position 4` or `the last token`."""
    if name == LAST:
        return "the last token"
    return f"position {name}" if POSITION.fullmatch(name) else repr(name)


def place_text(spec: Mapping[str, Any]) -> str:
    """Return `head 5:3`, or `layer 5` for all heads of a layer; empty for a report about neither."""
    return ", ".join(place_names((axis, spec[axis]) for axis in PLACES if spec.get(axis) is not None))


STDIN = "standard input"


def file_name(file: object) -> str:
    """Return the name of a file without its folders, or `standard input` for `-`."""
    return STDIN if file == "-" else Path(str(file)).name


def file_text(key: str, file: object) -> str:
    """Return `file notes.txt`, with the name as given, or `standard input` for `-`."""
    return STDIN if file == "-" else f"{key} {file}"


def is_in_heading(spec: Mapping[str, Any], key: str) -> bool:
    """Return True for a setting that is present and is not a switch at its default."""
    value = spec.get(key)
    if key == "seed" and not is_sampled(spec):
        return False
    if key == "head" and spec.get("layer") is not None:  # both are one name
        return False
    return value is not None and (key, value) not in (("causal", False), ("softmax", True))


SAMPLED = (
    "probe",
    "num_tokens",
    "batch_size",
    "sampling_temperature",
    "top_p",
    "needle",
    "document",
    "split",
)
"""Settings of a trained model's report that make its numbers depend on the seed."""


def is_sampled(spec: Mapping[str, Any]) -> bool:
    """Return True if the seed matters, which is not the case for a trained model on a given text."""
    is_trained = "allow_download" in spec and spec.get("projection") is None
    return not is_trained or any(spec.get(key) not in (None, False) for key in SAMPLED)


def _named_setting(spec: Mapping[str, Any], key: str) -> str:
    text = _in_heading(spec, key)
    return file_text(key, text) if key == "file" else f"{key} {text}"


def _in_heading(spec: Mapping[str, Any], key: str) -> str:
    """Return the value of a setting with whole commands and tokens; a token with outer spaces is quoted."""
    value = spec[key]
    if key in ("answer", "against") and isinstance(value, str):
        return repr(plain_text(value)) if value != value.strip() else plain_text(value)
    return plain_text(value) if key == "program" else setting(value)


def setting(value: Any) -> str:
    """Return the value of a setting in a heading; for a path, its last part only."""
    if isinstance(value, list):
        return ",".join(map(setting, value))
    if isinstance(value, bool):
        return str(value).lower()
    return plain_text(basename(str(value)))


def readable(report: Report) -> Report:
    """Return the report with every token, including those in steps, made readable by `readable_token`."""
    spelling = report.token_spelling
    if spelling is None:
        return report
    tokens, context = (readable_tokens(each, spelling) for each in (report.tokens, report.context_tokens))
    labels: dict[str, set[str]] = {}
    for token, label in zip((*report.tokens, *report.context_tokens), (*tokens, *context), strict=True):
        labels.setdefault(token, set()).add(label)

    def readable_name(token: str) -> str:
        """Return a token of a table as it is in the text, if that is unambiguous."""
        known = labels.get(token, ())
        return next(iter(known)) if len(known) == 1 else readable_token(token, spelling)

    tables = {
        name: Table(_readable_row(row, readable_name) for row in rows)
        for name, rows in report.statistics.items()
        if isinstance(rows, Table) and rows and any(map(_is_token, rows[0]))
    }
    return replace(
        report,
        result=read_result(report.kind, {**report.statistics, **tables}, report.tensors),
        tokens=tuple(tokens),
        context_tokens=tuple(context),
        picture_maps=None if report.picture_maps is None else _readable_maps(report.picture_maps, spelling),
        steps=tuple(
            replace(step, tables=tuple(_readable_terms(table, readable_name) for table in step.tables))
            for step in report.steps
        ),
        token_spelling=None,
    )


def _readable_maps(maps: PictureMaps, spelling: str) -> PictureMaps:
    def texts(tokens: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(readable_tokens(tokens, spelling))

    rows = (replace(row, tokens=texts(row.tokens), queries=texts(row.queries)) for row in maps.rows)
    return replace(maps, rows=tuple(rows))


def _is_token(column: str) -> bool:
    return column == "token" or column.endswith("_token")


def _readable_row(row: Row, readable_name: Callable[[str], str]) -> Row:
    tokens = {name: cell for name, cell in row.items() if _is_token(name) and isinstance(cell, str)}
    return {**row, **{name: readable_name(token) for name, token in tokens.items()}}


def _readable_terms(table: Terms, readable_name: Callable[[str], str]) -> Terms:
    """Make the tokens in the column `text` readable."""
    if "text" not in table.columns:
        return table
    place = table.columns.index("text")
    rows = tuple((*row[:place], readable_name(str(row[place])), *row[place + 1 :]) for row in table.rows)
    return replace(table, rows=rows)
