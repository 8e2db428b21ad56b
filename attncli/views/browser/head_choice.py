"""Which map is chosen: a tensor, a layer and a head; the moves between them, and the heads in an order."""

from collections.abc import Sequence

import numpy as np

from attncli.views.browser.atlas import Grid, Place
from attncli.views.matrices import Matrix


class HeadChoice:
    """The chosen map. `is_ranked`: the heads stand in the order of `statistic`."""

    def __init__(
        self, grids: Sequence[Grid], *, sort: str | None = None, smallest_first: bool = False
    ) -> None:
        self.grids = grids
        self.grid_number = self.number = 0
        self.statistic = sort
        self.is_ranked, self.smallest_first = sort is not None, smallest_first
        self.settle()
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

    def settle(self) -> None:
        """Keep the choice inside what there is."""
        grid = self.grid
        self.number = min(self.number, grid.num_places - 1)
        if self.statistic not in grid.statistics:
            self.statistic = next(iter(grid.statistics), None)
            self.is_ranked = self.is_ranked and self.statistic is not None

    def step_grid(self, step: int) -> None:
        """The next tensor, or that of the next report."""
        self.grid_number = (self.grid_number + step) % len(self.grids)
        self.settle()

    def choose_head(self, number: int) -> None:
        """That head, counted along the layers."""
        self.number = number
        self.settle()

    def step_head(self, down: int, right: int) -> None:
        """A layer up or down, a head left or right; in a ranking, from one rank to the next."""
        if self.is_ranked:
            ranking = self.ranking
            rank = ranking.index(self.number) + down + right
            self.choose_head(ranking[min(max(rank, 0), len(ranking) - 1)])
            return
        row, column = divmod(self.number, self.grid.num_columns)
        row = min(max(row + down, 0), self.grid.num_rows - 1)
        column = min(max(column + right, 0), self.grid.num_columns - 1)
        self.choose_head(row * self.grid.num_columns + column)

    @property
    def ranking(self) -> list[int]:
        """The numbers of the heads by the chosen statistic; those without one last."""
        values = self.grid.statistics.get(self.statistic or "")
        if values is None:
            return list(range(self.grid.num_places))
        keys = values.ravel() if self.smallest_first else -values.ravel()
        order: list[int] = np.argsort(keys, kind="stable").tolist()
        return order

    def rank(self, step: int) -> None:
        """Rank the heads by the chosen statistic; where they are ranked, by the one so many after it."""
        if self.statistic is None:
            return
        if self.is_ranked:
            names = list(self.grid.statistics)
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
