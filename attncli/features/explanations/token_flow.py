"""How much of each token of a prompt reaches an answer, by the attention of all layers and what it carries.

Rollout (Abnar & Zuidema 2020, 2005.00928), value-weighted norms (Kobayashi et al. 2020, 2004.10102), ALTI
(Ferrando et al. 2022, 2203.04212), direct contributions to the logit (Elhage et al. 2021).
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
"""Numbers that some queries have on all keys, a vector each: 32 MB."""


class EmbeddedTokens(NamedTuple):
    """What embeddings gave of tokens, a vector each, and what makes of such vectors what they gave."""

    vectors: Float[Tensor, "1 token embed"]
    as_given: Callable[[Tensor], Tensor]


class ExplainedRun:
    """What a model reads, and what of its outputs is explained: the sum of some logits, or the like.

    These depend on its last vectors at `places`, each of which counts by its `share`. UserError for a model
    in half precision.
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
        """The places of the vectors that are read."""
        raise NotImplementedError

    @property
    def shares(self) -> Float[Tensor, " row"]:
        """How much each of these places counts."""
        raise NotImplementedError

    @cached_property
    def stream(self) -> Stream:
        """What the blocks read and wrote; UserError for a model whose stream is no sum of such parts."""
        return Stream(self.pretrained, self.reading())

    @property
    def first(self) -> int:
        """The first of these places."""
        return int(self.places[0])

    def explained(self, outputs: ModelOutput, *, keeps_lengths: bool = False) -> Float[Tensor, " new"]:
        """The numbers whose sum is explained, from the model's outputs on one text.

        With `keeps_lengths` no vector's length depends on the tokens: the numbers are linear in the vectors.
        """
        raise NotImplementedError

    def reading(self) -> Reading:
        """That of all tokens."""
        return Reading(ModelText(tuple(self.pretrained.labels(self.ids.tolist())), self.ids))

    def inputs(self) -> dict[str, Tensor]:
        """The arguments of the model's forward."""
        return self.pretrained.inputs([self.reading()])

    def of_prompt(self, rows: Float[Tensor, "row read"]) -> Float[Tensor, " token"]:
        """The sum over the places of what each has of each token of the prompt, times its share."""
        return self.shares @ rows[:, : self.num_prompt].double().cpu()

    @property
    def embeddings(self) -> nn.Module:
        """The module that gives a vector for each token."""
        embeddings: nn.Module = self.whole.get_input_embeddings()
        return embeddings

    def embedded(self, output: object) -> EmbeddedTokens | None:
        """The vectors of the tokens in what the model's embeddings gave; None where they are not there."""
        if not isinstance(output, Tensor) or output.shape[:2] != (1, len(self.ids)):
            return None
        return EmbeddedTokens(output, lambda vectors: vectors)

    def by_token(self, of_embedded: Float[Tensor, " vector"]) -> Float[Tensor, " token"]:
        """A number for each token, from one for each vector of the embeddings."""
        return of_embedded

    def refuse(self, way: str, reason: str) -> NoReturn:
        """UserError that says why a way to read is not right for the model."""
        raise UserError(f"{way}: is not right for {self.pretrained.name}: {reason}")

    def refuse_unshown_layers(self, way: str) -> None:
        """UserError where tokens are mixed by more than weights: a way would skip those layers in silence."""
        if self.pretrained.unshown_layers:
            self.refuse(way, "some layers mix tokens without a softmax, or not at all")


class AnswerRun(ExplainedRun):
    """A decoder reads a prompt and an answer behind it: what chose the answer's tokens is explained.

    UserError for a model of another kind, and for one in half precision.
    """

    def __init__(
        self, pretrained: Pretrained, prompt: Int[Tensor, " token"], answer: Int[Tensor, " new"]
    ) -> None:
        if pretrained.has_decoder or pretrained.predicts != "next":
            message = "is not a decoder that predicts the next token: use --method removal"
            raise UserError(f"model: {pretrained.name} {message}")
        # The last token of the answer chooses nothing.
        super().__init__(pretrained, pretrained.whole, torch.cat([prompt, answer[:-1]]), len(prompt))
        self.prompt, self.answer = prompt, answer

    @property
    def places(self) -> Int[Tensor, " new"]:
        """Those of the tokens that chose those of the answer."""
        return torch.arange(len(self.prompt) - 1, len(self.ids))

    @property
    def shares(self) -> Float[Tensor, " new"]:
        """Each counts whole."""
        return torch.ones(len(self.answer), dtype=torch.float64)

    def explained(self, outputs: ModelOutput, *, keeps_lengths: bool = False) -> Float[Tensor, " new"]:
        """The logits of the answer's tokens."""
        rows: Tensor = outputs["logits"][0, self.first :]
        return rows.gather(-1, self.answer.to(rows.device).unsqueeze(-1))[:, 0]


def mean_weights(run: ExplainedRun) -> list[Float[Tensor, "query key"]]:
    """Of each layer the mean of its heads' weights. UserError where layers have others than those of text."""
    matrices: list[Tensor] = []

    def take(layer: CapturedLayer) -> None:
        matrices.append(layer.weights()[0].mean(dim=0))

    capture(run.pretrained.model, run.inputs(), take)
    return matrices


def rolled_out(
    matrices: Sequence[Float[Tensor, "query key"]], places: Int[Tensor, " row"]
) -> Float[Tensor, "row key"]:
    """The rows at these places of the product of the matrices, that of the last layer first."""
    rows = torch.eye(len(matrices[0]), dtype=torch.float64)[places].to(matrices[0].device)
    for matrix in reversed(matrices):
        rows = rows @ matrix.double()
    return rows


def rollout(run: ExplainedRun) -> Float[Tensor, " token"]:
    """The product over the layers of (A + I) / 2, each row divided by its sum; A is the mean of the heads.

    Abnar & Zuidema 2020, equation 1. Rows of A that sum to less than 1 have a sink outside the keys.
    """
    run.refuse_unshown_layers("rollout")
    mixed = []
    for weights in mean_weights(run):
        half = (weights.double() + torch.eye(len(weights), device=weights.device)) / 2
        mixed.append(half / half.sum(dim=-1, keepdim=True))
    return run.of_prompt(rolled_out(mixed, run.places))


@dataclass(frozen=True)
class CarriedVectors:
    """What the heads of a layer carry from each token: their weights, and v W_O of each token."""

    weights: Float[Tensor, "head query key"]
    vectors: Float[Tensor, "head key embed"]

    def rows(self, places: Int[Tensor, " row"]) -> Iterator[tuple[range, Float[Tensor, "query key embed"]]]:
        """Some of the queries at these places at a time, and what each gets of each token, over all heads."""
        step = max(1, QUERIES_AT_ONCE // self.vectors[0].numel())
        for start in range(0, len(places), step):
            rows = range(start, min(start + step, len(places)))
            weights = self.weights[:, places[rows.start : rows.stop]]
            yield rows, torch.einsum("hqk,hke->qke", weights, self.vectors)


class CarryingLayer:
    """A layer in a run: what its heads carry, what its block reads, what W_O gives."""

    def __init__(self, run: ExplainedRun, stream: Stream, call: int) -> None:
        layer = stream.attention[call]
        assert isinstance(layer.attention, AttentionLayer)  # Stream refuses others
        self.attention = layer.attention
        block = stream.runs[call]
        heads = block.mixers[0]
        self.read, self.projected, self.projection = block.read, heads.projected, heads.projection
        self.adds = block.mlp is not None
        self.norm = None if self.adds else block.norm_behind_attention()
        self.name = run.pretrained.module_name(layer.module)

    @property
    def num_heads(self) -> int:
        """How many heads read."""
        return self.attention.shape[1]

    def columns(self) -> Float[Tensor, "head embed value_dim"]:
        """Of each head those of W_O."""
        return head_projections(self.projection, self.num_heads)

    def values(self) -> Float[Tensor, "head key value_dim"]:
        """Of each head, the groups' repeated."""
        value = self.attention.value[0]
        return value.repeat_interleave(self.num_heads // len(value), dim=0)

    def weights(self) -> Float[Tensor, "head query key"]:
        """Those of all queries."""
        weights = attend(self.attention, Wanted(weights=True)).weights
        assert weights is not None
        return weights[0]

    def carried(self) -> CarriedVectors:
        """What each head carries."""
        vectors = torch.einsum("hev,hkv->hke", self.columns(), self.values())
        return CarriedVectors(self.weights(), vectors)

    def behind(
        self, rows: range, vectors: Float[Tensor, "query key embed"]
    ) -> tuple[Float[Tensor, "query key embed"], Float[Tensor, "query embed"]]:
        """What is behind the attention of these queries, of each token's vector and of all with the biases:
        where a norm stands there (BERT), that of it, its scale as it was in the run.
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
        """That of W_O."""
        _, bias = matrix_and_bias(self.projection)
        return 0.0 if bias is None else bias.detach()


def carrying_layers(run: ExplainedRun, way: str) -> Iterator[CarryingLayer]:
    """The layers of a run in order. UserError for a model whose stream is no sum of such parts."""
    run.refuse_unshown_layers(way)
    try:
        stream = run.stream
    except UserError as error:
        reason = error.lines[0].rpartition("use another: ")[2]
        run.refuse(way, reason.removeprefix("model: ").removesuffix(": use another"))
    if stream.linear or len(stream.attention) < stream.num_blocks:
        run.refuse(way, "some layers mix tokens without a softmax, or not at all")
    for call in stream.attention:
        yield CarryingLayer(run, stream, call)


@torch.no_grad()
def value_norms(run: ExplainedRun) -> Float[Tensor, " token"]:
    """||sum over heads of a_ij v_j W_O||, as a share of the sum over j, mean over the layers.

    Kobayashi et al. 2020, equation 6. UserError where the vectors are not what W_O gives.
    """
    total = torch.zeros(len(run.places), len(run.ids), dtype=torch.float64)
    num_layers = 0
    for layer in carrying_layers(run, "value_norms"):
        num_layers += 1
        for rows, vectors in layer.carried().rows(run.places):
            gave = layer.projected[run.places[rows.start : rows.stop]]
            if not is_close(vectors.sum(dim=1) + layer.bias, gave):
                run.refuse("value_norms", f"the vectors of {layer.name} do not add up to what W_O gives")
            norms = vectors.double().norm(dim=-1)
            total[rows.start : rows.stop] += (norms / norms.sum(dim=-1, keepdim=True)).cpu()
    return run.of_prompt(total / num_layers)


@torch.no_grad()
def alti(run: ExplainedRun) -> Float[Tensor, " token"]:
    """The product over the layers of C, c_ij ~ max(0, ||y_i||_1 - ||y_i - T_i(x_j)||_1), rows of sum 1.

    y_i is the stream behind the attention: its own vector x_i and the vectors that the heads carry,
    y_i = sum over j of T_i(x_j) + b_O; through the norm that stands there in models as BERT, which keeps its
    scale. Ferrando et al. 2022, equations 6 to 10. UserError where a block does anything else.
    """
    mixed = []
    for layer in carrying_layers(run, "alti"):
        if not layer.adds and layer.norm is None:
            run.refuse("alti", f"the block of {layer.name} does not add to its stream what W_O gives")
        count = len(run.ids)
        matrix = torch.zeros(count, count, dtype=torch.float64)
        for rows, vectors in layer.carried().rows(torch.arange(count)):
            places = torch.arange(rows.start, rows.stop)
            vectors[places - rows.start, places] += layer.read[rows.start : rows.stop]
            summed = layer.read[rows.start : rows.stop] + layer.projected[rows.start : rows.stop]
            if not is_close(vectors.sum(dim=1) + layer.bias, summed):
                run.refuse("alti", f"the vectors of {layer.name} do not add up to what W_O gives")
            parts, whole = layer.behind(rows, vectors)
            size = whole.abs().sum(dim=-1, keepdim=True)
            rest = (whole.unsqueeze(1) - parts).abs_().sum(dim=-1)
            near = (size - rest).clamp_min(0)
            matrix[rows.start : rows.stop] = (near / near.sum(dim=-1, keepdim=True)).nan_to_num(0.0).cpu()
        mixed.append(matrix)
    return run.of_prompt(rolled_out(mixed, run.places))


@torch.no_grad()
def direct_contributions(
    run: ExplainedRun, directions: Float[Tensor, "row embed"]
) -> Float[Tensor, " token"]:
    """What the heads of all layers carry from each token straight into the logits, sum over the heads.

    `directions` are what the logits read of the last stream at each place. UserError where a block adds
    something else to its stream.
    """
    total = torch.zeros(len(run.places), len(run.ids), dtype=torch.float64)
    for layer in carrying_layers(run, "direct_logit"):
        if not layer.adds:
            run.refuse("direct_logit", f"the block of {layer.name} does not add what W_O gives")
        columns = torch.einsum("te,hev->htv", directions.to(layer.read), layer.columns())
        read = torch.einsum("htv,hkv->htk", columns, layer.values())
        total += (layer.weights()[:, run.places] * read).double().sum(dim=0).cpu()
    return total.sum(dim=0)[: run.num_prompt]
