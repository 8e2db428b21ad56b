"""Attention that a program computes itself: from a product over a softmax to the product that it reaches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from attncli.features.record.listening.after_softmax import weights_after
from attncli.features.record.listening.axis_labels import (
    LABELS,
    AxisPart,
    Labelled,
    contracted,
    of_operand,
    whole_axis,
)
from attncli.features.record.listening.before_softmax import (
    axis_of_shares,
    scores_after,
    tokens_of_operand,
    told_by,
)
from attncli.features.record.listening.followed import (
    CONTRACTED,
    NO_QUERIES,
    NO_SOFTMAX,
    OF_FEATURES,
    PICKED,
    WRONG_AXIS,
    Blank,
    Followed,
    HandmadeAttention,
    HeardSoftmax,
    Outer,
    Projected,
    Scores,
    Weights,
    merged_projections,
    over_axis,
    read_attention,
)
from attncli.features.record.listening.kernels import NotHeard
from attncli.features.record.listening.origins import OF_PARAMETERS, Origins
from attncli.features.record.listening.torch_calls import (
    ADDMMS,
    BLANKS,
    CARRYING,
    CONTRACTIONS,
    CONVOLUTIONS,
    COPIES,
    DISTANCES,
    ELEMENTWISE,
    EXPONENTIALS,
    LOOKUPS,
    MEANS,
    NORMS,
    PICKS,
    RECURRENCES,
    SCATTERS,
    SUMMING,
    VIEWING,
    TorchCall,
    axes_of_sum,
    carried_features,
    factors_of_outer,
    feature_axes,
    labels_of,
    letters_of_product,
    picked_axis,
    unseen,
)
from attncli.models.torch_functions import MATMULS, SCALINGS, SOFTMAXES, functions_named


class Follower(Origins):
    """Follows what torch's functions give from one to the next, and tells `heard` how to read each attention.

    That is to be done at once, if at all, and raises NotHeard where it cannot be read; of others `unclear` is
    told why. What is known of a tensor is forgotten with it.
    """

    def __init__(
        self,
        heard: Callable[[Callable[[], HandmadeAttention]], None],
        unclear: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._heard, self._unclear = heard, unclear

    def after(
        self,
        function: Callable[..., object],
        arguments: Sequence[object],
        named: Mapping[str, object],
        result: object,
    ) -> None:
        """A function ran, and gave `result`; an empty one, as of experts without tokens, is not followed."""
        step = STEPS.get(function)
        if step is not None and not (isinstance(result, Tensor) and not result.numel()):
            step(self, TorchCall(function, arguments, named, result))

    # Products

    def linear(self, call: TorchCall) -> None:
        """Features of a tensor by a weight; a mixture where the last axis of scores or weights is heads."""
        tensor = call.get(0, "input")
        if call.function in ADDMMS:
            tensor = call.get(1, "mat1")
            if not isinstance(weight := call.get(2, "mat2"), Tensor) or not self.is_of_parameters(weight):
                return
        if isinstance(tensor, Tensor):
            self.project_or_mix(tensor, call.result, -1)

    def convolve(self, call: TorchCall) -> None:
        """Channels of a tensor by a weight: between heads a mixture."""
        tensor = call.get(0, "input")
        if isinstance(tensor, Tensor):
            self.project_or_mix(tensor, call.result, 1 - tensor.ndim)

    def project_or_mix(self, tensor: Tensor, result: object, axis: int) -> None:
        """One axis of a tensor was multiplied with parameters."""
        known = self.of(tensor)
        if isinstance(known, Scores | Weights) and isinstance(result, Tensor) and tensor.ndim == result.ndim:
            letters = [chr(ord("a") + place) for place in range(tensor.ndim)]
            out = [*letters]
            out[axis] = "Z"
            if all(
                size == before
                for size, before, letter in zip(result.shape, tensor.shape, out, strict=True)
                if letter != "Z"
            ):
                axes = dict(zip(letters, known.axes, strict=True))
                if self.mix(known, axes, "".join(out), result):
                    return
        self.project(tensor, result, (axis,))

    def normalise(self, call: TorchCall) -> None:
        """A norm of a tensor is made of it; one over heads mixes them."""
        tensor = call.get(0, "input")
        if not isinstance(tensor, Tensor):
            return
        known = self.of(tensor)
        if isinstance(known, Projected):
            self.carry(call)
        elif isinstance(known, Scores | Weights) and not (isinstance(known, Weights) and known.is_value):
            self.note(call.result, known.mixed(known.axes))
        elif not isinstance(known, Blank):
            of_parameters = self.is_of_parameters(tensor)
            self.note(call.result, OF_PARAMETERS if of_parameters else Projected(self.source(tensor)))

    def mix(
        self,
        known: Scores | Weights,
        axes: Mapping[str, tuple[AxisPart, ...]],
        out: str,
        result: Tensor,
        *,
        is_alone: bool = False,
    ) -> bool:
        """Follow scores or weights, alone or into a product, where their queries and keys are left."""
        kept, gone, new = contracted(axes, out, result.shape)
        if known.tokens & {*gone}:
            return False
        if isinstance(known, Weights) and (known.is_value or (known.key is None and new and not gone)):
            return False
        is_same = is_alone and not gone and not new
        self.note(result, replace(known, axes=kept) if is_same else known.mixed(kept))
        return True

    def multiply(self, call: TorchCall) -> None:
        """A matrix product: of query and key, of weights and value, with parameters."""
        left, right = (*call.tensors(), None, None)[:2]
        if call.function is Tensor.__rmatmul__:
            left, right = right, left
        if left is None or right is None or not left.ndim or not right.ndim:
            return
        inputs, out = letters_of_product(left, right)
        if not isinstance(call.result, Tensor) or self.follow_product(
            (left, right), inputs, out, call.result
        ):
            return
        if self.is_of_parameters(right) or right.ndim == 2 < left.ndim:
            lead = [axis - 2 for axis in range(2 - right.ndim, 0) if right.shape[axis - 2] > 1]
            self.project(left, call.result, (*lead, -1) if right.ndim > 1 else ())
        elif left.ndim == 2 and (self.is_of_parameters(left) or right.ndim > 2):
            self.project(right, call.result, (-2,))
        else:
            self.score(left, right, inputs, out, call.result)

    def add_product(self, call: TorchCall) -> None:
        """beta input + alpha left right."""
        left, right = call.get(1, "batch1"), call.get(2, "batch2")
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(call.result, Tensor)):
            return
        inputs, out = letters_of_product(left, right)
        if self.follow_product((left, right), inputs, out, call.result):
            return
        if not self.is_of_parameters(right) and not self.is_of_parameters(left):
            alpha = call.named.get("alpha", 1)
            scale = float(alpha) if isinstance(alpha, int | float) else 1.0
            self.score(left, right, inputs, out, call.result, scale)

    def einsum(self, call: TorchCall) -> None:
        """The same by the labels of an equation."""
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
        if self.follow_product(operands, inputs, out, call.result):
            return
        if len(operands) == 1:
            self.note(call.result, known if isinstance(known := self.of(operands[0]), Projected) else None)
        elif len(operands) == 2:
            places = [place for place, tensor in enumerate(operands) if self.is_of_parameters(tensor)]
            if places:
                of_parameters = inputs[places[0]]
                features = [axis for axis, letter in enumerate(out, -len(out)) if letter in of_parameters]
                self.project(operands[1 - places[0]], call.result, features)
            else:
                self.score(operands[0], operands[1], inputs, out, call.result)

    def leave(self, call: TorchCall) -> None:
        """Weights met other tensors in a product that is not followed."""
        if any(isinstance(self.of(tensor), Weights) for tensor in call.tensors()):
            self._unclear(CONTRACTED.format(getattr(call.function, "__name__", "")))

    def measure(self, call: TorchCall) -> None:
        """Distances are scores that are no product."""
        left, right = call.get(0, "x1"), call.get(1, "x2")
        if isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(call.result, Tensor):
            inputs, out = letters_of_product(left, right)
            inputs = inputs[0], inputs[1][:-2] + "XZ"
            self.score(left, right, inputs, out, call.result)
            if isinstance(known := self.of(call.result), Scores):
                self.note(call.result, known.mixed(known.axes))

    def follow_product(
        self, operands: Sequence[Tensor], inputs: Sequence[str], out: str, result: Tensor
    ) -> bool:
        """Whether it is a product of weights, or one of scores that are scores still."""
        for kind in (Weights, Scores):
            for place, tensor in enumerate(operands):
                known = self.of(tensor)
                if not isinstance(known, kind) or (isinstance(known, Weights) and known.is_value):
                    continue
                axes = dict(zip(inputs[place], known.axes, strict=True))
                if isinstance(known, Weights) and self.sums_other_tokens(known, axes, out):
                    return True
                if self.mix(known, axes, out, result, is_alone=len(operands) == 1):
                    return True
                left = {part.label for letter in out for part in axes.get(letter, ())}
                if isinstance(known, Weights):
                    if known.key not in left:
                        self.reach_by_letters(known, place, operands, inputs, out)
                    elif known.query is not None and known.query not in left:
                        self.reach(known.over_another_axis(), tensor, None, None)
                    return True
                if known.through is not None and len(known.tokens & left) == 1 < len(known.tokens):
                    self._unclear(NO_SOFTMAX.format(known.through))
        return False

    def sums_other_tokens(self, known: Weights, axes: Mapping[str, tuple[AxisPart, ...]], out: str) -> bool:
        """Whether weights of no product are summed over other tokens than their keys, which a line says."""
        if known.softmax.of is not None or known.softmax.is_unfollowed or known.softmax.is_heard:
            return False
        left = {part.label for letter in out for part in axes.get(letter, ())}
        summed = {part.label for parts in axes.values() for part in parts} - left - known.features
        if known.key in summed or not summed:
            return False
        self.reach(known.over_another_axis(), known.softmax.result.tensor, None, None)
        return True

    def score(
        self,
        left: Tensor,
        right: Tensor,
        inputs: Sequence[str],
        out: str,
        result: Tensor,
        scale: float = 1.0,
    ) -> None:
        """Scores are a product of two tensors that are no parameters."""
        labels = self._labels(left, right, inputs)
        axes = {
            letter: tuple(AxisPart(label, 1, size) for label, size, _ in of_letter if size > 1)
            for letter, of_letter in labels.items()
        }
        of_left = tokens_of_operand(left, right, inputs, out, labels)
        of_right = tokens_of_operand(right, left, inputs[::-1], out, labels)
        features = {
            label for of_letter in labels.values() for label, _, is_feature in of_letter if is_feature
        }
        sizes = {label: size for of_letter in labels.values() for label, size, _ in of_letter}
        num_left, num_right = (sizes[tokens[0]] if tokens else 1 for tokens in (of_left, of_right))
        with unseen():
            scores = Scores(
                left=Labelled(left.detach(), of_operand(left, inputs[0], axes)),
                right=Labelled(right.detach(), of_operand(right, inputs[1], axes)),
                axes=tuple(axes[letter] for letter in out),
                labels=tuple(label for letter in out for label, *_ in labels[letter]),
                features=frozenset(
                    label for letter in out for label, *_ in labels[letter] if label in features
                ),
                dims=tuple(part.label for letter in axes if letter not in out for part in axes[letter]),
                left_tokens=of_left,
                right_tokens=of_right,
                is_self=self._is_self(left, right, are_as_many=num_left == num_right),
                scale=scale,
                one_head_of=self.one_head_of(left) or self.one_head_of(right) if result.ndim <= 3 else None,
            )
        self.note(result, scores)

    def _labels(
        self, left: Tensor, right: Tensor, inputs: Sequence[str]
    ) -> dict[str, list[tuple[int, int, bool]]]:
        """What each letter is made of: labels, their sizes, and whether these are features."""
        parts: dict[str, list[tuple[int, bool]]] = {}
        for tensor, letters in zip((left, right), inputs, strict=True):
            for letter, sizes in zip(letters, self.sizes_of_axes(tensor), strict=True):
                parts[letter] = max(parts.get(letter, [(1, False)]), sizes, key=told_by)
        return {letter: [(next(LABELS), *part) for part in sizes] for letter, sizes in parts.items()}

    def sum(self, call: TorchCall) -> None:
        """A sum of entries that were multiplied one by one is a product."""
        tensor = call.get(0, "input", "self")
        known = self.of(tensor)
        if call.function in MEANS:
            known = known if isinstance(known, Weights) else None
        elif isinstance(known, Projected):
            self.carry(call)
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
                self.note(call.result, None if labels & known.tokens else known.mixed(kept))
            return
        out = "".join(letter for place, letter in enumerate(letters, -len(letters)) if place not in summed)
        if isinstance(known, Outer):
            if known.factors is not None:
                left, right = known.factors
                inputs = letters[len(letters) - left.ndim :], letters[len(letters) - right.ndim :]
                self.score(left, right, inputs, out, call.result)
            return
        axes = dict(zip(letters, known.axes, strict=True))
        kept, gone, _ = contracted(axes, out, call.result.shape)
        if isinstance(known, Weights) and known.times and self.sums_other_tokens(known, axes, out):
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
            self.reach(replace(before, axes=weights.axes), weights.tensor, known.query, value)
        elif not known.tokens & {*gone}:
            self.note(call.result, known.mixed(kept))

    # Softmax

    def softmax(self, call: TorchCall) -> None:
        """A softmax over keys gives weights."""
        scores, axis = call.get(0, "input", "self"), call.get(1, "dim", "axis")
        known = self.of(scores)
        if axis is None and isinstance(scores, Tensor) and call.function is functional.softmax:
            axis = 0 if scores.ndim in (0, 1, 3) else 1  # as torch chooses it
        if not isinstance(scores, Tensor) or not isinstance(axis, int) or not scores.ndim:
            return
        axis = axis if axis < 0 else axis - scores.ndim
        if isinstance(known, Weights) and isinstance(call.result, Tensor):
            self.note(call.result, known.mixed(known.axes))
        elif known is None and axis == -1 and scores.ndim > 1 and isinstance(call.result, Tensor):
            if not self.is_of_parameters(scores):
                self.share(scores, axis, None, call.result)
        elif isinstance(known, Scores | Projected) and isinstance(call.result, Tensor):
            self.share(scores, axis, known, call.result)

    def exponentiate(self, call: TorchCall) -> None:
        """The exponential of scores minus the logarithm of their sum is their softmax (Reformer)."""
        known, result = self.of(call.get(0, "input", "self")), call.result
        if not isinstance(known, Scores):
            return
        self.carry(call)
        if known.shifted is not None and isinstance(result, Tensor):
            with unseen():
                axis = axis_of_shares(known, known.shifted, result)
            if axis is not None:
                self.share(known.shifted.before, axis, replace(known, shifted=None), result)

    def share(self, scores: Tensor, axis: int, known: Scores | Projected | None, result: Tensor) -> None:
        """A softmax of scores along an axis gave `result`; None is known of scores that are not followed."""
        of, query, one_head_of, unread = None, None, None, None
        if isinstance(known, Scores):
            of = known.with_keys_on(axis)
            unread = known.unread if of is not None else over_axis(WRONG_AXIS, scores, axis)
            of, one_head_of = of or known, known.one_head_of
            axes, labels, features = known.axes, known.labels, known.features
            query = of.left_tokens[0] if of.left_tokens else None
            key = of.right_tokens[0] if of.right_tokens else None
        else:
            spans = () if known is None else feature_axes(scores, known.features)
            if spans is None or axis in spans:
                return  # classes, experts
            if -1 in spans or (axis == -1 and -2 in spans):
                unread = over_axis(OF_FEATURES, scores, axis)
            parts = [[(next(LABELS), *part) for part in of_axis] for of_axis in self.sizes_of_axes(scores)]
            if len(parts[axis]) > 1:
                return
            axes = tuple(
                tuple(AxisPart(label, 1, size) for label, size, _ in of_axis if size > 1) for of_axis in parts
            )
            labels = tuple(label for of_axis in parts for label, *_ in of_axis)
            features = frozenset(label for of_axis in parts for label, _, is_feature in of_axis if is_feature)
            key = parts[axis][0][0]
            one_head_of = 1 if known is not None and not features else None
        with unseen():
            pair = Labelled(scores.detach(), axes), Labelled(result.detach(), axes)
            softmax = HeardSoftmax(*pair, of, axis, labels, one_head_of, is_unfollowed=known is None)
        key = key if scores.shape[axis] > 1 else None
        self.note(result, Weights(softmax, axes, query, key, features, unread=unread))

    def reach_by_letters(
        self,
        known: Weights,
        place: int,
        operands: Sequence[Tensor],
        inputs: Sequence[str],
        out: str,
    ) -> None:
        """Weights met their value in a product that sums over their keys."""
        if known.softmax.is_heard:
            return
        if known.softmax.is_unfollowed and any(map(self.is_of_parameters, operands)):
            return  # classes or codes
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
                self._unclear(NO_QUERIES)
                return
            of_one = [letter for letter in letters if letter in out and not axes[letter]]
            has_axis = any(letter not in inputs[1 - place] for letter in of_one)
            query = alone[0] if alone else next(LABELS) if has_axis else None
        if len(operands) == 2:
            other = operands[1 - place]
            known.softmax.one_head_of = known.softmax.one_head_of or self.one_head_of(other)
            with unseen():
                names = {
                    letter: axes.get(letter) or whole_axis(next(LABELS), size)
                    for letter, size in zip(inputs[1 - place], other.shape, strict=True)
                }
                value = Labelled(other.detach(), of_operand(other, inputs[1 - place], names))
        self.reach(known, operands[place], query, value)

    def reach(self, known: Weights, weights: Tensor, query: int | None, value: Labelled | None) -> None:
        """Weights met their value."""
        softmax = known.softmax
        if softmax.is_heard:
            return
        softmax.is_heard = True
        if known.unread:
            self._unclear(known.unread)
        else:
            self._heard(partial(_attention_of, known, weights, query, value))
        softmax.forget()

    # Other steps

    def overwrite(self, call: TorchCall) -> None:
        """Entries of a tensor were set: of a new one, to what a projection gave."""
        tensor, known = call.get(0), self.of(call.get(0))
        given = self.of(call.get(1 if call.function in COPIES else 2, "src"))
        if isinstance(known, Blank):
            known = known.like
            self.note(tensor, known.mixed(known.axes))
        elif (
            isinstance(given, Weights) and call.function in COPIES and _are_alike(tensor, call.get(1, "src"))
        ):
            self.note(tensor, given)
        elif isinstance(known, Weights):
            self.note(tensor, known.mixed(known.axes))
        elif isinstance(given, Projected) and (known is None or isinstance(known, Projected)):
            parts = [given] if known is None else [known, given]
            merged = replace(merged_projections(parts), features=None)
            self.note(tensor, merged)
            if call.function in COPIES and isinstance(tensor, Tensor):
                self.note(tensor._base, merged)

    def change(self, call: TorchCall) -> None:
        """Numbers were changed one by one: what is known holds for the result."""
        tensor, result = call.get(0, "input", "self"), call.result
        known = self.of(tensor)
        if type(known) is not Projected:
            self.carry(call)
        elif isinstance(tensor, Tensor) and isinstance(result, Tensor) and tensor.stride() == result.stride():
            self._note(result, known)

    def blank(self, call: TorchCall) -> None:
        """A new tensor that is as large as another."""
        known = self.of(call.get(0, "input", "self"))
        if isinstance(known, Scores | Weights):
            self.note(call.result, Blank(known))

    def pick(self, call: TorchCall) -> None:
        """The largest scores or weights, or those at some places: which keys they are of is not followed."""
        tensor = call.get(0, "input", "self")
        known = self.of(tensor)
        picked = call.result[0] if isinstance(call.result, tuple) else call.result
        if isinstance(known, Projected) and isinstance(tensor, Tensor):
            features = feature_axes(tensor, known.features)
            if features is not None and picked_axis(call, tensor) in features:
                self.note(picked, Projected(known.sources, known.parents))  # of experts, as by a router
            return
        if not (isinstance(known, Scores | Weights) and isinstance(tensor, Tensor)):
            return
        if isinstance(picked, Tensor) and picked.ndim == tensor.ndim:
            axes = tuple(
                parts if size == before else whole_axis(parts[0].label, size) if parts else ()
                for parts, size, before in zip(known.axes, picked.shape, tensor.shape, strict=True)
            )
            name = getattr(call.function, "__name__", "")
            self.note(picked, replace(known, axes=axes, unread=known.unread or PICKED.format(name)))

    def scatter(self, call: TorchCall) -> None:
        """Entries of a tensor were set by their places: scores, weights, or some of them in a new tensor."""
        known = self.of(call.get(0, "input", "self"))
        if type(known) is Projected:
            self.carry(call)
        if isinstance(known, Blank):
            known = known.like
            if isinstance(known, Weights):
                # What was written to is a tensor of its own.
                known = replace(known, softmax=replace(known.softmax, is_heard=False))
        if isinstance(known, Scores | Weights):
            self.note(call.result, known.mixed(known.axes))

    def carry(self, call: TorchCall) -> None:
        """What is known of an argument holds for the result, changed as the function changes it."""
        known = [(tensor, about) for tensor in call.tensors() if (about := self.of(tensor)) is not None]
        weights = [(tensor, about) for tensor, about in known if isinstance(about, Weights)]
        if weights:
            (tensor, first), *rest = weights
            is_joined = any(other.softmax is not first.softmax for _, other in rest)
            for result, about in weights_after(first, tensor, call, is_joined=is_joined):
                self._note(result, about)
            return
        scores = [(tensor, about) for tensor, about in known if isinstance(about, Scores)]
        if scores:
            tensor, of = next((pair for pair in scores if pair[1].is_plain), scores[0])
            for result, about in scores_after(of, tensor, call):
                self._note(result, about)
        elif call.function in SCALINGS and (factors := factors_of_outer(call)) is not None:
            if known:
                self._carry_projected(known, call)
            about = self.of(call.result)
            if about is not OF_PARAMETERS:
                about = about if isinstance(about, Projected) else Projected(frozenset())
                self.note(call.result, Outer(about.sources, about.parents, about.features, factors=factors))
        elif known:
            self._carry_projected(known, call)
        elif call.function in VIEWING and call.arguments and isinstance(call.arguments[0], nn.Parameter):
            self.note(call.result, OF_PARAMETERS)

    def _carry_projected(self, known: Sequence[tuple[Tensor, Followed]], call: TorchCall) -> None:
        parts = [about for _, about in known if isinstance(about, Projected)]
        if not parts:
            return
        merged = merged_projections(parts)
        for result in call.result if isinstance(call.result, tuple | list) else (call.result,):
            if isinstance(result, Tensor):
                if merged is OF_PARAMETERS:
                    self._note(result, merged)
                else:
                    features = carried_features(merged.features, known[0][0], call, result)
                    self._note(result, Projected(merged.sources, merged.parents, features, merged.made))


def _attention_of(
    known: Weights, weights: Tensor, query: int | None, value: Labelled | None
) -> HandmadeAttention:
    with unseen():
        heard = read_attention(known, weights.detach(), query, value)
    if heard is None:
        raise NotHeard(NO_QUERIES)
    return heard


def _are_alike(tensor: object, other: object) -> bool:
    return isinstance(tensor, Tensor) and isinstance(other, Tensor) and tensor.shape == other.shape


STEPS: dict[Callable[..., object], Callable[[Follower, TorchCall], None]] = {
    **dict.fromkeys(CARRYING, Follower.carry),
    **dict.fromkeys(ELEMENTWISE, Follower.change),
    **dict.fromkeys(BLANKS, Follower.blank),
    **dict.fromkeys(SCATTERS, Follower.scatter),
    **dict.fromkeys(PICKS, Follower.pick),
    **dict.fromkeys(LOOKUPS, Follower.look_up),
    **dict.fromkeys(RECURRENCES, Follower.recur),
    **dict.fromkeys(NORMS, Follower.normalise),
    **dict.fromkeys({functional.linear, *ADDMMS}, Follower.linear),
    **dict.fromkeys(CONVOLUTIONS, Follower.convolve),
    **dict.fromkeys(MATMULS, Follower.multiply),
    **dict.fromkeys(CONTRACTIONS, Follower.leave),
    **dict.fromkeys(DISTANCES, Follower.measure),
    **dict.fromkeys(functions_named("baddbmm"), Follower.add_product),
    **dict.fromkeys({torch.einsum, torch.functional.einsum}, Follower.einsum),
    **dict.fromkeys(SUMMING | MEANS, Follower.sum),
    **dict.fromkeys(SOFTMAXES, Follower.softmax),
    **dict.fromkeys(EXPONENTIALS, Follower.exponentiate),
    **dict.fromkeys(functions_named("setitem") | COPIES, Follower.overwrite),
}
