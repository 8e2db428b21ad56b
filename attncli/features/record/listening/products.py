"""Follows products of tensors: query and key, weights and values, and projections by parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from attncli.features.record.listening.axis_labels import (
    LABELS,
    AxisPart,
    Labelled,
    contracted,
    operand_axes,
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
    equation_letters,
    matrix_product,
    summed_axes,
    unseen,
)


def linear(follower: Follower, call: TorchCall) -> None:
    """Follow a linear layer: a projection, or a mixture of heads on the last axis of scores or weights."""
    tensor = call.get(0, "input")
    if call.function in ADDMMS:
        tensor = call.get(1, "mat1")
        if not isinstance(weight := call.get(2, "mat2"), Tensor) or not follower.is_parameter(weight):
            return
    if isinstance(tensor, Tensor):
        project_or_mix(follower, tensor, call.result, -1)


def convolve(follower: Follower, call: TorchCall) -> None:
    """Follow a convolution: a projection, or a mixture of heads."""
    tensor = call.get(0, "input")
    if isinstance(tensor, Tensor):
        project_or_mix(follower, tensor, call.result, 1 - tensor.ndim)


def project_or_mix(follower: Follower, tensor: Tensor, result: object, axis: int) -> None:
    """Follow the product of one axis of a tensor with parameters."""
    facts = follower.find(tensor)
    if isinstance(facts, Scores | Weights) and isinstance(result, Tensor) and tensor.ndim == result.ndim:
        letters = [chr(ord("a") + place) for place in range(tensor.ndim)]
        out = [*letters]
        out[axis] = "Z"
        product = Product((tensor,), ("".join(letters),), "".join(out), result)
        if all(
            size == before
            for size, before, letter in zip(result.shape, tensor.shape, out, strict=True)
            if letter != "Z"
        ) and mix(follower, facts, dict(zip(letters, facts.axes, strict=True)), product):
            return
    follower.project(tensor, result, (axis,))


def multiply(follower: Follower, call: TorchCall) -> None:
    """Follow a matrix product: of query and key, of weights and value, or with parameters."""
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
    if follower.is_parameter(right) or right.ndim == 2 < left.ndim:
        lead = [axis - 2 for axis in range(2 - right.ndim, 0) if right.shape[axis - 2] > 1]
        follower.project(left, call.result, (*lead, -1) if right.ndim > 1 else ())
    elif left.ndim == 2 and (follower.is_parameter(left) or right.ndim > 2):
        follower.project(right, call.result, (-2,))
    else:
        score(follower, product)


def add_product(follower: Follower, call: TorchCall) -> None:
    """Follow the sum beta input + alpha left right."""
    left, right = call.get(1, "batch1"), call.get(2, "batch2")
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(call.result, Tensor)):
        return
    product = matrix_product(left, right, call.result)
    if follow_product(follower, product):
        return
    if not follower.is_parameter(right) and not follower.is_parameter(left):
        alpha = call.named.get("alpha", 1)
        scale = float(alpha) if isinstance(alpha, int | float) else 1.0
        score(follower, product, scale)


def einsum(follower: Follower, call: TorchCall) -> None:
    """Follow an einsum."""
    equation, *tensors = call.arguments
    if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
        tensors = [*tensors[0]]
    operands = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    if not isinstance(equation, str) or len(operands) != len(tensors) or not operands:
        return
    if not isinstance(call.result, Tensor):
        return
    inputs, out = equation_letters(equation, operands)
    if any(len({*letters}) < len(letters) for letters in inputs):
        return  # a diagonal
    product = Product(operands, inputs, out, call.result)
    if follow_product(follower, product):
        return
    if len(operands) == 1:
        facts = follower.find(operands[0])
        follower.note(call.result, facts if isinstance(facts, Projected) else None)
    elif len(operands) == 2:
        places = [place for place, tensor in enumerate(operands) if follower.is_parameter(tensor)]
        if places:
            parameter_letters = inputs[places[0]]
            features = [axis for axis, letter in enumerate(out, -len(out)) if letter in parameter_letters]
            follower.project(operands[1 - places[0]], call.result, features)
        else:
            score(follower, product)


def say_unfollowed(follower: Follower, call: TorchCall) -> None:
    """Report that weights are used in a product that is not followed."""
    if any(isinstance(follower.find(tensor), Weights) for tensor in call.tensors()):
        follower.unclear(CONTRACTED.format(getattr(call.function, "__name__", "")))


def measure(follower: Follower, call: TorchCall) -> None:
    """Follow distances between tensors, which are scores although they are not products."""
    left, right = call.get(0, "x1"), call.get(1, "x2")
    if isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(call.result, Tensor):
        product = matrix_product(left, right, call.result)
        inputs = product.inputs[0], product.inputs[1][:-2] + "XZ"
        score(follower, product._replace(inputs=inputs))
        if isinstance(facts := follower.find(call.result), Scores):
            follower.note(call.result, facts.mixed(facts.axes))


def sum_entries(follower: Follower, call: TorchCall) -> None:
    """Follow a sum; the sum of an elementwise product is a product."""
    tensor = call.get(0, "input", "self")
    facts = follower.find(tensor)
    if call.function in MEANS:
        facts = facts if isinstance(facts, Weights) else None
    elif isinstance(facts, Projected):
        carry(follower, call)
    if not isinstance(facts, Outer | Scores | Weights) or not isinstance(tensor, Tensor):
        return
    letters = "".join(chr(ord("a") + place) for place in range(tensor.ndim))
    summed = summed_axes(call, tensor)
    if not summed or not isinstance(call.result, Tensor):
        return
    if call.result.ndim > tensor.ndim - len(summed):  # only axes of size 1 are left
        if isinstance(facts, Scores | Weights):
            labels = {part.label for place in summed for part in facts.axes[place]}
            places = range(-tensor.ndim, 0)
            axes_left = tuple(() if place in summed else facts.axes[place] for place in places)
            follower.note(call.result, None if labels & facts.tokens else facts.mixed(axes_left))
        return
    out = "".join(letter for place, letter in enumerate(letters, -len(letters)) if place not in summed)
    if isinstance(facts, Outer):
        if facts.factors is not None:
            left, right = facts.factors
            inputs = letters[len(letters) - left.ndim :], letters[len(letters) - right.ndim :]
            score(follower, Product((left, right), inputs, out, call.result))
        return
    axes = dict(zip(letters, facts.axes, strict=True))
    result_axes, gone, _ = contracted(axes, out, call.result.shape)
    if isinstance(facts, Weights) and facts.times and refuse_other_sums(follower, facts, axes, out):
        return
    sums_keys = isinstance(facts, Weights) and (
        facts.key in gone
        or (
            facts.key is None
            and facts.softmax.product is not None
            and all(tensor.shape[place] == 1 for place in summed)
        )
    )
    if isinstance(facts, Weights) and sums_keys and facts.times and call.function in SUMMING:
        weights, value, before = facts.times
        follower.reach(replace(before, axes=weights.axes), weights.tensor, facts.query, value)
    elif not facts.tokens & {*gone}:
        follower.note(call.result, facts.mixed(result_axes))


def follow_product(follower: Follower, product: Product) -> bool:
    """Follow weights or scores into a product. Return False if it has no weights and yields no scores."""
    for kind in (Weights, Scores):
        for place, tensor in enumerate(product.operands):
            facts = follower.find(tensor)
            if not isinstance(facts, kind) or (isinstance(facts, Weights) and facts.is_value):
                continue
            axes = dict(zip(product.inputs[place], facts.axes, strict=True))
            if isinstance(facts, Weights) and refuse_other_sums(follower, facts, axes, product.out):
                return True
            if mix(follower, facts, axes, product, is_alone=len(product.operands) == 1):
                return True
            left = {part.label for letter in product.out for part in axes.get(letter, ())}
            if isinstance(facts, Weights):
                if facts.key not in left:
                    reach_by_letters(follower, facts, place, product)
                elif facts.query is not None and facts.query not in left:
                    follower.reach(facts.over_another_axis(), tensor, None, None)
                return True
            if facts.through is not None and len(facts.tokens & left) == 1 < len(facts.tokens):
                follower.unclear(NO_SOFTMAX.format(facts.through))
    return False


def mix(
    follower: Follower,
    facts: Scores | Weights,
    axes: Mapping[str, tuple[AxisPart, ...]],
    product: Product,
    *,
    is_alone: bool = False,
) -> bool:
    """Follow scores or weights, alone or into a product, if the result still has their queries and keys."""
    result_axes, gone, new = contracted(axes, product.out, product.result.shape)
    if facts.tokens & {*gone}:
        return False
    if isinstance(facts, Weights) and (facts.is_value or (facts.key is None and new and not gone)):
        return False
    is_same = is_alone and not gone and not new
    follower.note(product.result, replace(facts, axes=result_axes) if is_same else facts.mixed(result_axes))
    return True


def refuse_other_sums(
    follower: Follower, facts: Weights, axes: Mapping[str, tuple[AxisPart, ...]], out: str
) -> bool:
    """Report weights of unknown scores if they are summed over tokens other than keys.

    Return True if they are.
    """
    if facts.softmax.product is not None or facts.softmax.is_unfollowed or facts.softmax.is_heard:
        return False
    left = {part.label for letter in out for part in axes.get(letter, ())}
    summed = {part.label for parts in axes.values() for part in parts} - left - facts.features
    if facts.key in summed or not summed:
        return False
    follower.reach(facts.over_another_axis(), facts.softmax.result.tensor, None, None)
    return True


def score(follower: Follower, product: Product, scale: float = 1.0) -> None:
    """Note the product of two tensors that are not parameters as scores."""
    (left, right), inputs, out, result = product
    labels = letter_labels(follower, product)
    axes = {
        letter: tuple(AxisPart(label, 1, size) for label, size, _ in parts if size > 1)
        for letter, parts in labels.items()
    }
    left_tokens = _operand_tokens(left, right, inputs, out, labels)
    right_tokens = _operand_tokens(right, left, inputs[::-1], out, labels)
    features = {label for parts in labels.values() for label, _, is_feature in parts if is_feature}
    sizes = {label: size for parts in labels.values() for label, size, _ in parts}
    num_left, num_right = (sizes[tokens[0]] if tokens else 1 for tokens in (left_tokens, right_tokens))
    with unseen():
        scores = Scores(
            left=Labelled(left.detach(), operand_axes(left, inputs[0], axes)),
            right=Labelled(right.detach(), operand_axes(right, inputs[1], axes)),
            axes=tuple(axes[letter] for letter in out),
            labels=tuple(label for letter in out for label, *_ in labels[letter]),
            features=frozenset(label for letter in out for label, *_ in labels[letter] if label in features),
            dims=tuple(part.label for letter in axes if letter not in out for part in axes[letter]),
            left_tokens=left_tokens,
            right_tokens=right_tokens,
            is_self=follower.is_self(left, right, same_length=num_left == num_right),
            scale=scale,
            feature_ratio=follower.feature_ratio(left) or follower.feature_ratio(right)
            if result.ndim <= 3
            else None,
        )
    follower.note(result, scores)


def letter_labels(follower: Follower, product: Product) -> dict[str, list[tuple[int, int, bool]]]:
    """Return the parts of each letter: the label, the size, and True for features."""
    parts: dict[str, list[tuple[int, bool]]] = {}
    for tensor, letters in zip(product.operands, product.inputs, strict=True):
        for letter, sizes in zip(letters, follower.axis_sizes(tensor), strict=True):
            parts[letter] = max(parts.get(letter, [(1, False)]), sizes, key=_information)
    return {letter: [(next(LABELS), *part) for part in sizes] for letter, sizes in parts.items()}


def _information(sizes: Sequence[tuple[int, bool]]) -> tuple[bool, int]:
    """Return a sort key for how well an axis is known: if its size is not 1, then its number of features."""
    return prod(size for size, _ in sizes) > 1, prod(size for size, is_feature in sizes if is_feature)


def _operand_tokens(
    tensor: Tensor,
    second: Tensor,
    inputs: Sequence[str],
    out: str,
    labels: Mapping[str, Sequence[tuple[int, int, bool]]],
) -> tuple[int, ...]:
    """Return the labels that may be an operand's tokens, starting with the likeliest.

    The second operand does not have the token axis; it may also lack the head axis, whose labels are
    features.
    """
    letters, second_letters = inputs
    sizes = dict(zip(second_letters, second.shape, strict=True))
    here = [letter for letter in out if letter in letters]
    alone = [
        (label, size, is_feature, out.index(letter) >= len(out) - 2)
        for letter in here
        if letter not in sizes or (sizes[letter] == 1 < tensor.shape[letters.index(letter)])
        for label, size, is_feature in labels[letter]
        if size > 1 or letter not in sizes
    ]
    # Prefers tokens to features, several to one, and the last axis to the first.
    ranked = sorted(reversed(alone), key=lambda each: (each[2], each[1] == 1, not each[3]))
    return tuple(label for label, *_ in ranked)


def reach_by_letters(follower: Follower, facts: Weights, place: int, product: Product) -> None:
    """Report weights that are multiplied by values in a product that sums over the keys."""
    if facts.softmax.is_heard:
        return
    if facts.softmax.is_unfollowed and any(map(follower.is_parameter, product.operands)):
        return  # classes or codes
    operands, inputs, out, _ = product
    letters = inputs[place]
    axes = dict(zip(letters, facts.axes, strict=True))
    value, query = None, facts.query
    shared = {
        letter
        for operand, labels in zip(operands, inputs, strict=True)
        if operand is not operands[place]
        for letter, size in zip(labels, operand.shape, strict=True)
        if size > 1
    }
    if facts.softmax.product is None:
        alone = [
            part.label
            for letter in letters
            if letter in out and letter not in shared
            for part in axes[letter]
            if part.label not in facts.features
        ]
        if len(alone) > 1:
            follower.unclear(NO_QUERIES)
            return
        single = [letter for letter in letters if letter in out and not axes[letter]]
        has_axis = any(letter not in inputs[1 - place] for letter in single)
        query = alone[0] if alone else next(LABELS) if has_axis else None
    if len(operands) == 2:
        value_operand = operands[1 - place]
        facts.softmax.feature_ratio = facts.softmax.feature_ratio or follower.feature_ratio(value_operand)
        with unseen():
            names = {
                letter: axes.get(letter) or whole_axis(next(LABELS), size)
                for letter, size in zip(inputs[1 - place], value_operand.shape, strict=True)
            }
            value = Labelled(value_operand.detach(), operand_axes(value_operand, inputs[1 - place], names))
    follower.reach(facts, operands[place], query, value)
