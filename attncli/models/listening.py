"""The attention of a running PyTorch program, whoever wrote it: heard where it calls torch's functions.

A TorchFunctionMode sees the functions that are called from Python. Each runs as the program called it; what
is read of it is read beside it, and no error of ours reaches the program.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from threading import Lock, Thread, current_thread, local
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from attncli.core.layer import AttentionLayer, ScoreRules, Visibility
from attncli.core.mask_tensors import HIDES, parts_of_mask, recognised
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError
from attncli.models.by_hand import STEPS, Follower
from attncli.models.followed import NO_QUERIES, HandmadeAttention
from attncli.models.kernels import FusedCall, Kernels, NotHeard, readable
from attncli.models.modules import RunningModules
from attncli.models.torch_calls import unseen
from attncli.models.torch_paths import (
    FAST_PATHS,
    MULTI_HEAD_ATTENTION,
    FastPath,
    attention_forward,
    original,
)

MOST_RECOGNISED = 2**22
"""Entries of a mask that are compared with causal ones and windows."""
MOST_SPLIT = 2**24
"""Entries of a mask that is split at once; of larger ones a part at a time, as it is needed."""
_opened: Counter[Thread] = Counter()
"""The threads that have listeners of their own, and how many."""
OF_LAYER = "self_attn"
"""The attention of torch's own layers."""
MOST_NAMED = 3
"""Modules that a line names."""
CLOSE = 1e-5
"""How far weights that are computed again may be from a program's own in float32."""


@dataclass(frozen=True)
class HeardCall:
    """One attention of a program: where it was called, and its tensors, detached and not copied.

    `module` is the path of the module that runs, with `#2` for a second attention in one call of it; `call`
    counts its calls from 0. `function` says how it was heard. `weights` are the program's own, before
    dropout, where it computes them itself. Without `has_heads` texts and heads are one axis, here the heads.
    `outermost` is the number of the call of an outermost module that it belongs to.
    """

    module: str
    call: int
    kind: str
    function: str
    attention: AttentionLayer | GivenWeights
    weights: Float[Tensor, "text head query key"] | None = None
    has_heads: bool = True
    outermost: int = 0


class CallHint(NamedTuple):
    """What a function of torch that contains the attention tells about it."""

    num_heads: int | None = None
    is_self: bool | None = None


def _listed(paths: Iterable[str]) -> str:
    """The first of several, and how many more there are."""
    named = [*paths]
    rest = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def _close(thread: Thread) -> None:
    _opened[thread] -= 1
    if not _opened[thread]:
        del _opened[thread]


class Uncompiled:
    """What is compiled runs as it was written while a listener is open, in whatever order they are closed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_open = 0
        self._stance: Any = None

    def begin(self) -> None:
        """One more listener is open."""
        with self._lock:
            self._num_open += 1
            if self._num_open == 1:
                self._stance = torch.compiler.set_stance("force_eager")

    def end(self) -> None:
        """One less is."""
        with self._lock:
            self._num_open -= 1
            if not self._num_open:
                self._stance.__exit__(None, None, None)


_uncompiled = Uncompiled()


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
        self._remarks: dict[str, dict[str, None]] = {}
        self._threads = local()
        self._follower = local()

    def notes(self) -> list[str]:
        """What was changed or missed meanwhile, a line each."""
        scripted = (
            ["Scripted code was called: what it computes is not heard."] if self.running.has_scripted else []
        )
        missed = [
            f"{reason}{f' ({count:,} times)' if count > 1 else ''}."
            for reason, count in self.not_heard.items()
        ]
        remarks = [f"{_listed(paths)}: {remark}." for remark, paths in self._remarks.items()]
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
            _opened[self._thread] += 1
            stack.callback(_close, self._thread)
            before = register_module_forward_pre_hook(self._enter)
            stack.callback(before.remove)
            after = register_module_forward_hook(self._leave, always_call=True)
            stack.callback(after.remove)
            self._kernels = Kernels(self._hear_kernel)
            stack.callback(self._kernels.restore)
            self._kernels.replace()
            self._stance = stack
            self._run_uncompiled()
            if self.patterns is None:
                stack.enter_context(self)
            yield

    def _run_uncompiled(self) -> None:
        """What is compiled runs as it was written, or it would call none of the functions."""
        if self._stance is not None and "torch._dynamo" in sys.modules:
            _uncompiled.begin()
            self._stance.callback(_uncompiled.end)
            self._stance = None

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
        self._after_modules()
        if not running.stack:
            self._run_uncompiled()
            self._kernels.replace()
        running.enter(module, inputs)
        if self._is_pushed():
            return
        if self.patterns is None or self._may_hear(module, running.path()):
            self._threads.pushed_at = len(running.stack)
            self.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, module: nn.Module, _inputs: object, _output: object) -> None:
        try:
            self.running.leave(module)
            self._after_modules()
            follower = getattr(self._follower, "of_thread", None)
            if not self.running.stack and follower is not None:
                follower.clear()
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error, type(module).__name__)

    def _after_modules(self) -> None:
        """Listen no longer where the module is left for which that was begun."""
        self.running.drop_ended()
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

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        # A thread that ran as it was closed goes on with this mode.
        if self._is_closed or getattr(self._threads, "is_inside", False):
            return function(*arguments, **named)
        asked, function = function, original(function)
        if function is MULTI_HEAD_ATTENTION:
            return self._through(types, arguments, named)
        result = function(*arguments, **named)
        try:
            if function is FUSED_ATTENTION:
                self._hear_fused(function.__name__, lambda: _of_sdpa(*arguments, **named), arguments, named)
            elif getattr(function, "_name", "") == "flex_attention":
                self._hear_fused("flex_attention", lambda: _of_flex(*arguments, **named), arguments, named)
            elif (path := FAST_PATHS.get(function)) is not None:
                self._hear_fast_path(path, arguments, named)
            else:
                self._follow().after(asked if asked in STEPS else function, arguments, named, result)
        except Exception as error:  # whatever it is, the program goes on
            self._note_error(error)
        return result

    def _through(self, types: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """torch's own function with this mode inside, which it would leave out.

        Classes of tensors that take torch's functions are asked first, as torch asks them.
        """
        given = {"query": 0, "key": 1, "num_heads": 4}
        query, key, num_heads = (
            arguments[place] if place < len(arguments) else named[name] for name, place in given.items()
        )
        before, self._threads.hint = self._hint, CallHint(num_heads, query is key)
        try:
            with self:
                for kind in types:
                    result = kind.__torch_function__(MULTI_HEAD_ATTENTION, types, arguments, named)
                    if result is not NotImplemented:
                        return result
                return attention_forward()(*arguments, **named)
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
            hint = hint._replace(num_heads=follower.num_heads(query))
        if hint.is_self is None:
            hint = hint._replace(is_self=follower.is_self(query, key))
        self._hear(function, read, hint)

    def _heard_by_hand(self, found: HandmadeAttention) -> None:
        hint = self._hint if found.is_self is None else CallHint(self._hint.num_heads, found.is_self)
        self._hear("by hand", lambda: found, hint)

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
        if function == "flex_attention" or "OptimizedModule" in self.running.class_names():
            self._said["What is compiled runs as it is written meanwhile."] = None
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
        num_heads = self._num_heads(path, lead, hint)
        if isinstance(read, HandmadeAttention) and read.is_guess:
            num_queries = tokens.shape[-2]
            if num_heads is None or num_heads == num_queries or num_heads not in lead:
                raise NotHeard(NO_QUERIES)
        has_heads = num_heads is not None or len(lead) > 1 or prod(lead) == 1
        weights = None
        if isinstance(read, HandmadeAttention):
            attention, weights = layer_by_hand(read, num_heads)
        else:
            attention = layer_of_call(read, num_heads)
        num_queries, num_keys = attention.shape[2:]
        if not num_keys:
            raise NotHeard("an attention without keys")
        if isinstance(read, HandmadeAttention) and read.remark is not None:
            self._remarks.setdefault(read.remark, {})[path] = None
        is_self = hint.is_self
        if is_self is None:
            is_self = not _names_cross(path, self.running.class_names()) and num_queries <= num_keys
        kind = "self" if is_self else "cross"
        outermost = self.running.outermost()
        return HeardCall(path, number, kind, function, attention, weights, has_heads, outermost)

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
        # Where there are several axes, a module further out may mean another attention.
        return self.running.num_heads(prod(lead), nearest=None if len(lead) < 2 else 2)


FUSED_ATTENTION = torch._C._nn.scaled_dot_product_attention


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


def layer_of_call(call: FusedCall, num_heads: int | None) -> AttentionLayer:
    """The layer of so many heads; without a number they are the last of the leading axes."""
    query = call.query
    if query.ndim == call.key.ndim:  # one text, or head, of queries may be for all keys
        sizes = zip(query.shape[:-2], call.key.shape[:-2], strict=True)
        query = query.expand(*(keys if size == 1 else size for size, keys in sizes), -1, -1)
    lead = query.shape[:-2]
    parts = query, call.key, call.value
    if num_heads is None or len(lead) < 2 or lead[-1] == num_heads:
        query, key, value = (_four_axes(part, lead, num_heads) for part in parts)
    else:
        query, key, value = (by_heads(_expanded(part, lead), num_heads) for part in parts)
    visibility, rules = call.visibility, call.rules
    if call.mask is not None:
        mask = _mask_of_heads(call.mask, lead, num_heads)
        if _hides_rows_of_some_heads(mask):
            raise NotHeard("its mask hides every key of a row from some heads alone")
        visibility, bias = _of_mask(mask, query.shape[2], key.shape[2])
        rules = replace(rules, bias=bias)
    return AttentionLayer(query, key, value, visibility, call.scale, rules)


def _hides_rows_of_some_heads(mask: Tensor) -> bool:
    """Whether a row (text, head, query) has keys in some heads alone: a layer says that of all at once."""
    if mask.shape[1] == 1:
        return False
    has_key = mask.any(dim=-1) if mask.dtype == torch.bool else mask.amax(dim=-1) > HIDES
    return bool((has_key != has_key[:, :1]).any())


def _four_axes(tensor: Tensor, lead: torch.Size, num_heads: int | None) -> Tensor:
    """(text, head, token, dim) of a tensor with the leading axes of the query, or fewer heads, or 1."""
    *of_tensor, num_tokens, dim = tensor.shape
    if len(lead) < 2:
        num_heads = num_heads or prod(lead)
        heads = num_heads if prod(of_tensor) == prod(lead) else 1
        return tensor.reshape(-1, heads, num_tokens, dim).expand(prod(lead) // num_heads, -1, -1, -1)
    of_tensor = [1] * (len(lead) - len(of_tensor)) + of_tensor
    tensor = tensor.reshape(*of_tensor, num_tokens, dim).expand(*lead[:-1], -1, -1, -1)
    return tensor.reshape(-1, of_tensor[-1], num_tokens, dim)


def _expanded(tensor: Tensor, lead: torch.Size) -> Tensor:
    """A tensor with all leading axes of the query; heads that share keys have their own."""
    heads = tensor.shape[-3] if tensor.ndim > 2 else 1
    if heads not in (1, lead[-1]):
        tensor = tensor.repeat_interleave(lead[-1] // heads, dim=-3)
    return tensor.expand(*lead, -1, -1)


def _mask_of_heads(mask: Tensor, lead: torch.Size, num_heads: int | None) -> Tensor:
    """A mask as (text, head, query, key), each of its size or 1."""
    mask = mask.reshape(*[1] * (2 - mask.ndim), *mask.shape)
    of_mask, size = mask.shape[:-2], mask.shape[-2:]
    if prod(of_mask) == 1:
        return mask.reshape(1, 1, *size)
    if len(lead) < 2 or (num_heads is not None and lead[-1] != num_heads):
        return by_heads(mask.expand(*lead, *size), num_heads or prod(lead))
    if prod(of_mask[:-1]) == 1:
        return mask.reshape(1, of_mask[-1], *size)
    return mask.expand(*lead[:-1], of_mask[-1], *size).reshape(-1, of_mask[-1], *size)


def _of_mask(mask: Tensor, num_queries: int, num_keys: int) -> tuple[Visibility, Tensor | None]:
    """Who sees whom, and the numbers to add, by a mask of four axes."""
    mask = mask.expand(-1, -1, num_queries, num_keys)
    if mask.numel() > MOST_SPLIT:
        return _of_large_mask(mask, num_queries, num_keys)
    visibility, bias = parts_of_mask(mask, num_queries, num_keys)
    seen = visibility.whole(mask.device)
    return (recognised(seen) if seen.numel() <= MOST_RECOGNISED else visibility), bias


def _of_large_mask(mask: Tensor, num_queries: int, num_keys: int) -> tuple[Visibility, Tensor | None]:
    is_bool = mask.dtype == torch.bool
    if is_bool and mask.shape[1] > 1:
        raise NotHeard(
            f"a mask of {mask.numel():,} entries that differs between heads is too large to be read"
        )

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        part = mask[:, :, queries][..., keys]
        return (part if is_bool else part > HIDES).any(dim=1)

    return Visibility(num_queries, num_keys, rule=rule), None if is_bool else mask


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
    mask = None if attn_mask is None else attn_mask.detach()
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


CHECKED_ROWS = 8
"""Rows of every head in which weights that are computed again are compared with a program's own."""


def make_heads(lead: torch.Size, num_heads: int) -> bool:
    """Whether so many heads can be told from leading axes, as `by_heads` does."""
    suffixes = [prod(lead[first:]) for first in range(len(lead) + 1)]
    return num_heads in suffixes or lead.count(num_heads) == 1 or lead[0] % num_heads == 0


def by_heads(tensor: Float[Tensor, "*lead token dim"], num_heads: int | None) -> Tensor:
    """(text, head, token, dim) of a tensor whose leading axes are texts, heads, windows, in any order.

    Heads are the last axes that make the number, else the one axis of that size, as (head, text) and
    (head, column, row), else a part of the first, as (text x head, window). Without a number they are the
    last axis.
    """
    lead = tensor.shape[:-2]
    if num_heads is None:
        first = len(lead) - 1
        return tensor.reshape(prod(lead[:first]), lead[first] if lead else 1, *tensor.shape[-2:])
    for first in reversed(range(len(lead))):
        if prod(lead[first:]) == num_heads:
            return tensor.reshape(prod(lead[:first]), num_heads, *tensor.shape[-2:])
    if lead.count(num_heads) == 1:
        tensor = tensor.movedim(lead.index(num_heads), -3)
    elif lead and lead[0] % num_heads == 0:
        tensor = tensor.reshape(-1, num_heads, *tensor.shape[1:]).movedim(1, -3)
    return tensor.reshape(-1, tensor.shape[-3] if lead else 1, *tensor.shape[-2:])


def layer_by_hand(
    found: HandmadeAttention, num_heads: int | None
) -> tuple[AttentionLayer | GivenWeights, Tensor]:
    """The layer of an attention that a program computes itself, and its own weights.

    Only the weights where query, key and scale do not give them again.
    """

    def placed(tensor: Tensor) -> Tensor:
        return by_heads(readable(tensor), num_heads)

    weights = placed(found.weights)
    seen = (weights > 0).any(dim=1)
    given = found.query, found.key, found.value
    parts = [readable(part) for part in given if part is not None]
    is_given = len(parts) == len(given)
    if is_given and found.scores is not None and found.scores.shape == found.weights.shape:
        scores = placed(found.scores)
        query, key, value = (by_heads(part, num_heads) for part in parts)
        added = scores.float() - found.scale * (query @ key.mT).float()
        is_hidden = (scores <= HIDES) | (scores == torch.finfo(scores.dtype).min)
        seen = (~is_hidden).any(dim=1)
        largest = scores.masked_fill(is_hidden, 0).abs().max()
        rounding = max(CLOSE, torch.finfo(scores.dtype).eps) * (1 + float(largest))
        visible = added.masked_fill(is_hidden, 0)
        mask = ~is_hidden if visible.abs().max() <= rounding else added.masked_fill(is_hidden, -torch.inf)
        if not _hides_rows_of_some_heads(mask):
            visibility, bias = _of_mask(mask, *weights.shape[2:])
            layer = AttentionLayer(query, key, value, visibility, found.scale, ScoreRules(bias=bias))
            if _gives(layer, weights, every_row=found.is_filled):
                return layer, weights
    return GivenWeights(weights, seen), weights


def _gives(layer: AttentionLayer, weights: Tensor, *, every_row: bool) -> bool:
    """Whether query, key and what is added to their products give the weights again, in some rows or all."""
    num_queries = weights.shape[2]
    step = 1 if every_row else max(1, num_queries // CHECKED_ROWS)
    rows = torch.arange(0, num_queries, step, device=weights.device)
    scores = layer.scale * (layer.query[:, :, rows] @ layer.key.mT).float()
    if layer.rules.bias is not None:
        scores = scores + layer.rules.bias.expand(-1, -1, num_queries, -1)[:, :, rows]
    seen = layer.visibility.block(rows, torch.arange(weights.shape[3], device=weights.device)).unsqueeze(1)
    again = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    apart = (again - weights[:, :, rows].float().nan_to_num(0.0)).abs().max()
    return bool(apart <= max(CLOSE, 4 * torch.finfo(weights.dtype).eps))
