"""The settings of following a computation in steps."""

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from attncli.spec.fields import Contradiction, Count, Spec, contradiction


class ExplainSpec(Spec):
    """Whether the computation is followed in steps."""

    explain: bool = Field(
        False, description="follow the computation in steps, each with its formula, shapes and numbers"
    )


class ExplainRowSpec(ExplainSpec):
    """Which row of the weights is worked out, too."""

    worked_keys: ClassVar[frozenset[str]] = frozenset({"token"})

    token: Count | None = Field(
        None, description="the query, from 0, whose row explain works out (default: the last)"
    )

    def idle_keys(self) -> frozenset[str]:
        return super().idle_keys() | (frozenset() if self.explain else self.worked_keys)

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if not self.explain:
            for key in self.given(*sorted(self.worked_keys)):
                yield contradiction(key, "needs explain: it chooses what is worked out", "explain")
