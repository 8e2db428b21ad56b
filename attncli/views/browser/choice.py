"""What is chosen of a report: a map, a token, an order and colours; and the moves from one to the next."""

from collections.abc import Sequence

import numpy as np

from attncli.views.browser.atlas import Grid, Place
from attncli.views.browser.head_figures import received_mass, row_figures
from attncli.views.browser.labels import side_labels
from attncli.views.colormaps import SCALES, Shading, shading
from attncli.views.matrices import Matrix

KEPT_SHADINGS = 16


class Choice:
    """The state of the browser; no textual in it.

    `is_received`: who looks at the chosen key, instead of where the chosen query looks. `is_ranked`: the
    heads stand in the order of `statistic`. `by_weight`: the bars stand in the order of their numbers.
    """

    def __init__(
        self,
        grids: Sequence[Grid],
        *,
        scale: str = "linear",
        skip_sink: int = 0,
        sort: str | None = None,
    ) -> None:
        self.grids = grids
        self.scale = scale
        self.num_sinks = max(1, skip_sink)
        self.skips = skip_sink > 0
        self.is_received = self.by_weight = self.smallest_first = False
        self.grid_number = self.number = self.query = self.key = 0
        self.statistic: str | None = sort
        self.is_ranked = sort is not None
        self._shadings: dict[tuple[int, int, str, int], Shading] = {}
        self._settle()
        if self.is_ranked:
            self.number = self.ranking[0]

    @property
    def grid(self) -> Grid:
        """The maps of one name."""
        return self.grids[self.grid_number]

    @property
    def place(self) -> Place:
        """Where the chosen map stands among them."""
        return self.grid.place(self.number)

    @property
    def matrix(self) -> Matrix:
        """The chosen map."""
        return self.grid.maps[self.place]

    @property
    def title(self) -> str:
        """`weights (query × key), layer 0, head 3`."""
        return self.matrix.title

    @property
    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the queries and of the keys."""
        return side_labels(self.grid, self.matrix)

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
    def colouring(self) -> tuple[int, int, str, int]:
        """What the colours of the map follow from."""
        return self.grid_number, self.number, self.scale, self.skip

    @property
    def shading(self) -> Shading:
        """The places of the chosen map on the colour map; those of the last maps are kept."""
        key = self.colouring
        if key not in self._shadings:
            while len(self._shadings) >= KEPT_SHADINGS:
                del self._shadings[next(iter(self._shadings))]
            self._shadings[key] = shading(self.matrix.values, self.scale, skip_keys=self.skip)
        return self._shadings[key]

    # Heads

    @property
    def ranking(self) -> list[int]:
        """The numbers of the heads by the chosen statistic; those without one last."""
        figure = self.grid.figures.get(self.statistic or "")
        if figure is None:
            return list(range(self.grid.num_places))
        order: list[int] = np.argsort(
            figure.ravel() if self.smallest_first else -figure.ravel(), kind="stable"
        ).tolist()
        return order

    def step_head(self, down: int, right: int) -> None:
        """A layer up or down, a head left or right; in a ranking, from one rank to the next."""
        if self.is_ranked:
            ranking = self.ranking
            rank = ranking.index(self.number) + down + right
            self.number = ranking[min(max(rank, 0), len(ranking) - 1)]
        else:
            row, column = divmod(self.number, self.grid.num_columns)
            row = min(max(row + down, 0), self.grid.num_rows - 1)
            column = min(max(column + right, 0), self.grid.num_columns - 1)
            self.number = row * self.grid.num_columns + column
        self._settle()

    def choose_head(self, number: int) -> None:
        """That head, counted along the layers."""
        self.number = number
        self._settle()

    def rank(self, step: int) -> None:
        """Rank the heads by the chosen statistic; where they are ranked, by the one so many after it."""
        names = list(self.grid.figures)
        if self.statistic is None:
            return
        if self.is_ranked:
            self.statistic = names[(names.index(self.statistic) + step) % len(names)]
        self.is_ranked = True

    def choose_statistic(self, name: str) -> None:
        """That statistic for the ranking and for the shades of the grid."""
        self.statistic = name

    def toggle_ranking(self) -> None:
        """The grid of layers and heads, or the ranking."""
        self.is_ranked = not self.is_ranked and self.statistic is not None

    def reverse(self) -> None:
        """Rank the smallest first, or the largest."""
        self.smallest_first = not self.smallest_first

    # Tokens

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
    def token_figures(self) -> dict[str, float]:
        """The statistics of the chosen row, or of the chosen key."""
        grid = self.grid
        if self.matrix.axes != ("query", "key"):
            return {}
        find = received_mass if self.is_received else row_figures
        return find(grid.report, grid.axes, self.place, self.token)

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
        self._settle()

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

    # Colours and tensors

    def toggle_sink(self) -> None:
        """Leave the first keys out of the colours, or take them in."""
        self.skips = not self.skips

    def step_scale(self) -> None:
        """The next of linear, log and row."""
        self.scale = SCALES[(SCALES.index(self.scale) + 1) % len(SCALES)]

    def step_grid(self, step: int) -> None:
        """The next tensor, or that of the next report."""
        self.grid_number = (self.grid_number + step) % len(self.grids)
        self._settle()

    def _settle(self) -> None:
        """Keep every choice inside what there is."""
        grid = self.grid
        self.number = min(self.number, grid.num_places - 1)
        rows, columns = self.matrix.values.shape
        self.query, self.key = min(self.query, rows - 1), min(self.key, columns - 1)
        if self.statistic not in grid.figures:
            self.statistic = next(iter(grid.figures), None)
            self.is_ranked = self.is_ranked and self.statistic is not None
