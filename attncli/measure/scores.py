"""Why a head looks where it does: its score as a sum over what earlier parts of the model wrote.

With the scales of the norms frozen, query and key are linear in the residual stream, rotations included, and
the stream is a sum of what the embedding, each earlier head, each earlier MLP and the biases wrote. So

    score(i, j) = sum over a, b of C[a, b],   C[a, b] = scale (R_i W_Q n(c_a,i)) . (R_j W_K n(c_b,j))

(Elhage et al. 2021, A mathematical framework for transformer circuits). Softmax sees differences only: of
each C the mean over the keys that the query sees is taken off; what is left says why this key and no other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import nan
from typing import Any, Literal, NamedTuple, NoReturn, TypeGuard

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncli.core.layer import AttentionLayer, merge_heads
from attncli.errors import UserError, refuse_bytes
from attncli.measure.frozen_norms import ROUNDING, FrozenNorm, frozen_norm, in_turn, is_close
from attncli.measure.removal import Blocks, forwards_replaced, index_of_head, output_of
from attncli.models.architectures import (
    BLOCK,
    list_of_block,
    matrix_and_bias,
    output_projection,
    projection_of_heads,
)
from attncli.models.capture import check_computed_here, run_model
from attncli.models.layers import HIDES, CapturedLayer, StopCapture
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.token_names import checked_position
from attncli.records.columns import Records
from attncli.records.logits import (
    KeyScores,
    PairOfParts,
    PartName,
    RowWeight,
    ScoreOfPart,
    ScoreParts,
    WritingHead,
)
from attncli.records.surveys import HeadInStack

CHUNK = 2**24
"""Numbers of the residual stream that a block reads at a time: 64 MB."""

Kind = Literal["embedding", "head", "mlp", "bias"]
Side = Literal["key", "query"]


class Part(NamedTuple):
    """A part of a model that writes to the residual stream, with layer and head where it has them."""

    kind: Kind
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """`16:0` for a head, `MLP 16`, `embedding`, `biases`."""
        if self.kind == "head":
            return f"{self.layer}:{self.head}"
        return {"mlp": f"MLP {self.layer}", "bias": "biases"}.get(self.kind, self.kind)


def _is_vectors(given: object) -> TypeGuard[Tensor]:
    return isinstance(given, Tensor) and given.is_floating_point() and given.ndim > 1


class _Call(NamedTuple):
    """What a call of a module read and gave; whether it read no other tensor."""

    read: Tensor
    gave: Tensor
    is_alone: bool


@dataclass(frozen=True)
class _BlockRun:
    """What a call of a block did: what its heads gave, what W_O made of that, its norms with their scales.

    `mlp` is what else it added to what it read. Where it does more than add, `writers` are its modules that
    gave a vector for each token, the innermost first, with what they gave.
    """

    name: str
    layer: int
    heads: Float[Tensor, "head token value_dim"]
    projection: nn.Module
    projected: Float[Tensor, "token embed"]
    norms: Mapping[nn.Module, Sequence[FrozenNorm]]
    read: Float[Tensor, "token embed"]
    gave: Float[Tensor, "token embed"]
    mlp: Float[Tensor, "token embed"] | None
    writers: Sequence[tuple[nn.Module, Float[Tensor, "token embed"]]]

    def of_head(self, head: int) -> Float[Tensor, "token embed"]:
        """What a head gave, through its columns of W_O."""
        columns = projection_of_heads(self.projection, len(self.heads))[head]
        return self.heads[head].to(columns) @ columns.mT

    @property
    def bias(self) -> Float[Tensor, "token embed"]:
        """What the bias of W_O gave each token."""
        _, bias = matrix_and_bias(self.projection)
        return torch.zeros_like(self.read) if bias is None else bias.detach().expand_as(self.read)


Vectors = Callable[[], Float[Tensor, "token embed"]]
"""Made when they are read: all heads at once would be many."""
ModuleOutputs = Mapping[nn.Module, Float[Tensor, "text token embed"]]
"""What modules give instead of what they compute."""


class Stream:
    """The residual stream before each block, in one run on a text, as a sum of what parts of the model wrote.

    UserError for a model whose stream is no such sum; MemoryError.
    """

    def __init__(self, pretrained: Pretrained, reading: Reading) -> None:
        self.pretrained, self.model, self.reading = pretrained, pretrained.model, reading
        if pretrained.has_decoder:
            self.refuse("it has an encoder and a decoder")
        if torch.finfo(self.model.dtype).bits < 32:
            name = str(self.model.dtype).removeprefix("torch.")
            raise UserError(f"dtype: must be float32: rounded parts do not add up to a score (got {name})")
        self.inputs = pretrained.inputs([reading])
        self.num_tokens = len(reading.text.ids)
        self.way = check_computed_here(self.model, self.inputs)
        self.attention: list[CapturedLayer] = []
        """That of each call of a block."""
        self._blocks = Blocks(self.model)
        self._runs: list[_BlockRun] = []
        self._without_attention: list[str] = []
        self._record()
        first = self._runs[0].read
        self._parts: list[tuple[Part, Vectors]] = [(Part("embedding"), lambda: first)]
        self._biases = torch.zeros_like(first)
        self._next_call = 0
        """The parts and biases are those that this block reads."""

    def refuse(self, reason: str) -> NoReturn:
        """UserError that says why a score is no sum of parts here."""
        name = self.pretrained.name
        raise UserError(f"model: the scores of {name} cannot be split into parts, use another: {reason}")

    def _record(self) -> None:
        captured: list[tuple[CapturedLayer, Tensor]] = []
        calls: dict[nn.Module, list[_Call]] = {}

        def keep(layer: CapturedLayer) -> Tensor:
            output = output_of(layer)
            captured.append((layer, output))
            return output

        def note(module: nn.Module, inputs: Any, named: Mapping[str, Any], output: Any) -> None:
            read = inputs[0] if inputs else named.get("hidden_states")
            gave = output[0] if isinstance(output, tuple | list) and output else output
            if _is_vectors(read) and _is_vectors(gave):
                others = [*inputs[1:], *(one for name, one in named.items() if name != "hidden_states")]
                is_alone = not any(isinstance(one, Tensor) for one in others)
                calls.setdefault(module, []).append(_Call(read.clone(), gave.clone(), is_alone))

        def begin(*_: Any) -> None:
            captured.clear()
            calls.clear()

        names = {module: name for name, module in self.model.named_modules()}
        with ExitStack() as hooks:
            for module, name in names.items():
                hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
                if BLOCK.fullmatch(name):
                    hooks.enter_context(module.register_forward_pre_hook(begin))
                    hooks.enter_context(
                        module.register_forward_hook(
                            lambda block, *_: self._keep(block, names, captured, calls)
                        )
                    )
            hooks.enter_context(self._blocks.recorded())
            run_model(self.model, self.inputs, keep)
        if not self._runs:
            self.refuse("no blocks were found in it")
        lists = {list_of_block(run.name) for run in self._runs}
        for name in self._without_attention:
            if list_of_block(name) in lists:
                self.refuse(f"{name} has no attention")
        self._blocks.keep_lists(lists)

    def _keep(
        self,
        block: nn.Module,
        names: Mapping[nn.Module, str],
        captured: Sequence[tuple[CapturedLayer, Tensor]],
        calls: Mapping[nn.Module, Sequence[_Call]],
    ) -> None:
        """Note what a call of a block did, from the calls of its modules."""
        if not captured:  # a layer of another kind, or no layer at all: rotary embeddings
            self._without_attention.append(names[block])
            return
        if len(captured) != 1 or block not in calls:
            self.refuse(f"{names[block]} has {len(captured)} attentions, not one")
        layer, output = captured[0]
        heads = output[0].clone()
        projection = output_projection(self.model, layer.module, heads.shape[0] * heads.shape[2])
        if projection is None or projection not in calls:
            self.refuse(f"no output projection was found for {layer.module}")
        of_projection = calls[projection][0]
        if not is_close(self._by_token(of_projection.read), merge_heads(heads)):
            self.refuse(f"{layer.module} changes its heads before W_O")
        norms: dict[nn.Module, Sequence[FrozenNorm]] = {}
        for module in block.modules():
            if module in calls and not any(module.children()):
                frozen = [
                    frozen_norm(module, call.read, call.gave) if call.is_alone else None
                    for call in calls[module]
                ]
                norms |= {module: [norm for norm in frozen if norm]} if all(frozen) else {}
        read, gave = (self._by_token(tensor) for tensor in calls[block][-1][:2])
        projected = self._by_token(of_projection.gave)
        if not read.shape == gave.shape == projected.shape:
            self.refuse(f"{names[block]} reads more than one vector for each token")
        writers = [
            (module, self._by_token(own[-1].gave))
            for module, own in sorted(calls.items(), key=lambda item: -names[item[0]].count("."))
            if module not in (block, projection, *norms)
            and (own[-1].gave.shape[-1], own[-1].gave.numel()) == (gave.shape[-1], gave.numel())
        ]
        rest = gave - read - projected
        mlp = next((wrote for _, wrote in writers if is_close(wrote, rest, gave)), None)
        writers = [] if mlp is not None else writers
        self.attention.append(layer.copied())
        self._runs.append(
            _BlockRun(
                names[block], layer.layer, heads, projection, projected, norms, read, gave, mlp, writers
            )
        )

    def read_by(self, call: int) -> Float[Tensor, "token embed"]:
        """What a block reads."""
        return self._runs[call].read

    def behind(self) -> Float[Tensor, "token embed"]:
        """What the last block gives."""
        return self._runs[-1].gave

    def beginning_behind(
        self, num_copies: int, vectors: Float[Tensor, "text token embed"] | None
    ) -> AbstractContextManager[None]:
        """While the model runs, no block is computed: the last gives what it gave, or these vectors."""
        return self._blocks.begun_at(len(self._blocks.calls), num_copies, vectors)

    def read_first(self, num_copies: int) -> Float[Tensor, "text token embed"]:
        """What the first block reads, of copies of the text."""
        reads: list[Tensor] = []

        def stop(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            reads.append(named["hidden_states"] if "hidden_states" in named else inputs[0])
            raise StopCapture

        with ExitStack() as hooks:
            hooks.enter_context(self._blocks.calls[0].register_forward_pre_hook(stop, with_kwargs=True))
            run_model(self.model, self.repeated(num_copies), output_of)
        return reads[0].reshape(num_copies, self.num_tokens, -1)

    def written(
        self, call: int, vectors: Float[Tensor, "text token embed"]
    ) -> Float[Tensor, "text token embed"]:
        """What a block adds to the stream when W_O gives these; UserError where it does more than add."""
        run = self._runs[call]
        if run.mlp is not None:
            return vectors
        writer, _, constant, keeps_stream = self._writer(call)
        if not keeps_stream:
            self.refuse("norms stand between what its blocks write and the stream")
        passed = self._passed(
            call, [partial(_same, one) for one in vectors], run.projection, {writer}, constant
        )
        return torch.stack(passed)

    def columns(self, call: int) -> Float[Tensor, "head embed value_dim"]:
        """The columns of W_O of each head of a block."""
        run = self._runs[call]
        return projection_of_heads(run.projection, len(run.heads))

    def _by_token(self, tensor: Tensor) -> Float[Tensor, "token dim"]:
        return tensor.reshape(self.num_tokens, -1)

    def parts_before(self, call: int) -> list[tuple[Part, Vectors]]:
        """The parts of what a block reads, or of the last stream, the biases last; to be asked for in rising
        order.
        """
        while self._next_call < call:
            gave = self._runs[self._next_call].gave
            self._pass_block()
            if self._next_call < len(self._runs) and not is_close(self._runs[self._next_call].read, gave):
                self.refuse("what a block gives is changed before the next one reads it")
        biases = self._biases
        return [*self._parts, (Part("bias"), lambda: biases)]

    def _pass_block(self) -> None:
        """Add what the next block writes, and what it makes of what was there."""
        call, run = self._next_call, self._runs[self._next_call]
        self._next_call += 1
        parts = [Part("head", run.layer, head) for head in range(len(run.heads))]
        heads: list[Vectors] = [partial(run.of_head, head) for head in range(len(parts))]
        if run.mlp is not None:
            self._parts += [
                *zip(parts, heads, strict=True),
                (Part("mlp", run.layer), partial(_same, run.mlp)),
            ]
            self._biases = self._biases + run.bias
            return
        writer, wrote, constant, keeps_stream = self._writer(call)
        num_kept = len(heads) + 1 + (0 if keeps_stream else len(self._parts))
        refuse_bytes("sentence", num_kept * run.read.nbytes, "a shorter text")
        *of_heads, of_bias = self._passed(
            call, [*heads, lambda: run.bias], run.projection, {writer}, constant
        )
        (of_mlp,) = self._passed(call, [lambda: wrote], writer, {run.projection}, constant)
        if not keeps_stream:
            before = self._biases
            stream = [*(vectors for _, vectors in self._parts), lambda: before]
            *passed, self._biases = self._passed(call, stream, None, {writer, run.projection}, constant)
            pairs = zip(self._parts, passed, strict=True)
            self._parts = [(part, partial(_same, vectors)) for (part, _), vectors in pairs]
        self._parts += [
            (part, partial(_same, vectors)) for part, vectors in zip(parts, of_heads, strict=True)
        ]
        self._parts.append((Part("mlp", run.layer), partial(_same, of_mlp)))
        self._biases = self._biases + of_bias + constant
        total = sum((vectors() for _, vectors in self._parts), self._biases)
        if not is_close(total, run.gave):
            self.refuse(f"{run.name} is not linear in what it reads once its norms are frozen")

    def _writer(self, call: int) -> tuple[nn.Module, Tensor, Tensor, bool]:
        """The module that writes what the MLP gives, what it gave, what the block gives of nothing, and
        whether what the block reads passes as it is.
        """
        run = self._runs[call]
        nothing = torch.zeros_like(run.read)
        other = torch.randn(nothing.shape, generator=torch.Generator().manual_seed(0)).to(nothing)
        for module, wrote in run.writers:
            reads = torch.stack([run.read, nothing, nothing, nothing, other])
            given = {
                run.projection: torch.stack([nothing, run.projected, nothing, nothing, nothing]),
                module: torch.stack([nothing, nothing, wrote, nothing, nothing]),
            }
            *gave, constant, of_other = self._outputs(call, reads, given)
            # A module around the heads, or around all of the block, leaves nothing to pass beside it.
            others_pass = not any(is_close(one, constant) for one in gave[:2])
            if others_pass and is_close(sum(gave, -2 * constant), run.gave):
                return module, wrote, constant, is_close(of_other - constant, other)
        self.refuse(f"{run.name} is no sum of what it reads, its heads and its MLP")

    def _passed(
        self,
        call: int,
        vectors: Sequence[Vectors],
        through: nn.Module | None,
        silent: set[nn.Module],
        constant: Float[Tensor, "token embed"],
    ) -> list[Float[Tensor, "token embed"]]:
        """What a block makes of vectors that it reads, or that a module in it gives, and of nothing else."""
        passed: list[Tensor] = []
        for some in self.chunks(vectors):
            nothing = torch.zeros_like(some)
            given = dict.fromkeys(silent, nothing)
            reads = some if through is None else nothing
            outputs = self._outputs(call, reads, given if through is None else {**given, through: some})
            passed += (outputs - constant).unbind()
        return passed

    def chunks(self, vectors: Sequence[Vectors]) -> Iterator[Float[Tensor, "text token embed"]]:
        """The vectors of parts, as many together as a block reads at a time."""
        size = max(1, CHUNK // self._runs[0].read.numel())
        for start in range(0, len(vectors), size):
            yield torch.stack([make() for make in vectors[start : start + size]])

    def _outputs(self, call: int, reads: Float[Tensor, "text token embed"], given: ModuleOutputs) -> Tensor:
        """What a block gives, its norms frozen, each text with its own vectors and what modules give."""
        found: list[Tensor] = []

        def stop(_module: nn.Module, _inputs: Any, output: Any) -> None:
            found.append(output if isinstance(output, Tensor) else output[0])
            raise StopCapture

        with self._frozen(call, reads, given) as hooks:
            hooks.enter_context(
                self._blocks.calls[call].register_forward_hook(_at_call(self._turn(call), stop))
            )
            run_model(self.model, self.repeated(len(reads)), output_of)
        return found[0].reshape(reads.shape)

    def attention_on(self, call: int, reads: Float[Tensor, "text token embed"]) -> AttentionLayer:
        """The attention of a block, its norms frozen, on other vectors in the place of what it read."""
        found: list[AttentionLayer] = []

        def keep(layer: CapturedLayer) -> Tensor:
            attention = layer.copied().attention
            assert isinstance(attention, AttentionLayer)
            found.append(attention)
            raise StopCapture

        with self._frozen(call, reads, {}):
            run_model(self.model, self.repeated(len(reads)), keep)
        return found[0]

    def along(
        self, call: int, directions: Sequence[Tensor]
    ) -> tuple[Float[Tensor, "direction token embed"], Float[Tensor, " direction"]]:
        """Inner products of query, key and value of a block, each (direction, head, token, dim), with
        directions, as linear functions of what the block reads: their gradients, and what nothing gives.
        """
        with torch.enable_grad():
            nothing = torch.zeros_like(self._runs[0].read).unsqueeze(0).requires_grad_()
            layer = self.attention_on(call, nothing)
            outputs = [tensor[0] for tensor in (layer.query, layer.key, layer.value)]
        given = [one.to(output) for one, output in zip(directions, outputs, strict=True)]
        size = max(1, CHUNK // sum(output.numel() for output in outputs))
        gradients = [
            torch.autograd.grad(
                outputs,
                nothing,
                [one[start : start + size] for one in given],
                retain_graph=True,
                is_grads_batched=True,
            )[0]
            for start in range(0, len(given[0]), size)
        ]
        pairs = zip(directions, outputs, strict=True)
        constants = [one.flatten(1) @ output.detach().flatten().to(one) for one, output in pairs]
        return torch.cat(gradients).squeeze(1), torch.stack(constants).sum(dim=0)

    def repeated(self, num_texts: int) -> dict[str, Tensor]:
        """The model's inputs, that many texts."""
        return {name: tensor.repeat(num_texts, 1) for name, tensor in self.inputs.items()}

    def _turn(self, call: int) -> int:
        """How often the module of a call was called before it: one may serve as several blocks (ALBERT)."""
        return sum(module is self._blocks.calls[call] for module in self._blocks.calls[:call])

    @contextmanager
    def _frozen(self, call: int, reads: Tensor, given: ModuleOutputs) -> Iterator[ExitStack]:
        """While the model runs: nothing before the block is computed, its norms are frozen."""

        def read(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if "hidden_states" in named:
                return inputs, {**named, "hidden_states": reads}
            return (reads, *inputs[1:]), named

        def give(vectors: Tensor) -> Any:
            def replaced(_module: nn.Module, _inputs: Any, output: Any) -> Any:
                own = output if isinstance(output, Tensor) else output[0]
                return (
                    vectors.reshape(own.shape) if own is output else (vectors.reshape(own.shape), *output[1:])
                )

            return replaced

        with ExitStack() as hooks:
            block = self._blocks.calls[call]
            pre_hook = _at_call(self._turn(call), read)
            hooks.enter_context(block.register_forward_pre_hook(pre_hook, with_kwargs=True))
            for module, vectors in given.items():
                hooks.enter_context(module.register_forward_hook(give(vectors)))
            hooks.enter_context(self._blocks.begun_at(call, len(reads), reads))
            norms = {module: in_turn(frozen) for module, frozen in self._runs[call].norms.items()}
            hooks.enter_context(forwards_replaced(norms))
            yield hooks

    def read_parts(self, call: int) -> Iterator[tuple[list[Part], AttentionLayer]]:
        """Query, key and value of the attention of a block, of each part of what it reads, as texts.

        That of nothing, from the biases of norms and of W_Q, W_K and W_V, belongs to the biases.
        """
        parts = self.parts_before(call)
        nothing = self.attention_on(call, torch.zeros_like(self._runs[0].read).unsqueeze(0))
        start = 0
        for reads in self.chunks([vectors for _, vectors in parts]):
            own = [part for part, _ in parts[start : start + len(reads)]]
            start += len(reads)
            layer = self.attention_on(call, reads)
            less = torch.tensor([part.kind != "bias" for part in own], device=reads.device).view(-1, 1, 1, 1)
            yield (
                own,
                replace(
                    layer,
                    query=layer.query - less * nothing.query,
                    key=layer.key - less * nothing.key,
                    value=layer.value - less * nothing.value,
                ),
            )


def _same(vectors: Tensor) -> Tensor:
    return vectors


def _at_call(turn: int, hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that does something at one call of its module alone, counted from 0."""
    turns = count()
    return lambda *given: hook(*given) if next(turns) == turn else None


def seen_by(
    attention: AttentionLayer, head: int, queries: Int[Tensor, " query"]
) -> Bool[Tensor, "query key"]:
    """Which keys some queries of a head see; a model's own mask may hide more from one head than another."""
    keys = torch.arange(attention.shape[3], device=queries.device)
    seen: Tensor = attention.visibility.block(queries, keys)[0]
    return seen if attention.rules.bias is None else seen & (_bias_of(attention)[head, queries] > HIDES)


def _bias_of(attention: AttentionLayer) -> Float[Tensor, "head query key"]:
    """What is added to the scores of the first text."""
    bias = attention.rules.bias
    assert bias is not None
    return bias[:1].expand(1, attention.num_heads, *attention.shape[2:])[0]


class Row:
    """A row of scores of one head as the softmax takes them, and its weights, in float64."""

    def __init__(self, attention: AttentionLayer, head: int, query: int) -> None:
        rules = attention.rules
        device = attention.query.device
        queries = torch.tensor([query], device=device)
        self.seen: Bool[Tensor, " key"] = seen_by(attention, head, queries)[0]
        self.rules = rules
        self.position = torch.zeros(attention.shape[3], dtype=torch.float64, device=device)
        """What is added to the scores whatever the tokens are: ALiBi, relative biases."""
        if rules.bias is not None:
            self.position = _bias_of(attention)[head, query].double()
        sink = rules.softmax_sink
        self.sink = None if sink is None else sink.expand(1, attention.num_heads)[0, head].double()

    def weights(self, scores: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key"]:
        """softmax((softcap(scores) + position) / temperature), of the keys that the query sees."""
        cap = self.rules.softcap
        capped = scores if cap is None else cap * (scores / cap).tanh()
        entering = ((capped + self.position) / self.rules.temperature).masked_fill(~self.seen, -torch.inf)
        if self.sink is None:
            return entering.softmax(dim=-1)
        outside = self.sink.expand(*entering.shape[:-1], 1)
        return torch.cat([entering, outside], dim=-1).softmax(dim=-1)[..., :-1]

    def above_mean_of_each(self, scores: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key"]:
        """How far each score is above the mean of the keys that the query sees; nan of the others."""
        above = scores - scores[..., self.seen].mean(dim=-1, keepdim=True)
        return above.masked_fill(~self.seen, nan)

    def above_mean(self, scores: Float[Tensor, "*row key"], key: int) -> Float[Tensor, "*row"]:
        """How far the score of a key is above the mean of the keys that the query sees."""
        return scores[..., key] - scores[..., self.seen].mean(dim=-1)


@torch.no_grad()
def score_parts(
    pretrained: Pretrained,
    reading: Reading,
    *,
    layer: int,
    head: int,
    query: int = -1,
    key: int | None = None,
    over: int = 2,
) -> ScoreParts:
    """Why a query looks at a key: by default the last query, at its largest key beyond the first.

    `over` of the heads that count most are asked what they themselves looked at when they wrote (`writers`).
    UserError for a model whose scores are not such sums, a head that is not there, a key that the query does
    not see; MemoryError.
    """
    stream = Stream(pretrained, reading)
    call = call_of(stream, layer, head)
    attention = stream.attention[call].attention
    assert isinstance(attention, AttentionLayer)
    query = checked_position(query, stream.num_tokens, "query")
    row = Row(attention, head, query)
    own_query, own_keys = (
        attention.query[0, head, query].double(),
        attention.key[0, head // attention.group].double(),
    )
    scores = attention.scale * own_keys @ own_query
    weights = row.weights(scores)
    key = _key_of(weights, key, row, query)
    parts, queries, keys = _vectors_of_parts(stream, call, attention, head, query)
    key_scores = attention.scale * keys @ own_query
    query_scores = attention.scale * queries @ own_keys.mT
    by_side: dict[Side, Tensor] = {"key": key_scores, "query": query_scores}
    largest = max(float(of_parts.abs().max()) for of_parts in by_side.values())
    rest = [(of_parts.sum(dim=0) - scores)[row.seen] for of_parts in by_side.values()]
    missing = max(float(difference.abs().max()) for difference in rest) / largest
    if missing > ROUNDING:
        stream.refuse(f"the parts of the scores of {layer}:{head} miss them by {missing:.1g} of the largest")
    key_scores_table, sides = _sides(parts, row, scores, by_side, key)
    pairs = attention.scale * queries @ (keys[:, key] - keys[:, row.seen].mean(dim=1)).mT
    writers = _writers(stream, sides, {"key": key, "query": query}, over)
    return ScoreParts(
        sides=sides,
        query=query,
        key=key,
        weight=float(weights[key]),
        score=float(scores[key]),
        above_mean=float(row.above_mean(scores, key)),
        position=float(row.above_mean(row.position, key)),
        missing=missing,
        strongest_pairs=_strongest_pairs(parts, pairs),
        keys=RowWeight.table(weight=weights.numpy(force=True)),
        key_scores=key_scores_table,
        parts=PartName.table(part=[part.name for part in parts]),
        writers=writers or None,
        pairs=pairs.numpy(force=True),
        layer=layer,
        head=head,
        notes=tuple(stream.way.notes()),
    )


def _vectors_of_parts(
    stream: Stream, call: int, attention: AttentionLayer, head: int, query: int
) -> tuple[list[Part], Float[Tensor, "part dim"], Float[Tensor, "part key dim"]]:
    """What each part gives the query of a head at one token, and its keys, in float64."""
    parts: list[Part] = []
    queries, keys = [], []
    for some, layer in stream.read_parts(call):
        parts += some
        queries.append(layer.query[:, head, query].double())
        keys.append(layer.key[:, head // attention.group].double())
    return parts, torch.cat(queries), torch.cat(keys)


def _sides(
    parts: Sequence[Part],
    row: Row,
    scores: Float[Tensor, " key"],
    by_side: Mapping[Side, Float[Tensor, "part key"]],
    key: int,
) -> tuple[Records[KeyScores], Records[ScoreOfPart]]:
    """What each part adds to the score of each key, by side, with the weights without it; and of one key."""
    tables: dict[str, np.ndarray] = {}
    rows: list[Mapping[str, Any]] = []
    for side, of_parts in by_side.items():
        adds, without = row.above_mean_of_each(of_parts), row.weights(scores - of_parts)
        tables |= {f"{side}_adds": adds.numpy(force=True), f"{side}_without": without.numpy(force=True)}
        rows += _side(side, parts, adds[:, key], without[:, key])
    return KeyScores.table(**tables), ScoreOfPart.rows(rows)


MOST_PAIRS = 20


def _strongest_pairs(parts: Sequence[Part], scores: Float[Tensor, "part part"]) -> Records[PairOfParts]:
    """The pairs of parts that add most, of the query and of the key."""
    order = scores.abs().flatten().argsort(descending=True)[:MOST_PAIRS].tolist()
    places = [divmod(place, len(parts)) for place in order]
    return PairOfParts.table(
        query_part=[parts[query_part].name for query_part, _ in places],
        key_part=[parts[key_part].name for _, key_part in places],
        score=[float(scores[place]) for place in places],
    )


def call_of(stream: Stream, layer: int, head: int) -> int:
    """The call of a head's attention; UserError for a head that is not there."""
    places = [
        (call, captured, number)
        for call, captured in enumerate(stream.attention)
        for number in range(captured.attention.shape[1])
    ]
    heads = HeadInStack.table(
        stack=[captured.stack_name for _, captured, _ in places],
        layer=[captured.layer for _, captured, _ in places],
        head=[number for *_, number in places],
    )
    return places[index_of_head(heads, f"{layer}:{head}", "head", stream.pretrained)][0]


def _key_of(weights: Float[Tensor, " key"], key: int | None, row: Row, query: int) -> int:
    if key is None:
        beyond = weights[1:] if bool(row.seen[1:].any()) else weights
        return int(beyond.argmax()) + len(weights) - len(beyond)
    key = checked_position(key, len(weights), "key")
    if not row.seen[key]:
        raise UserError(f"to: must be a key that query {query} sees (got {key})")
    return key


def _side(
    side: Side, parts: Sequence[Part], scores: Float[Tensor, " part"], without: Float[Tensor, " part"]
) -> list[Mapping[str, Any]]:
    """The rows of a side, the largest score first."""
    rows = [
        {"side": side, "part": part.name, **part._asdict(), "score": score, "weight_without": weight}
        for part, score, weight in zip(parts, scores.tolist(), without.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: -abs(row["score"]))


def _writers(
    stream: Stream, parts: Records[ScoreOfPart], places: Mapping[Side, int], over: int
) -> Records[WritingHead]:
    """What the heads that count most looked at from where they wrote."""
    tokens = stream.pretrained.written_tokens(stream.reading.text)
    rows = []
    for side, query in places.items():
        heads = [row for row in parts if row.side == side and row.kind == "head"]
        for writer in heads[:over]:
            assert writer.layer is not None and writer.head is not None
            attention = stream.attention[call_of(stream, writer.layer, writer.head)].attention
            assert isinstance(attention, AttentionLayer)
            keys = attention.key[0, writer.head // attention.group].double()
            scores = attention.scale * keys @ attention.query[0, writer.head, query].double()
            weights = Row(attention, writer.head, query).weights(scores)
            key = int(weights.argmax())
            place = {"side": side, "layer": writer.layer, "head": writer.head, "query": query}
            rows.append({**place, "key": key, "weight": float(weights[key]), "key_token": tokens[key]})
    return WritingHead.rows(rows)
