"""Direct logit attribution: the contribution of each head to the logit of the next token.

The logit is a sum over everything that the heads and the MLPs add to the last token's residual stream, along
the direction that W_U reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.layer import AttentionLayer
from attncli.core.names import named_head
from attncli.core.runtime import idle_core_threads
from attncli.core.summaries import mean_interval, share_interval
from attncli.errors import UserError
from attncli.features.why.results import (
    HeadLogit,
    KeyLogit,
    LayerLogit,
    LogitAttribution,
    LogitParts,
    TextLogit,
)
from attncli.measure.heads import WHERE_IT_LOOKS, Survey, compare_distances, looked_at, surveyed_texts
from attncli.measure.looks import rows_at
from attncli.measure.patterns import most_frequent_pattern
from attncli.models.architectures import (
    BLOCK,
    block_list,
    head_projections,
    layer_number,
    layers_without_softmax,
    output_projection,
    sources_switched_off,
    unshown_layers,
)
from attncli.models.capture import Way, check_computed_here, run_model
from attncli.models.frozen_norms import ROUNDING, FrozenNorm, frozen_norm
from attncli.models.layers import CapturedLayer
from attncli.models.patched_heads import refuse_replaced
from attncli.models.predicted import Predicted
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.projected_heads import LINEAR, GatedHeads, ProjectedHeads, hearing_projected_heads
from attncli.models.removal import ModelHead, head_index, output_of
from attncli.models.targets import Target
from attncli.records.columns import Records
from attncli.records.surveys import LookedAtKey


@dataclass
class Call:
    """The input and output of one call to a module at the last token of a text, in float64."""

    read: Float[Tensor, " dim"]
    gave: Float[Tensor, " embed"]


ForwardHook = Callable[[nn.Module, tuple[object, ...], dict[str, object], object], None]
Calls = dict[str, list[Call]]
"""The calls to modules that map one vector to one vector at each token, by module name."""


@contextmanager
def recorded_calls(model: nn.Module, num_tokens: int) -> Iterator[Calls]:
    """Record the calls to a model's modules while the model runs on one text."""
    calls: Calls = {}

    def last(tensor: object) -> Tensor | None:
        """Return a copy of the last token's vector, because some models reuse its memory."""
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
class LastHeads:
    """The input of W_O, from the heads of a layer, at the last token."""

    module: str
    heads: Float[Tensor, "head value_dim"]
    projection: nn.Module


@dataclass(frozen=True)
class HeadsAddition:
    """The vectors that a layer's heads add through W_O, and the bias of W_O.

    The block multiplies the output of W_O by `factor`. `heads` and `bias` already include this factor.
    """

    module: str
    heads: Float[Tensor, "head embed"]
    bias: Float[Tensor, " embed"]
    factor: float


@dataclass(frozen=True)
class LayerAddition:
    """The vectors that a block adds: those of its heads, with or without a softmax, and that of its MLP."""

    layer: int
    mixers: list[HeadsAddition]
    mlp: Float[Tensor, " embed"]


@dataclass(frozen=True)
class Residual:
    """The residual stream before the first block, the additions of the blocks, and the stream at the end."""

    embedding: Float[Tensor, " embed"]
    blocks: list[LayerAddition]
    last: Float[Tensor, " embed"]


def residual_sum(pretrained: Pretrained, calls: Calls, mixers: Sequence[LastHeads]) -> Residual:
    """Split the residual stream at the last token into a sum, using the outputs of each layer's heads.

    Raises UserError if the output of a block is not the sum of its input, the output of W_O and the outputs
    of other modules in the block.
    """
    lists = {block_list(mixer.module) for mixer in mixers}
    names = [name for name in calls if BLOCK.fullmatch(name) and block_list(name) in lists]
    in_block = {name: [mixer for mixer in mixers if mixer.module.startswith(f"{name}.")] for name in names}
    modules = [mixer.module for block_mixers in in_block.values() for mixer in block_mixers]
    if len(modules) != len(mixers) or len({*modules}) != len(modules):
        refuse(pretrained, "its blocks share an attention layer, or attention is outside the blocks")
    stream = embedding = calls[names[0]][0].read
    modules_by_part = {part: key for key, part in pretrained.whole.named_modules()}
    blocks = []
    for name, block_mixers in in_block.items():
        call, block_name = calls[name][0], pretrained.module_name(name)
        if len(calls[name]) > 1 or not close(call.read, stream):
            refuse(pretrained, f"the input of {block_name} is not the output of the block before it")
        inside = {key: key_calls[0] for key, key_calls in calls.items() if key.startswith(f"{name}.")}
        inside = {key: key_calls for key, key_calls in inside.items() if len(calls[key]) == 1}
        gave = []
        for mixer in block_mixers:
            projection_output = inside.get(modules_by_part[mixer.projection])
            if projection_output is None:
                refuse(
                    pretrained,
                    f"no output projection was found for {pretrained.module_name(mixer.module)}",
                )
            gave.append(projection_output.gave)
        block = _block(layer_number(name), call, block_mixers, gave, [each.gave for each in inside.values()])
        if block is None:
            refuse(
                pretrained,
                f"the output of {block_name} is not its input plus the outputs of its heads and its MLP",
            )
        blocks.append(block)
        stream = call.gave
    return Residual(embedding, blocks, stream)


def _block(
    layer: int, call: Call, mixers: Sequence[LastHeads], gave: Sequence[Tensor], inside: Sequence[Tensor]
) -> LayerAddition | None:
    """Return what a block adds, from the outputs of W_O and of its modules, or None if there is more."""
    added = call.gave - call.read
    factors = _factors(added, gave, inside, call.gave.abs().max())
    if factors is None:
        return None
    additions, mlp = [], added
    for mixer, factor, projection_output in zip(mixers, factors, gave, strict=True):
        columns = head_projections(mixer.projection, len(mixer.heads)).double()
        by_head = factor * (columns @ mixer.heads.unsqueeze(-1)).squeeze(-1)
        bias = getattr(mixer.projection, "bias", None)
        bias_addition = torch.zeros_like(added) if bias is None else factor * bias.detach().double()
        additions.append(HeadsAddition(mixer.module, by_head, bias_addition, factor))
        mlp = mlp - factor * projection_output
    return LayerAddition(layer, additions, mlp)


def _factors(
    added: Tensor, head_outputs: Sequence[Tensor], inside: Sequence[Tensor], size: Tensor
) -> list[float] | None:
    """Return the factor of each W_O's output in the vector that a block adds, or None for any other sum.

    The remainder is zero, the output of a module, or the sum of two outputs (experts, and an MLP that all
    tokens share), times another factor. Factors of 1 are tried first; Granite and Falcon-H1 multiply by a
    factor from their config.
    """
    if any(part.shape != added.shape for part in head_outputs):
        return None
    outputs = [part for part in inside if part.shape == added.shape]
    sums = [a + b for a, b in combinations(outputs, 2)]
    remainder = added - torch.stack([torch.zeros_like(added), *head_outputs]).sum(dim=0)
    nothing = torch.zeros_like(added)
    if any(close(part, remainder, size) for part in (nothing, *outputs, *sums)):
        return [1.0] * len(head_outputs)
    for number, part in enumerate(head_outputs):
        if len(head_outputs) > 1 and close(part, added, size):  # it reads the other heads' outputs (Zamba2)
            return [float(place == number) for place in range(len(head_outputs))]
    for part in (*outputs, *sums):
        columns = torch.stack([*head_outputs, part], dim=1)
        factors = torch.linalg.lstsq(columns, added).solution
        # A vector in the same direction is not a second part.
        alike = [abs(float(torch.cosine_similarity(each, part, dim=0))) for each in head_outputs]
        is_second = max(alike, default=0.0) < 1 - ROUNDING
        # A factor of 0 would mean that the heads are in the remainder, for example behind a norm.
        if is_second and factors.abs().min() > ROUNDING and close(columns @ factors, added, size):
            return [float(factor) for factor in factors[:-1]]
    return None


def close(a: Tensor, b: Tensor, size: Tensor | None = None) -> bool:
    """Return True if two vectors differ only by rounding, relative to `size`."""
    return a.shape == b.shape and bool(
        (a - b).abs().max() <= ROUNDING * (b.abs().max() if size is None else size)
    )


def refuse(pretrained: Pretrained, reason: str) -> NoReturn:
    """Raise UserError with the reason why a logit is not a sum of parts in this model."""
    instead = "use a decoder such as GPT-2 or Llama, or attn ablate, which does not need this sum"
    raise UserError(
        f"model: the logits of {pretrained.name} are not a sum over its heads: {reason}: {instead}"
    )


@dataclass(frozen=True)
class Direction:
    """A direction in the residual stream, with logit = stream · vector + bias.

    The last norm multiplied the stream by `scale`.
    """

    vector: Float[Tensor, " embed"]
    bias: float
    scale: float


def logit_direction(
    pretrained: Pretrained,
    calls: Calls,
    stream: Float[Tensor, " embed"],
    logits: Float[Tensor, " vocabulary"],
    target: Target,
) -> Direction:
    """Return the direction in the residual stream that gives the logit of the target.

    A norm is linear once its scale s is frozen: RMSNorm x g s (Zhang & Sennrich 2019, 1910.07467), LayerNorm
    (x - mean x) g s + b (Ba et al. 2016, 1607.06450). Raises UserError for other norms, and for logits that
    are changed after W_U.
    """
    # transformers has no types for this method.
    unembedding = pretrained.whole.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(unembedding, nn.Linear)
    name = next(name for name, part in pretrained.whole.named_modules() if part is unembedding)
    read = calls[name][-1].read
    factor = _logit_factor(pretrained, unembedding(read.to(unembedding.weight.dtype)), logits)
    unembedded, bias = target.direction(unembedding)
    unembedded, bias = factor * unembedded, factor * bias
    if close(read, stream):
        return Direction(unembedded, bias, 1.0)
    frozen = _last_norm(pretrained, calls, stream, read)
    vector = unembedded * frozen.gain.double() * frozen.scale
    if frozen.is_centred:
        vector = vector - vector.mean()
    if frozen.shift is not None:
        bias += float(frozen.shift.double() @ unembedded)
    return Direction(vector, bias, float(frozen.scale))


def _logit_factor(
    pretrained: Pretrained, outputs: Float[Tensor, " vocabulary"], logits: Float[Tensor, " vocabulary"]
) -> float:
    """Return the ratio of the logits to the output of W_U: 1, or another factor (Cohere).

    Raises UserError if the ratio varies.
    """
    is_masked = logits <= torch.finfo(logits.dtype).min / 2
    outputs, logits = outputs[~is_masked].double(), logits[~is_masked].double()
    factor = 1.0 if close(outputs, logits) else float(outputs @ logits / (outputs @ outputs))
    if not close(factor * outputs, logits):
        refuse(pretrained, "its logits are changed after W_U by more than a factor")
    return factor


def _last_norm(
    pretrained: Pretrained, calls: Calls, stream: Float[Tensor, " embed"], read: Float[Tensor, " embed"]
) -> FrozenNorm:
    """Return the norm between the last block and W_U, with its scale frozen."""
    other_norms: list[str] = []
    for name, module in pretrained.whole.named_modules():
        call = calls[name][-1] if name in calls and not BLOCK.match(name) else None
        if call is not None and close(call.read, stream) and close(call.gave, read):
            frozen = frozen_norm(module, call.read, call.gave)
            if frozen is not None:
                return frozen
            other_norms.append(type(module).__name__)
    if other_norms:
        refuse(pretrained, f"its last norm, {other_norms[-1]}, is neither LayerNorm nor RMSNorm")
    refuse(pretrained, "no norm was found between its last block and W_U")


def check_splits(pretrained: Pretrained) -> None:
    """Raise UserError if the model's logits cannot be split: it is not a decoder, or is in half precision."""
    if pretrained.has_decoder or pretrained.predicts != "next":
        refuse(pretrained, "it is not a decoder that predicts the next token")
    dtype = pretrained.model.dtype
    if torch.finfo(dtype).bits < 32:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"dtype: must be float32, because rounded parts do not add up to the logit (got {name})"
        )


@torch.no_grad()
def attribution(
    pretrained: Pretrained,
    reading: Reading,
    *,
    head: str | None = None,
) -> LogitAttribution:
    """Attribute the logit of the reading's answer or, without an answer, of the most likely token.

    The contribution of `head`, such as 5:11, is split by token; the default is the head with the largest
    contribution. Raises UserError for a model whose logits are not a sum of parts and for a head that the
    model does not have, and MemoryError if memory runs out.
    """
    check_splits(pretrained)
    run = _recorded_run(pretrained, reading, head)
    target = reading.answer if isinstance(reading, Predicted) else None
    target = target or Target([int(run.logits.argmax())])
    residual = residual_sum(pretrained, run.calls, run.mixers)
    direction = logit_direction(pretrained, run.calls, residual.last, run.logits, target)
    vector, blocks = direction.vector, residual.blocks
    by_module = {mixer.module: mixer.heads @ vector for block in blocks for mixer in block.mixers}
    heads = _head_logits(pretrained, run, by_module, reading.text.tokens)
    layers = LayerLogit.table(
        layer=[block.layer for block in blocks],
        attention=[
            sum(float(by_module[mixer.module].sum()) for mixer in block.mixers) if block.mixers else None
            for block in blocks
        ],
        mlp=[float(block.mlp @ vector) for block in blocks],
    )
    if head is None:
        split = [row for row in heads if run.splits(row)]
        chosen = max(split, key=lambda row: abs(row.contribution or 0.0))
    else:
        chosen = heads[head_index(heads, head, "head", pretrained)]
        if not run.splits(chosen):
            channels = "is in a Mamba-1 layer, whose channels have separate weights"
            raise UserError(f"head: {head} {channels}: name a head of another layer")
    return LogitAttribution(
        heads=heads,
        layers=layers,
        parts=_sums(residual, direction, target.logit(run.logits)),
        keys=_key_logits(pretrained, run, chosen, residual, vector),
        ids=target.compared_ids,
        head=chosen.name,
        notes=(
            *target.notes,
            *replace(run.way, unshown=run.unshown).notes(),
            *_indirect(pretrained, residual),
        ),
        unshown=run.unshown,
    )


@torch.no_grad()
def mean_attribution(
    pretrained: Pretrained,
    readings: Sequence[Reading],
    names: Sequence[str] = (),
    *,
    progress: Callable[[float], None] | None = None,
) -> LogitAttribution:
    """Compute the means of `attribution` over several texts, with 95 % intervals, and each text's logit.

    `names` contains the names of the texts; the default is their numbers from 1. The pattern of a head is its
    most frequent pattern. Raises UserError in the same cases as `attribution`, and MemoryError if memory runs
    out.
    """
    results: list[LogitAttribution] = []
    with idle_core_threads() as adapt:
        for number, reading in enumerate(readings, start=1):
            results.append(attribution(pretrained, reading))
            adapt()
            if progress is not None:
                progress(number / len(readings))
    first = results[0]
    patterns = zip(*(result.heads.column("pattern") for result in results), strict=True)
    return LogitAttribution(
        heads=HeadLogit.table(
            **{name: first.heads.cells[name] for name in ModelHead._fields},
            pattern=[most_frequent_pattern(text_patterns) for text_patterns in patterns],
            **_means("contribution", [result.heads.numbers("contribution") for result in results]),
        ),
        layers=LayerLogit.table(
            layer=first.layers.cells["layer"],
            **_means("attention", [result.layers.numbers("attention") for result in results]),
            **_means("mlp", [result.layers.numbers("mlp") for result in results]),
        ),
        parts=_mean_parts([result.parts for result in results], compares=len(first.ids) > 1),
        texts=TextLogit.table(
            text=[*names] or [str(number) for number in range(1, len(results) + 1)],
            logit=[result.parts.logit for result in results],
        ),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        unshown=first.unshown,
    )


def _mean_parts(parts: Sequence[LogitParts], *, compares: bool) -> LogitParts:
    """Return the mean sums of several texts.

    With `compares`, the result includes the share of texts with a positive difference.
    """
    cells: dict[str, float] = {}
    for name in (each for each in parts[0] if each != "norm_scale"):
        text_numbers = np.array([[row.number(name)] for row in parts], dtype=np.float64)
        cells |= {end: float(mean[0]) for end, mean in _means(name, text_numbers).items()}
    if compares:
        num_above = sum(row.logit > 0 for row in parts)
        low, high = share_interval(num_above, len(parts))
        cells |= {"above": num_above / len(parts), "above_low": low, "above_high": high}
    return LogitParts.single(**cells)


def _means(
    name: str, text_numbers: Sequence[npt.NDArray[np.float64]] | npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the columns with the means over the texts and, for several texts, the ends of the intervals."""
    numbers = torch.from_numpy(np.array(text_numbers))
    mean = numbers.mean(dim=0)
    if len(numbers) == 1:
        return {name: mean.numpy()}
    squares = (numbers - mean).square().sum(dim=0)
    low, high = mean_interval(torch.full(mean.shape, len(numbers)), mean, squares)
    return {f"{name}{end}": each.numpy() for end, each in (("", mean), ("_low", low), ("_high", high))}


@dataclass(frozen=True)
class _LastRow:
    """A layer's weights at the last token, by head, and its values."""

    weights: Float[Tensor, "head key"]
    values: Float[Tensor, "kv_head key value_dim"]


@dataclass(frozen=True)
class _RecordedRun:
    """A run on a text: the calls to modules, the survey of heads, and the heads' outputs at the last token.

    `linear` contains the heads without a softmax. `unshown` is a sentence that names the layers left out.
    """

    calls: Calls
    survey: Survey
    mixers: list[LastHeads]
    outputs: dict[str, Float[Tensor, "head value_dim"]]
    last_rows: dict[str, _LastRow]
    linear: dict[str, ProjectedHeads]
    logits: Float[Tensor, " vocabulary"]
    way: Way
    unshown: str

    def splits(self, head: HeadLogit) -> bool:
        """Return True if the head's contribution is a sum over tokens.

        The contribution of a Mamba-1 head is no such sum, because its channels have separate weights.
        """
        heads = self.linear.get(head.module)
        return heads is None or heads.captured.heads.mixed_values() is not None


def _recorded_run(pretrained: Pretrained, reading: Reading, head: str | None) -> _RecordedRun:
    """Run the model on a text. Only layers that may contain `head` keep their last rows."""
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    way, num_tokens = check_computed_here(model, inputs), len(reading.text.ids)
    refuse_replaced(model, ("output", "gated"), "which is not made of values")
    wanted = None if head is None else named_head(head).layer
    mixers: list[LastHeads] = []
    outputs: dict[str, Tensor] = {}
    last_rows: dict[str, _LastRow] = {}
    linear: dict[str, ProjectedHeads] = {}
    gated = GatedHeads(model)
    with ExitStack() as hooks:
        survey = Survey(WHERE_IT_LOOKS, [reading], pretrained, None, hooks)

        def keep(layer: CapturedLayer) -> Tensor:
            output = survey.take(layer)
            assert output is not None
            name = pretrained.module_name(layer.module)
            outputs[name] = output[0, :, -1].double()
            gated.note(layer.module, output, hooks)
            projection = output_projection(model, layer.module, outputs[name].numel())
            if projection is None:
                refuse(pretrained, f"no output projection was found for {name}")
            mixers.append(LastHeads(layer.module, outputs[name], projection))
            attention = layer.attention
            if wanted in (None, layer.layer) and isinstance(attention, AttentionLayer):
                weights = rows_at(attention, [num_tokens - 1], 0)[:, 0]
                last_rows[name] = _LastRow(weights.double(), attention.value[0].clone())
            return output

        def take_linear(heads: ProjectedHeads, read: Tensor) -> None:
            linear[pretrained.module_name(heads.module)] = heads
            last = heads.by_head(read)[0, :, -1].double()
            mixers.append(LastHeads(heads.module, last, heads.projection))

        hooks.enter_context(hearing_projected_heads(model, take_linear))
        with recorded_calls(model, num_tokens) as calls:
            logits = run_model(model, inputs, keep)["logits"][0, -1]
    if mixed := gated.mixed(lambda: run_model(model, inputs, output_of)):
        name = pretrained.module_name(mixed)
        refuse(pretrained, f"{name} changes the outputs of its heads before W_O")
    mixers = [replace(mixer, heads=gated.last_read(mixer.projection, mixer.heads)) for mixer in mixers]
    for mixer, _ in layers_without_softmax(pretrained.model, {*linear})[0]:
        off = sources_switched_off([mixer])
        refuse(pretrained, f"attn cannot split the heads of its {mixer} layers{off}")
    unshown = unshown_layers(pretrained.model, {*linear})
    return _RecordedRun(calls, survey, mixers, outputs, last_rows, linear, logits, way, unshown)


def _head_logits(
    pretrained: Pretrained,
    run: _RecordedRun,
    by_module: Mapping[str, Float[Tensor, " head"]],
    tokens: Sequence[str],
) -> Records[HeadLogit]:
    """Return each head's contribution and its strongest key at the last token, in the order of the layers."""
    survey = run.survey
    compare_distances(survey)
    surveyed = surveyed_texts(survey)[0].heads
    looks = looked_at(survey, 0, [len(tokens) - 1] * len(surveyed))
    numbers = {pretrained.module_name(module): logits.tolist() for module, logits in by_module.items()}
    rows: list[dict[str, object]] = [
        {name: row[name] for name in (*ModelHead._fields, "pattern")}
        | {"contribution": numbers[row.module][row.head], **looks_at}
        for row, looks_at in zip(surveyed, looks, strict=True)
    ]
    attending = {row.layer for row in surveyed}
    has_both = any(heads.captured.layer in attending for heads in run.linear.values())
    for module, heads in run.linear.items():
        stack = LINEAR if has_both else surveyed[0].stack
        for head, number in enumerate(numbers[module]):
            place = ModelHead(heads.captured.layer, module, LINEAR, stack, head)
            row = {**place._asdict(), "pattern": heads.mixer, "contribution": number}
            last = {"query": len(tokens) - 1, "query_token": tokens[-1]}
            rows.append(row | dict.fromkeys(LookedAtKey.columns) | last)
    return HeadLogit.rows(sorted(rows, key=lambda row: int(str(row["layer"]))))


def _indirect(pretrained: Pretrained, residual: Residual) -> Iterator[str]:
    """Yield a note on heads that do not write directly to the residual stream."""
    modules = [
        pretrained.module_name(mixer.module)
        for block in residual.blocks
        for mixer in block.mixers
        if mixer.factor == 0
    ]
    if modules:
        names, are = ", ".join(modules), "add" if len(modules) > 1 else "adds"
        yield f"{names} {are} nothing directly, because the parallel layer reads the outputs of their heads."


def _sums(residual: Residual, direction: Direction, logit: float) -> LogitParts:
    """Return the sums over the model: the embedding, the heads, the MLPs and the biases."""
    vector, blocks = direction.vector, residual.blocks
    mixers = [mixer for block in blocks for mixer in block.mixers]
    parts = {
        "embedding": float(residual.embedding @ vector),
        "heads": sum(float((mixer.heads @ vector).sum()) for mixer in mixers),
        "mlps": sum(float(block.mlp @ vector) for block in blocks),
        "biases": sum(float(mixer.bias @ vector) for mixer in mixers) + direction.bias,
    }
    return LogitParts.single(**parts, sum=sum(parts.values()), logit=logit, norm_scale=direction.scale)


def _key_logits(
    pretrained: Pretrained,
    run: _RecordedRun,
    head: HeadLogit,
    residual: Residual,
    vector: Float[Tensor, " embed"],
) -> Records[KeyLogit]:
    """Compute w_ij v_j m W_O · direction for a head at the last token i, and w_ij, for each token j.

    m is the factor by which the gate and the norm, whose scale is frozen, multiply each entry of the head's
    output.
    """
    additions = [mixer for block in residual.blocks for mixer in block.mixers]
    place = next(
        place for place, each in enumerate(additions) if pretrained.module_name(each.module) == head.module
    )
    mixer = next(each for each in run.mixers if each.module == additions[place].module)
    columns = head_projections(mixer.projection, len(mixer.heads))[head.head].double()
    direction = additions[place].factor * vector @ columns
    if head.module in run.linear:
        layer = run.linear[head.module].captured.heads
        mixed = layer.mixed_values()
        assert mixed is not None, "only heads that are sums over tokens can be split"
        weight, values = layer.last_row(head.head).double(), mixed[0, :, head.head].double()
        output = weight @ values
    else:
        row = run.last_rows[head.module]
        weight = row.weights[head.head]
        values = row.values[head.head * len(row.values) // len(row.weights)].double()
        output = run.outputs[head.module][head.head]
    read = mixer.heads[head.head]
    if not close(read, output):
        direction = direction * (read / output).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    contribution = weight * (values @ direction)
    return KeyLogit.table(contribution=contribution.numpy(force=True), weight=weight.numpy(force=True))
