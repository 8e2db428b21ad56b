"""Facts about a tensor of a running program: it is a projection, scores or weights, with labelled axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from torch import Tensor

from attncli.features.record.listening.axis_labels import (
    LABELS,
    Labelled,
    TensorAxes,
    broadcast,
    is_whole_axis,
    labels_in,
    laid_out,
    moved,
    refined,
    regrouped,
    resized,
    sizes_in,
    split_labels,
)
from attncli.features.record.listening.kernels import NotHeard
from attncli.features.record.listening.torch_calls import (
    EXPANSIONS,
    MOVES,
    PARTS,
    SHAPES,
    FeatureSpans,
    TorchCall,
    places_after_cut,
    unseen,
)


@dataclass(frozen=True)
class HandmadeAttention:
    """The tensors of a handmade attention; the last axes of scores and weights are queries and keys.

    - `scores`: the input of the softmax, or None if axes were summed afterwards.
    - `weights`: the result of the softmax before dropout; or the tensor that is multiplied by the values, if
      it differs from that result (because heads were mixed or a sink column was removed) and its rows are
      still shares.
    - `query`, `key`: (..., token, dim), or None unless the scores are `scale` times their product plus a
      bias.
    - `num_heads`: the product of the last leading axes that are heads, if known.
    - `is_self`: True if query and key were made from the same tensor, or None if that is unknown.
    - `is_guess`: the query and head axes were guessed from their order.
    - `is_filled`: some weights were set after the softmax.
    - `remark`: a remark on a change that `weights` does not include.
    - `feature_ratio`: the ratio for the query, as in `CallHint`.
    """

    scores: Tensor | None
    weights: Tensor
    value: Tensor | None
    query: Tensor | None
    key: Tensor | None
    scale: float
    is_self: bool | None
    num_heads: int | None = None
    is_guess: bool = False
    is_filled: bool = False
    remark: str | None = None
    feature_ratio: int | None = None


MemoryPlace = tuple[int, int]
"""The number of a memory block, and the offset of a tensor in the block."""


@dataclass(frozen=True)
class Projected:
    """A tensor that is a product of other tensors with parameters.

    `sources` are the tensors in the last product, and `parents` are the sources of those tensors. `features`
    are the axes other than token axes, or None if they are unknown. `made` is the shape of the product and
    its feature axes.
    """

    sources: frozenset[MemoryPlace]
    parents: frozenset[MemoryPlace] = frozenset()
    features: FeatureSpans | None = None
    made: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class GivenFeatures(Projected):
    """A tensor of features that the program passed to its outermost module."""


@dataclass(frozen=True)
class Outer(Projected):
    """An elementwise product of two tensors; its sum over an axis is a product of both tensors."""

    factors: tuple[Tensor, Tensor] | None = None


class ShiftedScores(NamedTuple):
    """The scores before a tensor was subtracted from them, and the axes of the subtracted tensor."""

    before: Tensor
    axes: TensorAxes


@dataclass(frozen=True)
class Scores:
    """A product of two tensors, followed through later changes, and the labels of its axes.

    - `labels`: the product's labels in order, including axes of size 1. `dims`: the labels that were summed.
    - `features`: the labels that are features of a projection.
    - `left_tokens`, `right_tokens`: the labels that may be each tensor's tokens, the likeliest first.
    - `is_plain`: False if the scores were mixed or cut, so that the product no longer determines the scores.
    - `feature_ratio`: the ratio for the query, as in `CallHint`.
    - `through`: the last elementwise function.
    - `shifted`: the scores before a number per row was subtracted, until they change again.
    - `unread`: the reason why weights made from these scores cannot be read.
    """

    left: Labelled
    right: Labelled
    axes: TensorAxes
    labels: tuple[int, ...]
    features: frozenset[int]
    dims: tuple[int, ...]
    left_tokens: tuple[int, ...]
    right_tokens: tuple[int, ...]
    is_self: bool | None
    scale: float = 1.0
    feature_ratio: int | None = None
    is_plain: bool = True
    through: str | None = None
    shifted: ShiftedScores | None = None
    unread: str | None = None

    def mixed(self, axes: TensorAxes) -> "Scores":
        """Return the facts about mixed scores, which are no longer a product."""
        features = _features_after(self.features, self.labels, self.axes, axes)
        return replace(self, axes=axes, features=features, is_plain=False)

    def swapped(self) -> "Scores":
        """Return the scores with left and right swapped."""
        return replace(
            self,
            left=self.right,
            right=self.left,
            left_tokens=self.right_tokens,
            right_tokens=self.left_tokens,
        )

    @property
    def tokens(self) -> set[int]:
        """The token labels that are known before the softmax."""
        first = {*self.left_tokens[:1], *self.right_tokens[:1]}
        # Features with tokens are the heads of one token; features alone are channels used as tokens.
        return first - self.features or first

    def has_several_queries(self) -> bool:
        """Return True if several axes may be the queries, and no projection shows which of them are heads."""
        sizes = sizes_in(self.left.axes)
        return len([label for label in self.left_tokens if label not in self.features and label in sizes]) > 1

    def with_keys_on(self, axis: int) -> "Scores | None":
        """Return the scores with the tensor that has tokens on `axis` as the right operand, or None."""
        parts = self.axes[axis]
        label = parts[0].label if parts else None
        is_joined = label is not None and label not in self.labels and label not in self.features
        if label is None or is_joined:  # a single key, perhaps beside a sink column
            sizes = sizes_in(self.axes)
            for scores in (self, self.swapped()):
                single = [label for label in scores.right_tokens if label not in sizes]
                if single:
                    return replace(scores, right_tokens=(single[0] if label is None else label,))
            return None
        if not is_whole_axis(parts, self.axes):
            return None
        scores = self if label in self.right_tokens else self.swapped()
        if label not in scores.right_tokens:
            return None
        is_single = label not in self.features and self.features.issuperset(scores.left_tokens[:1])
        return replace(scores, right_tokens=(label,), left_tokens=() if is_single else scores.left_tokens)


@dataclass(eq=False)
class HeardSoftmax:
    """A softmax over keys: its input and result with labelled axes, and the product behind it, if known.

    `labels` and `feature_ratio` are as in `Scores`. `is_changed`: followed functions have overwritten its
    result; `version` and `scores_version` count the writes to the result and the scores that are accounted
    for. `is_unfollowed`: the scores are not followed.
    """

    scores: Labelled
    result: Labelled
    product: Scores | None
    key_axis: int
    labels: tuple[int, ...]
    feature_ratio: int | None = None
    is_unfollowed: bool = False
    is_changed: bool = False
    is_heard: bool = False
    version: int | None = None
    scores_version: int | None = None

    def __post_init__(self) -> None:
        if self.version is None:
            self.version = write_count(self.result.tensor)
        if self.scores_version is None:
            self.scores_version = write_count(self.scores.tensor)

    def forget(self) -> None:
        """Release the scores once the attention has been reported; the program may keep the weights."""
        self.scores, self.product = self.result, None

    def has_scores(self) -> bool:
        """Return True if the scores have not been overwritten since the softmax."""
        return write_count(self.scores.tensor) == self.scores_version

    def is_overwritten(self) -> bool:
        """Return True if the result was overwritten unnoticed, or together with its scores."""
        is_written = write_count(self.result.tensor) != self.version
        return is_written or (self.is_changed and not self.has_scores())

    def weights(self) -> Labelled:
        """Return the result of the softmax."""
        if self.is_changed:
            scores, axes = self.scores
            return Labelled(scores.softmax(dim=self.key_axis, dtype=self.result.tensor.dtype), axes)
        return self.result


@dataclass(frozen=True)
class Weights:
    """The result of a softmax, followed through later changes, and the labels of its axes, queries and keys.

    - `features`: as in `Scores`.
    - `is_whole`: False if weights were mixed, keys were reweighted, or some keys were cut off.
    - `is_cut`: other axes were cut. `is_scaled`: rows were multiplied by a factor. `is_filled`: entries were
      set. `is_joined`: it contains other softmaxes.
    - `before`: the weights before dropout, or None if they are lost. `is_late`: the weights changed after
      dropout.
    - `times`: after a broadcast product, the weights, the other factor, and the facts about the weights.
    - `unread`: the reason why the weights cannot be read.
    """

    softmax: HeardSoftmax
    axes: TensorAxes
    query: int | None
    key: int | None
    features: frozenset[int]
    is_whole: bool = True
    is_cut: bool = False
    is_dropped: bool = False
    is_scaled: bool = False
    is_filled: bool = False
    is_late: bool = False
    is_joined: bool = False
    before: Labelled | None = None
    times: "tuple[Labelled, Labelled, Weights] | None" = None
    unread: str | None = None

    def mixed(self, axes: TensorAxes) -> "Weights":
        """Return the facts about mixed weights, which are no longer the result of a softmax."""
        features = _features_after(self.features, self.softmax.labels, self.axes, axes)
        is_late = self.is_late or self.is_dropped
        return replace(self, axes=axes, features=features, is_whole=False, is_late=is_late)

    def over_another_axis(self) -> "Weights":
        """Mark the weights as unreadable, because their softmax was not over the summed axis."""
        line = over_axis(WRONG_AXIS, self.softmax.scores.tensor, self.softmax.key_axis)
        return replace(self, unread=self.unread or line)

    @property
    def is_value(self) -> bool:
        """True if the tensor is a value times the weight of one key, and therefore no longer weights."""
        return self.times is not None and self.key not in labels_in(self.axes)

    @property
    def tokens(self) -> set[int]:
        """The query and key labels."""
        return {label for label in (self.query, self.key) if label is not None}


@dataclass(frozen=True)
class Blank:
    """A new tensor with the axes of scores or weights, to which scores or weights may be assigned."""

    like: "Scores | Weights"


Followed = Projected | Scores | Weights | Blank
NO_QUERIES = "the query axis of its weights is unknown"
NO_SOFTMAX = "scores are multiplied by values after {}, without a softmax: not recorded"
UNFOLLOWED = (
    "scores come from code that is not followed (scripted code, an autograd function, an extension, "
    "torch.inner): the softmax weights are shown"
)
WRONG_AXIS = "a product uses a softmax over axis {} of {}, which is not the key axis: not recorded"
PER_FEATURE = (
    "a product uses a softmax over axis {} of {} with separate weights per feature (pooling heads or linear "
    "attention): not recorded"
)
PICKED = "scores or weights selected by {} are multiplied by selected values, so keys are lost: not recorded"
ROUNDING = 1e-2
"""Largest excess of a row sum of weights over 1, in half precision."""
BY_ROWS = (
    "weights are multiplied by a factor per row or head after the softmax; they are shown without the factor"
)
NO_SHARES = (
    "weights are changed after the softmax into rows that are not shares (negative, or summing to more than "
    "1); the softmax weights are shown"
)
JOINED = "several softmaxes are subtracted, or joined into rows that sum to more than 1: not recorded"
CONTRACTED = "weights are multiplied by {}, which is not followed: not recorded"
IN_PLACE = "weights are changed after the softmax, and dropout is in place; the softmax weights are shown"
AFTER_DROPOUT = "weights are changed after dropout; the weights before dropout are shown"


def over_axis(line: str, scores: Tensor, axis: int) -> str:
    """Return a line with the axis of a softmax and the shape of its input."""
    return line.format(axis % scores.ndim, " x ".join(map(str, scores.shape)))


def write_count(tensor: Tensor) -> int | None:
    """Return the number of writes to a tensor, or None if torch does not count writes."""
    return None if tensor.is_inference() else tensor._version


def _features_after(
    features: frozenset[int], labels: Sequence[int], before: TensorAxes, axes: TensorAxes
) -> frozenset[int]:
    """Return the feature axes after a sum over axes; a new axis in their place, such as heads, is added."""
    present = labels_in(axes)
    added = [label for label in present if label not in labels and label not in features]
    gone = [label for label in labels_in(before) if label not in present]
    return features | {*added} if len(added) == 1 and gone and features.issuperset(gone) else features


def merged_projections(parts: Sequence[Projected]) -> Projected:
    """Return the facts about a tensor made from several projections."""
    if all(part is parts[0] for part in parts):
        return parts[0]
    sources, parents = (
        frozenset(source for part in parts for source in getattr(part, name))
        for name in ("sources", "parents")
    )
    first = parts[0]
    return Projected(sources, parents, first.features, first.made)


def axes_after(axes: TensorAxes, tensor: Tensor, call: TorchCall, result: Tensor) -> TensorAxes | None:
    """Return the labels of a tensor's axes after a function, or None if the labels are lost."""
    if call.function in EXPANSIONS:
        return broadcast(axes, result.shape)
    if call.function in SHAPES:
        return regrouped(axes, result.shape)
    if call.function in MOVES:
        with unseen():
            return moved(axes, lambda replacement: call.call_with(tensor, replacement))
    if call.function not in PARTS:
        return broadcast(axes, result.shape) or resized(axes, result.shape)
    places = places_after_cut(call, tensor)
    if places is None:
        return None
    by_place = {place + result.ndim: axes[axis] for axis, place in enumerate(places) if place is not None}
    return resized(tuple(by_place.get(axis, ()) for axis in range(result.ndim)), result.shape)


def read_attention(
    facts: Weights, reached: Tensor, query: int | None, value: Labelled | None
) -> HandmadeAttention | None:
    """Return the attention whose weights are multiplied by values, or None if the axes are ambiguous.

    Raises NotHeard if several softmaxes were joined into rows that are not shares.
    """
    softmax, product = facts.softmax, facts.softmax.product
    read = facts.before if facts.is_dropped else Labelled(reached, facts.axes)
    is_whole, remark = _read_whole(facts, read)
    if softmax.is_unfollowed and remark is None:
        remark = UNFOLLOWED
    weights = softmax.weights() if is_whole or read is None else read
    has_all = is_whole and facts.is_cut  # the whole result of a softmax, only part of which is in the product
    split = split_labels(softmax.scores.axes, weights.axes, *([] if has_all else [facts.axes]))
    if {query, facts.key} & split.keys():
        return None
    scores, weights = (Labelled(part.tensor, refined(part.axes, split)) for part in (softmax.scores, weights))
    features = facts.features.union(
        *([new.label for new in split.get(label, ())] for label in facts.features)
    )
    sizes = sizes_in(weights.axes)
    tokens = [next(LABELS) if label is None else label for label in (query, facts.key)]
    lead = _lead(weights.axes, tokens, has_query=query is not None)
    lead.sort(key=features.__contains__)
    heads = [sizes.get(label, 1) for label in lead if label in features]
    shares = laid_out(weights, (*lead, *tokens), sizes)
    if shares is None:
        return None
    shape = shares.shape[:-2]
    left = right = value_tensor = None
    if is_whole and product is not None and product.is_plain:
        left, right = (
            _with_dims(
                Labelled(side.tensor, refined(side.axes, split)), (*lead, token), product.dims, sizes, shape
            )
            for side, token in zip((product.left, product.right), tokens, strict=True)
        )
    if value is not None and not has_all:
        value = Labelled(value.tensor, refined(value.axes, split))
        dims = [label for label in sizes_in(value.axes) if label not in sizes]
        value_tensor = _with_dims(value, (*lead, tokens[1]), dims, sizes, shape)
    return HandmadeAttention(
        laid_out(scores, (*lead, *tokens), sizes_in(scores.axes)) if softmax.has_scores() else None,
        shares,
        value_tensor,
        None if right is None else left,
        None if left is None else right,
        1.0 if product is None else product.scale,
        None if product is None else product.is_self,
        prod(heads) if heads else None,
        product is not None and product.has_several_queries(),
        facts.is_filled,
        remark,
        softmax.feature_ratio if not heads else None,
    )


def _read_whole(facts: Weights, read: Labelled | None) -> tuple[bool, str | None]:
    """Return True if weights are read from the softmax, and a remark on changes missing from the weights."""
    if facts.is_whole and not (facts.softmax.is_overwritten() and not facts.is_dropped):
        return True, BY_ROWS if facts.is_scaled else None
    if read is not None and are_shares(read, facts.key):
        return False, AFTER_DROPOUT if facts.is_late else None
    if read is None:
        return True, AFTER_DROPOUT if facts.is_late else IN_PLACE
    if facts.is_joined:
        raise NotHeard(JOINED)
    return True, NO_SHARES


def _lead(axes: TensorAxes, tokens: Sequence[int], *, has_query: bool) -> list[int]:
    """Return the labels of the leading axes in order, with new labels for axes of size 1."""
    sizes = sizes_in(axes)
    num_single = (has_query and tokens[0] not in sizes) + (tokens[1] not in sizes)
    lead: list[int] = []
    for parts in reversed(axes):
        if parts:
            lead += [part.label for part in reversed(parts) if part.label not in tokens]
        elif num_single:
            num_single -= 1
        else:
            lead.append(next(LABELS))
    return [*dict.fromkeys(reversed(lead))]


def _with_dims(
    labelled: Labelled,
    labels: Sequence[int],
    dims: Sequence[int],
    sizes: Mapping[int, int],
    lead: Sequence[int],
) -> Tensor | None:
    """Return the tensor with these labels as (*lead, token, dim), or None if it has other labels."""
    whole = laid_out(labelled, (*labels, *dims), {**sizes_in(labelled.axes), **sizes})
    if whole is None:
        return None
    return whole.reshape(*whole.shape[: len(labels)], -1).expand(*lead, -1, -1)


def are_shares(weights: Labelled, key: int | None) -> bool:
    """Return True if rows are still shares after mixing: nonnegative, with sums of at most 1."""
    entries, axes = weights
    summed = [axis for axis, parts in enumerate(axes) if any(part.label == key for part in parts)]
    rows = entries.sum(summed) if summed else entries
    return bool((entries >= 0).all()) and bool((rows <= 1 + ROUNDING).all())
