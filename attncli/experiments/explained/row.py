"""The query row that is worked out, and the numbers of the report that belong to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attncli.experiments.explained.terms import Numbers, part
from attncli.experiments.texts import check_token
from attncli.report import NamedTensor, Report
from attncli.spec import Spec


@dataclass(frozen=True)
class Row:
    """One query of a report, in one head where there are several, in batch item 0 where there is a batch."""

    report: Report
    token: int
    head: int = 0

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
        """`, head 2` where there are several heads."""
        return f", head {self.head}" if "head" in self.tensors["weights"].axes else ""

    def whole(self, name: str) -> Numbers:
        """A tensor of this head, whole; a key/value head serves several query heads."""
        tensor = self.tensors[name]
        head = self.head
        if "head" in tensor.axes:
            num_heads = self.tensors["weights"].values.shape[self.tensors["weights"].axes.index("head")]
            head //= num_heads // tensor.values.shape[tensor.axes.index("head")]
        return part(tensor, batch=0, head=head)

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
