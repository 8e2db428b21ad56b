"""Capture of a model's attention during a run, checked against the weights that the model itself returns.

If weights stay in their files, several runs proceed together, one block at a time.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from math import inf, isqrt
from operator import ge
from traceback import walk_tb
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError, one_line_reason, raise_if_memory
from attncli.models.architectures import WEIGHTS, WINDOW, has_two_stacks, unshown_layers
from attncli.models.layers import (
    CannotShow,
    CapturedLayer,
    Consumer,
    Numbering,
    ProcessedInputs,
    StopCapture,
    run_by_interface,
    uncompiled,
)
from attncli.models.model_state import comparable_state, model_configs
from attncli.models.patched_heads import refuse_changes, refuse_replaced, without_patches
from attncli.models.side_by_side import by_itself, go_on, side_by_side, wait_for_runs
from attncli.models.stored import blocks_of, first_blocks, stored_use

ROUNDING = 1e-3
"""The largest excess of a row's sum over 1 and the largest weight on a later token that are tolerated."""


@contextmanager
def with_eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, let the model compute with its eager attention, hooks and adapters included.

    The model's state is restored afterwards, because some models replace some of their parts depending on the
    input (BigBird).
    """
    with unchanged(model), uncompiled():
        for config in model_configs(model):
            # set_attn_implementation skips models (Falcon) that follow their config regardless.
            config._attn_implementation_internal = "eager"
        yield


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore a model's attributes, parts, hooks and configs after the block."""
    give_back = remembered(model)
    try:
        yield
    finally:
        give_back()


def remembered(model: nn.Module) -> Callable[[], None]:
    """Return a function that restores a model's current attributes, parts, hooks and configs."""
    before = [(vars(module), {**vars(module)}) for module in model.modules()]
    before += [(vars(config), {**vars(config)}) for config in model_configs(model)]
    # torch keeps parts, parameters and hooks in separate dicts, which hook handles refer to.
    before += [
        (table, table.copy()) for _, parts in before for table in parts.values() if isinstance(table, dict)
    ]

    def give_back() -> None:
        for now, then in before:
            now.clear()
            now.update(then)

    return give_back


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put a model in training into evaluation mode, without autocast, and restore the model after the block.

    The numbers in its buffers (such as the frequencies of a dynamic rope) and all random generators are
    restored, too.
    """
    tensors = chain(model.parameters(), model.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with (
        unchanged(model),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
    ):
        model.train(False)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)


def returned_weights(outputs: ModelOutput | tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Return each layer's weights with the name of their output, or nothing if the outputs are a tuple."""
    for name, values in outputs.items() if isinstance(outputs, ModelOutput) else ():
        for weights in values if name in WEIGHTS and isinstance(values, tuple | list) else ():
            if weights is not None:
                yield name, weights


@contextmanager
def weight_modules(model: PreTrainedModel) -> Iterator[MutableMapping[Tensor, str]]:
    """Inside the block, record the module that first returned each tensor that may be weights."""
    # Tensors are compared by identity, through weak references, since the id of a freed tensor could be
    # reused.
    sources: MutableMapping[Tensor, str] = WeakIdKeyDictionary()

    def note(name: str, output: Any) -> None:
        for tensor in output if isinstance(output, tuple | list) else ():
            if isinstance(tensor, Tensor) and tensor.ndim == 4 and tensor not in sources:
                sources[tensor] = name

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(
                lambda _module, _inputs, output, name=name: note(name, output)
            )
            hooks.enter_context(hook)
        yield sources


def run_eagerly(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], numbering: Numbering
) -> list[CapturedLayer]:
    """Return the weights from a model's eager attention, each with the name of its module.

    Raises CannotShow if the model returns no weights between the tokens.
    """
    modules = dict(model.named_modules())
    with weight_modules(model) as sources:
        outputs = model(**inputs, output_attentions=True)
    layers: list[CapturedLayer] = []
    seen: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
    for output, weights in returned_weights(outputs):
        stack, kind = WEIGHTS[output]
        name = sources.get(weights, output) if isinstance(weights, Tensor) else output
        fault = weights_fault(weights)
        if not fault and weights in seen:
            fault = "the same weights twice"
        if fault:
            raise CannotShow(f"{name} returns {fault}")
        seen[weights] = None
        attention = GivenWeights(weights, (weights > 0).any(dim=1))
        layer = numbering.layer(name, kind, attention, stack)
        may_be_causal = kind == "self" and layer.stack != "encoder"
        is_causal = may_be_causal and getattr(modules.get(name), "is_causal", False)
        if is_causal and not torch.triu(weights, diagonal=1).max() <= ROUNDING:
            raise CannotShow(f"{name} is causal but returns weights on later tokens")
        layers.append(layer)
    return layers


def weights_fault(weights: Any) -> str:
    """Describe what is wrong with these weights, or return "" if they are distributions over keys."""
    if not isinstance(weights, Tensor) or weights.ndim != 4:
        return "no weights with axes text, head, query and key"
    least, sums = weights.min(), weights.sum(dim=-1)
    if least.isnan():
        return "weights that are NaN"
    if least < 0:
        return f"negative weights such as {least:.3g}, which may be scores"
    if not sums.max() <= 1 + ROUNDING + torch.finfo(weights.dtype).eps:
        return f"rows that sum to more than 1, such as {sums.max():.4g}"
    return ""


TRIAL_TOKENS = 8
TRIAL_SCORES = 2**26
"""The most scores per layer (268 MB) for which eager attention runs on a text longer than a window."""
TOLERANCE = 1e-4
"""Largest difference allowed between attention outputs for a token, relative to their length."""
TOLERATED_STEPS = 8
"""Largest difference allowed in rounding steps of the dtype, if that is more: bfloat16 rounds to 2^-7."""

EAGER_NOTE = (
    "Weights come from the model's eager attention, as dense matrices: memory grows with the square of the "
    "number of tokens."
)
NO_WEIGHTS = "it returns no attention weights, since it has none or transformers hides them"
GIVES_NAN = "returns NaN: some of its parameters are NaN or too large"
NOT_COMPARED = "The weights were not compared with the model's own eager attention"
NOT_CHANGED = "computes its attention itself, so its heads cannot be changed"


@dataclass(frozen=True)
class Way:
    """The way to capture a model's attention: through the interface, or as the weights of eager attention.

    `not_compared` is a note if the interface could not be compared with eager attention, and `unshown` is a
    note on layers that mix tokens without a softmax.
    """

    kind: Literal["interface", "eager"]
    not_compared: str = ""
    unshown: str = ""

    def notes(self) -> list[str]:
        """Notes on the results, with missing layers first."""
        notes = (self.unshown, EAGER_NOTE * (self.kind == "eager"), self.not_compared)
        return [*filter(None, notes)]


PACKAGE = __name__.partition(".")[0]
CALL = "torch.nn.modules.module"
"""The method of torch's modules that calls a model."""

Shapes = tuple[tuple[Any, ...], ...]
"""The name of each model input, with its axes."""

_ways: MutableMapping[PreTrainedModel, dict[Shapes, Way]] = WeakKeyDictionary()
"""The way of capture of each model, by the shapes of the inputs on which the model was tried."""

_windows: MutableMapping[PreTrainedModel, set[int]] = WeakKeyDictionary()
"""The numbers of tokens above which a model may hide keys, from the settings in its configs."""

_lent: MutableMapping[PreTrainedModel, Any] = WeakKeyDictionary()
"""Callers' models that are in use, with their states."""

_tried_as: MutableMapping[PreTrainedModel, Any] = WeakKeyDictionary()
"""The state of a caller's model when the ways in `_ways` were determined."""


@contextmanager
def tried_again_when_changed(whole: PreTrainedModel, body: PreTrainedModel) -> Iterator[None]:
    """Try a caller's model, or its body, again if the model has changed or if texts are longer than before.

    Inside the block, the model is tried on whole texts, since rounding (int8) may grow with the text length.
    """
    models, state = (whole, body), comparable_state(whole)
    for model in models:
        _lent[model] = state
        if _tried_as.get(model) != state:
            _tried_as[model] = state
            _ways.pop(model, None)
    try:
        yield
    finally:
        for model in models:
            _lent.pop(model, None)


# Not in inference mode: tensors that a hook or the model keeps could not be used in training.
@torch.no_grad()
def capture(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    consume: Consumer,
    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Way:
    """Run the model on texts of one length, and pass each layer's attention to `consume`.

    Returns the way of capture. `meanwhile` is open while the model runs. Raises UserError if the model
    returns no weights between its tokens, and MemoryError if memory runs out.
    """
    model.config.use_cache = False
    with model_errors(model.config.model_type, _what_is_read(inputs)):
        way = capture_way(model, inputs)
        with meanwhile(), suppress(StopCapture):
            if way.kind == "interface":
                run_by_interface(model, inputs, guarded(consume), _numbering(model, inputs))
            else:
                layers = _eager_layers(model, inputs)  # first, to raise the model's own errors
                refuse_changes(model, f"{model.config.model_type} {NOT_CHANGED}")
                for layer in layers:
                    guarded(consume)(layer)
    return way


def check_computed_here(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Way:
    """Return the way of capture.

    Raises UserError for a model with its own attention code, which cannot be changed. If the model fails, the
    message is the model's own error; if the model returns NaN, the message names the module.
    """
    kind = model.config.model_type
    with torch.no_grad(), model_errors(kind, _what_is_read(inputs)):
        way = capture_way(model, inputs)
        if way.kind == "eager":
            with without_patches(), unchanged(model), _finding_nan(model):
                _eager_layers(model, inputs)
    if way.kind == "eager":
        message = "computes its attention itself, so attn sees only the weights: use another model"
        raise UserError(f"model: {kind} {message}")
    refuse_replaced(model, ["pattern"], "which does not come from queries and keys")
    return way


def run_model(model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer) -> Any:
    """Return the outputs of a model whose attention outputs come from `consume`, after `check_computed_here`.

    The result is None if `consume` or a hook raised StopCapture. Raises UserError if the model fails, and
    MemoryError if memory runs out.
    """
    model.config.use_cache = False
    with model_errors(model.config.model_type, _what_is_read(inputs)), suppress(StopCapture):
        return run_by_interface(model, inputs, guarded(consume), _numbering(model, inputs))


def _numbering(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Numbering:
    if isinstance(inputs, ProcessedInputs):
        return inputs.numbering(has_two_stacks=has_two_stacks(model))
    counts = [inputs[name].shape[1] for name in ("decoder_input_ids", "input_ids") if name in inputs]
    num_tokens = (counts[0], counts[-1]) if "input_ids" in inputs else None
    return Numbering(has_two_stacks(model), num_tokens)


def capture_way(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Way:
    """Determine how to capture a model's attention by trying the first tokens of the first text.

    If a window is shorter than the text, slightly more tokens than the window are tried; a caller's model is
    tried on whole texts, unless it was tried before on as many texts of this length. The memory that eager
    attention needs limits the number of tokens.
    """
    num_texts = max(map(len, inputs.values())) if model in _lent else 1
    num_tokens = needed = max(tensor.shape[-1] for tensor in inputs.values())
    if isinstance(inputs, ProcessedInputs):
        num_tokens = needed = TRIAL_TOKENS
    elif model not in _lent:
        if model not in _windows:
            _windows[model] = _window_sizes(model)
        needed = max((size for size in _windows[model] if size < num_tokens), default=0) + TRIAL_TOKENS
    heads = getattr(model.config.get_text_config(), "num_attention_heads", 1)
    if isinstance(heads, list):  # one number per stage
        heads = max(heads)
    most = max(TRIAL_TOKENS, isqrt(TRIAL_SCORES // (heads * num_texts)))
    few = _start(inputs, 1, TRIAL_TOKENS)
    more = _start(inputs, num_texts, min(needed, most))
    ways = _ways.setdefault(model, {})
    shapes = tuple((name, *tensor.shape) for name, tensor in more.items())
    way = ways.get(shapes)
    if way is None and model in _lent:
        way = next((ways[tried] for tried in ways if _covers(tried, shapes)), None)
    if way is None:
        with by_itself():
            way = _way_on(model, few, more if needed > TRIAL_TOKENS else None)
            way = ways[shapes] = replace(way, unshown=unshown_layers(model))
    if way == Way("interface", unshown=way.unshown) and most < min(needed, num_tokens):
        return replace(way, not_compared=f"{NOT_COMPARED} beyond the first {most:,} tokens.")
    return way


def comes_by_interface(model: PreTrainedModel) -> bool:
    """Return True if the model passed on its attention for every input on which it was tried."""
    ways = _ways.get(model, {})
    return bool(ways) and all(way.kind == "interface" for way in ways.values())


def copy_ways(model: PreTrainedModel, copy: PreTrainedModel) -> None:
    """Apply a model's ways of capture to its copy."""
    _ways[copy] = {**_ways.get(model, {})}


def _covers(tried: Shapes, shapes: Shapes) -> bool:
    """Return True if a model was tried on at least as many texts of at least the same lengths."""
    return len(tried) == len(shapes) and all(
        (name, len(before)) == (now_name, len(now)) and all(map(ge, before, now))
        for (name, *before), (now_name, *now) in zip(tried, shapes, strict=True)
    )


def _way_on(model: PreTrainedModel, few: Mapping[str, Tensor], more: Mapping[str, Tensor] | None) -> Way:
    """Return the way of capture for a few tokens and, if `more` is set, for more tokens."""

    def tried() -> Way:
        way = _tried(model, few, output_attentions=True)
        if way == Way("interface") and more is not None:
            # The weights are left out, since they would be returned for all layers at once.
            way = _tried(model, more)
        return way

    # Each kind of block is run twice or, if that is not conclusive, all blocks. Processed inputs are read
    # whole.
    is_processed = isinstance(few, ProcessedInputs)
    with without_patches():
        with unchanged(model), first_blocks(model, in_memory=is_processed) as is_shorter:
            if is_shorter and (way := tried()) == Way("interface"):
                return way
        with unchanged(model):
            return tried()


def _window_sizes(model: PreTrainedModel) -> set[int]:
    settings = [setting for config in model_configs(model) for setting in vars(config).items()]
    return {number for name, number in settings if type(number) is int and WINDOW.search(name)}


def _start(inputs: Mapping[str, Tensor], num_texts: int, num_tokens: int) -> dict[str, Tensor]:
    """Return the first tokens of the first texts, without a mask; processed inputs are kept whole."""
    if isinstance(inputs, ProcessedInputs):
        return inputs
    return {name: _tensor_start(name, tensor[:num_texts], num_tokens) for name, tensor in inputs.items()}


def _tensor_start(name: str, tensor: Tensor, num_tokens: int) -> Tensor:
    if name.endswith("mask"):
        size = len(tensor), min(num_tokens, tensor.shape[-1])
        return torch.ones(size, dtype=torch.long, device=tensor.device)
    return tensor[:, :num_tokens] if tensor.ndim == 2 else tensor


@dataclass(frozen=True)
class _ModuleCall:
    """The token vectors passed to a module, and the module's output."""

    inputs: tuple[Tensor | None, ...]
    named: Mapping[str, Tensor | None]
    output: Tensor | None


def _tried(model: PreTrainedModel, inputs: Mapping[str, Tensor], **asked: bool) -> Way:
    """Choose the interface if it captures as many layers as eager attention, with the same output in each."""
    numbering = _numbering(model, inputs)
    calls: dict[str, list[_ModuleCall]] = {}

    def note(layer: CapturedLayer) -> None:
        calls.setdefault(layer.module, [])

    try:
        with _recorded(model, calls):
            output = run_by_interface(model, inputs, note, numbering)[0]
    except Exception as error:  # a model may fail in any way with a different mask or attention
        raise_if_memory(error)
        return Way("eager")
    try:
        with with_eager_attention(model), _compared(model, calls) as agreeing:
            expected = model(**inputs, **asked)
    except Exception as error:  # there is nothing to compare with
        raise_if_memory(error)
        # Without a layer, only the error can be shown.
        fails = f"{NOT_COMPARED}, which fails: {_one_line(error)}"
        return Way("interface", fails) if numbering.taken else Way("eager")
    num_layers = sum(map(len, numbering.taken.values()))
    num_expected = sum(not weights_fault(weights) for _, weights in returned_weights(expected)) or num_layers
    if 0 < num_layers == num_expected and all(agreeing) and _is_near(output, expected[0]):
        return Way("interface")
    return Way("eager")


@contextmanager
def _recorded(model: PreTrainedModel, calls: Mapping[str, list[_ModuleCall]]) -> Iterator[None]:
    """Inside the block, record the calls of the modules that are in `calls`."""

    def record(name: str, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        if name in calls:
            # Copies, because some models reuse the memory.
            keywords = {key: _copied(part) for key, part in named.items()}
            calls[name].append(_ModuleCall(tuple(map(_copied, inputs)), keywords, _copied(_first(output))))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(
                lambda _module, *call, name=name: record(name, *call), with_kwargs=True
            )
            hooks.enter_context(hook)
        yield


@contextmanager
def _compared(model: PreTrainedModel, calls: Mapping[str, Sequence[_ModuleCall]]) -> Iterator[list[bool]]:
    """Inside the block, repeat the recorded calls of modules, and list whether each output agrees.

    Each module is compared separately, so that rounding errors do not add up from layer to layer.
    """
    agreeing: list[bool] = []
    waiting = {name: deque(module_calls) for name, module_calls in calls.items()}

    def give(name: str, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, Any] | None:
        if not waiting[name]:
            return None
        call = waiting[name][0]
        again = zip_longest(inputs, call.inputs[: len(inputs)])
        recorded = {
            key: part if call.named.get(key) is None else call.named[key] for key, part in named.items()
        }
        return tuple(now if then is None else then for now, then in again), recorded

    def compare(name: str, output: Any) -> None:
        ours = waiting[name].popleft().output if waiting[name] else None
        theirs = _first(output)
        agreeing.append(ours is not None and isinstance(theirs, Tensor) and _is_near(ours, theirs))

    with ExitStack() as hooks:
        for name in calls:
            module = model.get_submodule(name)
            before = module.register_forward_pre_hook(
                lambda _module, *call, name=name: give(name, *call), with_kwargs=True
            )
            after = module.register_forward_hook(lambda _module, _inputs, out, name=name: compare(name, out))
            hooks.enter_context(before)
            hooks.enter_context(after)
        yield agreeing
    agreeing += [False for left in waiting.values() for _ in left]


def _first(output: Any) -> Any:
    """Return a module's output or, if the module has several outputs, the first of them."""
    return output[0] if isinstance(output, tuple | list) else output


def _copied(part: Any) -> Tensor | None:
    """Return a copy of token vectors, or None for any other value, such as a mask."""
    is_vectors = isinstance(part, Tensor) and part.is_floating_point() and part.ndim in (2, 3)
    return part.clone() if is_vectors else None


def _is_near(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape:
        return False
    tolerance = max(TOLERANCE, TOLERATED_STEPS * torch.finfo(theirs.dtype).eps)
    return bool(((ours - theirs).norm(dim=-1) <= tolerance * theirs.norm(dim=-1)).all())


def _eager_layers(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[CapturedLayer]:
    with with_eager_attention(model):
        layers = run_eagerly(model, inputs, _numbering(model, inputs))
    if not layers:
        with with_eager_attention(model):
            model(**inputs)  # parts that it replaces during a run would have no hooks for their weights
            layers = run_eagerly(model, inputs, _numbering(model, inputs))
    if not layers:
        raise CannotShow(NO_WEIGHTS)
    return layers


@contextmanager
def _finding_nan(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, raise CannotShow for the first module of a model whose output has NaN."""

    def check(name: str, output: Any) -> None:
        part = _first(output)
        if isinstance(part, Tensor) and part.is_floating_point() and bool(part.isnan().any()):
            raise CannotShow(f"{name or 'it'} {GIVES_NAN}")

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(lambda _module, _inputs, out, name=name: check(name, out))
            hooks.enter_context(hook)
        yield


class _ConsumerError(Exception):
    """Carries the consumer's error through the model's code."""


def guarded(consume: Consumer) -> Consumer:
    """Wrap the consumer so that its errors pass through the model unchanged."""

    def guarded_consume(layer: CapturedLayer) -> Tensor | None:
        try:
            return consume(layer)
        except (CannotShow, StopCapture, UserError):
            raise
        except Exception as error:  # every error is passed on; this only records its origin
            raise_if_memory(error)
            raise _ConsumerError from error

    return guarded_consume


@contextmanager
def model_errors(kind: str, what: str = "run on only text") -> Iterator[None]:
    """Turn any failure of the model itself into a one-line UserError; errors in attn pass through."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except _ConsumerError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None
    except CannotShow as error:
        raise UserError(f"model: {kind} cannot be shown: {error}; use another model") from None
    except Exception as error:  # it may need inputs other than text
        raise_if_memory(error)
        if not _is_model_error(error):
            raise
        raise UserError(f"model: {kind} cannot {what}: {_one_line(error)}; use another model") from None


def _what_is_read(inputs: Mapping[str, Tensor]) -> str:
    origin = inputs.origin if isinstance(inputs, ProcessedInputs) else None
    return "run on only text" if origin is None else f"read this {origin.what}"


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line_reason(error)}"


def _is_model_error(error: Exception) -> bool:
    """Return True if the model itself failed: it was called and had not called attn."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    is_model = [name == CALL or name.partition(".")[0] == "transformers" for name in modules]
    inside = modules[is_model.index(True) :] if True in is_model else []
    return bool(inside) and all(name.partition(".")[0] != PACKAGE for name in inside)


CaptureResult = TypeVar("CaptureResult")
AnyBatch = TypeVar("AnyBatch", bound=Sequence[tuple[Any, Any]])

MOST_RUNS = 64
"""The most runs that proceed together. Each holds its results and its texts' vectors between two blocks."""
ENOUGH_TOKENS = 1024
"""The number of rows above which a product takes no less time per row."""


def in_step(
    model: nn.Module,
    works: Sequence[Callable[[], CaptureResult]],
    between: Callable[[], object] = lambda: None,
) -> list[CaptureResult]:
    """Return the results of tasks, each of which runs the model on different texts.

    If a model's weights stay in their files, the tasks run together: all run the first block, then all run
    the second, so that each block is read once; if weights are then kept in memory, the rows of all tasks are
    multiplied together. Raises the error of the first task that fails. `between` is called after each block
    or task.
    """
    use = stored_use(model)
    if use is None or len(works) < 2:
        results = []
        for work in works:
            results.append(work())
            between()
        return results
    with side_by_side(works, shares_products=use.keeps) as runs, ExitStack() as hooks:
        for stack in blocks_of(model):
            for block in stack:
                hooks.enter_context(block.register_forward_pre_hook(wait_for_runs))
        while waiting := [run for run in runs if not run.has_ended]:
            with use.holding():
                go_on(waiting)
            between()
    return [run.given[0] for run in runs]


def together(model: nn.Module, batches: Iterable[AnyBatch]) -> Iterator[list[AnyBatch]]:
    """Group batches of texts and readings so that each group can run together."""
    use = stored_use(model)
    most_runs = 1 if use is None else MOST_RUNS
    most_tokens = ENOUGH_TOKENS if use is not None and use.keeps else inf
    some: list[AnyBatch] = []
    num_tokens = 0
    for batch in batches:
        some.append(batch)
        num_tokens += sum(max(reading.counts) for _, reading in batch)
        if len(some) >= most_runs or num_tokens >= most_tokens:
            yield some
            some, num_tokens = [], 0
    if some:
        yield some
