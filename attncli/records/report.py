"""Reports: plain data that goes from computing to showing, without torch or rich."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from attncli.records.columns import Cells, Records, Result, UntypedResult
from attncli.records.kinds import kind_name
from attncli.records.values import (
    AXES,
    PLACES,
    Cell,
    Mask,
    NamedTensor,
    Number,
    Numbers,
    Row,
    Statistic,
    Table,
    Tensors,
)

__all__ = [  # re-exported, because reports consist of these types
    "AXES", "PLACES", "Cell", "Mask", "NamedTensor", "Number", "Numbers", "Row", "Statistic", "Table",
    "Tensors",
]  # fmt: skip

ResultKind = TypeVar("ResultKind", bound=Result)

SCHEMA_VERSION = 1

RANKED = ("top_keys", "top_weights")
"""Row statistics with an additional axis: the largest weights and their positions."""
WRITTEN = "Written: "

# Tensors that a report holds only for its steps; if they have several sizes, their names end in a number.
EXPLAINED = frozenset({
    "token_ids", "context_token_ids", "query_projection", "key_projection", "value_projection",
    "projected_query", "projected_key", "query", "key", "value", "raw_scores", "scaled_scores",
    "second_scaled_scores", "bias", "bias_table", "first_weights", "second_weights", "lambda_vectors",
    "merged", "output_projection", "output_bias",
})  # fmt: skip


def whole_head_name(layer: int, head: int) -> str:
    """Return the name of a head's whole weights in a report that has maps of blocks."""
    return f"weights_{layer}_{head}"


def pair_names(name: str) -> tuple[str, str]:
    """Return the names of a tensor that was computed both the wrong and the right way."""
    return f"wrong_{name}", f"right_{name}"


# Annotations are checked only when a saved report is read.
WholeNumber = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True)
class Shape:
    """A tensor in a step: its name, axes and sizes, and its strides (in numbers) if they matter."""

    name: str
    axes: tuple[str, ...]
    sizes: tuple[WholeNumber, ...]
    strides: tuple[WholeNumber, ...] | None = None

    def __post_init__(self) -> None:
        if {len(self.sizes), len(self.strides or self.sizes)} != {len(self.axes)}:
            raise ValueError(f"must have {len(self.axes)} sizes (and strides, if any), one per axis")


@dataclass(frozen=True)
class Terms:
    """The terms of a computation, one row each, under named columns; the first column names the term.

    `count` is the number of rows before any were left out; `totals` cover all the rows and begin with a name.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    count: WholeNumber
    totals: tuple[tuple[Cell, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in (*self.rows, *self.totals)):
            raise ValueError(f"every row must have {len(self.columns)} cells, one per column")


@dataclass(frozen=True)
class Step:
    """One step of a computation: its formula, shapes, actual numbers, and their meaning.

    `values` are single numbers by name. Every number comes from the report's tensors. The prose answers the
    `question`.
    """

    title: str
    formula: str
    prose: str
    shapes: tuple[Shape, ...] = ()
    values: Mapping[str, Cell] = field(default_factory=dict)
    tables: tuple[Terms, ...] = ()
    question: str = ""


Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Axis = Literal["tokens", "context_tokens"]
"""The side of a report whose tokens lie on a picture."""


@dataclass(frozen=True)
class Picture:
    """A picture as the model saw it, and the positions of its tokens.

    `png` is the picture after crop and resize (at most 640 pixels a side). `boxes` has one entry per token:
    left, top, right and bottom as shares of width and height, or None for a token outside the picture ([CLS],
    a register, a word, another picture). `size` is the file's size in pixels after EXIF rotation; `crop` is
    the part that the model saw, in the file's pixels. `axis` is the side of the boxes' tokens; in
    cross-attention, this is the context. The spectrogram of a sound spans `seconds`; `sound` is the file,
    which pages can play and the JSON form omits.
    """

    name: str
    size: tuple[WholeNumber, WholeNumber]
    crop: Box
    png: bytes
    boxes: tuple[Box | None, ...]
    axis: Axis = "tokens"
    seconds: float | None = None
    sound: bytes = b""

    def fields(self) -> dict[str, Any]:
        """Return the picture in the form used in JSON."""
        fields = {**asdict(self), "png": b64encode(self.png).decode()}
        return {name: fields[name] for name in fields if name != "sound" and fields[name] is not None}


@dataclass(frozen=True)
class PictureRow:
    """One of several pictures that a model read, and the maps over it.

    `tokens` belong to the picture's boxes and to the keys of `weights` (map, key); `queries` are the query
    tokens; there are none for the mean over all queries.
    """

    picture: Picture
    tokens: tuple[str, ...]
    queries: tuple[str, ...]
    weights: NamedTensor

    def fields(self) -> dict[str, Any]:
        """Return the row in the form used in JSON, but with its arrays."""
        return {
            "picture": self.picture.fields(),
            "tokens": self.tokens,
            "queries": self.queries,
            "weights": self.weights.fields(),
        }


@dataclass(frozen=True)
class PictureMaps:
    """The same maps over each of several pictures, with one row per picture.

    `names` are the columns: heads such as 11:4, `mean` of a layer, `rollout`. `about` describes the maps.
    Only the first of the `num_pictures` pictures have rows. `title` is set if the maps show something other
    than a query's weights.
    """

    names: tuple[str, ...]
    about: str
    num_pictures: WholeNumber
    rows: tuple[PictureRow, ...]
    title: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the maps in the form used in JSON, but with their arrays."""
        rows = [row.fields() for row in self.rows]
        title = {"title": self.title} if self.title else {}
        return {
            "names": self.names,
            "about": self.about,
            "num_pictures": self.num_pictures,
            "rows": rows,
        } | title


WORDS = ("missing", "about", "how_to_read")
"""The sentences of a report that have their own fields, in reading order."""


@dataclass(frozen=True)
class Report:
    """The report of one experiment. `steps` are present if an explanation was requested.

    `result` holds the measurements; its tensor fields are filled in from `tensors`. `token_spelling` is the
    vocabulary's encoding of tokens if it is not plain text: `byte-level` or `metaspace`. `first_query` is the
    position of the first query; when a model writes, this is the last token of the prompt. `is_unfinished` is
    true if Ctrl-C interrupted the run; the report then has the results up to that point. `pictures` are the
    pictures that a model read, with the positions of its tokens; `picture_maps` are maps over several
    pictures that were read one by one. `missing` lists the model's layers that are not included; it is None
    if they are unknown. `about` describes the measurement, `how_to_read` the meaning of the numbers;
    `written` is the text that a model wrote. `notes` are any other remarks. `id` is the text's id in a batch,
    which the JSON form omits.
    """

    experiment: str
    spec: Mapping[str, Any]
    environment: Mapping[str, str]
    tokens: tuple[str, ...] = ()
    context_tokens: tuple[str, ...] = ()
    tensors: Mapping[str, NamedTensor] = field(default_factory=dict)
    result: Result = field(default_factory=UntypedResult)
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    token_spelling: str | None = None
    first_query: WholeNumber = 0
    is_unfinished: bool = False
    pictures: tuple[Picture, ...] = ()
    picture_maps: PictureMaps | None = None
    missing: str | None = None
    about: str = ""
    how_to_read: str = ""
    written: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", self.result.in_report(self.tensors))

    @cached_property
    def statistics(self) -> Mapping[str, Statistic]:
        """The numbers and tables of the result, by their JSON names."""
        return self.result.statistics()

    @property
    def kind(self) -> str:
        """The name of the result's kind (records/kinds.py); empty if it has none."""
        return kind_name(self.result, self.experiment)

    def result_of(self, kind: type[ResultKind]) -> ResultKind:
        """Return the result, which must be of the given kind."""
        assert isinstance(self.result, kind), f"{self.kind} is not a {kind.__name__}"
        return self.result

    @property
    def describes_program(self) -> bool:
        """True if the settings name a program instead of a model: a program cannot be asked again."""
        return "program" in self.spec

    @property
    def explained(self) -> frozenset[str]:
        """The tensors that are only used by the steps and not shown beside them."""
        if not self.steps:
            return frozenset()
        return frozenset(n for n in self.tensors if n in EXPLAINED or n.rpartition("_")[0] in EXPLAINED)

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """The names of tensors that were computed both the wrong and the right way, by their shared name."""
        shared = {name.partition("_")[2] for name in self.tensors}
        pairs = {name: pair_names(name) for name in sorted(shared)}
        return {name: pair for name, pair in pairs.items() if self._is_pair(*pair)}

    def _is_pair(self, wrong: str, right: str) -> bool:
        sizes = [self.tensors[name].values.shape for name in (wrong, right) if name in self.tensors]
        return len(sizes) == 2 and len({*sizes}) == 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences of the report in order, with written text on one line."""
        written = [] if self.written is None else [f"{WRITTEN}{' '.join(self.written.split())}"]
        return (*filter(None, (self.missing, self.about, self.how_to_read)), *written, *self.notes)

    def fields(self) -> dict[str, Any]:
        """Return the report in the form used in JSON, but with its arrays."""
        steps = {"steps": [asdict(step) for step in self.steps]} if self.steps else {}
        spelling = {"token_spelling": self.token_spelling} if self.token_spelling else {}
        more = {name: getattr(self, name) for name in ("first_query", "is_unfinished") if getattr(self, name)}
        pictures = {"pictures": [picture.fields() for picture in self.pictures]} if self.pictures else {}
        maps = {} if self.picture_maps is None else {"picture_maps": self.picture_maps.fields()}
        sentences = {name: getattr(self, name) for name in WORDS if getattr(self, name)}
        sentences |= {} if self.written is None else {"written": self.written}
        kind = self.kind
        return {
            "schema_version": SCHEMA_VERSION,
            "experiment": self.experiment,
            **({"kind": kind} if kind not in ("", self.experiment) else {}),
            "spec": self.spec,
            "environment": self.environment,
            "tokens": self.tokens,
            "context_tokens": self.context_tokens,
            **spelling,
            **more,
            **pictures,
            **maps,
            "tensors": {name: tensor.fields() for name, tensor in self.tensors.items()},
            "statistics": self.statistics,
            "statistic_axes": self._statistic_axes(),
            **steps,
            **sentences,
            "notes": self.sentences,
        }

    def _statistic_axes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return the axes of the tensors among the statistics, whose JSON holds only numbers."""
        return {
            group: {name: tensor.axes for name, tensor in members.items()}
            for group, members in self.statistics.items()
            if isinstance(members, Tensors)
        }

    def tensors_of(self, group: str) -> Tensors:
        """Return the tensors of the group `rows` or `keys`; none if the report lacks the group."""
        statistic = self.statistics.get(group)
        return statistic if isinstance(statistic, Tensors) else Tensors()

    def numbers(self, name: str) -> Numbers:
        """Return the named statistic as numbers; no numbers if the report lacks the statistic."""
        statistic = self.statistics.get(name)
        return statistic if isinstance(statistic, Numbers) else Numbers()

    def table(self, name: str) -> Table:
        """Return the named statistic as a table; an empty table if the report lacks the statistic."""
        statistic = self.statistics.get(name)
        return statistic if isinstance(statistic, Table) else Table()

    def to_data(self) -> dict[str, Any]:
        """Return the report as JSON-compatible lists, strings and numbers, with None for missing numbers."""
        data: dict[str, Any] = plain(self.fields())
        return data


def plain(value: Any) -> Any:
    """Convert arrays to lists and mappings to dicts, with None for missing numbers."""
    if isinstance(value, NamedTensor):
        return plain(value.values)
    if isinstance(value, np.ndarray):
        is_number = np.isfinite(value) if np.issubdtype(value.dtype, np.floating) else value >= 0
        if is_number.all():
            return value.tolist()
        cells = value.astype(object)
        cells[~is_number] = None
        return cells.tolist()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Records):
        columns = [_plain_column(cells) for cells in value.cells.values()]
        return [dict(zip(value.cells, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(value, list | tuple | Table):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value


def _plain_column(cells: Cells) -> list[Any]:
    """Convert all cells of a column at once, which is several times faster."""
    if not isinstance(cells, np.ndarray) or np.issubdtype(cells.dtype, np.floating):
        return [*plain(cells if isinstance(cells, np.ndarray) else [*cells])]
    return [plain(cell) for cell in cells.tolist()]
