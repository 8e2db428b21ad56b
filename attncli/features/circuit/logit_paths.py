"""Effects on the next token's logit through the query, the keys and the values of each head.

A head adds t · z to the logit (as in `attn why`), where z = sum_j w_j v_j is its output at the last token,
which is linear in its values. The effect of its scores is t · z minus its value for uniform weights: the
integral of the gradient as the scores grow from zero to their values (integrated gradients, Sundararajan et
al. 2017, 1703.01365). The gradient itself is close to zero for a weight near 1. Paths through later heads and
MLPs are ignored.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from numpy.polynomial.legendre import leggauss
from torch import Tensor

from attncli.core.layer import AttentionLayer
from attncli.features.circuit.stream_ends import ToUnembedding
from attncli.measure.residual_stream import Stream
from attncli.measure.scores import ScoreRow
from attncli.models.frozen_norms import is_close
from attncli.models.targets import Target

NODES = 24
"""Gauss-Legendre nodes of the integral, over the cube root of the factor of the scores: steep near 0."""


class LogitDirections(NamedTuple):
    """Directions whose inner products with a head's query, key and value are the effects on the logit."""

    head: int
    kv_head: int
    query: Float[Tensor, "token dim"]
    key: Float[Tensor, "token dim"]
    value: Float[Tensor, "token value_dim"]


class LogitPaths:
    """The paths to the logit of the most likely token after a text, in a stream whose end `out` is linear."""

    def __init__(self, stream: Stream, out: ToUnembedding) -> None:
        self.stream, self.out = stream, out
        self._direction, self._bias = Target([out.likeliest]).direction(out.unembedding)
        direction = torch.zeros_like(out.zero_output)
        direction[-1] = self._direction
        gradient = out.gradient(direction)
        self._by_projection: dict[int, Float[Tensor, " out"]] = {}
        for call in reversed(range(stream.num_blocks)):
            by_projection, gradient = stream.frozen.gradients_through(call, gradient)
            self._by_projection[call] = by_projection[-1]

    def added(self, reads: Float[Tensor, "part token dim"]) -> Float[Tensor, " part"]:
        """The contribution of each input of W_U to the logit."""
        return reads[:, -1].double() @ self._direction

    @property
    def bias(self) -> float:
        """The contribution to the logit of the biases after the last block."""
        return float(self.added(self.out.zero_output.unsqueeze(0))) + self._bias

    def head_directions(self, call: int, heads: Iterable[int]) -> list[LogitDirections]:
        """The directions of some heads of a block."""
        attention = self.stream.attention[call].attention
        assert isinstance(attention, AttentionLayer)
        wrote = self.stream.runs[call].mixers[0]
        columns, written = wrote.columns, wrote.heads
        return [
            self._directions(
                attention, head, self._by_projection[call] @ columns[head].double(), written[head, -1]
            )
            for head in heads
        ]

    def _directions(
        self,
        attention: AttentionLayer,
        head: int,
        by_output: Float[Tensor, " value_dim"],
        written: Float[Tensor, " value_dim"],
    ) -> LogitDirections:
        """The directions of a head, from the gradient `by_output` for its input to W_O, `written`."""
        kv_head = head // attention.group
        query = attention.query[0, head].double()
        key, value = (vectors[0, kv_head].double() for vectors in (attention.key, attention.value))
        row = ScoreRow(attention, head, len(query) - 1)
        scores = attention.scale * key @ query[-1]
        weights = row.weights(scores)
        output = weights @ value
        if not is_close(written.double(), output):  # a gate comes before W_O
            by_output = by_output * (written.double() / output).where(output != 0, 0.0)
        decided = attention.scale * decided_by_scores(row, scores, value @ by_output)
        by_query = torch.zeros_like(query)
        by_query[-1] = decided @ key
        return LogitDirections(
            head, kv_head, by_query, torch.outer(decided, query[-1]), torch.outer(weights, by_output)
        )


def decided_by_scores(
    row: ScoreRow, scores: Float[Tensor, " key"], worth: Float[Tensor, " key"]
) -> Float[Tensor, " key"]:
    """c with c · scores = (w - e) · worth, for the weights w of the row, and e for scores of 0.

    c is the integral over t from 0 to 1 of d(w · worth) / d score at t times the scores.
    """
    decided = torch.zeros_like(scores)
    for node, part in zip(*leggauss(NODES), strict=True):
        root = float(node + 1) / 2
        grown = root**3 * scores
        weights = row.weights(grown)
        slope = weights * row.slope(grown) * (worth - weights @ worth)
        decided += 3 * root**2 * float(part) / 2 * slope
    return decided
