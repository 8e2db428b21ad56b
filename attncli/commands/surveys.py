"""Sentences and statistics that all surveys of heads share."""

from collections.abc import Sequence

import torch

from attncli.core.formulas import sink_rate
from attncli.records.surveys import SinkRate
from attncli.system.plain_text import counted

SINK_THRESHOLD = 0.3
INTERVALS_NOTE = (
    "Means over {kind}s with 95 % intervals (Student's t): a head is named if its whole interval is above "
    "the threshold."
)


def sink_heads_rate(first_key: torch.Tensor) -> SinkRate:
    """Return the share of heads whose mean weight on the first key is above the threshold."""
    rate = sink_rate(first_key.float(), SINK_THRESHOLD)
    return SinkRate.single(sink_rate=rate, sink_threshold=SINK_THRESHOLD)


def ablated_notes(heads: Sequence[str]) -> list[str]:
    """Return the note that names the ablated heads, if there are any."""
    if not heads:
        return []
    word, their = ("head", "its") if len(heads) == 1 else ("heads", "their")
    return [f"Without {word} {', '.join(heads)}: as if {their} columns of W_O were zero."]


def survey_title(name: str, num_heads: int, input_name: str) -> str:
    return f"{name}: {counted(num_heads, 'head')}, on {input_name}."
