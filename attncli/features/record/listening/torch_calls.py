"""The torch functions that are followed, and their effects on tensor axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attncli.features.record.listening.axis_labels import axis_parts
from attncli.models.torch_functions import SCALINGS, functions_named


class TorchCall(NamedTuple):
    """A call of a torch function, and its result."""

    function: Callable[..., object]
    arguments: Sequence[object]
    named: Mapping[str, object]
    result: object

    def get(self, place: int, *names: str) -> object:
        """Return an argument by its index or one of its names, or None if the argument is missing."""
        if place < len(self.arguments):
            return self.arguments[place]
        return next((self.named[name] for name in names if name in self.named), None)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors among the arguments, including those in lists."""
        for value in (*self.arguments, *self.named.values()):
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, tuple | list):
                yield from (part for part in value if isinstance(part, Tensor))

    def call_with(self, tensor: Tensor, replacement: Tensor) -> object:
        """Return the result of the function with one argument replaced."""
        arguments = [replacement if value is tensor else value for value in self.arguments]
        named = {name: replacement if value is tensor else value for name, value in self.named.items()}
        return self.function(*arguments, **named)


EXPONENTIALS = functions_named("exp")
DIVISIONS = functions_named("div", "true_divide", "divide", "truediv")
TURNS = {  # properties, which the mode receives as their getters
    getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")
}
MOVES = TURNS | functions_named("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t")
SHAPES = functions_named(
    *("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "expand_as", "view_as"),
    *("reshape_as", "ravel", "broadcast_to"),
)
EXPANSIONS = functions_named("expand", "expand_as", "broadcast_to")
PARTS = functions_named(
    *("getitem", "chunk", "split", "unbind", "narrow", "select", "tensor_split", "unsafe_chunk"),
    "unsafe_split",
)
VIEWS = MOVES | SHAPES | PARTS
"""Functions that return the numbers of a tensor in another order, or a selection of these numbers."""
CATS = functions_named("cat", "concat", "concatenate")
JOINS = CATS | functions_named("pad")
SUMS = {
    *functions_named("add", "sub", "rsub", "subtract", "maximum", "max", "minimum", "min", "tril", "triu"),
    *functions_named("masked_scatter", "clamp", "clip", "clamp_min", "clamp_max", "tanh"),
    Tensor.__radd__,
}
"""Functions whose effect can be expressed as a bias on the product."""
FILLS = functions_named("masked_fill", "where", "nan_to_num")
ELEMENTWISE = functions_named(
    *("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "softplus", "selu", "celu", "relu6", "prelu"),
    *("hardtanh", "hardsigmoid", "hardswish", "pow", "square", "sqrt", "abs", "exp2", "log1p", "sign"),
    *("threshold", "round", "floor", "ceil", "trunc", "softsign", "mish", "log_softmax", "_log_softmax"),
)
"""Functions that change numbers and keep axes."""
SCATTERS = functions_named(
    "scatter", "scatter_add", "scatter_reduce", "index_fill", "index_put", "fill_diagonal"
)
ORDERS = functions_named("flip", "fliplr", "flipud", "roll", "index_select")
BLANKS = functions_named("full_like", "zeros_like", "ones_like", "empty_like")
DISTANCES = {torch.cdist}
CONTRACTIONS = functions_named("tensordot", "inner")
"""Products that are not followed."""
DROPOUTS = functions_named(
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d"
)
DROPOUTS |= functions_named("dropout2d", "dropout3d")
CASTS = {
    *functions_named("to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone"),
    *functions_named("detach", "cpu", "cuda", "requires_grad"),
    Tensor.data.__get__,  # type: ignore[attr-defined]
}
COPIES = {Tensor.copy_}
PICKS = functions_named("topk", "sort", "gather", "take_along_dim")
PICKS_BY_SECOND = functions_named("topk", "take_along_dim")
"""Functions whose axis comes after another argument."""
LOOKUPS = {functional.embedding}
RECURRENCES = functions_named(
    *("gru", "lstm", "rnn_tanh", "rnn_relu", "gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
)
CONVOLUTIONS = functions_named("conv1d", "conv2d", "conv3d")
NORMS = functions_named("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize")
OVERWRITING = {
    function
    for function in (*FILLS, *DROPOUTS, *SCALINGS, *DIVISIONS, *SUMS, *ELEMENTWISE, *SCATTERS)
    if (name := function.__name__).endswith("_") and (not name.endswith("__") or name.startswith("__i"))
}
CARRYING = {
    *(*MOVES, *SHAPES, *PARTS, *JOINS, *SUMS, *FILLS, *DROPOUTS, *CASTS, *SCALINGS, *DIVISIONS, *ELEMENTWISE),
    *ORDERS,
    *functions_named("neg", "stack", "roll", "repeat", "repeat_interleave", "index_select", "index_copy"),
    *functions_named("view_as_complex", "view_as_real", "addcmul", "lerp", "sum"),
}
"""Functions whose result is the same kind of tensor as their argument: scores, weights, or a projection."""
VIEWING = MOVES | SHAPES | PARTS | CASTS
SUBTRACTIONS = functions_named("sub", "subtract")
NEGATIONS = functions_named("neg", "rsub")
ADDMMS = functions_named("addmm")
INDEXING = functions_named("getitem")
SUMMING = functions_named("sum")
MEANS = functions_named("mean")
STACKS = functions_named("stack", "view_as_complex", "view_as_real")


@contextmanager
def unseen() -> Iterator[None]:
    """Hide the computations within this context from the program's modes."""
    modes = torch.utils._python_dispatch._disable_current_modes()
    with torch.no_grad(), torch._C.DisableTorchFunction(), modes:
        yield


@contextmanager
def reading() -> Iterator[None]:
    """Hide the computations within this context from the program's modes, and disable autocast."""
    with (
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else nullcontext(),
        unseen(),
    ):
        yield


FeatureSpans = tuple[tuple[int, int], ...]
"""Ranges of strides (start, end) in which an axis holds features."""


def places_after_cut(call: TorchCall, tensor: Tensor) -> list[int | None] | None:
    """Return each axis's position in part of a tensor (None: removed), or None if the part is not a view."""
    if call.function in INDEXING:
        index = call.get(1)
        for part in index if isinstance(index, tuple) else (index,):
            if not (part is None or part is Ellipsis or isinstance(part, slice) or type(part) is int):
                return None
    with unseen():
        before = torch.empty(tensor.shape, device="meta")
        after = call.call_with(tensor, before)
        first = after[0] if isinstance(after, tuple | list) else after
    assert isinstance(first, Tensor)
    free = {axis: (first.stride(axis), first.shape[axis]) for axis in range(-first.ndim, 0)}
    axes: list[int | None] = [None] * tensor.ndim
    for is_cut in (False, True):
        for axis in range(-1, -tensor.ndim - 1, -1):
            stride, size = before.stride(axis), before.shape[axis]
            places = [
                place
                for place, (its_stride, its_size) in free.items()
                if its_stride == stride and (its_size == size or (is_cut and 1 < its_size < size))
            ]
            if axes[axis] is None and places:
                axes[axis] = max(places)
                del free[max(places)]
    return axes


def stride_spans(result: Tensor, axes: Sequence[int]) -> FeatureSpans:
    """Return the stride ranges of some axes."""
    return tuple((result.stride(axis), result.stride(axis) * result.shape[axis]) for axis in axes)


def folded_spans(
    spans: FeatureSpans, tensor: Tensor, sizes: Sequence[int], strides: Sequence[int]
) -> FeatureSpans:
    """Return the spans of features that share an axis with tokens or texts, if the axis is unchanged.

    Heads folded into the text axis are an example.
    """
    folded: list[tuple[int, int]] = []
    parts_by_axis = axis_parts(tensor.shape, tensor.stride(), spans)
    for axis in range(-min(tensor.ndim, len(sizes)), 0):
        step, parts = strides[axis], parts_by_axis[axis]
        for size, is_feature in reversed(parts if tensor.shape[axis] == sizes[axis] else []):
            if is_feature and len(parts) > 1:
                folded.append((step, step * size))
            step *= size
    return tuple(folded)


def feature_axes(tensor: Tensor, spans: FeatureSpans | None) -> tuple[int, ...] | None:
    """Return the feature axes, counted from the end, or None if they are unknown."""
    if spans is None or not torch._C._has_storage(tensor):
        return None
    return _axes_within(tensor.shape, tensor.stride(), spans)


def _axes_within(sizes: Sequence[int], strides: Sequence[int], spans: FeatureSpans) -> tuple[int, ...]:
    axes = zip(range(-len(sizes), 0), sizes, strides, strict=True)
    return tuple(
        axis
        for axis, size, stride in axes
        if size > 1 and any(start <= stride and stride * size <= end for start, end in spans)
    )


def carried_features(
    spans: FeatureSpans | None, tensor: Tensor, call: TorchCall, result: Tensor
) -> FeatureSpans | None:
    """Return the feature spans in a function's result, from the memory of its argument."""
    if spans is None or not torch._C._has_storage(tensor) or not torch._C._has_storage(result):
        return None
    if call.function in CATS and (head_spans := _cat_spans(spans, call, result)) is not None:
        return head_spans
    if call.function in SUMMING:
        return None if -1 not in summed_axes(call, tensor) else _without_last(spans, tensor, result)
    if tensor.untyped_storage()._cdata == result.untyped_storage()._cdata:
        return spans
    axes = _axes_within(tensor.shape, tensor.stride(), spans)
    if call.function in SHAPES:  # copied, in the order of its axes
        rows = [1]
        for size in reversed(tensor.shape[1:]):
            rows.append(rows[-1] * size)
        strides = rows[::-1]
        folded = folded_spans(spans, tensor, tensor.shape, strides)
        return *((strides[axis], strides[axis] * tensor.shape[axis]) for axis in axes), *folded
    if result.ndim < tensor.ndim or call.function in STACKS:
        return None
    return *stride_spans(result, axes), *folded_spans(spans, tensor, result.shape, result.stride())


def _cat_spans(spans: FeatureSpans, call: TorchCall, result: Tensor) -> FeatureSpans | None:
    """Return the feature spans after parts of the features, such as heads, were joined along another axis."""
    parts, dim = [*call.tensors()], call.get(1, "dim", "axis")
    axis = dim if type(dim) is int else 0
    axis = axis if axis < 0 else axis - result.ndim
    if (
        len(parts) < 2
        or len({part.shape for part in parts}) > 1
        or len({part.stride() for part in parts}) > 1
    ):
        return None
    memory = {part.untyped_storage()._cdata for part in parts if torch._C._has_storage(part)}
    places = {part.storage_offset() for part in parts}
    features = _axes_within(parts[0].shape, parts[0].stride(), spans)
    if len(memory) > 1 or len(places) < len(parts) or axis in features:
        return None
    # The parts are adjacent within the features.
    first, last = min(places), max(places)
    if not any(start <= (last - first) // (len(parts) - 1) < end for start, end in spans):
        return None
    step = result.stride(axis) * parts[0].shape[axis]
    return *stride_spans(result, features), (step, step * len(parts))


def summed_axes(call: TorchCall, tensor: Tensor) -> list[int]:
    """Return the axes that a sum removes, counted from the end."""
    dims = call.get(1, "dim", "axis")
    axes = [axis for axis in (dims if isinstance(dims, tuple | list) else (dims,)) if type(axis) is int]
    return [axis if axis < 0 else axis - tensor.ndim for axis in axes]


def picked_axis(call: TorchCall, tensor: Tensor) -> int:
    """Return the axis along which a function picks entries of a tensor, counted from the end."""
    dim = call.get(2 if call.function in PICKS_BY_SECOND else 1, "dim", "axis")
    axis = dim if type(dim) is int else -1
    return axis if axis < 0 else axis - tensor.ndim


def _without_last(spans: FeatureSpans, tensor: Tensor, result: Tensor) -> FeatureSpans | None:
    """Return the feature spans after a sum over the last axis."""
    axes = [axis for axis in _axes_within(tensor.shape, tensor.stride(), spans) if axis != -1]
    return stride_spans(result, [axis + tensor.ndim - result.ndim for axis in axes])


def outer_factors(call: TorchCall) -> tuple[Tensor, Tensor] | None:
    """Return the factors of an elementwise product of two tensors of different shapes, or None."""
    factors = [*call.tensors()]
    if len(factors) != 2 or not isinstance(call.result, Tensor):
        return None
    left, right = factors
    return None if left.shape == right.shape or left.ndim < 2 > right.ndim else (left, right)


def equation_letters(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the letters of the operands and of the result, with a digit for each axis of an ellipsis."""
    terms, arrow, out = equation.replace(" ", "").partition("->")
    inputs = [_spelled(part, tensor.ndim) for part, tensor in zip(terms.split(","), operands, strict=True)]
    if not arrow:
        every = "".join(inputs)
        digits = sorted({label for label in every if label.isdigit()}, reverse=True)
        return inputs, "".join([*digits, *sorted(x for x in {*every} if every.count(x) == 1 and x.isalpha())])
    widest = max((part for part in inputs), key=lambda part: sum(map(str.isdigit, part)))
    return inputs, out.replace("...", "".join(filter(str.isdigit, widest)))


def _spelled(labels: str, ndim: int) -> str:
    missing = ndim - len(labels.replace("...", ""))
    return labels.replace("...", "9876543210"[10 - missing :])


class Product(NamedTuple):
    """A product of tensors whose axes have letters, as in an einsum, and its result."""

    operands: Sequence[Tensor]
    inputs: Sequence[str]
    out: str
    result: Tensor


def matrix_product(left: Tensor, right: Tensor, result: Tensor) -> Product:
    """Return a matrix product with letters for its axes."""
    widest = max(left.ndim, right.ndim) - 2
    lead = "".join(chr(ord("a") + place) for place in range(max(widest, 0)))

    def spelled(tensor: Tensor, tokens: str) -> str:
        return lead[len(lead) - max(tensor.ndim - 2, 0) :] + tokens

    left_letters, right_letters = ("YZ" if left.ndim > 1 else "Z"), ("ZX" if right.ndim > 1 else "Z")
    out = lead + ("Y" if left.ndim > 1 else "") + ("X" if right.ndim > 1 else "")
    return Product((left, right), (spelled(left, left_letters), spelled(right, right_letters)), out, result)
