"""Weight that is collected by keys."""

from jaxtyping import Float
from torch import Tensor

from attncli.statistics.rows import Rows


def sink_mass(rows: Rows) -> Float[Tensor, "*batch query"]:
    """The weight on the first key. Xiao et al. 2023 (2309.17453): attention sinks."""
    return rows.on_key(0)


def outside_mass(
    logsumexp: Float[Tensor, "*batch query"], sink: Float[Tensor, "*head"]
) -> Float[Tensor, "*batch query"]:
    """exp(sink - logsumexp), the sink in the logsumexp: the weight on no key. GPT-OSS (2508.10925)."""
    return (sink.to(logsumexp).unsqueeze(-1) - logsumexp).exp()


def received_mass(weights: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch key"]:
    """The sum over queries of the weights on a key: what a column of the matrix adds up to."""
    return weights.sum(dim=-2)
