"""Facts about the tensors of a running program, and the origins of these tensors."""

from collections.abc import Sequence
from math import prod
from weakref import ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from attncli.features.record.listening.axis_labels import axis_parts
from attncli.features.record.listening.followed import Followed, GivenFeatures, MemoryPlace, Projected
from attncli.features.record.listening.torch_calls import TorchCall, folded_spans, stride_spans

PARAMETER_VIEW = Projected(frozenset())
"""Marks views of parameters."""
MOST_SOURCES = 4096


class Origins:
    """Facts about tensors; the facts about a tensor are dropped when the tensor is freed."""

    def __init__(self) -> None:
        self._followed: dict[int, tuple[ref[Tensor], Followed]] = {}
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._num_sources = 0

    def clear(self) -> None:
        """Drop all facts; afterwards no tensor is referenced."""
        self._followed.clear()
        self._memory.clear()

    def find(self, value: object) -> Followed | None:
        """Return the facts about a tensor, or None if there are none."""
        entry = self._followed.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def note(self, result: object, facts: Followed | None) -> None:
        """Set the facts about one or several tensors; with None, the tensors are no longer followed."""
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self._note(tensor, facts)

    def _note(self, tensor: Tensor, facts: Followed | None) -> None:
        number, followed = id(tensor), self._followed
        if facts is None:
            followed.pop(number, None)
            return

        def forget(gone: ref[Tensor]) -> None:
            if (entry := followed.get(number)) is not None and entry[0] is gone:
                del followed[number]

        followed[number] = ref(tensor, forget), facts

    def source(self, tensor: Tensor) -> frozenset[MemoryPlace]:
        """Return a key of a tensor's memory, equal for equal views; empty for a tensor without memory."""
        if not torch._C._has_storage(tensor):
            return frozenset()
        storage = tensor.untyped_storage()
        entry = self._memory.get(storage._cdata)
        if entry is None:
            if len(self._memory) >= MOST_SOURCES:
                self._memory = {
                    address: entry
                    for address, entry in self._memory.items()
                    if not entry[0].expired()  # type: ignore[no-untyped-call]
                }
            self._num_sources += 1
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            entry = self._memory[storage._cdata] = weak, self._num_sources
        return frozenset({(entry[1], int(tensor.storage_offset()))})

    def is_self(self, left: Tensor, right: Tensor, *, same_length: bool) -> bool | None:
        """Return True if both tensors were made from one tensor, False if not, or None if that is unknown.

        `same_length`: both tensors have equally many tokens.
        """
        first, second = self.find(left), self.find(right)
        if not (isinstance(first, Projected) and isinstance(second, Projected)):
            return True if self.source(left) & self.source(right) else None
        if not first.sources or not second.sources:
            return None
        if first.sources & (second.sources | second.parents) or second.sources & first.parents:
            return True
        if first.parents & second.parents:
            return True if same_length else None
        if same_length and isinstance(first, GivenFeatures) and isinstance(second, GivenFeatures):
            return None
        # Different parts of one tensor may be two texts, or a token and the text it belongs to.
        memory = {number for number, _ in first.sources} & {number for number, _ in second.sources}
        return None if memory else False

    def num_heads(self, query: Tensor) -> int | None:
        """Return the number of heads of a query (..., token, dim) from its projection, or None if unknown."""
        lead = self.axis_sizes(query)[:-2]
        sizes = [size for parts in lead for size, is_feature in parts if is_feature]
        return prod(sizes) if sizes else None

    def feature_ratio(self, tensor: Tensor) -> int | None:
        """Return the width of a tensor's projection (text, token, dim) divided by the tensor's width.

        Returns None unless the first axis has texts but no heads.
        """
        facts = self.find(tensor)
        if tensor.ndim != 3 or not isinstance(facts, Projected) or facts.made is None or not tensor.numel():
            return None
        shape, axes = facts.made
        features = [axis % len(shape) for axis in axes]
        rows = sorted(size for axis, size in enumerate(shape) if axis not in features)
        if facts.features is None or rows != sorted(tensor.shape[:-1]):
            return None
        has_heads = any(is_feature for parts in self.axis_sizes(tensor)[:-1] for _, is_feature in parts)
        return None if has_heads else prod(shape[axis] for axis in features) // tensor.shape[-1]

    def has_heads_first(self, query: Tensor) -> bool:
        """Return True if the first axis of a query (head x text, token, dim) has heads before texts."""
        parts = self.axis_sizes(query)[0]
        return query.ndim == 3 and len(parts) == 2 and parts[0][1] and not parts[1][1]

    def axis_sizes(self, tensor: Tensor) -> list[list[tuple[int, bool]]]:
        """Return the sizes that make up each axis, outermost first, each paired with True for features."""
        facts = self.find(tensor)
        spans = facts.features if isinstance(facts, Projected) else None
        if spans is None or not torch._C._has_storage(tensor):
            return [[(size, False)] for size in tensor.shape]
        return axis_parts(tensor.shape, tensor.stride(), spans)

    def is_parameter(self, tensor: Tensor) -> bool:
        """Return True for a parameter or a view of one."""
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return True
        facts = self.find(tensor)
        return isinstance(facts, Projected) and facts is PARAMETER_VIEW

    def project(self, tensor: Tensor, result: object, axes: Sequence[int]) -> None:
        """Note that a tensor is a product of another tensor and parameters, with the feature axes `axes`."""
        if not isinstance(result, Tensor) or not torch._C._has_storage(result):
            return
        facts = self.find(tensor)
        parents = facts.sources if isinstance(facts, Projected) else frozenset()
        made, spans = (result.shape, tuple(axes)), stride_spans(result, axes)
        if isinstance(facts, Projected) and facts.features and tensor.ndim == result.ndim:
            spans += folded_spans(facts.features, tensor, result.shape, result.stride())
        self.note(result, Projected(self.source(tensor), parents, spans, made))

    def look_up(self, call: TorchCall) -> None:
        """Follow an embedding: its rows are token features."""
        if isinstance(ids := call.get(0, "input"), Tensor):
            self.project(ids, call.result, (-1,))

    def recur(self, call: TorchCall) -> None:
        """Follow a recurrent layer: its hidden states are features of its steps."""
        states = call.result if isinstance(call.result, tuple) else (call.result,)
        if isinstance(tensor := call.get(0, "input"), Tensor):
            for state in states:
                self.project(tensor, state, (-1,))

    def begin(self, inputs: object) -> None:
        """Note that the inputs of an outermost module are rows of features, without a head axis."""
        for tensor in inputs if isinstance(inputs, tuple) else ():
            if not isinstance(tensor, Tensor) or tensor.is_nested or not torch._C._has_storage(tensor):
                continue
            if tensor.ndim == 3 and tensor.is_floating_point() and self.find(tensor) is None:
                made = tensor.shape, (-1,)
                self.note(
                    tensor,
                    GivenFeatures(self.source(tensor), features=stride_spans(tensor, (-1,)), made=made),
                )
