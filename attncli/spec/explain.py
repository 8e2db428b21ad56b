"""The settings of an explanation: the computation, step by step."""

from typing import ClassVar

from pydantic import Field

from attncli.spec.fields import Contradictions, Count, Spec, contradiction


class ExplainSpec(Spec):
    """Whether the computation is explained."""

    group = "Output"
    explained_by: ClassVar[str]

    explain: bool = Field(
        False,
        description="explain the computation in steps, each with its why, its formula, shapes and numbers",
    )

    def explanation(self) -> str | None:
        return self.explained_by if self.explain else None


class ExplainRowSpec(ExplainSpec):
    """Which row of the weights is explained, too."""

    explained_keys: ClassVar[frozenset[str]] = frozenset({"token"})

    token: Count | None = Field(
        None, description="the query, from 0, whose row is explained (default: the last)"
    )

    def unused_keys(self) -> frozenset[str]:
        return super().unused_keys() | (frozenset() if self.explain else self.explained_keys)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if not self.explain:
            for key in self.given(*sorted(self.explained_keys)):
                yield contradiction(key, "needs explain: it chooses what is explained", "explain")
