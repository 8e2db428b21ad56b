"""Detects attention in any running PyTorch program from its calls of torch functions.

A TorchFunctionMode sees the functions that are called from Python. Every function runs as the program called
it; attn only reads the arguments and the result, and no error in attn reaches the program.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import zip_longest
from threading import Thread, current_thread, local
from types import FrameType, FunctionType, TracebackType
from typing import Any, Literal, no_type_check

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from attncli.features.record.listening.heard_calls import CallHint, HeardCall
from attncli.features.record.listening.hearing import LAYER_ATTENTION, UNCOMPILED, Hearing
from attncli.features.record.listening.kernels import FusedCall, Kernels, readable_call
from attncli.features.record.listening.modules import CALLING_HOOKS, RunningModules
from attncli.features.record.listening.torch_paths import (
    HANDLE,
    MULTI_HEAD_ATTENTION,
    attention_forward,
    call_from,
    is_calling,
    not_read,
    original,
    uncompiled,
)

_opened: Counter[Thread] = Counter()
"""The number of open listeners of each thread."""
UNRECORDED_THREADS = (
    "Modules that were called in other threads are not recorded: use `record` in each thread."
)
SCRIPTED = "Scripted code was called; its attention is not recorded."


def _close(thread: Thread) -> None:
    _opened[thread] -= 1
    if not _opened[thread]:
        del _opened[thread]


class Listener(TorchFunctionMode):
    """Passes a program's attention to `consume` within the context `listening`.

    - `calls`: how many of the first calls of each module to read, or "all", or "last", which reads all.
    - `modules`: path patterns such as `*.self_attn`, separated by commas.
    - `heads`: the number of heads for each pattern, for programs that merge texts and heads into one axis.
    - `all_threads`: also read the modules that other threads call.
    """

    def __init__(
        self,
        consume: Callable[[HeardCall], None],
        *,
        calls: int | Literal["all", "last"] = 1,
        modules: str | None = None,
        heads: Mapping[str, int] | None = None,
        all_threads: bool = False,
    ) -> None:
        super().__init__()
        self.calls, self.all_threads = calls, all_threads
        self.patterns = None if modules is None else [part.strip() for part in modules.split(",")]
        self.running = RunningModules()
        self._new_hearing = partial(
            Hearing, consume, self.running, calls=calls, patterns=self.patterns, heads=heads or {}
        )
        self._threads = local()
        self.begin_again()

    def begin_again(self) -> None:
        """Start again with empty counts and notes."""
        self._hearing = self._new_hearing()

    @property
    def counts(self) -> Counter[str]:
        """The number of calls of each module, by the module's path."""
        return self._hearing.counts

    @property
    def training_steps(self) -> int:
        """The number of the program's training steps so far."""
        return self._hearing.steps.steps

    def notes(self) -> list[str]:
        """Notes on everything that was changed or missed."""
        if self.running.has_scripted:
            self._hearing.notes.say(SCRIPTED)
        return self._hearing.notes.lines()

    def __exit__(self, *error: object) -> None:
        """Remove this mode from the stack, but keep modes that were added after it."""
        modes: list[TorchFunctionMode] = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if self in modes:
            above = modes[len(modes) - modes[::-1].index(self) :]
            for _ in range(len(above) + 1):
                torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
            for mode in above:
                torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Read attention in this thread, or in all threads, within this context."""
        self._thread, self._is_closed = current_thread(), False
        with ExitStack() as stack:
            stack.callback(setattr, self, "_is_closed", True)
            stack.callback(self.running.close)
            stack.callback(self._after_modules)
            stack.callback(self.running.drop_ended)
            _opened[self._thread] += 1
            stack.callback(_close, self._thread)
            before = register_module_forward_pre_hook(self._enter)
            stack.callback(before.remove)
            after = register_module_forward_hook(self._leave, always_call=True)
            stack.callback(after.remove)
            after_step = register_optimizer_step_post_hook(lambda *_: self._hearing.steps.count_update())
            stack.callback(after_step.remove)
            self._kernels = Kernels(self._hear_kernel)
            stack.callback(self._kernels.restore)
            self._kernels.replace()
            self._stance = stack
            uncompiled.watch(self._is_compiling)
            stack.callback(uncompiled.unwatch, self._is_compiling)
            self._run_uncompiled()
            if self.patterns is None:
                stack.enter_context(self)
            yield

    def _is_compiling(self, by_program: bool) -> None:
        """Note that the program compiles code, and run the code uncompiled."""
        if by_program:
            self._hearing.notes.say(UNCOMPILED)
        self._run_uncompiled()

    def _run_uncompiled(self) -> None:
        """Run compiled code uncompiled, because compiled code does not call the torch functions."""
        if self._stance is not None and uncompiled.may_begin():
            stack, self._stance = self._stance, None
            uncompiled.begin()
            stack.callback(uncompiled.end)

    _stance: ExitStack | None = None
    _is_closed = True
    is_unseen = True

    def _enter(self, module: nn.Module, inputs: object) -> None:
        try:
            self._begin(module, inputs)
        except Exception as error:  # the program must continue
            self._hearing.note_error(error, type(module).__name__)

    def _begin(self, module: nn.Module, inputs: object) -> None:
        thread = current_thread()
        if thread is not self._thread and not self.all_threads:
            if not _opened[thread]:
                self._hearing.notes.say(UNRECORDED_THREADS)
            return
        running = self.running
        stack = running.stack
        if not stack or stack[-1].has_ended():
            running.drop_ended()
            self._after_modules()
        if not stack:
            self._run_uncompiled()
            self._kernels.replace()
            if not_read() is None:
                self._hearing.follower().begin(inputs)
        running.enter(module, inputs)
        if self._is_pushed():
            return
        if self.patterns is None or self._may_hear(module, running.path()):
            self._threads.pushed_at = len(running.stack)
            self.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, module: nn.Module, _inputs: object, _output: object) -> None:
        try:
            if (raised := sys.exc_info()[1]) is not None:
                hide_frames(raised)
            elif self._is_pushed():
                self._hearing.check_module(module)
            self.running.leave(module)
            self._after_modules()
            if not self.running.stack:
                self._hearing.follower().clear()
        except Exception as error:  # the program must continue
            self._hearing.note_error(error, type(module).__name__)

    def _after_modules(self) -> None:
        """Remove the mode once the module for which it was pushed has ended."""
        stack = self.running.stack
        pushed_at = getattr(self._threads, "pushed_at", None)
        if pushed_at is not None and len(stack) < pushed_at:
            self._threads.pushed_at = None
            self.__exit__(None, None, None)

    def _is_pushed(self) -> bool:
        is_pushed_by_opener = self.patterns is None and current_thread() is self._thread
        return is_pushed_by_opener or getattr(self._threads, "pushed_at", None) is not None

    def _may_hear(self, module: nn.Module, path: str) -> bool:
        """Return True if a pattern matches a module or its attention module, which a fast path bypasses."""
        is_layer = isinstance(module, nn.TransformerEncoderLayer)
        return self._hearing.matches(path) or (
            is_layer and self._hearing.matches(f"{path}.{LAYER_ATTENTION}")
        )

    def _hear_kernel(self, name: str, read: Callable[[], FusedCall], call: Callable[[], Any]) -> Any:
        """Call another package's function and read its attention; functions that it calls are not read."""
        if not self._is_pushed():
            return call()
        self._threads.is_inside = True
        try:
            result = call()
        finally:
            self._threads.is_inside = False
        try:
            self._hearing.hear(name, lambda: readable_call(read()))
        except Exception as error:  # the program must continue
            self._hearing.note_error(error)
        return result

    @no_type_check  # its caller is the program
    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        # Threads that were running when the listener was closed still have this mode.
        if self._is_closed or getattr(self._threads, "is_inside", False):
            return function(*arguments, **named)
        called = function
        if type(function) is FunctionType:
            function = original(function)
        if function is MULTI_HEAD_ATTENTION and (reason := not_read()) is not None:
            self._hearing.notes.say(reason)
        elif function is MULTI_HEAD_ATTENTION:
            return self._through(sys._getframe(1), types, arguments, named)
        result = call_from(sys._getframe(1), function, arguments, named)
        try:
            if self._stance is not None:
                self._run_uncompiled()
            self._hearing.read_call(called, function, arguments, named, result)
        except Exception as error:  # the program must continue
            self._hearing.note_error(error)
        return result

    def _through(
        self, frame: FrameType, types: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Call torch's function with this mode active inside it; torch itself would disable the mode.

        As in torch, tensor classes that override the function come first.
        """
        places = {"query": 0, "key": 1, "num_heads": 4, "bias_k": 7, "add_zero_attn": 9}
        query, key, num_heads, bias_key, adds_zero = (
            arguments[place] if place < len(arguments) else named.get(name) for name, place in places.items()
        )
        first_query = None if bias_key is None and not adds_zero else 0
        hint = CallHint(num_heads, query is key, first_query=first_query)
        hearing = self._hearing
        before, hearing.hint = hearing.hint, hint
        try:
            with self:
                for kind in types if {*types} - {Tensor, nn.Parameter} else ():
                    result = kind.__torch_function__(MULTI_HEAD_ATTENTION, types, arguments, named)
                    if result is not NotImplemented:
                        return result
                return call_from(frame, attention_forward(), arguments, named)
        finally:
            hearing.hint = before


MOST_WRAPPED = 3
"""Maximum number of entries of a traceback between torch's call of a mode and the mode."""


def hide_frames(error: BaseException) -> None:
    """Remove the frames between a program and torch from an error's traceback."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_filename == __file__:
            # A torch function that calls a mode appears a second time after the mode.
            last = [entry.tb_frame.f_code is HANDLE for entry in entries[-MOST_WRAPPED:]]
            if any(last):
                del entries[len(entries) - len(last) + last.index(True) - 1 :]
        elif code not in CALLING_HOOKS and not is_calling(code):
            entries.append(entry)
        entry = entry.tb_next
    for entry, following in zip_longest(entries, entries[1:]):
        entry.tb_next = following
