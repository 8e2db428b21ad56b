"""What each head adds to the logit of the next token: direct logit attribution.

The logit is a sum: what each head and each MLP adds to the residual stream of the last token, along the
direction that W_U reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.errors import UserError
from attncli.measure.ablate import WHERE
from attncli.measure.answers import AnswerTokens, one_token_each
from attncli.measure.frozen_norms import ROUNDING, FrozenNorm, frozen_norm
from attncli.measure.heads import WHERE_IT_LOOKS, Survey, compare_distances, found_texts, looked_at
from attncli.measure.removal import index_of_head, output_of
from attncli.models.architectures import BLOCK, list_of_block, output_projection, projection_of_heads
from attncli.models.capture import capture, check_computed_here, run_model
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.pretrained import Pretrained, Reading
from attncli.records.columns import Records
from attncli.records.logits import HeadLogit, KeyLogit, LayerLogit, LogitAttribution, LogitParts


@dataclass
class Call:
    """What one call of a module read and gave, at the last token of a text, in float64."""

    read: Float[Tensor, " dim"]
    gave: Float[Tensor, " embed"]


Calls = dict[str, list[Call]]
"""The calls of the modules that read and give a vector for each token, by their names."""


@contextmanager
def recorded_calls(model: nn.Module, num_tokens: int) -> Iterator[Calls]:
    """The calls of a model's modules, while it runs on one text."""
    calls: Calls = {}

    def last(tensor: Any) -> Tensor | None:
        """The last token's vector, copied: some models reuse the memory."""
        is_of_tokens = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim > 1
        if not is_of_tokens or tensor.numel() != num_tokens * tensor.shape[-1]:
            return None
        vector: Tensor = tensor.reshape(num_tokens, -1)[-1].detach().double().clone()
        return vector

    def hook(name: str) -> Any:
        def note(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            read = last(inputs[0] if inputs else named.get("hidden_states"))
            gave = last(output[0] if isinstance(output, tuple | list) and output else output)
            if read is not None and gave is not None:
                calls.setdefault(name, []).append(Call(read, gave))

        return note

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(hook(name), with_kwargs=True))
        yield calls


@dataclass(frozen=True)
class Block:
    """What a layer adds: its heads through W_O, the bias of W_O, and the rest, its MLP.

    `factor` is what W_O's output is multiplied by; it is in `heads` and `bias`.
    """

    heads: Float[Tensor, "head embed"]
    bias: Float[Tensor, " embed"]
    mlp: Float[Tensor, " embed"]
    factor: float


@dataclass(frozen=True)
class Residual:
    """The stream before the first block, what the blocks add, and the stream after the last."""

    embedding: Float[Tensor, " embed"]
    blocks: list[Block]
    last: Float[Tensor, " embed"]


def residual_of(
    pretrained: Pretrained,
    calls: Calls,
    modules: Sequence[str],
    outputs: Sequence[Float[Tensor, "head value_dim"]],
) -> Residual:
    """From the names of the attention modules and what their heads gave at the last token.

    UserError where a block gives something else than its input, what W_O gives, and what one other module in
    it gives.
    """
    lists = {list_of_block(module) for module in modules}
    names = [name for name in calls if BLOCK.fullmatch(name) and list_of_block(name) in lists]
    if len(names) != len(modules) or not all(
        module.startswith(f"{name}.") for name, module in zip(names, modules, strict=True)
    ):
        refuse(pretrained, "its blocks do not have one attention layer each")
    stream = embedding = calls[names[0]][0].read
    blocks = []
    for name, module, heads in zip(names, modules, outputs, strict=True):
        call = calls[name][0]
        if len(calls[name]) > 1 or not close(call.read, stream):
            refuse(pretrained, f"{name} reads something else than the output of the block before it")
        blocks.append(_block(pretrained, calls, name, module, heads))
        stream = call.gave
    return Residual(embedding, blocks, stream)


def _block(
    pretrained: Pretrained, calls: Calls, name: str, module: str, heads: Float[Tensor, "head value_dim"]
) -> Block:
    call = calls[name][0]
    inside = {key: own[0] for key, own in calls.items() if key.startswith(f"{name}.") and len(own) == 1}
    projection = output_projection(pretrained.whole, module, heads.numel())
    parts = pretrained.whole.named_modules()
    of_projection = next((inside[key] for key, part in parts if part is projection and key in inside), None)
    if projection is None or of_projection is None:
        refuse(pretrained, f"no output projection was found for {module}")
    if not close(of_projection.read, heads.flatten()):
        refuse(pretrained, f"{module} changes the outputs of its heads before W_O")
    added = call.gave - call.read
    factor = _factor(added, of_projection.gave, [one.gave for one in inside.values()], call.gave.abs().max())
    if factor is None:
        refuse(pretrained, f"the output of {name} is not its input plus the outputs of its heads and its MLP")
    columns = factor * projection_of_heads(projection, len(heads)).double()
    bias = getattr(projection, "bias", None)
    own_bias = torch.zeros_like(added) if bias is None else factor * bias.detach().double()
    mlp = added - factor * of_projection.gave
    return Block((columns @ heads.unsqueeze(-1)).squeeze(-1), own_bias, mlp, factor)


def _factor(added: Tensor, of_heads: Tensor, given: Sequence[Tensor], size: Tensor) -> float | None:
    """What W_O's output is multiplied by in what a block adds, beside a module's output times another factor.

    1 where it can be; Granite multiplies both by a setting. None where the block adds something else.
    """
    given = [one for one in given if one.shape == added.shape == of_heads.shape]
    if given and any(close(one, added - of_heads, size) for one in given):
        return 1.0
    for one in given:
        columns = torch.stack([of_heads, one], dim=1)
        factors = torch.linalg.lstsq(columns, added).solution
        # What differs by a factor alone is no second part.
        if abs(float(torch.cosine_similarity(of_heads, one, dim=0))) < 1 - ROUNDING and close(
            columns @ factors, added, size
        ):
            return float(factors[0])
    return None


def close(a: Tensor, b: Tensor, size: Tensor | None = None) -> bool:
    """Whether two vectors are the same but for rounding, of numbers of this size."""
    return a.shape == b.shape and bool(
        (a - b).abs().max() <= ROUNDING * (b.abs().max() if size is None else size)
    )


def refuse(pretrained: Pretrained, reason: str) -> NoReturn:
    """UserError that says why a logit is not such a sum here."""
    instead = "use a decoder such as GPT-2 or Llama, or attn ablate, which needs no such sum"
    raise UserError(
        f"model: the logits of {pretrained.name} are no sum of what its heads add: {reason}: {instead}"
    )


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
    chosen = list(ids)
    factor = _factor_of_logits(pretrained, unembedding(read.to(unembedding.weight.dtype)), logits)
    unembedded = factor * difference(unembedding.weight.detach()[chosen].double())
    bias = 0.0 if unembedding.bias is None else factor * float(difference(unembedding.bias[chosen]))
    if close(read, stream):
        return Direction(unembedded, bias, 1.0)
    frozen = _last_norm(pretrained, calls, stream, read)
    vector = unembedded * frozen.gain.double() * frozen.scale
    if frozen.is_centred:
        vector = vector - vector.mean()
    if frozen.shift is not None:
        bias += float(frozen.shift.double() @ unembedded)
    return Direction(vector, bias, float(frozen.scale))


def _factor_of_logits(
    pretrained: Pretrained, given: Float[Tensor, " vocabulary"], logits: Float[Tensor, " vocabulary"]
) -> float:
    """What the logits are of what W_U gives: 1 mostly, Cohere has a factor. UserError for anything else."""
    is_masked = logits <= torch.finfo(logits.dtype).min / 2
    given, logits = given[~is_masked].double(), logits[~is_masked].double()
    factor = 1.0 if close(given, logits) else float(given @ logits / (given @ given))
    if not close(factor * given, logits):
        refuse(pretrained, "its logits are changed after W_U, not by a factor alone")
    return factor


def _last_norm(
    pretrained: Pretrained, calls: Calls, stream: Float[Tensor, " embed"], read: Float[Tensor, " embed"]
) -> FrozenNorm:
    """The module outside of blocks that makes of the stream what W_U reads, its scale frozen."""
    others: list[str] = []
    for name, module in pretrained.whole.named_modules():
        call = calls[name][-1] if name in calls and not BLOCK.match(name) else None
        if call is not None and close(call.read, stream) and close(call.gave, read):
            frozen = frozen_norm(module, call.read, call.gave)
            if frozen is not None:
                return frozen
            others.append(type(module).__name__)
    if others:
        refuse(pretrained, f"its last norm, {others[-1]}, is neither LayerNorm nor RMSNorm")
    refuse(pretrained, "no norm was found between its last block and W_U")


def check_splits(pretrained: Pretrained) -> None:
    """UserError for a model whose logits cannot be a sum: of another kind, or rounded to half precision."""
    if pretrained.has_decoder or pretrained.predicts != "next":
        refuse(pretrained, "it is not a decoder that predicts the next token")
    dtype = pretrained.model.dtype
    if torch.finfo(dtype).bits < 32:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"dtype: must be float32 for why: rounded parts do not add up to the logit (got {name})"
        )


@torch.no_grad()
def attribution(
    pretrained: Pretrained,
    reading: Reading,
    *,
    answer: str | None = None,
    against: str | None = None,
    head: str | None = None,
) -> LogitAttribution:
    """That of the answer's logit after a text, or of the most likely token's, minus that of `against`.

    `head`, as 5:11, is split by tokens: by default the one that adds most. UserError for a model whose logits
    are not such a sum, an answer of several tokens, and a head that is not there; MemoryError.
    """
    check_splits(pretrained)
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    way = check_computed_here(model, inputs)
    modules: list[str] = []
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        survey = Survey(WHERE_IT_LOOKS, [reading], pretrained, None, hooks)

        def keep(layer: CapturedLayer) -> Tensor:
            output = survey.take(layer)
            assert output is not None
            modules.append(layer.module)
            outputs.append(output[0, :, -1].double())
            return output

        with recorded_calls(model, len(reading.text.ids)) as calls:
            logits = run_model(model, inputs, keep)["logits"][0, -1]
    answers = {key: text for key, text in (("answer", answer), ("against", against)) if text is not None}
    chosen_tokens = AnswerTokens([int(logits.argmax())])
    if answers:
        chosen_tokens = one_token_each(
            pretrained, answers, reading.text.ids, lambda: logits.log_softmax(dim=-1)
        )
    ids = chosen_tokens.ids
    residual = residual_of(pretrained, calls, modules, outputs)
    direction = direction_of(pretrained, calls, residual.last, logits, ids)
    vector, blocks = direction.vector, residual.blocks
    of_heads = [block.heads @ vector for block in blocks]
    mlps = [float(block.mlp @ vector) for block in blocks]
    numbers = torch.cat(of_heads).tolist()
    looks = looked_at(survey, 0, [len(reading.text.ids) - 1] * len(numbers))
    compare_distances(survey)
    heads = HeadLogit.rows(
        {name: row[name] for name in (*WHERE, "pattern")} | {"contribution": number, **looks_at}
        for row, number, looks_at in zip(found_texts(survey)[0].rows, numbers, looks, strict=True)
    )
    if head is None:
        chosen = max(heads, key=lambda row: abs(row.contribution or 0.0))
    else:
        chosen = heads[index_of_head(heads, head, "head", pretrained)]
    layers = [row.layer for row in heads if row.head == 0]
    sums = {
        "embedding": float(residual.embedding @ vector),
        "heads": float(sum(numbers_of.sum() for numbers_of in of_heads)),
        "mlps": sum(mlps),
        "biases": sum(float(block.bias @ vector) for block in blocks) + direction.bias,
    }
    logit = float(difference(logits[ids]))
    return LogitAttribution(
        heads=heads,
        layers=LayerLogit.table(
            layer=layers, attention=[float(numbers_of.sum()) for numbers_of in of_heads], mlp=mlps
        ),
        parts=LogitParts.single(**sums, sum=sum(sums.values()), logit=logit, norm_scale=direction.scale),
        keys=_of_keys(pretrained, reading, chosen, blocks[layers.index(chosen.layer)].factor * vector),
        ids=ids,
        head=chosen.name,
        notes=(*chosen_tokens.notes, *way.notes()),
    )


def _of_keys(
    pretrained: Pretrained, reading: Reading, head: HeadLogit, vector: Float[Tensor, " embed"]
) -> Records[KeyLogit]:
    """p_ij v_j W_O . direction of a head at the last token i, and p_ij, for each token j."""
    tables: list[Records[KeyLogit]] = []

    def keep(layer: CapturedLayer) -> Tensor:
        if layer.module != head.module:
            return output_of(layer)
        attention, number = layer.attention, head.head
        assert isinstance(attention, AttentionLayer)
        weights = attend(attention, Wanted(kept_heads=(number,))).kept_weights
        assert weights is not None
        _, values = attention.expanded()
        in_dim = attention.num_heads * values.shape[-1]
        projection = output_projection(pretrained.whole, layer.module, in_dim)
        assert projection is not None
        columns = projection_of_heads(projection, attention.num_heads)[number].double()
        weight = weights[0, 0, -1].double()
        contribution = weight * (values[0, number].double() @ (vector @ columns))
        tables.append(
            KeyLogit.table(contribution=contribution.numpy(force=True), weight=weight.numpy(force=True))
        )
        raise StopCapture

    capture(pretrained.whole, pretrained.inputs([reading]), keep)
    return tables[0]
