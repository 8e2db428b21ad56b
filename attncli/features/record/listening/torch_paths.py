"""Preserves the fast paths of torch's attention modules, and keeps a mode active inside torch's functions.

In evaluation, without gradients, torch computes a whole layer in one function, with nested tensors for padded
texts. An active function mode normally prevents this; the mode of a listener does not.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from threading import Lock
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules

MULTI_HEAD_ATTENTION = functional.multi_head_attention_forward
"""torch's function, even if a program replaces it by name."""
ASKING: tuple[type[nn.Module], ...] = (
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.MultiheadAttention,
)
"""The modules that check for function modes before they take a fast path."""


def attention_forward() -> Callable[..., Any]:
    """Return torch's function with its current globals, but without the check for modes."""
    function: Any = MULTI_HEAD_ATTENTION
    inner = FunctionType(
        function.__code__,
        {**function.__globals__, "has_torch_function": lambda *_: False},
        closure=function.__closure__,
        argdefs=function.__defaults__,
    )
    inner.__kwdefaults__ = function.__kwdefaults__
    return inner


HANDLE = torch.overrides.handle_torch_function.__code__
MOST_BETWEEN = 8
"""Maximum number of frames between `handle_torch_function` and the mode."""
_FILES = {torch.functional.__file__, functional.__file__}
_ORIGINALS: dict[CodeType, FunctionType] = {
    value.__code__: value
    for module in (functional, torch.functional)
    for value in vars(module).values()
    if type(value) is FunctionType and value.__code__.co_filename in _FILES
}


def original(function: Any) -> Any:
    """Return the torch function that called the mode; if a program replaced it, torch passes the replacement.

    Call this only inside the mode, which torch's `handle_torch_function` calls.
    """
    if type(function) is not FunctionType or function.__code__ in _ORIGINALS:
        return function
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MOST_BETWEEN):
        if frame is None or frame.f_code is HANDLE:
            break
        frame = frame.f_back
    caller = None if frame is None or frame.f_code is not HANDLE else frame.f_back
    if caller is None or caller.f_code.co_filename not in _FILES or caller.f_code.co_freevars:
        return function
    code = caller.f_code
    if code not in _ORIGINALS:  # it was replaced before attn was imported
        _ORIGINALS[code] = FunctionType(code, caller.f_globals)
    return _ORIGINALS[code]


MOST_LINES = 4096
_lines: dict[tuple[CodeType, int], CodeType] = {}
"""Copies of `LINE` placed at lines of the program."""
LINE: CodeType = (lambda attn_function, arguments, named: attn_function(*arguments, **named)).__code__


def call_from(frame: FrameType, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Call a function so that warnings point to the program's line, not to attn.

    `frame` is the caller of the mode: the program, or a torch function that the program called.
    """
    if frame.f_code is HANDLE and frame.f_back is not None and frame.f_back.f_back is not None:
        frame = frame.f_back.f_back
    place = frame.f_code, frame.f_lineno
    if (code := _lines.get(place)) is None:
        if len(_lines) >= MOST_LINES:
            _lines.clear()
        code = _lines[place] = LINE.replace(
            co_filename=place[0].co_filename, co_name=place[0].co_name, co_firstlineno=place[1] or 1
        )
    return FunctionType(code, frame.f_globals)(function, arguments, named)


def is_calling(code: CodeType) -> bool:
    """Return True for the code of `call_from` and the lines that it runs."""
    is_call_from = code.co_filename == __file__ and code.co_name == call_from.__name__
    return is_call_from or code.co_varnames == LINE.co_varnames


TRACED = "Code traced by torch.jit.trace or torch.fx is not recorded."
TRANSFORMED = "Code inside torch.func's transforms (vmap, grad, jvp) is not recorded."


def not_read() -> str | None:
    """Return the reason why nothing can be read now, or None if reading is possible.

    While PyTorch traces or transforms code, the reads would be traced or transformed, too.
    """
    if torch._C._get_tracing_state() is not None or torch.fx._symbolic_trace._is_fx_tracing_flag:
        return TRACED
    return None if torch._C._functorch.peek_interpreter_stack() is None else TRANSFORMED


def has_foreign_hooks() -> bool:
    """Return True if there are global module hooks besides attn's, about which torch.compile warns."""
    kinds = ("backward_pre_hooks", "backward_hooks", "forward_pre_hooks", "forward_hooks")
    hooks = (hook for kind in kinds for hook in getattr(torch_modules, f"_global_{kind}", {}).values())
    return any(not str(getattr(hook, "__module__", "")).startswith("attncli.") for hook in hooks)


class Uncompiled:
    """Runs compiled code uncompiled while any listener is open; listeners may close in any order."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_open = 0
        self._stance: Any = None
        self._watching: list[Callable[[bool], None]] = []
        self._compile: Any = None
        self._has_hooks: Any = None

    def watch(self, tell: Callable[[bool], None]) -> None:
        """Call `tell` whenever code is compiled, with True if the program itself compiles the code."""
        with self._lock:
            if not self._watching:
                self._compile = torch.compile
                torch.compile = self._telling(torch.compile)
                self._has_hooks = torch_modules._has_any_global_hook
                torch_modules._has_any_global_hook = has_foreign_hooks
            self._watching.append(tell)

    def unwatch(self, tell: Callable[[bool], None]) -> None:
        """Stop calling the function."""
        with self._lock:
            self._watching.remove(tell)
            if not self._watching:
                torch.compile = self._compile
                torch_modules._has_any_global_hook = self._has_hooks

    def _telling(self, compile_: Any) -> Any:
        @wraps(compile_)
        def telling(*arguments: Any, **named: Any) -> Any:
            compiled = call_from(sys._getframe(1), compile_, arguments, named)
            # flex_attention compiles a part of itself.
            by_program = not sys._getframe(1).f_code.co_filename.startswith(TORCH)
            for tell in [*self._watching]:
                tell(by_program)
            return compiled

        return telling

    def may_begin(self) -> bool:
        """Return True if torch's compiler has been imported."""
        compiler = sys.modules.get("torch._dynamo")
        return compiler is not None and not getattr(compiler.__spec__, "_initializing", False)

    def begin(self) -> None:
        """Count a listener that was opened."""
        with self._lock:
            if not self._num_open:
                self._stance = torch.compiler.set_stance("force_eager")
            self._num_open += 1

    def end(self) -> None:
        """Count a listener that was closed."""
        with self._lock:
            self._num_open -= 1
            if not self._num_open:
                self._stance.__exit__(None, None, None)


uncompiled = Uncompiled()
TORCH = str(Path(torch.__file__).parent)
FLEX_ATTENTION = str(Path(torch.__file__).parent / "nn" / "attention" / "flex_attention.py")


def is_compiled() -> bool:
    """Return True if the program compiled the running code."""
    compiler = getattr(sys.modules.get("torch._dynamo.eval_frame"), "__file__", None)
    frame: FrameType | None = None if compiler is None else sys._getframe(1)
    is_inside = False
    while frame is not None:
        file = frame.f_code.co_filename
        if is_inside and not file.startswith(TORCH):
            return True
        is_inside = (is_inside or file == compiler) and file != FLEX_ATTENTION
        frame = frame.f_back
    return False


class UnseenModes:
    """Hides modes with `is_unseen` from torch's attention modules, so that these take their fast paths."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_running = 0
        self._before: Any = None

    def begin(self) -> None:
        """Count a module that has begun to run."""
        with self._lock:
            self._num_running += 1
            if self._num_running == 1:
                self._before = torch.overrides.has_torch_function
                torch.overrides.has_torch_function = self._has_torch_function

    def end(self, count: int = 1) -> None:
        """Count modules that have ended."""
        with self._lock:
            self._num_running -= count
            if count and not self._num_running:
                torch.overrides.has_torch_function = self._before

    def _has_torch_function(self, args: Iterable[Any]) -> bool:
        """Return the result that torch's `has_torch_function` would have without the hidden modes."""
        modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if not modes or not all(getattr(mode, "is_unseen", False) for mode in modes):
            return bool(self._before(args))
        with ExitStack() as stack:
            for _ in modes:
                mode = torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
                stack.callback(torch.overrides._push_mode, mode)
            return bool(self._before(args))


unseen_modes = UnseenModes()
