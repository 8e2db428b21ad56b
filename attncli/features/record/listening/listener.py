"""The attention of a running PyTorch program, whoever wrote it: heard where it calls torch's functions.

A TorchFunctionMode sees the functions that are called from Python. Each runs as the program called it; what
is read of it is read beside it, and no error of ours reaches the program.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import zip_longest
from math import prod
from threading import Thread, current_thread, local
from types import FrameType, FunctionType, TracebackType
from typing import Any, Literal, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError
from attncli.features.record.listening.by_hand import STEPS, follow
from attncli.features.record.listening.followed import NO_QUERIES, HandmadeAttention
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.heard_layers import (
    MOST_SPLIT,
    hides_rows_by_numbers,
    layer_by_hand,
    layer_of_call,
    make_heads,
    with_heads_last,
)
from attncli.features.record.listening.kernels import FusedCall, Kernels, NotHeard, readable, readable_mask
from attncli.features.record.listening.modules import CALLING_HOOKS, RunningModules
from attncli.features.record.listening.torch_calls import unseen
from attncli.features.record.listening.torch_paths import (
    FAST_PATHS,
    HANDLE,
    MULTI_HEAD_ATTENTION,
    FastPath,
    attention_forward,
    call_from,
    is_calling,
    is_compiled,
    not_read,
    original,
    uncompiled,
)
from attncli.models.torch_functions import SOFTMAXES

_opened: Counter[Thread] = Counter()
"""The threads that have listeners of their own, and how many."""
UNCOMPILED = "What is compiled runs as it is written meanwhile."
OF_LAYER = "self_attn"
"""The attention of torch's own layers."""
MOST_NAMED = 3
"""Modules that a line names."""
ONE_AXIS = (
    "texts and heads are one axis, and nothing says how many heads there are: its matrices are numbered "
    "0, 1, ... (--heads PATH=8 says it, in Python heads={'PATH': 8})"
)


@dataclass(frozen=True)
class HeardCall:
    """One attention of a program: where it was called, and its tensors, detached and not copied.

    `module` is the path of the module that runs, with `#2` for a second attention in one call of it; `call`
    counts its calls from 0. `function` says how it was heard. `weights` are the program's own, before
    dropout, where it computes them itself. Without `has_heads` texts and heads are one axis, here the heads.
    `outermost` is the number of the call of an outermost module that it belongs to, `first_query` the key at
    which the first query stands, where the call says so. `hides_by_numbers`: the program attends in rows that
    count as rows without keys, since a finite mask stands over all of them. `step` is how many training steps
    the program had made.
    """

    module: str
    call: int
    kind: str
    function: str
    attention: AttentionLayer | GivenWeights
    weights: Float[Tensor, "text head query key"] | None = None
    has_heads: bool = True
    outermost: int = 0
    first_query: int | None = None
    hides_by_numbers: bool = False
    step: int = 0


class CallHint(NamedTuple):
    """What a function of torch that contains the attention, or the projections before it, tell about it.

    `one_head_of`: no head lies on an axis of its own; the projection has so many times its features.
    `first_query` is the key at which the first query stands, where it is known: keys may be added behind.
    """

    num_heads: int | None = None
    is_self: bool | None = None
    one_head_of: int | None = None
    first_query: int | None = None


def _listed(paths: Iterable[str]) -> str:
    """The first of several, and how many more there are."""
    named = [*paths]
    rest = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def _close(thread: Thread) -> None:
    _opened[thread] -= 1
    if not _opened[thread]:
        del _opened[thread]


class Listener(TorchFunctionMode):
    """Hands the attention of a program to `consume`, while `listening` is open.

    `calls` of each module are heard: so many, all, or all of which the last counts; the others are counted.
    `modules` are patterns of paths, as `*.self_attn`, with commas; `heads` the number of heads by such a
    pattern, where texts and heads are one axis. Threads other than the one that opens it are heard where
    `all_threads` is set, in the modules that they call.
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
        self.consume, self.calls, self.all_threads = consume, calls, all_threads
        self.patterns = None if modules is None else [part.strip() for part in modules.split(",")]
        self.heads = {} if heads is None else heads
        self.running = RunningModules()
        self.counts: Counter[str] = Counter()
        self.not_heard: Counter[str] = Counter()
        self._said: dict[str, None] = {}
        self.remarks: dict[str, dict[str, None]] = {}
        self._threads = local()
        self._follower = local()
        self.forget_steps()

    def forget_steps(self) -> None:
        """Count training steps from 0."""
        self._num_updates = self._num_backward = 0

    @property
    def training_steps(self) -> int:
        """The optimizer steps that the program made; without any, how often it called backward."""
        return self._num_updates or self._num_backward

    def _count_update(self, *_: object) -> None:
        self._num_updates += 1

    def notes(self) -> list[str]:
        """What was changed or missed meanwhile, a line each."""
        scripted = (
            ["Scripted code was called: what it computes is not heard."] if self.running.has_scripted else []
        )
        missed = [
            f"{reason}{f' ({count:,} times)' if count > 1 else ''}."
            for reason, count in self.not_heard.items()
        ]
        remarks = [f"{_listed(paths)}: {remark}." for remark, paths in self.remarks.items()]
        return [*self._said, *scripted, *remarks, *missed]

    def __exit__(self, *error: object) -> None:
        """Take this mode off, and leave those that were put on it since."""
        modes: list[TorchFunctionMode] = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if self in modes:
            above = modes[len(modes) - modes[::-1].index(self) :]
            for _ in range(len(above) + 1):
                torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
            for mode in above:
                torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to the programs of this thread, or of all, until it is closed."""
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
            after_step = register_optimizer_step_post_hook(self._count_update)
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
        """Something is compiled."""
        if by_program:
            self._said[UNCOMPILED] = None
        self._run_uncompiled()

    def _run_uncompiled(self) -> None:
        """What is compiled runs as it was written, or it would call none of the functions."""
        if self._stance is not None and uncompiled.may_begin():
            stack, self._stance = self._stance, None
            uncompiled.begin()
            stack.callback(uncompiled.end)

    _stance: ExitStack | None = None
    _is_closed = True
    is_unseen = True

    # Modules

    def _enter(self, module: nn.Module, inputs: object) -> None:
        try:
            self._begin(module, inputs)
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error, type(module).__name__)

    def _begin(self, module: nn.Module, inputs: object) -> None:
        thread = current_thread()
        if thread is not self._thread and not self.all_threads:
            if not _opened[thread]:
                self._said[
                    "Modules were called in other threads, which are heard by a recording of their own."
                ] = None
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
                self._follow().begin(inputs)
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
            self.running.leave(module)
            self._after_modules()
            follower = getattr(self._follower, "of_thread", None)
            if not self.running.stack and follower is not None:
                follower.clear()
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error, type(module).__name__)

    def _after_modules(self) -> None:
        """Listen no longer where the module is left for which that was begun."""
        stack = self.running.stack
        pushed_at = getattr(self._threads, "pushed_at", None)
        if pushed_at is not None and len(stack) < pushed_at:
            self._threads.pushed_at = None
            self.__exit__(None, None, None)

    def _is_pushed(self) -> bool:
        is_of_opener = self.patterns is None and current_thread() is self._thread
        return is_of_opener or getattr(self._threads, "pushed_at", None) is not None

    def _may_hear(self, module: nn.Module, path: str) -> bool:
        """Whether a pattern fits a module, or the attention of a layer that is not called on a fast path."""
        is_layer = isinstance(module, nn.TransformerEncoderLayer)
        return self._matches(path) or (is_layer and self._matches(f"{path}.{OF_LAYER}"))

    def _matches(self, path: str) -> bool:
        return self.patterns is None or any(fnmatchcase(path, pattern) for pattern in self.patterns)

    # Functions

    def _hear_kernel(self, name: str, read: Callable[[], FusedCall], call: Callable[[], Any]) -> Any:
        """What a function of another package gives; what it calls itself is not heard."""
        if not self._is_pushed():
            return call()
        self._threads.is_inside = True
        try:
            result = call()
        finally:
            self._threads.is_inside = False
        try:
            self._hear(name, lambda: _of_kernel(read()))
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error)
        return result

    @no_type_check  # its caller is the program
    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        # A thread that ran as it was closed goes on with this mode.
        if self._is_closed or getattr(self._threads, "is_inside", False):
            return function(*arguments, **named)
        asked = function
        if type(function) is FunctionType:
            function = original(function)
        if function is MULTI_HEAD_ATTENTION and (reason := not_read()) is not None:
            self._said[reason] = None
        elif function is MULTI_HEAD_ATTENTION:
            return self._through(sys._getframe(1), types, arguments, named)
        result = call_from(sys._getframe(1), function, arguments, named)
        try:
            self._read_call(asked, function, arguments, named, result)
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error)
        return result

    def _read_call(
        self, asked: Any, function: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        """Read what a function was given and gave; `asked` is what the program has in its place."""
        if self._stance is not None:
            self._run_uncompiled()
        if function in BACKWARD:
            self._num_backward += 1
            return
        step = asked if asked in STEPS else function
        is_followed = step in STEPS
        is_flex = not is_followed and getattr(function, "_name", "") == "flex_attention"
        if not (is_followed or is_flex or function is FUSED_ATTENTION or function in FAST_PATHS):
            return
        if (reason := not_read()) is not None:
            if not is_followed or step in SOFTMAXES:
                self._said[reason] = None
        elif is_followed:
            follow(self._follow(), step, arguments, named, result)
        elif function is FUSED_ATTENTION:
            self._hear_fused(function.__name__, lambda: _of_sdpa(*arguments, **named), arguments, named)
        elif is_flex:
            self._hear_fused("flex_attention", lambda: _of_flex(*arguments, **named), arguments, named)
        else:
            self._hear_fast_path(FAST_PATHS[function], arguments, named)

    def _through(
        self, frame: FrameType, types: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """torch's own function with this mode inside, which it would leave out.

        Classes of tensors that take torch's functions are asked first, as torch asks them.
        """
        given = {"query": 0, "key": 1, "num_heads": 4, "bias_k": 7, "add_zero_attn": 9}
        query, key, num_heads, bias_key, adds_zero = (
            arguments[place] if place < len(arguments) else named.get(name) for name, place in given.items()
        )
        first_query = None if bias_key is None and not adds_zero else 0
        hint = CallHint(num_heads, query is key, first_query=first_query)
        before, self._threads.hint = self._hint, hint
        try:
            with self:
                for kind in types if {*types} - {Tensor, nn.Parameter} else ():
                    result = kind.__torch_function__(MULTI_HEAD_ATTENTION, types, arguments, named)
                    if result is not NotImplemented:
                        return result
                return call_from(frame, attention_forward(), arguments, named)
        finally:
            self._threads.hint = before

    def _hear_fast_path(self, path: FastPath, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """A layer of torch's in one function: what is heard is the attention in it."""
        stack = self.running.stack
        layer = stack[-1].module if stack else None
        num_tokens = next((called.num_tokens for called in reversed(stack) if called.num_tokens), None)
        inside = getattr(layer, OF_LAYER) if isinstance(layer, nn.TransformerEncoderLayer) else None
        with self.running.within(inside) if inside is not None else ExitStack():
            self._hear(
                "fast path",
                lambda: path.read(*arguments, **named, num_tokens=num_tokens),
                CallHint(arguments[path.heads], True),
            )

    @property
    def _hint(self) -> CallHint:
        return getattr(self._threads, "hint", CallHint())

    def _follow(self) -> Follower:
        follower = getattr(self._follower, "of_thread", None)
        if follower is None:
            follower = self._follower.of_thread = Follower(self._heard_by_hand, self._unclear)
        return follower

    def _hear_fused(
        self,
        function: str,
        read: "Callable[[], FusedCall]",
        arguments: Sequence[Any],
        named: Mapping[str, Any],
    ) -> None:
        query, key = (
            arguments[place] if place < len(arguments) else named[name]
            for place, name in enumerate(("query", "key"))
        )
        hint = self._hint
        follower = self._follow()
        if hint.num_heads is None:
            num_heads = follower.num_heads(query)
            hint = hint._replace(num_heads=num_heads)
            if num_heads is not None and follower.has_heads_first(query):
                read = partial(with_heads_last, read, num_heads)
            hint = hint._replace(one_head_of=follower.one_head_of(query))
        if hint.is_self is None:
            hint = hint._replace(
                is_self=follower.is_self(query, key, are_as_many=query.shape[-2] == key.shape[-2])
            )
        self._hear(function, read, hint)

    def _heard_by_hand(self, read: Callable[[], HandmadeAttention]) -> None:
        self._hear("by hand", read)

    def _unclear(self, reason: str) -> None:
        def read() -> HandmadeAttention:
            raise NotHeard(reason)

        self._hear("by hand", read)

    def _note_error(self, error: Exception, place: str | None = None) -> None:
        """One of ours, in a place that may itself be the reason."""
        if place is None:
            try:
                place = self._path()
            except Exception as unnamed:  # whatever it is, the program goes on
                place, error = "a module", unnamed
        self.not_heard[f"{place}: {type(error).__name__}: {error}"] += 1

    def _path(self) -> str:
        self.running.drop_ended()
        stack = self.running.stack
        path = self.running.path()
        number = stack[-1].num_heard if stack else 0
        return f"{path}#{number + 1}" if number else path

    def _hear(
        self,
        function: str,
        read: "Callable[[], HandmadeAttention | FusedCall]",
        hint: CallHint | None = None,
    ) -> None:
        """Count this call, and read it where it is wanted."""
        if UNCOMPILED not in self._said and is_compiled():
            self._said[UNCOMPILED] = None
        if torch._C._current_graph_task_id() != -1:  # checkpointed layers run again in the backward pass
            return
        path = self._path()
        if self.running.stack:
            self.running.stack[-1].num_heard += 1
        if not self._matches(path.partition("#")[0]):
            return
        number = self.counts[path]
        self.counts[path] += 1
        if not self.wants(path, number):
            return
        try:
            with reading():
                self.consume(self._call(path, number, function, read(), self._hint if hint is None else hint))
        except (NotHeard, UserError) as error:
            self.not_heard[f"{path}: {error}"] += 1
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error, path)

    def wants(self, path: str, number: int) -> bool:
        """Whether that call of a module is read."""
        return isinstance(self.calls, str) or number < self.calls

    def _call(
        self,
        path: str,
        number: int,
        function: str,
        read: "HandmadeAttention | FusedCall",
        hint: CallHint,
    ) -> HeardCall:
        tokens = read.weights if isinstance(read, HandmadeAttention) else read.query
        if not tokens.numel():
            raise NotHeard("an attention without texts, queries or keys")
        lead = tokens.shape[:-2]
        if isinstance(read, HandmadeAttention) and read.num_heads is not None and hint.num_heads is None:
            hint = hint._replace(num_heads=read.num_heads)
        if isinstance(read, HandmadeAttention):
            is_self = hint.is_self if read.is_self is None else read.is_self
            hint = hint._replace(is_self=is_self, one_head_of=read.one_head_of)
        num_heads = self._num_heads(path, lead, hint)
        if isinstance(read, HandmadeAttention) and read.is_guess:
            num_queries = tokens.shape[-2]
            if num_heads is None or num_heads == num_queries or num_heads not in lead:
                raise NotHeard(NO_QUERIES)
        has_heads = num_heads is not None or len(lead) > 1 or prod(lead) == 1
        if not has_heads:
            self.remarks.setdefault(ONE_AXIS, {})[path] = None
        weights = None
        if isinstance(read, HandmadeAttention):
            attention, weights = layer_by_hand(read, num_heads)
        else:
            attention = layer_of_call(read, num_heads)
        num_queries, num_keys = attention.shape[2:]
        if not num_keys:
            raise NotHeard("an attention without keys")
        if isinstance(read, HandmadeAttention) and read.remark is not None:
            self.remarks.setdefault(read.remark, {})[path] = None
        is_self = hint.is_self
        if is_self is None:
            is_self = not _names_cross(path, self.running.class_names()) and num_queries <= num_keys
        kind = "self" if is_self else "cross"
        outermost = self.running.outermost()
        by_numbers = hides_rows_by_numbers(read, attention, weights)
        return HeardCall(
            path,
            number,
            kind,
            function,
            attention,
            weights,
            has_heads,
            outermost,
            hint.first_query,
            by_numbers,
            self.training_steps,
        )

    def _num_heads(self, path: str, lead: torch.Size, hint: CallHint) -> int | None:
        """How many heads there are: as was asked for, as torch is told, or as a module says."""
        for pattern, number in self.heads.items():
            if fnmatchcase(path, pattern):
                if not make_heads(lead, number):
                    axes = " x ".join(map(str, lead)) or 1
                    raise NotHeard(f"{number} heads were asked for, but texts and heads are {axes} matrices")
                return number
        if hint.num_heads is not None and make_heads(lead, hint.num_heads):
            return hint.num_heads
        if hint.one_head_of is None:
            # Where there are several axes, a module further out may mean another attention.
            return self.running.num_heads(prod(lead), nearest=None if len(lead) < 2 else 2)
        # The module itself may have put heads and texts on one axis before the projection.
        own_number = self.running.num_heads(prod(lead), nearest=1)
        return 1 if own_number is None or hint.one_head_of % own_number == 0 else own_number


FUSED_ATTENTION = torch._C._nn.scaled_dot_product_attention
BACKWARD = {Tensor.backward, torch.autograd.backward}


MOST_WRAPPED = 3
"""Entries of a traceback between torch's call of a mode and the mode."""


def hide_frames(error: BaseException) -> None:
    """Leave what stands between a program and torch out of the traceback of an error."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_filename == __file__:
            # A function of torch's that calls a mode runs once more behind it.
            last = [entry.tb_frame.f_code is HANDLE for entry in entries[-MOST_WRAPPED:]]
            if any(last):
                del entries[len(entries) - len(last) + last.index(True) - 1 :]
        elif code not in CALLING_HOOKS and not is_calling(code):
            entries.append(entry)
        entry = entry.tb_next
    for entry, following in zip_longest(entries, entries[1:]):
        entry.tb_next = following


@contextmanager
def reading() -> Iterator[None]:
    """While it is open, what is computed is no part of the program: its modes do not see it."""
    with (
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else ExitStack(),
        unseen(),
    ):
        yield


def _names_cross(path: str, classes: Sequence[str]) -> bool:
    last = path.rpartition(".")[2].lower()
    words = ("cross", "encdec", "enc_dec", "encoder_attn", "multihead_attn", "attn2", "src_attn")
    return any(word in last for word in words) or "cross" in classes[0].lower() if classes else False


def _of_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> FusedCall:
    """What torch's function attends to, by its own arguments."""
    query, key, value = (readable(tensor) for tensor in (query, key, value))
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    # torch aligns the first query with the first key.
    offset = 0 if is_causal and num_queries != num_keys else None
    visibility = Visibility(num_queries, num_keys, causal=is_causal, offset=offset)
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    mask = None if attn_mask is None else readable_mask(attn_mask, query.device)
    return FusedCall(query, key, value, visibility, factor, mask)


def _of_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    *others: object,
) -> FusedCall:
    """What flex_attention attends to: its block mask and the changes of its scores, worked out whole."""
    from torch.nn.attention import flex_attention

    query, key, value = (readable(tensor) for tensor in (query, key, value))
    num_texts, num_heads, num_queries = query.shape[:3]
    shape = (num_texts, num_heads, num_queries, key.shape[2])
    if prod(shape) > MOST_SPLIT:
        raise NotHeard(f"flex_attention of {prod(shape):,} scores is too large to work out its mask")
    mask = flex_attention.create_mask(block_mask[-1], *shape, device=str(query.device))
    if score_mod is not flex_attention._identity:
        repeated = key.repeat_interleave(shape[1] // key.shape[1], dim=1)
        scores = (query @ repeated.mT) * scale
        texts, heads, queries, keys = (torch.arange(size, device=query.device) for size in shape)
        changed = score_mod
        for dims in (
            (0, None, None, None, 0),
            (0, None, None, 0, None),
            (0, None, 0, None, None),
            (0, 0, None, None, None),
        ):
            changed = torch.vmap(changed, in_dims=dims)
        added = changed(scores, texts, heads, queries, keys) - scores
        mask = added.masked_fill(~mask, -torch.inf)
    plain = Visibility(*shape[2:])
    return FusedCall(query, key, value, plain, float(scale), mask)


def _of_kernel(call: FusedCall) -> FusedCall:
    return call._replace(query=readable(call.query), key=readable(call.key), value=readable(call.value))
