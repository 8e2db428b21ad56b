"""Temporary changes to the whole process, safe while other threads compute or fork.

This module does not import torch. Python's warnings, standard error and the parts of torch that transformers
replaces while it loads a model are shared by all threads. At any time, only one thread may change this state,
or several threads that need the same change.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from weakref import WeakSet

ALONE = RLock()
"""Held during a change to the process that two threads cannot share."""


@contextmanager
def quiet_warnings(*errors: type[Warning]) -> Iterator[None]:
    """Hide all warnings inside the block, but raise warnings of the types in `errors`; one thread at a time.

    If two threads used `warnings.catch_warnings`, the filters of one would remain in the whole process.
    """
    with ALONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for error in errors:
            warnings.simplefilter("error", error)
        yield


_shared: "WeakSet[SharedChange]" = WeakSet()
_forking: "list[SharedChange]" = []


class SharedChange:
    """A change that several threads may need at once: the first thread makes it, the last one undoes it.

    `remember` returns a function that restores the present state, and `make` makes the change.
    """

    def __init__(self, remember: Callable[[], Callable[[], None]], make: Callable[[], None]) -> None:
        self._remember, self._make = remember, make
        self._undo: Callable[[], None] | None = None
        self._users: dict[object, int] = {}
        self._lock = RLock()
        _shared.add(self)

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the change for the duration of the with-block."""
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
            finally:  # again, in case Ctrl-C interrupted the first call
                self._end(user)

    def _end(self, user: object) -> None:
        with self._lock:
            self._users.pop(user, None)
            if not self._users and self._undo is not None:
                self._undo()
                self._undo = None

    def before_fork(self) -> None:
        """Wait until no change is half done."""
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        """In the child, undo the changes of the other threads: only the forking thread exists there."""
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
