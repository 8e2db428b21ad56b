"""The residual stream of a model as a sum of what its parts wrote, the scales of its norms frozen."""

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
    """A part of a model that writes to the residual stream, with layer and head where it has them."""

    kind: Kind
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """`16:0` for a head, `linear:16:0` for one without a softmax, `MLP 16`, `embedding`, `biases`."""
        if self.kind == "head":
            return f"{self.layer}:{self.head}"
        if self.kind == LINEAR:
            return f"{LINEAR}:{self.layer}:{self.head}"
        return {"mlp": f"MLP {self.layer}", "bias": "biases"}.get(self.kind, self.kind)


class Stream(RecordedBlocks):
    """The residual stream before each block, in one run on a text, as a sum of what parts of the model wrote.

    `frozen` runs its blocks on other vectors. Raises UserError for a model whose stream is no such sum, and
    MemoryError.
    """

    def __init__(self, pretrained: Pretrained, reading: Reading) -> None:
        super().__init__(pretrained, reading)
        self.frozen = FrozenBlocks(self)
        first = self.runs[0].read
        self._parts: list[tuple[StreamPart, PartVectors]] = [(StreamPart("embedding"), lambda: first)]
        self._biases = torch.zeros_like(first)
        self._next_call = 0
        """The parts and biases are those that this block reads."""

    @property
    def num_blocks(self) -> int:
        """The calls of blocks."""
        return len(self.runs)

    def read_by(self, call: int) -> Float[Tensor, "token embed"]:
        """What a block reads."""
        return self.runs[call].read

    def parts_before(self, call: int) -> list[tuple[StreamPart, PartVectors]]:
        """The parts of what a block reads, or of the last stream, the biases last; to be asked for in rising
        order.
        """
        while self._next_call < call:
            gave = self.runs[self._next_call].gave
            self._pass_block()
            if self._next_call < len(self.runs) and not is_close(self.runs[self._next_call].read, gave):
                self.refuse("what a block gives is changed before the next one reads it")
        biases = self._biases
        return [*self._parts, (StreamPart("bias"), lambda: biases)]

    def _pass_block(self) -> None:
        """Add what the next block writes, and what it makes of what was there."""
        call, run = self._next_call, self.runs[self._next_call]
        self._next_call += 1
        mlp = StreamPart("mlp", run.layer)
        if run.mlp is not None:
            for mixer in run.mixers:
                self._parts += [(part, vectors) for part, vectors in _heads_of(run.layer, mixer)]
                self._biases = self._biases + mixer.bias
            self._parts.append((mlp, partial(same, run.mlp)))
            return
        writer, wrote, constant, keeps_stream = self.frozen.writer_of(call)
        num_heads = sum(len(mixer.heads) for mixer in run.mixers)
        num_kept = num_heads + 1 + (0 if keeps_stream else len(self._parts))
        refuse_bytes("sentence", num_kept * run.read.nbytes, "a shorter text")
        projections = {mixer.projection for mixer in run.mixers}
        parts, of_heads, of_biases = list[StreamPart](), list[Tensor](), [constant]
        for mixer in run.mixers:
            through, others = mixer.projection, projections - {mixer.projection}
            heads = _heads_of(run.layer, mixer)
            *of_mixer, of_bias = self.frozen.passed(
                call,
                [*(vectors for _, vectors in heads), partial(getattr, mixer, "bias")],
                through,
                {writer, *others},
                constant,
            )
            parts += [part for part, _ in heads]
            of_heads += of_mixer
            of_biases.append(of_bias)
        (of_mlp,) = self.frozen.passed(call, [lambda: wrote], writer, projections, constant)
        if not keeps_stream:
            before = self._biases
            stream = [*(vectors for _, vectors in self._parts), lambda: before]
            *passed, self._biases = self.frozen.passed(call, stream, None, {writer, *projections}, constant)
            pairs = zip(self._parts, passed, strict=True)
            self._parts = [(part, partial(same, vectors)) for (part, _), vectors in pairs]
        self._parts += [(part, partial(same, vectors)) for part, vectors in zip(parts, of_heads, strict=True)]
        self._parts.append((mlp, partial(same, of_mlp)))
        self._biases = sum(of_biases, self._biases)
        total = sum((vectors() for _, vectors in self._parts), self._biases)
        if not is_close(total, run.gave):
            name = self.pretrained.module_name(run.name)
            self.refuse(f"{name} is not linear in what it reads once its norms are frozen")

    def read_parts(self, call: int) -> Iterator[tuple[list[StreamPart], AttentionLayer]]:
        """Query, key and value of the attention of a block, of each part of what it reads, as texts.

        That of nothing, from the biases of norms and of W_Q, W_K and W_V, belongs to the biases.
        """
        parts = self.parts_before(call)
        nothing = self.frozen.attention_on(call, torch.zeros_like(self.runs[0].read).unsqueeze(0))
        start = 0
        for reads in self.frozen.chunks([vectors for _, vectors in parts]):
            of_reads = [part for part, _ in parts[start : start + len(reads)]]
            start += len(reads)
            layer = self.frozen.attention_on(call, reads)
            less = torch.tensor([part.kind != "bias" for part in of_reads], device=reads.device).view(
                -1, 1, 1, 1
            )
            yield (
                of_reads,
                replace(
                    layer,
                    query=layer.query - less * nothing.query,
                    key=layer.key - less * nothing.key,
                    value=layer.value - less * nothing.value,
                ),
            )


def _heads_of(layer: int, mixer: WrittenHeads) -> list[tuple[StreamPart, PartVectors]]:
    """The heads of a layer, each with what it writes."""
    return [
        (StreamPart(mixer.kind, layer, head), partial(mixer.of_head, head))
        for head in range(len(mixer.heads))
    ]
