"""The survey of a model's heads: what each does, measured on a text or on a probe."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.attention_report import build_report, named
from attncli.experiments.head_figures import head_figures
from attncli.experiments.head_maps import HeadMaps, sides
from attncli.experiments.head_rows import head_rows, weighted_by_values, without_first_keys
from attncli.experiments.memory import refuse_bytes
from attncli.experiments.model_files import model_source
from attncli.experiments.session import Session
from attncli.experiments.sources import choose_device
from attncli.experiments.texts import Texts
from attncli.inputs.capture import CapturedLayer, WeightsOfLayer, capture
from attncli.inputs.output_projections import output_projection, projection_of_heads
from attncli.inputs.pretrained import ModelText, Pretrained, kept_pretrained
from attncli.inputs.probes import repeated_probe
from attncli.mechanisms.attention_layer import AttentionLayer
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
    """Takes the layers as the model hands them over and keeps a row a head."""

    def __init__(
        self,
        spec: HeadsSpec,
        pretrained: Pretrained,
        text: ModelText,
        context: ModelText | None,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.spec = spec
        self.progress = progress
        self.pretrained = pretrained
        self.text = text
        self.context = context
        self.rows: list[Row] = []
        self.layers_done = 0
        self.rolled: Tensor | None = None
        self.maps: HeadMaps | None = None
        if spec.maps != "none":
            two_stacks = pretrained.has_decoder
            self.maps = HeadMaps(spec, *sides(spec, text, context), two_stacks=two_stacks)

    def take(self, layer: CapturedLayer) -> None:
        """The statistics of one layer; nothing else of it is kept."""
        layer = without_first_keys(layer, self.spec.skip_sink)
        figures = {}
        if self.spec.weighted:
            layer, figures["value_norm"] = self._weighted(layer)
        if self.spec.rollout and layer.kind == "self":
            self._roll_out(layer)
        if self.maps is not None:
            self.maps.take(layer)
        ids = self._ids(layer)
        repeat = self.spec.num_tokens if self.spec.probe else None
        figures |= head_figures(head_rows(layer), ids=ids, first_key=self.spec.skip_sink, repeat=repeat)
        columns = {name: figure.tolist() for name, figure in figures.items()}
        where = {"layer": layer.layer, "module": layer.module}
        for head in range(len(next(iter(columns.values())))):
            numbers = {name: column[head] for name, column in columns.items()}
            self.rows.append({**where, "head": head, "kind": layer.kind, **numbers})
        if self.progress is not None:
            config = self.pretrained.model.config
            num_stacks = 3 if self.pretrained.has_decoder else 1  # encoder, decoder, across
            num_layers = num_stacks * getattr(config, "num_hidden_layers", 1)
            self.layers_done += 1
            self.progress(min(1.0, self.layers_done / num_layers))

    def _ids(self, layer: CapturedLayer) -> Tensor | None:
        if layer.kind == "cross":
            return None
        in_decoder = self.context is None or layer.module.startswith("decoder")
        text = self.text if in_decoder else self.context
        assert text is not None
        return text.ids

    def _weighted(self, layer: CapturedLayer) -> tuple[AttentionLayer, Float[Tensor, " head"]]:
        """The layer with its weights times the values' norms, and mean_i sum_j ||p_ij v_j W_O||."""
        name = self.pretrained.name
        if isinstance(layer, WeightsOfLayer):
            raise UserError(f"weighted: {name} gives its weights alone, without the values")
        in_dim = layer.num_heads * layer.value.shape[-1]
        projection = output_projection(self.pretrained.model, layer.module, in_dim)
        if projection is None:
            raise UserError(f"weighted: no output projection was found for {layer.module} of {name}")
        values = layer.value.repeat_interleave(layer.num_heads // layer.value.shape[0], dim=0)
        norms = value_norms(values, projection_of_heads(projection, layer.num_heads))
        totals = [
            (layer.weights(queries).double() @ norms.unsqueeze(-1))[..., 0] for queries in layer.row_blocks()
        ]
        return weighted_by_values(layer, norms), torch.cat(totals, dim=1).mean(dim=1)

    def _roll_out(self, layer: CapturedLayer) -> None:
        if isinstance(layer, WeightsOfLayer):
            mean = layer.weights.mean(dim=0)
        else:
            mean = torch.cat([layer.weights(queries).mean(dim=0) for queries in layer.row_blocks()])
        mean = mean.double()
        if self.rolled is None:
            self.rolled = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        self.rolled = roll_out(self.rolled, mean)


def _read(
    spec: HeadsSpec, texts: Texts, pretrained: Pretrained, session: Session
) -> tuple[ModelText, ModelText | None]:
    """What the model reads, and what its encoder reads where there is a decoder."""
    if spec.probe:
        probe = repeated_probe(pretrained, int(spec.num_tokens or 0), session.generator)
        return probe, probe if pretrained.has_decoder else None
    assert texts.text is not None
    text = pretrained.read(texts.text, "file" if spec.file else "sentence")
    if not pretrained.has_decoder:
        if texts.context is not None:
            raise UserError(f"context: {pretrained.name} has no decoder: it reads one text")
        return text, None
    context = text if texts.context is None else pretrained.read(texts.context, "context")
    return pretrained.shifted_right(text), context


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
    """A row a head with every head statistic, or one statistic as a grid of layers and heads."""
    source = model_source(spec)
    pretrained = kept_pretrained(source, allow_download=spec.allow_download, device=choose_device(spec))
    if spec.rollout and pretrained.has_decoder:
        raise UserError(f"rollout: {pretrained.name} has an encoder and a decoder: rollout is for one stack")
    text, context = _read(spec, texts, pretrained, session)
    fewest = min(len(side.ids) for side in (text, context) if side is not None)
    if spec.skip_sink >= fewest:
        raise UserError(f"skip_sink: must be below {fewest}, the number of tokens (got {spec.skip_sink})")
    if spec.rollout:
        refuse_bytes(spec, len(text.ids) ** 2 * BYTES_PER_ROLLED_WEIGHT, "fewer tokens")
    survey = Survey(spec, pretrained, text, context, session.progress)
    how = capture(pretrained.model, pretrained.inputs(text, context), survey.take)

    first_key = torch.tensor([row["sink_mass"] for row in survey.rows])
    model_figures = {"sink_rate": sink_rate(first_key, SINK_THRESHOLD), "sink_threshold": SINK_THRESHOLD}
    statistics: dict[str, Any] = {"model": model_figures}
    tensors: dict[str, NamedTensor] = {}
    if spec.statistic is None:
        statistics = {"heads": _chosen(spec, survey.rows)} | statistics
    else:
        tensors |= dict(_grids(survey.rows, spec.statistic))
    if survey.rolled is not None:
        tensors["rollout"] = named(survey.rolled, "query", "key")
    read = Texts(text.tokens, context.tokens if context is not None else ())
    if survey.maps is not None:
        tensors |= survey.maps.tensors()
        query, key = sides(spec, text, context)
        read = Texts(query.tokens, key.tokens if spec.maps == "cross" else ())
    return build_report(spec, read, tensors, statistics, _notes(spec, survey, pretrained, how))


def _notes(spec: HeadsSpec, survey: Survey, pretrained: Pretrained, how: str) -> list[str]:
    notes = [f"{pretrained.name}: {len(survey.rows)} heads, on {len(survey.text.ids)} tokens."]
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
