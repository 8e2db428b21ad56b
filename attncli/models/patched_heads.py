"""Replacement of parts of heads in a running model: query, key, value, weights, output or input of W_O.

Inside `patches_open`, changes apply to every run of the model in this thread, whether by the caller or by
attn. Measurements that leave heads out or swap them (`ablate`) open additional patches beneath those of the
caller.
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
"""The parts that may be replaced, in the order in which they are computed."""


class RunningLayer:
    """The attention of a layer in one run, with the replacements so far.

    Later parts are computed on demand. `gated` is the input of W_O, that is, the output after the model's
    gate or norm; `gated` is None until W_O reads it.
    """

    def __init__(self, module: str, stack: str, layer: int, attention: AttentionLayer) -> None:
        self.module, self.stack, self.layer = module, stack, layer
        self.attention = attention
        self.gated: Float[Tensor, "text head query value_dim"] | None = None

    @cached_property
    def weights(self) -> Float[Tensor, "text head query key"]:
        """The weights of all heads."""
        return attention_weights(self.attention)

    @cached_property
    def output(self) -> Float[Tensor, "text head query value_dim"]:
        """The output of all heads."""
        return attention_output(self.attention)

    def part(self, name: HeadPart) -> Float[Tensor, "text head token _"]:
        """Return one part of all heads, with keys and values repeated for the heads that share them."""
        if name == "pattern":
            return self.weights
        if name == "output":
            return self.output
        if name == "gated":
            if self.gated is None:
                raise UserError("part: gated is available only at W_O: use it only in a change of `gated`")
            return self.gated
        part: Tensor = getattr(self.attention, name)
        return part

    def apply(self, change: "LayerChange") -> None:
        """Replace a part, and discard results computed from the original part."""
        part, heads, new = change.part, change.heads, change.change(self)
        if part == "query":
            self._attend(replace(self.attention, query=self._with_heads(part, heads, new)))
        elif part == "key":
            self._attend(replace(self.attention, key=self._with_heads(part, heads, new)))
        elif part == "value":
            self._attend(replace(self.attention, value=self._with_heads(part, heads, new)))
        elif part == "pattern":
            _, value = self.attention.expanded()
            value = value if heads is None else value[:, heads]
            read = new.to(value) @ value
            self.output = self._with_heads("output", heads, read)
            self.weights = self._with_heads(part, heads, new)
        elif part == "output":
            self.output = self._with_heads(part, heads, new)
        else:
            self.gated = self._with_heads(part, heads, new)

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
    """A change of a layer: `change` returns a part (text, head, ...) of these heads, by default of all heads.

    The part may differ for each text of a batch.
    """

    part: HeadPart
    change: Callable[[RunningLayer], Tensor]
    heads: Sequence[int] | None = None


@dataclass
class Patches:
    """Replacements in the heads of a model that has these modules; `layer_changes` returns a layer's changes.

    For a caller's changes, `replaced` holds the changed parts of each named head, and `key` is the setting
    that contains the names.
    """

    modules: frozenset[nn.Module]
    layer_changes: Callable[[RunningLayer], Sequence[LayerChange]]
    replaced: Mapping[str, Collection[HeadPart]] = field(default_factory=dict)
    key: str = "heads"


Payload = TypeVar("Payload")


@dataclass(eq=False)
class _Opening(Generic[Payload]):
    """An item, its number in the order of opening, and its place in the nesting."""

    item: Payload
    number: int
    place: int
    is_open: bool = True


class OpenItems(Generic[Payload]):
    """Items that callers have opened for current runs.

    They apply in the same context in any thread, and in the same thread in any context, since the cells of
    some notebooks and the parts of a test run in different contexts.
    """

    def __init__(self, name: str) -> None:
        self._in_context: ContextVar[Sequence[_Opening[Payload]]] = ContextVar(name, default=())
        self._in_thread = local()
        self._hidden: ContextVar[int] = ContextVar(f"hidden_{name}", default=0)
        self._numbers = count(1)

    def __iter__(self) -> Iterator[Payload]:
        """Iterate over the items, outermost first."""
        return self._visible({*self._in_context.get(), *getattr(self._in_thread, "openings", ())})

    def in_context(self) -> Iterator[Payload]:
        """Return the items opened in this context, without those of other tasks in this thread."""
        return self._visible({*self._in_context.get()})

    def _visible(self, openings: set[_Opening[Payload]]) -> Iterator[Payload]:
        hidden = self._hidden.get() if openings else 0
        for opening in sorted(openings, key=lambda each: each.place) if openings else ():
            if opening.is_open and opening.number > hidden:
                yield opening.item

    @contextmanager
    def opened(self, *items: Payload, beneath: bool = False) -> Iterator[None]:
        """Inside the block, add the items as the innermost or, with `beneath`, as the outermost items."""
        numbers = [next(self._numbers) for _ in items]
        places = [-number for number in reversed(numbers)] if beneath else numbers
        openings = [_Opening(*each) for each in zip(items, numbers, places, strict=True)]
        in_thread: list[_Opening[Payload]] = vars(self._in_thread).setdefault("openings", [])
        in_thread += openings
        self._in_context.set((*self._in_context.get(), *openings))
        try:
            yield
        finally:
            # Compare by identity: another context or thread may have opened it, or may end in a different
            # order.
            for opening in openings:
                opening.is_open = False
                in_thread.remove(opening)
            self._in_context.set(tuple(each for each in self._in_context.get() if each.is_open))

    @contextmanager
    def none(self) -> Iterator[None]:
        """Hide all items inside the block, except items that are opened there."""
        before = self._hidden.get()
        self._hidden.set(next(self._numbers))
        try:
            yield
        finally:
            self._hidden.set(before)


_patches = OpenItems[Patches]("patches")


@contextmanager
def patches_open(*patches: Patches, beneath: bool = False) -> Iterator[None]:
    """Inside the block, change these heads in this thread, after existing changes or `beneath` them."""
    with _patches.opened(*patches, beneath=beneath):
        yield


@contextmanager
def without_patches() -> Iterator[None]:
    """Inside the block, suspend all changes, to find out how the unchanged model computes its attention."""
    with _patches.none():
        yield


def are_in_force(patches: Patches) -> bool:
    """Return True if these changes apply to current runs of the model."""
    return any(each is patches for each in _patches)


def is_patched(model: nn.Module) -> bool:
    """Return True if heads of the model are changed in this thread."""
    return any(model in patches.modules for patches in _patches)


def refuse_changes(model: nn.Module, why: str) -> None:
    """Raise UserError, at the setting with the head names, if heads are changed in this thread."""
    for patches in _patches:
        if model in patches.modules:
            raise UserError(f"{patches.key}: {why}")


def refuse_replaced(model: nn.Module, parts: Collection[HeadPart], what: str) -> None:
    """Raise UserError if this thread replaces one of these parts of a head; `what` states the consequence."""
    for patches in _patches:
        for name, replaced in patches.replaced.items():
            for part in parts:
                if model in patches.modules and part in replaced:
                    raise UserError(f"model: {name} has a replaced {part}, {what}")


class PatchedLayer(NamedTuple):
    """A layer with changed heads: its attention for measurements, and a function that returns its output.

    Replaced weights are passed on as weights, since they need not come from any query and key.
    """

    attention: AttentionLayer | GivenWeights
    finished: Callable[[Tensor | None], Tensor]


@dataclass(frozen=True)
class NamedModel:
    """A running model, the names of its modules, and the hooks on W_O that have not run yet."""

    model: nn.Module
    names: Mapping[nn.Module, str]
    waiting: set[RemovableHandle] = field(default_factory=set)

    def end(self) -> None:
        """Remove the remaining hooks of a run that ended early."""
        for hook in self.waiting:
            hook.remove()


def patched_layer(module: nn.Module, layer: RunningLayer, running: NamedModel) -> PatchedLayer | None:
    """Return a layer of a module with this thread's changes, or None if there are no changes.

    `finished` takes an output that was computed elsewhere, or None.
    """
    changes: dict[HeadPart, list[LayerChange]] = {}
    for patches in _patches:
        if module in patches.modules:
            for change in patches.layer_changes(layer):
                changes.setdefault(change.part, []).append(change)
    if not changes:
        return None
    if not changes.keys().isdisjoint(("key", "value")):
        # They are separate for each head, even if several heads share them.
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
    """Change the input of W_O in this call or, if W_O is unknown, the output before any norm."""
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
    """Let W_O read the heads after `change` in this thread's runs, until the hook is removed.

    `sizes` contains the number of texts, the number of heads, and the size of a head.
    """
    num_texts, num_heads, value_dim = sizes

    def read_changed(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        heads = inputs[0].reshape(num_texts, -1, num_heads, value_dim).transpose(1, 2)
        return change(heads).transpose(1, 2).reshape(inputs[0].shape), *inputs[1:]

    return projection.register_forward_pre_hook(of_this_run(read_changed))


@dataclass(frozen=True)
class PatchedHead:
    """A head in one run of a model, with the replacements so far.

    Queries and keys include the rotation by their positions, if any. While a model generates with its cache,
    there is one query, with the keys of all tokens so far. All tensors are copies: writing into a copy
    changes nothing unless the copy is returned.
    """

    stack: str
    layer: int
    head: int
    _whole: RunningLayer = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the head: 5:11, or decoder:5:11."""
        place = f"{self.layer}:{self.head}"
        return place if self.stack == "self" else f"{self.stack}:{place}"

    @cached_property
    def query(self) -> Float[Tensor, "text query dim"]:
        """The queries of the head."""
        return self._whole.attention.query[:, self.head].clone()

    @cached_property
    def key(self) -> Float[Tensor, "text key dim"]:
        """The keys of the head."""
        return self._whole.attention.key[:, self.head // self._whole.attention.group].clone()

    @cached_property
    def value(self) -> Float[Tensor, "text key value_dim"]:
        """The values of the head."""
        return self._whole.attention.value[:, self.head // self._whole.attention.group].clone()

    @cached_property
    def pattern(self) -> Float[Tensor, "text query key"]:
        """The weights, which are 0 on keys that a query does not see."""
        return self._whole.weights[:, self.head].clone()

    @cached_property
    def output(self) -> Float[Tensor, "text query value_dim"]:
        """The weights times the values: pattern @ value, before W_O."""
        return self._whole.output[:, self.head].clone()

    @cached_property
    def gated(self) -> Float[Tensor, "text query value_dim"]:
        """The input of W_O: the output after the model's gates and norms, if any.

        Raises UserError except in a change of this part, since `gated` is computed last.
        """
        return self._whole.part("gated")[:, self.head].clone()


PartChange = Callable[[PatchedHead], Tensor]
"""A function that takes a head and returns a replacement, in the same shape, for one of its parts."""
Changes = Mapping[HeadPart, PartChange]


@dataclass
class NamedChanges:
    """Changes by head (`5:11` or `decoder:5:11`) and by part.

    `met` holds the stack and number of each layer that ran.
    """

    changes: Mapping[str, Changes]
    met: set[tuple[str, int]] = field(default_factory=set)

    def layer_changes(self, layer: RunningLayer) -> list[LayerChange]:
        """Return the changes of a layer's heads. Raises UserError for a head that the layer does not have."""
        self.met.add((layer.stack, layer.layer))
        num_heads = layer.attention.num_heads
        part_changes: dict[HeadPart, dict[int, PartChange]] = {}
        for name, changes in self.changes.items():
            place = named_head(name)
            if (place.stack or "self", place.layer) != (layer.stack, layer.layer):
                continue
            if place.head >= num_heads:
                raise UserError(f"heads: layer {layer.layer} has {num_heads} heads (got {name})")
            for part, change in changes.items():
                part_changes.setdefault(part, {})[place.head] = change
        return [
            LayerChange(part, partial(_replaced_part, part, head_changes), [*head_changes])
            for part, head_changes in part_changes.items()
        ]

    def patches(self, *models: nn.Module) -> Patches:
        """Return the patches of a model that any of these modules may run."""
        modules = frozenset(module for model in models for module in model.modules())
        return Patches(
            modules, self.layer_changes, {name: [*changes] for name, changes in self.changes.items()}
        )


def _replaced_part(part: HeadPart, changes: Mapping[int, PartChange], layer: RunningLayer) -> Tensor:
    """Return the changed part of several heads, stacked. Raises UserError for a wrong shape."""
    attention, replacements = layer.attention, list[Tensor]()
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
        replacement = change(patched)
        if not isinstance(replacement, Tensor) or replacement.shape != wanted:
            got = tuple(replacement.shape) if isinstance(replacement, Tensor) else type(replacement).__name__
            raise UserError(
                f"change: {part} of {patched.name} must be a tensor of shape {wanted} (got {got})"
            )
        if replacement.layout != torch.strided or replacement.is_meta or replacement.is_complex():
            kind = (
                replacement.dtype
                if replacement.is_complex()
                else "meta"
                if replacement.is_meta
                else replacement.layout
            )
            raise UserError(
                f"change: {part} of {patched.name} must be a dense tensor of real numbers (got {kind})"
            )
        replacements.append(replacement)
    return torch.stack([replacement.to(replacements[0]) for replacement in replacements], dim=1)
