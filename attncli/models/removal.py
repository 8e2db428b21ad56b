"""Removal of heads from a model's runs: replacements for head outputs, and removal by name."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted, repeat_heads
from attncli.core.names import RemovalMethod, head_range, named_head
from attncli.errors import UserError
from attncli.models.capture import check_computed_here, run_model
from attncli.models.layers import CapturedLayer
from attncli.models.patched_heads import LayerChange, Patches, RunningLayer, patches_open
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.projected_heads import (
    LINEAR,
    ProjectedHeads,
    hearing_projected_heads,
    projected_heads,
    replaced_heads,
)


class HeadPlace(NamedTuple):
    """A head, given by its attention call in a run and its index in the call, at one token or at all."""

    call: int
    head: int
    token: int | None = None


class ModelHead(NamedTuple):
    """The place of a head in a model, with the same fields as the rows of a survey."""

    layer: int
    module: str
    kind: str
    stack: str
    head: int


Removed = Sequence[HeadPlace]
"""The heads removed from one run."""


Whole = Callable[[AttentionLayer], AttentionLayer]
"""A function that adds to a layer the keys and values of the first tokens if a run skipped them."""


@runtime_checkable
class Change(Protocol):
    """A change of heads in a run on several copies of a text, each copy with different heads changed."""

    def of_call(self, call: int, removed: Sequence[Removed], whole: Whole) -> Sequence[LayerChange]:
        """Return the changes in a call, for the heads chosen in each text."""
        ...


@dataclass(frozen=True)
class Removal:
    """A replacement for removed heads.

    zero: nothing, as if the head's columns of W_O were zero. mean: the head's mean output over all tokens of
    the texts. sink: the value of the first key, as if the head looked only at that key. swap: the head's
    output on another text. `means` holds the mean outputs (head, value_dim) of each call's heads, whose sizes
    may differ; `given` holds the outputs on the other text. Heads of layers without a softmax are replaced at
    the input of W_O.
    """

    method: RemovalMethod
    means: Sequence[Float[Tensor, "_ _"]] = ()
    given: Mapping[int, Float[Tensor, "#text head query value_dim"]] = field(default_factory=dict)

    def of_call(self, call: int, removed: Sequence[Removed], whole: Whole) -> Sequence[LayerChange]:
        """Return the changes of a call, for the heads removed in each text."""
        places = _places_in_texts(call, removed)
        if not places:
            return ()
        if self.method == "zero":
            return (LayerChange("gated", lambda layer: replaced_heads(places, None, layer.part("gated"))),)

        def replaced(layer: RunningLayer) -> Tensor:
            return replaced_heads(places, self._replacement(call, layer.attention), layer.output)

        return (LayerChange("output", replaced),)

    def apply_to_linear(
        self, heads: ProjectedHeads, call: int, removed: Sequence[Removed], hooks: ExitStack
    ) -> None:
        """In all runs until the hooks are closed, replace the heads of a layer without a softmax."""
        places = _places_in_texts(call, removed)
        if places:
            replacement = None if self.method == "zero" else self._replacement(call)
            hooks.enter_context(heads.changed(len(removed), partial(replaced_heads, places, replacement)))

    def _replacement(
        self, call: int, attention: AttentionLayer | None = None
    ) -> Float[Tensor, "#text head #query value_dim"]:
        if self.method == "swap":
            return self.given[call]
        if self.method == "mean":
            return self.means[call][None, :, None]
        assert attention is not None, "heads without a softmax have no first value"
        return repeat_heads(attention.value[:, :, :1], attention.num_heads)


def _places_in_texts(call: int, removed: Sequence[Removed]) -> list[tuple[int, int, int | None]]:
    """Return, for each text, the heads removed from a call, each with its token, or None for all tokens."""
    return [
        (text, place.head, place.token)
        for text, each in enumerate(removed)
        for place in each
        if place.call == call
    ]


def output_of(layer: CapturedLayer) -> Float[Tensor, "text head query value_dim"]:
    """Return the output of a layer, computed from its attention."""
    assert isinstance(layer.attention, AttentionLayer)
    return attended(layer.attention)


def attended(attention: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """Return pattern @ value."""
    output = attend(attention, Wanted(output=True)).output
    assert output is not None
    return output


def mean_outputs(model: PreTrainedModel, texts: Iterable[Mapping[str, Tensor]]) -> list[Float[Tensor, "_ _"]]:
    """Return, for each call, every head's mean output over all tokens of the texts, given as inputs of runs.

    The calls of attention come first, followed by the layers without a softmax (with each head's input to
    W_O).
    """
    sums, linear_sums = list[Tensor](), list[Tensor]()
    counts: list[int] = []
    for inputs in texts:
        check_computed_here(model, inputs)
        calls, linear_calls = count(), count()

        def add_linear(heads: ProjectedHeads, read: Tensor, calls: Iterator[int] = linear_calls) -> None:
            text_sums = heads.by_head(read, len(read)).double().sum(dim=(0, 2))
            if (call := next(calls)) == len(linear_sums):
                linear_sums.append(torch.zeros_like(text_sums))
            linear_sums[call] += text_sums

        def add(layer: CapturedLayer, calls: Iterator[int] = calls) -> Tensor:
            output, call = output_of(layer), next(calls)
            if call == len(sums):
                sums.append(torch.zeros_like(output[0, :, 0], dtype=torch.float64))
                counts.append(0)
            sums[call] += output.double().sum(dim=(0, 2))
            counts[call] += len(output) * output.shape[2]
            return output

        with hearing_projected_heads(model, add_linear):
            run_model(model, inputs, add)
    # Models with such layers have a single stack, with the same tokens in all layers.
    counts += counts[:1] * len(linear_sums)
    return [total / number for total, number in zip([*sums, *linear_sums], counts, strict=True)]


@runtime_checkable
class PlacedHead(Protocol):
    """A head of a layer, in one of a model's stacks."""

    @property
    def stack(self) -> str: ...

    @property
    def layer(self) -> int: ...

    @property
    def head(self) -> int: ...


def head_index(heads: Sequence[PlacedHead], name: str, key: str, pretrained: Pretrained) -> int:
    """Return the index of a named head. Raises UserError, at `key`, for a head that the model does not have.

    linear:5:11 is a head without a softmax; 5:11 has a softmax if layers have both kinds of heads.
    """
    stack, layer, head = named_head(name)
    stacks = list(dict.fromkeys(place.stack for place in heads))
    if not stack and len({*stacks} - {LINEAR}) > 1:
        raise UserError(f"{key}: must name a stack of {pretrained.name}, such as {stacks[0]}:{name}")
    in_stack = stack or stacks[0]
    for index, place in enumerate(heads):
        is_linear = stack == LINEAR and getattr(place, "kind", None) == LINEAR
        if (place.layer, place.head) == (layer, head) and (place.stack == in_stack or is_linear):
            return index
    num_heads = Counter(place.layer for place in heads if place.stack == in_stack)
    if not num_heads:
        raise UserError(f"{key}: {pretrained.name} has no stack {stack} (got {name})")
    raise UserError(f"{key}: {head_range(num_heads, stack)} in {pretrained.name} (got {name})")


@contextmanager
def heads_removed(
    names: Sequence[str], pretrained: Pretrained, *, runs_whole: bool = True, key: str = "ablate"
) -> Iterator[None]:
    """Inside the block, remove the named heads from this thread's runs of the model.

    Heads without a softmax are named as in `head_index`. Raises UserError, naming the setting `key`, for a
    head that the model does not have. If a run may end early (not `runs_whole`), heads of layers that did not
    run are not checked.
    """
    if not names:
        yield
        return
    heads = _HeadsByName(names, pretrained, key)
    patches = Patches(frozenset(pretrained.model.modules()), heads.layer_changes, key=key)
    with ExitStack() as hooks:
        heads.remove_linear(pretrained, hooks)
        hooks.enter_context(patches_open(patches, beneath=True))
        yield
    if runs_whole:
        heads.check_all_met()


class _HeadsByName:
    """The changes of layers with removed heads, with a record of which of the heads exist."""

    def __init__(self, names: Sequence[str], pretrained: Pretrained, key: str) -> None:
        self.key = key
        self.name = pretrained.name
        self.heads = {name: named_head(name) for name in names}
        self.met: set[str] = set()
        self.num_heads: dict[str, dict[int, int]] = {}
        for name, head in self.heads.items():
            if not head.stack and pretrained.has_decoder:
                raise UserError(f"{self.key}: must name a stack of {self.name}, such as decoder:{name}")

    def remove_linear(self, pretrained: Pretrained, hooks: ExitStack) -> None:
        """Remove the heads without a softmax until the hooks are closed."""
        if not pretrained.unshown_layers:
            return
        layers, attending = _linear_layers(pretrained)
        for layer in layers:
            number = layer.captured.layer
            stacks = (LINEAR,) if number in attending else (LINEAR, "")
            removed = {
                name: head.head
                for name, head in self.heads.items()
                if head.layer == number and head.stack in stacks and head.head < layer.num_heads
            }
            for stack in stacks:
                self.num_heads.setdefault(stack or "self", {})[number] = layer.num_heads
            if removed:
                self.met.update(removed)
                places = [(0, head, None) for head in removed.values()]
                hooks.enter_context(layer.changed(1, partial(replaced_heads, places, None)))

    def layer_changes(self, layer: RunningLayer) -> Sequence[LayerChange]:
        """Return the changes that remove a layer's heads.

        Raises UserError for a head that the layer does not have.
        """
        num_heads = layer.attention.num_heads
        self.num_heads.setdefault(layer.stack, {})[layer.layer] = num_heads
        removed = {
            name: head.head
            for name, head in self.heads.items()
            if (head.stack or "self", head.layer) == (layer.stack, layer.layer)
        }
        if not removed:
            return ()
        self.met.update(removed)
        for name, head in removed.items():
            if head >= num_heads:
                must = head_range({layer.layer: num_heads}, self.heads[name].stack)
                raise UserError(f"{self.key}: {must} in {self.name} (got {name})")
        heads = [*removed.values()]
        return (LayerChange("gated", lambda layer: torch.zeros_like(layer.part("gated")[:, heads]), heads),)

    def check_all_met(self) -> None:
        """Raise UserError for a head whose layer the model does not have."""
        for name in (each for each in self.heads if each not in self.met):
            stack = self.heads[name].stack
            if (stack or "self") not in self.num_heads:
                raise UserError(f"{self.key}: {self.name} has no stack {stack} (got {name})")
            must = head_range(self.num_heads[stack or "self"], stack)
            raise UserError(f"{self.key}: {must} in {self.name} (got {name})")


def _linear_layers(pretrained: Pretrained) -> tuple[list[ProjectedHeads], set[int]]:
    """Return the layers without a softmax, from a short run, and the numbers of layers that attend."""
    attending: set[int] = set()

    def note(layer: CapturedLayer) -> Tensor:
        attending.add(layer.layer)
        return output_of(layer)

    model, inputs = pretrained.whole, pretrained.inputs([few_tokens(pretrained)])
    with torch.no_grad():
        check_computed_here(model, inputs)
        return projected_heads(model, lambda: run_model(model, inputs, note)), attending


FEW_TOKENS = 3


def few_tokens(pretrained: Pretrained) -> Reading:
    """Return the first tokens of the vocabulary, since any tokens reveal a model's capabilities."""
    ids = torch.arange(FEW_TOKENS)
    return Reading(ModelText(pretrained.labels(ids.tolist()), ids))
