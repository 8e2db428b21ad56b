"""The two ends of the residual stream as linear maps: from what embeds a token, and to what W_U reads.

What lies between the embedding and the first block, and between the last block and W_U, is run with the
scales of its norms frozen: by what it does, not by what its modules are called.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.measure.residual_stream import Stream
from attncli.models.capture import run_model
from attncli.models.frozen_norms import FrozenNorm, frozen_norm, in_turn, is_close
from attncli.models.layers import StopCapture
from attncli.models.model_blocks import forwards_replaced
from attncli.models.pretrained import Pretrained
from attncli.models.removal import output_of

CHUNK = 2**22
"""Numbers that a model's end reads at a time."""

Norms = dict[nn.Module, list[FrozenNorm]]
"""Those that ran, each as it was at its calls."""


def unembedding_of(pretrained: Pretrained) -> nn.Linear | None:
    """W_U of a model that predicts the next token."""
    if pretrained.predicts != "next" or pretrained.has_decoder:
        return None
    # transformers leaves this without types.
    unembedding: object = pretrained.whole.get_output_embeddings()  # type: ignore[no-untyped-call]
    return unembedding if isinstance(unembedding, nn.Linear) else None


def embedding_of(pretrained: Pretrained) -> Float[Tensor, "token dim"]:
    """W_E: the whole model says, where its body may not (BART)."""
    embedding = pretrained.whole.get_input_embeddings()
    weight = embedding.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


class _End:
    """A part of a model outside its blocks, from vectors that are put in to those that leave it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.whole = stream, stream.pretrained.whole
        self._norms: Norms = {}
        with self._noted():
            self.expected = self._run(None)
        self._nothing = self._run(torch.zeros_like(self._read()))

    def _read(self) -> Float[Tensor, "1 token dim"]:
        """What was put in when the model ran."""
        raise NotImplementedError

    def _run(self, vectors: Float[Tensor, "text token dim"] | None) -> Float[Tensor, "text token out"]:
        """What leaves this end, of these vectors or of those of the run."""
        raise NotImplementedError

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """While the model runs once, its norms are noted."""
        calls: dict[nn.Module, list[FrozenNorm | None]] = {}

        def note(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            read = inputs[0] if inputs else None
            if isinstance(read, Tensor) and isinstance(output, Tensor) and read.is_floating_point():
                calls.setdefault(module, []).append(frozen_norm(module, read, output))

        parts = [module for module in self.whole.modules() if not any(module.children())]
        hooks = [module.register_forward_hook(note) for module in parts]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self._norms = {
            module: [norm for norm in norms if norm is not None]
            for module, norms in calls.items()
            if all(norm is not None for norm in norms)
        }

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        with forwards_replaced({module: in_turn(norms) for module, norms in self._norms.items()}):
            yield

    def of(self, vectors: Float[Tensor, "text token dim"]) -> Float[Tensor, "text token out"]:
        """What this end makes of vectors beyond what it gives of nothing."""
        size = max(1, CHUNK // max(1, vectors[0].numel()))
        return torch.cat([self._run(some) - self._nothing for some in torch.split(vectors, size)])

    def gradient(self, direction: Float[Tensor, "token out"]) -> Float[Tensor, "token dim"]:
        """Of the inner product of what leaves this end with a direction, by what is put in."""
        with torch.enable_grad():
            nothing = torch.zeros_like(self._read()).requires_grad_()
            left = self._run(nothing)
        (gradient,) = torch.autograd.grad(left, nothing, direction.to(left).reshape(left.shape))
        return gradient[0].double()

    @property
    def of_nothing(self) -> Float[Tensor, "token out"]:
        """What it gives of nothing: shifts of norms, positions."""
        return self._nothing[0]

    def is_linear(self) -> bool:
        """Whether it gives of a sum the sum, and what it gave in the model's run."""
        read = self._read()
        other = torch.randn(read.shape, generator=torch.Generator().manual_seed(0)).to(read) * read.std()
        of_read, of_other, of_both = self.of(torch.cat([read, other, read + other]))
        return is_close(of_read + self.of_nothing, self.expected[0]) and is_close(of_read + of_other, of_both)


class ToUnembedding(_End):
    """From the stream behind the last block to what W_U reads."""

    def __init__(self, stream: Stream, unembedding: nn.Linear) -> None:
        self.unembedding = unembedding
        super().__init__(stream)

    def _read(self) -> Tensor:
        return self.stream.runs[-1].gave.unsqueeze(0)

    def _run(self, vectors: Tensor | None) -> Tensor:
        reads: list[Tensor] = []

        def stop(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            reads.append(inputs[0])
            raise StopCapture

        hook = self.unembedding.register_forward_pre_hook(stop)
        try:
            self._run_behind(vectors)
        finally:
            hook.remove()
        count = 1 if vectors is None else len(vectors)
        return reads[0].reshape(count, self.stream.num_tokens, -1)

    def _run_behind(self, vectors: Tensor | None) -> Mapping[str, Tensor] | None:
        """The model's outputs, its blocks left out; None where a hook stopped it."""
        count = 1 if vectors is None else len(vectors)
        with self.stream.frozen.beginning_behind(count, vectors), self._frozen():
            outputs: Mapping[str, Tensor] | None = run_model(
                self.whole, self.stream.frozen.repeated(count), output_of
            )
            return outputs

    def refusal(self) -> str | None:
        """Why logits are no sum of what is in the stream, if they are none."""
        if not self.is_linear():
            return "between its last block and W_U it does more than a norm and products of matrices"
        return (
            None if self._keeps_order() else "its logits are changed after W_U, not by a factor or cap alone"
        )

    @cached_property
    def _of_last(self) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, " vocabulary"]]:
        """What W_U gives the last token, and the model's logits."""
        given: list[Tensor] = []
        forward = self.unembedding.forward

        def of_last(vectors: Tensor) -> Tensor:
            given.append(forward(vectors[..., -1:, :]))
            return given[-1]

        with forwards_replaced({self.unembedding: of_last}):
            outputs = self._run_behind(None)
        assert outputs is not None, "nothing stops it here"
        return given[0].flatten().double(), outputs["logits"][..., -1, :].flatten()

    @property
    def likeliest(self) -> int:
        """The id of the likeliest token after the text."""
        return int(self._of_last[1].argmax())

    def _keeps_order(self) -> bool:
        """Whether of what W_U gives the last token the logits are as large, but for a factor or a cap."""
        before, given = self._of_last
        logits = given.double()
        order = before.argsort()
        rising = logits[order]
        is_masked = rising <= torch.finfo(given.dtype).min / 2
        steps = rising[~is_masked].diff()
        return bool((steps >= -ROUNDING * rising[~is_masked].abs().max()).all())


ROUNDING = 1e-5
"""By how much logits may be out of order, relative to the largest."""


class FromEmbedding(_End):
    """From what embeds the tokens to what the first block reads."""

    def __init__(self, stream: Stream) -> None:
        self.embedding: nn.Module = stream.pretrained.whole.get_input_embeddings()
        self._embedded: Tensor | None = None
        super().__init__(stream)

    def _read(self) -> Tensor:
        assert self._embedded is not None
        return self._embedded

    def _run(self, vectors: Tensor | None) -> Tensor:
        count = 1 if vectors is None else len(vectors)

        def give(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            if vectors is None:
                self._embedded = output.clone()
                return output
            return vectors.reshape(output.shape)

        hook = self.embedding.register_forward_hook(give)
        try:
            with self._frozen():
                return self.stream.frozen.read_first(count)
        finally:
            hook.remove()


class Copied(NamedTuple):
    """W_U and W_E multiplied, with what stands between them and the stream; else why there is none."""

    matrix: Float[Tensor, "embed embed"] | None
    reason: str = ""


def copied_by(stream: Stream, unembedding: nn.Linear) -> Copied:
    """What leaves the last block, through W_U to the tokens and back through W_E to the first block.

    `stream` is that of a text of one token.
    """
    out = ToUnembedding(stream, unembedding)
    if (reason := out.refusal()) is not None:
        return Copied(None, reason)
    into = FromEmbedding(stream)
    table = embedding_of(stream.pretrained)
    if len(table) != len(unembedding.weight) or not into.is_linear():
        return Copied(None, "between its embedding and its first block it does more than a norm")

    def matrix(end: _End, dim: int) -> Tensor:
        directions = torch.eye(dim, dtype=unembedding.weight.dtype, device=unembedding.weight.device)
        return end.of(directions.unsqueeze(1))[:, 0]

    tokens = unembedding.weight.detach().mT @ table
    return Copied(matrix(out, stream.runs[-1].gave.shape[-1]) @ tokens @ matrix(into, table.shape[1]))
