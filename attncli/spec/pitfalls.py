"""The settings of the classic mistakes of attention, each beside what is right."""

from typing import Literal

from pydantic import Field

from attncli.spec.fields import BYTES_PER_WEIGHT, Contradictions, Size, contradiction, in_group
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
STATISTICS = {
    "softmax-twice": ("weight_on_future", "first_row_on_itself"),
    "no-scaling": ("score_variance", "mean_max_weight"),
    "uniform-projections": ("score_variance", "mean_max_weight"),
    "merged-heads": ("difference_from_input", "rows_of_one_token"),
    "vocabulary-labels": ("rows_named_wrongly", "labels"),
    "wrong-axis": ("row_sum_error", "column_sum_error"),
    "late-mask": ("smallest_row_sum", "weight_on_future"),
}
"""What each mistake is measured by, computed wrongly and rightly."""


class PitfallsSpec(TextSpec):
    experiment = "pitfalls"
    title = "A classic mistake"
    module = "attncli.experiments.pitfalls.experiment"
    examples = (
        "attn pitfalls",
        "attn pitfalls softmax-twice --num-tokens 8",
        "attn pitfalls merged-heads --format json",
    )
    next_steps = ("late-mask", "no-scaling", "--show all")
    argument = "pitfall"
    group = "Pitfalls"
    heading_keys = ("pitfall", "file", "embedding", "embed_dim", "num_heads", "seed")

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZERS)
    pitfall: PitfallName | None = Field(
        None, description="the mistake to show, wrong beside right (default: one line for each)"
    )
    num_heads: Size = Field(4, description="heads that are split and merged")

    def can_run_together(self) -> bool:
        return False

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        pairs = 2 * num_queries * (num_queries + self.embed_dim) + 4 * self.embed_dim**2
        return pairs * BYTES_PER_WEIGHT

    def single_statistics(self) -> tuple[str, ...]:
        if self.pitfall is None:
            return in_group("pitfalls.N", "wrong", "right")
        own = STATISTICS[self.pitfall]
        wrong_and_right = (*in_group("wrong", *own), *in_group("right", *own))
        if self.pitfall == "no-scaling":
            grown = [f"{side}_{name}" for name in own for side in ("wrong", "right")]
            return (*wrong_and_right, *in_group("growth.N", "head_dim", *grown))
        readings = in_group("readings.N", "weight") if self.pitfall == "vocabulary-labels" else ()
        return (*wrong_and_right, *readings)

    def unused_keys(self) -> frozenset[str]:
        splits_heads = self.pitfall in (None, "merged-heads")
        return super().unused_keys() | {"batch_size"} | (set() if splits_heads else {"num_heads"})

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.batch_size:
            yield contradiction("batch_size", "is not for pitfalls: each shows one sequence")
        if "num_heads" in self.unused_keys():
            if self.given("num_heads"):
                yield contradiction("num_heads", f"is not used by {self.pitfall}", "pitfall")
        elif self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by num_heads ({self.num_heads})"
            yield contradiction("embed_dim", message, "num_heads")
