"""The direction of the residual stream that a logit reads, the scale of the last norm frozen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.experiments.why.residual import ROUNDING, Call, Calls, close, refuse
from attncli.inputs.models.blocks import BLOCK
from attncli.inputs.models.pretrained import Pretrained


@dataclass(frozen=True)
class Direction:
    """logit = stream . vector + bias. `scale` is what the last norm multiplied the stream by."""

    vector: Float[Tensor, " embed"]
    bias: float
    scale: float


def difference(values: Float[Tensor, "token ..."]) -> Float[Tensor, "..."]:
    """The value of a token or, of two tokens, that of the first minus that of the second."""
    return values[0] if len(values) == 1 else values[0] - values[1]


def direction_of(
    pretrained: Pretrained,
    calls: Calls,
    stream: Float[Tensor, " embed"],
    logits: Float[Tensor, " vocabulary"],
    ids: Sequence[int],
) -> Direction:
    """That of a token's logit or, of two tokens, of how far the first logit is above the second.

    A norm is linear once its scale s is frozen: RMSNorm x g s (Zhang & Sennrich 2019, 1910.07467), LayerNorm
    (x - mean x) g s + b (Ba et al. 2016, 1607.06450). UserError for other norms, and for logits that are
    changed after W_U.
    """
    # transformers leaves this without types.
    unembedding = pretrained.whole.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(unembedding, nn.Linear)
    name = next(name for name, part in pretrained.whole.named_modules() if part is unembedding)
    read = calls[name][-1].read
    own = list(ids)
    unembedded = difference(unembedding.weight.detach()[own].double())
    bias = 0.0 if unembedding.bias is None else float(difference(unembedding.bias[own]))
    logit = float(difference(logits[own]))
    if abs(float(unembedded @ read) + bias - logit) > ROUNDING * float(logits.abs().max()):
        refuse(pretrained, "what W_U gives is scaled or capped")
    if close(read, stream):
        return Direction(unembedded, bias, 1.0)
    norm, call = _last_norm(pretrained, calls, stream, read)
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
    pretrained: Pretrained, calls: Calls, stream: Float[Tensor, " embed"], read: Float[Tensor, " embed"]
) -> tuple[nn.Module, Call]:
    """The module outside of blocks that makes of the stream what W_U reads."""
    for name, module in pretrained.whole.named_modules():
        call = calls[name][-1] if name in calls and not BLOCK.match(name) else None
        has_gain = isinstance(getattr(module, "weight", None), Tensor)
        if call is not None and has_gain and close(call.read, stream) and close(call.gave, read):
            return module, call
    refuse(pretrained, "no norm was found between its last block and W_U")


def _scale(gave: Float[Tensor, " embed"], unscaled: Float[Tensor, " embed"]) -> float | None:
    """The number s with gave = s unscaled; None where there is none."""
    scale = (gave @ unscaled) / (unscaled @ unscaled)
    return float(scale) if close(unscaled * scale, gave) else None
