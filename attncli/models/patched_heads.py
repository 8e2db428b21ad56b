"""The one way in which heads of a running model are replaced: query, key, value, weights, output, what W_O
reads.

Whatever runs the model while `patches_open`, in this thread: the caller, or what is asked of the model here.
What is measured without heads (`ablate`, swaps) opens patches of its own, beneath those of the caller.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from threading import local
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attncli.core.engines import attention_output, attention_weights
from attncli.core.layer import AttentionLayer
from attncli.core.names import named_head
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError
from attncli.models.architectures import output_projection
from attncli.models.side_by_side import of_this_run

HeadPart = Literal["query", "key", "value", "pattern", "output", "gated"]
PARTS: tuple[HeadPart, ...] = get_args(HeadPart)
"""What may be replaced, in the order in which it is computed."""


class RunningLayer:
    """The attention of a layer in one run, with what was replaced of it so far.

    What follows from it is computed where it is asked for. `gated` is what W_O reads: the output after what
    the model does to it, a gate or a norm; None until W_O reads.
    """

    def __init__(self, module: str, stack: str, layer: int, attention: AttentionLayer) -> None:
        self.module, self.stack, self.layer = module, stack, layer
        self.attention = attention
        self.gated: Float[Tensor, "text head query value_dim"] | None = None

    @cached_property
    def weights(self) -> Float[Tensor, "text head query key"]:
        """Those of all heads."""
        return attention_weights(self.attention)

    @cached_property
    def output(self) -> Float[Tensor, "text head query value_dim"]:
        """That of all heads."""
        return attention_output(self.attention)

    def part(self, name: HeadPart) -> Float[Tensor, "text head token _"]:
        """A part of all heads; keys and values of the heads that share them."""
        if name == "pattern":
            return self.weights
        if name == "output":
            return self.output
        if name == "gated":
            if self.gated is None:
                raise UserError("part: gated is known where W_O reads it: to a change of `gated` alone")
            return self.gated
        part: Tensor = getattr(self.attention, name)
        return part

    def apply(self, change: "LayerChange") -> None:
        """Replace a part, and forget what followed from what was there."""
        part, heads, given = change.part, change.heads, change.change(self)
        if part == "query":
            self._attend(replace(self.attention, query=self._with_heads(part, heads, given)))
        elif part == "key":
            self._attend(replace(self.attention, key=self._with_heads(part, heads, given)))
        elif part == "value":
            self._attend(replace(self.attention, value=self._with_heads(part, heads, given)))
        elif part == "pattern":
            _, value = self.attention.expanded()
            value = value if heads is None else value[:, heads]
            read = given.to(value) @ value
            self.output = self._with_heads("output", heads, read)
            self.weights = self._with_heads(part, heads, given)
        elif part == "output":
            self.output = self._with_heads(part, heads, given)
        else:
            self.gated = self._with_heads(part, heads, given)

    def _attend(self, attention: AttentionLayer) -> None:
        self.attention = attention
        vars(self).pop("weights", None)
        vars(self).pop("output", None)

    def _with_heads(self, part: HeadPart, heads: Sequence[int] | None, given: Tensor) -> Tensor:
        if heads is None:
            return given
        changed = self.part(part).clone()
        changed[:, heads] = given.to(changed)
        return changed


class LayerChange(NamedTuple):
    """`change` gives a part of these heads, or of all, of a layer as it runs: (text, head, ...).

    Each text of a batch may be given something else.
    """

    part: HeadPart
    change: Callable[[RunningLayer], Tensor]
    heads: Sequence[int] | None = None


@dataclass
class Patches:
    """What is replaced of the heads of a model with these modules: `of_layer` gives the changes of a layer.

    `replaced` says which parts of which heads, by their names, where they are those of a caller; `key` is the
    setting that named them.
    """

    modules: frozenset[nn.Module]
    of_layer: Callable[[RunningLayer], Sequence[LayerChange]]
    replaced: Mapping[str, Collection[HeadPart]] = field(default_factory=dict)
    key: str = "heads"


Payload = TypeVar("Payload")


@dataclass(eq=False)
class _Opening(Generic[Payload]):
    """An item, when it was opened and its place among the others."""

    item: Payload
    number: int
    place: int
    is_open: bool = True


class OpenItems(Generic[Payload]):
    """What callers have opened for what runs: in this context, whatever thread it is copied to, or in this
    thread, whatever context it runs now, as do cells of some notebooks and parts of a test.
    """

    def __init__(self, name: str) -> None:
        self._in_context: ContextVar[Sequence[_Opening[Payload]]] = ContextVar(name, default=())
        self._in_thread = local()
        self._hidden: ContextVar[int] = ContextVar(f"hidden_{name}", default=0)
        self._numbers = count(1)

    def __iter__(self) -> Iterator[Payload]:
        """The outermost first."""
        return self._visible({*self._in_context.get(), *getattr(self._in_thread, "openings", ())})

    def in_context(self) -> Iterator[Payload]:
        """Those that were opened in this context: none of another task of this thread."""
        return self._visible({*self._in_context.get()})

    def _visible(self, openings: set[_Opening[Payload]]) -> Iterator[Payload]:
        hidden = self._hidden.get() if openings else 0
        for opening in sorted(openings, key=lambda each: each.place) if openings else ():
            if opening.is_open and opening.number > hidden:
                yield opening.item

    @contextmanager
    def opened(self, *items: Payload, beneath: bool = False) -> Iterator[None]:
        """While it is open the items are among them, as the innermost or, `beneath`, as the outermost."""
        numbers = [next(self._numbers) for _ in items]
        places = [-number for number in reversed(numbers)] if beneath else numbers
        openings = [_Opening(*each) for each in zip(items, numbers, places, strict=True)]
        in_thread: list[_Opening[Payload]] = vars(self._in_thread).setdefault("openings", [])
        in_thread += openings
        self._in_context.set((*self._in_context.get(), *openings))
        try:
            yield
        finally:
            # By identity, since what opened it may be another context or thread, or end in another order.
            for opening in openings:
                opening.is_open = False
                in_thread.remove(opening)
            self._in_context.set(tuple(each for each in self._in_context.get() if each.is_open))

    @contextmanager
    def none(self) -> Iterator[None]:
        """While it is open there are only those that are opened inside."""
        before = self._hidden.get()
        self._hidden.set(next(self._numbers))
        try:
            yield
        finally:
            self._hidden.set(before)


_patches = OpenItems[Patches]("patches")


@contextmanager
def patches_open(*patches: Patches, beneath: bool = False) -> Iterator[None]:
    """While it is open these heads are changed in this thread, after those that are, or `beneath`: before."""
    with _patches.opened(*patches, beneath=beneath):
        yield


@contextmanager
def without_patches() -> Iterator[None]:
    """While it is open none is changed: how a model's attention comes is tried on the model as it is."""
    with _patches.none():
        yield


def are_in_force(patches: Patches) -> bool:
    """Whether these heads are changed in what runs now."""
    return any(each is patches for each in _patches)


def is_patched(model: nn.Module) -> bool:
    """Whether heads of the model are changed in this thread."""
    return any(model in patches.modules for patches in _patches)


def refuse_changes(model: nn.Module, why: str) -> None:
    """Raise UserError, at the setting that named the heads, where heads are changed in this thread."""
    for patches in _patches:
        if model in patches.modules:
            raise UserError(f"{patches.key}: {why}")


def refuse_replaced(model: nn.Module, parts: Collection[HeadPart], what: str) -> None:
    """Raise UserError where such a part of heads is replaced in this thread; `what` it lacks then."""
    for patches in _patches:
        for name, replaced in patches.replaced.items():
            for part in parts:
                if model in patches.modules and part in replaced:
                    raise UserError(f"model: {name} has a replaced {part}, {what}")


class PatchedLayer(NamedTuple):
    """A layer with changed heads: its attention as what measures it sees it; what its output becomes.

    Weights that were replaced need not be those of any query and key: they are given as they are.
    """

    attention: AttentionLayer | GivenWeights
    finished: Callable[[Tensor | None], Tensor]


@dataclass(frozen=True)
class NamedModel:
    """A model that runs, the names of its modules, and hooks that wait for a W_O to read."""

    model: nn.Module
    names: Mapping[nn.Module, str]
    waiting: set[RemovableHandle] = field(default_factory=set)

    def end(self) -> None:
        """Remove the hooks of a run that ended early."""
        for hook in self.waiting:
            hook.remove()


def patched_layer(module: nn.Module, layer: RunningLayer, running: NamedModel) -> PatchedLayer | None:
    """A layer of a module as it is changed in this thread; None where it is not.

    `finished` takes the output that was computed of it elsewhere, or None.
    """
    changes: dict[HeadPart, list[LayerChange]] = {}
    for patches in _patches:
        if module in patches.modules:
            for change in patches.of_layer(layer):
                changes.setdefault(change.part, []).append(change)
    if not changes:
        return None
    if not changes.keys().isdisjoint(("key", "value")):
        # A head's own, also where several share them.
        key, value = layer.attention.expanded()
        layer.attention = replace(layer.attention, key=key, value=value)
    for part in ("query", "key", "value", "pattern"):
        for change in changes.get(part, ()):
            layer.apply(change)
    seen: AttentionLayer | GivenWeights = layer.attention
    if "pattern" in changes:
        seen = GivenWeights(layer.weights, layer.attention.visibility.whole(layer.weights.device))

    def finished(output: Tensor | None) -> Tensor:
        if output is not None:
            layer.output = output
        for change in changes.get("output", ()):
            layer.apply(change)
        if "gated" in changes:
            _change_gated(layer, changes["gated"], running)
        return layer.output

    return PatchedLayer(seen, finished)


def _change_gated(layer: RunningLayer, changes: Sequence[LayerChange], running: NamedModel) -> None:
    """Change what W_O reads of this call; where no W_O is found, the output, which is the same but for a norm
    between.
    """
    num_texts, num_heads = layer.attention.shape[:2]
    value_dim = layer.attention.value.shape[-1]

    def changed(heads: Tensor) -> Tensor:
        layer.gated = heads
        for change in changes:
            layer.apply(change)
        return layer.gated

    projection = output_projection(running.model, layer.module, num_heads * value_dim)
    if projection is None:
        layer.output = changed(layer.output)
        return

    def once(heads: Tensor) -> Tensor:
        hook.remove()  # the module may serve other layers, too
        running.waiting.discard(hook)
        return changed(heads)

    hook = reading_changed(projection, (num_texts, num_heads, value_dim), once)
    running.waiting.add(hook)


def reading_changed(
    projection: nn.Module,
    sizes: tuple[int, int, int],
    change: Callable[
        [Float[Tensor, "text head token value_dim"]], Float[Tensor, "text head token value_dim"]
    ],
) -> RemovableHandle:
    """Until it is removed, W_O reads what `change` makes of heads, in what this thread runs.

    `sizes`: how many texts and heads there are, and the size of a head.
    """
    num_texts, num_heads, value_dim = sizes

    def read_changed(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        heads = inputs[0].reshape(num_texts, -1, num_heads, value_dim).transpose(1, 2)
        return change(heads).transpose(1, 2).reshape(inputs[0].shape), *inputs[1:]

    return projection.register_forward_pre_hook(of_this_run(read_changed))


@dataclass(frozen=True)
class PatchedHead:
    """A head in one run of a model, with what was replaced of it so far.

    Queries and keys are rotated where positions rotate them. As a model writes with its cache there is one
    query, and the keys are those of all tokens so far. All are copies: what is written into them, and not
    given back, changes nothing.
    """

    stack: str
    layer: int
    head: int
    _whole: RunningLayer = field(repr=False)

    @property
    def name(self) -> str:
        """As it was named: 5:11, or decoder:5:11."""
        place = f"{self.layer}:{self.head}"
        return place if self.stack == "self" else f"{self.stack}:{place}"

    @cached_property
    def query(self) -> Float[Tensor, "text query dim"]:
        """What looks."""
        return self._whole.attention.query[:, self.head].clone()

    @cached_property
    def key(self) -> Float[Tensor, "text key dim"]:
        """What is looked at."""
        return self._whole.attention.key[:, self.head // self._whole.attention.group].clone()

    @cached_property
    def value(self) -> Float[Tensor, "text key value_dim"]:
        """What is carried."""
        return self._whole.attention.value[:, self.head // self._whole.attention.group].clone()

    @cached_property
    def pattern(self) -> Float[Tensor, "text query key"]:
        """The weights, 0 on keys that a query does not see."""
        return self._whole.weights[:, self.head].clone()

    @cached_property
    def output(self) -> Float[Tensor, "text query value_dim"]:
        """pattern @ value, before W_O."""
        return self._whole.output[:, self.head].clone()

    @cached_property
    def gated(self) -> Float[Tensor, "text query value_dim"]:
        """What W_O reads: the output, after gates and norms where a model has them.

        UserError but in a change of this part: it comes last.
        """
        return self._whole.part("gated")[:, self.head].clone()


PartChange = Callable[[PatchedHead], Tensor]
"""Takes a head and gives what replaces a part of it, in the same shape."""
Changes = Mapping[HeadPart, PartChange]


@dataclass
class NamedChanges:
    """Changes by head, as `5:11` or `decoder:5:11`, and part.

    `met` are the places of the layers that ran, as stack and layer.
    """

    changes: Mapping[str, Changes]
    met: set[tuple[str, int]] = field(default_factory=set)

    def of_layer(self, layer: RunningLayer) -> list[LayerChange]:
        """The changes of a layer's heads. UserError for a head that it lacks."""
        self.met.add((layer.stack, layer.layer))
        num_heads = layer.attention.num_heads
        of_parts: dict[HeadPart, dict[int, PartChange]] = {}
        for name, changes in self.changes.items():
            place = named_head(name)
            if (place.stack or "self", place.layer) != (layer.stack, layer.layer):
                continue
            if place.head >= num_heads:
                raise UserError(f"heads: layer {layer.layer} has {num_heads} heads (got {name})")
            for part, change in changes.items():
                of_parts.setdefault(part, {})[place.head] = change
        return [
            LayerChange(part, partial(_given_by_heads, part, of_heads), [*of_heads])
            for part, of_heads in of_parts.items()
        ]

    def patches(self, *models: nn.Module) -> Patches:
        """Those of a model, whatever of these runs it."""
        modules = frozenset(module for model in models for module in model.modules())
        return Patches(modules, self.of_layer, {name: [*changes] for name, changes in self.changes.items()})


def _given_by_heads(part: HeadPart, changes: Mapping[int, PartChange], layer: RunningLayer) -> Tensor:
    """A part of some heads as their changes give it, side by side; UserError for another shape."""
    attention, of_heads = layer.attention, list[Tensor]()
    num_texts, _, num_queries, num_keys = attention.shape
    shapes: dict[HeadPart, tuple[int, ...]] = {
        "query": attention.query.shape[2:],
        "key": attention.key.shape[2:],
        "value": attention.value.shape[2:],
        "pattern": (num_queries, num_keys),
    }
    wanted = num_texts, *shapes.get(part, (num_queries, attention.value.shape[-1]))
    for head, change in changes.items():
        patched = PatchedHead(layer.stack, layer.layer, head, layer)
        given = change(patched)
        if not isinstance(given, Tensor) or given.shape != wanted:
            got = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise UserError(
                f"change: {part} of {patched.name} must be a tensor of shape {wanted} (got {got})"
            )
        if given.layout != torch.strided or given.is_meta or given.is_complex():
            kind = given.dtype if given.is_complex() else "meta" if given.is_meta else given.layout
            raise UserError(
                f"change: {part} of {patched.name} must be a dense tensor of real numbers (got {kind})"
            )
        of_heads.append(given)
    return torch.stack([given.to(of_heads[0]) for given in of_heads], dim=1)
