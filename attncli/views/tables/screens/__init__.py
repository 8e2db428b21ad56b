"""First screens: what a bare command answers, in 24 to 30 lines at 80 columns; --show has the rest."""

from collections.abc import Callable, Iterator

from attncli.report import Report
from attncli.views import Display
from attncli.views.tables.elements import Section
from attncli.views.tables.screens.heads import heads_screen

Screen = Callable[[Report, Display], Iterator[Section]]

# An experiment without a screen of its own shows everything.
SCREENS: dict[str, Screen] = {
    "heads": heads_screen,
}
