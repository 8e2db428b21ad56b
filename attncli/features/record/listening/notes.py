"""Notes on a recorded program."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_LISTED = 3
"""Maximum number of modules that a line lists."""


def listed(paths: Iterable[str]) -> str:
    """Return the first few paths as a list in words, with the number of further paths."""
    names = [*paths]
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


@dataclass
class ListenerNotes:
    """Collects notes about a program: whole lines, remarks on modules, and missed calls."""

    whole_lines: dict[str, None] = field(default_factory=dict)
    remarks: dict[str, dict[str, None]] = field(default_factory=dict)
    """The paths of the modules that each remark is about."""
    missed: Counter[str] = field(default_factory=Counter)

    def say(self, line: str) -> None:
        """Add a line unless it has already been added."""
        self.whole_lines[line] = None

    def remark(self, path: str, remark: str) -> None:
        """Add a remark about a module."""
        self.remarks.setdefault(remark, {})[path] = None

    def miss(self, path: str, reason: object) -> None:
        """Count a call of a module that could not be read."""
        self.missed[f"{path}: {reason}"] += 1

    def lines(self) -> list[str]:
        """Return the lines to print."""
        remarks = (f"{listed(paths)}: {remark}." for remark, paths in self.remarks.items())
        missed = (
            f"{reason}{f' ({count:,} times)' if count > 1 else ''}." for reason, count in self.missed.items()
        )
        return [*self.whole_lines, *remarks, *missed]
