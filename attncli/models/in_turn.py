"""Exclusive use of a model: only one thread measures the model at a time, and a fork gets it unchanged."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, RLock, get_ident

import torch
from transformers import PreTrainedModel

from attncli.core.process import ALONE
from attncli.errors import UserError
from attncli.models.capture import remembered
from attncli.models.model_state import model_configs
from attncli.models.patched_heads import OpenItems
from attncli.models.pretrained import Pretrained

TRIED_AGAIN = 0.05
"""The number of seconds after which a waiting thread checks again whether it may continue."""


class _Use:
    """A thread's exclusive use of the parts of a model, or of state of the whole process.

    `parts` returns the current parts; until this thread has its turn, another thread may change the parts.
    """

    def __init__(
        self, name: str = "", parts: Callable[[], list[object]] = list, *, everything: bool = False
    ) -> None:
        self.thread, self.name, self.everything = get_ident(), name, everything
        self.find_parts, self.parts = parts, list[object]()
        self.ids: frozenset[int] = frozenset()
        self.undo: Callable[[], None] | None = None
        self.has_ended = False
        self.running = Lock()
        self.running.acquire()

    def has_new_parts(self) -> bool:
        """Read the current parts, and return True if some of these are new."""
        try:
            self.parts = self.find_parts()  # stored, so that no other object can get their ids
        except RuntimeError:  # a dict changed during iteration
            return True
        before, self.ids = self.ids, frozenset(map(id, self.parts))
        return not self.ids <= before

    def conflicts_with(self, other: "_Use") -> bool:
        """Return True if one of the two uses must wait; loading never waits for the same thread's uses."""
        if self.thread != other.thread and (self.everything or other.everything):
            return True
        return not self.ids.isdisjoint(other.ids)


_uses: list[_Use] = []
_waiting: dict[int, _Use] = {}
"""The use that each waiting thread is waiting for."""
_table = RLock()
"""The lock for `_uses` and `_waiting`; it is held only for a few statements."""


def _begin(use: _Use) -> None:
    """Take the parts once no other thread uses any of them. Raises UserError if that would take forever."""
    use.has_new_parts()
    while True:
        with _table:
            blocking = next((each for each in _uses if each.conflicts_with(use)), None)
            if blocking is None:
                _uses.append(use)
                if not use.has_new_parts():
                    return
                _uses.remove(use)
                continue
            if _leads_to(blocking, use.thread):
                raise UserError(
                    f"model: {use.name} is already being measured by the code that made this call: call attn "
                    "after the measurement, not from a model hook or a callback"
                )
            _waiting[use.thread] = blocking
        try:
            if blocking.running.acquire(timeout=TRIED_AGAIN):
                blocking.running.release()
        finally:
            _waiting.pop(use.thread, None)


def _leads_to(use: _Use | None, thread: int) -> bool:
    """Return True if a use cannot end before this thread continues."""
    while use is not None:
        if use.thread == thread:
            return True
        use = _waiting.get(use.thread)
    return False


def _end(use: _Use) -> None:
    """Undo changes and let the next thread continue. A second call does nothing."""
    if use.undo is not None:
        use.undo()
        use.undo = None
    with _table:
        if use in _uses:
            _uses.remove(use)
        if not use.has_ended:
            use.has_ended = True
            use.running.release()


@contextmanager
def _used(use: _Use, change: Callable[[], Callable[[], None]] | None = None) -> Iterator[None]:
    try:
        _begin(use)
        if change is not None:
            use.undo = change()
        yield
    finally:
        try:
            _end(use)
        finally:  # again, in case Ctrl-C interrupted the first call
            _end(use)


@contextmanager
def sole_use(model: PreTrainedModel | torch.nn.Module, name: str) -> Iterator[None]:
    """Inside the block, keep other threads from measuring this model or one that shares parts or configs.

    Afterwards, its attributes, parts, hooks and configs are restored, also in a forked child. Raises
    UserError for a thread that is already measuring the model, as a hook of the model would be.
    """
    use = _Use(name, lambda: [*model.modules(), *model_configs(model)])
    with _used(use, lambda: remembered(model)):
        yield


_in_use_for_all = OpenItems[Pretrained]("in_use_for_all")


def in_use_for_all(pretrained: Pretrained) -> AbstractContextManager[None]:
    """Inside the block, share the model's current use with all measurements of this context."""
    return _in_use_for_all.opened(pretrained)


def in_use_for_none() -> AbstractContextManager[None]:
    """Inside the block, refuse further measurements of a shared model, as during a measurement."""
    return _in_use_for_all.none()


def shared_use(whole: PreTrainedModel) -> Pretrained | None:
    """Return the model if its use is shared with all measurements, or None if it is not."""
    return next((each for each in _in_use_for_all.in_context() if each.whole is whole), None)


@contextmanager
def nothing_else_measured() -> Iterator[None]:
    """Inside the block, keep other threads from measuring any model, as when the default dtype is changed."""
    with _used(_Use(everything=True)):
        yield


@contextmanager
def one_at_a_time(part: object) -> Iterator[None]:
    """Inside the block, keep other threads from performing the same action on a part of the whole process."""
    is_mine = any(use.thread == get_ident() and part in use.parts for use in [*_uses])
    with _used(_Use(parts=lambda: [] if is_mine else [part])):
        yield


@contextmanager
def random_state_restored() -> Iterator[None]:
    """Reserve torch's global generator for this thread inside the block, and restore it afterwards."""
    with one_at_a_time(torch.default_generator), torch.random.fork_rng():
        yield


def _before_fork() -> None:
    ALONE.acquire()  # this comes first, since it is held longer
    _table.acquire()


def _after_fork() -> None:
    _table.release()
    ALONE.release()


def _after_fork_in_child() -> None:
    """Release the uses of other threads, which do not exist in the child process."""
    _after_fork()
    _waiting.clear()
    for use in [*_uses]:
        if use.thread != get_ident():
            _end(use)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
