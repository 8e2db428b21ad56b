"""The lines that a listener has to say of a program."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_NAMED = 3
"""Modules that a line names."""


def listed(paths: Iterable[str]) -> str:
    """The first of several, and how many more there are."""
    named = [*paths]
    rest = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


@dataclass
class ListenerNotes:
    """Collects what to say of a program: changes while it was recorded, remarks on modules, missed calls."""

    said: dict[str, None] = field(default_factory=dict)
    remarks: dict[str, dict[str, None]] = field(default_factory=dict)
    """The paths of the modules that each remark is about."""
    not_heard: Counter[str] = field(default_factory=Counter)

    def say(self, line: str) -> None:
        """A whole line, once."""
        self.said[line] = None

    def remark(self, path: str, remark: str) -> None:
        """Something about a module."""
        self.remarks.setdefault(remark, {})[path] = None

    def miss(self, path: str, reason: object) -> None:
        """A call of a module that was not heard."""
        self.not_heard[f"{path}: {reason}"] += 1

    def lines(self) -> list[str]:
        """The lines to print."""
        remarks = (f"{listed(paths)}: {remark}." for remark, paths in self.remarks.items())
        missed = (
            f"{reason}{f' ({count:,} times)' if count > 1 else ''}."
            for reason, count in self.not_heard.items()
        )
        return [*self.said, *remarks, *missed]
