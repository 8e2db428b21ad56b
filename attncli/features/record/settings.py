"""What `attn record` was asked for, as reports and stores have it."""

from typing import ClassVar, Literal

from attncli.core.names import HEAD_STATISTICS, REQUESTED_PATTERNS
from attncli.settings.fields import Spec

OF_MODELS = (*REQUESTED_PATTERNS, "high_norm_mass", "value_norm", "induction_stripe")
"""Statistics that no recording has: they need a vocabulary, or the model's own modules."""
RECORDED_STATISTICS = tuple(name for name in HEAD_STATISTICS if name not in OF_MODELS)


class RecordSpec(Spec):
    """What was recorded, and how: `program` is its name or command, `tokens` and `image` are files."""

    experiment: ClassVar[str] = "record"
    examples: ClassVar[tuple[str, ...]] = ()

    program: str = ""
    modules: str | None = None
    calls: int | Literal["all", "last"] = 1
    heads: tuple[str, ...] = ()
    tokens: str | None = None
    grid: str | None = None
    image: str | None = None

    def unused_keys(self) -> frozenset[str]:
        """Seed and device are the program's own."""
        return frozenset({"seed", "device"})
