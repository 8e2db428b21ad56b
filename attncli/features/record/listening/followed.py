"""What is known of a tensor of a running program: a projection, scores, or weights; and their axes."""

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
    """What a program attended with: keys lie on the last axis of scores and weights, queries before it.

    `scores` are what the softmax took (None where axes were summed since), `weights` what it gave, before
    dropout, or what reached the product where that is no longer the same (mixed between heads, or without the
    column of a sink) but has rows that are shares still. query, key (..., token, dim) are None where the
    scores are no multiple of their product, to which something may have been added. `num_heads`: how many the
    last of the leading axes make, where it is known which are those of heads. `is_self`: whether query and
    key were made of the same tensor; None where that is not known. `is_guess`: nothing but the order of
    the axes tells which are queries and which are heads. `is_filled`: entries of the weights were set after
    the softmax. `remark` says what was done to the weights that is not in these. `one_head_of` is that of
    the query.
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
    one_head_of: int | None = None


MemoryPlace = tuple[int, int]
"""Memory by its number, and the place in it where a tensor begins."""


@dataclass(frozen=True)
class Projected:
    """A tensor that is a product of others with parameters.

    `sources` are what was multiplied last, `parents` what those were made of in the same way. `features` says
    which axes are not of tokens; None where that is not known. `made` is the shape that the product had, and
    which of its axes were features.
    """

    sources: frozenset[MemoryPlace]
    parents: frozenset[MemoryPlace] = frozenset()
    features: FeatureSpans | None = None
    made: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class GivenFeatures(Projected):
    """A tensor of features that the program gave to its outermost module."""


@dataclass(frozen=True)
class Outer(Projected):
    """The entries of two tensors times each other: their sum over an axis is a product of both."""

    factors: tuple[Tensor, Tensor] | None = None


class ShiftedScores(NamedTuple):
    """Scores before a tensor was subtracted from them, and the axes of that tensor."""

    before: Tensor
    axes: TensorAxes


@dataclass(frozen=True)
class Scores:
    """What became of a product of two tensors, with the labels of its axes.

    `labels` are those that the product had, in order, also of axes of size 1; `features` those of them that
    are features of a projection, `dims` what was summed. `left_tokens` and `right_tokens` may be those of the
    tokens of either tensor, the likeliest first. Without `is_plain` the scores were mixed or cut, so that the
    product no longer says what they are. `one_head_of` is that of the query. `through` is the function that
    last changed each of them by itself. `shifted` has what they were before one number was subtracted from
    all of a row, until they change again. `unread` says why weights that are made of them cannot be read.
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
    one_head_of: int | None = None
    is_plain: bool = True
    through: str | None = None
    shifted: ShiftedScores | None = None
    unread: str | None = None

    def mixed(self, axes: TensorAxes) -> "Scores":
        """What is no longer that of a product."""
        features = _features_after(self.features, self.labels, self.axes, axes)
        return replace(self, axes=axes, features=features, is_plain=False)

    def swapped(self) -> "Scores":
        """The same, seen from the other tensor."""
        return replace(
            self,
            left=self.right,
            right=self.left,
            left_tokens=self.right_tokens,
            right_tokens=self.left_tokens,
        )

    @property
    def tokens(self) -> set[int]:
        """The labels of its tokens, as far as they can be told before the softmax."""
        first = {*self.left_tokens[:1], *self.right_tokens[:1]}
        # Features beside a token are the heads of a single one; beside features they are channels as tokens.
        return first - self.features or first

    def has_several_queries(self) -> bool:
        """Whether several axes may be that of the queries, and no projection tells which are of heads."""
        sizes = sizes_in(self.left.axes)
        return len([label for label in self.left_tokens if label not in self.features and label in sizes]) > 1

    def with_keys_on(self, axis: int) -> "Scores | None":
        """The same, with the tensor whose tokens lie on an axis on the right; None where none do."""
        parts = self.axes[axis]
        label = parts[0].label if parts else None
        is_joined = label is not None and label not in self.labels and label not in self.features
        if label is None or is_joined:  # one key, perhaps with a column beside it, as of a sink
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
    """A softmax over keys: what it took and gave, with the labels of both, and of what product, if any.

    `labels` and `one_head_of` are as those of scores. `is_changed`: its result was overwritten by what is
    followed; `version` and `scores_version` count what wrote to either until then. `is_unfollowed`: nothing
    is known of the scores.
    """

    scores: Labelled
    result: Labelled
    of: Scores | None
    key_axis: int
    labels: tuple[int, ...]
    one_head_of: int | None = None
    is_unfollowed: bool = False
    is_changed: bool = False
    is_heard: bool = False
    version: int | None = None
    scores_version: int | None = None

    def __post_init__(self) -> None:
        if self.version is None:
            self.version = version_of(self.result.tensor)
        if self.scores_version is None:
            self.scores_version = version_of(self.scores.tensor)

    def forget(self) -> None:
        """What was told of is needed no longer: the weights alone live as long as the program keeps them."""
        self.scores, self.of = self.result, None

    def has_scores(self) -> bool:
        """Whether the scores are still what the softmax took."""
        return version_of(self.scores.tensor) == self.scores_version

    def is_overwritten(self) -> bool:
        """Whether something that is not followed wrote to the result, or its scores are gone with it."""
        is_written = version_of(self.result.tensor) != self.version
        return is_written or (self.is_changed and not self.has_scores())

    def weights(self) -> Labelled:
        """What it gave."""
        if self.is_changed:
            scores, axes = self.scores
            return Labelled(scores.softmax(dim=self.key_axis, dtype=self.result.tensor.dtype), axes)
        return self.result


@dataclass(frozen=True)
class Weights:
    """What became of the result of a softmax, with the labels of its axes, its queries and its keys.

    `features` are as those of scores. Without `is_whole` it was mixed, its keys were weighed anew, or some
    were cut off; with `is_cut` others were. `is_scaled`: each row was multiplied by a factor; `is_filled`:
    entries were set. `before` is what it was before some of it was dropped at random; None where that is
    lost; with `is_late` it was changed since. `times` are the entries, what each was multiplied with, and
    what was known of them, where that made more of them. `is_joined`: other softmaxes are in it. `unread`
    says why it cannot be read.
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
        """What is no longer that of a softmax."""
        features = _features_after(self.features, self.softmax.labels, self.axes, axes)
        is_late = self.is_late or self.is_dropped
        return replace(self, axes=axes, features=features, is_whole=False, is_late=is_late)

    def over_another_axis(self) -> "Weights":
        """Weights whose softmax was over an axis that is not summed where they meet values."""
        line = over_axis(WRONG_AXIS, self.softmax.scores.tensor, self.softmax.key_axis)
        return replace(self, unread=self.unread or line)

    @property
    def is_value(self) -> bool:
        """Whether it is a value times the weight of one key: no longer weights."""
        return self.times is not None and self.key not in labels_in(self.axes)

    @property
    def tokens(self) -> set[int]:
        """The labels of its queries and keys."""
        return {label for label in (self.query, self.key) if label is not None}


@dataclass(frozen=True)
class Blank:
    """A new tensor with the axes of scores or weights, into which they may be set."""

    like: "Scores | Weights"


Followed = Projected | Scores | Weights | Blank
NO_QUERIES = "weights by hand of which it is not known which axis is that of queries"
NO_SOFTMAX = "scores that went through {} met values without a softmax, which is not heard"
UNFOLLOWED = (
    "scores come from code that is not followed (scripted code, an autograd function, an extension, "
    "torch.inner): shown are the weights of their softmax"
)
WRONG_AXIS = "a softmax over axis {} of {}, which is not the axis of keys, reached a product: not heard"
OF_FEATURES = (
    "a softmax over axis {} of {}, in which each feature has weights of its own, reached a product (heads "
    "that pool, or linear attention): not heard"
)
PICKED = (
    "scores or weights that {} picked reached values that were picked, too: not heard, their keys are lost"
)
ROUNDING = 1e-2
"""How far above 1 a row of weights may sum in half precision."""
BY_ROWS = "weights are multiplied by a factor for each row or head after the softmax; shown without it"
NO_SHARES = (
    "weights are changed after the softmax into rows that are no shares (negative, or above 1 in all); "
    "those of the softmax are shown"
)
JOINED = "several softmaxes are subtracted, or joined into rows that are above 1 in all: not heard"
CONTRACTED = "weights met other tensors in {}, which is not followed: not heard"
IN_PLACE = "weights were changed after the softmax and then dropped in place; those of the softmax are shown"
AFTER_DROPOUT = "weights are changed after dropout; those before it are shown"


def over_axis(line: str, scores: Tensor, axis: int) -> str:
    """A line that names the axis of a softmax, and the shape of what it took."""
    return line.format(axis % scores.ndim, " x ".join(map(str, scores.shape)))


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def _features_after(
    features: frozenset[int], labels: Sequence[int], before: TensorAxes, axes: TensorAxes
) -> frozenset[int]:
    """The features after axes were summed: a new axis instead of features, as heads are, is one, too."""
    there = labels_in(axes)
    added = [label for label in there if label not in labels and label not in features]
    gone = [label for label in labels_in(before) if label not in there]
    return features | {*added} if len(added) == 1 and gone and features.issuperset(gone) else features


def merged_projections(parts: Sequence[Projected]) -> Projected:
    """What is known of a tensor that was made of several."""
    if all(part is parts[0] for part in parts):
        return parts[0]
    sources, parents = (
        frozenset(source for part in parts for source in getattr(part, name))
        for name in ("sources", "parents")
    )
    first = parts[0]
    return Projected(sources, parents, first.features, first.made)


def axes_after(axes: TensorAxes, tensor: Tensor, call: TorchCall, result: Tensor) -> TensorAxes | None:
    """The labels of a tensor's axes after a function; None where they are lost."""
    if call.function in EXPANSIONS:
        return broadcast(axes, result.shape)
    if call.function in SHAPES:
        return regrouped(axes, result.shape)
    if call.function in MOVES:
        with unseen():
            return moved(axes, lambda other: call.instead_of(tensor, other))
    if call.function not in PARTS:
        return broadcast(axes, result.shape) or resized(axes, result.shape)
    places = places_after_cut(call, tensor)
    if places is None:
        return None
    kept = {place + result.ndim: axes[axis] for axis, place in enumerate(places) if place is not None}
    return resized(tuple(kept.get(axis, ()) for axis in range(result.ndim)), result.shape)


def read_attention(
    known: Weights, reached: Tensor, query: int | None, value: Labelled | None
) -> HandmadeAttention | None:
    """The attention of weights that reached a product; None where it is not clear what its axes are.

    NotHeard for softmaxes that were joined into rows that are no shares.
    """
    softmax, of = known.softmax, known.softmax.of
    read = known.before if known.is_dropped else Labelled(reached, known.axes)
    is_whole, remark = _read_whole(known, read)
    if softmax.is_unfollowed and remark is None:
        remark = UNFOLLOWED
    weights = softmax.weights() if is_whole or read is None else read
    has_all = is_whole and known.is_cut  # all that a softmax gave, of which a part reached the product
    split = split_labels(softmax.scores.axes, weights.axes, *([] if has_all else [known.axes]))
    if {query, known.key} & split.keys():
        return None
    scores, weights = (Labelled(part.tensor, refined(part.axes, split)) for part in (softmax.scores, weights))
    features = known.features.union(
        *([new.label for new in split.get(label, ())] for label in known.features)
    )
    sizes = sizes_in(weights.axes)
    tokens = [next(LABELS) if label is None else label for label in (query, known.key)]
    lead = _lead(weights.axes, tokens, has_query=query is not None)
    lead.sort(key=features.__contains__)
    heads = [sizes.get(label, 1) for label in lead if label in features]
    shares = laid_out(weights, (*lead, *tokens), sizes)
    if shares is None:
        return None
    shape = shares.shape[:-2]
    left = right = kept = None
    if is_whole and of is not None and of.is_plain:
        left, right = (
            _with_dims(
                Labelled(side.tensor, refined(side.axes, split)), (*lead, token), of.dims, sizes, shape
            )
            for side, token in zip((of.left, of.right), tokens, strict=True)
        )
    if value is not None and not has_all:
        value = Labelled(value.tensor, refined(value.axes, split))
        dims = [label for label in sizes_in(value.axes) if label not in sizes]
        kept = _with_dims(value, (*lead, tokens[1]), dims, sizes, shape)
    return HandmadeAttention(
        laid_out(scores, (*lead, *tokens), sizes_in(scores.axes)) if softmax.has_scores() else None,
        shares,
        kept,
        None if right is None else left,
        None if left is None else right,
        1.0 if of is None else of.scale,
        None if of is None else of.is_self,
        prod(heads) if heads else None,
        of is not None and of.has_several_queries(),
        known.is_filled,
        remark,
        softmax.one_head_of if not heads else None,
    )


def _read_whole(known: Weights, read: Labelled | None) -> tuple[bool, str | None]:
    """Whether the softmax is what weights are read from, and what of them is not in that."""
    if known.is_whole and not (known.softmax.is_overwritten() and not known.is_dropped):
        return True, BY_ROWS if known.is_scaled else None
    if read is not None and are_shares(read, known.key):
        return False, AFTER_DROPOUT if known.is_late else None
    if read is None:
        return True, AFTER_DROPOUT if known.is_late else IN_PLACE
    if known.is_joined:
        raise NotHeard(JOINED)
    return True, NO_SHARES


def _lead(axes: TensorAxes, tokens: Sequence[int], *, has_query: bool) -> list[int]:
    """The labels of the other axes, in their order, with new ones for those of size 1."""
    there = sizes_in(axes)
    num_single = (has_query and tokens[0] not in there) + (tokens[1] not in there)
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
    """(*lead, token, dim) of a tensor with these labels; None where it has others."""
    whole = laid_out(labelled, (*labels, *dims), {**sizes_in(labelled.axes), **sizes})
    if whole is None:
        return None
    return whole.reshape(*whole.shape[: len(labels)], -1).expand(*lead, -1, -1)


def are_shares(weights: Labelled, key: int | None) -> bool:
    """Whether rows that were mixed are still parts of a whole: a mixture may be negative, or more than it."""
    entries, axes = weights
    summed = [axis for axis, parts in enumerate(axes) if any(part.label == key for part in parts)]
    rows = entries.sum(summed) if summed else entries
    return bool((entries >= 0).all()) and bool((rows <= 1 + ROUNDING).all())
