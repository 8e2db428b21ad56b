"""What the panels share: lines drawn one at a time, a first line that stays, and text of a certain width."""

from typing import Any

from rich.cells import set_cell_size
from rich.segment import Segment
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from attncli.views.browser.choice import Choice
from attncli.views.browser.tones import BOLD, Tones
from attncli.views.colormaps import Shading
from attncli.views.labels import shortened


def fitted(text: str, width: int) -> str:
    """The text in exactly that many cells: an ellipsis at the end of what was cut, or blanks."""
    return set_cell_size(shortened(text, width), width) if width > 0 else ""


class Panel(ScrollView, can_focus=False):
    """Lines drawn when they are visible; line 0 is a heading that does not scroll.

    A panel says how many lines it has, draws one, and takes a click on one.
    """

    def __init__(self, choice: Choice, *, depth: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.choice, self.depth = choice, depth

    def tones(self, shading: Shading) -> Tones:
        """How this terminal shows them."""
        return Tones(self.depth, shading.is_diverging)

    def heading(self) -> str:
        """The first line."""
        raise NotImplementedError

    def num_lines(self) -> int:
        """Lines below the heading."""
        raise NotImplementedError

    def line(self, number: int, width: int) -> list[Segment]:
        """One line below the heading, in that width."""
        raise NotImplementedError

    def line_to_show(self) -> int | None:
        """The line that must be visible."""
        return None

    def clicked(self, line: int, x: int) -> bool:
        """Take a click on a line below the heading; whether anything was chosen."""
        return False

    def num_columns(self) -> int:
        """Cells of the widest line; what is wider than the panel scrolls."""
        return 0

    def column_to_show(self) -> int | None:
        """The cell of a line that must be visible."""
        return None

    @property
    def room(self) -> tuple[int, int]:
        """Columns and lines below the heading."""
        size = self.scrollable_content_region.size
        return size.width, max(size.height - 1, 1)

    def show(self) -> None:
        """Draw again, after a choice: the chosen line scrolls into view."""
        self.virtual_size = Size(self.num_columns(), self.num_lines() + 1)
        width, height = self.room
        line, column = self.line_to_show(), self.column_to_show()
        y = None if line is None else min(max(round(self.scroll_target_y), line - height + 1), line)
        x = None if column is None else min(max(round(self.scroll_target_x), column - width + 1), column)
        self.scroll_to(x, y, animate=False, force=True)
        self.refresh()

    def on_resize(self) -> None:
        """The same choice in another width."""
        self.show()

    def render_line(self, y: int) -> Strip:
        """The heading, or the line that has been scrolled there."""
        width, _ = self.room
        if y == 0:
            segments = [Segment(fitted(self.heading(), width), BOLD)]
        else:
            number = y - 1 + self.scroll_offset.y
            segments = self.line(number, width) if number < self.num_lines() else []
        return Strip(segments).adjust_cell_length(width)

    def on_click(self, event: Click) -> None:
        """Choose what is under the mouse."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y > 0:
            line = offset.y - 1 + self.scroll_offset.y
            if line < self.num_lines() and self.clicked(line, offset.x):
                self.post_message(self.Chosen())

    class Chosen(Message):
        """Something was chosen with the mouse."""
