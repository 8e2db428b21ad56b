"""Reports as a single HTML file that opens without a network and lets users explore weights head by head."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, TextIO

import numpy as np

from attncli.records.report import PLACES, NamedTensor, Picture, PictureMaps, Report, Table, Tensors, plain
from attncli.system.plain_text import plain_text
from attncli.views import SCALES, Display
from attncli.views.colours import COOLWARM, VIRIDIS
from attncli.views.first_screen import FirstScreen, HeadGrids
from attncli.views.matrices import (
    KEY_AXES,
    Spreads,
    compared_names,
    head_statistic_grids,
    hidden_cells,
    is_weights,
    pictured,
    places_along,
    shared_axes,
    tensor_unit,
    whole_heads,
)
from attncli.views.overlays import FAINT, STRONG, about_picture, chosen_queries, png_size
from attncli.views.page.blocks import SOURCES, PageBlock, blocks_of, page_script
from attncli.views.page.meanings import page_meanings
from attncli.views.picture_maps import left_out, title_of
from attncli.views.tables import first_screen
from attncli.views.texts import heading, subtitle, title

MAX_EXACT = 100_000  # numbers
STEPS_PER_UNIT = 10_000  # numbers with four decimals
# A step of four decimals is cut into FINE / step parts, so that small weights are accurate to about 5 %.
FINE = 20
# Below half a step: codes per halving, and number of halvings. Smaller numbers get the smallest code.
PER_HALVING, HALVINGS = 4, 20
NUM_LEVELS = 65_535  # the code after them means no number

_STEPS = np.arange(STEPS_PER_UNIT + 1)
_PARTS = np.where(
    _STEPS > 0, np.maximum(1, np.ceil(FINE / np.maximum(_STEPS, 1))), 1 + PER_HALVING * HALVINGS
).astype(np.int64)
_STARTS = np.concatenate([[0], np.cumsum(_PARTS)])
NO_WEIGHT = int(_STARTS[-1])  # the code that means no number


def packed(values: np.ndarray) -> str:
    """Return the bytes of all numbers, most significant bytes first, deflated (RFC 1951), in base64."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    planes = little.view(np.uint8).reshape(-1, values.dtype.itemsize).T[::-1]
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = compressor.compress(planes.tobytes()) + compressor.flush()
    return base64.b64encode(deflated).decode("ascii")


def encoded(values: np.ndarray) -> dict[str, Any]:
    """Return an array as the page's script reads it: its type, shape, bytes and, for codes, their values."""
    if values.dtype.kind in "iub":
        return _array(values.astype(np.int32))
    if values.size <= MAX_EXACT:
        narrow = values.astype(np.float32)
        return _array(narrow if np.array_equal(narrow, values, equal_nan=True) else values.astype(np.float64))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return _array(np.full(values.shape, np.nan, dtype=np.float32))
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1:
        table = {"type": "float32", "bytes": packed(weight_table())}
        return {**_array(weight_codes(values)), "table": table, "decimals": 4}
    step = (high - low) / (NUM_LEVELS - 1)
    return {**_array(_levels(values, low, step)), "low": low, "step": step, "decimals": _decimals(step)}


def _array(values: np.ndarray) -> dict[str, Any]:
    return {"type": values.dtype.name, "shape": list(values.shape), "bytes": packed(values)}


def weight_codes(weights: np.ndarray) -> np.ndarray:
    """Return the index of each number from 0 to 1 in `weight_table`, or NO_WEIGHT for missing numbers."""
    seen = np.isfinite(weights)
    scaled = np.where(seen, weights, 0).astype(np.float64) * STEPS_PER_UNIT
    steps = np.rint(scaled).astype(np.int64)
    parts = _PARTS[steps]
    part = np.minimum(np.floor((scaled - steps + 0.5) * parts), parts - 1).astype(np.int64)
    least = steps == 0
    part[least] = _part_of_the_least(scaled[least])
    return np.where(seen, _STARTS[steps] + part, NO_WEIGHT).astype(np.uint16)


def _part_of_the_least(scaled: np.ndarray) -> np.ndarray:
    """Return 0 for zero, else 1 + the logarithmic place between 2^-HALVINGS halves of a step and one half."""
    positive = scaled > 0
    logarithms = np.log2(2 * scaled, where=positive, out=np.zeros_like(scaled))
    places = np.floor((logarithms + HALVINGS) * PER_HALVING).astype(np.int64)
    return np.where(positive, 1 + places.clip(0, PER_HALVING * HALVINGS - 1), 0)


def weight_table() -> np.ndarray:
    """Return the value of each weight code, which is the middle of its interval; NaN for NO_WEIGHT."""
    halvings = (np.arange(PER_HALVING * HALVINGS) + 0.5) / PER_HALVING - HALVINGS
    steps = np.repeat(_STEPS[1:], _PARTS[1:])
    part = np.arange(len(steps)) - np.repeat(_STARTS[1:-1] - _STARTS[1], _PARTS[1:])
    middles = steps - 0.5 + (part + 0.5) / _PARTS[steps]
    scaled = np.concatenate([[0.0], 0.5 * 2.0**halvings, middles, [np.nan]])
    return (scaled / STEPS_PER_UNIT).astype(np.float32)


def _levels(values: np.ndarray, low: float, step: float) -> np.ndarray:
    places = np.rint((np.where(np.isfinite(values), values, low).astype(np.float64) - low) / (step or 1.0))
    return np.where(np.isfinite(values), places, NUM_LEVELS).astype(np.uint16)


def _decimals(step: float) -> int:
    """Return the number of reliable decimals, at most four, of numbers that lie one step apart."""
    return int(np.clip(np.floor(-np.log10(step)), 0, 4)) if step > 0 else 4


MOST_IN_MEMORY = 1 << 24
"""The most characters of a page's reports kept in memory; more are in a file until the page is written."""
# Beyond these limits, a page takes too long to open; it names what was left out.
MAX_NUMBERS = 1 << 22
MAX_WEIGHTS = 1 << 26
MAX_ROWS = 2000
PART_NAMES = "part_names"
"""The statistic with the names along an axis, which the page shows with the numbers."""

# Characters that end a script's text or begin markup in it; JSON reads their escapes as the same text.
ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def report_data(report: Report) -> dict[str, Any]:
    """Return the data of one report for the page's script."""
    drawn = {name: tensor for name, tensor in report.tensors.items() if not _is_in_table(report, tensor)}
    if not drawn and not report.pictures and report.picture_maps is None:
        drawn = dict(head_statistic_grids(report))
    tensors = {name: tensor for name, tensor in drawn.items() if not _is_too_large(tensor)}
    blocks = [
        (block, data) for block in blocks_of(type(report.result)) if (data := block.data(report)) is not None
    ]
    tables = {name: table for block, _ in blocks for name, table in block.tables(report).items()}
    spreads = _sanitised(plain(_spreads(report)))
    statistics: dict[str, Any] = {}
    long_tables: list[str] = []
    for name, value in {**report.statistics, **tables}.items():
        if isinstance(value, Table) and len(value) > MAX_ROWS:
            long_tables.append(f"{name}: all but the first {MAX_ROWS:,} of {len(value):,} rows")
            value = Table(value[:MAX_ROWS])
        if not isinstance(value, Tensors) and name != PART_NAMES:
            statistics[name] = value
    return {
        "heading": heading(report),
        "title": title(report),
        "subtitle": subtitle(report),
        "experiment": report.experiment,
        "settings": {name: plain_text(_setting(value)) for name, value in report.spec.items()},
        "environment": {name: plain_text(value) for name, value in report.environment.items()},
        "named": {key: _names(report.spec.get(key)) for key in ("from", "to")},
        "tokens": [plain_text(token) for token in report.tokens],
        "context_tokens": [plain_text(token) for token in report.context_tokens],
        "first_query": report.first_query,
        "tensors": [_map_data(report, name, tensor) for name, tensor in tensors.items()],
        "left_out": [
            f"{name}: {' × '.join(map(str, tensor.values.shape))}"
            for name, tensor in drawn.items()
            if name not in tensors
        ]
        + long_tables,
        "whole_heads": {name: "{}:{}".format(*place) for place, name in whole_heads(report).items()},
        "rows": [_tensor_data(name, tensor) for name, tensor in report.tensors_of("rows").items()],
        "keys": [_tensor_data(name, tensor) for name, tensor in report.tensors_of("keys").items()],
        "statistics": _sanitised(plain(statistics)),
        "columns": page_meanings(report),
        "steps": _sanitised(plain(report.fields().get("steps", []))),
        "blocks": {block.name: _sanitised(plain(data)) for block, data in blocks},
        "replaced": [name for block, _ in blocks for name in block.replaces],
        "pictures": [_picture_data(report, picture) for picture in report.pictures],
        "picture_maps": None if report.picture_maps is None else _maps_data(report, report.picture_maps),
        "finding": " ".join(_finding(report)),
        "picture": _page_picture(report, drawn) or (["spreads"] if spreads else []),
        "spreads": spreads,
        "table": _page_table(report),
        "notes": [plain_text(note) for note in report.sentences],
    }


def _names(value: Any) -> list[str]:
    """Return the names of tokens in a setting, which may hold several, one, or none."""
    names = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return [plain_text(str(name)) for name in names]


def _first_screen(report: Report) -> FirstScreen | None:
    screen = first_screen(report.result)
    return screen if screen is not None and screen.suits(report) else None


def _finding(report: Report) -> Iterator[str]:
    """Return the first sentence of the page, if its first screen has a finding."""
    screen = _first_screen(report)
    if screen is not None and screen.finding is not None:
        yield from screen.finding(report)


def _page_picture(report: Report, drawn: Mapping[str, NamedTensor]) -> list[str]:
    """Return the name of the map that the page shows first, or those of the tensors and tables of its curves.

    The list is empty if the result names none of them.
    """
    screen = _first_screen(report)
    names = () if screen is None else (str(report.spec.get("sort")), *screen.main_of(report))
    known = [name for name in names if name in drawn or isinstance(report.statistics.get(name), Table)]
    curves = [name for name in known if name not in drawn or len(drawn[name].axes) == 1]
    return curves if known[:1] == curves[:1] else known[:1]


def _spreads(report: Report) -> list[dict[str, Any]]:
    """Return means and standard deviations that the result's figures draw."""
    screen = _first_screen(report)
    figures = () if screen is None else screen.figures(report, report.statistics)
    return [figure._asdict() for figure in figures if isinstance(figure, Spreads)]


def _page_table(report: Report) -> dict[str, Any] | None:
    """Return the name of the table beside the picture, its columns, and the column that it is sorted by."""
    screen = _first_screen(report)
    table = None if screen is None else screen.table_of_page(report)
    rows = None if table is None else report.statistics.get(table.table)
    if table is None or not isinstance(rows, Table) or not rows:
        return None
    names = [name for name in table.columns if _is_telling([row.get(name) for row in rows])]
    if table.columns and not names:
        return None
    return {**table._asdict(), "columns": names}


def _is_telling(cells: list[Any]) -> bool:
    """Return True unless all cells are empty, or there are several cells with the same text."""
    first, *others = cells
    is_same = bool(others) and all(cell == first for cell in others)
    return not (is_same and isinstance(first, str)) and any(cell is not None for cell in cells)


def _is_in_table(report: Report, tensor: NamedTensor) -> bool:
    """Return True for a grid with so few heads that the table shows them all."""
    screen = _first_screen(report)
    grids = [] if screen is None else [part for part in screen.parts if isinstance(part, HeadGrids)]
    return tensor.axes == PLACES and any(not part.shows(report) for part in grids)


def _picture_data(report: Report, picture: Picture) -> dict[str, Any]:
    """Return a picture, the positions of its tokens, and the query that is initially selected."""
    width, height = png_size(picture)
    return {
        "name": plain_text(picture.name),
        "about": about_picture(picture),
        "width": width,
        "height": height,
        "png": base64.b64encode(picture.png).decode("ascii"),
        "boxes": picture.boxes,
        "axis": picture.axis,
        "query": next(iter(chosen_queries(report, picture)), None),
        "seconds": picture.seconds,
        "sound": base64.b64encode(picture.sound).decode("ascii"),
    }


def _maps_data(report: Report, maps: PictureMaps) -> dict[str, Any]:
    """Return several pictures with their maps, as columns and rows."""
    return {
        "title": title_of(maps),
        "left_out": left_out(maps),
        "names": [plain_text(name) for name in maps.names],
        "rows": [
            _picture_data(report, row.picture) | {"weights": _tensor_data("weights", row.weights)}
            for row in maps.rows
        ],
    }


def _map_data(report: Report, name: str, tensor: NamedTensor) -> dict[str, Any]:
    """Return a tensor as the page draws it, without numbers for hidden keys, and tensors with its colours.

    If it belongs to a picture, it has queries, or a single row for the look of the chosen query.
    """
    is_pictured = name in pictured(report)
    hidden = hidden_cells(name, tensor)
    if is_pictured and "query" not in tensor.axes:
        tensor, hidden = (
            NamedTensor((*tensor.axes[:-1], "query", "key"), tensor.values[..., np.newaxis, :]),
            None,
        )
    steps = {"steps": places_along(report, "step", len(tensor.values))} if tensor.axes[0] == "step" else {}
    return {
        **_tensor_data(name, tensor, hidden),
        **steps,
        "is_pictured": is_pictured,
        "is_weights": is_weights(name, tensor.axes[-2:]),
        "unit": tensor_unit(name, tensor.axes),
        "compared": [plain_text(other) for other in compared_names(report, name)],
        **_marks(report, name),
    }


def _marks(report: Report, name: str) -> dict[str, Any]:
    """Return the cells that the result marks, whether each was found, and what the marks mean."""
    marks = [[query, key, int(is_hit)] for query, key, is_hit in report.result.marks(name)]
    return {"marks": marks, "marks_note": report.result.marks_note} if marks else {}


def _tensor_data(name: str, tensor: NamedTensor, hidden: np.ndarray | None = None) -> dict[str, Any]:
    """Return a tensor with its name and axes; if all matrices are equal, only one of them, with `shared`."""
    shared = shared_axes(tensor)
    first = (0,) * len(shared)
    values = tensor.values[first] if hidden is None else np.where(hidden, np.nan, tensor.values)[first]
    axes = list(tensor.axes[len(shared) :])
    return {"name": plain_text(name), "axes": axes, "shared": list(shared), **encoded(values)}


def page_json(data: Any) -> str:
    """Return JSON that is safe within a page: ASCII, without anything that HTML would read as markup."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(ESCAPES)


def _is_too_large(tensor: NamedTensor) -> bool:
    is_weights = tensor.axes[-1] in KEY_AXES and tensor.values.min(initial=0) >= 0
    return bool(tensor.values.size > (MAX_WEIGHTS if is_weights else MAX_NUMBERS))


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _sanitised(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Mapping):
        return {plain_text(str(name)): _sanitised(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_sanitised(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


# Later files override earlier ones.
STYLES = (
    "base.css",
    "maps.css",
    "tokens.css",
    "pictures.css",
    "picture_maps.css",
    "sound.css",
    "cards.css",
    "tables.css",
    "charts.css",
)
STYLE_COMMENT_OR_INDENT = re.compile(r"/\*.*?\*/\s*|^\s+", re.DOTALL | re.MULTILINE)
LAYOUT = "layout.css"
"""The last style sheet, which follows those of blocks."""
REPORTS = "<!-- reports -->\n"
ASKING = "<!-- asking -->\n"
"""The place of the form of a served page; a page in a file has no form."""
ABOVE, BELOW = "<!-- blocks above -->\n", "<!-- blocks below -->\n"
"""The places of the sections of blocks."""


def _source(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def page_style(blocks: Iterable[PageBlock]) -> str:
    """Return the style of a page, combined from all its files, without indentation and comments."""
    of_blocks = ((block.folder / block.style).read_text(encoding="utf-8") for block in blocks if block.style)
    styles = [*(_source(f"styles/{name}") for name in STYLES), *of_blocks, _source(f"styles/{LAYOUT}")]
    return "".join(STYLE_COMMENT_OR_INDENT.sub("", style) for style in styles)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _content_security_policy(script: str, style: str, also: str) -> str:
    """Allow only this script and this style; text never becomes markup."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; media-src blob:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
        f"{also}"
    )


class Shell(NamedTuple):
    """The content security policy of a page, and its text before and after the reports' data."""

    policy: str
    before: str
    after: str


def page_shell(
    blocks: Sequence[PageBlock], script: str, style: str, *, asking: str = "", also: str = ""
) -> Shell:
    """Return the page with sections for blocks, and `asking` above the reports; `also` extends the policy."""
    policy = _content_security_policy(script, style, also)
    page = _source("page.html").replace("<!-- policy -->", policy).replace(ASKING, asking)
    for mark, is_above in ((ABOVE, True), (BELOW, False)):
        page = page.replace(mark, "".join(each.section() for each in blocks if each.is_above is is_above))
    page = page.replace("/* style */", style)
    before, after = page.split(REPORTS)
    return Shell(policy, before, after.replace("/* script */", script))


def json_block(kind: str, data: object) -> str:
    return f'<script type="application/json" class="{kind}">{page_json(data)}</script>\n'


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write a single page for all reports, with their blocks; each report goes to a file as it arrives."""
    blocks: dict[str, PageBlock] = {}
    headings = []
    with SpooledTemporaryFile(MOST_IN_MEMORY, "w+", encoding="ascii", newline="") as written:
        for report in reports:
            data = report_data(report)
            if display.title is not None:
                data["title"] = plain_text(display.title)
            headings.append(data.pop("heading"))
            blocks |= {block.name: block for block in blocks_of(type(report.result))}
            written.write(json_block("report", data))
        of_reports = [*blocks.values()]
        shell = page_shell(of_reports, page_script(of_reports), page_style(of_reports))
        stream.write(shell.before)
        stream.write(json_block("start", page_start(display)))
        written.seek(0)
        copyfileobj(written, stream)
    stream.write(json_block("headings", headings))
    stream.write(shell.after)


def page_start(display: Display) -> dict[str, Any]:
    """Return the first script of the page."""
    return {
        "viridis": VIRIDIS,
        "coolwarm": COOLWARM,
        "scale": display.scale_colors,
        "scales": SCALES,
        "skip": display.skip_first_keys,
        "cover": [FAINT, STRONG],
    }
