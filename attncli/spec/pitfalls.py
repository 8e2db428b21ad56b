"""The settings of the classic mistakes of attention, each beside what is right."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from attncli.spec.fields import Contradiction, Size, contradiction
from attncli.spec.sizes import BYTES_PER_WEIGHT
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
    experiment = "pitfalls"
    module = "attncli.experiments.pitfalls.experiment"
    examples = (
        "attn pitfalls",
        "attn pitfalls softmax-twice --num-tokens 8",
        "attn pitfalls merged-heads --format json",
    )
    next_steps = ("late-mask", "no-scaling", "--show all", "--format heatmap")
    argument = "pitfall"
    group = "Pitfalls"
    heading_keys = ("pitfall", "file", "embedding", "embed_dim", "num_heads", "seed")

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZERS)
    pitfall: PitfallName | None = Field(
        None,
        description="the mistake to show, wrong beside right (default: one line for each)",
    )
    num_heads: Size = Field(4, description="heads that are split and merged")

    def can_run_together(self) -> bool:
        return False

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        pairs = 2 * num_queries * (num_queries + self.embed_dim) + 4 * self.embed_dim**2
        return pairs * BYTES_PER_WEIGHT

    def unused_keys(self) -> frozenset[str]:
        splits_heads = self.pitfall in (None, "merged-heads")
        return super().unused_keys() | {"batch_size"} | (set() if splits_heads else {"num_heads"})

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.batch_size:
            yield contradiction("batch_size", "is not for pitfalls: each shows one sequence")
        if "num_heads" in self.unused_keys():
            if self.given("num_heads"):
                yield contradiction("num_heads", f"is not used by {self.pitfall}", "pitfall")
        elif self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by num_heads ({self.num_heads})"
            yield contradiction("embed_dim", message, "num_heads")
