"""The direction of the residual stream that a logit reads, the scale of the last norm frozen."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.experiments.why.residual import ROUNDING, close, refuse
from attncli.inputs.models.blocks import BLOCK
from attncli.inputs.models.last_vectors import Call, LastVectors
from attncli.inputs.models.pretrained import Pretrained


@dataclass(frozen=True)
class Direction:
    """logit = stream . vector + bias. `scale` is what the last norm multiplied the stream by."""

    vector: Float[Tensor, " embed"]
    bias: float
    scale: float


def direction_of(
    pretrained: Pretrained,
    vectors: LastVectors,
    stream: Float[Tensor, " embed"],
    logits: Float[Tensor, " vocabulary"],
    token: int,
    against: int | None,
) -> Direction:
    """That of a token's logit, or of how far it is above another token's.

    A norm is linear once its scale s is frozen: RMSNorm x g s (Zhang & Sennrich 2019, 1910.07467), LayerNorm
    (x - mean x) g s + b (Ba et al. 2016, 1607.06450). UserError for other norms, and for logits that are
    changed after W_U.
    """
    model = pretrained.with_head
    assert model is not None
    # transformers leaves this without types.
    unembedding = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(unembedding, nn.Linear)
    name = next(name for name, part in model.named_modules() if part is unembedding)
    read = vectors.calls[name][-1].read
    rows = unembedding.weight.detach()
    unembedded = rows[token].double() - (0.0 if against is None else rows[against].double())
    bias = 0.0
    if unembedding.bias is not None:
        bias = float(unembedding.bias[token] - (0.0 if against is None else unembedding.bias[against]))
    logit = float(logits[token] - (0.0 if against is None else logits[against]))
    if abs(float(unembedded @ read) + bias - logit) > ROUNDING * float(logits.abs().max()):
        refuse(pretrained, "what W_U gives is scaled or capped")
    if close(read, stream):
        return Direction(unembedded, bias, 1.0)
    norm, call = _last_norm(pretrained, vectors, stream, read)
    assert isinstance(norm.weight, Tensor)
    gain = norm.weight.detach().double()
    if isinstance(norm, nn.LayerNorm):
        shift = torch.zeros_like(gain) if norm.bias is None else norm.bias.detach().double()
        scale = _scale(call.gave - shift, (call.read - call.read.mean()) * gain)
        if scale is not None:
            vector = unembedded * gain * scale
            return Direction(vector - vector.mean(), bias + float(shift @ unembedded), scale)
    for own_gain in (gain, 1 + gain):  # Gemma keeps the gain less one
        scale = _scale(call.gave, call.read * own_gain)
        if scale is not None:
            return Direction(unembedded * own_gain * scale, bias, scale)
    refuse(pretrained, f"its last norm, {type(norm).__name__}, is neither LayerNorm nor RMSNorm")


def _last_norm(
    pretrained: Pretrained,
    vectors: LastVectors,
    stream: Float[Tensor, " embed"],
    read: Float[Tensor, " embed"],
) -> tuple[nn.Module, Call]:
    """The module outside of blocks that makes of the stream what W_U reads."""
    assert pretrained.with_head is not None
    for name, module in pretrained.with_head.named_modules():
        call = vectors.calls[name][-1] if name in vectors.calls and not BLOCK.match(name) else None
        has_gain = isinstance(getattr(module, "weight", None), Tensor)
        if call is not None and has_gain and close(call.read, stream) and close(call.gave, read):
            return module, call
    refuse(pretrained, "no norm was found between its last block and W_U")


def _scale(gave: Float[Tensor, " embed"], unscaled: Float[Tensor, " embed"]) -> float | None:
    """The number s with gave = s unscaled; None where there is none."""
    scale = (gave @ unscaled) / (unscaled @ unscaled)
    return float(scale) if close(unscaled * scale, gave) else None
