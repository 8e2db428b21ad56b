"""Reads the attention in the torch functions that a program calls, and counts the calls."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from threading import local
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attncli.errors import UserError
from attncli.features.record.listening.by_hand import STEPS, follow
from attncli.features.record.listening.followed import HandmadeAttention
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.fused_calls import (
    FAST_PATHS,
    FUSED_ATTENTION,
    FastPath,
    flex_call,
    sdpa_call,
)
from attncli.features.record.listening.heard_calls import CallHint, CallReader, HeardCall
from attncli.features.record.listening.heard_layers import with_heads_last
from attncli.features.record.listening.kernels import FusedCall, NotHeard
from attncli.features.record.listening.modules import RunningModules
from attncli.features.record.listening.notes import ListenerNotes
from attncli.features.record.listening.torch_calls import reading
from attncli.features.record.listening.torch_paths import is_compiled, not_read
from attncli.models.torch_functions import SOFTMAXES

UNCOMPILED = "Compiled code ran uncompiled during the recording."
UNDETECTED = "no attention was detected in {}, which may compute attention in an unsupported way"
ATTENTION_CLASS = re.compile(r"attention|attn(?!Adapter)", re.IGNORECASE)
"""Matches the class names of modules that compute attention, but not those of adapters of attention."""
LAYER_ATTENTION = "self_attn"
"""The name of the attention in torch's layers."""
BACKWARD = {Tensor.backward, torch.autograd.backward}


class StepCounter:
    """Counts training steps: optimizer steps or, if there are none, backward calls."""

    def __init__(self) -> None:
        self.num_updates = self.num_backward = 0

    @property
    def steps(self) -> int:
        """The number of training steps so far."""
        return self.num_updates or self.num_backward

    def count_update(self, *_: object) -> None:
        """Count an optimizer step."""
        self.num_updates += 1


class Hearing:
    """Passes the attention in torch's functions to `consume`, with the module in `running` that called it.

    The first `calls` calls of each module whose path matches `patterns` are read; other calls are only
    counted. `heads` has the number of heads for each pattern. No error in attn reaches the program.
    """

    def __init__(
        self,
        consume: Callable[[HeardCall], None],
        running: RunningModules,
        *,
        calls: int | Literal["all", "last"],
        patterns: Sequence[str] | None,
        heads: Mapping[str, int],
    ) -> None:
        self.consume, self.calls, self.patterns = consume, calls, patterns
        self.running, self.counts = running, Counter[str]()
        self.notes, self.steps = ListenerNotes(), StepCounter()
        self._reader = CallReader(running, heads, self.notes)
        self._threads = local()

    def matches(self, path: str) -> bool:
        """Return True if a module's path matches a pattern."""
        return self.patterns is None or any(fnmatchcase(path, pattern) for pattern in self.patterns)

    def read_call(
        self, called: Any, function: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        """Read the arguments and result of a function; `called` is the function that the program called."""
        if function in BACKWARD:
            self.steps.num_backward += 1
            return
        step = called if called in STEPS else function
        is_followed = step in STEPS
        is_flex = not is_followed and getattr(function, "_name", "") == "flex_attention"
        if not (is_followed or is_flex or function is FUSED_ATTENTION or function in FAST_PATHS):
            return
        if (reason := not_read()) is not None:
            if not is_followed or step in SOFTMAXES:
                self.notes.say(reason)
        elif is_followed:
            follow(self.follower(), step, arguments, named, result)
        elif function is FUSED_ATTENTION:
            self._hear_fused(function.__name__, sdpa_call, arguments, named)
        elif is_flex:
            self._hear_fused("flex_attention", flex_call, arguments, named)
        else:
            self._hear_fast_path(FAST_PATHS[function], arguments, named)

    def _hear_fast_path(self, path: FastPath, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Read the attention in a function that computes a whole layer."""
        stack = self.running.stack
        layer = stack[-1].module if stack else None
        num_tokens = next((called.num_tokens for called in reversed(stack) if called.num_tokens), None)
        inside = getattr(layer, LAYER_ATTENTION) if isinstance(layer, nn.TransformerEncoderLayer) else None
        with self.running.within(inside) if inside is not None else ExitStack():
            self.hear(
                "fast path",
                lambda: path.read(*arguments, **named, num_tokens=num_tokens),
                CallHint(arguments[path.heads], True),
            )

    @property
    def hint(self) -> CallHint:
        """The hint from the torch function that is running in this thread."""
        return getattr(self._threads, "hint", CallHint())

    @hint.setter
    def hint(self, hint: CallHint) -> None:
        self._threads.hint = hint

    def follower(self) -> Follower:
        """Return the follower of this thread's tensors."""
        follower: Follower | None = getattr(self._threads, "follower", None)
        if follower is None:
            follower = self._threads.follower = Follower(self._heard_by_hand, self._unclear)
        return follower

    def _hear_fused(
        self,
        function: str,
        read_call: Callable[..., FusedCall],
        arguments: Sequence[Any],
        named: Mapping[str, Any],
    ) -> None:
        query, key = (
            arguments[place] if place < len(arguments) else named[name]
            for place, name in enumerate(("query", "key"))
        )
        follower, read = self.follower(), partial(read_call, *arguments, **named)
        hint = self.hint.completed_by_origins(follower, query, key)
        if self.hint.num_heads is None and hint.num_heads is not None and follower.has_heads_first(query):
            read = partial(with_heads_last, read, hint.num_heads)
        self.hear(function, read, hint)

    def _heard_by_hand(self, read: Callable[[], HandmadeAttention]) -> None:
        self.hear("by hand", read)

    def _unclear(self, reason: str) -> None:
        def read() -> HandmadeAttention:
            raise NotHeard(reason)

        self.hear("by hand", read)

    def note_error(self, error: Exception, place: str | None = None) -> None:
        """Note an error in attn, at the running module unless a place is passed."""
        if place is None:
            try:
                place = self._path()
            except Exception as path_error:  # the program must continue
                place, error = "a module", path_error
        self.notes.miss(place, f"{type(error).__name__}: {error}")

    def _path(self) -> str:
        self.running.drop_ended()
        stack = self.running.stack
        path = self.running.path()
        number = stack[-1].num_heard if stack else 0
        return f"{path}#{number + 1}" if number else path

    def check_module(self, module: nn.Module) -> None:
        """When a module ends, add a note if its name suggests attention but no attention was detected in it.

        A module's weights may be multiplied by values in the module that called it, so the note is added when
        the calling module ends.
        """
        stack = self.running.stack
        is_recomputed = torch._C._current_graph_task_id() != -1
        if not stack or stack[-1].module is not module or not_read() is not None or is_recomputed:
            return
        called, outer = stack[-1], stack[-2] if len(stack) > 1 else stack[-1]
        kind = type(module).__name__
        if ATTENTION_CLASS.search(kind) and not called.has_attention and not called.undetected:
            outer.undetected[self.running.path()] = kind
        for path, name in called.undetected.items():
            if self.matches(path):
                self.notes.remark(path, UNDETECTED.format(name))

    def hear(
        self,
        function: str,
        read: "Callable[[], HandmadeAttention | FusedCall]",
        hint: CallHint | None = None,
    ) -> None:
        """Count a call, and read the call if it is selected."""
        if UNCOMPILED not in self.notes.whole_lines and is_compiled():
            self.notes.say(UNCOMPILED)
        if torch._C._current_graph_task_id() != -1:  # checkpointed layers run again in the backward pass
            return
        path = self._path()
        for called in self.running.stack:
            called.has_attention = True
        if self.running.stack:
            self.running.stack[-1].num_heard += 1
            self.running.stack[-1].undetected.clear()
        if not self.matches(path.partition("#")[0]):
            return
        number = self.counts[path]
        self.counts[path] += 1
        if not isinstance(self.calls, str) and number >= self.calls:
            return
        try:
            with reading():
                hint = self.hint if hint is None else hint
                self.consume(self._reader.heard_call(path, number, function, read(), hint, self.steps.steps))
        except (NotHeard, UserError) as error:
            self.notes.miss(path, error)
        except Exception as error:  # the program must continue
            self.note_error(error, path)
