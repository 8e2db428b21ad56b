"""The one layer of a model that an experiment is about."""

from contextlib import ExitStack

from torch import Tensor, nn

from attncli.attention.layer import AttentionLayer
from attncli.errors import UserError
from attncli.inputs.capture.captured_layers import CapturedLayer, StopCapture
from attncli.inputs.models.pretrained import Pretrained
from attncli.inputs.output_projections import output_projection
from attncli.spec.models.layers import LayerSpec


class ChosenLayer:
    """Takes the layers as the model hands them over, and ends the run at the one asked for.

    With an encoder and a decoder, self-attention is the encoder's. Where no layer was asked for, it is the
    first one with attention: not all layers of a model have it.
    """

    def __init__(self, spec: LayerSpec, pretrained: Pretrained, hooks: ExitStack) -> None:
        self.spec = spec
        self.pretrained = pretrained
        self.hooks = hooks
        self.kind = "cross" if spec.reads_context else "self"
        self.stack = "encoder" if pretrained.has_decoder and self.kind == "self" else None
        self.number = spec.layer if "layer" in spec.model_fields_set else None
        self.layer: CapturedLayer | None = None
        self.output: Tensor | None = None
        self.numbers: list[int] = []

    def take(self, layer: CapturedLayer) -> None:
        """The one layer; where its output goes through W_O, the model runs on until then."""
        if self.layer is not None or layer.kind != self.kind or self.stack not in (None, layer.stack):
            return
        self.numbers.append(layer.layer)
        if self.number is not None and layer.layer != self.number:
            return
        self.layer = layer
        projection = self._projection(layer)
        if projection is None:
            raise StopCapture
        self.hooks.enter_context(projection.register_forward_hook(self._take_output))

    def _projection(self, layer: CapturedLayer) -> nn.Module | None:
        attention = layer.attention
        if not self.spec.shows_all_heads or self.spec.words or not isinstance(attention, AttentionLayer):
            return None
        in_dim = attention.num_heads * attention.value.shape[-1]
        return output_projection(self.pretrained.model, layer.module, in_dim)

    def _take_output(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        """The output of W_O, after gates and norms between it and the heads."""
        assert self.layer is not None
        num_texts, _, num_queries, _ = self.layer.attention.shape
        self.output = output.reshape(num_texts, num_queries, -1)
        raise StopCapture

    def chosen(self) -> CapturedLayer:
        """The layer; UserError where the model has none of this number."""
        if self.layer is not None:
            return self.layer
        name = self.pretrained.name
        if not self.numbers:
            where = f" in its {self.stack}" if self.stack else ""
            raise UserError(f"model: {name} shows no {self.kind}-attention{where}")
        numbers = sorted(self.numbers)
        layers = f"{len(numbers)} layer{'s' * (len(numbers) > 1)} of {self.kind}-attention"
        if numbers == list(range(len(numbers))):
            raise UserError(
                f"layer: must be below {len(numbers)} (got {self.spec.layer}): {name} has {layers}"
            )
        known = ", ".join(map(str, numbers))
        raise UserError(f"layer: must be one of {known} (got {self.spec.layer}): {name} has {layers}")
