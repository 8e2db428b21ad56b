"""The settings of the classic mistakes of attention, each beside what is right."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from attncli.spec.fields import Contradiction, Size, contradiction
from attncli.spec.text import TOKENIZERS, TextSpec

PitfallName = Literal[
    "softmax-twice",
    "no-scaling",
    "uniform-projections",
    "merged-heads",
    "vocabulary-labels",
    "wrong-axis",
    "late-mask",
]


class PitfallsSpec(TextSpec):
    experiment: ClassVar[str] = "pitfalls"

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZERS)
    pitfall: PitfallName | None = Field(
        None,
        description="the mistake to show, wrong beside right (default: a line for each)",
    )
    num_heads: Size = Field(4, description="heads that are split and merged")

    def idle_keys(self) -> frozenset[str]:
        splits_heads = self.pitfall in (None, "merged-heads")
        return super().idle_keys() | {"batch_size"} | (set() if splits_heads else {"num_heads"})

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.batch_size:
            yield contradiction("batch_size", "is not for pitfalls: each shows one sequence")
        if "num_heads" in self.idle_keys():
            if self.given("num_heads"):
                yield contradiction("num_heads", f"has no say in {self.pitfall}", "pitfall")
        elif self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by num_heads ({self.num_heads})"
            yield contradiction("embed_dim", message, "num_heads")
