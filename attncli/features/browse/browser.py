"""The browser for heads: panels that show the current choice, and the keys that change it."""

import asyncio
import gc
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from attncli.core.names import EFFECTS, Effect
from attncli.errors import INTERRUPTED, UserError
from attncli.features.browse.browser_choice import Addition, BrowsedModel, Choice, grids
from attncli.features.browse.browser_panels import (
    HeadMap,
    HeadPicker,
    Panel,
    PatternsPanel,
    PictureMap,
    StatisticsPanel,
    TokenBars,
)
from attncli.records.report import PLACES, Report
from attncli.system.plain_text import plain_text
from attncli.views.texts import fixed, heading, range_ends, readable

WIDE, TALL = 120, 40
LEAST_LEFT, MOST_LEFT = 28, 70
MAP_SHARE, ALL_SHARES, LEAST_BARS = 3, 5, 40
"""On a wide screen, the map takes three fifths of the width beside the heads, but leaves LEAST_BARS cells."""
TOKENS_PER_PAGE = 10
MAX_KEYS = 3
HINTS = "arrows head  Tab token  f flip  s rank  a ablate  w why  e edit  ? keys  q quit"
NO_MODEL = "{} needs a model, not a saved report: use attn browse TEXT --model MODEL"
PROGRAM_HINTS = "arrows head  Tab token  f flip  s rank  t tensor  ? keys  q quit"
MODEL_KEYS = {"a": "ablate", "w": "why", "e": "edit"}
"""The keys that need a model, with their actions. A program's report has no model."""
NO_HEAD = "{} needs a head: press t for tensors with heads"
MEMORY_MESSAGE = "out of memory: use fewer tokens"
POLL_SECONDS, PROGRESS_AFTER_SECONDS = 0.05, 0.2

# What each key does to the choice.
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
    "f": Choice.turn,
    "o": Choice.toggle_order,
    "s": lambda choice: choice.ranking.step(choice.grid, 1),
    "S": lambda choice: choice.ranking.step(choice.grid, -1),
    "r": lambda choice: choice.ranking.reverse(),
    "g": lambda choice: choice.ranking.toggle(),
    "c": lambda choice: choice.colours.step_scale(),
    "x": lambda choice: choice.colours.toggle_sink(),
    "t": lambda choice: choice.step_grid(1),
    "T": lambda choice: choice.step_grid(-1),
}
# Key descriptions for the help and the docs, most useful first.
KEYS = {
    "↑ ↓": "previous, next layer; in a ranking, rank",
    "← →": "previous, next head",
    "Tab, Shift+Tab": "next, previous token",
    "PgUp, PgDn, Home, End": "ten tokens back or on; first, last token",
    "f": "switch between the keys it looks at and its queries",
    "a": "remove the head, or put it back, and measure the loss",
    "w": "the head's contribution to the next token's logit",
    "e": "edit the text and run the model again",
    "o": "sort the bars by position, or largest first",
    "s, S": "rank the heads by the next, previous statistic",
    "r": "rank smallest first, or largest first",
    "g": "switch between the grid of heads and the ranking",
    "c": "colour scale: linear, log, or per row",
    "x": "leave the first keys out of colours and bars",
    "z": "the whole map, or one line per query; or the picture",
    "t, T": "next, previous tensor",
    "q": "quit",
}
MOUSE = ("Click to choose a head, a token, a pattern or the statistic to", "rank by; the wheel scrolls.")


class HelpScreen(ModalScreen[None]):
    """The list of keys. Any key closes the list, which scrolls on a small screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space", "dismiss", "back")]

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self.keys = keys

    def compose(self) -> ComposeResult:
        """Compose the screen. All text is plain, because markup is off."""
        width = max(map(len, self.keys))
        lines = [f"{key:<{width}}  {meaning}" for key, meaning in self.keys.items()]
        with VerticalScroll():
            yield Static(Text("\n".join([*lines, "", *MOUSE, "", "? or Esc closes this list."])))


class EditScreen(ModalScreen[str | None]):
    """An input line at the bottom of the screen: Enter submits the text, Esc cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """Compose an instruction and the input line."""
        yield Static(
            Text("The text that the model reads: Enter runs the model again, Esc cancels."), id="what"
        )
        yield Input(self.text, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the submitted text."""
        self.dismiss(event.value)


class Measurement:
    """Runs one measurement at a time in a separate thread, so that the keys remain responsive.

    The thread is a daemon, so that q does not wait for it.
    """

    def __init__(self) -> None:
        self.what, self.begun = "", 0.0
        self._outcomes: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()

    @property
    def is_running(self) -> bool:
        """True until the result has been taken."""
        return bool(self.what)

    @property
    def seconds(self) -> float:
        """The number of seconds since the measurement began."""
        return time.monotonic() - self.begun

    def begin(self, what: str, compute: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Start the computation in a thread. `done` will receive the result."""
        self.what, self.begun = what, time.monotonic()

        def work() -> None:
            try:
                self._outcomes.put((done, compute()))
            except Exception as error:  # raised later, so that bugs end the browser as they end any command
                self._outcomes.put((done, error))

        Thread(target=work, daemon=True).start()

    def ended(self) -> tuple[Callable[[Any], None], Any] | None:
        """Return the callback with the result or the error, or None while the thread is running."""
        if self._outcomes.empty():
            return None
        self.what = ""
        return self._outcomes.get()

    def progress(self) -> str:
        """Return the name and duration of the running measurement, or an empty string if none is running."""
        return f"{self.what} ... {self.seconds:.0f} s" if self.is_running else ""


class Browser(App[None], inherit_bindings=False):
    """The browser: the heads on the left; the chosen head's map and the chosen token's bars on the right.

    The browser keeps the background and text colours of the terminal. Without colours, it draws characters.
    """

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012 - Textual types it so
    VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL, "-tall")]  # noqa: RUF012 - Textual types it so
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"move({key!r})", show=False, priority=True) for key in MOVES),
        Binding("z", "whole", show=False),
        Binding("a", "ablate", show=False),
        Binding("w", "why", show=False),
        Binding("e", "edit", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q,ctrl+q", "quit", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
    ]
    CSS_PATH = "browser.tcss"

    def __init__(self, choice: Choice, *, depth: str, model: BrowsedModel | None = None) -> None:
        super().__init__(ansi_color=True)
        self.choice, self.depth, self.model = choice, depth, model
        self.is_program = choice.grid.report.describes_program
        self.message = ""
        self.shows_picture = True
        self.failure: Exception | None = None
        self.measurement = Measurement()
        self.waiting: deque[Callable[[], None]] = deque()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Use the colours that the command line selected, regardless of the environment."""
        filters = [f for f in super().get_line_filters() if not isinstance(f, Monochrome | NoColor)]
        return filters if self.depth != "none" else [*filters, NoColor()]

    def compose(self) -> ComposeResult:
        """Compose the panels. All text is plain, because markup is off."""
        yield Static(id="title", markup=False)
        yield Static(id="state", markup=False)
        yield Static(id="about", markup=False)
        with Horizontal():
            with Vertical(id="heads"):
                yield HeadPicker(self.choice, depth=self.depth)
                yield StatisticsPanel(self.choice, depth=self.depth)
            with Vertical():
                with Container(id="chosen"):
                    yield HeadMap(self.choice, depth=self.depth)
                    yield PictureMap(self.choice, depth=self.depth)
                    yield TokenBars(self.choice, depth=self.depth)
                yield PatternsPanel(self.choice, depth=self.depth)
        hints = PROGRAM_HINTS if self.is_program else HINTS
        yield Static(Text(hints), id="hints", markup=False)

    def on_mount(self) -> None:
        """Show the initial choice."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            end = partial(self.exit, return_code=128 + number)
            asyncio.get_running_loop().add_signal_handler(number, end)
        self.set_interval(POLL_SECONDS, self._take_outcome)
        self.show()

    def show(self) -> None:
        """Update every panel to match the current choice."""
        choice = self.choice
        self.query_one("#title", Static).update(Text(heading(choice.grid.report)))
        self.query_one("#state", Static).update(Text(state_line(choice)))
        self._show_about()
        has_heads = choice.grid.num_places > 1
        is_pictured = choice.picture is not None and self.shows_picture
        self.query_one(PictureMap).display = is_pictured
        self.query_one(HeadMap).display = not is_pictured
        picker = self.query_one(HeadPicker)
        picker.display = has_heads
        left = self.query_one("#heads")
        left.display = has_heads or bool(choice.grid.statistics)
        most = min(MOST_LEFT, max(LEAST_LEFT, self.size.width // 3))
        left_width = min(max(LEAST_LEFT, picker.wanted_width), most)
        left.styles.width = left_width
        self._share_width(self.size.width - (left_width + 1 if left.display else 0))
        for panel in self.query(Panel):
            panel.show()

    def _share_width(self, width: int) -> None:
        """Give the map the width that its key labels need, if the screen is wide and the bars keep enough."""
        heads, bars = self.query_one(HeadMap), self.query_one(TokenBars)
        wanted = heads.labels_width(width * MAP_SHARE // ALL_SHARES, width - LEAST_BARS)
        is_wider = wanted is not None and self.size.width >= WIDE
        heads.styles.width = wanted if is_wider else None
        bars.styles.width = "1fr" if is_wider else None

    def on_resize(self) -> None:
        """Redraw the same choice at the new size."""
        self.show()

    def _show_about(self) -> None:
        """Show the head's pattern, the keys that it looks at, and the measurements made with the model."""
        choice = self.choice
        pattern = choice.grid.head_pattern(choice.number)
        lines = [f"{choice.head} {pattern}" if pattern else ""]
        lines += [choice.looks_at(MAX_KEYS)]
        if choice.head in choice.additions:
            lines.append(_added(choice.additions[choice.head]))
        if choice.effects:
            numbers = (_effect(name, number) for name, number in choice.effects.items())
            lines.append(f"without {', '.join(choice.removed)}: {', '.join(numbers)}")
        lines += [self.measurement.progress(), self.message]
        self.query_one("#about", Static).update(Text("\n".join(map(plain_text, filter(None, lines)))))

    def _say(self, message: str) -> None:
        """Show a message until the next move or result."""
        self.message = message
        self._show_about()

    def _measure(self, what: str, compute: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a measurement in a separate thread. `done` receives the result."""
        self.message = ""
        self.measurement.begin(what, compute, done)
        self._show_about()

    def _take_outcome(self) -> None:
        """Take the result from the thread, or show how long the measurement has been running."""
        if not self.measurement.is_running:
            return
        if (ended := self.measurement.ended()) is None:
            if self.measurement.seconds > PROGRESS_AFTER_SECONDS:
                self._show_about()
            return
        done, outcome = ended
        self.message = ""
        if isinstance(outcome, UserError | MemoryError):
            self.waiting.clear()  # queued actions would hide the message
            self.message = " ".join(outcome.lines) if isinstance(outcome, UserError) else MEMORY_MESSAGE
        elif isinstance(outcome, Exception):
            self.failure = outcome
            self.exit()
            return
        else:
            done(outcome)
        self.show()
        while self.waiting and not self.measurement.is_running:
            self.waiting.popleft()()

    def _comes_next(self, action: Callable[[], None]) -> bool:
        """Queue the action behind a running measurement. Return False if none is running."""
        if not self.measurement.is_running:
            return False
        self.waiting.append(action)
        self._say(f"still {self.measurement.what}: this key takes effect afterwards")
        return True

    def _model_for(self, key: str) -> BrowsedModel | None:
        """Return the model if there is one and a head is chosen; otherwise, show what is missing."""
        if self.model is None:
            self._say(NO_MODEL.format(key))
        elif self.choice.grid.axes != PLACES:
            self._say(NO_HEAD.format(key))
            return None
        return self.model

    def action_ablate(self) -> None:
        """Remove the chosen head or put it back, and measure the model without all the removed heads."""
        model = self._model_for("a")
        if model is not None:
            self._ablate(model, self.choice.head)

    def _ablate(self, model: BrowsedModel, head: str) -> None:
        if self._comes_next(partial(self._ablate, model, head)):
            return
        choice = self.choice
        out = choice.removed
        removed = tuple(name for name in out if name != head) if head in out else (*out, head)
        if not removed:
            choice.removed, choice.effects, self.message = (), {}, f"{head} is back in the model"
            self.show()
            return

        def done(effects: dict[str, float]) -> None:
            choice.removed, choice.effects = removed, effects

        self._measure(f"measuring without {', '.join(removed)}", lambda: model.without(removed), done)

    def action_why(self) -> None:
        """Measure the chosen head's contribution to the logit of the next token."""
        model = self._model_for("w")
        if model is not None:
            self._explain(model, self.choice.head)

    def _explain(self, model: BrowsedModel, head: str) -> None:
        if self._comes_next(partial(self._explain, model, head)):
            return

        def done(addition: Addition) -> None:
            self.choice.additions[head] = addition

        self._measure(f"measuring the contribution of {head}", lambda: model.addition(head), done)

    async def action_edit(self) -> None:
        """Edit the text and keep the model. Keys pressed later apply to the new text."""
        if self.model is None:
            self._say(NO_MODEL.format("e"))
        else:
            await self.push_screen(EditScreen(self.model.text), self._look)

    def _look(self, text: str | None) -> None:
        model = self.model
        if model is None or text is None or self._comes_next(partial(self._look, text)):
            return

        def done(report: Report) -> None:
            self.choice.look_at(grids(readable(report)))

        self._measure("reading the text", lambda: model.look(text), done)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Allow only Ctrl-C while the help or the editor is open, and no model keys without a model."""
        if self.is_program and action in MODEL_KEYS.values():
            return False
        return action == "interrupt" or len(self.screen_stack) <= 1

    def action_move(self, key: str) -> None:
        """Change the choice according to the key, and show the result."""
        MOVES[key](self.choice)
        self.message = ""
        self.show()

    def action_whole(self) -> None:
        """Switch between the whole map and one line per query, or between the picture and the map."""
        if self.choice.picture is None:
            self.query_one(HeadMap).toggle_whole()
        else:
            self.shows_picture = not self.shows_picture
            self.show()

    def action_help(self) -> None:
        """Show the list of keys."""
        keys = {key: meaning for key, meaning in KEYS.items() if not (self.is_program and key in MODEL_KEYS)}
        self.push_screen(HelpScreen(keys))

    def action_interrupt(self) -> None:
        """Exit with the same code as an interrupted command."""
        self.exit(return_code=INTERRUPTED)

    def on_panel_chosen(self) -> None:
        """Update the panels after a click."""
        self.show()


# textual's names for the colour depths
COLOR_SYSTEMS = {"none": "standard", "16": "standard", "256": "256", "truecolor": "truecolor"}


def state_line(choice: Choice) -> str:
    """Return the tensor, its head and the range of the colours, in at most 80 columns."""
    shading = choice.shading
    ends = " to ".join(range_ends(shading.low, shading.high, 4, shading.scale))
    grid = choice.grid
    name = (" " if grid.axes == PLACES else ", ").join(filter(None, (grid.name, choice.head)))
    parts = [plain_text(name), f"{shading.scale} scale {ends}"]
    if shading.scale != choice.colours.scale:
        parts[-1] += f" ({choice.colours.scale} needs nonnegative numbers)"
    if choice.skip:
        parts.append("first key excluded" if choice.skip == 1 else f"first {choice.skip} keys excluded")
    return "; ".join(parts)


def _added(addition: Addition) -> str:
    """Return a head's addition, such as `adds +1.23 to the logit of ' Mary' (18.20), 4 of 270 by size`."""
    keys = sorted(addition.keys, key=lambda key: -abs(key[1]))[:MAX_KEYS]
    what = f"{addition.contribution:+.3g} to the logit of {addition.token!r} ({addition.logit:.2f})"
    texts = (f"{label} {number:+.3g}" for label, number in keys)
    return f"adds {what}, {addition.rank} of {addition.num_heads} by size: {', '.join(texts)}"


def _effect(name: str, number: float) -> str:
    """Return an effect, such as `loss +0.53` or `kl 0.21`. Only differences have a sign."""
    sign = "+" if EFFECTS.get(name, Effect()).is_difference and number > 0 else ""
    return f"{name} {sign}{fixed(number, 4)}"


def browse(choice: Choice, *, colors: str, model: BrowsedModel | None = None) -> int:
    """Run the browser until the user leaves it. Return the exit code."""
    os.environ.update(TEXTUAL_COLOR_SYSTEM=COLOR_SYSTEMS[colors])  # textual reads this on import

    gc.freeze()  # Objects that exist now will stay until the end, so only later ones are collected.
    gc.enable()
    browser = Browser(choice, depth=colors, model=model)
    browser.run()
    if browser.failure is not None:
        raise browser.failure
    code = browser.return_code or 0
    if browser.measurement.is_running:
        # If Python shut down while a thread is computing, torch would abort. The terminal has already been
        # restored.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
