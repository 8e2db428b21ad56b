"""Attention that a program computes itself: from a product over a softmax to the product that it reaches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from attncli.models.torch_calls import (
    ADDMMS,
    CARRYING,
    CASTS,
    CONVOLUTIONS,
    COPIES,
    DIVISIONS,
    DROPOUTS,
    FILLS,
    JOINS,
    LAST_NORMS,
    MATMULS,
    MOVES,
    NEGATIONS,
    NORMS,
    OVERWRITING,
    PARTS,
    SCALINGS,
    SHAPES,
    SOFTMAXES,
    SUBTRACTIONS,
    SUMS,
    VIEWING,
    Spans,
    TorchCall,
    arranged,
    axes_after,
    carried_features,
    feature_axes,
    functions_named,
    labels_of,
    led_again,
    places_after,
    spans_of,
    tensor_lead,
    unseen,
    with_lead,
)


@dataclass(frozen=True)
class HandmadeAttention:
    """What a program attended with: keys lie on the last axis of scores and weights, queries before it.

    `scores` are what the softmax took, `weights` what it gave, before dropout, or what reached the product
    where that is no longer the same (mixed between heads, or without the column of a sink) but has rows that
    are shares still. query, key (..., token, dim) are None where the scores are no multiple of their product,
    to which something may have been added. `is_self`: whether both were made of the same tensor; None where
    that is not known.
    """

    scores: Tensor
    weights: Tensor
    value: Tensor | None
    query: Tensor | None
    key: Tensor | None
    scale: float
    is_self: bool | None


Source = tuple[int, int]
"""Memory by its number, and the place in it where a tensor begins."""


@dataclass(frozen=True)
class Projected:
    """A tensor that is a product of others with parameters.

    `sources` are what was multiplied last, `parents` what those were made of in the same way. `features` says
    which axes are not of tokens; None where that is not known.
    """

    sources: frozenset[Source]
    parents: frozenset[Source] = frozenset()
    features: Spans | None = None


@dataclass(frozen=True)
class Scores:
    """What became of a product of two tensors (..., token, dim); their leading axes are those of the scores.

    The axes of their tokens count from the end; None for a single token without an axis. Without `is_plain`
    the scores were mixed or cut, so that the product no longer says what they are.
    """

    left: Tensor
    right: Tensor
    scale: float
    is_self: bool | None
    left_axis: int | None = -2
    right_axis: int | None = -1
    is_plain: bool = True

    def swapped(self) -> "Scores":
        """The same, seen from the other tensor."""
        return replace(
            self,
            left=self.right,
            right=self.left,
            left_axis=self.right_axis,
            right_axis=self.left_axis,
        )


@dataclass(eq=False)
class Softmax:
    """A softmax over keys: what it took and gave, with the axes of both, and of what product, if any.

    `is_changed`: its result was overwritten.
    """

    scores: Tensor
    result: Tensor
    of: Scores | None
    key_axis: int
    is_changed: bool = False
    is_heard: bool = False

    def weights(self) -> Tensor:
        """What it gave."""
        if self.is_changed:
            return self.scores.softmax(dim=self.key_axis, dtype=self.result.dtype)
        return self.result


@dataclass(frozen=True)
class Weights:
    """What became of the result of a softmax.

    Without `is_whole` it was mixed or cut; with `is_dropped` some of it was dropped at random. `is_moved`:
    its axes have another order; `places` are where those of the softmax lie now, None once they are others.
    """

    softmax: Softmax
    key_axis: int
    query_axis: int | None
    is_whole: bool = True
    is_moved: bool = False
    places: tuple[int | None, ...] | None = None
    is_dropped: bool = False


Followed = Projected | Scores | Weights


class Follower:
    """Follows what torch's functions give from one to the next, and tells `heard` of each attention.

    What is known of a tensor is forgotten with it.
    """

    def __init__(self, heard: Callable[[HandmadeAttention], None]) -> None:
        self._heard = heard
        self._followed: dict[int, tuple[ref[Tensor], Followed]] = {}
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._num_sources = 0

    def clear(self) -> None:
        """Forget everything: no tensor is kept."""
        self._followed.clear()
        self._memory.clear()

    def after(
        self,
        function: Callable[..., object],
        arguments: Sequence[object],
        named: Mapping[str, object],
        result: object,
    ) -> None:
        """A function ran, and gave `result`."""
        step = STEPS.get(function)
        if step is not None:
            step(self, TorchCall(function, arguments, named, result))

    def of(self, value: object) -> Followed | None:
        """What is known of a tensor."""
        known = self._followed.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def note(self, result: object, known: Followed | None) -> None:
        """Follow a tensor, or each of several; with nothing known, no longer."""
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if not isinstance(tensor, Tensor):
                continue
            number, followed = id(tensor), self._followed
            if known is None:
                followed.pop(number, None)
                continue

            def forget(
                gone: ref[Tensor],
                number: int = number,
                followed: dict[int, tuple[ref[Tensor], Followed]] = followed,
            ) -> None:
                if (kept := followed.get(number)) is not None and kept[0] is gone:
                    del followed[number]

            followed[number] = ref(tensor, forget), known

    # Where tensors come from

    def source(self, tensor: Tensor) -> frozenset[Source]:
        """What says that two tensors are the same, or views of it; empty for one without memory."""
        if not torch._C._has_storage(tensor):
            return frozenset()
        storage = tensor.untyped_storage()
        kept = self._memory.get(storage._cdata)
        if kept is None:
            if len(self._memory) >= MOST_SOURCES:
                self._memory = {
                    address: kept
                    for address, kept in self._memory.items()
                    if not kept[0].expired()  # type: ignore[no-untyped-call]
                }
            self._num_sources += 1
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            kept = self._memory[storage._cdata] = weak, self._num_sources
        return frozenset({(kept[1], int(tensor.storage_offset()))})

    def is_self(self, query: Tensor, key: Tensor) -> bool | None:
        """Whether both (..., token, dim) were made of the same; None where that is not known."""
        return self._is_self(query, key, are_as_many=query.shape[-2] == key.shape[-2])

    def _is_self(self, left: Tensor, right: Tensor, *, are_as_many: bool) -> bool | None:
        first, second = self.of(left), self.of(right)
        if not (isinstance(first, Projected) and isinstance(second, Projected)):
            return True if self.source(left) & self.source(right) else None
        if not first.sources or not second.sources:
            return None
        if first.sources & (second.sources | second.parents) or second.sources & first.parents:
            return True
        if first.parents & second.parents:
            return True if are_as_many else None
        # Other parts of one tensor may be two texts, or a token and its text.
        memory = {number for number, _ in first.sources} & {number for number, _ in second.sources}
        return None if memory else False

    def is_of_parameters(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or a view of one."""
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return True
        known = self.of(tensor)
        return isinstance(known, Projected) and known is OF_PARAMETERS

    def project(self, tensor: Tensor, result: object, axes: Sequence[int]) -> None:
        """A product of a tensor with parameters has `axes` of features."""
        if not isinstance(result, Tensor) or not torch._C._has_storage(result):
            return
        known = self.of(tensor)
        parents = known.sources if isinstance(known, Projected) else frozenset()
        self.note(result, Projected(self.source(tensor), parents, spans_of(result, axes)))

    # Steps

    def linear(self, call: TorchCall) -> None:
        """Features of a tensor by a weight; a mixture where the last axis of scores or weights is heads."""
        tensor = call.get(0, "input")
        if call.function in ADDMMS:
            tensor = call.get(1, "mat1")
            if not isinstance(weight := call.get(2, "mat2"), Tensor) or not self.is_of_parameters(weight):
                return
        if isinstance(tensor, Tensor) and not self.mix(tensor, call.result, (-1,)):
            self.project(tensor, call.result, (-1,))

    def convolve(self, call: TorchCall) -> None:
        """Channels of a tensor by a weight: between heads a mixture."""
        tensor = call.get(0, "input")
        if isinstance(tensor, Tensor) and isinstance(call.result, Tensor):
            axis = 1 - tensor.ndim
            is_mixed = call.result.shape[2:] == tensor.shape[2:] and self.mix(tensor, call.result, (axis,))
            if not is_mixed:
                self.project(tensor, call.result, (axis,))

    def normalise(self, call: TorchCall) -> None:
        """A norm of a tensor is made of it; one over heads mixes them."""
        tensor = call.get(0, "input")
        if not isinstance(tensor, Tensor):
            return
        known = self.of(tensor)
        if isinstance(known, Projected):
            self.carry(call)
        elif known is None:
            self.note(call.result, Projected(self.source(tensor)))
        else:
            axis = -1 if call.function in LAST_NORMS else 1 - tensor.ndim
            self.mix(tensor, call.result, (axis,))

    def mix(self, tensor: Tensor, result: object, axes: Sequence[int]) -> bool:
        """Follow scores or weights that were mixed along other axes than those of queries and keys."""
        known = self.of(tensor)
        if isinstance(known, Scores) and not {known.left_axis, known.right_axis} & {*axes}:
            self.note(result, replace(known, is_plain=False))
            return True
        if isinstance(known, Weights) and known.key_axis not in axes:
            self.note(result, replace(known, is_whole=False))
            return True
        return False

    def multiply(self, call: TorchCall) -> None:
        """A matrix product: of query and key, of weights and value, with parameters."""
        left, right = (*call.tensors(), None, None)[:2]
        if call.function is Tensor.__rmatmul__:
            left, right = right, left
        if left is None or right is None or not left.ndim or not right.ndim:
            return
        of_left, of_right = self.of(left), self.of(right)
        if isinstance(of_left, Weights) and of_left.key_axis == -1:
            self.reach(of_left, left, -2 if left.ndim > 1 else None, right if right.ndim > 1 else None)
        elif isinstance(of_right, Weights) and of_right.key_axis == (-2 if right.ndim > 1 else -1):
            self.reach(of_right, right, -1 if right.ndim > 1 else None, left.mT if left.ndim > 1 else None)
        elif self.is_of_parameters(right) or (right.ndim == 2 < left.ndim and of_right is None):
            if not self.mix(left, call.result, (-1,)):
                self.project(left, call.result, (-1,) if right.ndim > 1 else ())
        elif left.ndim == 2 and (self.is_of_parameters(left) or (right.ndim > 2 and of_left is None)):
            if not self.mix(right, call.result, (-2,)):
                self.project(right, call.result, (-2,))
        elif not isinstance(of_left, Weights) and not isinstance(of_right, Weights):
            self.score(left, right, call.result)

    def score(self, left: Tensor, right: Tensor, result: object, scale: float = 1.0) -> None:
        """Scores are a matrix product of two tensors that are no parameters."""
        num_tokens = (left if left.ndim > 1 else left[None]).shape[-2]
        is_self = self._is_self(left, right, are_as_many=num_tokens == right.shape[-1])
        axes = (
            (-2 if right.ndim > 1 else -1) if left.ndim > 1 else None,
            -1 if right.ndim > 1 else None,
        )
        with unseen():
            query = left.detach() if left.ndim > 1 else left.detach()[None]
            key = right.detach().mT if right.ndim > 1 else right.detach()[None]
        self.note(result, Scores(query, key, scale, is_self, *axes))

    def add_product(self, call: TorchCall) -> None:
        """beta input + alpha left right."""
        left, right = call.get(1, "batch1"), call.get(2, "batch2")
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return
        if isinstance(known := self.of(left), Weights) and known.key_axis == -1:
            self.reach(known, left, -2, right)
        elif not self.is_of_parameters(right) and not self.is_of_parameters(left):
            alpha = call.named.get("alpha", 1)
            self.score(left, right, call.result, float(alpha) if isinstance(alpha, int | float) else 1.0)

    def einsum(self, call: TorchCall) -> None:
        """The same by the labels of an equation."""
        equation, *tensors = call.arguments
        if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
            tensors = [*tensors[0]]
        operands = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        if not isinstance(equation, str) or len(operands) != len(tensors) or len(operands) < 2:
            return
        if not isinstance(call.result, Tensor):
            return
        inputs, out = labels_of(equation, operands)
        for place, tensor in enumerate(operands):
            known = self.of(tensor)
            if isinstance(known, Weights):
                self._einsum_of_weights(known, operands, inputs, out, place, call.result)
                return
        if len(operands) > 2:
            return
        places = [place for place, tensor in enumerate(operands) if self.is_of_parameters(tensor)]
        if places:
            place = 1 - places[0]
            self._einsum_of_parameters(operands[place], inputs[place], out, call.result)
        else:
            self._einsum_of_tensors(operands, inputs, out, call.result)

    def _einsum_of_weights(
        self,
        known: Weights,
        operands: Sequence[Tensor],
        inputs: Sequence[str],
        out: str,
        place: int,
        result: Tensor,
    ) -> None:
        labels = inputs[place]
        key, others = labels[known.key_axis], inputs[1 - place]
        rows = [label for label in labels if label in out and label != key]
        if key in out:
            query = labels[known.query_axis] if known.query_axis is not None else ""
            axes = out.index(key) - len(out), out.index(query) - len(out) if query and query in out else None
            self.note(result, replace(known, is_whole=False, key_axis=axes[0], query_axis=axes[1]))
            return
        alone = [label for label in rows if label not in others]
        row = labels.index(alone[-1]) - len(labels) if alone else None
        value = None
        if len(operands) == 2 and key in others:
            lead = [label for label in labels if label != key and (row is None or label != labels[row])]
            with unseen():
                value = arranged(operands[1 - place].detach(), others, lead, [key])
        self.reach(known, operands[place], row, value)

    def _einsum_of_parameters(self, tensor: Tensor, labels: str, out: str, result: Tensor) -> None:
        features = [axis for axis, label in enumerate(out, -len(out)) if label not in labels]
        known = self.of(tensor)
        if isinstance(known, Scores):
            axes = [
                None if axis is None else out.find(labels[axis]) - len(out)
                for axis in (known.left_axis, known.right_axis)
            ]
            if all(axis is None or axis >= -len(out) for axis in axes):
                self.note(result, replace(known, is_plain=False, left_axis=axes[0], right_axis=axes[1]))
                return
        self.project(tensor, result, features)

    def _einsum_of_tensors(
        self, operands: Sequence[Tensor], inputs: Sequence[str], out: str, result: Tensor
    ) -> None:
        summed = [label for label in inputs[0] if label in inputs[1] and label not in out]
        if not summed or any(label not in (*out, *summed) for labels in inputs for label in labels):
            return
        tokens: list[str | None] = []
        for tensor, labels, others in zip(operands, inputs, reversed(inputs), strict=True):
            alone = [label for label in out if label in labels and label not in others]
            known = self.of(tensor)
            features = feature_axes(tensor, known.features) if isinstance(known, Projected) else ()
            plain = [label for label in alone if labels.index(label) - len(labels) not in (features or ())]
            tokens.append(next(reversed(plain or alone), None))
        if tokens == [None, None]:
            return
        lead = [label for label in out if label not in tokens]
        with unseen():
            left, right = (
                arranged(tensor.detach(), labels, lead, [] if token is None else [token], summed)
                for tensor, labels, token in zip(operands, inputs, tokens, strict=True)
            )
        left_axis, right_axis = (None if token is None else out.index(token) - len(out) for token in tokens)
        is_self = self._is_self(*operands, are_as_many=left.shape[-2] == right.shape[-2])
        self.note(result, Scores(left, right, 1.0, is_self, left_axis, right_axis))

    def softmax(self, call: TorchCall) -> None:
        """A softmax over keys gives weights."""
        scores, axis = call.get(0, "input", "self"), call.get(1, "dim", "axis")
        if not isinstance(scores, Tensor) or not isinstance(axis, int) or not scores.ndim:
            return
        axis = axis if axis < 0 else axis - scores.ndim
        known, of = self.of(scores), None
        query_axis = None
        if isinstance(known, Scores):
            of = known.swapped() if axis == known.left_axis else known
            if of.right_axis != axis:
                return
            query_axis = of.left_axis
        elif isinstance(known, Projected) and axis == -1:
            features = feature_axes(scores, known.features)
            if features is None or {-1, -2} & {*features}:
                return  # classes, experts, or the features of linear attention
        else:
            return
        if isinstance(call.result, Tensor):
            with unseen():
                softmax = Softmax(scores.detach(), call.result.detach(), of, axis)
            places = tuple(range(-scores.ndim, 0))
            self.note(call.result, Weights(softmax, axis, query_axis, places=places))

    def reach(self, known: Weights, weights: Tensor, query_axis: int | None, value: Tensor | None) -> None:
        """Weights met their value (..., key, dim); `query_axis` is that of the product, None without one."""
        if known.softmax.is_heard:
            return
        known.softmax.is_heard = True
        with unseen():
            heard = _read(known, weights.detach(), query_axis, None if value is None else value.detach())
        self._heard(heard)

    def overwrite(self, call: TorchCall) -> None:
        """Entries of a tensor were set: of a new one, to what a projection gave."""
        tensor, known = call.get(0), self.of(call.get(0))
        given = self.of(call.get(1 if call.function in COPIES else 2, "src"))
        if isinstance(known, Weights):
            known.softmax.is_changed = True
        elif isinstance(given, Projected) and (known is None or isinstance(known, Projected)):
            parts = [given] if known is None else [known, given]
            merged = replace(_merged(parts), features=None)
            self.note(tensor, merged)
            if call.function in COPIES and isinstance(tensor, Tensor):
                self.note(tensor._base, merged)

    def carry(self, call: TorchCall) -> None:
        """What is known of an argument holds for the result, changed as the function changes it."""
        known = [(tensor, about) for tensor in call.tensors() if (about := self.of(tensor)) is not None]
        for tensor, about in known:
            if isinstance(about, Weights):
                self.note(call.result, self._carried_weights(about, tensor, call))
                return
        scores = [(tensor, about) for tensor, about in known if isinstance(about, Scores)]
        if scores:
            tensor, about = next((pair for pair in scores if pair[1].is_plain), scores[0])
            self.note(call.result, _carried_scores(about, tensor, call))
        elif known:
            self._carry_projected(known, call)
        elif call.function in VIEWING and call.arguments and isinstance(call.arguments[0], nn.Parameter):
            self.note(call.result, OF_PARAMETERS)

    def _carry_projected(self, known: Sequence[tuple[Tensor, Followed]], call: TorchCall) -> None:
        parts = [about for _, about in known if isinstance(about, Projected)]
        merged = _merged(parts)
        for result in call.result if isinstance(call.result, tuple | list) else (call.result,):
            if isinstance(result, Tensor):
                if merged is OF_PARAMETERS:
                    self.note(result, merged)
                else:
                    features = carried_features(merged.features, known[0][0], call, result)
                    self.note(result, replace(merged, features=features))

    def _carried_weights(self, known: Weights, tensor: Tensor, call: TorchCall) -> Weights | None:
        function, result = call.function, call.result
        if function in OVERWRITING or call.named.get("inplace") is True:
            known.softmax.is_changed = True
        if function in MOVES | SHAPES | PARTS:
            axes = axes_after(call, tensor)
            key_axis = axes[known.key_axis] if axes else None
            if axes is None or key_axis is None:
                return None
            first = result[0] if isinstance(result, tuple | list) else result
            assert isinstance(first, Tensor)
            return replace(
                known,
                key_axis=key_axis,
                query_axis=None if known.query_axis is None else axes[known.query_axis],
                is_whole=known.is_whole and first.numel() >= tensor.numel(),
                is_moved=known.is_moved or function in MOVES,
                places=places_after(known.places, axes) if function in MOVES else None,
            )
        if not isinstance(result, Tensor):
            return None
        if function in JOINS:
            return replace(known, is_whole=False)
        if function in DROPOUTS:
            return replace(known, is_dropped=True)
        is_plain = known.is_whole and not known.is_dropped and not known.is_moved
        if function in FILLS and is_plain and result.shape == known.softmax.result.shape:
            with unseen():
                filled = replace(known.softmax, result=result.detach(), is_changed=False)
            return replace(known, softmax=filled)
        if function in FILLS | CASTS | SCALINGS | DIVISIONS:
            return known
        return replace(known, is_whole=False) if function in SUMS else None


OF_PARAMETERS = Projected(frozenset())
"""A view of parameters."""
MOST_SOURCES = 4096
ROUNDING = 1e-2
"""How far above 1 a row of weights may sum in half precision."""


def _merged(parts: Sequence[Projected]) -> Projected:
    """What is known of a tensor that was made of several."""
    if all(part is parts[0] for part in parts):
        return parts[0]
    sources, parents = (
        frozenset(source for part in parts for source in getattr(part, name))
        for name in ("sources", "parents")
    )
    return replace(parts[0], sources=sources, parents=parents)


def _carried_scores(known: Scores, tensor: Tensor, call: TorchCall) -> Scores | None:
    """Scores after a function; None where they are no longer that."""
    function, result = call.function, call.result
    if function in MOVES | SHAPES | PARTS:
        return _rearranged(known, tensor, call)
    if not isinstance(result, Tensor):
        return None
    if function in JOINS:
        return replace(known, is_plain=False)
    if function in SCALINGS | DIVISIONS:
        if function in DIVISIONS and call.get(0, "input", "self") is not tensor:
            return None
        others = [value for value in (*call.arguments, *call.named.values()) if value is not tensor]
        return _scaled(known, tensor, others[0] if others else None, is_divided=function in DIVISIONS)
    if function in (SUMS | FILLS | CASTS | DROPOUTS) and result.ndim >= tensor.ndim:
        if function in SUBTRACTIONS and call.get(1, "other") is tensor:
            return replace(known, scale=-known.scale)
        return known
    return replace(known, scale=-known.scale) if function in NEGATIONS else None


def _scaled(known: Scores, tensor: Tensor, factor: object, *, is_divided: bool) -> Scores:
    """Scores times a number or a tensor, which is a factor of the queries where all keys have the same."""
    if isinstance(factor, Tensor) and factor.numel() == 1 and not factor.is_meta:
        factor = float(factor)
    if isinstance(factor, int | float):
        return replace(known, scale=known.scale / factor if is_divided else known.scale * factor)
    axes = known.left_axis, known.right_axis
    if not isinstance(factor, Tensor) or None in axes or factor.ndim > tensor.ndim:
        return replace(known, is_plain=False)
    with unseen():
        factor = factor.detach().reshape(*[1] * (tensor.ndim - factor.ndim), *factor.shape)
        factor = _placed(1 / factor if is_divided else factor, *axes)
        lead = tensor_lead(tensor, axes)
        if factor.shape[-1] == 1 and (left := with_lead(known.left, lead)) is not None:
            return replace(known, left=left * factor)
        if factor.shape[-2] == 1 and (right := with_lead(known.right, lead)) is not None:
            return replace(known, right=right * factor.mT)
    return known  # a mask of zeros and ones


def _rearranged(known: Scores, tensor: Tensor, call: TorchCall) -> Scores | None:
    """Scores in a view, with the leading axes of the two tensors as it has them."""
    axes = axes_after(call, tensor)
    first = call.result[0] if isinstance(call.result, tuple | list) else call.result
    if axes is None or not isinstance(first, Tensor):
        return None
    left_axis, right_axis = (
        None if axis is None else axes[axis] for axis in (known.left_axis, known.right_axis)
    )
    is_plain = known.is_plain and first.numel() >= tensor.numel()
    for axis, after in ((known.left_axis, left_axis), (known.right_axis, right_axis)):
        if axis is not None and tensor.shape[axis] > 1:
            if after is None and left_axis is None and right_axis is None:
                return None
            is_plain = is_plain and after is not None and first.shape[after] == tensor.shape[axis]
    rearranged = replace(known, left_axis=left_axis, right_axis=right_axis, is_plain=is_plain)
    if not is_plain:
        return rearranged
    before = tensor_lead(tensor, (known.left_axis, known.right_axis))
    lead = tensor_lead(first, (left_axis, right_axis))
    order = None
    if call.function in MOVES:
        places = [axis for axis in range(-tensor.ndim, 0) if axis not in (known.left_axis, known.right_axis)]
        order = sorted(range(len(places)), key=lambda place: axes[places[place]] or 0)
    with unseen():
        left, right = (led_again(part, before, lead, order) for part in (known.left, known.right))
    if left is None or right is None:
        return replace(rearranged, is_plain=False)
    return replace(rearranged, left=left, right=right)


def _value_in_order(known: Weights, reached: Tensor, query_axis: int | None, value: Tensor) -> Tensor | None:
    """A value with its leading axes in the order that they have where the weights are read."""
    if not known.is_whole:
        return value
    if known.places is None or value.ndim != reached.ndim + (query_axis is None):
        return None
    lead = [axis for axis in range(-reached.ndim, 0) if axis not in (query_axis, known.key_axis)]
    order = [lead.index(place) for place in known.places if place in lead]
    return value.permute(*order, -2, -1)


def _placed(tensor: Tensor, query_axis: int | None, key_axis: int | None) -> Tensor:
    """A tensor with the axis of queries before that of keys at the end; of a single query without an axis."""
    assert key_axis is not None
    if query_axis is None:
        return tensor.movedim(key_axis, -1).unsqueeze(-2)
    return tensor.movedim((query_axis, key_axis), (-2, -1))


def _are_shares(known: Weights, reached: Tensor) -> bool:
    """Whether rows that were mixed are still parts of a whole: a mixture may be negative, or more than it."""
    return bool((reached >= 0).all()) and bool((reached.sum(known.key_axis) <= 1 + ROUNDING).all())


def _read(known: Weights, reached: Tensor, query_axis: int | None, value: Tensor | None) -> HandmadeAttention:
    """The attention of weights that reached a product."""
    softmax, of = known.softmax, known.softmax.of
    if not known.is_whole and softmax.scores.numel() == reached.numel() and not _are_shares(known, reached):
        known = replace(known, is_whole=True)
    query = key = None
    if known.is_whole and of is not None:
        scores, weights = (
            _placed(part, of.left_axis, of.right_axis) for part in (softmax.scores, softmax.weights())
        )
        if of.is_plain:
            query, key = (with_lead(part, weights.shape[:-2]) for part in (of.left, of.right))
    else:
        scores, weights = softmax.scores, reached
        if known.is_whole and not known.is_moved and scores.numel() == reached.numel():
            scores, weights = (part.reshape(reached.shape) for part in (scores, softmax.weights()))
            scores = _placed(scores, query_axis, known.key_axis)
        elif of is not None:
            scores = _placed(scores, of.left_axis, of.right_axis)
        weights = _placed(weights, query_axis, known.key_axis)
    if value is not None:
        value = _value_in_order(known, reached, query_axis, value) if known.is_moved else value
        value = None if value is None else with_lead(value, weights.shape[:-2])
    if query is None or key is None:
        query = key = None
    scale = 1.0 if of is None else of.scale
    return HandmadeAttention(scores, weights, value, query, key, scale, None if of is None else of.is_self)


STEPS: dict[Callable[..., object], Callable[[Follower, TorchCall], None]] = {
    **dict.fromkeys(CARRYING, Follower.carry),
    **dict.fromkeys(NORMS, Follower.normalise),
    **dict.fromkeys({functional.linear, *ADDMMS}, Follower.linear),
    **dict.fromkeys(CONVOLUTIONS, Follower.convolve),
    **dict.fromkeys(MATMULS, Follower.multiply),
    **dict.fromkeys(functions_named("baddbmm"), Follower.add_product),
    **dict.fromkeys({torch.einsum, torch.functional.einsum}, Follower.einsum),
    **dict.fromkeys(SOFTMAXES, Follower.softmax),
    **dict.fromkeys(functions_named("setitem") | COPIES, Follower.overwrite),
}
