"""Threads that measure one model do so one after another; one forked meanwhile has it unchanged."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, RLock, get_ident

import torch
from transformers import PreTrainedModel

from attncli.core.process import ALONE
from attncli.errors import UserError
from attncli.models.capture import remembered
from attncli.models.model_state import configs_of
from attncli.models.patched_heads import OpenItems
from attncli.models.pretrained import Pretrained

TRIED_AGAIN = 0.05
"""Seconds after which a thread that waits looks by itself whether it may go on."""


class _Use:
    """What a thread must use alone: the parts of a model, or state of the whole process.

    `parts` returns the present parts, which another thread may change until this one has its turn.
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
        """Look at the parts as they are now; whether there are others than before."""
        try:
            self.parts = self.find_parts()  # kept, so that nothing else has their ids
        except RuntimeError:  # a dict has changed meanwhile
            return True
        before, self.ids = self.ids, frozenset(map(id, self.parts))
        return not self.ids <= before

    def is_in_the_way_of(self, other: "_Use") -> bool:
        """Whether one of two waits; a thread does not wait for itself to load a model."""
        if self.thread != other.thread and (self.everything or other.everything):
            return True
        return not self.ids.isdisjoint(other.ids)


_uses: list[_Use] = []
_waiting: dict[int, _Use] = {}
"""What each waiting thread waits for."""
_table = RLock()
"""Of both; held for a few statements."""


def _begin(use: _Use) -> None:
    """Take the parts, when no other thread has any of them. Raises UserError where that would never be."""
    use.has_new_parts()
    while True:
        with _table:
            other = next((each for each in _uses if each.is_in_the_way_of(use)), None)
            if other is None:
                _uses.append(use)
                if not use.has_new_parts():
                    return
                _uses.remove(use)
                continue
            if _leads_to(other, use.thread):
                raise UserError(
                    f"model: {use.name} is being measured by what calls this: call attn when that has ended, "
                    "not from a hook of the model or a callback"
                )
            _waiting[use.thread] = other
        try:
            if other.running.acquire(timeout=TRIED_AGAIN):
                other.running.release()
        finally:
            _waiting.pop(use.thread, None)


def _leads_to(use: _Use | None, thread: int) -> bool:
    """Whether a use ends no sooner than the thread goes on."""
    while use is not None:
        if use.thread == thread:
            return True
        use = _waiting.get(use.thread)
    return False


def _end(use: _Use) -> None:
    """Undo what was changed, and let the next thread in; nothing where that has been done."""
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
        finally:  # once more, since Ctrl-C may have come in between
            _end(use)


@contextmanager
def sole_use(model: PreTrainedModel | torch.nn.Module, name: str) -> Iterator[None]:
    """While it is open no other thread measures the model, or one that shares parts or configs with it.

    Afterwards its attributes, parts, hooks and configs are as before, in the child of a fork, too. UserError
    for a thread that measures it already, as a hook of the model does.
    """
    use = _Use(name, lambda: [*model.modules(), *configs_of(model)])
    with _used(use, lambda: remembered(model)):
        yield


_in_use_for_all = OpenItems[Pretrained]("in_use_for_all")


def in_use_for_all(pretrained: Pretrained) -> AbstractContextManager[None]:
    """While it is open, whatever this context measures of the model measures it as it is in use here."""
    return _in_use_for_all.opened(pretrained)


def in_use_for_none() -> AbstractContextManager[None]:
    """While it is open, as in a measurement, whoever would measure such a model again is refused."""
    return _in_use_for_all.none()


def kept_in_use(whole: PreTrainedModel) -> Pretrained | None:
    """The model as it is in use for all; None where it is not."""
    return next((each for each in _in_use_for_all.of_context() if each.whole is whole), None)


@contextmanager
def nothing_else_measured() -> Iterator[None]:
    """While it is open no other thread measures a model: torch's default dtype, say, is another."""
    with _used(_Use(everything=True)):
        yield


@contextmanager
def one_at_a_time(part: object) -> Iterator[None]:
    """While it is open no other thread does what this one does with something of the whole process."""
    is_mine = any(use.thread == get_ident() and part in use.parts for use in [*_uses])
    with _used(_Use(parts=lambda: [] if is_mine else [part])):
        yield


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """While open, only this thread draws from torch's global generator, which is restored afterwards."""
    with one_at_a_time(torch.default_generator), torch.random.fork_rng():
        yield


def _before_fork() -> None:
    ALONE.acquire()  # first: it is held for longer
    _table.acquire()


def _after_fork() -> None:
    _table.release()
    ALONE.release()


def _after_fork_in_child() -> None:
    """The other threads are not there: what they had is given back."""
    _after_fork()
    _waiting.clear()
    for use in [*_uses]:
        if use.thread != get_ident():
            _end(use)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
