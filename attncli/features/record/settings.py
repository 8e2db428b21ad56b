"""The settings of `attn record`, as reports and stores keep them."""

from typing import ClassVar, Literal

from attncli.core.names import HEAD_STATISTICS, REQUESTED_PATTERNS
from attncli.settings.fields import Spec

MODEL_STATISTICS = (*REQUESTED_PATTERNS, "high_norm_mass", "value_norm", "induction_stripe")
"""Statistics that recordings lack: they need a vocabulary or the modules of a known model."""
RECORDED_STATISTICS = tuple(name for name in HEAD_STATISTICS if name not in MODEL_STATISTICS)


class RecordSpec(Spec):
    """Settings of a recording: `program` is a name or a command; `tokens` and `image` are file names."""

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
        """Return the seed and the device, which the program chooses."""
        return frozenset({"seed", "device"})
