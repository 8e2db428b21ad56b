"""What each head adds to the logit of the next token: direct logit attribution.

The logit is a sum: what each head and each MLP adds to the residual stream of the last token, along the
direction that W_U reads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.layer import AttentionLayer
from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.measure.heads import WHERE_IT_LOOKS, Survey, compare_distances, looked_at, surveyed_texts
from attncli.measure.looks import rows_at
from attncli.measure.removal import ModelHead, index_of_head
from attncli.models.answers import AnswerTokens, one_token_each
from attncli.models.architectures import BLOCK, list_of_block, output_projection, projection_of_heads
from attncli.models.capture import check_computed_here, run_model
from attncli.models.frozen_norms import ROUNDING, FrozenNorm, frozen_norm
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading
from attncli.records.columns import Records
from attncli.records.logits import HeadLogit, KeyLogit, LayerLogit, LogitAttribution, LogitParts


@dataclass
class Call:
    """What one call of a module read and gave, at the last token of a text, in float64."""

    read: Float[Tensor, " dim"]
    gave: Float[Tensor, " embed"]


ForwardHook = Callable[[nn.Module, tuple[object, ...], dict[str, object], object], None]
Calls = dict[str, list[Call]]
"""The calls of the modules that read and give a vector for each token, by their names."""


@contextmanager
def recorded_calls(model: nn.Module, num_tokens: int) -> Iterator[Calls]:
    """The calls of a model's modules, while it runs on one text."""
    calls: Calls = {}

    def last(tensor: object) -> Tensor | None:
        """The last token's vector, copied: some models reuse the memory."""
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim < 2:
            return None
        if tensor.numel() != num_tokens * tensor.shape[-1]:
            return None
        vector: Tensor = tensor.reshape(num_tokens, -1)[-1].detach().double().clone()
        return vector

    def hook(name: str) -> ForwardHook:
        def note(
            module: nn.Module, inputs: tuple[object, ...], named: dict[str, object], output: object
        ) -> None:
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
class LayerAddition:
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
    blocks: list[LayerAddition]
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
    modules_by_part = {part: key for key, part in pretrained.whole.named_modules()}
    blocks = []
    for name, module, heads in zip(names, modules, outputs, strict=True):
        call, block_name = calls[name][0], pretrained.module_name(name)
        if len(calls[name]) > 1 or not close(call.read, stream):
            refuse(pretrained, f"{block_name} reads something else than the output of the block before it")
        inside = {key: of_key[0] for key, of_key in calls.items() if key.startswith(f"{name}.")}
        inside = {key: of_key for key, of_key in inside.items() if len(calls[key]) == 1}
        projection = output_projection(pretrained.whole, module, heads.numel())
        of_projection = None if projection is None else inside.get(modules_by_part[projection])
        if projection is None or of_projection is None:
            refuse(pretrained, f"no output projection was found for {pretrained.module_name(module)}")
        if not close(of_projection.read, heads.flatten()):
            refuse(
                pretrained, f"{pretrained.module_name(module)} changes the outputs of its heads before W_O"
            )
        block = _block(call, of_projection, list(inside.values()), projection, heads)
        if block is None:
            refuse(
                pretrained,
                f"the output of {block_name} is not its input plus the outputs of its heads and its MLP",
            )
        blocks.append(block)
        stream = call.gave
    return Residual(embedding, blocks, stream)


def _block(
    call: Call,
    of_projection: Call,
    inside: Sequence[Call],
    projection: nn.Module,
    heads: Float[Tensor, "head value_dim"],
) -> LayerAddition | None:
    """What a block adds, from its call and those of W_O and of all modules in it; None where it is no sum."""
    added = call.gave - call.read
    factor = _factor(added, of_projection.gave, [each.gave for each in inside], call.gave.abs().max())
    if factor is None:
        return None
    columns = projection_of_heads(projection, len(heads)).double()
    by_head = factor * (columns @ heads.unsqueeze(-1)).squeeze(-1)
    bias = getattr(projection, "bias", None)
    of_bias = torch.zeros_like(added) if bias is None else factor * bias.detach().double()
    return LayerAddition(by_head, of_bias, added - factor * of_projection.gave, factor)


def _factor(added: Tensor, of_heads: Tensor, given: Sequence[Tensor], size: Tensor) -> float | None:
    """What W_O's output is multiplied by in what a block adds, beside a module's output times another factor.

    1 where it can be; Granite multiplies both by a setting. None where the block adds something else.
    """
    given = [part for part in given if part.shape == added.shape == of_heads.shape]
    if given and any(close(part, added - of_heads, size) for part in given):
        return 1.0
    for part in given:
        columns = torch.stack([of_heads, part], dim=1)
        factors = torch.linalg.lstsq(columns, added).solution
        # What differs by a factor alone is no second part.
        if abs(float(torch.cosine_similarity(of_heads, part, dim=0))) < 1 - ROUNDING and close(
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
    run = _recorded_run(pretrained, reading, head)
    answers = {key: text for key, text in (("answer", answer), ("against", against)) if text is not None}
    tokens = AnswerTokens([int(run.logits.argmax())])
    if answers:
        log_probabilities = partial(run.logits.log_softmax, dim=-1)
        tokens = one_token_each(pretrained, answers, reading.text.ids, log_probabilities)
    residual = residual_of(pretrained, run.calls, run.modules, run.outputs)
    direction = direction_of(pretrained, run.calls, residual.last, run.logits, tokens.ids)
    vector, blocks = direction.vector, residual.blocks
    by_layer = [block.heads @ vector for block in blocks]
    heads = _head_logits(run.survey, torch.cat(by_layer).tolist(), len(reading.text.ids))
    layers = LayerLogit.table(
        layer=[row.layer for row in heads if row.head == 0],
        attention=[float(numbers.sum()) for numbers in by_layer],
        mlp=[float(block.mlp @ vector) for block in blocks],
    )
    if head is None:
        chosen = max(heads, key=lambda row: abs(row.contribution or 0.0))
    else:
        chosen = heads[index_of_head(heads, head, "head", pretrained)]
    place = layers.column("layer").tolist().index(chosen.layer)
    return LogitAttribution(
        heads=heads,
        layers=layers,
        parts=_sums(residual, direction, by_layer, float(difference(run.logits[tokens.ids]))),
        keys=_of_keys(pretrained, chosen, run.last_rows[place], blocks[place].factor * vector),
        ids=tokens.ids,
        head=chosen.name,
        notes=(*tokens.notes, *run.notes),
    )


@dataclass(frozen=True)
class _LastRow:
    """Where the heads of a layer looked from the last token, and the values that they read."""

    weights: Float[Tensor, "head key"]
    values: Float[Tensor, "kv_head key value_dim"]


@dataclass(frozen=True)
class _RecordedRun:
    """A run on a text: the calls of its modules, what its heads do, and what they gave at the last token."""

    calls: Calls
    survey: Survey
    modules: list[str]
    outputs: list[Float[Tensor, "head value_dim"]]
    last_rows: list[_LastRow | None]
    logits: Float[Tensor, " vocabulary"]
    notes: Sequence[str]


def _recorded_run(pretrained: Pretrained, reading: Reading, head: str | None) -> _RecordedRun:
    """The run of a text; of a layer without the head that is asked for the last row is None."""
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    way, num_tokens = check_computed_here(model, inputs), len(reading.text.ids)
    wanted = None if head is None else named_head(head).layer
    modules: list[str] = []
    outputs: list[Tensor] = []
    last_rows: list[_LastRow | None] = []
    with ExitStack() as hooks:
        survey = Survey(WHERE_IT_LOOKS, [reading], pretrained, None, hooks)

        def keep(layer: CapturedLayer) -> Tensor:
            output = survey.take(layer)
            assert output is not None
            modules.append(layer.module)
            outputs.append(output[0, :, -1].double())
            attention = layer.attention
            if wanted in (None, layer.layer) and isinstance(attention, AttentionLayer):
                weights = rows_at(attention, [num_tokens - 1], 0)[:, 0]
                last_rows.append(_LastRow(weights.double(), attention.value[0].clone()))
            else:
                last_rows.append(None)
            return output

        with recorded_calls(model, num_tokens) as calls:
            logits = run_model(model, inputs, keep)["logits"][0, -1]
    return _RecordedRun(calls, survey, modules, outputs, last_rows, logits, way.notes())


def _head_logits(survey: Survey, contributions: Sequence[float], num_tokens: int) -> Records[HeadLogit]:
    """What each head adds, in the order of the survey, and what it looks at from the last token."""
    looks = looked_at(survey, 0, [num_tokens - 1] * len(contributions))
    compare_distances(survey)
    return HeadLogit.rows(
        {name: head[name] for name in (*ModelHead._fields, "pattern")} | {"contribution": number, **looks_at}
        for head, number, looks_at in zip(surveyed_texts(survey)[0].heads, contributions, looks, strict=True)
    )


def _sums(
    residual: Residual, direction: Direction, by_layer: Sequence[Float[Tensor, " head"]], logit: float
) -> LogitParts:
    """The sums over the model; `by_layer` is what the heads of each layer add."""
    vector = direction.vector
    parts = {
        "embedding": float(residual.embedding @ vector),
        "heads": float(sum(numbers.sum() for numbers in by_layer)),
        "mlps": sum(float(block.mlp @ vector) for block in residual.blocks),
        "biases": sum(float(block.bias @ vector) for block in residual.blocks) + direction.bias,
    }
    return LogitParts.single(**parts, sum=sum(parts.values()), logit=logit, norm_scale=direction.scale)


def _of_keys(
    pretrained: Pretrained, head: HeadLogit, row: _LastRow | None, vector: Float[Tensor, " embed"]
) -> Records[KeyLogit]:
    """p_ij v_j W_O . direction of a head at the last token i, and p_ij, for each token j."""
    assert row is not None, head.name
    num_heads = len(row.weights)
    projection = output_projection(pretrained.model, head.module, num_heads * row.values.shape[-1])
    assert projection is not None
    columns = projection_of_heads(projection, num_heads)[head.head].double()
    weight, values = row.weights[head.head], row.values[head.head * len(row.values) // num_heads]
    contribution = weight * (values.double() @ (vector @ columns))
    return KeyLogit.table(contribution=contribution.numpy(force=True), weight=weight.numpy(force=True))
