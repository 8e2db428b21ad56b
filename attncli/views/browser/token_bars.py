"""The row of the chosen token as bars: where it looks, or who looks at it."""

import numpy as np
from rich.segment import Segment

from attncli.views.browser.panel import Panel, fitted
from attncli.views.browser.tones import CHOSEN, DIM
from attncli.views.numbers import fixed
from attncli.views.terminal.blocks import bar
from attncli.views.terminal.palettes import levels

PRECISION = 4
NUMBER_WIDTH, SWATCH = 10, 2
LONGEST_LABEL, SHORTEST_LABEL = 24, 8


class TokenBars(Panel):
    """One line per token: its label, its number, and a bar in proportion to the largest."""

    def heading(self) -> str:
        """The token whose row it is, and the order."""
        choice = self.choice
        token = choice.token_labels[choice.token].strip()
        question = f"who looks at {token}" if choice.is_received else f"where {token} looks"
        return question + (", largest first" if choice.by_weight else "")

    def num_lines(self) -> int:
        """One per token of the other axis."""
        return len(self.choice.numbers)

    def show(self) -> None:
        """Find the order and the longest bar once, not for every line."""
        choice = self.choice
        self._order = choice.order
        sizes = np.where(np.isnan(choice.places), 0, np.nan_to_num(np.abs(choice.numbers.astype(np.float64))))
        most = float(sizes.max(initial=0))
        self._shares = sizes / most if most > 0 else sizes
        self._levels = levels(choice.places)
        super().show()

    def line(self, number: int, width: int) -> list[Segment]:
        """Label, number, bar."""
        choice, token = self.choice, self._order[number]
        label_width = min(max(SHORTEST_LABEL, width // 3), LONGEST_LABEL)
        shown = fixed(float(choice.numbers[token]), PRECISION)
        is_chosen = choice.has_one_text and token == choice.token
        pieces = [
            Segment(fitted(choice.bar_labels[token], label_width), CHOSEN if is_chosen else None),
            Segment(f"{shown:>{NUMBER_WIDTH}} ", None if self._shares[token] > 0 else DIM),
        ]
        # The bar has the colour of text, readable on any background; the colour of the map precedes it.
        pieces += self.tones(choice.shading).cells(self._levels[token : token + 1], SWATCH)
        room = max(width - label_width - NUMBER_WIDTH - SWATCH - 2, 0)
        return [*pieces, Segment(" " + bar(float(self._shares[token]), room))]

    def line_to_show(self) -> int:
        """That of the largest number."""
        if self.choice.by_weight:
            return 0
        return int(np.argmax(self._shares)) if len(self._shares) else 0

    def clicked(self, line: int, x: int) -> bool:
        """Follow the token under the mouse."""
        self.choice.follow(self._order[line])
        return True
