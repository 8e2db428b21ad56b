"""`attncli.spread`."""

import torch

from attn_spread.results import HeadSpread, HeadSpreads
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading
from attncli.models.reading_text import reading_for
from attncli.records.arguments import checked


@checked
def spread(model: Model, text: TextOrReading) -> HeadSpreads:
    """Return sqrt(sum p j^2 - (sum p j)^2) of each head, mean over queries."""
    heads: list[dict[str, str | int | float]] = []

    def take(layer: CapturedLayer) -> None:
        weights = layer.weights()[0].double()
        positions = torch.arange(weights.shape[-1], dtype=torch.float64)
        variances = weights @ positions.square() - (weights @ positions).square()
        for head, spread in enumerate(variances.clamp(min=0).sqrt().mean(dim=-1).tolist()):
            heads.append({"stack": layer.stack_name, "layer": layer.layer, "head": head, "spread": spread})

    with in_use(model) as pretrained:
        capture(pretrained.model, pretrained.inputs([reading_for(pretrained, text)]), take)
    return HeadSpreads(heads=HeadSpread.rows(heads).sorted(lambda head: -head.spread))
