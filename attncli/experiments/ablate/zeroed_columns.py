"""A head without its columns of W_O, while the model runs."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.attention.engines import attend
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted
from attncli.inputs.capture.capture import CapturedLayer
from attncli.inputs.output_projections import output_projection

TextAndHead = tuple[int, int]


def without_columns(
    model: nn.Module,
    layer: CapturedLayer,
    output: Float[Tensor, "text head query value_dim"],
    places: Sequence[TextAndHead],
    hooks: ExitStack,
) -> Float[Tensor, "text head query value_dim"]:
    """What the layer gives, with these heads of these texts zero where W_O reads them, after gates and norms.

    Where no W_O is found the heads themselves are zero, which is the same but for a norm between.
    """
    num_texts, num_heads, _, value_dim = output.shape
    texts, heads = torch.tensor(places, device=output.device).unbind(dim=-1)
    projection = output_projection(model, layer.module, num_heads * value_dim)
    if projection is None:
        changed = output.clone()
        changed[texts, heads] = 0
        return changed

    def zero(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hook.remove()  # the module may serve other layers, too
        read = inputs[0].clone()
        read.view(num_texts, -1, num_heads, value_dim)[texts, :, heads] = 0
        return (read, *inputs[1:])

    hook = hooks.enter_context(projection.register_forward_pre_hook(zero))
    return output


def output_of(layer: CapturedLayer) -> Float[Tensor, "text head query value_dim"]:
    """The output of a layer that is computed here."""
    assert isinstance(layer.attention, AttentionLayer)
    output = attend(layer.attention, Wanted(output=True)).output
    assert output is not None
    return output
