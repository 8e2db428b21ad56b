"""What is chosen of a report: a map, a token, an order and colours; and the moves from one to the next."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from attncli.views import SCALES
from attncli.views.browser.atlas import Grid
from attncli.views.browser.head_choice import HeadChoice
from attncli.views.browser.head_statistics import token_statistics
from attncli.views.colormaps import Shading, shading
from attncli.views.labels import LabelledAxis, labelled_axes

KEPT_SHADINGS = 16

Colouring = tuple[int, int, str, int]


@lru_cache(maxsize=8)
def _labels(axis: LabelledAxis) -> tuple[str, ...]:
    return tuple(axis.labels())


class Choice(HeadChoice):
    """The state of the browser; no textual in it.

    `is_received`: who looks at the chosen key, instead of where the chosen query looks. `by_weight`: the bars
    stand in the order of their numbers.
    """

    def __init__(
        self,
        grids: Sequence[Grid],
        *,
        scale: str = "linear",
        skip_sink: int = 0,
        sort: str | None = None,
        smallest_first: bool = False,
    ) -> None:
        self.scale = scale
        self.num_sinks, self.skips = max(1, skip_sink), skip_sink > 0
        self.is_received = self.by_weight = False
        self.query = self.key = 0
        self._shape = (1, 1)
        self._shadings: dict[Colouring, Shading] = {}
        super().__init__(grids, sort=sort, smallest_first=smallest_first)

    def settle(self) -> None:
        """Keep every choice inside what there is; a token becomes the block that holds it, and back."""
        super().settle()
        (old_rows, old_columns), shape = self._shape, self.matrix.values.shape
        rows, columns = self._shape = shape[0], shape[1]
        self.query = min(self.query * rows // old_rows, rows - 1)
        self.key = min(self.key * columns // old_columns, columns - 1)

    @property
    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the queries and of the keys."""
        rows, columns = labelled_axes(self.grid.report, self.matrix)
        return _labels(rows), _labels(columns)

    @property
    def has_one_text(self) -> bool:
        """Whether queries and keys are the same tokens, so that one is chosen on both sides."""
        rows, columns = self.matrix.values.shape
        return rows == columns and not self.grid.report.context_tokens

    @property
    def skip(self) -> int:
        """The first keys that are left out of the colours; one key at least stays."""
        return min(self.num_sinks, self.matrix.values.shape[1] - 1) if self.skips else 0

    @property
    def colouring(self) -> Colouring:
        """What the colours of the map follow from."""
        return self.grid_number, self.number, self.scale, self.skip

    @property
    def shading(self) -> Shading:
        """The places of the chosen map on the colour map; those of the last maps are kept."""
        key = self.colouring
        if key not in self._shadings:
            while len(self._shadings) >= KEPT_SHADINGS:
                del self._shadings[next(iter(self._shadings))]
            self._shadings[key] = shading(
                self.matrix.drawn, self.scale, skip_keys=self.skip, from_zero=self.matrix.is_weights
            )
        return self._shadings[key]

    @property
    def token(self) -> int:
        """The chosen token on the side that is asked about."""
        return self.key if self.is_received else self.query

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The names on the side of the chosen token."""
        return self.labels[1 if self.is_received else 0]

    @property
    def bar_labels(self) -> tuple[str, ...]:
        """The names on the other side: those of the bars."""
        return self.labels[0 if self.is_received else 1]

    @property
    def numbers(self) -> np.ndarray:
        """The weights of the chosen query on every key; or of every query on the chosen key."""
        values = self.matrix.values
        found: np.ndarray = values[:, self.key] if self.is_received else values[self.query]
        return found

    @property
    def places(self) -> np.ndarray:
        """Where these numbers stand on the colour map; NaN for none and for a key that is left out."""
        places = self.shading.places
        found: np.ndarray = places[:, self.key] if self.is_received else places[self.query]
        return found

    @property
    def order(self) -> list[int]:
        """The order of the bars: by position, or the largest number first (and no number last)."""
        numbers = self.numbers
        if not self.by_weight:
            return list(range(len(numbers)))
        keys = np.where(np.isfinite(numbers), -numbers.astype(np.float64), np.inf)
        order: list[int] = np.argsort(keys, kind="stable").tolist()
        return order

    @property
    def token_statistics(self) -> dict[str, float]:
        """The statistics of the chosen row, or of the chosen key; none of a block of them."""
        axis = self.matrix.axes[1 if self.is_received else 0]
        return token_statistics(self.grid.report, self.grid.axes, self.place, axis, self.token)

    @property
    def num_tokens(self) -> int:
        """How many there are on the side of the chosen token."""
        return len(self.token_labels)

    def choose_token(self, token: int) -> None:
        """That token, on both sides where they are one text."""
        if self.is_received or self.has_one_text:
            self.key = token
        if not self.is_received or self.has_one_text:
            self.query = token
        self.settle()

    def step_token(self, step: int, *, around: bool = False) -> None:
        """So many tokens on; `around`: from the last to the first."""
        count, token = self.num_tokens, self.token + step
        self.choose_token(token % count if around else min(max(token, 0), count - 1))

    def follow(self, token: int) -> None:
        """The token of a bar: chosen where there is one text, else asked about from its side."""
        if not self.has_one_text:
            self.is_received = not self.is_received
        self.choose_token(token)

    def turn(self) -> None:
        """Ask who looks at the token, or where it looks."""
        self.is_received = not self.is_received

    def toggle_order(self) -> None:
        """The bars by position, or the largest number first."""
        self.by_weight = not self.by_weight

    def toggle_sink(self) -> None:
        """Leave the first keys out of the colours, or take them in."""
        self.skips = not self.skips

    def step_scale(self) -> None:
        """The next of linear, log and row."""
        self.scale = SCALES[(SCALES.index(self.scale) + 1) % len(SCALES)]
