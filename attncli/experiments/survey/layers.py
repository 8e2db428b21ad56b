"""What is measured of a model's heads while it runs, a layer at a time."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Computed, Wanted
from attncli.errors import UserError
from attncli.experiments.survey.head_maps import HeadMaps
from attncli.experiments.survey.head_scores import Attention, weighted_by_values
from attncli.experiments.survey.marked_texts import MarkedTexts
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.capture.deferred_layers import DeferredLayers
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.inputs.output_projections import matrix_and_bias, output_projection, projection_of_heads
from attncli.mechanisms.heads import merge_heads
from attncli.spec.models.heads import HeadsSpec
from attncli.statistics.contributions import roll_out, value_norms


class SurveyedLayer(NamedTuple):
    """The place of a layer, what was computed for its heads, and the norms of their values if asked for."""

    where: dict[str, Any]
    found: Computed
    norms: Float[Tensor, "text head"] | None


ROUNDING = 1e-3
"""By how much what W_O takes may differ from the heads, relative to the largest entry."""


class Survey:
    """Takes the layers as the model hands them over and keeps what the statistics of their heads need."""

    def __init__(
        self,
        specs: Sequence[HeadsSpec],
        whole: Sequence[Reading],
        pretrained: Pretrained,
        progress: Callable[[float], None] | None,
        hooks: ExitStack,
    ) -> None:
        self.spec = specs[0]
        self.hooks = hooks
        self.progress = progress
        self.pretrained = pretrained
        self.texts = MarkedTexts(self.spec, whole, pretrained)
        self.num_texts = len(whole)
        self._layers: list[SurveyedLayer] = []
        # Norms of values are measured by hooks while the model runs.
        self._later = None if self.spec.weighted else DeferredLayers(self._measure)
        self.rolled: list[Tensor] = []
        self.wanted: dict[str, Wanted] = {}
        self.maps: list[HeadMaps] = []
        if self.spec.maps != "none":
            self.maps = [HeadMaps(*one) for one in zip(specs, self.texts.readings, strict=True)]

    @property
    def layers(self) -> list[SurveyedLayer]:
        """What was found about every layer, once the model has run."""
        if self._later is not None:
            self._later.finish()
        return self._layers

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Look at one layer, now or later; its output where that is computed here."""
        return self._measure(layer) if self._later is None else self._later.take(layer)

    def _measure(self, layer: CapturedLayer) -> Tensor | None:
        """The statistics of one layer, and its output where that is not of other weights."""
        attention = self.texts.attention(layer)
        norms = None
        if self.spec.weighted:
            attention, norms = self._weighted(layer, attention)
        found = attend(attention, self._wanted(layer, attention))
        self._keep(layer, found, norms)
        if self.progress is not None:
            num_stacks = 3 if self.pretrained.has_decoder else 1  # encoder, decoder, across
            num_layers = num_stacks * self.pretrained.num_layers
            self.progress(min(1.0, len(self._layers) / num_layers))
        return found.output

    def _wanted(self, layer: CapturedLayer, attention: Attention) -> Wanted:
        """The same for all layers of a stack, and so are the patterns in it; but for the maps and the output,
        which a layer has from here where it is the model's own and nothing else has computed it before.
        """
        stack = layer.stack_name
        if stack not in self.wanted:
            head_mean = self.spec.rollout and layer.kind == "self"
            self.wanted[stack] = replace(self.texts.wanted(layer), head_mean=head_mean)
        has_values = isinstance(attention, AttentionLayer) and attention.value.shape[-1] > 0
        wanted = replace(self.wanted[stack], output=has_values and attention is layer.attention)
        return self.maps[0].wanted(layer, wanted) if self.maps else wanted

    def _keep(self, layer: CapturedLayer, found: Computed, norms: Tensor | None) -> None:
        where = {"layer": layer.layer, "module": layer.module, "kind": layer.kind, "stack": layer.stack_name}
        kept = Computed(
            found.rows,
            found.sums,
            visible=found.visible,
            received_mass=found.received_mass,
            pattern_mass=found.pattern_mass,
        )
        self._layers.append(SurveyedLayer(where, kept, norms))
        for text in range(self.num_texts):
            if self.maps:
                self.maps[text].take(layer, found, text)
            if found.head_mean is not None:
                mean = found.head_mean[text].double()
                if text == len(self.rolled):
                    self.rolled.append(torch.eye(len(mean), dtype=mean.dtype, device=mean.device))
                self.rolled[text] = roll_out(self.rolled[text], mean)

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
        self._compare_with_model(projection, layer.module, layer.attention)
        of_heads = projection_of_heads(projection, num_heads)
        _, values = attention.expanded()
        norms = torch.stack([value_norms(value, of_heads) for value in values]).to(values.dtype)
        normed = replace(attention, key=attention.expanded()[0], value=norms.unsqueeze(-1))
        found = attend(normed, Wanted(output=True))
        assert found.output is not None
        totals = found.output[..., 0].double().sum(dim=-1) / found.seeing.sum(dim=-1, keepdim=True)
        return weighted_by_values(attention, norms), totals

    def _compare_with_model(self, projection: nn.Module, module: str, attention: Attention) -> None:
        """UserError, as the model runs on, where W_O takes something else than the heads: gated ones, say.

        Also where it gives something else than its matrix does, by a hook or an adapter.
        """
        heads = attend(attention, Wanted(output=True)).output
        assert heads is not None
        merged, place = merge_heads(heads), f"{module} of {self.pretrained.name}"
        matrix, bias = matrix_and_bias(projection)
        if matrix.is_meta:
            raise UserError(f"weighted: W_O of {place} is not in memory: leave weighted out")

        def compare(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            hook.remove()
            if not _is_near(inputs[0].reshape(merged.shape), merged):
                raise UserError(f"weighted: {place} changes the heads before W_O: leave weighted out")
            if not _is_near(output, nn.functional.linear(inputs[0], matrix, bias)):
                raise UserError(f"weighted: {place} gives something else than its W_O: leave weighted out")

        hook = self.hooks.enter_context(projection.register_forward_hook(compare))


def _is_near(ours: Tensor, theirs: Tensor) -> bool:
    rounding = max(ROUNDING, torch.finfo(ours.dtype).eps)
    return bool((ours - theirs).abs().max() <= rounding * theirs.abs().max())
