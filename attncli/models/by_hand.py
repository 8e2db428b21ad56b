"""Attention that a program computes itself: from a product over a softmax to the product that it reaches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class HandmadeAttention:
    """What a program attended with: keys lie on the last axis of scores and weights, queries before it.

    `scores` are what the softmax took, `weights` what it gave, before dropout, or what reached the product
    where that is no longer the same (mixed between heads, or without the column of a sink). query, key
    (..., token, dim) are None where the scores are no multiple of their product, to which something may have
    been added. `is_self`: whether both were made of the same tensor; None where that is not known.
    """

    scores: Tensor
    weights: Tensor
    value: Tensor | None
    query: Tensor | None
    key: Tensor | None
    scale: float
    is_self: bool | None


@dataclass(frozen=True)
class Projected:
    """A tensor that was made of another, known by its identity, by the last product with parameters.

    `num_features` are those that the product gave.
    """

    source: int
    num_features: int


@dataclass(frozen=True)
class Scores:
    """Scores that came of a product of two tensors; without `is_plain` something else than a sum since then.

    `query_axis` and `key_axis` count from the end.
    """

    query: Tensor
    key: Tensor
    scale: float
    is_self: bool | None
    query_axis: int = -2
    key_axis: int = -1
    is_plain: bool = True


@dataclass(frozen=True)
class Weights:
    """What a softmax over keys gave, and of what; without `is_whole` it was mixed or cut since then."""

    scores: Tensor
    softmax: Tensor
    of: Scores | None
    key_axis: int = -1
    is_whole: bool = True


Followed = Projected | Scores | Weights


def _functions(*names: str) -> set[Any]:
    """The functions of these names: of torch, of tensors, in place."""
    holders = (torch, Tensor, functional)
    every = [
        name for each in names for name in (each, f"{each}_", f"__{each}__", f"__i{each}__", f"__r{each}__")
    ]
    return {getattr(holder, name) for holder in holders for name in every if hasattr(holder, name)}


MATMULS = _functions("matmul", "bmm", "mm")
REVERSED = {Tensor.__rmatmul__}
BADDBMM = _functions("baddbmm")
EINSUMS = {torch.einsum, torch.functional.einsum}
SOFTMAXES = {torch.softmax, Tensor.softmax, functional.softmax, torch.special.softmax}
SCALINGS = {*_functions("mul", "multiply"), Tensor.__rmul__}
DIVISIONS = _functions("div", "true_divide", "divide", "truediv")
MOVES = _functions("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis")
TURNS = {Tensor.mT.__get__, Tensor.T.__get__, Tensor.mH.__get__}  # type: ignore[attr-defined]
SUMS = _functions("add", "sub", "subtract", "masked_fill", "where", "nan_to_num", "maximum")
SAME = {
    *_functions(
        "to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone", "detach"
    ),
    *_functions("dropout", "alpha_dropout", "feature_dropout", "masked_fill", "nan_to_num"),
}
SHAPES = _functions(
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "expand_as", "view_as"
)
PARTS = {
    *_functions("getitem", "chunk", "split", "unbind", "narrow", "select", "cat", "concat", "concatenate"),
    *_functions("pad", "stack", "tensor_split"),
}
BENT = _functions("tanh", "clamp", "clip", "sigmoid", "log", "exp", "pow", "relu")
PROJECTIONS = {
    functional.linear,
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
    torch.conv1d,
    torch.conv2d,
}
CARRIED = {
    *SUMS,
    *SCALINGS,
    *DIVISIONS,
    *SAME,
    *SHAPES,
    *PARTS,
    *MOVES,
    *TURNS,
    *BENT,
    *_functions("neg", "rms_norm", "layer_norm", "group_norm", "normalize", "norm", "rsqrt", "mean", "roll"),
    *_functions("repeat", "repeat_interleave", "index_select", "addcmul", "view_as_complex", "view_as_real"),
}
"""Through these a tensor stays what it was: scores, weights, or a projection of the same tensor."""
MOST_FOLLOWED = 4096


class Follower:
    """Follows what torch's functions give from one to the next, and tells `heard` of each attention."""

    def __init__(self, heard: Callable[[HandmadeAttention], None]) -> None:
        self._heard = heard
        self._followed: dict[int, tuple[ref[Tensor], Followed]] = {}

    def clear(self) -> None:
        """Forget everything: no tensor is kept."""
        self._followed.clear()

    def after(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        """A function ran, and gave `result`."""
        step = _STEPS.get(function)
        if step is not None:
            step(self, function, arguments, named, result)

    def of(self, value: object) -> Followed | None:
        """What is known of a tensor."""
        known = self._followed.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def note(self, result: object, known: Followed) -> None:
        """Follow a tensor, or each of several."""
        if isinstance(result, tuple | list):
            for part in result:
                self.note(part, known)
        elif isinstance(result, Tensor):
            if len(self._followed) >= MOST_FOLLOWED:
                self._followed = {key: kept for key, kept in self._followed.items() if kept[0]() is not None}
                if len(self._followed) >= MOST_FOLLOWED:
                    self._followed.clear()
            self._followed[id(result)] = ref(result), known

    def first(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Iterator[tuple[Tensor, Followed]]:
        """The tensors among the arguments that are followed: scores and weights before all else."""
        given = [*arguments, *named.values()]
        given += [part for value in given if isinstance(value, tuple | list) for part in value]
        known = [(value, about) for value in given if isinstance(value, Tensor) and (about := self.of(value))]
        yield from sorted(known, key=lambda pair: isinstance(pair[1], Projected))

    def source(self, tensor: Tensor) -> int | None:
        """The identity of what a tensor was projected from."""
        known = self.of(tensor)
        return known.source if isinstance(known, Projected) else None

    # Steps

    def project(
        self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Tensor
    ) -> None:
        """A product with parameters: of scores or weights it is a mixture, else of a tensor a projection."""
        tensor = arguments[0] if arguments else named["input"]
        known = self.of(tensor)
        if isinstance(known, Scores):
            if result.shape[-2:] == tensor.shape[-2:] and function is not functional.linear:
                self.note(result, replace(known, is_plain=False))
        elif isinstance(known, Weights):
            if result.shape[-2:] == tensor.shape[-2:] and function is not functional.linear:
                self.note(result, replace(known, is_whole=False))
        else:
            axis = -1 if function is functional.linear else 1
            self.note(result, Projected(id(tensor), result.shape[axis]))

    def multiply(
        self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Tensor
    ) -> None:
        """A matrix product: of query and key, of weights and value, with parameters."""
        left, right = (*arguments, *named.values())[:2]
        if function in REVERSED:
            left, right = right, left
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or left.ndim < 2 or right.ndim < 2:
            return
        of_left, of_right = self.of(left), self.of(right)
        if isinstance(of_left, Weights) and of_left.key_axis == -1:
            self.reach(of_left, left, right)
        elif isinstance(of_right, Weights) and of_right.key_axis == -2:
            self.reach(of_right, right, left.mT)
        elif _is_parameter(right) or right.ndim == 2 < left.ndim:
            self.project(function, (left,), {}, result)
        elif _is_parameter(left):
            self.project(function, (right,), {}, result)
        elif not isinstance(of_left, Weights | Scores) and not isinstance(of_right, Weights | Scores):
            self.score(left, right, result)

    def score(self, query: Tensor, turned_key: Tensor, result: Tensor) -> None:
        """Scores are the product of two tensors that are no parameters."""
        key = turned_key.detach().mT
        self.note(result, Scores(query.detach(), key, 1.0, self.is_self(query, turned_key)))

    def is_self(self, query: Tensor, key: Tensor) -> bool | None:
        """Whether both are projections of the same tensor; None where that is not known."""
        sources = self.source(query), self.source(key)
        return None if None in sources else sources[0] == sources[1]

    def add_product(
        self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Tensor
    ) -> None:
        """beta input + alpha left right."""
        given = {**dict(zip(("input", "batch1", "batch2"), arguments, strict=False)), **named}
        left, right = given["batch1"], given["batch2"]
        if isinstance(weights := self.of(left), Weights) and weights.key_axis == -1:
            self.reach(weights, left, right)
            return
        self.score(left, right, result)
        known = self.of(result)
        assert isinstance(known, Scores)
        self.note(result, replace(known, scale=float(given.get("alpha", 1))))

    def einsum(
        self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Tensor
    ) -> None:
        """The same by the labels of an equation with two tensors."""
        equation, *tensors = arguments
        if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
            tensors = [*tensors[0]]
        if not isinstance(equation, str) or len(tensors) != 2 or "->" not in equation:
            return
        given, out = equation.replace(" ", "").split("->")
        labels = [_spelled(part, tensor.ndim) for part, tensor in zip(given.split(","), tensors, strict=True)]
        out = _spelled(out, result.ndim)
        for place, tensor in enumerate(tensors):
            if isinstance(known := self.of(tensor), Weights):
                other = tensors[1 - place]
                if labels[place][known.key_axis] not in out:
                    value, key = labels[1 - place], labels[place][known.key_axis]
                    lead = [label for label in labels[place][:-2] if label in value]
                    rest = [label for label in value if label not in (*lead, key)]
                    order = [value.index(label) for label in (*lead, key, *rest)]
                    self.reach(known, tensor, other.permute(order) if len(rest) == 1 else None)
                else:
                    self.note(
                        result,
                        replace(
                            known,
                            is_whole=False,
                            key_axis=out.index(labels[place][known.key_axis]) - len(out),
                        ),
                    )
                return
            if isinstance(known, Scores):
                if labels[place][-1:] == out[-1:]:
                    self.note(result, replace(known, is_plain=False))
                return
        first, second = tensors
        if _is_parameter(first) or _is_parameter(second):
            tensor, of_tensor = (second, labels[1]) if _is_parameter(first) else (first, labels[0])
            features = [size for label, size in zip(out, result.shape, strict=True) if label not in of_tensor]
            self.note(result, Projected(id(tensor), torch.Size(features).numel()))
            return
        own = [[label for label in out if label in labels[i] and label not in labels[1 - i]] for i in (0, 1)]
        summed = [label for label in labels[0] if label in labels[1] and label not in out]
        if len(own[0]) != 1 or len(own[1]) != 1 or not summed:
            return
        both = [label for label in out if label in labels[0] and label in labels[1]]
        query, key = (
            tensor.permute([of.index(label) for label in (*both, *mine, *summed)]).flatten(-len(summed))
            if {*of} == {*both, *mine, *summed}
            else None
            for tensor, of, mine in zip(tensors, labels, own, strict=True)
        )
        if query is not None and key is not None:
            axes = (out.index(own[0][0]) - len(out), out.index(own[1][0]) - len(out))
            scores = Scores(query.detach(), key.detach(), 1.0, self.is_self(first, second), *axes)
            self.note(result, scores)

    def softmax(
        self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Tensor
    ) -> None:
        """A softmax over the last axis gives weights, where that is one of keys."""
        given = [*arguments]
        scores = given[0] if given else named.get("input", named.get("self"))
        dim = given[1] if len(given) > 1 else named.get("dim", named.get("axis"))
        if not isinstance(scores, Tensor) or scores.ndim < 2 or dim not in (-1, scores.ndim - 1):
            return
        known = self.of(scores)
        if isinstance(known, Scores):
            of = known
            if of.query_axis == -1:  # the product was that of key and query
                of = replace(of, query=of.key, key=of.query, query_axis=of.key_axis, key_axis=-1)
            if of.key_axis == -1:
                self.note(result, Weights(scores.detach(), result.detach(), of))
        elif isinstance(known, Projected):
            size = scores.shape[-1]
            if size == 1 or known.num_features % size:  # the axis is not one of features
                self.note(result, Weights(scores.detach(), result.detach(), None))

    def reach(self, known: Weights, weights: Tensor, value: Tensor | None) -> None:
        """Weights met their value."""
        of = known.of
        whole = known.softmax if known.is_whole and known.softmax.numel() == weights.numel() else None
        turned = weights.detach() if known.key_axis == -1 else weights.detach().mT
        if whole is None or of is None:
            final = turned if whole is None else whole
            self._heard(
                HandmadeAttention(
                    known.scores, final, _plain(value), None, None, 1.0, of.is_self if of else None
                )
            )
            return
        scores = known.scores
        if of.query_axis != -2 and scores.ndim >= -of.query_axis:
            scores, whole = (part.movedim(of.query_axis, -2) for part in (scores, whole))
        if turned.shape[-2:] == whole.shape[-2:] and turned.shape != whole.shape:
            scores, whole = (part.reshape(turned.shape) for part in (scores, whole))
        lead = whole.shape[:-2]
        query, key = (_with_lead(part, lead) for part in (of.query, of.key))
        plain = of.is_plain and query is not None and key is not None
        heard = HandmadeAttention(
            scores,
            whole,
            _with_lead(_plain(value), lead),
            query if plain else None,
            key if plain else None,
            of.scale,
            of.is_self,
        )
        self._heard(heard)

    def carry(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        """What is known of an argument holds for the result, changed as the function changes it."""
        for tensor, known in self.first(arguments, named):
            if isinstance(known, Projected):
                self.note(result, known)
            elif isinstance(result, Tensor) and (
                changed := _changed(known, function, arguments, named, tensor, result)
            ):
                self.note(result, changed)
            elif function in PARTS and isinstance(result, tuple | list):
                self.note(
                    result,
                    replace(known, is_plain=False)
                    if isinstance(known, Scores)
                    else replace(known, is_whole=False),
                )
            return


def _changed(
    known: Scores | Weights,
    function: Any,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    tensor: Tensor,
    result: Tensor,
) -> Scores | Weights | None:
    """Scores or weights after a function; None where they are no longer that."""
    if function in TURNS or function in MOVES:
        return _moved(known, function, arguments, named, tensor.ndim)
    if function in PARTS:
        if result.ndim != tensor.ndim or result.shape[-2] != tensor.shape[-2]:
            return known if result.numel() == tensor.numel() else None
        return replace(known, is_plain=False) if isinstance(known, Scores) else replace(known, is_whole=False)
    if function in SHAPES:
        is_same = result.shape[-1] == tensor.shape[-1] or known.key_axis != -1
        return known if is_same and result.numel() >= tensor.numel() else None
    if isinstance(known, Weights):
        return known if function not in BENT else None
    if function in BENT:
        return replace(known, scale=1.0, is_plain=False) if function in _functions("clamp", "clip") else known
    if function in SCALINGS or function in DIVISIONS:
        others = [value for value in (*arguments, *named.values()) if value is not tensor]
        factor = _number(others[0]) if others else None
        if factor is None:
            return replace(known, is_plain=False)
        if function in DIVISIONS:
            return (
                None
                if arguments and arguments[0] is not tensor
                else replace(known, scale=known.scale / factor)
            )
        return replace(known, scale=known.scale * factor)
    return known


def _moved(
    known: Scores | Weights, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], ndim: int
) -> Scores | Weights:
    """The same after axes moved: where they are now, a tensor whose sizes all differ shows."""
    sizes = range(2, 2 + ndim)
    moved = function(torch.empty(()).expand(*sizes), *arguments[1:], **named)

    def place(axis: int) -> int:
        return [*moved.shape].index(sizes[axis]) - ndim

    if isinstance(known, Weights):
        return replace(known, key_axis=place(known.key_axis))
    return replace(known, key_axis=place(known.key_axis), query_axis=place(known.query_axis))


def _number(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 else None


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or (isinstance(tensor._base, nn.Parameter))


def _plain(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach()


def _with_lead(part: Tensor | None, lead: torch.Size) -> Tensor | None:
    """The tensor with these leading axes, where it has as many matrices, or fewer that are shared."""
    if part is None:
        return None
    own = part.shape[:-2]
    if own == lead:
        return part
    if own.numel() == lead.numel():
        return part.reshape(*lead, *part.shape[-2:])
    is_shared = len(own) <= len(lead)
    padded = (1,) * (len(lead) - len(own)) + tuple(own)
    if is_shared and all(size in (1, known) for size, known in zip(padded, lead, strict=True)):
        return part.expand(*lead, *part.shape[-2:])
    return None


def _spelled(labels: str, ndim: int) -> str:
    """The labels of an equation with a capital for each axis of its ellipsis."""
    missing = ndim - len(labels.replace("...", ""))
    return labels.replace("...", "ZYXWVU"[6 - missing :] if missing else "")


_STEPS: dict[Any, Callable[..., None]] = {
    **dict.fromkeys(CARRIED, Follower.carry),
    **dict.fromkeys(PROJECTIONS, Follower.project),
    **dict.fromkeys({*MATMULS, *REVERSED}, Follower.multiply),
    **dict.fromkeys(BADDBMM, Follower.add_product),
    **dict.fromkeys(EINSUMS, Follower.einsum),
    **dict.fromkeys(SOFTMAXES, Follower.softmax),
}
