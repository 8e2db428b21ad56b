"""The browser for heads: panels around one choice, and a key for every move."""

import gc
import os
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import ModalScreen
from textual.widgets import Static

from attncli.errors import INTERRUPTED
from attncli.plain_text import plain_text
from attncli.views.browser_choice import Choice
from attncli.views.browser_panels import HeadMap, HeadPicker, Panel, StatisticsPanel, TokenBars
from attncli.views.texts import heading, range_ends

WIDE = 120
TOKENS_PER_PAGE = 10
HINTS = "arrows head  Tab token  w who looks  s rank  c scale  x sink  z map  ? help  q"

# What a key does to the choice.
MOVES: dict[str, Callable[[Choice], None]] = {
    "up": lambda choice: choice.step_head(-1, 0),
    "down": lambda choice: choice.step_head(1, 0),
    "left": lambda choice: choice.step_head(0, -1),
    "right": lambda choice: choice.step_head(0, 1),
    "tab": lambda choice: choice.step_token(1, around=True),
    "shift+tab": lambda choice: choice.step_token(-1, around=True),
    "pagedown": lambda choice: choice.step_token(TOKENS_PER_PAGE),
    "pageup": lambda choice: choice.step_token(-TOKENS_PER_PAGE),
    "home": lambda choice: choice.choose_token(0),
    "end": lambda choice: choice.choose_token(len(choice.token_labels) - 1),
    "w": Choice.turn,
    "o": Choice.toggle_order,
    "s": lambda choice: choice.rank(1),
    "S": lambda choice: choice.rank(-1),
    "r": Choice.reverse,
    "g": Choice.toggle_ranking,
    "c": Choice.step_scale,
    "x": Choice.toggle_sink,
    "t": lambda choice: choice.step_grid(1),
    "T": lambda choice: choice.step_grid(-1),
}
# What the help and the docs say that each key does, in the order in which one needs them.
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
    "x": "exclude the first keys (sink) from colours and bars",
    "z": "the whole map, or one line per query",
    "t, T": "next and previous tensor",
    "q": "quit",
}
MOUSE = ("A click chooses a head, a token, or the statistic to rank by;", "the wheel scrolls.")


class HelpScreen(ModalScreen[None]):
    """The keys, until one is pressed; it scrolls on a small screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        """Every text is plain: markup is off."""
        width = max(map(len, KEYS))
        lines = [f"{key:<{width}}  {meaning}" for key, meaning in KEYS.items()]
        with VerticalScroll():
            yield Static(Text("\n".join([*lines, "", *MOUSE, "", "? or Esc goes back."])))


class Browser(App[None], inherit_bindings=False):
    """Heads on the left, the map of the chosen one and the bars of the chosen token on the right.

    The terminal's own background and text; where there is no colour, characters.
    """

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012 - Textual types it so
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"move({key!r})", show=False, priority=True) for key in MOVES),
        Binding("z", "whole", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q,ctrl+q", "quit", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
    ]
    CSS = """
    * { scrollbar-size: 1 1; scrollbar-color: ansi_bright_black; scrollbar-background: ansi_default;
        scrollbar-color-hover: ansi_white; scrollbar-background-hover: ansi_default;
        scrollbar-color-active: ansi_white; scrollbar-background-active: ansi_default; }
    Screen, Static, Panel { background: ansi_default; color: ansi_default; }
    #title, #state, #hints { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #title { text-style: bold; }
    #hints { dock: bottom; text-style: dim; }
    #heads { width: 28; margin-right: 1; }
    HeadPicker { height: auto; max-height: 50%; margin-bottom: 1; }
    StatisticsPanel, HeadMap, TokenBars { height: 1fr; width: 1fr; overflow-x: hidden; }
    HeadMap { overflow-x: auto; }
    .-narrow #chosen { layout: vertical; }
    .-wide #chosen { layout: horizontal; }
    .-narrow HeadMap { margin-bottom: 1; }
    .-wide HeadMap { margin-right: 1; width: 3fr; }
    .-wide TokenBars { width: 2fr; }
    HelpScreen { align: center middle; background: ansi_default; }
    HelpScreen VerticalScroll { width: auto; max-width: 100%; height: auto; max-height: 100%;
        border: round ansi_default; background: ansi_default; padding: 0 1; }
    HelpScreen Static { width: auto; }
    """

    def __init__(self, choice: Choice, *, depth: str) -> None:
        super().__init__(ansi_color=True)
        self.choice, self.depth = choice, depth

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Colour or none as the command line decided, whatever the environment says."""
        filters = [f for f in super().get_line_filters() if not isinstance(f, Monochrome | NoColor)]
        return filters if self.depth != "none" else [*filters, NoColor()]

    def compose(self) -> ComposeResult:
        """Every text is plain: markup is off."""
        yield Static(id="title", markup=False)
        yield Static(id="state", markup=False)
        with Horizontal():
            with Vertical(id="heads"):
                yield HeadPicker(self.choice, depth=self.depth)
                yield StatisticsPanel(self.choice, depth=self.depth)
            with Container(id="chosen"):
                yield HeadMap(self.choice, depth=self.depth)
                yield TokenBars(self.choice, depth=self.depth)
        yield Static(Text(HINTS), id="hints", markup=False)

    def on_mount(self) -> None:
        """The first choice."""
        self.show()

    def show(self) -> None:
        """Every panel for the present choice."""
        choice = self.choice
        self.query_one("#title", Static).update(Text(heading(choice.grid.report)))
        self.query_one("#state", Static).update(Text(self._state()))
        has_heads = choice.grid.num_places > 1
        self.query_one(HeadPicker).display = has_heads
        self.query_one("#heads").display = has_heads or bool(choice.grid.statistics)
        for panel in self.query(Panel):
            panel.show()

    def _state(self) -> str:
        """The tensor, its head, and the range of the colours; of weights it fits on 80 columns."""
        choice, shading = self.choice, self.choice.shading
        ends = " to ".join(range_ends(shading.low, shading.high, 4, shading.scale))
        parts = [plain_text(choice.matrix.title_without_axes), f"{shading.scale} scale {ends}"]
        if shading.scale != choice.scale:
            parts[-1] += f" ({choice.scale} needs amounts)"
        if choice.skip:
            parts.append("first key excluded" if choice.skip == 1 else f"first {choice.skip} keys excluded")
        return "; ".join(parts)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """No move behind the help."""
        return action != "move" or len(self.screen_stack) == 1

    def action_move(self, key: str) -> None:
        """Change the choice and show it."""
        MOVES[key](self.choice)
        self.show()

    def action_whole(self) -> None:
        """The whole map, or one line per query."""
        self.query_one(HeadMap).toggle_whole()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen())

    def action_interrupt(self) -> None:
        """Leave as a command that was interrupted."""
        self.exit(return_code=INTERRUPTED)

    def on_panel_chosen(self) -> None:
        """Something was clicked."""
        self.show()


# What textual calls the depths of colour.
COLOR_SYSTEMS = {"none": "standard", "16": "standard", "256": "256", "truecolor": "truecolor"}


def browse(choice: "Choice", *, colors: str) -> int:
    """Show the browser until the user leaves it; return its exit code."""
    os.environ["TEXTUAL_COLOR_SYSTEM"] = COLOR_SYSTEMS[colors]  # textual reads it when it is imported

    gc.freeze()  # What was imported and read stays until the end; only later objects are collected.
    gc.enable()
    browser = Browser(choice, depth=colors)
    browser.run()
    return browser.return_code or 0
