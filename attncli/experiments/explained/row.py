"""The query row that is worked out, and the numbers of the report that belong to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attncli.experiments.explained.terms import Numbers, part
from attncli.experiments.reading.texts import check_token
from attncli.report import NamedTensor, Report
from attncli.spec.fields import Spec


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

    def of_half(self, half: int) -> "Row":
        """The same row in one half of differential attention."""
        return replace(self, half=half)

    def name(self, name: str) -> str:
        """The name of a tensor of this half."""
        if self.half is None or name not in ("scores", "scaled_scores", "weights"):
            return name
        return f"second_{name}" if self.half else {"weights": "first_weights"}.get(name, name)

    def whole(self, name: str) -> Numbers:
        """A tensor of this head and half, whole; a key/value head serves several query heads."""
        tensor = self.tensors[self.name(name)]
        head = self.head
        if "head" in tensor.axes:
            num_heads = self.tensors["weights"].values.shape[self.tensors["weights"].axes.index("head")]
            head //= num_heads // tensor.values.shape[tensor.axes.index("head")]
        numbers = part(tensor, batch=0, head=head)
        if self.half is not None and name in ("query", "key", "projected_query", "projected_key"):
            numbers = np.split(numbers, 2, axis=-1)[self.half]
        return numbers

    def of_query(self, name: str) -> Numbers:
        """The worked query's row of a tensor."""
        return np.asarray(self.whole(name)[self.token])

    @property
    def strongest(self) -> int:
        """The key with the largest weight: the one whose numbers are written out."""
        return int(self.of_query("weights").argmax())

    def raw_scores(self) -> Numbers:
        """query · key for every key, hidden ones, too: masking comes later."""
        return np.asarray(self.whole("key") @ self.of_query("query"))


def worked_row(spec: Spec, report: Report) -> Row:
    """The row that the spec asks for, else the last, of head 0; UserError where it is not there."""
    chosen: int | None = getattr(spec, "token", None)
    check_token(chosen, len(report.tokens))
    token = len(report.tokens) - 1 if chosen is None else chosen
    has_heads = "head" in report.tensors["weights"].axes
    return Row(report, token, (getattr(spec, "head", None) or 0) if has_heads else 0)
