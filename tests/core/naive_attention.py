"""Every result for a layer, one row of one head at a time, in float64."""

import math
from typing import Any

import numpy as np

from attncli.core.layer import AttentionLayer, Visibility, Wanted
from tests.naive_heads import pattern

AROUND = ((0, 1), (1, 0), (1, 1))
"""How many rows and columns a neighbour is away."""


def sees(visibility: Visibility, text: int, i: int, j: int) -> bool:
    """The visible entries, one by one, as the docstring defines them."""
    position = i + (visibility.num_keys - visibility.num_queries if visibility.causal else 0)
    agreed = [not visibility.causal or j <= position]
    if visibility.window is not None:
        agreed.append(abs(position - j) < visibility.window)
    for part in (visibility.key_mask, whole_rule(visibility)):
        if part is not None:
            own = part[text if len(part) > 1 else 0]
            agreed.append(bool(own[j] if own.ndim == 1 else own[i, j]))
    return all(agreed)


def whole_rule(visibility: Visibility) -> Any:
    import torch

    if visibility.rule is None:
        return None
    return visibility.rule(torch.arange(visibility.num_queries), torch.arange(visibility.num_keys))


def score(layer: AttentionLayer, text: int, head: int, i: int, j: int) -> tuple[float, float]:
    """query . key, and the input of the softmax."""
    rules = layer.rules
    shared = head // (layer.query.shape[1] // layer.key.shape[1])
    raw = float(layer.query[text, head, i].double() @ layer.key[text, shared, j].double())
    finished = raw * layer.scale
    if rules.softcap is not None:
        finished = rules.softcap * math.tanh(finished / rules.softcap)
    if rules.bias is not None:
        places = (text, head, i, j)
        finished += float(
            rules.bias[tuple(min(at, size - 1) for at, size in zip(places, rules.bias.shape, strict=True))]
        )
    return raw, finished / rules.temperature


def sink_of(layer: AttentionLayer, text: int, head: int) -> float:
    if layer.rules.sink is None:
        return -math.inf
    num_texts, num_heads = layer.rules.sink.shape
    return (
        float(layer.rules.sink[min(text, num_texts - 1), min(head, num_heads - 1)]) / layer.rules.temperature
    )


def row_statistics(p: np.ndarray, scores: np.ndarray, position: int, visible: int) -> dict[str, float]:
    n = len(p)
    first, nearest = min(4, math.ceil(n / 128)), min(64, math.ceil(n / 8))
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    return {
        "entropy": entropy,
        "normalized_entropy": entropy / math.log(visible) if visible > 1 else math.nan,
        "max_weight": max(p),
        "sink_mass": p[0],
        "distance": sum(x * abs(position - j) for j, x in enumerate(p)),
        "participation": 1 / sum(x * x for x in p),
        "local_mass": sum(x for j, x in enumerate(p) if j < first or abs(position - j) < nearest),
        "max_score": max(scores),
    }


def naive(layer: AttentionLayer, wanted: Wanted) -> dict[str, Any]:
    """Results by the names of `Computed`; moments and row statistics by their own names."""
    num_texts, num_heads, num_queries, num_keys = layer.shape
    rows = (num_texts, num_heads, num_queries)
    raw, scores, weights = (np.full((*rows, num_keys), fill) for fill in (-np.inf, -np.inf, 0.0))
    numbers = {name: np.full(rows, np.nan) for name in ("logsumexp", "previous_token", *wanted.rows)}
    top_keys, top_weights = np.full((*rows, wanted.top_k), -1), np.full((*rows, wanted.top_k), np.nan)
    visible = np.zeros((num_texts, num_queries), dtype=np.int64)
    for text in range(num_texts):
        for i in range(num_queries):
            position = i + (num_keys - num_queries if layer.visibility.causal else 0)
            seen = [j for j in range(num_keys) if sees(layer.visibility, text, i, j)]
            visible[text, i] = len(seen)
            for head in range(num_heads) if seen else ():
                row = (text, head, i)
                for j in seen:
                    raw[*row, j], scores[*row, j] = score(layer, *row, j)
                sink = sink_of(layer, text, head)
                largest = max(*scores[row][seen], sink)
                total = math.fsum(math.exp(x - largest) for x in (*scores[row][seen], sink))
                logsumexp = largest + math.log(total)
                for j in seen:
                    weights[*row, j] = math.exp(scores[*row, j] - largest) / total
                numbers["logsumexp"][row] = logsumexp
                if 0 <= position - 1 < num_keys:
                    numbers["previous_token"][row] = weights[*row, position - 1]
                for name, number in row_statistics(weights[row], scores[row], position, len(seen)).items():
                    if name in wanted.rows:
                        numbers[name][row] = number
                best = sorted(seen, key=lambda j: (-scores[*row, j], j))[: wanted.top_k]
                top_keys[row][: len(best)] = best
                top_weights[row][: len(best)] = weights[row][best]
    return {
        **numbers,
        **moments(scores),
        **pooled(weights, wanted.pooled or 1),
        "raw_scores": raw,
        "scores": scores,
        "weights": weights,
        "visible": visible,
        "top_keys": top_keys,
        "top_weights": top_weights,
        "sums": weights.sum(axis=-1),
        "output": weights
        @ np.repeat(layer.value.double().numpy(), num_heads // layer.value.shape[1], axis=1),
        "kept_weights": weights[:, list(wanted.kept_heads)],
        "head_mean": weights.mean(axis=1),
        "received_mass": weights.sum(axis=2),
        "pattern_mass": pattern_mass(weights, wanted),
    }


def moments(scores: np.ndarray) -> dict[str, np.ndarray]:
    found = {name: np.full(scores.shape[:2], np.nan) for name in ("mean", "variance", "smallest", "largest")}
    for place in np.ndindex(scores.shape[:2]):
        own = scores[place][scores[place] > -np.inf]
        if len(own):
            found["mean"][place], found["smallest"][place] = own.mean(), own.min()
            found["largest"][place] = own.max()
        if len(own) > 1:
            found["variance"][place] = own.var(ddof=1)
    return found


def pooled(weights: np.ndarray, size: int) -> dict[str, np.ndarray]:
    steps = [-(-count // size) for count in weights.shape[-2:]]
    starts = [range(0, count, step) for count, step in zip(weights.shape[-2:], steps, strict=True)]
    blocks = [[weights[..., i : i + steps[0], j : j + steps[1]] for j in starts[1]] for i in starts[0]]
    return {
        name: np.stack([np.stack([pool(block, axis=(-2, -1)) for block in row], -1) for row in blocks], -2)
        for name, pool in (("pooled_mean", np.mean), ("pooled_max", np.max))
    }


def pattern_mass(weights: np.ndarray, wanted: Wanted) -> np.ndarray:
    assert wanted.patterns is not None
    patterns = wanted.patterns
    num_texts, num_heads, num_queries, num_keys = weights.shape
    num_tokens = patterns.ids.shape[1]
    mass = np.zeros((num_texts, num_heads, len(patterns.names)))
    for text, ids in enumerate(patterns.ids.tolist()):
        for number, name in enumerate(patterns.names):
            matrix = np.zeros((num_tokens, num_tokens))
            if name == "sink_mass_4":
                matrix[:, :4] = 1
            elif name == "induction_stripe":
                for i in range(num_tokens - patterns.repeat, num_tokens):
                    matrix[i, i + 1 - patterns.repeat] = 1
            elif name in ("special_mass", "from_to_weight", "others_to_weight"):
                special, queries, keys = (np.array(flags[text].tolist(), float) for flags in patterns.marks)
                looking = queries if name == "from_to_weight" else 1 - queries
                matrix[:] = special if name == "special_mass" else np.outer(looking, keys)
                matrix[:, : patterns.first_key] = 0
            elif name in ("distance_seconds", "near_mass"):
                apart = np.abs(np.subtract.outer(patterns.seconds.tolist(), patterns.seconds.tolist()))
                apart = np.where(np.isnan(apart), np.inf if name == "near_mass" else 0.0, apart)
                matrix[:] = apart < 0.0999 if name == "near_mass" else apart
                matrix[:, : patterns.first_key] = 0
            elif name == "neighbour":
                places = patterns.plane.places.tolist()
                for i, (row, column) in enumerate(places):
                    for j, (other_row, other_column) in enumerate(places):
                        matrix[i, j] = (abs(row - other_row), abs(column - other_column)) in AROUND
                matrix[:, : patterns.first_key] = 0
            else:
                matrix[:] = pattern(ids, name)
                matrix[:, : patterns.first_key] = 0
            mass[text, :, number] = (weights[text] * matrix[:num_queries, :num_keys]).sum(axis=(-2, -1))
    return mass
