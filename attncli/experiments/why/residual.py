"""The residual stream of the last token as the sum of what heads and MLPs add to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.errors import UserError
from attncli.inputs.models.last_vectors import LastVectors
from attncli.inputs.models.pretrained import Pretrained
from attncli.inputs.output_projections import output_projection, projection_of_heads

ROUNDING = 1e-4
"""By how much two vectors may differ, relative to the largest entry: float32 is far below it."""


@dataclass(frozen=True)
class Block:
    """What a layer adds: its heads through W_O, the bias of W_O, and the rest, its MLP."""

    heads: Float[Tensor, "head embed"]
    bias: Float[Tensor, " embed"]
    mlp: Float[Tensor, " embed"]


@dataclass(frozen=True)
class Residual:
    """The stream before the first block, what the blocks add, and the stream after the last."""

    embedding: Float[Tensor, " embed"]
    blocks: list[Block]
    last: Float[Tensor, " embed"]


def residual_of(
    pretrained: Pretrained,
    vectors: LastVectors,
    modules: Sequence[str],
    outputs: Sequence[Float[Tensor, "head value_dim"]],
) -> Residual:
    """From the names of the attention modules and what their heads gave at the last token.

    UserError where a block gives something else than its input, what W_O gives, and what one other module in
    it gives.
    """
    names = vectors.blocks()
    if len(names) != len(modules) or not all(
        module.startswith(f"{name}.") for name, module in zip(names, modules, strict=True)
    ):
        refuse(pretrained, "its blocks do not have one attention each")
    stream = embedding = vectors.calls[names[0]][0].read
    blocks = []
    for name, module, heads in zip(names, modules, outputs, strict=True):
        call = vectors.calls[name][0]
        if len(vectors.calls[name]) > 1 or not close(call.read, stream):
            refuse(pretrained, f"{name} does not go on with what the block before gave")
        blocks.append(_block(pretrained, vectors, name, module, heads))
        stream = call.gave
    return Residual(embedding, blocks, stream)


def _block(
    pretrained: Pretrained,
    vectors: LastVectors,
    name: str,
    module: str,
    heads: Float[Tensor, "head value_dim"],
) -> Block:
    model, inside, call = pretrained.with_head, vectors.inside(name), vectors.calls[name][0]
    assert model is not None
    projection = output_projection(model, module, heads.numel())
    of_projection = next(
        (inside[key] for key, part in model.named_modules() if part is projection and key in inside), None
    )
    if projection is None or of_projection is None:
        refuse(pretrained, f"no output projection was found for {module}")
    if not close(of_projection.read, heads.flatten()):
        refuse(pretrained, f"{module} changes its heads before W_O")
    mlp = call.gave - call.read - of_projection.gave
    if not any(close(one.gave, mlp, call.gave.abs().max()) for one in inside.values()):
        refuse(pretrained, f"{name} does not add what its heads and its MLP give to what it reads")
    columns = projection_of_heads(projection, len(heads)).double()
    bias = getattr(projection, "bias", None)
    own_bias = torch.zeros_like(mlp) if bias is None else bias.detach().double()
    return Block((columns @ heads.unsqueeze(-1)).squeeze(-1), own_bias, mlp)


def close(a: Tensor, b: Tensor, size: Tensor | None = None) -> bool:
    """Whether two vectors are the same but for rounding, of numbers of this size."""
    return a.shape == b.shape and bool(
        (a - b).abs().max() <= ROUNDING * (b.abs().max() if size is None else size)
    )


def refuse(pretrained: Pretrained, reason: str) -> NoReturn:
    """UserError that says why a logit is no sum here."""
    advice = f"cannot be split into its heads, use a pre-norm decoder: {reason}"
    raise UserError(f"model: the logits of {pretrained.name} {advice}")
