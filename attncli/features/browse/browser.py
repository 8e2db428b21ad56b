"""The browser for heads: panels around one choice, and a key for every move."""

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
"""Of a wide screen the map has three fifths of what heads leave; bars have so many cells at least."""
TOKENS_PER_PAGE = 10
KEYS_NAMED = 3
HINTS = "arrows head  Tab token  f flip  s rank  a ablate  w why  e edit  ? keys  q quit"
NO_MODEL = "{} needs the model, and this is a saved report: attn browse TEXT --model MODEL"
HINTS_OF_PROGRAM = "arrows head  Tab token  f flip  s rank  t tensor  ? keys  q quit"
OF_MODEL = {"a": "ablate", "w": "why", "e": "edit"}
"""The keys that ask a model, and their actions. A program is none that they could ask."""
NO_HEAD = "{} is for a head: t goes on to other tensors, with heads"
OUT_OF_MEMORY = "out of memory: use fewer tokens"
POLL_SECONDS, SAID_AFTER_SECONDS = 0.05, 0.2

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
# What the help and the docs say that each key does, in the order in which one needs them.
KEYS = {
    "↑ ↓": "layer, or rank in a ranking",
    "← →": "head",
    "Tab, Shift+Tab": "next and previous token",
    "PgUp, PgDn, Home, End": "ten tokens on, the first, the last",
    "f": "who looks at the token, or where it looks",
    "a": "take the head out, or put it back: what is lost",
    "w": "what the head adds to the logit of the next token",
    "e": "edit the text, and look again",
    "o": "bars in order of position, or the largest first",
    "s, S": "rank the heads; by the next or previous statistic",
    "r": "the smallest first, or the largest",
    "g": "the grid of heads, or the ranking",
    "c": "colours linear, log, or of each row by itself",
    "x": "exclude the first keys (sink) from colours and bars",
    "z": "the whole map, or one line per query; the picture",
    "t, T": "next and previous tensor",
    "q": "quit",
}
MOUSE = ("A click chooses a head, a token, a pattern, or the statistic", "to rank by; the wheel scrolls.")


class HelpScreen(ModalScreen[None]):
    """The keys, until one is pressed; it scrolls on a small screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space", "dismiss", "back")]

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self.keys = keys

    def compose(self) -> ComposeResult:
        """Every text is plain: markup is off."""
        width = max(map(len, self.keys))
        lines = [f"{key:<{width}}  {meaning}" for key, meaning in self.keys.items()]
        with VerticalScroll():
            yield Static(Text("\n".join([*lines, "", *MOUSE, "", "? or Esc goes back."])))


class EditScreen(ModalScreen[str | None]):
    """One line of text over the last line of the screen; Enter takes it, Esc leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """What the keys do, and the text."""
        yield Static(Text("The text that the model reads: Enter looks again, Esc goes back."), id="what")
        yield Input(self.text, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The text as it was typed."""
        self.dismiss(event.value)


class Measurement:
    """What is measured in a separate thread, one thing at a time, so that keys stay alive.

    The thread ends with the process: q does not wait for it.
    """

    def __init__(self) -> None:
        self.what, self.begun = "", 0.0
        self._outcomes: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()

    @property
    def is_running(self) -> bool:
        """True until its result is taken."""
        return bool(self.what)

    @property
    def seconds(self) -> float:
        """The seconds since it began."""
        return time.monotonic() - self.begun

    def begin(self, what: str, compute: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Compute; `done` is what takes the result."""
        self.what, self.begun = what, time.monotonic()

        def work() -> None:
            try:
                self._outcomes.put((done, compute()))
            except Exception as error:  # raised again later: bugs end the browser as they end any command
                self._outcomes.put((done, error))

        Thread(target=work, daemon=True).start()

    def ended(self) -> tuple[Callable[[Any], None], Any] | None:
        """The function that takes the result, and the result or the error; None while the thread runs."""
        if self._outcomes.empty():
            return None
        self.what = ""
        return self._outcomes.get()

    def progress(self) -> str:
        """The measurement that runs, and for how long; empty without one."""
        return f"{self.what} ... {self.seconds:.0f} s" if self.is_running else ""


class Browser(App[None], inherit_bindings=False):
    """Heads on the left, the map of the chosen one and the bars of the chosen token on the right.

    It keeps the terminal's background and text colour; without colours it uses characters.
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
        self.is_of_program = choice.grid.report.is_of_program
        self.message = ""
        self.shows_picture = True
        self.failure: Exception | None = None
        self.measurement = Measurement()
        self.waiting: deque[Callable[[], None]] = deque()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Colours as the command line decided, whatever the environment says."""
        filters = [f for f in super().get_line_filters() if not isinstance(f, Monochrome | NoColor)]
        return filters if self.depth != "none" else [*filters, NoColor()]

    def compose(self) -> ComposeResult:
        """Every text is plain: markup is off."""
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
        hints = HINTS_OF_PROGRAM if self.is_of_program else HINTS
        yield Static(Text(hints), id="hints", markup=False)

    def on_mount(self) -> None:
        """The first choice."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            end = partial(self.exit, return_code=128 + number)
            asyncio.get_running_loop().add_signal_handler(number, end)
        self.set_interval(POLL_SECONDS, self._take_outcome)
        self.show()

    def show(self) -> None:
        """Every panel for the present choice."""
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
        """On a wide screen the map has what the labels of its keys need, if bars have room."""
        heads, bars = self.query_one(HeadMap), self.query_one(TokenBars)
        wanted = heads.width_of_labels(width * MAP_SHARE // ALL_SHARES, width - LEAST_BARS)
        is_wider = wanted is not None and self.size.width >= WIDE
        heads.styles.width = wanted if is_wider else None
        bars.styles.width = "1fr" if is_wider else None

    def on_resize(self) -> None:
        """The same choice in another size."""
        self.show()

    def _show_about(self) -> None:
        """What is known of the head, what it looks at, and what was measured of the model."""
        choice = self.choice
        pattern = choice.grid.pattern_of(choice.number)
        lines = [f"{choice.head} {pattern}" if pattern else ""]
        lines += [choice.looks_at(KEYS_NAMED)]
        if choice.head in choice.additions:
            lines.append(_added(choice.additions[choice.head]))
        if choice.effects:
            numbers = (_effect(name, number) for name, number in choice.effects.items())
            lines.append(f"without {', '.join(choice.removed)}: {', '.join(numbers)}")
        lines += [self.measurement.progress(), self.message]
        self.query_one("#about", Static).update(Text("\n".join(map(plain_text, filter(None, lines)))))

    def _say(self, message: str) -> None:
        """A message until the next move, or the next result."""
        self.message = message
        self._show_about()

    def _measure(self, what: str, compute: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Compute in a separate thread; then `done` takes the result."""
        self.message = ""
        self.measurement.begin(what, compute, done)
        self._show_about()

    def _take_outcome(self) -> None:
        """What a thread has found, or how long it has been at it."""
        if not self.measurement.is_running:
            return
        if (ended := self.measurement.ended()) is None:
            if self.measurement.seconds > SAID_AFTER_SECONDS:
                self._show_about()
            return
        done, outcome = ended
        self.message = ""
        if isinstance(outcome, UserError | MemoryError):
            self.waiting.clear()  # what waited would hide the line
            self.message = " ".join(outcome.lines) if isinstance(outcome, UserError) else OUT_OF_MEMORY
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
        """Whether something is measured now, for which an action waits behind those before it."""
        if not self.measurement.is_running:
            return False
        self.waiting.append(action)
        self._say(f"still {self.measurement.what}: this key waits for that")
        return True

    def _model_of(self, key: str) -> BrowsedModel | None:
        """The model, to measure the chosen head; without one, or a head, why not is said."""
        if self.model is None:
            self._say(NO_MODEL.format(key))
        elif self.choice.grid.axes != PLACES:
            self._say(NO_HEAD.format(key))
            return None
        return self.model

    def action_ablate(self) -> None:
        """Take the chosen head out, or put it back, and measure the model without all that are out."""
        model = self._model_of("a")
        if model is not None:
            self._ablate(model, self.choice.head)

    def _ablate(self, model: BrowsedModel, head: str) -> None:
        if self._comes_next(partial(self._ablate, model, head)):
            return
        choice = self.choice
        out = choice.removed
        removed = tuple(name for name in out if name != head) if head in out else (*out, head)
        if not removed:
            choice.removed, choice.effects, self.message = (), {}, f"{head} is back"
            self.show()
            return

        def done(effects: dict[str, float]) -> None:
            choice.removed, choice.effects = removed, effects

        self._measure(f"measuring without {', '.join(removed)}", lambda: model.without(removed), done)

    def action_why(self) -> None:
        """What the chosen head adds to the logit of the next token."""
        model = self._model_of("w")
        if model is not None:
            self._explain(model, self.choice.head)

    def _explain(self, model: BrowsedModel, head: str) -> None:
        if self._comes_next(partial(self._explain, model, head)):
            return

        def done(addition: Addition) -> None:
            self.choice.additions[head] = addition

        self._measure(f"measuring what {head} adds", lambda: model.addition(head), done)

    async def action_edit(self) -> None:
        """Another text for the same model; the next keys are for it."""
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
        """Behind the help, or while a text is edited, Ctrl-C alone; of a program no key for a model."""
        if self.is_of_program and action in OF_MODEL.values():
            return False
        return action == "interrupt" or len(self.screen_stack) <= 1

    def action_move(self, key: str) -> None:
        """Change the choice and show it."""
        MOVES[key](self.choice)
        self.message = ""
        self.show()

    def action_whole(self) -> None:
        """The whole map, or one line per query; the picture that it is over, or the map."""
        if self.choice.picture is None:
            self.query_one(HeadMap).toggle_whole()
        else:
            self.shows_picture = not self.shows_picture
            self.show()

    def action_help(self) -> None:
        """The keys."""
        keys = {key: meaning for key, meaning in KEYS.items() if not (self.is_of_program and key in OF_MODEL)}
        self.push_screen(HelpScreen(keys))

    def action_interrupt(self) -> None:
        """Leave as a command that was interrupted."""
        self.exit(return_code=INTERRUPTED)

    def on_panel_chosen(self) -> None:
        """Something was clicked."""
        self.show()


# What textual calls the depths of colour.
COLOR_SYSTEMS = {"none": "standard", "16": "standard", "256": "256", "truecolor": "truecolor"}


def state_line(choice: Choice) -> str:
    """The tensor, its head, and the range of the colours; it fits on 80 columns."""
    shading = choice.shading
    ends = " to ".join(range_ends(shading.low, shading.high, 4, shading.scale))
    grid = choice.grid
    name = (" " if grid.axes == PLACES else ", ").join(filter(None, (grid.name, choice.head)))
    parts = [plain_text(name), f"{shading.scale} scale {ends}"]
    if shading.scale != choice.colours.scale:
        parts[-1] += f" ({choice.colours.scale} needs amounts)"
    if choice.skip:
        parts.append("first key excluded" if choice.skip == 1 else f"first {choice.skip} keys excluded")
    return "; ".join(parts)


def _added(addition: Addition) -> str:
    """`adds +1.23 to the logit of ' Mary' (18.20), 4 of 270 by size: 2 Mary +1.1, ...`"""
    keys = sorted(addition.keys, key=lambda key: -abs(key[1]))[:KEYS_NAMED]
    what = f"{addition.contribution:+.3g} to the logit of {addition.token!r} ({addition.logit:.2f})"
    texts = (f"{label} {number:+.3g}" for label, number in keys)
    return f"adds {what}, {addition.rank} of {addition.num_heads} by size: {', '.join(texts)}"


def _effect(name: str, number: float) -> str:
    """`loss +0.53`, `kl 0.21`: with its sign where it is a difference."""
    sign = "+" if EFFECTS.get(name, Effect()).is_difference and number > 0 else ""
    return f"{name} {sign}{fixed(number, 4)}"


def browse(choice: Choice, *, colors: str, model: BrowsedModel | None = None) -> int:
    """Show the browser until the user leaves it; return its exit code."""
    os.environ.update(TEXTUAL_COLOR_SYSTEM=COLOR_SYSTEMS[colors])  # textual reads it when it is imported

    gc.freeze()  # What was imported and read stays until the end; only later objects are collected.
    gc.enable()
    browser = Browser(choice, depth=colors, model=model)
    browser.run()
    if browser.failure is not None:
        raise browser.failure
    code = browser.return_code or 0
    if browser.measurement.is_running:
        # Python would end under a thread that computes, and torch abort. The terminal is as it was.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
