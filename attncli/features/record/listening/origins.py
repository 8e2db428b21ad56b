"""What is known of the tensors of a running program, and what they were made of."""

from collections.abc import Sequence
from math import prod
from weakref import ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from attncli.features.record.listening.axis_labels import parts_of_axes
from attncli.features.record.listening.followed import Followed, GivenFeatures, MemoryPlace, Projected
from attncli.features.record.listening.torch_calls import TorchCall, folded_spans, spans_of

OF_PARAMETERS = Projected(frozenset())
"""A view of parameters."""
MOST_SOURCES = 4096


class Origins:
    """What is known of each tensor, which is forgotten with it."""

    def __init__(self) -> None:
        self._followed: dict[int, tuple[ref[Tensor], Followed]] = {}
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._num_sources = 0

    def clear(self) -> None:
        """Forget everything: no tensor is kept."""
        self._followed.clear()
        self._memory.clear()

    def of(self, value: object) -> Followed | None:
        """What is known of a tensor."""
        known = self._followed.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def note(self, result: object, known: Followed | None) -> None:
        """Follow a tensor, or each of several; with nothing known, no longer."""
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self._note(tensor, known)

    def _note(self, tensor: Tensor, known: Followed | None) -> None:
        number, followed = id(tensor), self._followed
        if known is None:
            followed.pop(number, None)
            return

        def forget(gone: ref[Tensor]) -> None:
            if (kept := followed.get(number)) is not None and kept[0] is gone:
                del followed[number]

        followed[number] = ref(tensor, forget), known

    # Where tensors come from

    def source(self, tensor: Tensor) -> frozenset[MemoryPlace]:
        """What says that two tensors are the same, or views of it; empty for one without memory."""
        if not torch._C._has_storage(tensor):
            return frozenset()
        storage = tensor.untyped_storage()
        kept = self._memory.get(storage._cdata)
        if kept is None:
            if len(self._memory) >= MOST_SOURCES:
                self._memory = {
                    address: kept
                    for address, kept in self._memory.items()
                    if not kept[0].expired()  # type: ignore[no-untyped-call]
                }
            self._num_sources += 1
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            kept = self._memory[storage._cdata] = weak, self._num_sources
        return frozenset({(kept[1], int(tensor.storage_offset()))})

    def is_self(self, left: Tensor, right: Tensor, *, are_as_many: bool) -> bool | None:
        """True if both were made of the same tensor, False if not; None if unknown. `are_as_many`: both have
        as many tokens.
        """
        first, second = self.of(left), self.of(right)
        if not (isinstance(first, Projected) and isinstance(second, Projected)):
            return True if self.source(left) & self.source(right) else None
        if not first.sources or not second.sources:
            return None
        if first.sources & (second.sources | second.parents) or second.sources & first.parents:
            return True
        if first.parents & second.parents:
            return True if are_as_many else None
        if are_as_many and isinstance(first, GivenFeatures) and isinstance(second, GivenFeatures):
            return None
        # Other parts of one tensor may be two texts, or a token and its text.
        memory = {number for number, _ in first.sources} & {number for number, _ in second.sources}
        return None if memory else False

    def num_heads(self, query: Tensor) -> int | None:
        """How many heads a query (..., token, dim) has by the projection that made it; None if unknown."""
        lead = self.sizes_of_axes(query)[:-2]
        sizes = [size for parts in lead for size, is_feature in parts if is_feature]
        return prod(sizes) if sizes else None

    def one_head_of(self, tensor: Tensor) -> int | None:
        """How many times the features of a tensor (text, token, dim) its projection has; None for any other.

        There is an axis of texts alone, and no head on it.
        """
        known = self.of(tensor)
        if tensor.ndim != 3 or not isinstance(known, Projected) or known.made is None or not tensor.numel():
            return None
        shape, axes = known.made
        features = [axis % len(shape) for axis in axes]
        rows = sorted(size for axis, size in enumerate(shape) if axis not in features)
        if known.features is None or rows != sorted(tensor.shape[:-1]):
            return None
        has_heads = any(is_feature for parts in self.sizes_of_axes(tensor)[:-1] for _, is_feature in parts)
        return None if has_heads else prod(shape[axis] for axis in features) // tensor.shape[-1]

    def has_heads_first(self, query: Tensor) -> bool:
        """Whether the first axis of a query (head x text, token, dim) has its heads before its texts."""
        parts = self.sizes_of_axes(query)[0]
        return query.ndim == 3 and len(parts) == 2 and parts[0][1] and not parts[1][1]

    def sizes_of_axes(self, tensor: Tensor) -> list[list[tuple[int, bool]]]:
        """What each axis is made of, outermost first: sizes, and whether these are features."""
        known = self.of(tensor)
        spans = known.features if isinstance(known, Projected) else None
        if spans is None or not torch._C._has_storage(tensor):
            return [[(size, False)] for size in tensor.shape]
        return parts_of_axes(tensor.shape, tensor.stride(), spans)

    def is_of_parameters(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or a view of one."""
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return True
        known = self.of(tensor)
        return isinstance(known, Projected) and known is OF_PARAMETERS

    def project(self, tensor: Tensor, result: object, axes: Sequence[int]) -> None:
        """A product of a tensor with parameters has `axes` of features."""
        if not isinstance(result, Tensor) or not torch._C._has_storage(result):
            return
        known = self.of(tensor)
        parents = known.sources if isinstance(known, Projected) else frozenset()
        made, spans = (result.shape, tuple(axes)), spans_of(result, axes)
        if isinstance(known, Projected) and known.features and tensor.ndim == result.ndim:
            spans += folded_spans(known.features, tensor, result.shape, result.stride())
        self.note(result, Projected(self.source(tensor), parents, spans, made))

    def look_up(self, call: TorchCall) -> None:
        """Rows of an embedding: features of tokens."""
        if isinstance(ids := call.get(0, "input"), Tensor):
            self.project(ids, call.result, (-1,))

    def recur(self, call: TorchCall) -> None:
        """Hidden states are features of the steps of a recurrent layer."""
        states = call.result if isinstance(call.result, tuple) else (call.result,)
        if isinstance(tensor := call.get(0, "input"), Tensor):
            for state in states:
                self.project(tensor, state, (-1,))

    def begin(self, inputs: object) -> None:
        """Rows of features that a program gives to its outermost module: heads lie on no axis of theirs."""
        for tensor in inputs if isinstance(inputs, tuple) else ():
            if not isinstance(tensor, Tensor) or tensor.is_nested or not torch._C._has_storage(tensor):
                continue
            if tensor.ndim == 3 and tensor.is_floating_point() and self.of(tensor) is None:
                made = tensor.shape, (-1,)
                self.note(
                    tensor, GivenFeatures(self.source(tensor), features=spans_of(tensor, (-1,)), made=made)
                )
