"""First screens: what a bare command answers, in 24 to 30 lines at 80 columns; --show has the rest."""

from collections.abc import Callable, Iterator

from attncli.report import Report
from attncli.views import Display
from attncli.views.tables.elements import Section
from attncli.views.tables.screens.attention import attention_screen, average_screen
from attncli.views.tables.screens.comparisons import comparison_screen, pitfalls_screen, results_screen
from attncli.views.tables.screens.generate import generate_screen
from attncli.views.tables.screens.head_effects import ablate_screen, why_screen
from attncli.views.tables.screens.heads import heads_screen
from attncli.views.tables.screens.lessons import norm_screen, scale_demo_screen

Screen = Callable[[Report, Display], Iterator[Section]]

# An experiment without a screen of its own shows everything. Display.width is a number here.
SCREENS: dict[str, Screen] = {
    "average": average_screen,
    "self": attention_screen,
    "multihead": attention_screen,
    "cross": attention_screen,
    "show": attention_screen,
    "scale-demo": scale_demo_screen,
    "norm": norm_screen,
    "pitfalls": pitfalls_screen,
    "heads": heads_screen,
    "generate": generate_screen,
    "ablate": ablate_screen,
    "why": why_screen,
    "diff": comparison_screen,
    "results": results_screen,
}
