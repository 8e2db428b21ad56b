"""The contents of a report for the browser, the current choice, and the moves between choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Protocol

import numpy as np

from attncli.core.names import HEAD_PATTERNS, stack_label
from attncli.records.report import PLACES, Picture, Report, Row, Table
from attncli.records.surveys import HeadSurvey
from attncli.views import SCALES
from attncli.views.colours import Shading, shading
from attncli.views.head_screens import head_letter, head_place, is_mostly_first
from attncli.views.matrices import (
    ATTENTION_AXES,
    Matrix,
    axis_tokens,
    pictured,
    place_names,
    tensor_matrices,
    whole_heads,
)
from attncli.views.overlays import Look, chosen_queries
from attncli.views.texts import LabelledAxis, labelled_axes

# The tensors that users usually open a report for.
FIRST_NAMES = ("weights", "pooled_mean", "pooled_max")
GROUPS = {"query": "rows", "key": "keys"}
# The stacks of a survey whose rows describe maps of that kind; other maps belong to the text itself.
STACKS = {"encoder": ("encoder",), "cross": ("cross",)}

MapPlace = tuple[int, ...]


@dataclass(frozen=True)
class Addition:
    """A head's contribution to the logit of the next token, split by key, with the labels of the keys.

    `rank` is its rank by absolute value among `num_heads`, counted from 1.
    """

    token: str
    logit: float
    contribution: float
    rank: int
    num_heads: int
    keys: Sequence[tuple[str, float]]


class BrowsedModel(Protocol):
    """The model behind the report in the browser. Its methods may take a long time.

    They raise UserError, without the key of a setting, for everything that the model cannot do. Heads have
    names such as 24:4.
    """

    text: str

    def look(self, text: str) -> Report:
        """Survey another text, which replaces the model's current text."""
        ...

    def without(self, heads: Sequence[str]) -> Mapping[str, float]:
        """Return the effects of removing these heads together, by name."""
        ...

    def addition(self, head: str) -> Addition:
        """Return the contribution of a head to the logit of the next token."""
        ...


@dataclass(frozen=True)
class MapGrid:
    """The maps of one tensor, arranged by its leading axes: layers and heads.

    The last of these axes runs to the right, the others run down. If the full weights of a head were saved,
    they replace its pooled map.
    """

    report: Report
    name: str
    axes: tuple[str, ...]
    shape: MapPlace
    maps: Mapping[MapPlace, Matrix] = field(repr=False)

    @property
    def num_rows(self) -> int:
        """The number of rows of the grid (layers or batches), or 1 if there are only heads."""
        return prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        """The number of maps per row: the heads."""
        return self.shape[-1] if self.shape else 1

    @property
    def num_places(self) -> int:
        """The number of maps."""
        return prod(self.shape)

    @property
    def first_number(self) -> int:
        """The first map with a finite number, because some layers of hybrid models have no attention."""
        places = map(self.place, range(self.num_places))
        has_numbers = (np.isfinite(self.maps[place].values).any() for place in places)
        return next((number for number, has_some in enumerate(has_numbers) if has_some), 0)

    def head_pattern(self, number: int) -> str:
        """Return a head's pattern with its strongest statistic, or an empty string for an unknown pattern."""
        row = self.heads.get(self.place(number), {})
        strengths = {
            name: (pattern.statistic, value)
            for name, pattern in HEAD_PATTERNS.items()
            if isinstance(value := row.get(pattern.statistic), float) and np.isfinite(value)
        }
        pattern = str(row.get("pattern", ""))
        if not strengths or not pattern:
            return pattern
        largest = max(strengths, key=lambda name: strengths[name][1] / HEAD_PATTERNS[name].threshold)
        statistic, value = strengths.get(pattern, strengths[largest])
        return f"{pattern} ({statistic} {value:.2f})"

    def place(self, number: int) -> MapPlace:
        """Return the place of the map with this number. Maps are numbered row by row."""
        return tuple(map(int, np.unravel_index(number, self.shape))) if self.shape else ()

    def row_name(self, row: int) -> str:
        """Return the layer, or the indices on all axes but the last."""
        return ".".join(map(str, self.place(row * self.num_columns)[:-1]))

    def head_name(self, number: int) -> str:
        """Return a name such as `5:11`, `decoder:5:11` with several stacks, or `head 11` without layers."""
        place = self.place(number)
        if self.axes != PLACES:
            return ", ".join(place_names(zip(self.axes, place, strict=True)))
        stack = stack_label(str(self.heads[place].get("stack", ""))) if place in self.heads else ""
        return ":".join(filter(None, [stack, *map(str, place)]))

    @cached_property
    def heads(self) -> dict[MapPlace, Row]:
        """The survey's rows for these heads, by place. Other kinds of reports have none."""
        if self.axes != PLACES:
            return {}
        return {head_place(row): row for row in _survey_rows(self.report)}

    @cached_property
    def letters(self) -> dict[MapPlace, str]:
        """The pattern letters, as in `attn heads`: lower case for first-token heads if most heads are."""
        rows = {place: row for place, row in self.heads.items() if "pattern" in row}
        is_carpet = is_mostly_first([*rows.values()])
        return {place: head_letter(row, is_carpet) for place, row in rows.items()}

    @property
    def is_causal(self) -> bool:
        """True if the last query sees all keys and no query on any map sees a later key."""
        rows, columns = next(iter(self.maps.values())).values.shape
        return rows == columns and all(matrix.is_causal for matrix in self.maps.values())

    @cached_property
    def statistics(self) -> dict[str, np.ndarray]:
        """The statistics of the heads, with one number per place, NaN if missing."""
        return head_statistics(self.report, self.axes, self.shape)


def grids(report: Report) -> list[MapGrid]:
    """Return the maps of a report, weights first. Empty if no tensor has both queries and keys."""
    whole = whole_heads(report)
    names = [
        name
        for name, tensor in report.tensors.items()
        if tensor.axes[-2:] in ATTENTION_AXES and tensor.values.size and name not in whole.values()
    ]
    order = {name: i for i, name in enumerate(FIRST_NAMES)}
    names.sort(key=lambda name: order.get(name, len(order)))
    return [_grid(report, name, whole if name == "pooled_mean" else {}) for name in names]


def _grid(report: Report, name: str, whole: Mapping[MapPlace, str]) -> MapGrid:
    tensor = report.tensors[name]
    maps = {matrix.index: matrix for matrix in tensor_matrices(report, name, tensor)}
    shared = next(iter(maps.values())).shared
    shape = (1,) * len(shared) if shared else tensor.values.shape[:-2]
    for place in maps.keys() & whole.keys():
        (matrix,) = tensor_matrices(report, "weights", report.tensors[whole[place]])
        maps[place] = replace(matrix, place=tuple(zip(PLACES, place, strict=True)))
    return MapGrid(report, name, tensor.axes[:-2], shape, maps)


def head_statistics(report: Report, axes: tuple[str, ...], shape: MapPlace) -> dict[str, np.ndarray]:
    """Return each statistic as one number per head, from the survey or averaged over the queries."""
    if axes == PLACES and report.table("heads"):
        return _survey_statistics(report, shape)
    part = tuple(map(slice, shape))
    return {
        name: np.asarray(np.ma.filled(np.ma.masked_invalid(tensor.values).mean(axis=-1), np.nan))[part]
        for name, tensor in report.tensors_of("rows").items()
        if tensor.axes == (*axes, "query")
    }


def _survey_rows(report: Report) -> Table:
    """Return the rows of the heads whose maps the report holds."""
    stacks = STACKS.get(str(report.spec.get("maps")), ("self", "decoder"))
    return Table(row for row in report.table("heads") if row.get("stack", "self") in stacks)


def _survey_statistics(report: Report, shape: MapPlace) -> dict[str, np.ndarray]:
    """Return the statistics of the heads, with NaN for a map that belongs to no head."""
    heads = _survey_rows(report)
    statistics = {}
    for name in heads[0] if heads else ():
        for grid in heads.grids(name).values():
            if name not in PLACES and not np.isnan(grid.values).all():
                values = grid.values[: shape[0], : shape[1]]
                missing = [(0, size - there) for size, there in zip(shape, values.shape, strict=True)]
                statistics[name] = np.pad(values, missing, constant_values=np.nan)
    return statistics


def token_statistics(
    report: Report, axes: tuple[str, ...], place: MapPlace, axis: str, token: int
) -> dict[str, float]:
    """Return the statistics of one query's row of weights, or of one key's column."""
    return {
        name: float(tensor.values[(*place, token)])
        for name, tensor in report.tensors_of(GROUPS.get(axis, "")).items()
        if tensor.axes == (*axes, axis) and token < tensor.values.shape[-1]
    }


MAX_SHADINGS = 16

Colouring = tuple[int, int, str, int]
"""The number of the grid, the number of the map in it, the scale, and the number of excluded first keys."""


@lru_cache(maxsize=8)
def _labels(axis: LabelledAxis) -> tuple[str, ...]:
    return tuple(axis.labels())


def _order(numbers: np.ndarray, *, descending: bool) -> list[int]:
    """Return the indices that sort the numbers; missing numbers come last."""
    keys = -numbers.astype(np.float64) if descending else numbers
    order: list[int] = np.argsort(np.where(np.isfinite(numbers), keys, np.inf), kind="stable").tolist()
    return order


def _survey_query(report: Report) -> int | None:
    """Return the position of a survey's first `--from` token, or None without such a token."""
    survey = report.result
    if not isinstance(survey, HeadSurvey):
        return None
    text = "context" if report.spec.get("maps") == "encoder" else "sentence"
    tokens = (token for token in survey.named_tokens if token.setting == "from" and token.text == text)
    return next((token.position for token in tokens), None)


@dataclass
class Ranking:
    """The order of the heads: by a statistic while ranking is on, otherwise by layer and head."""

    statistic: str | None
    smallest_first: bool
    is_on: bool

    def settle(self, grid: MapGrid) -> None:
        """Fall back to a statistic that these maps have."""
        if self.statistic not in grid.statistics:
            self.statistic = next(iter(grid.statistics), None)
            self.is_on = self.is_on and self.statistic is not None

    def heads(self, grid: MapGrid) -> list[int]:
        """Return the head numbers, ordered by the statistic. Heads without a value come last."""
        values = grid.statistics.get(self.statistic or "")
        if values is None:
            return list(range(grid.num_places))
        return _order(values.ravel(), descending=not self.smallest_first)

    def step(self, grid: MapGrid, step: int) -> None:
        """Turn the ranking on. If the ranking is on already, rank by the statistic `step` places later."""
        if self.statistic is None:
            return
        if self.is_on:
            names = list(grid.statistics)
            self.statistic = names[(names.index(self.statistic) + step) % len(names)]
        self.is_on = True

    def toggle(self) -> None:
        """Switch between the grid of layers and heads and the ranking."""
        self.is_on = not self.is_on and self.statistic is not None

    def reverse(self) -> None:
        """Switch between smallest first and largest first."""
        self.smallest_first = not self.smallest_first


class Colours:
    """The colour scale of the maps, and how many of the first keys it ignores.

    The shadings of recent maps are cached.
    """

    def __init__(self, scale: str, skip_first_keys: int) -> None:
        self.scale = scale
        self.num_sinks, self.skips = max(1, skip_first_keys), skip_first_keys > 0
        self._shadings: dict[Colouring, Shading] = {}

    def skip(self, matrix: Matrix) -> int:
        """Return how many of the first keys to ignore. At least one key remains."""
        return min(self.num_sinks, matrix.values.shape[1] - 1) if self.skips else 0

    def shading(self, matrix: Matrix, colouring: Colouring) -> Shading:
        """Return the position of each of a map's numbers on the colour map."""
        if colouring not in self._shadings:
            while len(self._shadings) >= MAX_SHADINGS:
                del self._shadings[next(iter(self._shadings))]
            *_, scale, skip = colouring
            self._shadings[colouring] = shading(
                matrix.drawn, scale, skip_keys=skip, from_zero=matrix.is_weights
            )
        return self._shadings[colouring]

    def clear(self) -> None:
        """Drop the cached shadings, because the maps now belong to another text."""
        self._shadings.clear()

    def toggle_sink(self) -> None:
        """Ignore the first keys in the colour scale, or include them again."""
        self.skips = not self.skips

    def step_scale(self) -> None:
        """Switch to the next scale: linear, log or row."""
        self.scale = SCALES[(SCALES.index(self.scale) + 1) % len(SCALES)]


class Choice:
    """The state of the browser, independent of textual.

    `removed` contains the heads without which the model was measured, and `effects` the result; `additions`
    contains the contributions of heads to a logit. If `is_received` is true, the view shows who looks at the
    chosen key; otherwise, it shows where the chosen query looks. With `by_weight`, the bars are sorted by
    their numbers.
    """

    def __init__(
        self,
        grids: Sequence[MapGrid],
        *,
        scale: str = "linear",
        skip_first_keys: int = 0,
        sort: str | None = None,
        smallest_first: bool = False,
    ) -> None:
        self.grids = grids
        self.grid_number, self.number = 0, grids[0].first_number
        self.ranking = Ranking(sort, smallest_first, is_on=sort is not None)
        self.colours = Colours(scale, skip_first_keys)
        self.is_received = self.by_weight = False
        self.query = self.key = 0
        self.removed: tuple[str, ...] = ()
        self.effects: Mapping[str, float] = {}
        self.additions: dict[str, Addition] = {}
        self._shape = (1, 1)
        self.settle()
        if self.ranking.is_on:
            self.number = self.ranking.heads(self.grid)[0]
        self._choose_first_token()

    def look_at(self, grids: Sequence[MapGrid]) -> None:
        """Switch to another text for the same model. Keep the head and the colours, and drop measurements."""
        self.grids, self.grid_number = grids, min(self.grid_number, len(grids) - 1)
        self.removed, self.effects, self.additions = (), {}, {}
        self.colours.clear()
        self.query = self.key = 0
        self.settle()
        self._choose_first_token()

    def _choose_first_token(self) -> None:
        """Choose the first token to show.

        This is the query that looks at a picture or that the survey names. Otherwise, on a causal map, it is
        the last query, which sees all keys; on other maps, it is the query with the largest weight on another
        key, ignoring the first and last tokens, which are special.
        """
        values = np.nan_to_num(np.abs(self.matrix.values.astype(np.float64)))
        report = self.grid.report
        if self.picture and (queries := chosen_queries(report, self.picture)):
            self.query = max(0, queries[0] - report.first_query)
        elif (position := _survey_query(report)) is not None:
            self.look_from(position)
        elif self.grid.is_causal:
            self.query = len(values) - 1
        elif min(values.shape) > 2:
            np.fill_diagonal(values, 0)
            self.query = 1 + int(np.argmax(values[1:-1, 1:-1].max(axis=1)))
        if self.has_one_text:
            self.key = self.query

    def look_from(self, position: int) -> None:
        """Choose the query at a position of the text, or the block of queries that contains it."""
        axis, _ = self.axes
        self.query = min(max((position - axis.first) // axis.step, 0), axis.count - 1)
        if self.has_one_text:
            self.key = self.query

    @property
    def grid(self) -> MapGrid:
        """The maps of the current tensor."""
        return self.grids[self.grid_number]

    @property
    def place(self) -> MapPlace:
        """The place of the chosen map in the grid."""
        return self.grid.place(self.number)

    @property
    def head(self) -> str:
        """The name of the chosen head, such as 24:4."""
        return self.grid.head_name(self.number)

    def looks_at(self, most: int) -> str:
        """Return the largest bars, as in `14 to looks at 2 Mary 0.81, 0 When 0.10`."""
        numbers = np.nan_to_num(self.numbers.astype(np.float64))
        order = [place for place in _order(numbers, descending=True)[:most] if numbers[place] != 0]
        texts = (f"{self.bar_labels[place].strip()} {numbers[place]:.2f}" for place in order)
        verb = "is looked at by" if self.is_received else "looks at"
        return f"{self.token_labels[self.token].strip()} {verb} {', '.join(texts) or 'nothing'}"

    @property
    def picture(self) -> Picture | None:
        """The first picture whose patches are keys of the chosen map, or None."""
        return next(iter(pictured(self.grid.report).get(self.grid.name, ())), None)

    @property
    def look(self) -> Look:
        """The chosen token's numbers on the picture: where it looks, or who looks at it."""
        assert self.picture is not None
        on_picture = len(self.numbers) == len(self.picture.boxes)
        numbers = self.numbers if on_picture else self.matrix.values[self.query]
        return Look(self.picture, self.grid.name, (), "", axis_tokens(self.grid.report, "key"), numbers)

    @property
    def matrix(self) -> Matrix:
        """The chosen map."""
        return self.grid.maps[self.place]

    def settle(self) -> None:
        """Keep every choice within the report. A token becomes the block that contains it, or vice versa."""
        grid = self.grid
        self.number = min(self.number, grid.num_places - 1)
        self.ranking.settle(grid)
        (old_rows, old_columns), (rows, columns) = self._shape, self.matrix.values.shape
        self._shape = rows, columns
        self.query = min(self.query * rows // old_rows, rows - 1)
        self.key = min(self.key * columns // old_columns, columns - 1)

    def step_grid(self, step: int) -> None:
        """Switch to the next tensor, which may be in the next report."""
        self.grid_number = (self.grid_number + step) % len(self.grids)
        self.settle()

    def choose_head(self, number: int) -> None:
        """Choose a head by its number. Heads are numbered layer by layer."""
        self.number = number
        self.settle()

    def step_head(self, down: int, right: int) -> None:
        """Move by layers and heads or, in a ranking, by ranks."""
        if self.ranking.is_on:
            ranking = self.ranking.heads(self.grid)
            rank = ranking.index(self.number) + down + right
            self.choose_head(ranking[min(max(rank, 0), len(ranking) - 1)])
            return
        row, column = divmod(self.number, self.grid.num_columns)
        row = min(max(row + down, 0), self.grid.num_rows - 1)
        column = min(max(column + right, 0), self.grid.num_columns - 1)
        self.choose_head(row * self.grid.num_columns + column)

    @property
    def axes(self) -> tuple[LabelledAxis, LabelledAxis]:
        """The queries and the keys of the chosen map."""
        return labelled_axes(self.grid.report, self.matrix)

    @property
    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The labels of the queries and keys."""
        rows, columns = self.axes
        return _labels(rows), _labels(columns)

    @property
    def positions(self) -> tuple[str, ...]:
        """The labels of the queries, reduced to their positions."""
        return _labels(replace(self.axes[0], tokens=()))

    @property
    def has_one_text(self) -> bool:
        """True if queries and keys are the same tokens, so that a chosen token is both query and key."""
        rows, columns = self.matrix.values.shape
        return rows == columns and not self.grid.report.context_tokens

    @property
    def skip(self) -> int:
        """The number of leading keys that the colours ignore. At least one key remains."""
        return self.colours.skip(self.matrix)

    @property
    def colouring(self) -> Colouring:
        """The settings that determine the colours of the chosen map."""
        return self.grid_number, self.number, self.colours.scale, self.skip

    @property
    def shading(self) -> Shading:
        """The positions of the chosen map's numbers on the colour map."""
        return self.colours.shading(self.matrix, self.colouring)

    @property
    def token(self) -> int:
        """The chosen key if the view shows who looks at it, otherwise the chosen query."""
        return self.key if self.is_received else self.query

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The labels of the axis that the chosen token is on."""
        return self.labels[1 if self.is_received else 0]

    @property
    def bar_labels(self) -> tuple[str, ...]:
        """The labels of the other axis, which the bars show."""
        return self.labels[0 if self.is_received else 1]

    def _bars(self, matrix: np.ndarray) -> np.ndarray:
        return matrix[:, self.key] if self.is_received else matrix[self.query]

    @property
    def numbers(self) -> np.ndarray:
        """The weights of the chosen query on every key, or the weights of every query on the chosen key."""
        return self._bars(self.matrix.values)

    @property
    def places(self) -> np.ndarray:
        """The positions of these numbers on the colour map, with NaN for missing numbers and ignored keys."""
        return self._bars(self.shading.places)

    @property
    def order(self) -> list[int]:
        """The order of the bars: by position, or largest number first with missing numbers last."""
        numbers = self.numbers
        return _order(numbers, descending=True) if self.by_weight else list(range(len(numbers)))

    @property
    def token_statistics(self) -> dict[str, float]:
        """The statistics of the chosen row or column. A block has none."""
        axis = self.matrix.axes[1 if self.is_received else 0]
        return token_statistics(self.grid.report, self.grid.axes, self.place, axis, self.token)

    def choose_token(self, token: int) -> None:
        """Choose a token. With one text, the token becomes both query and key."""
        if self.is_received or self.has_one_text:
            self.key = token
        if not self.is_received or self.has_one_text:
            self.query = token
        self.settle()

    def step_token(self, step: int, *, around: bool = False) -> None:
        """Move by `step` tokens. With `around`, wrap around at the ends."""
        count, token = len(self.token_labels), self.token + step
        self.choose_token(token % count if around else min(max(token, 0), count - 1))

    def follow(self, token: int) -> None:
        """Choose the token that a bar stands for. With two texts, the view switches to that token's text."""
        if not self.has_one_text:
            self.turn()
        self.choose_token(token)

    def turn(self) -> None:
        """Switch between showing who looks at the token and where it looks."""
        self.is_received = not self.is_received

    def toggle_order(self) -> None:
        """Switch between sorting the bars by position and by size."""
        self.by_weight = not self.by_weight
