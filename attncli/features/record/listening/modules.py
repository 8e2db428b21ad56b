"""Tracks the running modules of a program with global hooks, and their paths in the outermost module."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from threading import Lock, local
from types import CodeType, FrameType
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from attncli.features.record.listening.torch_paths import ASKING, unseen_modes

HEAD_NUMBER_ATTRIBUTES = (
    *("num_heads", "n_heads", "num_attention_heads", "nhead", "n_head", "heads", "attention_heads"),
    *("num_attn_heads", "nheads", "h"),
)
"""Names of module attributes that hold the number of heads."""
COMPILED = "_orig_mod"
"""torch.compile's name for the module that it wraps."""


CALLING_HOOKS = {code for code in nn.Module._call_impl.__code__.co_consts if isinstance(code, CodeType)}
"""Code inside `_call_impl` that calls the forward of a module with hooks."""
CALLING = {nn.Module._call_impl.__code__, *CALLING_HOOKS}
MOST_BETWEEN = 16
"""Maximum number of frames between a hook and `_call_impl`."""
Held = TypeVar("Held")


class ByModule(Generic[Held]):
    """A weak mapping from modules to values by identity, because modules may be equal or unhashable."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[nn.Module], Held]] = {}

    def get(self, module: nn.Module) -> Held | None:
        """Return a module's value, or None if it has none."""
        entry = self._entries.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def set(self, module: nn.Module, value: Held) -> None:
        """Set a module's value."""
        number, entries = id(module), self._entries

        def forget(gone: ref[nn.Module]) -> None:
            if (entry := entries.get(number)) is not None and entry[0] is gone:
                del entries[number]

        entries[number] = ref(module, forget), value

    def items(self) -> Iterator[tuple[nn.Module, Held]]:
        """Yield the living modules and their values."""
        for weak, value in [*self._entries.values()]:
            if (module := weak()) is not None:
                yield module, value


@dataclass
class CalledModule:
    """A running module, the number of attentions detected during its call, and the frame of the call.

    `has_attention` also covers the modules inside this module. `undetected` has the paths and classes of the
    modules inside this module whose names suggest attention but in which no attention was detected.
    `num_tokens` is the length of padded texts in a torch encoder.
    """

    module: nn.Module
    num_heard: int = 0
    has_attention: bool = False
    undetected: dict[str, str] = field(default_factory=dict)
    frame: FrameType | None = None
    num_tokens: int | None = None
    asks: bool = False

    def has_ended(self) -> bool:
        """Return True if the call ended without running its hooks, as after a BaseException."""
        if self.frame is None:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None


class RunningModules:
    """The running modules of each thread, the outermost first."""

    def __init__(self) -> None:
        self._threads = local()
        self._paths: ByModule[dict[int, str]] = ByModule()
        self._assigned: ByModule[str] = ByModule()
        self._holders: dict[str, ref[nn.Module]] = {}
        self.num_outermost = 0
        self._num_asking = 0
        self._lock = Lock()
        self.has_scripted = False

    @property
    def stack(self) -> list[CalledModule]:
        """The running modules of this thread."""
        stack: list[CalledModule] | None = getattr(self._threads, "stack", None)
        if stack is None:
            stack = self._threads.stack = []
        return stack

    def enter(self, module: nn.Module, inputs: object = ()) -> None:
        """Add a module that has begun to run."""
        self.has_scripted = self.has_scripted or isinstance(module, torch.jit.ScriptModule)
        stack = self.stack
        if not stack:
            self.num_outermost += 1
            self._threads.outermost = self.num_outermost
        called = CalledModule(module, frame=_calling_frame())
        if isinstance(module, ASKING):
            first = inputs[0] if isinstance(inputs, tuple) and inputs else None
            if isinstance(first, Tensor) and not first.is_nested and first.ndim == 3:
                called.num_tokens = first.shape[1]
            called.asks = True
            with self._lock:
                self._num_asking += 1
            unseen_modes.begin()
        stack.append(called)

    def outermost(self) -> int:
        """Return the number of the outermost module's running call, or a new number if no module runs."""
        if not self.stack:
            self.num_outermost += 1
            return self.num_outermost
        number: int = self._threads.outermost
        return number

    def leave(self, module: nn.Module) -> None:
        """Remove a module that has ended, and any modules inside it that were interrupted."""
        stack = self.stack
        if stack and stack[-1].module is module:
            self._pop()
            return
        while stack and any(called.module is module for called in stack):
            if self._pop().module is module:
                return

    def _pop(self) -> CalledModule:
        called = self.stack.pop()
        if called.asks:
            with self._lock:
                self._num_asking -= 1
            unseen_modes.end()
        return called

    def close(self) -> None:
        """Stop tracking, and drop the modules that are still running."""
        with self._lock:
            unseen_modes.end(self._num_asking)
            self._num_asking = 0
        self._threads = local()

    @contextmanager
    def within(self, module: nn.Module) -> Iterator[None]:
        """Treat a module as running within this context, although it was not called."""
        stack = self.stack
        stack.append(CalledModule(module))
        yield
        stack.pop()

    def drop_ended(self) -> None:
        """Drop modules whose calls a BaseException ended."""
        stack = self.stack
        while stack and stack[-1].has_ended():
            self._pop()

    def path(self) -> str:
        """Return the path of the innermost module, or the running function if no module is running."""
        stack = self.stack
        if not stack:
            return _running_function()
        names = self._names(stack[0].module)
        innermost = next(called.module for called in reversed(stack) if id(called.module) in names)
        if (path := self._assigned.get(innermost)) is None:
            path = self._new_path(innermost, names[id(innermost)])
            self._assigned.set(innermost, path)
        return path

    def _new_path(self, module: nn.Module, name: str) -> str:
        """Return a unique, permanent path for a module: its name in the outermost module, if that is free.

        Otherwise, the class of the outermost module is put before the name, with a number if necessary.
        """
        root = type(self.stack[0].module).__name__
        path = ".".join(part for part in name.split(".") if part != COMPILED) or root
        rooted = path if path == root else f"{root}.{path}"
        numbered = (f"{root}-{number}{rooted.removeprefix(root)}" for number in count(2))
        for candidate in chain([path, rooted], numbered):
            holder = self._holders.get(candidate)
            if holder is None or holder() is None:
                self._holders[candidate] = ref(module)
                return candidate
        raise AssertionError("some number is free")

    def _names(self, root: nn.Module) -> dict[int, str]:
        """Return the names of modules in an outermost module, or in an earlier one that contains it."""
        for earlier, names in self._paths.items():
            if id(root) in names and earlier is not root and names[id(root)]:
                return names
        names = self._paths.get(root) or {}
        if any(id(called.module) not in names for called in self.stack):
            names = _names_within(root)
            self._paths.set(root, names)
        return names

    def num_heads(self, divides: int, nearest: int | None = None) -> int | None:
        """Return the number of heads that a running module states, innermost first, or None if none does.

        With `nearest`, only that many innermost modules are searched.
        """
        for called in [*reversed(self.stack)][:nearest]:
            for holder in (called.module, getattr(called.module, "config", None)):
                for name in HEAD_NUMBER_ATTRIBUTES:
                    number = getattr(holder, name, None)
                    if type(number) is int and number > 0 and divides % number == 0:
                        return number
        return None

    def class_names(self) -> Sequence[str]:
        """Return the classes of the running modules, the innermost first."""
        return [type(called.module).__name__ for called in reversed(self.stack)]


def _calling_frame() -> FrameType | None:
    """Return the torch frame that called the running hook, or None if another function called it."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MOST_BETWEEN):
        if frame is None or frame.f_code in CALLING:
            return frame
        frame = frame.f_back
    return None


def _names_within(root: nn.Module) -> dict[int, str]:
    """Return the names that `named_modules` gives, without comparing modules for equality."""
    names: dict[int, str] = {}
    waiting = [("", root)]
    while waiting:
        name, module = waiting.pop()
        if id(module) not in names:
            names[id(module)] = name
            parts = [*module._modules.items()][::-1]
            waiting += [(f"{name}.{key}" if name else key, part) for key, part in parts if part is not None]
    return names


def _running_function() -> str:
    """Return the running function of the program, with its file and line."""
    frame = sys._getframe()
    ours, theirs = str(Path(__file__).parents[3]), str(Path(torch.__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith((ours, theirs, "<frozen")):
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
