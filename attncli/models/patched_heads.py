"""Heads of a running model whose query, key, value, weights or output a caller replaces.

Whatever runs the model while `patches_open`, in this thread: the caller, or what is asked of the model here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.names import named_head
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError

HeadPart = Literal["query", "key", "value", "pattern", "output"]
PARTS: tuple[HeadPart, ...] = get_args(HeadPart)
"""What may be replaced, in the order in which it is computed."""


class _OneLayer:
    """The attention of a layer in one run, and what follows from it, computed where it is asked for."""

    def __init__(self, attention: AttentionLayer) -> None:
        self.attention = attention

    @cached_property
    def weights(self) -> Float[Tensor, "text head query key"]:
        """Those of all heads."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights

    @cached_property
    def output(self) -> Float[Tensor, "text head query value_dim"]:
        """That of all heads."""
        output = attend(self.attention, Wanted(output=True)).output
        assert output is not None
        return output


@dataclass(frozen=True)
class PatchedHead:
    """A head in one run of a model, with what was replaced of it so far.

    Queries and keys are rotated where positions rotate them. As a model writes with its cache there is one
    query, and the keys are those of all tokens so far.
    """

    stack: str
    layer: int
    head: int
    _whole: _OneLayer = field(repr=False)

    @property
    def query(self) -> Float[Tensor, "text query dim"]:
        """What looks."""
        return self._whole.attention.query[:, self.head]

    @property
    def key(self) -> Float[Tensor, "text key dim"]:
        """What is looked at."""
        return self._whole.attention.key[:, self.head // self._whole.attention.group]

    @property
    def value(self) -> Float[Tensor, "text key value_dim"]:
        """What is carried."""
        return self._whole.attention.value[:, self.head // self._whole.attention.group]

    @property
    def pattern(self) -> Float[Tensor, "text query key"]:
        """The weights, 0 on keys that a query does not see."""
        return self._whole.weights[:, self.head]

    @property
    def output(self) -> Float[Tensor, "text query value_dim"]:
        """pattern @ value, before W_O."""
        return self._whole.output[:, self.head]


PartChange = Callable[[PatchedHead], Tensor]
"""Takes a head and gives what replaces a part of it, in the same shape."""
Changes = Mapping[HeadPart, PartChange]


@dataclass
class HeadPatches:
    """Changes by head, as `5:11` or `decoder:5:11`, and part, of a model with these modules.

    `met` are the places of the layers that ran, as stack and layer.
    """

    changes: Mapping[str, Changes]
    modules: frozenset[nn.Module]
    met: set[tuple[str, int]] = field(default_factory=set)

    def of_layer(self, stack: str, layer: int, num_heads: int) -> dict[str, tuple[int, Changes]]:
        """The changes of a layer's heads, by their names. UserError for a head that it lacks."""
        self.met.add((stack, layer))
        of_heads: dict[str, tuple[int, Changes]] = {}
        for name, changes in self.changes.items():
            place = named_head(name)
            if (place.stack or "self", place.layer) != (stack, layer):
                continue
            if place.head >= num_heads:
                raise UserError(f"heads: layer {layer} has {num_heads} heads (got {name})")
            of_heads[name] = place.head, changes
        return of_heads


_patches: ContextVar[Sequence[HeadPatches]] = ContextVar("patches", default=())


@contextmanager
def patches_open(*patches: HeadPatches) -> Iterator[None]:
    """While it is open these heads are changed in this thread, besides those that are."""
    with _set((*_patches.get(), *patches)):
        yield


@contextmanager
def without_patches() -> Iterator[None]:
    """While it is open none is changed: how a model's attention comes is tried on the model as it is."""
    with _set(()):
        yield


@contextmanager
def _set(patches: Sequence[HeadPatches]) -> Iterator[None]:
    token = _patches.set(patches)
    try:
        yield
    finally:
        _patches.reset(token)


def is_patched(model: nn.Module) -> bool:
    """Whether heads of the model are changed in this thread."""
    return any(model in patches.modules for patches in _patches.get())


def refuse_replaced(model: nn.Module, part: HeadPart, what: str) -> None:
    """Raise UserError where that part of heads is replaced in this thread; `what` it lacks then."""
    for patches in _patches.get():
        for name, changes in patches.changes.items():
            if model in patches.modules and part in changes:
                raise UserError(f"model: {name} has a replaced {part}, {what}")


class PatchedLayer(NamedTuple):
    """A layer with changed heads: its attention as what measures it sees it; what its output becomes.

    Weights that were replaced need not be those of any query and key: they are given as they are.
    """

    attention: AttentionLayer | GivenWeights
    finished: Callable[[Tensor | None], Tensor]


def patched_layer(
    module: nn.Module, stack: str, layer: int, attention: AttentionLayer
) -> PatchedLayer | None:
    """A layer of a module as it is changed in this thread; None where it is not.

    `finished` takes the output that was computed of it elsewhere, or None.
    """
    of_heads: dict[str, tuple[int, Changes]] = {}
    for patches in _patches.get():
        if module in patches.modules:
            of_heads |= patches.of_layer(stack, layer, attention.num_heads)
    if not of_heads:
        return None
    places = {name: (stack, layer, head, changes) for name, (head, changes) in of_heads.items()}
    asked = {part for _, changes in of_heads.values() for part in changes}
    if asked & {"key", "value"}:
        key, value = attention.expanded()
        attention = replace(attention, key=key, value=value)
    query = _replaced("query", attention.query, places, _OneLayer(attention))
    attention = replace(attention, query=query)
    key = _replaced("key", attention.key, places, _OneLayer(attention))
    attention = replace(attention, key=key)
    value = _replaced("value", attention.value, places, _OneLayer(attention))
    attention = replace(attention, value=value)
    whole = _OneLayer(attention)
    seen: AttentionLayer | GivenWeights = attention
    if "pattern" in asked:
        _, value = attention.expanded()
        weights = _replaced("pattern", whole.weights, places, whole)
        heads = [head for head, changes in of_heads.values() if "pattern" in changes]
        output = whole.output.clone()
        output[:, heads] = (weights[:, heads].to(value.dtype) @ value[:, heads]).to(output.dtype)
        whole.weights, whole.output = weights, output
        seen = GivenWeights(weights, attention.visibility.whole(weights.device))

    def finished(output: Tensor | None) -> Tensor:
        if output is not None:
            whole.output = output
        return _replaced("output", whole.output, places, whole)

    return PatchedLayer(seen, finished)


def _replaced(
    part: HeadPart, tensor: Tensor, places: Mapping[str, tuple[str, int, int, Changes]], whole: _OneLayer
) -> Tensor:
    """A part of all heads (text, head, ...), that of some replaced; UserError for another shape."""
    changed = tensor
    for name, (stack, layer, head, changes) in places.items():
        if part not in changes:
            continue
        given = changes[part](PatchedHead(stack, layer, head, whole))
        wanted = tensor[:, head].shape
        if not isinstance(given, Tensor) or given.shape != wanted:
            got = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise UserError(f"change: {part} of {name} must be a tensor of shape {tuple(wanted)} (got {got})")
        changed = tensor.clone() if changed is tensor else changed
        changed[:, head] = given.to(tensor)
    return changed
