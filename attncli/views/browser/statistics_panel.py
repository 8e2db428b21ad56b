"""The statistics of the chosen head and of the chosen row."""

from rich.segment import Segment

from attncli.plain_text import plain_text
from attncli.views.browser.panel import Panel, fitted
from attncli.views.browser.tones import BOLD, DIM
from attncli.views.numbers import scalar

PRECISION = 4


class StatisticsPanel(Panel):
    """A click on a statistic of the head sorts by it."""

    def heading(self) -> str:
        """Which head."""
        choice = self.choice
        return choice.grid.name_of(choice.number) or "this map"

    def _lines(self) -> list[tuple[str, float | None]]:
        choice = self.choice
        of_head = [(name, float(values[choice.place])) for name, values in choice.grid.statistics.items()]
        of_token = choice.token_statistics
        if not of_token:
            return [*of_head]
        side = "key" if choice.is_received else "row"
        return [*of_head, (f"{side} {choice.token_labels[choice.token].strip()}", None), *of_token.items()]

    def num_lines(self) -> int:
        """Those of the head, then those of the row or key."""
        return len(self._lines())

    def line(self, number: int, width: int) -> list[Segment]:
        """A name and a number."""
        name, value = self._lines()[number]
        if value is None:
            return [Segment(fitted(name, width), BOLD)]
        shown = scalar(value, PRECISION)
        room = max(width - len(shown) - 1, 0)
        is_chosen = number < len(self.choice.grid.statistics) and name == self.choice.statistic
        style = BOLD if is_chosen else None
        return [Segment(fitted(plain_text(name), room), style or DIM), Segment(f" {shown}", style)]

    def clicked(self, line: int, x: int) -> bool:
        """Sort by the statistic under the mouse."""
        names = list(self.choice.grid.statistics)
        if not 0 <= line < len(names):
            return False
        self.choice.choose_statistic(names[line])
        return True
