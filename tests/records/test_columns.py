"""Typed columns: tables, reports and results follow what a class of rows declares."""

import copy
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from attncli.errors import NoSuchName, UserError
from attncli.features.average.results import AverageStatistics
from attncli.records.attention import LoopDifferences
from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.report import plain
from attncli.records.values import NamedTensor, Numbers, Table, Tensors


class Lamp(Record):
    """A row of every kind of cell."""

    layer: int
    head: int
    name: str | None = column(is_needed=False)
    glow: float | None = column(unit="lumen")
    place: int = column(is_kept=False, is_needed=False)
    shine: float | None = column(has_interval=True, is_needed=False)
    double: float | None = column(of=lambda lamp: None if lamp.glow is None else 2 * lamp.glow)


class AtKey(Record):
    weight: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Lamps(Result):
    """A table, single numbers, columns along an axis, and a table that may be missing."""

    heads: Records[Lamp] = group()
    count: int = number("sizes")
    most: float = number("sizes", unit="lumen")
    keys: Records[AtKey] = group(axes=("key",))
    others: Records[Lamp] | None = group("more", is_needed=False)
    notes: tuple[str, ...] = ()


class Place(Record):
    layer: int
    head: int | None
    glow: float


class Path(Record):
    """Cells that are lists, and arrays."""

    steps: list[int]
    around: np.ndarray


@dataclass(frozen=True, kw_only=True, repr=False)
class Walk(Result):
    paths: Records[Path] = group()
    map: np.ndarray | None = None


class Shade(Record, others=float):
    """A row whose other columns have names of the data."""

    layer: int = column(is_kept=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Shades(Result):
    """A table that may have no rows."""

    count: int = number("sizes")
    shades: Records[Shade] = group(may_be_empty=True)


def lamps() -> Records[Lamp]:
    return Lamp.table(
        layer=[0, 0, 2], head=[0, 1, 1], name=["a", None, "c"], glow=np.array([0.5, np.nan, -3.0])
    )


def result() -> Lamps:
    keys = AtKey.table(weight=np.array([0.25, 0.75]))
    return Lamps(heads=lamps(), count=3, most=0.5, keys=keys, notes=("said once",))


def test_rows_are_looked_at_by_name_and_as_attributes() -> None:
    table = lamps()
    first, second, last = table
    assert (first.layer, first["name"], first.glow, first.double) == (0, "a", 0.5, 1.0)
    assert second.glow is None and second.name is None and second.double is None
    assert last == {"layer": 2, "head": 1, "name": "c", "glow": -3.0, "double": -6.0}
    assert last.place is None and "place" not in last
    assert all(type(cell) in (int, float, str, type(None)) for row in table for cell in row.values())
    assert plain(table) == [dict(row) for row in table]


class Wire(Record):
    start: str = column("from")
    to: str


def test_a_cell_may_have_a_name_that_no_attribute_can_have() -> None:
    (wire,) = Wire.table(**{"from": ["lamp"], "to": ["switch"]})
    assert wire.start == wire["from"] == "lamp" and list(Wire.columns) == ["from", "to"]
    with pytest.raises(TypeError, match="Wire needs a column from"):
        Wire.table(to=["switch"])


def test_slices_sorting_and_conditions_give_tables() -> None:
    table = lamps()
    assert [row.head for row in table[1:]] == [1, 1] and table[-1] == table[2]
    assert [row.name for row in table.sorted(lambda row: row.glow or 0.0)] == ["c", None, "a"]
    assert [row.name for row in table.sorted("glow")] == ["c", "a", None]
    assert [row.name for row in table.where(lambda row: row.glow is not None)] == ["a", "c"]
    assert isinstance(table[:0], Table) and len(table[:0]) == 0


def test_columns_and_grids_are_arrays() -> None:
    table = lamps()
    np.testing.assert_array_equal(table.column("glow"), [0.5, np.nan, -3.0])
    assert list(table.column("name")) == ["a", None, "c"]
    grid = table.grid("glow")
    assert grid.shape == (3, 2) and grid[2, 1] == -3.0 and np.isnan(grid[1]).all()
    assert table[:2].grid("glow", "head").tolist()[0] == 0.5
    with pytest.raises(NoSuchName, match="no column lumens; known: layer, head, name, glow, double"):
        table.column("lumens")
    with pytest.raises(NoSuchName, match="no column lumens"):
        table[0]["lumens"]


def test_texts_are_sorted_with_none_last_and_lists_have_no_order() -> None:
    assert [row.name for row in lamps().sorted("name")] == ["a", "c", None]
    other = Lamp.table(layer=[0] * 4, head=[0, 1, 2, 3], glow=[0.5] * 4, more=["b", None, 2, 1.5])
    assert [row["more"] for row in other.sorted("more")] == [1.5, 2, "b", None]
    listed = Path.table(steps=[[1, 2], [3, 4]], around=np.array([[1.0, np.nan], [2.0, 3.0]]))
    for name in ("steps", "around"):
        with pytest.raises(UserError, match=f"^sorted: {name} holds lists: use a function of a row, such as"):
            listed.sorted(name)
    assert listed.column("steps").tolist() == [[1, 2], [3, 4]] and listed.column("steps").shape == (2,)


def test_a_grid_has_a_place_for_each_row_or_is_refused() -> None:
    empty, table = lamps()[:0], lamps()
    assert empty.grid("glow").shape == (0, 0) and empty.grid("glow", "head").shape == (0,)
    mlp = Place.table(layer=[0, 0, 1], head=[1, None, 0], glow=[2.0, 9.0, 3.0])
    np.testing.assert_array_equal(mlp.grid("glow"), [[np.nan, 2.0], [3.0, np.nan]])
    for names, message in {
        ("name",): "grid: name does not hold one number per row",
        ("glow", "name"): "grid: name does not hold one number per row",
        ("layer", "glow"): "grid: glow must hold whole numbers, 0 or larger",
        (
            "glow",
            "head",
        ): r"grid: several rows have the same head: name further axes, or choose rows with where\(\)",
    }.items():
        with pytest.raises(UserError, match=f"^{message}$"):
            table.grid(*names)


def test_tables_and_results_with_arrays_are_equal_by_their_numbers() -> None:
    def path(last: float) -> Records[Path]:
        return Path.table(steps=[[1], [2]], around=np.array([[1.0, np.nan], [2.0, last]]))

    assert path(3.0) == path(3.0) and path(3.0) != path(4.0) and path(3.0)[0] == path(4.0)[0]
    tensor_a, tensor_b = (NamedTensor(("row",), np.array([np.nan, number])) for number in (1.0, 2.0))
    assert tensor_a == replace(tensor_a) and tensor_a != tensor_b
    assert tensor_a != NamedTensor(("key",), tensor_a.values)
    walk = Walk(paths=path(3.0), map=np.array([1.0, np.nan]))
    assert pickle.loads(pickle.dumps(walk)) == walk == copy.deepcopy(walk)
    assert walk != replace(walk, map=None) and walk != replace(walk, paths=path(4.0))
    assert replace(walk, map=np.array([1, 2])) == replace(walk, map=np.array([1, 2]))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"layer": [0], "head": [0]}, "Lamp needs a column glow"),
        ({"layer": [0, 1], "head": [0], "glow": [1.0]}, "Lamp: head has 1 cells, others 2"),
        ({"layer": ["zero"], "head": [0], "glow": [1.0]}, "Lamp: layer holds 'zero'"),
        ({"layer": [None], "head": [0], "glow": [1.0]}, "Lamp: layer holds None"),
    ],
)
def test_cells_that_a_class_does_not_declare_are_refused(
    cells: dict[str, list[object]], message: str
) -> None:
    with pytest.raises(TypeError) as error:
        Lamp.table(**cells)
    assert str(error.value) == message


def test_a_result_is_restored_from_a_report() -> None:
    statistics = result().statistics()
    assert list(statistics) == ["heads", "sizes", "keys"]
    assert statistics["sizes"] == {"count": 3, "most": 0.5} and isinstance(statistics["sizes"], Numbers)
    assert isinstance(statistics["keys"], Tensors) and statistics["keys"]["weight"].axes == ("key",)
    untyped = statistics | {"heads": Table(map(dict, lamps()))}
    for read in (Lamps.read(statistics), Lamps.read(untyped)):
        assert read.heads == lamps() and isinstance(read.heads[0], Lamp)
        assert (read.count, read.most, read.others, read.notes) == (3, 0.5, None, ())
        assert read.keys.column("weight").tolist() == [0.25, 0.75]
    with pytest.raises(TypeError, match="Lamps needs sizes"):
        Lamps.read({name: value for name, value in statistics.items() if name != "sizes"})
    with pytest.raises(TypeError, match="keys has an unexpected form"):
        Lamps.read(statistics | {"keys": Numbers(weight=1.0)})


def test_a_report_has_no_table_without_rows() -> None:
    none = Lamp.table(layer=[], head=[], glow=[])
    assert "more" not in replace(result(), others=none).statistics()


def test_a_column_of_another_version_is_kept() -> None:
    table = Lamp.rows([{"layer": 0, "head": 0, "glow": 1, "later": 7}])
    assert table[0]["later"] == 7 and table[0].glow == 1
    assert table.stored_columns() == ["layer", "head", "glow", "double"]


def test_columns_that_the_data_name_are_of_the_declared_kind() -> None:
    table = Shade.table(layer=[0, 1], **{"light blue": [0.5, 0.25]})
    assert table[1]["light blue"] == 0.25 and table.column("light blue").tolist() == [0.5, 0.25]
    assert table.stored_columns() == ["light blue"]
    with pytest.raises(TypeError, match="Shade: light blue holds 'dark'"):
        Shade.table(layer=[0], **{"light blue": ["dark"]})


def test_a_table_that_may_be_empty_has_no_rows_where_a_report_lacks_it() -> None:
    empty = Shades(count=0, shades=Shade.rows([]))
    assert empty.statistics() == {"sizes": {"count": 0}}
    assert len(Shades.read(empty.statistics()).shades) == 0


def test_a_mean_over_texts_has_its_interval_beside_it() -> None:
    table = Lamp.table(layer=[0], head=[0], glow=[1.0], shine=[0.5], shine_low=[0.25], shine_high=[0.75])
    assert table.stored_columns() == ["layer", "head", "glow", "shine", "shine_low", "shine_high", "double"]
    assert table[0]["shine_low"] == 0.25 and "shine_low" not in lamps()[0]


def test_a_result_shows_itself_as_a_small_table() -> None:
    assert repr(result()).splitlines()[:2] == ["Lamps: 3 rows in .heads", "head  name  glow  double"]
    html = result()._repr_html_()
    assert ">glow</th>" in html and "Lamps" in html
    assert "0:1" in repr(lamps()) and "<table>" in lamps()._repr_html_()


def test_a_result_without_rows_is_shown() -> None:
    empty = Lamps(heads=lamps()[:0], count=0, most=0.0, keys=result().keys[:0])
    assert repr(empty).strip() == "Lamps: 0 rows in .heads" and "0 rows" in empty._repr_html_()


def test_a_data_frame_has_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    frame = lamps().to_pandas()
    assert list(frame) == ["layer", "head", "name", "glow", "double"]
    assert pandas.isna(frame["glow"][1]) and frame["double"][2] == -6.0
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UserError, match="to_pandas: needs: pip install pandas"):
        lamps().to_pandas()


class Size(Record):
    count: int
    share: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Measured(Result):
    drawn: NamedTensor = tensor(num_axes=2, is_needed=True)
    map: NamedTensor | None = tensor(num_axes=2)
    sizes: Records[Size] = group(is_bare_alone=True)
    alone: Size | Records[Size] | None = group(is_needed=False)


def test_a_table_of_one_row_may_be_an_object_of_its_numbers() -> None:
    drawn = NamedTensor(("row", "column"), np.eye(2))
    for count in (1, 2):
        sizes = Size.table(count=[*range(count)], share=[0.5] * count)
        statistics = Measured(drawn=drawn, sizes=sizes).statistics()
        assert isinstance(statistics["sizes"], Numbers if count == 1 else Table)
        assert Measured.read(statistics, {"drawn": drawn}).sizes == sizes


def test_of_texts_that_run_together_a_single_row_is_one_per_text() -> None:
    alone = Size.table(count=[3, 4], share=[0.5, None])
    measured = Measured(drawn=NamedTensor(("row", "column"), np.eye(2)), sizes=alone, alone=alone)
    of_texts = measured.statistics()["alone"]
    assert isinstance(of_texts, Tensors) and of_texts["count"].axes == ("batch",)
    assert of_texts["count"].values.tolist() == [3, 4]


def test_a_result_has_the_tensors_that_its_screen_draws() -> None:
    drawn, flat = NamedTensor(("row", "column"), np.eye(2)), NamedTensor(("row",), np.zeros(3))
    statistics = Measured(drawn=drawn, sizes=Size.table(count=[1], share=[0.5])).statistics()
    read = Measured.read(statistics, {"drawn": drawn})
    assert read.drawn is drawn and read.map is None and Measured.names() == ("sizes", "alone", "drawn", "map")
    with pytest.raises(TypeError, match="Measured needs drawn"):
        Measured.read(statistics)
    with pytest.raises(TypeError, match="map must have at least 2 axes and not be empty"):
        Measured.read(statistics, {"drawn": drawn, "map": flat})


def test_a_result_without_tables_shows_its_single_numbers() -> None:
    assert repr(AverageStatistics(agreement=LoopDifferences.single(loop_vs_matmul=0.5))).splitlines() == [
        "AverageStatistics: 1 row in .agreement",
        "loop_vs_matmul",
        "           0.5",
    ]
    assert repr(AverageStatistics()).strip() == "AverageStatistics: 0 rows"
