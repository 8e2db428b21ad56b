"""Mistakes of order: heads merged along the wrong axis, labels from the sorted vocabulary."""

import torch
from torch import Tensor

from attncli.experiments.pitfalls.shown import Figures, Shown, Start, projected_scores
from attncli.mechanisms.heads import merge_heads, split_heads
from attncli.report import Table


def _merged_wrongly(heads: Tensor) -> Tensor:
    """(head, token, dim) viewed as (token, head * dim): the right shape, and rows of several tokens."""
    num_heads, num_tokens, dim = heads.shape
    return heads.contiguous().view(num_tokens, num_heads * dim)


def merged_heads(numbers: Start) -> Shown:
    """view alone against transpose and view: split and merged again, the input must come back."""
    num_heads, dim = numbers.spec.num_heads, numbers.vectors.shape[-1] // numbers.spec.num_heads
    heads = split_heads(numbers.vectors, num_heads)
    wrong, right = _merged_wrongly(heads), merge_heads(heads)
    # The same moves on the tokens' numbers show where each slice comes from.
    count = len(numbers.tokens)
    positions = torch.arange(count).float().unsqueeze(-1).expand(-1, num_heads * dim).contiguous()
    origin = split_heads(positions, num_heads)
    wrong_origin, right_origin = (
        merged[:, ::dim].long() for merged in (_merged_wrongly(origin), merge_heads(origin))
    )

    def figures(merged: Tensor, of_token: Tensor) -> Figures:
        rows = (of_token == torch.arange(count).unsqueeze(-1)).all(dim=-1)
        difference = (merged - numbers.vectors).abs().max().item()
        return {"difference_from_input": difference, "rows_of_one_token": int(rows.sum())}

    return Shown(
        "token_of_slice",
        ("token", "head"),
        wrong_origin,
        right_origin,
        figures(wrong, wrong_origin),
        figures(right, right_origin),
        more={"merged": (("token", "dim"), wrong, right)},
    )


def vocabulary_labels(numbers: Start) -> Shown:
    """Rows named by the sorted vocabulary against rows named by the sentence's words in their order."""
    weights = projected_scores(numbers).softmax(dim=-1)
    count = len(numbers.tokens)
    vocabulary = sorted(set(numbers.tokens))
    wrong_labels = [*vocabulary, *["(no label)"] * (count - len(vocabulary))]
    readings = []
    for query, key in enumerate(weights.argmax(dim=-1).tolist()):
        readings.append(
            {
                "row": str(query),
                "wrong": f"{wrong_labels[query]} → {wrong_labels[key]}",
                "right": f"{numbers.tokens[query]} → {numbers.tokens[key]}",
                "weight": weights[query, key].item(),
            }
        )
    named = sum(label != token for label, token in zip(wrong_labels, numbers.tokens, strict=True))
    return Shown(
        "weights",
        ("query", "key"),
        weights,
        weights,
        {"rows_named_wrongly": named, "labels": len(vocabulary)},
        {"rows_named_wrongly": 0, "labels": count},
        statistics={"readings": Table(readings)},
    )
