"""Which module of a program is running: its path in the outermost module that was called, by global hooks."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from threading import Lock, local
from types import CodeType, FrameType
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from attncli.features.record.listening.torch_paths import ASKING, unseen_modes

NUMBERS_OF_HEADS = (
    *("num_heads", "n_heads", "num_attention_heads", "nhead", "n_head", "heads", "attention_heads"),
    *("num_attn_heads", "nheads", "h"),
)
"""What modules call the number of their heads."""
COMPILED = "_orig_mod"
"""What torch.compile calls the module that it wraps."""


CALLING_HOOKS = {code for code in nn.Module._call_impl.__code__.co_consts if isinstance(code, CodeType)}
"""What of torch calls a module's forward where there are hooks, in `_call_impl`."""
CALLING = {nn.Module._call_impl.__code__, *CALLING_HOOKS}
MOST_BETWEEN = 16
"""Frames between a hook and that."""
Held = TypeVar("Held")


class ByModule(Generic[Held]):
    """What is kept of modules by identity, until they are gone: some are equal, or have no hash."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[ref[nn.Module], Held]] = {}

    def get(self, module: nn.Module) -> Held | None:
        """What is kept of a module."""
        kept = self._kept.get(id(module))
        return kept[1] if kept is not None and kept[0]() is module else None

    def keep(self, module: nn.Module, value: Held) -> None:
        """Keep something of a module."""
        number, kept = id(module), self._kept

        def forget(gone: ref[nn.Module]) -> None:
            if (there := kept.get(number)) is not None and there[0] is gone:
                del kept[number]

        kept[number] = ref(module, forget), value

    def items(self) -> Iterator[tuple[nn.Module, Held]]:
        """The modules that are still there, and what is kept of them."""
        for weak, value in [*self._kept.values()]:
            if (module := weak()) is not None:
                yield module, value


@dataclass
class CalledModule:
    """A module that is running, how often attention was heard in this call of it, and its frame.

    `num_tokens` is how long the texts are that it pads, where it is an encoder of torch's.
    """

    module: nn.Module
    num_heard: int = 0
    frame: FrameType | None = None
    num_tokens: int | None = None
    asks: bool = False

    def has_ended(self) -> bool:
        """Whether the call is over, though no hook was told: a BaseException calls none."""
        if self.frame is None:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None


class RunningModules:
    """The modules that are running in each thread, outermost first, while `watched` is open.

    `entered` and `left` are told of each thread's outermost module.
    """

    def __init__(self) -> None:
        self._threads = local()
        self._paths: ByModule[dict[int, str]] = ByModule()
        self._given: ByModule[str] = ByModule()
        self._holders: dict[str, ref[nn.Module]] = {}
        self.num_outermost = 0
        self._num_asking = 0
        self._lock = Lock()
        self.has_scripted = False

    @property
    def stack(self) -> list[CalledModule]:
        """Those of this thread."""
        stack: list[CalledModule] | None = getattr(self._threads, "stack", None)
        if stack is None:
            stack = self._threads.stack = []
        return stack

    def enter(self, module: nn.Module, inputs: object = ()) -> None:
        """A module begins to run."""
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
        """Which call of an outermost module it is that runs in this thread; without one each is another."""
        if not self.stack:
            self.num_outermost += 1
            return self.num_outermost
        number: int = self._threads.outermost
        return number

    def leave(self, module: nn.Module) -> None:
        """A module ended, and with it those in it that were cut off."""
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
        """Nothing is watched any longer: what is still running is forgotten."""
        with self._lock:
            unseen_modes.end(self._num_asking)
            self._num_asking = 0
        self._threads = local()

    @contextmanager
    def within(self, module: nn.Module) -> Iterator[None]:
        """A module that runs without being called."""
        stack = self.stack
        stack.append(CalledModule(module))
        yield
        stack.pop()

    def drop_ended(self) -> None:
        """Forget modules that a BaseException left."""
        stack = self.stack
        while stack and stack[-1].has_ended():
            self._pop()

    def path(self) -> str:
        """The path of the innermost module, or the function that runs where none does."""
        stack = self.stack
        if not stack:
            return _running_function()
        names = self._names(stack[0].module)
        innermost = next(called.module for called in reversed(stack) if id(called.module) in names)
        if (given := self._given.get(innermost)) is None:
            given = self._new_path(innermost, names[id(innermost)])
            self._given.keep(innermost, given)
        return given

    def _new_path(self, module: nn.Module, name: str) -> str:
        """What a module is called from now on, whatever calls it: its name, if no other is called so.

        Else the class of the outermost module stands before it, numbered where that does not suffice.
        """
        root = type(self.stack[0].module).__name__
        path = ".".join(part for part in name.split(".") if part != COMPILED) or root
        rooted = path if path == root else f"{root}.{path}"
        others = (f"{root}-{number}{rooted.removeprefix(root)}" for number in count(2))
        for free in chain([path, rooted], others):
            holder = self._holders.get(free)
            if holder is None or holder() is None:
                self._holders[free] = ref(module)
                return free
        raise AssertionError("some number is free")

    def _names(self, root: nn.Module) -> dict[int, str]:
        """The names in an outermost module, or in one that holds it and was outermost before."""
        for other, names in self._paths.items():
            if id(root) in names and other is not root and names[id(root)]:
                return names
        names = self._paths.get(root) or {}
        if any(id(called.module) not in names for called in self.stack):
            names = _names_within(root)
            self._paths.keep(root, names)
        return names

    def num_heads(self, divides: int, nearest: int | None = None) -> int | None:
        """The number of heads that the running modules name, the innermost first; None where none does.

        With `nearest` only so many of the innermost are asked.
        """
        for called in [*reversed(self.stack)][:nearest]:
            for holder in (called.module, getattr(called.module, "config", None)):
                for name in NUMBERS_OF_HEADS:
                    number = getattr(holder, name, None)
                    if type(number) is int and number > 0 and divides % number == 0:
                        return number
        return None

    def class_names(self) -> Sequence[str]:
        """The classes of the running modules, the innermost first."""
        return [type(called.module).__name__ for called in reversed(self.stack)]


def _calling_frame() -> FrameType | None:
    """The frame that called the hook which runs; None where another function than torch's did."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MOST_BETWEEN):
        if frame is None or frame.f_code in CALLING:
            return frame
        frame = frame.f_back
    return None


def _names_within(root: nn.Module) -> dict[int, str]:
    """The names that named_modules gives, without asking modules whether they are equal."""
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
    """The function of the program that runs, and where it stands."""
    frame = sys._getframe()
    ours, theirs = str(Path(__file__).parents[3]), str(Path(torch.__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith((ours, theirs, "<frozen")):
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
