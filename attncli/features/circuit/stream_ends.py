"""The two ends of the residual stream as linear maps: from the embedding, and to the input of W_U.

The modules between the embedding and the first block, and between the last block and W_U, run with the scales
of their norms frozen; they are identified by their behaviour, not by their names.
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
"""The most numbers in one batch of vectors."""

Norms = dict[nn.Module, list[FrozenNorm]]
"""The norms that ran, with the frozen norm of each call."""


def unembedding_layer(pretrained: Pretrained) -> nn.Linear | None:
    """W_U of a model that predicts the next token."""
    if pretrained.predicts != "next" or pretrained.has_decoder:
        return None
    # transformers has no types for this method.
    unembedding: object = pretrained.whole.get_output_embeddings()  # type: ignore[no-untyped-call]
    return unembedding if isinstance(unembedding, nn.Linear) else None


def embedding_weight(pretrained: Pretrained) -> Float[Tensor, "token dim"]:
    """W_E, from the whole model, because the body may not have it (BART)."""
    embedding = pretrained.whole.get_input_embeddings()
    weight = embedding.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


class _End:
    """A part of a model outside its blocks, as a map of vectors."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.whole = stream, stream.pretrained.whole
        self._norms: Norms = {}
        with self._recorded():
            self.expected = self._run(None)
        self._zero_outputs = self._run(torch.zeros_like(self._read()))

    def _read(self) -> Float[Tensor, "1 token dim"]:
        """The input of this end when the model ran."""
        raise NotImplementedError

    def _run(self, vectors: Float[Tensor, "text token dim"] | None) -> Float[Tensor, "text token out"]:
        """The output of this end for these vectors or, by default, for its input in the model's run."""
        raise NotImplementedError

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Record the norms that run inside the with block."""
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

    def outputs(self, vectors: Float[Tensor, "text token dim"]) -> Float[Tensor, "text token out"]:
        """The outputs of this end for vectors, minus its output for a zero input."""
        size = max(1, CHUNK // max(1, vectors[0].numel()))
        return torch.cat([self._run(some) - self._zero_outputs for some in torch.split(vectors, size)])

    def gradient(self, direction: Float[Tensor, "token out"]) -> Float[Tensor, "token dim"]:
        """The gradient, with respect to the input, of the inner product of the output with a direction."""
        with torch.enable_grad():
            nothing = torch.zeros_like(self._read()).requires_grad_()
            left = self._run(nothing)
        (gradient,) = torch.autograd.grad(left, nothing, direction.to(left).reshape(left.shape))
        return gradient[0].double()

    @property
    def zero_output(self) -> Float[Tensor, "token out"]:
        """The output for a zero input, which comes from the shifts of norms and from positions."""
        return self._zero_outputs[0]

    def is_linear(self) -> bool:
        """True if this end maps sums to sums and reproduces its output in the model's run."""
        read = self._read()
        random = torch.randn(read.shape, generator=torch.Generator().manual_seed(0)).to(read) * read.std()
        read_output, random_output, sum_output = self.outputs(torch.cat([read, random, read + random]))
        return is_close(read_output + self.zero_output, self.expected[0]) and is_close(
            read_output + random_output, sum_output
        )


class ToUnembedding(_End):
    """The end from the last block to the input of W_U."""

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
        """The model's outputs without running its blocks, or None if a hook stopped the model."""
        count = 1 if vectors is None else len(vectors)
        with self.stream.frozen.beginning_behind(count, vectors), self._frozen():
            outputs: Mapping[str, Tensor] | None = run_model(
                self.whole, self.stream.frozen.repeated(count), output_of
            )
            return outputs

    def refusal(self) -> str | None:
        """The reason why the logits are not a sum over the parts of the stream, or None if they are."""
        if not self.is_linear():
            return "between its last block and W_U, the model applies more than a norm and matrix products"
        return (
            None if self._keeps_order() else "its logits are changed after W_U by more than a factor or a cap"
        )

    @cached_property
    def _last_outputs(self) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, " vocabulary"]]:
        """The output of W_U at the last token, and the model's logits."""
        unembedded: list[Tensor] = []
        forward = self.unembedding.forward

        def last_token_only(vectors: Tensor) -> Tensor:
            unembedded.append(forward(vectors[..., -1:, :]))
            return unembedded[-1]

        with forwards_replaced({self.unembedding: last_token_only}):
            outputs = self._run_behind(None)
        assert outputs is not None, "no hook stops this run"
        return unembedded[0].flatten().double(), outputs["logits"][..., -1, :].flatten()

    @property
    def likeliest(self) -> int:
        """The id of the most likely token after the text."""
        return int(self._last_outputs[1].argmax())

    def _keeps_order(self) -> bool:
        """True if the logits have the same order as the outputs of W_U, as after a factor or a cap."""
        unembedded, raw_logits = self._last_outputs
        logits = raw_logits.double()
        order = unembedded.argsort()
        rising = logits[order]
        is_masked = rising <= torch.finfo(raw_logits.dtype).min / 2
        steps = rising[~is_masked].diff()
        return bool((steps >= -ROUNDING * rising[~is_masked].abs().max()).all())


ROUNDING = 1e-5
"""The largest step by which logits may be out of order, relative to the largest logit."""


class FromEmbedding(_End):
    """The end from the embedding to the first block."""

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
    """The product of W_U, W_E and the ends of the stream, or the reason why no such matrix exists."""

    matrix: Float[Tensor, "embed embed"] | None
    reason: str = ""


def copied_by(stream: Stream, unembedding: nn.Linear) -> Copied:
    """The map from the last block through W_U to the tokens, and back through W_E to the first block.

    `stream` must be that of a text of one token.
    """
    out = ToUnembedding(stream, unembedding)
    if (reason := out.refusal()) is not None:
        return Copied(None, reason)
    into = FromEmbedding(stream)
    table = embedding_weight(stream.pretrained)
    if len(table) != len(unembedding.weight) or not into.is_linear():
        return Copied(None, "between its embedding and its first block, the model applies more than a norm")

    def matrix(end: _End, dim: int) -> Tensor:
        directions = torch.eye(dim, dtype=unembedding.weight.dtype, device=unembedding.weight.device)
        return end.outputs(directions.unsqueeze(1))[:, 0]

    tokens = unembedding.weight.detach().mT @ table
    return Copied(matrix(out, stream.runs[-1].gave.shape[-1]) @ tokens @ matrix(into, table.shape[1]))
