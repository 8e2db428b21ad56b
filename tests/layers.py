"""Layers of plain tensors, and what the engines make of them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, ScoreRules, Visibility, Wanted, scale_factors

SEEING = ("causal", "window", "key_mask", "rule")


def checked_layer(
    query: Tensor, key: Tensor, value: Tensor, *, scale: str | float = "sqrt", **settings: Any
) -> AttentionLayer:
    """Of tensors (token, dim) with text and head before them, or head alone, or neither.

    `settings` are those of Visibility and of ScoreRules.
    """
    query, key, value = (part.view((1,) * (4 - part.ndim) + part.shape) for part in (query, key, value))
    each, product = scale_factors(scale, query.shape[-1])
    seeing = {name: settings.pop(name) for name in SEEING if name in settings}
    visibility = Visibility(query.shape[2], key.shape[2], **seeing)
    return AttentionLayer(query, key, value, visibility, each * each * product, ScoreRules(**settings))


class Whole(NamedTuple):
    """Whole matrices and the output, with the leading axes of the query; raw scores are query . key."""

    raw_scores: Tensor
    scores: Tensor
    weights: Tensor
    output: Tensor


def attended(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Whole:
    """What `attn` computes of a layer that is made of these."""
    found = attend(
        checked_layer(query, key, value, **settings), Wanted(weights=True, scores=True, output=True)
    )
    lead = query.shape[:-2]
    parts = (found.raw_scores, found.scores, found.weights, found.output)
    return Whole(*(part.reshape(*lead, *part.shape[2:]) for part in parts if part is not None))


def visible_keys(num_queries: int, num_keys: int, **seeing: Any) -> Tensor:
    """The whole matrix of a rule that is the same for all texts: True where a query sees a key."""
    return Visibility(num_queries, num_keys, **seeing).whole(torch.device("cpu"))[0]
