"""A sink outside the keys: a logit in the denominator of every row, so that a query may attend to nothing.

GPT-OSS (2508.10925); after Miller 2023, Attention is off by one, and Xiao et al. 2023 (2309.17453).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def logsumexp_with_sink(
    scores: Float[Tensor, "*batch query key"], sink: Float[Tensor, "*head"]
) -> Float[Tensor, "*batch query"]:
    """ln(sum exp(score) + exp(sink)), the sink a logit a head, or one for all."""
    return torch.logaddexp(scores.logsumexp(dim=-1), sink.to(scores).unsqueeze(-1))


def softmax_with_sink(
    scores: Float[Tensor, "*batch query key"], sink: Float[Tensor, "*head"]
) -> Float[Tensor, "*batch query key"]:
    """exp(score) / (sum exp(score) + exp(sink)): what the sink takes is missing from the row's sum."""
    return (scores - logsumexp_with_sink(scores, sink).unsqueeze(-1)).exp()
