"""The query row that is explained, its numbers in the report, and its scores from raw to finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attncli.experiments.explained.terms import Numbers, largest_difference, part
from attncli.experiments.reading.texts import check_token
from attncli.mechanisms.dot_product_attention import score_factor
from attncli.report import Cell, NamedTensor, Report
from attncli.spec.attention import AttentionSpec
from attncli.spec.explain import ExplainRowSpec

BIASES = ("bias", "position_bias")


@dataclass(frozen=True)
class Row:
    """One query of a report, in one head where there are several, in batch item 0 where there is a batch.

    `half` is 0 or 1 in differential attention, whose two softmaxes take a half of query and key each.
    """

    report: Report
    token: int
    head: int = 0
    half: int | None = None

    @property
    def tensors(self) -> Mapping[str, NamedTensor]:
        """The tensors of the report."""
        return self.report.tensors

    @property
    def key_tokens(self) -> Sequence[str]:
        """The tokens of the keys."""
        return self.report.context_tokens or self.report.tokens

    @property
    def place(self) -> str:
        """`, head 2` where there are several heads, `, first half` in differential attention."""
        head = f", head {self.head}" if self.has_heads else ""
        return head if self.half is None else f"{head}, {('first', 'second')[self.half]} half"

    @property
    def has_heads(self) -> bool:
        """Whether there is a head axis."""
        return "head" in self.tensors["weights"].axes

    @property
    def strongest(self) -> int:
        """The key with the largest weight: the one whose numbers are written out."""
        return int(self.of_query("weights").argmax())

    def of_half(self, half: int) -> "Row":
        """The same row in one half of differential attention."""
        return replace(self, half=half)

    def name(self, name: str) -> str:
        """The name of a tensor of this half."""
        if self.half is None or name not in ("scores", "scaled_scores", "weights"):
            return name
        return f"second_{name}" if self.half else {"weights": "first_weights"}.get(name, name)

    def projected(self, name: str) -> str:
        """The tensor of query or key before anything normalised or rotated it."""
        return f"projected_{name}" if f"projected_{name}" in self.tensors else name

    def whole(self, name: str) -> Numbers:
        """A tensor of this head and half, whole; a key/value head serves several query heads."""
        tensor, weights = self.tensors[self.name(name)], self.tensors["weights"]
        head = self.head
        if "head" in tensor.axes:
            num_heads = weights.values.shape[weights.axes.index("head")]
            head //= num_heads // tensor.values.shape[tensor.axes.index("head")]
        numbers = part(tensor, batch=0, head=head)
        if self.half is not None and name in ("query", "key", "projected_query", "projected_key"):
            numbers = np.split(numbers, 2, axis=-1)[self.half]
        return numbers

    def of_query(self, name: str) -> Numbers:
        """The explained query's row of a tensor."""
        return np.asarray(self.whole(name)[self.token])

    def compared(self, computed: Numbers, name: str) -> dict[str, Cell]:
        """The largest difference of numbers computed for the explained query from the report's."""
        return {"largest difference from the report": largest_difference(computed, self.of_query(name))}


def explained_row(spec: ExplainRowSpec, report: Report) -> Row:
    """The row and head that the spec asks for, else the last row of head 0; UserError for a missing token."""
    check_token(spec.token, len(report.tokens))
    token = len(report.tokens) - 1 if spec.token is None else spec.token
    row = Row(report, token)
    return replace(row, head=getattr(spec, "head", None) or 0) if row.has_heads else row


@dataclass(frozen=True)
class RowScores:
    """finished = (softcap(factor raw) + bias) / temperature for every key, hidden ones, too.

    Masking comes later. `bias` names a tensor of the report; `sink` is the logit as the softmax takes it.
    """

    factor: float
    softcap: float | None
    bias: str | None
    temperature: float
    sink: float | None
    raw: Numbers
    scaled: Numbers
    capped: Numbers
    biased: Numbers
    finished: Numbers

    @property
    def is_scale_alone(self) -> bool:
        """Whether nothing follows the scale."""
        return self.softcap is None and self.bias is None and self.temperature == 1


def row_scores(spec: AttentionSpec, row: Row) -> RowScores:
    """The scores of a row, step by step: a model's layer has its own rule, which its report holds."""
    query = row.of_query("query")
    factor, softcap, temperature, sink = 0.0, spec.softcap, spec.temperature, spec.sink
    if spec.model is not None:
        rule = row.report.numbers("score_rule")
        factor, softcap, sink = rule["scale"] or 0.0, rule["softcap"], rule["sink"]
    else:
        factor = score_factor(spec.scale, len(query))
    bias = next((name for name in BIASES if name in row.tensors), None)
    raw = np.asarray(row.whole("key") @ query)
    scaled = raw * factor
    capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
    biased = capped if bias is None else capped + row.of_query(bias)
    sink = None if sink is None else sink / temperature
    return RowScores(
        factor, softcap, bias, temperature, sink, raw, scaled, capped, biased, biased / temperature
    )
