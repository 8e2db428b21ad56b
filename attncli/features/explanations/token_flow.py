"""The share of each prompt token that reaches an answer through the attention and vectors of all layers.

Rollout (Abnar & Zuidema 2020, 2005.00928), value-weighted norms (Kobayashi et al. 2020, 2004.10102), ALTI
(Ferrando et al. 2022, 2203.04212), and direct contributions to the logit (Elhage et al. 2021).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.errors import UserError
from attncli.measure.residual_stream import Stream
from attncli.models.architectures import head_projections, matrix_and_bias
from attncli.models.capture import capture
from attncli.models.frozen_norms import is_close
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading

QUERIES_AT_ONCE = 2**23
"""The numbers in a batch of queries, which have one vector per key: 32 MB."""


class EmbeddedTokens(NamedTuple):
    """The embeddings of tokens, one vector per token, and a function that undoes any reshaping."""

    vectors: Float[Tensor, "1 token embed"]
    as_given: Callable[[Tensor], Tensor]


class ExplainedRun:
    """A reading, and the model's outputs that are explained: a sum of logits or a similar number.

    The outputs depend on the last vectors at `places`, each with its `share`. Raises UserError for a model in
    half precision.
    """

    what = "an answer"

    def __init__(
        self, pretrained: Pretrained, whole: PreTrainedModel, ids: Int[Tensor, " read"], num_prompt: int
    ) -> None:
        self.pretrained, self.whole, self.ids, self.num_prompt = pretrained, whole, ids, num_prompt
        dtype = pretrained.model.dtype
        if torch.finfo(dtype).bits < 32:
            name = str(dtype).removeprefix("torch.")
            raise UserError(f"dtype: must be float32 to explain {self.what} (got {name})")

    @property
    def places(self) -> Int[Tensor, " row"]:
        """The places of the vectors that the outputs depend on."""
        raise NotImplementedError

    @property
    def shares(self) -> Float[Tensor, " row"]:
        """The share of each of these places."""
        raise NotImplementedError

    @cached_property
    def stream(self) -> Stream:
        """The inputs and outputs of the blocks.

        Raises UserError unless the residual stream is a sum of them.
        """
        return Stream(self.pretrained, self.reading())

    @property
    def first(self) -> int:
        """The first of these places."""
        return int(self.places[0])

    def explained(self, outputs: ModelOutput, *, keeps_lengths: bool = False) -> Float[Tensor, " new"]:
        """Compute, from the outputs of the model on one text, the numbers whose sum is explained.

        With `keeps_lengths`, the lengths of vectors are constants, so that the numbers are linear in the
        vectors.
        """
        raise NotImplementedError

    def reading(self) -> Reading:
        """Return the reading of all tokens."""
        return Reading(ModelText(tuple(self.pretrained.labels(self.ids.tolist())), self.ids))

    def inputs(self) -> dict[str, Tensor]:
        """Return the arguments of the model's forward."""
        return self.pretrained.inputs([self.reading()])

    def prompt_scores(self, rows: Float[Tensor, "row read"]) -> Float[Tensor, " token"]:
        """Return the scores of the prompt's tokens, summed over the places and weighted by their shares."""
        return self.shares @ rows[:, : self.num_prompt].double().cpu()

    @property
    def embeddings(self) -> nn.Module:
        """The module that embeds the tokens."""
        embeddings: nn.Module = self.whole.get_input_embeddings()
        return embeddings

    def embedded(self, output: object) -> EmbeddedTokens | None:
        """Return the token vectors in the output of the embeddings, or None if the output has no vectors."""
        if not isinstance(output, Tensor) or output.shape[:2] != (1, len(self.ids)):
            return None
        return EmbeddedTokens(output, lambda vectors: vectors)

    def by_token(self, of_embedded: Float[Tensor, " vector"]) -> Float[Tensor, " token"]:
        """Convert one number per embedding vector to one number per token."""
        return of_embedded

    def refuse(self, way: str, reason: str) -> NoReturn:
        """Raise UserError with the reason why a way does not apply to the model."""
        raise UserError(f"{way}: does not apply to {self.pretrained.name}: {reason}")

    def refuse_unshown_layers(self, way: str) -> None:
        """Raise UserError if other layers also mix tokens, because the way would silently skip them."""
        if self.pretrained.unshown_layers:
            self.refuse(way, "some layers mix tokens without a softmax or do not mix them")


class AnswerRun(ExplainedRun):
    """A prompt and an answer in a decoder. The choice of the answer's tokens is explained.

    Raises UserError for a model of another kind, or in half precision.
    """

    def __init__(
        self, pretrained: Pretrained, prompt: Int[Tensor, " token"], answer: Int[Tensor, " new"]
    ) -> None:
        if pretrained.has_decoder or pretrained.predicts != "next":
            message = "is not a decoder that predicts the next token: use --method removal"
            raise UserError(f"model: {pretrained.name} {message}")
        # The last token of the answer does not choose another token.
        super().__init__(pretrained, pretrained.whole, torch.cat([prompt, answer[:-1]]), len(prompt))
        self.prompt, self.answer = prompt, answer

    @property
    def places(self) -> Int[Tensor, " new"]:
        """The places of the tokens that chose the answer's tokens."""
        return torch.arange(len(self.prompt) - 1, len(self.ids))

    @property
    def shares(self) -> Float[Tensor, " new"]:
        """A share of 1 for every place."""
        return torch.ones(len(self.answer), dtype=torch.float64)

    def explained(self, outputs: ModelOutput, *, keeps_lengths: bool = False) -> Float[Tensor, " new"]:
        """Return the logits of the answer's tokens."""
        rows: Tensor = outputs["logits"][0, self.first :]
        return rows.gather(-1, self.answer.to(rows.device).unsqueeze(-1))[:, 0]


def mean_weights(run: ExplainedRun) -> list[Float[Tensor, "query key"]]:
    """Return the mean of each layer's weights over the heads.

    Raises UserError for a layer whose weights do not lie between tokens.
    """
    matrices: list[Tensor] = []

    def take(layer: CapturedLayer) -> None:
        matrices.append(layer.weights()[0].mean(dim=0))

    capture(run.pretrained.model, run.inputs(), take)
    return matrices


def rolled_out(
    matrices: Sequence[Float[Tensor, "query key"]], places: Int[Tensor, " row"]
) -> Float[Tensor, "row key"]:
    """Return the rows at these places of the product of the matrices, starting with the last layer."""
    rows = torch.eye(len(matrices[0]), dtype=torch.float64)[places].to(matrices[0].device)
    for matrix in reversed(matrices):
        rows = rows @ matrix.double()
    return rows


def rollout(run: ExplainedRun) -> Float[Tensor, " token"]:
    """Compute the product over the layers of (A + I) / 2, with rows divided by their sums.

    A is the mean over the heads (Abnar & Zuidema 2020, equation 1). Rows of A that sum to less than 1 belong
    to layers with a sink outside the keys.
    """
    run.refuse_unshown_layers("rollout")
    mixed = []
    for weights in mean_weights(run):
        half = (weights.double() + torch.eye(len(weights), device=weights.device)) / 2
        mixed.append(half / half.sum(dim=-1, keepdim=True))
    return run.prompt_scores(rolled_out(mixed, run.places))


@dataclass(frozen=True)
class CarriedVectors:
    """The vectors that a layer's heads carry from each token: their weights, and v W_O of each token."""

    weights: Float[Tensor, "head query key"]
    vectors: Float[Tensor, "head key embed"]

    def rows(self, places: Int[Tensor, " row"]) -> Iterator[tuple[range, Float[Tensor, "query key embed"]]]:
        """Yield batches of these queries, with the vectors carried from each token, summed over the heads."""
        step = max(1, QUERIES_AT_ONCE // self.vectors[0].numel())
        for start in range(0, len(places), step):
            rows = range(start, min(start + step, len(places)))
            weights = self.weights[:, places[rows.start : rows.stop]]
            yield rows, torch.einsum("hqk,hke->qke", weights, self.vectors)


class CarryingLayer:
    """A layer in a run, with the vectors of its heads, the input of its block, and the output of its W_O."""

    def __init__(self, run: ExplainedRun, stream: Stream, call: int) -> None:
        layer = stream.attention[call]
        assert isinstance(layer.attention, AttentionLayer)  # Stream refuses other modules
        self.attention = layer.attention
        block = stream.runs[call]
        heads = block.mixers[0]
        self.read, self.projected, self.projection = block.read, heads.projected, heads.projection
        self.adds = block.mlp is not None
        self.norm = None if self.adds else block.norm_behind_attention()
        self.name = run.pretrained.module_name(layer.module)

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.attention.shape[1]

    def columns(self) -> Float[Tensor, "head embed value_dim"]:
        """Return the columns of W_O that belong to each head."""
        return head_projections(self.projection, self.num_heads)

    def values(self) -> Float[Tensor, "head key value_dim"]:
        """Return the values of each head, repeated within groups."""
        value = self.attention.value[0]
        return value.repeat_interleave(self.num_heads // len(value), dim=0)

    def weights(self) -> Float[Tensor, "head query key"]:
        """Return the weights of all queries."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights[0]

    def carried(self) -> CarriedVectors:
        """Return the vectors that each head carries."""
        vectors = torch.einsum("hev,hkv->hke", self.columns(), self.values())
        return CarriedVectors(self.weights(), vectors)

    def after_attention(
        self, rows: range, vectors: Float[Tensor, "query key embed"]
    ) -> tuple[Float[Tensor, "query key embed"], Float[Tensor, "query embed"]]:
        """Return the residual stream after the attention of these queries, split by token, and its total.

        The total includes the biases. If a norm follows (BERT), it is applied with its scale from the run.
        """
        whole = self.read[rows.start : rows.stop] + self.projected[rows.start : rows.stop]
        if self.norm is None:
            return vectors, whole
        scale = self.norm.scale.reshape(-1, 1)[rows.start : rows.stop]

        def normed(some: Tensor, scales: Tensor) -> Tensor:
            assert self.norm is not None
            centred = some - some.mean(dim=-1, keepdim=True) if self.norm.is_centred else some
            return centred * self.norm.gain * scales

        shift = 0.0 if self.norm.shift is None else self.norm.shift
        return normed(vectors, scale.unsqueeze(1)), normed(whole, scale) + shift

    @property
    def bias(self) -> Tensor | float:
        """The bias of W_O."""
        _, bias = matrix_and_bias(self.projection)
        return 0.0 if bias is None else bias.detach()


def carrying_layers(run: ExplainedRun, way: str) -> Iterator[CarryingLayer]:
    """Yield the layers of a run in order.

    Raises UserError if the residual stream is not a sum of block outputs.
    """
    run.refuse_unshown_layers(way)
    try:
        stream = run.stream
    except UserError as error:
        reason = error.lines[0].removeprefix("model: ")
        run.refuse(way, reason.removesuffix("use another model").rstrip(":; "))
    if stream.linear or len(stream.attention) < stream.num_blocks:
        run.refuse(way, "some layers mix tokens without a softmax or do not mix them")
    for call in stream.attention:
        yield CarryingLayer(run, stream, call)


@torch.no_grad()
def value_norms(run: ExplainedRun) -> Float[Tensor, " token"]:
    """Compute ||sum over heads of a_ij v_j W_O||, divided by its sum over j and averaged over the layers.

    Kobayashi et al. 2020, equation 6. Raises UserError if the vectors do not add up to the output of W_O.
    """
    total = torch.zeros(len(run.places), len(run.ids), dtype=torch.float64)
    num_layers = 0
    for layer in carrying_layers(run, "value_norms"):
        num_layers += 1
        for rows, vectors in layer.carried().rows(run.places):
            projected = layer.projected[run.places[rows.start : rows.stop]]
            if not is_close(vectors.sum(dim=1) + layer.bias, projected):
                run.refuse("value_norms", f"the vectors of {layer.name} do not add up to the output of W_O")
            norms = vectors.double().norm(dim=-1)
            total[rows.start : rows.stop] += (norms / norms.sum(dim=-1, keepdim=True)).cpu()
    return run.prompt_scores(total / num_layers)


@torch.no_grad()
def alti(run: ExplainedRun) -> Float[Tensor, " token"]:
    """Compute the product over the layers of C, where c_ij ~ max(0, ||y_i||_1 - ||y_i - T_i(x_j)||_1).

    The rows of C sum to 1. y_i is the residual stream after the attention, y_i = sum over j of T_i(x_j) +
    b_O: the token's own vector x_i and the vectors that the heads carry, after the norm in models such as
    BERT, with the scale of the norm frozen. Ferrando et al. 2022, equations 6 to 10. Raises UserError if a
    block does anything else.
    """
    mixed = []
    for layer in carrying_layers(run, "alti"):
        if not layer.adds and layer.norm is None:
            run.refuse("alti", f"the block of {layer.name} does not add the output of W_O to its stream")
        count = len(run.ids)
        matrix = torch.zeros(count, count, dtype=torch.float64)
        for rows, vectors in layer.carried().rows(torch.arange(count)):
            places = torch.arange(rows.start, rows.stop)
            vectors[places - rows.start, places] += layer.read[rows.start : rows.stop]
            summed = layer.read[rows.start : rows.stop] + layer.projected[rows.start : rows.stop]
            if not is_close(vectors.sum(dim=1) + layer.bias, summed):
                run.refuse("alti", f"the vectors of {layer.name} do not add up to the output of W_O")
            parts, whole = layer.after_attention(rows, vectors)
            size = whole.abs().sum(dim=-1, keepdim=True)
            remainder = (whole.unsqueeze(1) - parts).abs_().sum(dim=-1)
            near = (size - remainder).clamp_min(0)
            matrix[rows.start : rows.stop] = (near / near.sum(dim=-1, keepdim=True)).nan_to_num(0.0).cpu()
        mixed.append(matrix)
    return run.prompt_scores(rolled_out(mixed, run.places))


@torch.no_grad()
def direct_contributions(
    run: ExplainedRun, directions: Float[Tensor, "row embed"]
) -> Float[Tensor, " token"]:
    """Compute the direct contribution of each token to the logits, summed over the heads of all layers.

    `directions` are the directions in which the logits read the last residual stream at each place. Raises
    UserError if a block adds anything else to the residual stream.
    """
    total = torch.zeros(len(run.places), len(run.ids), dtype=torch.float64)
    for layer in carrying_layers(run, "direct_logit"):
        if not layer.adds:
            run.refuse("direct_logit", f"the block of {layer.name} does not add the output of W_O")
        columns = torch.einsum("te,hev->htv", directions.to(layer.read), layer.columns())
        read = torch.einsum("htv,hkv->htk", columns, layer.values())
        total += (layer.weights()[:, run.places] * read).double().sum(dim=0).cpu()
    return total.sum(dim=0)[: run.num_prompt]
