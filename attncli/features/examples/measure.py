"""Find the texts and queries where a statistic of one head is strongest, weakest and typical."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import isnan
from operator import add
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import Wanted
from attncli.core.names import PATTERNS, head_range
from attncli.core.summaries import RunningMoments, mean_interval
from attncli.errors import UserError
from attncli.features.examples.results import ExampleToken, HeadExample, HeadExamples
from attncli.measure.heads import NOTHING_MORE, HeadOptions, MarkedTexts
from attncli.models.capture import capture, in_step, together
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.text_files import ManyTexts, TextLine
from attncli.records.columns import Records

DECIMALS = 5
"""The number of decimals to round to, so that the last bits do not decide the order."""


class HeadWeights(NamedTuple):
    """A head's weights on some texts, and its statistic per row (NaN for a row without counted keys)."""

    weights: Float[Tensor, "text query key"]
    values: Float[Tensor, "text query"]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Sought:
    """The head and the statistic of the examples, and the options for measuring them."""

    layer: int
    head: int
    statistic: str
    options: HeadOptions


def _weights(sought: Sought, readings: Sequence[Reading], pretrained: Pretrained) -> HeadWeights:
    """Run the model up to the head's layer. Raises UserError if the model does not have the head."""
    texts = MarkedTexts(sought.options, readings, pretrained)
    num_heads: dict[int, int] = {}
    weights: list[HeadWeights] = []

    def take(layer: CapturedLayer) -> None:
        num_heads[layer.layer] = layer.attention.shape[1]
        if layer.layer == sought.layer:
            weights.append(_weights_in(layer, sought, texts))
            raise StopCapture

    way = capture(pretrained.model, pretrained.inputs(readings), take)
    if not weights:
        if not num_heads:
            raise UserError(f"model: no attention can be read from {pretrained.name}")
        heads = f"{head_range(num_heads)} in {pretrained.name}"
        raise UserError(f"head: {heads} (got {sought.layer}:{sought.head})")
    return weights[0]._replace(notes=way.notes())


def _weights_in(layer: CapturedLayer, sought: Sought, texts: MarkedTexts) -> HeadWeights:
    num_heads, head, name = layer.attention.shape[1], sought.head, sought.statistic
    if head >= num_heads:
        raise UserError(f"head: {head_range({layer.layer: num_heads})} (got {layer.layer}:{head})")
    rows = (name,) if name not in PATTERNS else ()
    computed = attend(texts.attention(layer), Wanted(rows=rows, kept_heads=(head,)))
    assert computed.kept_weights is not None
    weights = computed.kept_weights[:, 0].double().cpu()
    if rows:
        return HeadWeights(weights, computed.rows[name][:, head].double().cpu())
    patterns = texts.wanted(layer).patterns
    assert patterns is not None
    whole = slice(0, weights.shape[-1])
    block = patterns.block(slice(0, len(weights)), whole, whole)
    mask = block[:, patterns.names.index(name)].double().cpu()
    is_empty = ~(mask.any(dim=-1) & computed.seeing.cpu())
    return HeadWeights(weights, (weights * mask).sum(dim=-1).masked_fill(is_empty, torch.nan))


def head_examples(
    pretrained: Pretrained,
    many: ManyTexts[TextLine],
    *,
    layer: int,
    head: int,
    statistic: str,
    count: int,
    options: HeadOptions = NOTHING_MORE,
) -> HeadExamples:
    """Return `count` examples of each kind among all rows, each from a different text.

    Only one number per row is stored, and the texts of the examples are read again. Raises UserError for a
    head that the model does not have, and for a model with two stacks.
    """
    if pretrained.has_decoder:
        needed = "examples need a model with a single stack"
        raise UserError(f"head: {pretrained.name} has an encoder and a decoder: {needed}")
    sought = Sought(layer, head, statistic, options)
    values: dict[int, npt.NDArray[np.float32]] = {}
    moments: list[RunningMoments] = []
    notes: dict[str, None] = {}
    for batches in together(pretrained.model, many.batches()):
        readings = [[reading for _, reading in batch] for batch in batches]
        every = in_step(pretrained.model, [partial(_weights, sought, some, pretrained) for some in readings])
        for batch, on_texts in zip(batches, every, strict=True):
            notes |= dict.fromkeys(on_texts.notes)
            moments.append(RunningMoments.of(on_texts.values.nanmean(dim=-1)))
            for (line, _), text_values in zip(batch, on_texts.values, strict=True):
                values[line.line] = text_values.float().numpy()
    chosen, median = choose(dict(sorted(values.items())), count)
    lines = {line for rows in chosen.values() for line, _ in rows}
    texts = {number: line for number, line in many.file.numbered() if number in lines}
    examples = list(_examples(sought, chosen, texts, many, pretrained))
    total = reduce(add, moments)
    lower, upper = mean_interval(total.count, total.mean, total.squares)
    return HeadExamples(
        rows=HeadExample.rows(row for row, _ in examples),
        num_texts=int(total.count),
        mean=total.mean.item() if total.count else None,
        lower=_number(lower.item()),
        upper=_number(upper.item()),
        median=_number(median),
        tokens=ExampleToken.rows(token for _, tokens in examples for token in tokens),
        notes=tuple(notes),
    )


def _number(value: float) -> float | None:
    return None if isnan(value) else value


def choose(
    values: dict[int, npt.NDArray[np.float32]], count: int
) -> tuple[dict[str, list[tuple[int, int]]], float]:
    """Return the line and query of each example, and the median over all rows; the first line wins ties."""
    measured = {line: text_values for line, text_values in values.items() if not np.isnan(text_values).all()}
    if not measured:
        return {}, float("nan")
    every = np.concatenate(list(measured.values()))
    median = float(np.median(every[~np.isnan(every)]))
    distances: dict[str, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]] = {
        "strongest": np.negative,
        "weakest": np.positive,
        "typical": lambda text_values: np.abs(text_values - median),
    }
    chosen = {}
    for kind, distance in distances.items():
        best = []
        for line, text_values in measured.items():
            far = np.round(distance(text_values), DECIMALS)
            query = int(np.nanargmin(far))
            best.append((far[query], line, query))
        chosen[kind] = [(line, query) for _, line, query in sorted(best)[:count]]
    return chosen, median


def _examples(
    sought: Sought,
    chosen: Mapping[str, Sequence[tuple[int, int]]],
    texts: Mapping[int, TextLine],
    many: ManyTexts[TextLine],
    pretrained: Pretrained,
) -> Iterator[tuple[HeadExample, Records[ExampleToken]]]:
    """Yield each example with the tokens of its text."""
    for kind, places in chosen.items():
        for rank, (line, query) in enumerate(places):
            reading = many.read(texts[line])
            on_text = _weights(sought, [reading], pretrained)
            tokens = pretrained.written_tokens(reading.text.in_words())
            weights: list[float] = on_text.weights[0, query].tolist()
            key = max(range(len(weights)), key=weights.__getitem__)
            label = texts[line].label
            yield (
                HeadExample.single(
                    kind=kind,
                    rank=rank,
                    text=label,
                    value=on_text.values[0, query].item(),
                    query=query,
                    query_token=tokens[query],
                    key=key,
                    key_token=tokens[key],
                    key_weight=weights[key],
                ),
                ExampleToken.table(
                    kind=[kind] * len(tokens),
                    rank=[rank] * len(tokens),
                    text=[label] * len(tokens),
                    position=range(len(tokens)),
                    token=tokens,
                    weight=weights,
                ),
            )
