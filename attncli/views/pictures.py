"""A report as a PNG, SVG or PDF figure, drawn by matplotlib in the width of a paper's column or of both."""

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from attncli.core.process import quiet_warnings
from attncli.records.report import PLACES, NamedTensor, PictureMaps, Report
from attncli.system.plain_text import plain_text
from attncli.system.version import __version__
from attncli.views import Display, NothingToDraw, Write
from attncli.views.canvas import (
    CENTIMETRES,
    DOTS_PER_INCH,
    LABEL_SIZE,
    LINE,
    NAME_SIZE,
    TITLE_SIZE,
    VECTOR_DOTS,
    WIDTHS,
    Panel,
    shortened_to,
    text_width,
    write,
)
from attncli.views.matrices import (
    ATTENTION_AXES,
    Curves,
    Spreads,
    chosen_parts,
    compared_names,
    head_statistic_grids,
    place_names,
    report_curves,
    tensor_matrices,
)
from attncli.views.overlay_panels import OverlayPanel, PictureMapsPanel
from attncli.views.overlays import Overlays, report_overlays
from attncli.views.panels import MOST_PANELS, AtlasPanel, ChartPanel, GridPanel, MapPanel, Maps
from attncli.views.tables import first_screen
from attncli.views.texts import (
    comparison,
    figure_title,
    labelled_axes,
    nothing_to_draw,
    number_label,
    shortened_text,
    title_lines,
    untrained,
    wrap_cells,
)

MOST_MATRICES = 1600
SETTINGS = ("row", "column")  # the axes of means by two settings of a store
# The names of a comparison's tensors.
NAMES = {
    "weights_a": "weights of A",
    "weights_b": "weights of B",
    "difference": "weights of B minus those of A",
}


PicturePart = Maps | Curves | Spreads | Overlays | PictureMaps | Panel


def parts_of(report: Report, show: tuple[str, ...] = ()) -> Iterator[PicturePart]:
    """Yield the parts of a report's figure: without `show`, only the part that the result is about.

    A first screen's own panel stands alone. Otherwise, the parts are the looks at pictures or, without any,
    the maps (wrong and right together) or the grids of head statistics; then the curves, and the figures of
    the first screen. With `show`, only the requested parts are included.
    """
    parts = _every_part(report, chosen_parts(report, show or ("all",)))
    if show:
        yield from parts
        return
    if (grid := _main_grid(report)) is not None:
        yield grid
        return
    by_name: dict[str, PicturePart] = {}
    for part in parts:
        by_name.setdefault(part.name.split(" ")[0] if isinstance(part, Maps | Curves) else "", part)
    screen = first_screen(report.result)
    main = (str(report.spec.get("sort")), *(screen.main_of(report) if screen is not None else ()), "weights")
    names = [name for name in (*main, *by_name) if name in by_name]
    if names:
        yield by_name[names[0]]


def _main_grid(report: Report) -> Maps | None:
    """Return the grid of heads that a survey is about: of the statistic that sorts them, or its screen's."""
    screen = first_screen(report.result)
    if screen is None or report.spec.get("head") or report.pictures or report.picture_maps is not None:
        return None
    names = (str(report.spec.get("sort")), *screen.main_of(report)) if screen.main else ()
    grids = dict(head_statistic_grids(report))
    found = (grid for name in names for grid in grids if grid.split(" ")[0] == name)
    name = next(found, None)
    return None if name is None else _maps(report, grids, [name])


def _every_part(report: Report, chosen: Report) -> Iterator[PicturePart]:
    screen = first_screen(report.result)
    if screen is not None and (drawn := screen.picture(report, chosen.statistics)):
        yield drawn
        return
    if overlays := list(report_overlays(chosen)):
        yield from overlays
        return
    if chosen.picture_maps is not None:
        yield chosen.picture_maps
        return
    main = () if screen is None else screen.main_of(report)
    maps = {
        name: tensor
        for name, tensor in chosen.tensors.items()
        if _is_drawn(name, tensor, chosen) or (name in main and len(tensor.axes) == 2)
    }
    maps = maps or dict(head_statistic_grids(chosen))
    while maps:
        name = next(iter(maps))
        names = [
            name,
            *(other for pair in report.pairs.values() if name in pair for other in pair if other in maps),
        ]
        names = list(dict.fromkeys(names))
        yield _maps(report, maps, names)
        maps = {other: tensor for other, tensor in maps.items() if other not in names}
    yield from report_curves(chosen)
    if screen is not None:
        yield from screen.figures(report, chosen.statistics)


def _maps(report: Report, drawn: Mapping[str, NamedTensor], names: list[str]) -> Maps:
    """Return the matrices of a tensor, or those of a wrong and a right tensor side by side."""
    name, tensor = names[0], drawn[names[0]]
    each = chain.from_iterable(tensor_matrices(report, other, drawn[other]) for other in names)
    matrices = [*each][-1:] if tensor.axes[0] == "step" else list(islice(each, MOST_MATRICES))
    is_one = tensor.axes[0] == "step" or matrices[0].shared
    compared = [drawn[other].values for other in compared_names(report, name) if other in drawn]
    labels = [plain_text(number_label(report, other)) for other in names]
    words = [NAMES.get(other, label) for other, label in zip(names, labels, strict=True)]
    panel_names = [
        ", ".join([matrix.name.replace("_", " "), *place_names(matrix.place)]) for matrix in matrices
    ]
    return Maps(
        name,
        labels[0],
        " and ".join(words),
        labelled_axes(report, matrices[0]),
        matrices,
        1 if is_one else len(names) * int(np.prod(tensor.values.shape[:-2])),
        compared,
        panel_names if len(names) > 1 else (),
    )


def _is_drawn(name: str, tensor: NamedTensor, report: Report) -> bool:
    """Return True for a map, an output or a compared tensor; with many heads, only for the weights."""
    if tensor.axes[-2:] in (*ATTENTION_AXES, PLACES, SETTINGS):
        return len(tensor.axes) == 2 or not name.endswith("scores") or "weights" not in report.tensors
    return len(tensor.axes) == 2 and (name == "output" or bool(compared_names(report, name)))


GAP, MARGIN, BESIDE = 0.12, 0.04, 0.15
"""The inches between panels, around the figure, and between two panels side by side."""
TITLE_LINES, MOST_PARTS = 3, 60
# Fonts with characters that DejaVu lacks; the installed fonts are tried in this order.
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "PingFang SC", "Hiragino Sans",
    "Microsoft YaHei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Emoji", "Segoe UI Emoji", "Symbola",
)  # fmt: skip


def settings() -> Any:
    """Reset matplotlib to its defaults, so that pictures look the same for every user."""
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    installed = set(fontManager.get_font_names())
    return {
        **defaults,
        "text.parse_math": False,
        "text.usetex": False,
        "svg.fonttype": "none",  # text can be searched and edited
        "pdf.fonttype": 42,  # TrueType, so that text can be searched and copied
        "svg.hashsalt": "attn",
        "font.family": ["DejaVu Sans", *(name for name in FALLBACKS if name in installed)],
        "font.size": LABEL_SIZE,
        "axes.linewidth": 0.5,
        "xtick.labelsize": LABEL_SIZE,
        "ytick.labelsize": LABEL_SIZE,
        "xtick.major.size": 2,
        "ytick.major.size": 2,
        "xtick.major.width": 0.5,
        "ytick.major.width": 0.5,
        "xtick.major.pad": 1.5,
        "ytick.major.pad": 1.5,
    }


def panel_of(part: PicturePart, display: Display) -> Panel:
    """Return the panel that draws a part."""
    if isinstance(part, Overlays):
        return OverlayPanel(part, display)
    if isinstance(part, PictureMaps):
        return PictureMapsPanel(part, display)
    if isinstance(part, Maps):
        count = len(part.matrices)
        return (MapPanel if count == 1 else GridPanel if count <= MOST_PANELS else AtlasPanel)(part, display)
    return ChartPanel(part) if isinstance(part, Curves | Spreads) else part


def panels_of(report: Report, display: Display) -> list[Panel]:
    """Return the panels of a report. Raises NothingToDraw if there are none."""
    panels = [panel_of(part, display) for part in islice(parts_of(report, display.show), MOST_PARTS)]
    if not panels:
        raise NothingToDraw(nothing_to_draw(report))
    return panels


def width_of(panels: list[Panel], display: Display) -> str:
    """Return the requested width, or else `single` for one panel that is legible there."""
    is_legible = len(panels) == 1 and panels[0].fits_single
    return display.figure_width or ("single" if is_legible else "double")


def fitted_title(report: Report, display: Display, width: float) -> list[str]:
    """Return the lines of the title for that many inches; none if --title is empty."""
    own = None if display.title is None else plain_text(display.title).strip()
    if own == "":
        return []
    for cells in range(int(1.3 * width / text_width("n", TITLE_SIZE)), 10, -1):
        lines = title_lines(report, cells) if own is None else _lines(own, cells)
        if max(text_width(line, TITLE_SIZE) for line in lines) <= width:
            break
    return lines[:TITLE_LINES]


def _lines(text: str, cells: int) -> list[str]:
    """Wrap a text to a few lines; the last one is shortened."""
    lines = wrap_cells(text, cells)
    if len(lines) <= TITLE_LINES:
        return lines
    return [*lines[: TITLE_LINES - 1], shortened_text(" ".join(lines[TITLE_LINES - 1 :]), cells)]


def draw(report: Report, display: Display) -> Figure:
    """Draw the figure of a report: its title and panels. Raises NothingToDraw if there are no panels."""
    panels = panels_of(report, display)
    width = WIDTHS[width_of(panels, display)]
    inner = width - 2 * MARGIN
    lines = [(text, TITLE_SIZE) for text in fitted_title(report, display, inner)]
    below = [
        comparison(report),
        untrained(report),
        report.how_to_read.partition(";")[0] if report.result.explains_figure else "",
    ]
    for text in filter(None, below if lines else ()):
        cells = int(inner / text_width("n"))
        lines += [(shortened_to(line, inner), LABEL_SIZE) for line in wrap_cells(plain_text(text), cells)]
    top = MARGIN + sum(size * LINE for _, size in lines) + (0.06 if lines else 0.0)
    rows = list(_rows(panels, width))
    names = NAME_SIZE * LINE + 0.04 if len(panels) > 1 else 0.0
    widths = [(inner - (len(row) - 1) * BESIDE) / len(row) for row in rows]
    heights = [
        names + max(panel.height(across) for panel in row) for row, across in zip(rows, widths, strict=True)
    ]
    figure = Figure(figsize=(width, top + sum(heights) + GAP * (len(rows) - 1) + MARGIN))
    FigureCanvasAgg(figure)
    y = MARGIN
    for text, size in lines:
        write(figure, text, MARGIN, y, size, color="black" if size == TITLE_SIZE else "0.35")
        y += size * LINE
    y = top
    for row, across, height in zip(rows, widths, heights, strict=True):
        for column, panel in enumerate(row):
            left = MARGIN + column * (across + BESIDE)
            if len(panels) > 1:
                write(figure, shortened_to(panel.title, across, NAME_SIZE), left, y, NAME_SIZE)
            panel.draw(figure, left, y + names, across)
        y += height + GAP
    return figure


def _rows(panels: list[Panel], width: float) -> Iterator[list[Panel]]:
    """Yield the panels of each row: two, if the figure has two columns and both are legible in one."""
    rest = list(panels)
    while rest:
        is_pair = width > WIDTHS["single"] and all(panel.fits_single for panel in rest[:2])
        count = min(len(rest), 2) if is_pair and len(panels) > 1 else 1
        yield rest[:count]
        del rest[:count]


def caption(report: Report, display: Display) -> str:
    """Return the caption of a figure: its title, its marks, how to read it, the settings and versions."""
    panels = panels_of(report, display)
    screen = first_screen(report.result)
    finding = ""
    if screen is not None and screen.finding is not None and screen.suits(report):
        finding = " ".join(screen.finding(report))
    own = None if display.title is None else plain_text(display.title).strip()
    settings = (
        f"{key}: {plain_text(str(value))}"
        for key, value in report.spec.items()
        if value or (value == 0 and value is not False)
    )
    versions = ", ".join(f"{name} {plain_text(version)}" for name, version in report.environment.items())
    name = width_of(panels, display)
    paragraphs = [
        ": ".join(filter(None, figure_title(report))) if own is None else own,
        plain_text(report.about),
        finding,
        *(panel.legend for panel in panels),
        "" if plain_text(report.how_to_read) in finding else plain_text(report.how_to_read),
        *map(plain_text, report.notes),
        f"Settings: {'; '.join(settings)}.",
        f"Computed with: {versions}." if versions else "",
        f"Drawn by attn {__version__}, {CENTIMETRES * WIDTHS[name]:.1f} cm wide ({name} column).",
    ]
    return "\n".join(filter(None, paragraphs)) + "\n"


def writer(kind: str, metadata: Mapping[str, str | None]) -> Write:
    """Return a view that writes one picture per report; equal reports produce equal bytes."""

    def write(reports: Iterable[Report], stream: IO[Any], display: Display) -> None:
        """Write the picture; a character that no font has becomes an empty box, without a warning."""
        for report in reports:
            with quiet_warnings(), matplotlib.rc_context():
                matplotlib.rcParams.update(settings())
                figure = draw(report, display)
                # Draw in memory first, because matplotlib's writers fail badly if a disk is full.
                picture: io.StringIO | io.BytesIO = io.StringIO() if kind == "svg" else io.BytesIO()
                dots = VECTOR_DOTS
                if kind == "png":
                    # A picture has whole pixels: at least as wide as its column.
                    dots = DOTS_PER_INCH
                    figure.set_size_inches(np.ceil(figure.get_size_inches() * dots) / dots)
                figure.savefig(picture, format=kind, metadata=dict(metadata), dpi=dots)
            stream.write(picture.getvalue())

    return write


write_png = writer("png", {"Software": None})


write_svg = writer("svg", {"Date": None, "Creator": None})


write_pdf = writer("pdf", {"CreationDate": None, "Creator": None, "Producer": None})
