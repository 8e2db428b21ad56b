"""The texts, and in them the queries, where a statistic of one head is strongest, weakest and typical."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines import attend
from attncli.attention.results import Wanted
from attncli.errors import UserError
from attncli.experiments.attention_report import build_report
from attncli.experiments.reading.many_texts import ManyTexts
from attncli.experiments.reading.text_file import TextFile, TextLine
from attncli.experiments.reading.text_words import WORDS_NOTE, TextWords
from attncli.experiments.reading.texts import Texts
from attncli.experiments.survey.head_scores import wanted_scores, without_first_keys
from attncli.experiments.survey.named_places import marked
from attncli.experiments.survey.reading import read_line
from attncli.inputs.capture.capture import capture
from attncli.inputs.capture.captured_layers import CapturedLayer, StopCapture
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.report import Cell, Numbers, Report, Row, Statistic, Table
from attncli.row_statistics import PATTERNS
from attncli.spec.models.heads import HeadsSpec
from attncli.statistics.intervals import mean_interval
from attncli.statistics.moments import RunningMoments

DECIMALS = 5
"""No order hangs on the last bits of a number."""


class HeadWeights(NamedTuple):
    """The weights of a head on some texts, and its statistic in each row; NaN where that counts no key."""

    weights: Float[Tensor, "text query key"]
    values: Float[Tensor, "text query"]


class OneHead:
    """Takes the layers as the model hands them over, and ends the run at the one asked for."""

    def __init__(self, spec: HeadsSpec, readings: list[Reading], pretrained: Pretrained) -> None:
        self.spec, self.pretrained = spec, pretrained
        self.readings = [reading.in_words() for reading in readings]
        self.words = TextWords(readings) if spec.words else None
        self.layer, self.head = spec.chosen_head()
        self.special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids))
        self.numbers: list[int] = []
        self.found: HeadWeights | None = None

    def take(self, layer: CapturedLayer) -> None:
        """The weights of the head; UserError where the layer has no such head."""
        self.numbers.append(layer.layer)
        if layer.layer != self.layer:
            return
        num_heads = layer.attention.shape[1]
        if self.head >= num_heads:
            raise UserError(f"head: layer {self.layer} has {num_heads} heads (got {self.layer}:{self.head})")
        attention = layer.attention if self.words is None else self.words.merged(layer)
        attention = without_first_keys(attention, self.spec.skip_sink)
        ids = torch.stack([reading.text.ids for reading in self.readings])
        flags = [
            marked(self.spec, reading, self.pretrained, layer.stack_name, self.special)
            for reading in self.readings
        ]
        marks = type(flags[0])(*(torch.cat(parts) for parts in zip(*flags, strict=True)))
        name = str(self.spec.sort)
        asked = bool(self.spec.sought()["to"])
        wanted = wanted_scores(attention, ids, marks, first_key=self.spec.skip_sink, asked=asked)
        rows = (name,) if name not in PATTERNS else ()
        found = attend(attention, Wanted(rows=rows, kept_heads=(self.head,)))
        assert found.kept_weights is not None and wanted.patterns is not None
        weights = found.kept_weights[:, 0].double().cpu()
        if rows:
            values = found.rows[name][:, self.head].double().cpu()
        else:
            place, whole = wanted.patterns.names.index(name), slice(0, ids.shape[1])
            mask = wanted.patterns.block(slice(0, len(ids)), whole, whole)[:, place].double().cpu()
            values = (weights * mask).sum(dim=-1).masked_fill(~mask.any(dim=-1), torch.nan)
            values = values.masked_fill(~found.seeing.cpu(), torch.nan)
        self.found = HeadWeights(weights, values)
        raise StopCapture


def _weights(spec: HeadsSpec, readings: list[Reading], pretrained: Pretrained) -> HeadWeights:
    one = OneHead(spec, readings, pretrained)
    capture(pretrained.model, pretrained.inputs(readings), one.take)
    if one.found is None:
        known = f"{min(one.numbers)} to {max(one.numbers)}" if one.numbers else "none"
        raise UserError(f"head: layer must be one of {known} (got {spec.head})")
    return one.found


def report_examples(
    spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """A row for each example, and the weights of its query on the tokens of its text.

    Of every row of every text one number is kept; the texts that are shown are read once more.
    """
    if pretrained.has_decoder:
        raise UserError(f"head: {pretrained.name} has an encoder and a decoder: examples are for one stack")
    assert spec.texts is not None
    values: dict[int, np.ndarray] = {}
    moments: list[RunningMoments] = []
    with TextFile(spec.texts, spec.text_group) as file:
        count = file.count()
        many = ManyTexts(file, lambda line: read_line(spec, line, pretrained))
        for batch in many.batches():
            found = _weights(spec, [reading for _, reading in batch], pretrained)
            moments.append(RunningMoments.of(found.values.nanmean(dim=-1)))
            for (line, _), of_text in zip(batch, found.values, strict=True):
                values[line.line] = of_text.float().numpy()
            if progress is not None:
                progress((many.num_read + many.num_left_out) / count)
        chosen, median = choose(dict(sorted(values.items())), int(spec.num_examples or 0))
        lines = {line for rows in chosen.values() for line, _ in rows}
        texts = {line.line: line for line in file if line.line in lines}
    rows, weights = Table(), Table()
    for example, of_keys in _examples(spec, chosen, texts, pretrained):
        rows.append(example)
        weights += of_keys
    total = moments[0]
    for part in moments[1:]:
        total = total + part
    lower, upper = mean_interval(total.count, total.mean, total.squares)
    num_texts, mean = int(total.count), total.mean.item()
    about = Numbers(num_texts=num_texts, mean=mean, lower=lower.item(), upper=upper.item(), median=median)
    notes = [
        f"{pretrained.name}, head {spec.head}: {spec.sort}, mean over {num_texts:,} texts.",
        "Each example is another text, at its own strongest (weakest, nearest to the median) row.",
        *([WORDS_NOTE] if spec.words else []),
        *many.notes(),
    ]
    tables: dict[str, Statistic] = {"examples": rows, "head": about, "example_weights": weights}
    return build_report(spec, Texts(), {}, tables, notes)


def choose(values: dict[int, np.ndarray], count: int) -> tuple[dict[str, list[tuple[int, int]]], float]:
    """Line and query of each example, and the median of all rows; of equal ones the first in the file."""
    known = {line: of_text for line, of_text in values.items() if not np.isnan(of_text).all()}
    if not known:
        return {}, float("nan")
    every = np.concatenate(list(known.values()))
    median = float(np.median(every[~np.isnan(every)]))
    distances: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "strongest": lambda of_text: -of_text,
        "weakest": lambda of_text: of_text,
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


def _examples(
    spec: HeadsSpec,
    chosen: dict[str, list[tuple[int, int]]],
    texts: dict[int, TextLine],
    pretrained: Pretrained,
) -> Iterator[tuple[Row, list[Row]]]:
    """Each example, and a row for each of its tokens with the weight of the query on it."""
    for kind, places in chosen.items():
        for rank, (line, query) in enumerate(places):
            reading = read_line(spec, texts[line], pretrained)
            found = _weights(spec, [reading], pretrained)
            weights: list[float] = found.weights[0, query].tolist()
            tokens = pretrained.written_tokens(reading.text.in_words())
            key = int(np.argmax(weights))
            place: dict[str, Cell] = {"kind": kind, "rank": rank, "text": texts[line].label}
            about: dict[str, Cell] = {
                "value": found.values[0, query].item(),
                "query": query,
                "query_token": tokens[query],
            }
            yield (
                {**place, **about, "key": key, "key_token": tokens[key], "key_weight": weights[key]},
                [
                    {**place, "position": position, "token": token, "weight": weight}
                    for position, (token, weight) in enumerate(zip(tokens, weights, strict=True))
                ],
            )
