"""How much of each token of a prompt reaches an answer, by the attention of all layers and what it carries.

Rollout (Abnar & Zuidema 2020, 2005.00928), value-weighted norms (Kobayashi et al. 2020, 2004.10102), ALTI
(Ferrando et al. 2022, 2203.04212), direct contributions to the logit (Elhage et al. 2021).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.errors import UserError
from attncli.measure.residual_stream import Stream
from attncli.models.architectures import matrix_and_bias, projection_of_heads
from attncli.models.capture import capture
from attncli.models.frozen_norms import is_close
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading

QUERIES_AT_ONCE = 2**23
"""Numbers that some queries have on all keys, a vector each: 32 MB."""


@dataclass(frozen=True)
class AnswerRun:
    """A decoder reads a prompt and an answer behind it: what chose the answer's tokens is explained.

    UserError for a model of another kind, and for one in half precision.
    """

    pretrained: Pretrained
    prompt: Int[Tensor, " token"]
    answer: Int[Tensor, " new"]

    def __post_init__(self) -> None:
        if self.pretrained.has_decoder or self.pretrained.predicts != "next":
            message = "is not a decoder that predicts the next token: use --method removal"
            raise UserError(f"model: {self.pretrained.name} {message}")
        dtype = self.pretrained.model.dtype
        if torch.finfo(dtype).bits < 32:
            name = str(dtype).removeprefix("torch.")
            raise UserError(f"dtype: must be float32 to explain an answer (got {name})")

    @property
    def ids(self) -> Int[Tensor, " read"]:
        """What the model reads: the last token of the answer chooses nothing."""
        return torch.cat([self.prompt, self.answer[:-1]])

    @cached_property
    def stream(self) -> Stream:
        """What the blocks read and wrote; UserError for a model whose stream is no sum of such parts."""
        return Stream(self.pretrained, self.reading())

    @property
    def first(self) -> int:
        """The place of the token that chose the first of the answer."""
        return len(self.prompt) - 1

    def reading(self) -> Reading:
        """That of all tokens."""
        return Reading(ModelText(tuple(self.pretrained.labels(self.ids.tolist())), self.ids))

    def of_prompt(self, rows: Float[Tensor, "new read"]) -> Float[Tensor, " token"]:
        """The sum over the answer's tokens of what each has of each token of the prompt."""
        return rows[:, : len(self.prompt)].double().sum(dim=0).cpu()

    def refuse(self, way: str, reason: str) -> NoReturn:
        """UserError that says why a way to read is not right for the model."""
        raise UserError(f"{way}: is not right for {self.pretrained.name}: {reason}")

    def refuse_unshown_layers(self, way: str) -> None:
        """UserError where tokens are mixed by more than weights: a way would skip those layers in silence."""
        if self.pretrained.unshown_layers:
            self.refuse(way, "some layers mix tokens without a softmax, or not at all")


def mean_weights(run: AnswerRun) -> list[Float[Tensor, "query key"]]:
    """Of each layer the mean of its heads' weights. UserError where layers have others than those of text."""
    matrices: list[Tensor] = []

    def take(layer: CapturedLayer) -> None:
        matrices.append(layer.weights()[0].mean(dim=0))

    capture(run.pretrained.model, run.pretrained.inputs([run.reading()]), take)
    return matrices


def rolled_out(matrices: Sequence[Float[Tensor, "query key"]], first: int) -> Float[Tensor, "new key"]:
    """The rows from `first` on of the product of the matrices, that of the last layer first."""
    rows = torch.eye(len(matrices[0]), dtype=torch.float64, device=matrices[0].device)[first:]
    for matrix in reversed(matrices):
        rows = rows @ matrix.double()
    return rows


def rollout(run: AnswerRun) -> Float[Tensor, " token"]:
    """The product over the layers of (A + I) / 2, each row divided by its sum; A is the mean of the heads.

    Abnar & Zuidema 2020, equation 1. Rows of A that sum to less than 1 have a sink outside the keys.
    """
    run.refuse_unshown_layers("rollout")
    mixed = []
    for weights in mean_weights(run):
        half = (weights.double() + torch.eye(len(weights), device=weights.device)) / 2
        mixed.append(half / half.sum(dim=-1, keepdim=True))
    return run.of_prompt(rolled_out(mixed, run.first))


@dataclass(frozen=True)
class CarriedVectors:
    """What the heads of a layer carry from each token: their weights, and v W_O of each token."""

    weights: Float[Tensor, "head query key"]
    vectors: Float[Tensor, "head key embed"]

    def rows(self, first: int) -> Iterator[tuple[range, Float[Tensor, "query key embed"]]]:
        """Some queries at a time from `first` on, and what each gets of each token, over all heads."""
        num_queries = self.weights.shape[1]
        step = max(1, QUERIES_AT_ONCE // self.vectors[0].numel())
        for start in range(first, num_queries, step):
            rows = range(start, min(start + step, num_queries))
            weights = self.weights[:, rows.start : rows.stop]
            yield rows, torch.einsum("hqk,hke->qke", weights, self.vectors)


class CarryingLayer:
    """A layer in a run: what its heads carry, what its block reads, what W_O gives."""

    def __init__(self, run: AnswerRun, stream: Stream, call: int) -> None:
        layer = stream.attention[call]
        assert isinstance(layer.attention, AttentionLayer)  # Stream refuses others
        self.attention = layer.attention
        self.read, self.projected = stream.read_by(call), stream.projected(call)
        self.adds = stream.adds_to_stream(call)
        self.projection = stream.projection(call)
        self.name = run.pretrained.module_name(layer.module)

    @property
    def num_heads(self) -> int:
        """How many heads read."""
        return self.attention.shape[1]

    def columns(self) -> Float[Tensor, "head embed value_dim"]:
        """Of each head those of W_O."""
        return projection_of_heads(self.projection, self.num_heads)

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

    @property
    def bias(self) -> Tensor | float:
        """That of W_O."""
        _, bias = matrix_and_bias(self.projection)
        return 0.0 if bias is None else bias.detach()


def carrying_layers(run: AnswerRun, way: str) -> Iterator[CarryingLayer]:
    """The layers of a run in order. UserError for a model whose stream is no sum of such parts."""
    run.refuse_unshown_layers(way)
    try:
        stream = run.stream
    except UserError as error:
        run.refuse(way, error.lines[0].rpartition("use another: ")[2])
    if stream.linear or len(stream.attention) < stream.num_blocks:
        run.refuse(way, "some layers mix tokens without a softmax, or not at all")
    for call in stream.attention:
        yield CarryingLayer(run, stream, call)


@torch.no_grad()
def value_norms(run: AnswerRun) -> Float[Tensor, " token"]:
    """||sum over heads of a_ij v_j W_O||, as a share of the sum over j, mean over the layers.

    Kobayashi et al. 2020, equation 6. UserError where the vectors are not what W_O gives.
    """
    total = torch.zeros(len(run.answer), len(run.ids), dtype=torch.float64)
    num_layers = 0
    for layer in carrying_layers(run, "value_norms"):
        num_layers += 1
        for rows, vectors in layer.carried().rows(run.first):
            if not is_close(vectors.sum(dim=1) + layer.bias, layer.projected[rows.start : rows.stop]):
                run.refuse("value_norms", f"the vectors of {layer.name} do not add up to what W_O gives")
            norms = vectors.double().norm(dim=-1)
            total[rows.start - run.first : rows.stop - run.first] += (
                norms / norms.sum(dim=-1, keepdim=True)
            ).cpu()
    return run.of_prompt(total / num_layers)


@torch.no_grad()
def alti(run: AnswerRun) -> Float[Tensor, " token"]:
    """The product over the layers of C, c_ij ~ max(0, ||y_i||_1 - ||y_i - T_i(x_j)||_1), rows of sum 1.

    y_i is the stream behind the attention: its own vector x_i and the vectors that the heads carry,
    y_i = sum over j of T_i(x_j) + b_O. Ferrando et al. 2022, equations 9 and 10. UserError where a block adds
    something else to its stream.
    """
    mixed = []
    for layer in carrying_layers(run, "alti"):
        if not layer.adds:
            run.refuse("alti", f"the block of {layer.name} does not add to its stream what W_O gives")
        count = len(run.ids)
        matrix = torch.zeros(count, count, dtype=torch.float64)
        for rows, vectors in layer.carried().rows(0):
            places = torch.arange(rows.start, rows.stop)
            vectors[places - rows.start, places] += layer.read[rows.start : rows.stop]
            whole = layer.read[rows.start : rows.stop] + layer.projected[rows.start : rows.stop]
            if not is_close(vectors.sum(dim=1) + layer.bias, whole):
                run.refuse("alti", f"the vectors of {layer.name} do not add up to what W_O gives")
            size = whole.abs().sum(dim=-1, keepdim=True)
            rest = (whole.unsqueeze(1) - vectors).abs_().sum(dim=-1)
            near = (size - rest).clamp_min(0)
            matrix[rows.start : rows.stop] = (near / near.sum(dim=-1, keepdim=True)).nan_to_num(0.0).cpu()
        mixed.append(matrix)
    return run.of_prompt(rolled_out(mixed, run.first))


@torch.no_grad()
def direct_contributions(run: AnswerRun, directions: Float[Tensor, "new embed"]) -> Float[Tensor, " token"]:
    """What the heads of all layers carry from each token straight into the logits, sum over the heads.

    `directions` are what the logit of each token of the answer reads of the last stream. UserError where a
    block adds something else to its stream.
    """
    total = torch.zeros(len(run.answer), len(run.ids), dtype=torch.float64)
    for layer in carrying_layers(run, "direct_logit"):
        if not layer.adds:
            run.refuse("direct_logit", f"the block of {layer.name} does not add what W_O gives")
        columns = torch.einsum("te,hev->htv", directions.to(layer.read), layer.columns())
        read = torch.einsum("htv,hkv->htk", columns, layer.values())
        total += (layer.weights()[:, run.first :] * read).double().sum(dim=0).cpu()
    return run.of_prompt(total)
