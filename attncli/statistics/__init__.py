"""Numbers that describe attention: each one formula with its source."""

from collections.abc import Callable

from torch import Tensor

from attncli.statistics.concentration import max_weight, participation
from attncli.statistics.distance import distance
from attncli.statistics.entropy import entropy, normalized_entropy
from attncli.statistics.sinks import sink_mass

# Each takes weights (*batch, query, key) and the visible keys (query, key), and gives (*batch, query).
ROW_STATISTICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "entropy": entropy,
    "normalized_entropy": normalized_entropy,
    "max_weight": max_weight,
    "sink_mass": sink_mass,
    "distance": distance,
    "participation": participation,
}
