"""Products of tensors: those of query and key, of weights and values, and those with parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from attncli.features.record.listening.axis_labels import (
    LABELS,
    AxisPart,
    Labelled,
    contracted,
    of_operand,
    whole_axis,
)
from attncli.features.record.listening.carrying import carry
from attncli.features.record.listening.followed import (
    CONTRACTED,
    NO_QUERIES,
    NO_SOFTMAX,
    Outer,
    Projected,
    Scores,
    Weights,
)
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.torch_calls import (
    ADDMMS,
    MEANS,
    SUMMING,
    Product,
    TorchCall,
    axes_of_sum,
    labels_of,
    matrix_product,
    unseen,
)


def linear(follower: Follower, call: TorchCall) -> None:
    """Features of a tensor by a weight; a mixture where the last axis of scores or weights is heads."""
    tensor = call.get(0, "input")
    if call.function in ADDMMS:
        tensor = call.get(1, "mat1")
        if not isinstance(weight := call.get(2, "mat2"), Tensor) or not follower.is_of_parameters(weight):
            return
    if isinstance(tensor, Tensor):
        project_or_mix(follower, tensor, call.result, -1)


def convolve(follower: Follower, call: TorchCall) -> None:
    """Channels of a tensor by a weight: between heads a mixture."""
    tensor = call.get(0, "input")
    if isinstance(tensor, Tensor):
        project_or_mix(follower, tensor, call.result, 1 - tensor.ndim)


def project_or_mix(follower: Follower, tensor: Tensor, result: object, axis: int) -> None:
    """One axis of a tensor was multiplied with parameters."""
    known = follower.of(tensor)
    if isinstance(known, Scores | Weights) and isinstance(result, Tensor) and tensor.ndim == result.ndim:
        letters = [chr(ord("a") + place) for place in range(tensor.ndim)]
        out = [*letters]
        out[axis] = "Z"
        product = Product((tensor,), ("".join(letters),), "".join(out), result)
        if all(
            size == before
            for size, before, letter in zip(result.shape, tensor.shape, out, strict=True)
            if letter != "Z"
        ) and mix(follower, known, dict(zip(letters, known.axes, strict=True)), product):
            return
    follower.project(tensor, result, (axis,))


def multiply(follower: Follower, call: TorchCall) -> None:
    """A matrix product: of query and key, of weights and value, with parameters."""
    left, right = (*call.tensors(), None, None)[:2]
    if call.function is Tensor.__rmatmul__:
        left, right = right, left
    if left is None or right is None or not left.ndim or not right.ndim:
        return
    if not isinstance(call.result, Tensor):
        return
    product = matrix_product(left, right, call.result)
    if follow_product(follower, product):
        return
    if follower.is_of_parameters(right) or right.ndim == 2 < left.ndim:
        lead = [axis - 2 for axis in range(2 - right.ndim, 0) if right.shape[axis - 2] > 1]
        follower.project(left, call.result, (*lead, -1) if right.ndim > 1 else ())
    elif left.ndim == 2 and (follower.is_of_parameters(left) or right.ndim > 2):
        follower.project(right, call.result, (-2,))
    else:
        score(follower, product)


def add_product(follower: Follower, call: TorchCall) -> None:
    """beta input + alpha left right."""
    left, right = call.get(1, "batch1"), call.get(2, "batch2")
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(call.result, Tensor)):
        return
    product = matrix_product(left, right, call.result)
    if follow_product(follower, product):
        return
    if not follower.is_of_parameters(right) and not follower.is_of_parameters(left):
        alpha = call.named.get("alpha", 1)
        scale = float(alpha) if isinstance(alpha, int | float) else 1.0
        score(follower, product, scale)


def einsum(follower: Follower, call: TorchCall) -> None:
    """A product by the letters of an equation."""
    equation, *tensors = call.arguments
    if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
        tensors = [*tensors[0]]
    operands = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    if not isinstance(equation, str) or len(operands) != len(tensors) or not operands:
        return
    if not isinstance(call.result, Tensor):
        return
    inputs, out = labels_of(equation, operands)
    if any(len({*letters}) < len(letters) for letters in inputs):
        return  # a diagonal
    product = Product(operands, inputs, out, call.result)
    if follow_product(follower, product):
        return
    if len(operands) == 1:
        known = follower.of(operands[0])
        follower.note(call.result, known if isinstance(known, Projected) else None)
    elif len(operands) == 2:
        places = [place for place, tensor in enumerate(operands) if follower.is_of_parameters(tensor)]
        if places:
            of_parameters = inputs[places[0]]
            features = [axis for axis, letter in enumerate(out, -len(out)) if letter in of_parameters]
            follower.project(operands[1 - places[0]], call.result, features)
        else:
            score(follower, product)


def say_unfollowed(follower: Follower, call: TorchCall) -> None:
    """Weights met other tensors in a product that is not followed."""
    if any(isinstance(follower.of(tensor), Weights) for tensor in call.tensors()):
        follower.unclear(CONTRACTED.format(getattr(call.function, "__name__", "")))


def measure(follower: Follower, call: TorchCall) -> None:
    """Distances are scores that are no product."""
    left, right = call.get(0, "x1"), call.get(1, "x2")
    if isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(call.result, Tensor):
        product = matrix_product(left, right, call.result)
        inputs = product.inputs[0], product.inputs[1][:-2] + "XZ"
        score(follower, product._replace(inputs=inputs))
        if isinstance(known := follower.of(call.result), Scores):
            follower.note(call.result, known.mixed(known.axes))


def sum_entries(follower: Follower, call: TorchCall) -> None:
    """A sum of entries that were multiplied one by one is a product."""
    tensor = call.get(0, "input", "self")
    known = follower.of(tensor)
    if call.function in MEANS:
        known = known if isinstance(known, Weights) else None
    elif isinstance(known, Projected):
        carry(follower, call)
    if not isinstance(known, Outer | Scores | Weights) or not isinstance(tensor, Tensor):
        return
    letters = "".join(chr(ord("a") + place) for place in range(tensor.ndim))
    summed = axes_of_sum(call, tensor)
    if not summed or not isinstance(call.result, Tensor):
        return
    if call.result.ndim > tensor.ndim - len(summed):  # axes of size 1 are left
        if isinstance(known, Scores | Weights):
            labels = {part.label for place in summed for part in known.axes[place]}
            places = range(-tensor.ndim, 0)
            kept = tuple(() if place in summed else known.axes[place] for place in places)
            follower.note(call.result, None if labels & known.tokens else known.mixed(kept))
        return
    out = "".join(letter for place, letter in enumerate(letters, -len(letters)) if place not in summed)
    if isinstance(known, Outer):
        if known.factors is not None:
            left, right = known.factors
            inputs = letters[len(letters) - left.ndim :], letters[len(letters) - right.ndim :]
            score(follower, Product((left, right), inputs, out, call.result))
        return
    axes = dict(zip(letters, known.axes, strict=True))
    kept, gone, _ = contracted(axes, out, call.result.shape)
    if isinstance(known, Weights) and known.times and sums_other_tokens(follower, known, axes, out):
        return
    is_of_key = isinstance(known, Weights) and (
        known.key in gone
        or (
            known.key is None
            and known.softmax.of is not None
            and all(tensor.shape[place] == 1 for place in summed)
        )
    )
    if isinstance(known, Weights) and is_of_key and known.times and call.function in SUMMING:
        weights, value, before = known.times
        follower.reach(replace(before, axes=weights.axes), weights.tensor, known.query, value)
    elif not known.tokens & {*gone}:
        follower.note(call.result, known.mixed(kept))


def follow_product(follower: Follower, product: Product) -> bool:
    """Follow weights or scores into a product; False for a product without weights that gives no scores."""
    for kind in (Weights, Scores):
        for place, tensor in enumerate(product.operands):
            known = follower.of(tensor)
            if not isinstance(known, kind) or (isinstance(known, Weights) and known.is_value):
                continue
            axes = dict(zip(product.inputs[place], known.axes, strict=True))
            if isinstance(known, Weights) and sums_other_tokens(follower, known, axes, product.out):
                return True
            if mix(follower, known, axes, product, is_alone=len(product.operands) == 1):
                return True
            left = {part.label for letter in product.out for part in axes.get(letter, ())}
            if isinstance(known, Weights):
                if known.key not in left:
                    reach_by_letters(follower, known, place, product)
                elif known.query is not None and known.query not in left:
                    follower.reach(known.over_another_axis(), tensor, None, None)
                return True
            if known.through is not None and len(known.tokens & left) == 1 < len(known.tokens):
                follower.unclear(NO_SOFTMAX.format(known.through))
    return False


def mix(
    follower: Follower,
    known: Scores | Weights,
    axes: Mapping[str, tuple[AxisPart, ...]],
    product: Product,
    *,
    is_alone: bool = False,
) -> bool:
    """Follow scores or weights, alone or into a product, where their queries and keys are left."""
    kept, gone, new = contracted(axes, product.out, product.result.shape)
    if known.tokens & {*gone}:
        return False
    if isinstance(known, Weights) and (known.is_value or (known.key is None and new and not gone)):
        return False
    is_same = is_alone and not gone and not new
    follower.note(product.result, replace(known, axes=kept) if is_same else known.mixed(kept))
    return True


def sums_other_tokens(
    follower: Follower, known: Weights, axes: Mapping[str, tuple[AxisPart, ...]], out: str
) -> bool:
    """True if weights of no product are summed over other tokens than their keys; then a line says so."""
    if known.softmax.of is not None or known.softmax.is_unfollowed or known.softmax.is_heard:
        return False
    left = {part.label for letter in out for part in axes.get(letter, ())}
    summed = {part.label for parts in axes.values() for part in parts} - left - known.features
    if known.key in summed or not summed:
        return False
    follower.reach(known.over_another_axis(), known.softmax.result.tensor, None, None)
    return True


def score(follower: Follower, product: Product, scale: float = 1.0) -> None:
    """Scores are a product of two tensors that are no parameters."""
    (left, right), inputs, out, result = product
    labels = labels_of_letters(follower, product)
    axes = {
        letter: tuple(AxisPart(label, 1, size) for label, size, _ in of_letter if size > 1)
        for letter, of_letter in labels.items()
    }
    of_left = _tokens_of_operand(left, right, inputs, out, labels)
    of_right = _tokens_of_operand(right, left, inputs[::-1], out, labels)
    features = {label for of_letter in labels.values() for label, _, is_feature in of_letter if is_feature}
    sizes = {label: size for of_letter in labels.values() for label, size, _ in of_letter}
    num_left, num_right = (sizes[tokens[0]] if tokens else 1 for tokens in (of_left, of_right))
    with unseen():
        scores = Scores(
            left=Labelled(left.detach(), of_operand(left, inputs[0], axes)),
            right=Labelled(right.detach(), of_operand(right, inputs[1], axes)),
            axes=tuple(axes[letter] for letter in out),
            labels=tuple(label for letter in out for label, *_ in labels[letter]),
            features=frozenset(label for letter in out for label, *_ in labels[letter] if label in features),
            dims=tuple(part.label for letter in axes if letter not in out for part in axes[letter]),
            left_tokens=of_left,
            right_tokens=of_right,
            is_self=follower.is_self(left, right, are_as_many=num_left == num_right),
            scale=scale,
            one_head_of=follower.one_head_of(left) or follower.one_head_of(right)
            if result.ndim <= 3
            else None,
        )
    follower.note(result, scores)


def labels_of_letters(follower: Follower, product: Product) -> dict[str, list[tuple[int, int, bool]]]:
    """The parts of each letter: labels, their sizes, and True for features."""
    parts: dict[str, list[tuple[int, bool]]] = {}
    for tensor, letters in zip(product.operands, product.inputs, strict=True):
        for letter, sizes in zip(letters, follower.sizes_of_axes(tensor), strict=True):
            parts[letter] = max(parts.get(letter, [(1, False)]), sizes, key=_told_by)
    return {letter: [(next(LABELS), *part) for part in sizes] for letter, sizes in parts.items()}


def _told_by(sizes: Sequence[tuple[int, bool]]) -> tuple[bool, int]:
    """The order by what is known of an axis: that its size is not 1, then the number of its features."""
    return prod(size for size, _ in sizes) > 1, prod(size for size, is_feature in sizes if is_feature)


def _tokens_of_operand(
    tensor: Tensor,
    other: Tensor,
    inputs: Sequence[str],
    out: str,
    labels: Mapping[str, Sequence[tuple[int, int, bool]]],
) -> tuple[int, ...]:
    """The labels that may be those of an operand's tokens, the likeliest first.

    Tokens are an axis that the other operand does not have; so may be heads, which are features.
    """
    letters, others = inputs
    sizes = dict(zip(others, other.shape, strict=True))
    here = [letter for letter in out if letter in letters]
    alone = [
        (label, size, is_feature, out.index(letter) >= len(out) - 2)
        for letter in here
        if letter not in sizes or (sizes[letter] == 1 < tensor.shape[letters.index(letter)])
        for label, size, is_feature in labels[letter]
        if size > 1 or letter not in sizes
    ]
    # Tokens rather than features, several rather than one, the last rather than the first.
    ranked = sorted(reversed(alone), key=lambda each: (each[2], each[1] == 1, not each[3]))
    return tuple(label for label, *_ in ranked)


def reach_by_letters(follower: Follower, known: Weights, place: int, product: Product) -> None:
    """Weights met their value in a product that sums over their keys."""
    if known.softmax.is_heard:
        return
    if known.softmax.is_unfollowed and any(map(follower.is_of_parameters, product.operands)):
        return  # classes or codes
    operands, inputs, out, _ = product
    letters = inputs[place]
    axes = dict(zip(letters, known.axes, strict=True))
    value, query = None, known.query
    shared = {
        letter
        for other, labels in zip(operands, inputs, strict=True)
        if other is not operands[place]
        for letter, size in zip(labels, other.shape, strict=True)
        if size > 1
    }
    if known.softmax.of is None:
        alone = [
            part.label
            for letter in letters
            if letter in out and letter not in shared
            for part in axes[letter]
            if part.label not in known.features
        ]
        if len(alone) > 1:
            follower.unclear(NO_QUERIES)
            return
        of_one = [letter for letter in letters if letter in out and not axes[letter]]
        has_axis = any(letter not in inputs[1 - place] for letter in of_one)
        query = alone[0] if alone else next(LABELS) if has_axis else None
    if len(operands) == 2:
        other = operands[1 - place]
        known.softmax.one_head_of = known.softmax.one_head_of or follower.one_head_of(other)
        with unseen():
            names = {
                letter: axes.get(letter) or whole_axis(next(LABELS), size)
                for letter, size in zip(inputs[1 - place], other.shape, strict=True)
            }
            value = Labelled(other.detach(), of_operand(other, inputs[1 - place], names))
    follower.reach(known, operands[place], query, value)
