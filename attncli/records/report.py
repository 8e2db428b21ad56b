"""The contract between computing and showing: plain named data, with neither torch nor rich in it."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from attncli.records.columns import Cells, Records, Result, UntypedResult
from attncli.records.kinds import kind_of
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

__all__ = [  # what a report is made of has its names here, too
    "AXES", "PLACES", "Cell", "Mask", "NamedTensor", "Number", "Numbers", "Row", "Statistic", "Table",
    "Tensors",
]  # fmt: skip

ResultKind = TypeVar("ResultKind", bound=Result)

SCHEMA_VERSION = 1

RANKED = ("top_keys", "top_weights")
"""The statistics of rows that have an axis more: the largest weights and where they are."""
WRITTEN = "Written: "

# Tensors that a report holds for its steps alone; of several sizes each has its number after the name.
EXPLAINED = frozenset({
    "token_ids", "context_token_ids", "query_projection", "key_projection", "value_projection",
    "projected_query", "projected_key", "query", "key", "value", "raw_scores", "scaled_scores",
    "second_scaled_scores", "bias", "bias_table", "first_weights", "second_weights", "lambda_vectors",
    "merged", "output_projection", "output_bias",
})  # fmt: skip


def whole_head_name(layer: int, head: int) -> str:
    """What a report with maps of blocks calls the whole weights of one head."""
    return f"weights_{layer}_{head}"


def pair_names(name: str) -> tuple[str, str]:
    """What a report calls a tensor that was computed wrongly and rightly."""
    return f"wrong_{name}", f"right_{name}"


# Annotations are checked where a saved report is read, and nowhere else.
WholeNumber = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True)
class Shape:
    """A tensor that a step is about: its name, axes and sizes; strides (in numbers) where they matter."""

    name: str
    axes: tuple[str, ...]
    sizes: tuple[WholeNumber, ...]
    strides: tuple[WholeNumber, ...] | None = None

    def __post_init__(self) -> None:
        if {len(self.sizes), len(self.strides or self.sizes)} != {len(self.axes)}:
            raise ValueError(
                f"must have a size (and a stride, where there are any) for {len(self.axes)} axes"
            )


@dataclass(frozen=True)
class Terms:
    """Terms of a computation, a row each, under named columns; the first column says which term it is.

    `count` rows there are, of which some may be left out; `totals` are over all of them, their first cell
    the total's name.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    count: WholeNumber
    totals: tuple[tuple[Cell, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in (*self.rows, *self.totals)):
            raise ValueError(f"must have a cell for each of {len(self.columns)} columns in every row")


@dataclass(frozen=True)
class Step:
    """One step of a computation, shown in full: formula, shapes, the actual numbers, and what they mean.

    `values` are single numbers by name. Every number comes from the tensors of the report. The prose answers
    the question.
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
    """A picture as the model saw it, and where its tokens lie on it.

    `png` is the picture after crop and resize (at most 640 pixels a side). `boxes` has one entry for each
    token: left, top, right and bottom as shares of its width and height, or None for a token that lies
    elsewhere ([CLS], a register, a word, another picture). `size` is that of the file in pixels, as people
    see it (after EXIF rotation), `crop` the part of it that the model saw, in the file's pixels. `axis` tells
    which tokens the boxes are of: with cross-attention the context's. The spectrogram of a sound has its
    `seconds`, over all of its width; `sound` is the file, for pages to play, and not in the JSON form.
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
        """The picture as JSON can hold it."""
        fields = {**asdict(self), "png": b64encode(self.png).decode()}
        return {name: fields[name] for name in fields if name != "sound" and fields[name] is not None}


@dataclass(frozen=True)
class PictureRow:
    """One of several pictures that a model read, and the maps over it.

    `tokens` are those that the boxes of the picture and the keys of `weights` (map, key) are of; `queries`
    are the tokens that look, none for the mean over all.
    """

    picture: Picture
    tokens: tuple[str, ...]
    queries: tuple[str, ...]
    weights: NamedTensor

    def fields(self) -> dict[str, Any]:
        """The row as its JSON form names it, with arrays still in it."""
        return {
            "picture": self.picture.fields(),
            "tokens": self.tokens,
            "queries": self.queries,
            "weights": self.weights.fields(),
        }


@dataclass(frozen=True)
class PictureMaps:
    """Several pictures, a row for each, with the same maps over every one of them.

    `names` are the columns: heads as 11:4, `mean` of a layer, `rollout`. `about` says in words which these
    are. Of `num_pictures` that were read the first ones have a row. `title` is that of maps of anything but
    where a query looks.
    """

    names: tuple[str, ...]
    about: str
    num_pictures: WholeNumber
    rows: tuple[PictureRow, ...]
    title: str = ""

    def fields(self) -> dict[str, Any]:
        """The maps as their JSON form names them, with arrays still in it."""
        rows = [row.fields() for row in self.rows]
        title = {"title": self.title} if self.title else {}
        return {
            "names": self.names,
            "about": self.about,
            "num_pictures": self.num_pictures,
            "rows": rows,
        } | title


WORDS = ("missing", "about", "how_to_read")
"""The sentences of a report that have a place of their own, the first that are read first."""


@dataclass(frozen=True)
class Report:
    """What one experiment found. `steps` are there where asked to explain.

    `result` is what was measured; those of its fields that are tensors are filled in from `tensors`.
    `token_spelling` is how a model's vocabulary writes its tokens, where that is not as text: `byte-level` or
    `metaspace`.
    `first_query` is the position of the first query among the tokens: where a model writes, the last of the
    prompt. `is_unfinished` tells that Ctrl-C ended it: it holds what there was until then.
    `pictures` are those that a model read, and where its tokens lie on them; `picture_maps` are maps over
    several that were read one by one.
    `missing` says which layers of a model are not in it, None where that is not known. `about` says in a
    sentence what was measured of what, `how_to_read` what the numbers mean; `written` is the text that a
    model wrote. `notes` are whatever else one has to know.
    `id` is that of its sentence in a batch, which is no part of what was found: the JSON form is without it.
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
        """The numbers and tables of the result, by the names that JSON has for them."""
        return self.result.statistics()

    @property
    def kind(self) -> str:
        """The name of the kind of its result (records/kinds.py); empty where that has none."""
        return kind_of(self.result, self.experiment)

    def result_of(self, kind: type[ResultKind]) -> ResultKind:
        """The result, which is of that kind."""
        assert isinstance(self.result, kind), f"{self.kind} is no {kind.__name__}"
        return self.result

    @property
    def is_of_program(self) -> bool:
        """True if its settings name a program instead of a model: nothing more can be asked of it."""
        return "program" in self.spec

    @property
    def explained(self) -> frozenset[str]:
        """The tensors that are there for the steps alone: what is shown beside the steps leaves them out."""
        if not self.steps:
            return frozenset()
        return frozenset(n for n in self.tensors if n in EXPLAINED or n.rpartition("_")[0] in EXPLAINED)

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """The names of the tensors that were computed wrongly and rightly, by the name that they share."""
        shared = {name.partition("_")[2] for name in self.tensors}
        pairs = {name: pair_names(name) for name in sorted(shared)}
        return {name: pair for name, pair in pairs.items() if self._is_pair(*pair)}

    def _is_pair(self, wrong: str, right: str) -> bool:
        sizes = [self.tensors[name].values.shape for name in (wrong, right) if name in self.tensors]
        return len(sizes) == 2 and len({*sizes}) == 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that the report says in words, in order; what was written on one line."""
        written = [] if self.written is None else [f"{WRITTEN}{' '.join(self.written.split())}"]
        return (*filter(None, (self.missing, self.about, self.how_to_read)), *written, *self.notes)

    def fields(self) -> dict[str, Any]:
        """The report as its JSON form names it, with arrays still in it."""
        steps = {"steps": [asdict(step) for step in self.steps]} if self.steps else {}
        spelling = {"token_spelling": self.token_spelling} if self.token_spelling else {}
        more = {name: getattr(self, name) for name in ("first_query", "is_unfinished") if getattr(self, name)}
        pictures = {"pictures": [picture.fields() for picture in self.pictures]} if self.pictures else {}
        maps = {} if self.picture_maps is None else {"picture_maps": self.picture_maps.fields()}
        said = {name: getattr(self, name) for name in WORDS if getattr(self, name)}
        said |= {} if self.written is None else {"written": self.written}
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
            **said,
            "notes": self.sentences,
        }

    def _statistic_axes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The axes of the tensors among the statistics, which stand there as bare numbers."""
        return {
            group: {name: tensor.axes for name, tensor in members.items()}
            for group, members in self.statistics.items()
            if isinstance(members, Tensors)
        }

    def tensors_of(self, group: str) -> Tensors:
        """The tensors of a group of statistics, `rows` or `keys`; none where there is no such group."""
        statistic = self.statistics.get(group)
        return statistic if isinstance(statistic, Tensors) else Tensors()

    def numbers(self, name: str) -> Numbers:
        """The statistic of that name as numbers; none where there is no such statistic."""
        statistic = self.statistics.get(name)
        return statistic if isinstance(statistic, Numbers) else Numbers()

    def table(self, name: str) -> Table:
        """The statistic of that name as a table; an empty one where there is none."""
        statistic = self.statistics.get(name)
        return statistic if isinstance(statistic, Table) else Table()

    def to_data(self) -> dict[str, Any]:
        """The report as what JSON can hold: lists, texts and numbers; None for no number."""
        data: dict[str, Any] = plain(self.fields())
        return data


def plain(value: Any) -> Any:
    """Arrays as lists and mappings as dicts, with None for no number."""
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
    """The cells of a table's column: of all rows at once, which takes a fraction of the time."""
    if not isinstance(cells, np.ndarray) or np.issubdtype(cells.dtype, np.floating):
        return [*plain(cells if isinstance(cells, np.ndarray) else [*cells])]
    return [plain(cell) for cell in cells.tolist()]
