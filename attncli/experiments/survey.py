"""What is measured of a model's heads while it runs: a row for each head, for each text."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Computed, Wanted
from attncli.errors import UserError
from attncli.experiments.head_maps import HeadMaps, sides
from attncli.experiments.head_scores import (
    Attention,
    head_scores,
    wanted_scores,
    weighted_by_values,
    without_first_keys,
)
from attncli.inputs.capture import CapturedLayer
from attncli.inputs.output_projections import output_projection, projection_of_heads
from attncli.inputs.pretrained import Pretrained, Reading
from attncli.mechanisms.heads import merge_heads
from attncli.spec.heads import HeadsSpec
from attncli.statistics.rollout import roll_out
from attncli.statistics.value_norms import value_norms

Row = dict[str, Any]

ROUNDING = 1e-3
"""By how much what W_O takes may differ from the heads, relative to the largest entry."""


class Survey:
    """Takes the layers as the model hands them over and keeps a row for each head, for each text."""

    def __init__(
        self,
        specs: Sequence[HeadsSpec],
        readings: Sequence[Reading],
        pretrained: Pretrained,
        progress: Callable[[float], None] | None,
        hooks: ExitStack,
    ) -> None:
        self.spec = specs[0]
        self.hooks = hooks
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
        self._compare_with_input(projection, layer.module, layer.attention)
        of_heads = projection_of_heads(projection, num_heads)
        _, values = attention.expanded()
        norms = torch.stack([value_norms(value, of_heads) for value in values]).to(values.dtype)
        normed = replace(attention, key=attention.expanded()[0], value=norms.unsqueeze(-1))
        found = attend(normed, Wanted(output=True))
        assert found.output is not None
        totals = found.output[..., 0].double().sum(dim=-1) / found.seeing.sum(dim=-1, keepdim=True)
        return weighted_by_values(attention, norms), totals

    def _compare_with_input(self, projection: nn.Module, module: str, attention: Attention) -> None:
        """UserError, as the model runs on, where W_O takes something else than the heads: gated ones, say."""
        heads = attend(attention, Wanted(output=True)).output
        assert heads is not None
        merged = merge_heads(heads)

        def compare(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            hook.remove()
            difference = (inputs[0].reshape(merged.shape) - merged).abs().max()
            if not difference <= ROUNDING * merged.abs().max():
                place = f"{module} of {self.pretrained.name}"
                raise UserError(f"weighted: {place} changes the heads before W_O: leave weighted out")

        hook = self.hooks.enter_context(projection.register_forward_pre_hook(compare))

    def _roll_out(self, mean: Tensor, text: int) -> None:
        if text == len(self.rolled):
            self.rolled.append(torch.eye(len(mean), dtype=mean.dtype, device=mean.device))
        self.rolled[text] = roll_out(self.rolled[text], mean)


def _device_of(attention: Attention) -> torch.device:
    return attention.query.device if isinstance(attention, AttentionLayer) else attention.weights.device
