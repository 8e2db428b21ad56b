"""The survey of a model's heads: what each does, measured on a text or on a probe."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Computed, Wanted
from attncli.errors import UserError
from attncli.experiments.attention_report import build_report, named
from attncli.experiments.head_maps import HeadMaps, sides
from attncli.experiments.head_scores import (
    Attention,
    head_scores,
    wanted_scores,
    weighted_by_values,
    without_first_keys,
)
from attncli.experiments.memory import refuse_bytes
from attncli.experiments.model_runs import run_model
from attncli.experiments.session import Session
from attncli.experiments.texts import Texts
from attncli.inputs.capture import CapturedLayer, capture
from attncli.inputs.output_projections import output_projection, projection_of_heads
from attncli.inputs.pretrained import Pretrained, Reading
from attncli.inputs.probes import repeated_probe
from attncli.report import NamedTensor, Report
from attncli.spec.heads import HeadsSpec
from attncli.statistics.head_scores import sink_rate
from attncli.statistics.rollout import roll_out
from attncli.statistics.value_norms import value_norms

SINK_THRESHOLD = 0.3
BYTES_PER_ROLLED_WEIGHT = 40
EAGER_NOTE = (
    "This architecture gives its weights as dense matrices only: memory grows with the square of the tokens."
)

Row = dict[str, Any]


class Survey:
    """Takes the layers as the model hands them over and keeps a row for each head, for each text."""

    def __init__(
        self,
        specs: Sequence[HeadsSpec],
        readings: Sequence[Reading],
        pretrained: Pretrained,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.spec = specs[0]
        self.progress = progress
        self.pretrained = pretrained
        self.ids = torch.stack([one.text.ids for one in readings])
        contexts = [one.context for one in readings if one.context is not None]
        self.encoder_ids = torch.stack([one.ids for one in contexts]) if contexts else None
        self.rows: list[list[Row]] = [[] for _ in readings]
        self.layers_done = 0
        self.rolled: list[Tensor] = []
        self.maps: list[HeadMaps] = []
        self._wanted: dict[tuple[str, str], Wanted] = {}
        if self.spec.maps != "none":
            self.maps = [HeadMaps(own, *sides(own, one)) for own, one in zip(specs, readings, strict=True)]

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """The statistics of one layer, and its output where that is not of other weights."""
        attention = without_first_keys(layer.attention, self.spec.skip_sink)
        scores = {}
        if self.spec.weighted:
            attention, scores["value_norm"] = self._weighted(layer, attention)
        wanted = self._what_is_wanted(layer, attention)
        found = attend(attention, wanted)
        scores |= head_scores(found, wanted)
        self._keep(layer, found, scores)
        if self.progress is not None:
            config = self.pretrained.model.config
            num_stacks = 3 if self.pretrained.has_decoder else 1  # encoder, decoder, across
            num_layers = num_stacks * getattr(config, "num_hidden_layers", 1)
            self.layers_done += 1
            self.progress(min(1.0, self.layers_done / num_layers))
        return found.output

    def _what_is_wanted(self, layer: CapturedLayer, attention: Attention) -> Wanted:
        """The same for all layers of a stack and kind, and so are the patterns in it; but for the maps."""
        stack = layer.stack, layer.kind
        if stack not in self._wanted:
            in_encoder = layer.stack == "encoder" and self.encoder_ids is not None
            ids = self.encoder_ids if in_encoder else self.ids
            wanted = wanted_scores(
                attention,
                None if layer.kind == "cross" or ids is None else ids.to(_device_of(attention)),
                first_key=self.spec.skip_sink,
                repeat=self.spec.num_tokens if self.spec.probe else None,
            )
            self._wanted[stack] = replace(
                wanted,
                head_mean=self.spec.rollout and layer.kind == "self",
                output=attention is layer.attention and isinstance(attention, AttentionLayer),
            )
        wanted = self._wanted[stack]
        return self.maps[0].wanted(layer, wanted) if self.maps else wanted

    def _keep(self, layer: CapturedLayer, found: Computed, scores: Mapping[str, Tensor]) -> None:
        where = {"layer": layer.layer, "module": layer.module}
        numbers = torch.stack(list(scores.values()), dim=-1).tolist()
        for text, rows in enumerate(self.rows):
            for head, of_head in enumerate(numbers[text]):
                by_name = dict(zip(scores, of_head, strict=True))
                rows.append({**where, "head": head, "kind": layer.kind, **by_name})
            if self.maps:
                self.maps[text].take(layer, found, text)
            if found.head_mean is not None:
                self._roll_out(found.head_mean[text].double(), text)

    def _weighted(
        self, layer: CapturedLayer, attention: Attention
    ) -> tuple[AttentionLayer, Float[Tensor, "text head"]]:
        """The layer with its weights times the values' norms, and mean_i sum_j ||p_ij v_j W_O||."""
        name = self.pretrained.name
        if isinstance(attention, GivenWeights):
            raise UserError(f"weighted: {name} gives its weights alone, without the values")
        num_heads = attention.num_heads
        in_dim = num_heads * attention.value.shape[-1]
        projection = output_projection(self.pretrained.model, layer.module, in_dim)
        if projection is None:
            raise UserError(f"weighted: no output projection was found for {layer.module} of {name}")
        of_heads = projection_of_heads(projection, num_heads)
        _, values = attention.expanded()
        norms = torch.stack([value_norms(value, of_heads) for value in values]).to(values.dtype)
        normed = replace(attention, key=attention.expanded()[0], value=norms.unsqueeze(-1))
        found = attend(normed, Wanted(output=True))
        assert found.output is not None
        totals = found.output[..., 0].double().sum(dim=-1) / found.seeing.sum(dim=-1, keepdim=True)
        return weighted_by_values(attention, norms), totals

    def _roll_out(self, mean: Tensor, text: int) -> None:
        if text == len(self.rolled):
            self.rolled.append(torch.eye(len(mean), dtype=mean.dtype, device=mean.device))
        self.rolled[text] = roll_out(self.rolled[text], mean)


def _device_of(attention: Attention) -> torch.device:
    return attention.query.device if isinstance(attention, AttentionLayer) else attention.weights.device


def read(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads, and its encoder where there is a decoder; UserError for what does not fit."""
    reading = _reading(spec, texts, pretrained, generator)
    fewest = min(count for count in reading.counts if count)
    if spec.skip_sink >= fewest:
        raise UserError(f"skip_sink: must be below {fewest}, the number of tokens (got {spec.skip_sink})")
    if spec.rollout:
        refuse_bytes(spec, reading.counts[0] ** 2 * BYTES_PER_ROLLED_WEIGHT, "fewer tokens")
    return reading


def _reading(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    if spec.probe:
        probe = repeated_probe(pretrained, int(spec.num_tokens or 0), generator)
        return Reading(probe, probe if pretrained.has_decoder else None)
    assert texts.text is not None
    text = pretrained.read(texts.text, "file" if spec.file else "sentence")
    if not pretrained.has_decoder:
        if texts.context is not None:
            raise UserError(f"context: {pretrained.name} has no decoder: it reads one text")
        return Reading(text)
    context = text if texts.context is None else pretrained.read(texts.context, "context")
    return Reading(pretrained.shifted_right(text), context)


def _grids(rows: list[Row], statistic: str) -> Iterator[tuple[str, NamedTensor]]:
    """The statistic by layer and head, a matrix for each stack and kind of attention."""
    stacks: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        stack = row["module"].split(".")[0] if row["module"].startswith(("encoder", "decoder")) else ""
        layers = stacks.setdefault(f"{stack} {row['kind']}".strip(), {})
        layers.setdefault(row["layer"], []).append(row[statistic])
    for stack, layers in stacks.items():
        width = max(map(len, layers.values()))
        grid = np.full((max(layers) + 1, width), np.nan)
        for layer, numbers in layers.items():
            grid[layer, : len(numbers)] = numbers
        name = statistic if len(stacks) == 1 else f"{statistic} {stack}"
        yield name, NamedTensor(("layer", "head"), grid)


def _chosen(spec: HeadsSpec, rows: list[Row]) -> list[Row]:
    key = spec.sort
    if key is not None:
        rows = sorted(rows, key=lambda row: -row[key] if row[key] == row[key] else np.inf)
    return rows[: spec.top]


def run(spec: HeadsSpec, texts: Texts, session: Session) -> Report:
    """A row for each head with every head statistic, or one statistic as a grid of layers and heads."""
    return run_model(spec, texts, session)


def report_each(
    specs: Sequence[HeadsSpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The survey of each of some texts of equal counts."""
    if specs[0].rollout and pretrained.has_decoder:
        raise UserError(f"rollout: {pretrained.name} has an encoder and a decoder: rollout is for one stack")
    survey = Survey(specs, readings, pretrained, progress)
    how = capture(pretrained.model, pretrained.inputs(readings), survey.take)
    return [
        _report(spec, reading, survey, text, how)
        for text, (spec, reading) in enumerate(zip(specs, readings, strict=True))
    ]


def _report(spec: HeadsSpec, reading: Reading, survey: Survey, text: int, how: str) -> Report:
    rows = survey.rows[text]
    first_key = torch.tensor([row["sink_mass"] for row in rows])
    model_figures = {"sink_rate": sink_rate(first_key, SINK_THRESHOLD), "sink_threshold": SINK_THRESHOLD}
    statistics: dict[str, Any] = {"model": model_figures}
    tensors: dict[str, NamedTensor] = {}
    if spec.statistic is None:
        statistics = {"heads": _chosen(spec, rows)} | statistics
    else:
        tensors |= dict(_grids(rows, spec.statistic))
    if survey.rolled:
        tensors["rollout"] = named(survey.rolled[text], "query", "key")
    read = Texts(reading.text.tokens, reading.context.tokens if reading.context is not None else ())
    if survey.maps:
        tensors |= survey.maps[text].tensors()
        query, key = sides(spec, reading)
        read = Texts(query.tokens, key.tokens if spec.maps == "cross" else ())
    notes = _notes(spec, len(rows), len(reading.text.ids), survey.pretrained.name, how)
    return build_report(spec, read, tensors, statistics, notes)


def _notes(spec: HeadsSpec, num_heads: int, num_tokens: int, name: str, how: str) -> list[str]:
    notes = [f"{name}: {num_heads} heads, on {num_tokens} tokens."]
    if spec.model is None:
        notes.append(
            "This model ships with attn; it learned to copy random characters. --model FOLDER takes another."
        )
    if spec.probe:
        notes.append(
            "The probe is [BOS] + r + r, r random tokens: what looks back to a first copy is induction."
        )
    if spec.skip_sink:
        notes.append(f"Without the first {spec.skip_sink} keys, the other weights renormalised.")
    if spec.weighted:
        notes.append("Weights are times ||v W_O||, each row renormalised; value_norm is the rows' mean sum.")
    if how == "eager":
        notes.append(EAGER_NOTE)
    return notes
