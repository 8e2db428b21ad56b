"""The texts, and in them the queries, where a statistic of one head is strongest, weakest and typical."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.row_statistics import PATTERNS
from attncli.core.summaries import RunningMoments, mean_interval
from attncli.core.wanted import Wanted
from attncli.errors import UserError
from attncli.measure.heads import MarkedTexts, read_line
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.readings import WORDS_NOTE, ManyTexts
from attncli.models.text_files import TextFile, TextLine
from attncli.report import Cell, Numbers, Report, Statistic, Table
from attncli.report_parts import build_report
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

DECIMALS = 5
"""The last bits of a number must not decide an order."""


class HeadWeights(NamedTuple):
    """The weights of a head on some texts, and its statistic in each row; NaN where that counts no key."""

    weights: Float[Tensor, "text query key"]
    values: Float[Tensor, "text query"]
    notes: Sequence[str] = ()


def _weights(spec: HeadsSpec, readings: Sequence[Reading], pretrained: Pretrained) -> HeadWeights:
    """The head on texts of equal counts, where the run of the model ends; UserError without such a head."""
    texts = MarkedTexts(spec, readings, pretrained)
    chosen, head = spec.chosen_head()
    numbers: list[int] = []
    found: list[HeadWeights] = []

    def take(layer: CapturedLayer) -> None:
        numbers.append(layer.layer)
        if layer.layer == chosen:
            found.append(_weights_in(layer, head, texts))
            raise StopCapture

    way = capture(pretrained.model, pretrained.inputs(readings), take)
    if not found:
        known = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
        raise UserError(f"head: layer must be one of {known} (got {spec.head})")
    return found[0]._replace(notes=way.notes())


def _weights_in(layer: CapturedLayer, head: int, texts: MarkedTexts) -> HeadWeights:
    num_heads = layer.attention.shape[1]
    if head >= num_heads:
        raise UserError(f"head: layer {layer.layer} has {num_heads} heads (got {layer.layer}:{head})")
    name = str(texts.spec.sort)
    rows = (name,) if name not in PATTERNS else ()
    found = attend(texts.attention(layer), Wanted(rows=rows, kept_heads=(head,)))
    assert found.kept_weights is not None
    weights = found.kept_weights[:, 0].double().cpu()
    if rows:
        return HeadWeights(weights, found.rows[name][:, head].double().cpu())
    patterns = texts.wanted(layer).patterns
    assert patterns is not None
    whole = slice(0, weights.shape[-1])
    block = patterns.block(slice(0, len(weights)), whole, whole)
    mask = block[:, patterns.names.index(name)].double().cpu()
    is_empty = ~(mask.any(dim=-1) & found.seeing.cpu())
    return HeadWeights(weights, (weights * mask).sum(dim=-1).masked_fill(is_empty, torch.nan))


def report_examples(
    spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """One row per example, and the weights of its query on the tokens of its text.

    Of every row of every text one number is kept; the texts that are shown are read once more.
    """
    if pretrained.has_decoder:
        raise UserError(f"head: {pretrained.name} has an encoder and a decoder: examples are for one stack")
    assert spec.texts is not None
    values: dict[int, np.ndarray] = {}
    moments: list[RunningMoments] = []
    way_notes: dict[str, None] = {}
    with TextFile(spec.texts, spec.text_group) as file:
        many = ManyTexts(file, lambda line: read_line(spec, line, pretrained), progress)
        for batch in many.batches():
            found = _weights(spec, [reading for _, reading in batch], pretrained)
            way_notes |= dict.fromkeys(found.notes)
            moments.append(RunningMoments.of(found.values.nanmean(dim=-1)))
            for (line, _), of_text in zip(batch, found.values, strict=True):
                values[line.line] = of_text.float().numpy()
        chosen, median = choose(dict(sorted(values.items())), int(spec.num_examples or 0))
        lines = {line for rows in chosen.values() for line, _ in rows}
        texts = {line.line: line for line in file if line.line in lines}
    total = reduce(add, moments)
    lower, upper = (end.item() for end in mean_interval(total.count, total.mean, total.squares))
    num_texts, mean = int(total.count), total.mean.item()
    about = Numbers(num_texts=num_texts, mean=mean, lower=lower, upper=upper, median=median)
    notes = [
        f"{pretrained.name}, head {spec.head}: {spec.sort}, mean over {num_texts:,} texts.",
        "Each example is another text, at its own strongest (weakest, nearest to the median) row.",
        *([WORDS_NOTE] if spec.words else []),
        *many.notes(),
        *way_notes,
    ]
    examples, weights = _tables(spec, chosen, texts, pretrained)
    tables: dict[str, Statistic] = {"examples": examples, "head": about, "example_weights": weights}
    return build_report(spec, Texts(), {}, tables, notes)


def choose(values: dict[int, np.ndarray], count: int) -> tuple[dict[str, list[tuple[int, int]]], float]:
    """Line and query of each example, and the median of all rows; of equal ones the first in the file."""
    known = {line: of_text for line, of_text in values.items() if not np.isnan(of_text).all()}
    if not known:
        return {}, float("nan")
    every = np.concatenate(list(known.values()))
    median = float(np.median(every[~np.isnan(every)]))
    distances: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "strongest": np.negative,
        "weakest": np.positive,
        "typical": lambda of_text: np.abs(of_text - median),
    }
    chosen = {}
    for kind, distance in distances.items():
        best = []
        for line, of_text in known.items():
            far = np.round(distance(of_text), DECIMALS)
            query = int(np.nanargmin(far))
            best.append((far[query], line, query))
        chosen[kind] = [(line, query) for _, line, query in sorted(best)[:count]]
    return chosen, median


def _tables(
    spec: HeadsSpec,
    chosen: Mapping[str, Sequence[tuple[int, int]]],
    texts: Mapping[int, TextLine],
    pretrained: Pretrained,
) -> tuple[Table, Table]:
    """One row per example; one per token of its text, with the weight of the query on it."""
    examples, of_tokens = Table(), Table()
    for kind, places in chosen.items():
        for rank, (line, query) in enumerate(places):
            reading = read_line(spec, texts[line], pretrained)
            found = _weights(spec, [reading], pretrained)
            weights: list[float] = found.weights[0, query].tolist()
            tokens = pretrained.written_tokens(reading.text.in_words())
            key = int(np.argmax(weights))
            example: dict[str, Cell] = {"kind": kind, "rank": rank, "text": texts[line].label}
            value = found.values[0, query].item()
            of_query: dict[str, Cell] = {"value": value, "query": query, "query_token": tokens[query]}
            of_key: dict[str, Cell] = {"key": key, "key_token": tokens[key], "key_weight": weights[key]}
            examples.append(example | of_query | of_key)
            of_tokens += (
                {**example, "position": position, "token": token, "weight": weight}
                for position, (token, weight) in enumerate(zip(tokens, weights, strict=True))
            )
    return examples, of_tokens
