"""The residual stream of a model, as a sum of the outputs of its parts, with frozen norm scales."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import AttentionLayer
from attncli.errors import refuse_bytes
from attncli.measure.frozen_blocks import FrozenBlocks, PartVectors, same
from attncli.measure.recorded_blocks import Kind, RecordedBlocks, WrittenHeads
from attncli.models.frozen_norms import is_close
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.projected_heads import LINEAR


class StreamPart(NamedTuple):
    """A part of a model that writes to the residual stream, with the layer and head if they apply."""

    kind: Kind
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """`16:0` for a head, `linear:16:0` for one without a softmax, `MLP 16`, `embedding` or `biases`."""
        if self.kind == "head":
            return f"{self.layer}:{self.head}"
        if self.kind == LINEAR:
            return f"{LINEAR}:{self.layer}:{self.head}"
        return {"mlp": f"MLP {self.layer}", "bias": "biases"}.get(self.kind, self.kind)


class Stream(RecordedBlocks):
    """The residual stream before each block, in one run on a text, as a sum of the model parts' outputs.

    `frozen` runs its blocks on other vectors. Raises UserError for a model whose stream is not such a sum,
    and MemoryError if memory runs out.
    """

    def __init__(self, pretrained: Pretrained, reading: Reading) -> None:
        super().__init__(pretrained, reading)
        self.frozen = FrozenBlocks(self)
        first = self.runs[0].read
        self._parts: list[tuple[StreamPart, PartVectors]] = [(StreamPart("embedding"), lambda: first)]
        self._biases = torch.zeros_like(first)
        self._next_call = 0
        """The block that reads the current parts and biases."""

    @property
    def num_blocks(self) -> int:
        """The number of block calls."""
        return len(self.runs)

    def read_by(self, call: int) -> Float[Tensor, "token embed"]:
        """The input of a block."""
        return self.runs[call].read

    def parts_before(self, call: int) -> list[tuple[StreamPart, PartVectors]]:
        """Return the parts of a block's input, or of the final stream, biases last.

        Must be called in ascending block order.
        """
        while self._next_call < call:
            gave = self.runs[self._next_call].gave
            self._pass_block()
            if self._next_call < len(self.runs) and not is_close(self.runs[self._next_call].read, gave):
                self.refuse("the output of a block changes before the next block reads it")
        biases = self._biases
        return [*self._parts, (StreamPart("bias"), lambda: biases)]

    def _pass_block(self) -> None:
        """Pass the current parts through the next block, and add the parts that the block writes."""
        call, run = self._next_call, self.runs[self._next_call]
        self._next_call += 1
        mlp = StreamPart("mlp", run.layer)
        if run.mlp is not None:
            for mixer in run.mixers:
                self._parts += _head_parts(run.layer, mixer)
                self._biases = self._biases + mixer.bias
            self._parts.append((mlp, partial(same, run.mlp)))
            return
        writer, wrote, constant, keeps_stream = self.frozen.block_writer(call)
        num_heads = sum(len(mixer.heads) for mixer in run.mixers)
        num_vectors = num_heads + 1 + (0 if keeps_stream else len(self._parts))
        refuse_bytes("sentence", num_vectors * run.read.nbytes, "a shorter text")
        projections = {mixer.projection for mixer in run.mixers}
        parts, head_vectors, biases = list[StreamPart](), list[Tensor](), [constant]
        for mixer in run.mixers:
            through, silent = mixer.projection, projections - {mixer.projection}
            heads = _head_parts(run.layer, mixer)
            *mixer_vectors, bias = self.frozen.passed(
                call,
                [*(vectors for _, vectors in heads), partial(getattr, mixer, "bias")],
                through,
                {writer, *silent},
                constant,
            )
            parts += [part for part, _ in heads]
            head_vectors += mixer_vectors
            biases.append(bias)
        (mlp_vectors,) = self.frozen.passed(call, [lambda: wrote], writer, projections, constant)
        if not keeps_stream:
            before = self._biases
            stream = [*(vectors for _, vectors in self._parts), lambda: before]
            *passed, self._biases = self.frozen.passed(call, stream, None, {writer, *projections}, constant)
            pairs = zip(self._parts, passed, strict=True)
            self._parts = [(part, partial(same, vectors)) for (part, _), vectors in pairs]
        self._parts += [
            (part, partial(same, vectors)) for part, vectors in zip(parts, head_vectors, strict=True)
        ]
        self._parts.append((mlp, partial(same, mlp_vectors)))
        self._biases = sum(biases, self._biases)
        total = sum((vectors() for _, vectors in self._parts), self._biases)
        if not is_close(total, run.gave):
            name = self.pretrained.module_name(run.name)
            self.refuse(f"{name} is not linear in its input with frozen norms")

    def read_parts(self, call: int) -> Iterator[tuple[list[StreamPart], AttentionLayer]]:
        """Return query, key and value of a block's attention for each part of its input, batched as texts.

        The constant contributions of norm, W_Q, W_K and W_V biases count as biases.
        """
        parts = self.parts_before(call)
        nothing = self.frozen.attention_on(call, torch.zeros_like(self.runs[0].read).unsqueeze(0))
        start = 0
        for reads in self.frozen.chunks([vectors for _, vectors in parts]):
            chunk = [part for part, _ in parts[start : start + len(reads)]]
            start += len(reads)
            layer = self.frozen.attention_on(call, reads)
            less = torch.tensor([part.kind != "bias" for part in chunk], device=reads.device).view(
                -1, 1, 1, 1
            )
            yield (
                chunk,
                replace(
                    layer,
                    query=layer.query - less * nothing.query,
                    key=layer.key - less * nothing.key,
                    value=layer.value - less * nothing.value,
                ),
            )


def _head_parts(layer: int, mixer: WrittenHeads) -> list[tuple[StreamPart, PartVectors]]:
    """Yield the heads of a layer as parts, with the vectors that they write."""
    return [
        (StreamPart(mixer.kind, layer, head), partial(mixer.of_head, head))
        for head in range(len(mixer.heads))
    ]
