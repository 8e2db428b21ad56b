"""The keys of the browser, told in the browser and in its docs."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

# What each key does, in the order in which one needs them.
KEYS = {
    "↑ ↓": "layer, or rank in a ranking",
    "← →": "head",
    "Tab, Shift+Tab": "next and previous token",
    "PgUp, PgDn, Home, End": "ten tokens on, the first, the last",
    "w": "who looks at the token, or where it looks",
    "o": "bars in order of position, or the largest first",
    "s, S": "rank the heads; by the next or previous statistic",
    "r": "the smallest first, or the largest",
    "g": "the grid of heads, or the ranking",
    "c": "colours linear, log, or of each row by itself",
    "x": "leave the first keys (the sink) out of the colours",
    "z": "the whole map, or one line per query",
    "t, T": "next and previous tensor",
    "q": "quit",
}
MOUSE = ("A click chooses a head, a token, or the statistic to rank by;", "the wheel scrolls.")


class HelpScreen(ModalScreen[None]):
    """The keys, until one is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        """Plain text; it scrolls on a small screen."""
        width = max(map(len, KEYS))
        lines = [f"{key:<{width}}  {meaning}" for key, meaning in KEYS.items()]
        with VerticalScroll():
            yield Static(Text("\n".join([*lines, "", *MOUSE, "", "? or Esc goes back."])))
