"""What attn changes of the whole process for a while, though other threads compute and others fork.

A leaf without torch. Python's warnings, standard error and what transformers replaces of torch while it loads
a model belong to no thread: whoever changes them does so alone, or together with those who want the same.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from weakref import WeakSet

ALONE = RLock()
"""Held while something of the process is changed in a way that two threads could not share."""


@contextmanager
def quiet_warnings(*errors: type[Warning]) -> Iterator[None]:
    """While it is open no warnings are shown, and those of `errors` are raised; one thread at a time.

    `warnings.catch_warnings` of two threads would leave the filters of one to the whole process.
    """
    with ALONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for error in errors:
            warnings.simplefilter("error", error)
        yield


_shared: "WeakSet[SharedChange]" = WeakSet()
_forking: "list[SharedChange]" = []


class SharedChange:
    """A change of the process that several threads may need at once: the first makes it, the last undoes it.

    `remember` returns the function that restores the present state, `make` makes the change.
    """

    def __init__(self, remember: Callable[[], Callable[[], None]], make: Callable[[], None]) -> None:
        self._remember, self._make = remember, make
        self._undo: Callable[[], None] | None = None
        self._users: dict[object, int] = {}
        self._lock = RLock()
        _shared.add(self)

    @contextmanager
    def made(self) -> Iterator[None]:
        """While it is open, the process has the change."""
        user = object()
        try:
            with self._lock:
                self._users[user] = get_ident()
                if self._undo is None:
                    self._undo = self._remember()
                    self._make()
            yield
        finally:
            try:
                self._end(user)
            finally:  # once more, since Ctrl-C may have come in between
                self._end(user)

    def _end(self, user: object) -> None:
        with self._lock:
            self._users.pop(user, None)
            if not self._users and self._undo is not None:
                self._undo()
                self._undo = None

    def before_fork(self) -> None:
        """Wait for a change that is half made."""
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        """Threads other than the one that forks are not there in the child: what they wanted is undone."""
        try:
            for user, thread in [*self._users.items()] if is_child else ():
                if thread != get_ident():
                    self._end(user)
        finally:
            self._lock.release()


def _before_fork() -> None:
    ALONE.acquire()
    _forking[:] = _shared
    for change in _forking:
        change.before_fork()


def _after_fork(is_child: bool) -> None:
    for change in _forking:
        change.after_fork(is_child=is_child)
    _forking.clear()
    ALONE.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(is_child=False),
    after_in_child=lambda: _after_fork(is_child=True),
)
