"""The residual stream of a model as a sum of what its parts wrote, the scales of its norms frozen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Literal, NamedTuple, NoReturn, ParamSpec, TypeGuard, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.layer import AttentionLayer, merge_heads
from attncli.errors import UserError, refuse_bytes
from attncli.models.architectures import (
    BLOCK,
    layer_number,
    layers_without_softmax,
    list_of_block,
    matrix_and_bias,
    output_projection,
    projection_of_heads,
    sources_switched_off,
    unshown_layers,
)
from attncli.models.capture import check_computed_here, run_model
from attncli.models.frozen_norms import FrozenNorm, frozen_norm, in_turn, is_close
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.model_blocks import ModelBlocks, forwards_replaced
from attncli.models.patched_heads import refuse_replaced
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.projected_heads import LINEAR, GatedHeads, ProjectedHeads, hearing_projected_heads
from attncli.models.removal import output_of

HookInputs = ParamSpec("HookInputs")
HookOutput = TypeVar("HookOutput")
BlockOutput = Tensor | tuple[Tensor, ...]
"""The vectors of the tokens, alone or before what else a block gives."""
CHUNK = 2**24
"""Numbers of the residual stream that a block reads at a time: 64 MB."""

Kind = Literal["embedding", "head", "linear", "mlp", "bias"]


class StreamPart(NamedTuple):
    """A part of a model that writes to the residual stream, with layer and head where it has them."""

    kind: Kind
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """`16:0` for a head, `linear:16:0` for one without a softmax, `MLP 16`, `embedding`, `biases`."""
        if self.kind == "head":
            return f"{self.layer}:{self.head}"
        if self.kind == LINEAR:
            return f"{LINEAR}:{self.layer}:{self.head}"
        return {"mlp": f"MLP {self.layer}", "bias": "biases"}.get(self.kind, self.kind)


def _is_vectors(given: object) -> TypeGuard[Tensor]:
    return isinstance(given, Tensor) and given.is_floating_point() and given.ndim > 1


class _RecordedCall(NamedTuple):
    """What a call of a module read and gave; whether it read no other tensor."""

    read: Tensor
    gave: Tensor
    is_alone: bool


@dataclass(frozen=True)
class _WrittenHeads:
    """What W_O read of the heads of a layer, of attention or without a softmax, and what it gave."""

    kind: Kind
    heads: Float[Tensor, "head token value_dim"]
    projection: nn.Module
    projected: Float[Tensor, "token embed"]

    def of_head(self, head: int) -> Float[Tensor, "token embed"]:
        """What a head gave, through its columns of W_O."""
        columns = projection_of_heads(self.projection, len(self.heads))[head]
        return self.heads[head].to(columns) @ columns.mT

    @property
    def bias(self) -> Float[Tensor, "token embed"]:
        """What the bias of W_O gave each token."""
        _, bias = matrix_and_bias(self.projection)
        return torch.zeros_like(self.projected) if bias is None else bias.detach().expand_as(self.projected)


@dataclass(frozen=True)
class _BlockRun:
    """What a call of a block did: its heads, those of attention first, and its norms with their scales.

    `mlp` is what else it added to what it read. Where it does more than add, `writers` are its modules that
    gave a vector for each token, the innermost first, with what they gave.
    """

    name: str
    layer: int
    attention: CapturedLayer | None
    mixers: Sequence[_WrittenHeads]
    norms: Mapping[nn.Module, Sequence[FrozenNorm]]
    read: Float[Tensor, "token embed"]
    gave: Float[Tensor, "token embed"]
    mlp: Float[Tensor, "token embed"] | None
    writers: Sequence[tuple[nn.Module, Float[Tensor, "token embed"]]]


PartVectors = Callable[[], Float[Tensor, "token embed"]]
"""Made when they are read: all heads at once would be many."""
GivenVectors = Mapping[nn.Module, Float[Tensor, "text token embed"]]
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
        refuse_replaced(self.model, ("output", "gated"), "which comes of no values")
        self.attention: dict[int, CapturedLayer] = {}
        """That of the calls of blocks that have one."""
        self.linear: dict[str, ProjectedHeads] = {}
        """The heads of layers without a softmax, by the names of their modules."""
        self._blocks = ModelBlocks(self.model)
        self._runs: list[_BlockRun] = []
        self._unread: list[str] = []
        self._record()
        if self.linear:
            modules = {pretrained.module_name(module) for module in self.linear}
            self.way = replace(self.way, unshown=unshown_layers(self.model, modules))
        first = self._runs[0].read
        self._parts: list[tuple[StreamPart, PartVectors]] = [(StreamPart("embedding"), lambda: first)]
        self._biases = torch.zeros_like(first)
        self._next_call = 0
        """The parts and biases are those that this block reads."""

    def refuse(self, reason: str) -> NoReturn:
        """UserError that says why a score is no sum of parts here."""
        name = self.pretrained.name
        raise UserError(f"model: the scores of {name} cannot be split into parts, use another: {reason}")

    def _record(self) -> None:
        captured: list[tuple[CapturedLayer, Tensor]] = []
        linear: list[tuple[ProjectedHeads, Tensor]] = []
        calls: dict[nn.Module, list[_RecordedCall]] = {}

        def keep(layer: CapturedLayer) -> Tensor:
            output = output_of(layer)
            captured.append((layer, output))
            gated.note(layer.module, output, hooks)
            return output

        def take_linear(heads: ProjectedHeads, read: Tensor) -> None:
            linear.append((heads, heads.by_head(read)[0].clone()))
            self.linear[heads.module] = heads

        def note(
            module: nn.Module, inputs: tuple[object, ...], named: dict[str, object], output: object
        ) -> None:
            read = inputs[0] if inputs else named.get("hidden_states")
            gave = output[0] if isinstance(output, tuple | list) and output else output
            if _is_vectors(read) and _is_vectors(gave):
                others = [*inputs[1:], *(given for name, given in named.items() if name != "hidden_states")]
                is_alone = not any(isinstance(given, Tensor) for given in others)
                calls.setdefault(module, []).append(_RecordedCall(read.clone(), gave.clone(), is_alone))

        def begin(*_: object) -> None:
            captured.clear()
            linear.clear()
            calls.clear()

        names = {module: name for name, module in self.model.named_modules()}
        gated = GatedHeads(self.model)
        with ExitStack() as hooks:
            hooks.enter_context(hearing_projected_heads(self.model, take_linear))
            for module, name in names.items():
                hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
                if BLOCK.fullmatch(name):
                    hooks.enter_context(module.register_forward_pre_hook(begin))
                    hooks.enter_context(
                        module.register_forward_hook(
                            lambda block, *_: self._keep(block, names, captured, linear, calls)
                        )
                    )
            hooks.enter_context(self._blocks.recorded())
            run_model(self.model, self.inputs, keep)
        if not any(run.mixers for run in self._runs):
            self.refuse("no blocks were found in it")
        self._check_blocks(gated)

    def _check_blocks(self, gated: GatedHeads) -> None:
        """UserError where a block does what is not known; only blocks are kept."""
        mixed = gated.mixed(lambda: run_model(self.model, self.inputs, output_of))
        if mixed:
            self.refuse(f"{self.pretrained.module_name(mixed)} changes its heads before W_O")
        lists = {list_of_block(run.name) for run in self._runs if run.mixers}
        self._runs = [run for run in self._runs if list_of_block(run.name) in lists]
        self._blocks.keep_lists(lists)
        mixed_otherwise, _ = layers_without_softmax(
            self.model, {self.pretrained.module_name(module) for module in self.linear}
        )
        for mixer, _ in mixed_otherwise:
            off = sources_switched_off([mixer])
            self.refuse(f"what the heads of its layers of {mixer} write is not known{off}")
        for name in self._unread:
            if list_of_block(name) in lists:
                self.refuse(f"{self.pretrained.module_name(name)} reads more than one vector for each token")
        for call, run in enumerate(self._runs):
            if run.attention is not None:
                self.attention[call] = run.attention
            elif not self.linear:
                self.refuse(f"{self.pretrained.module_name(run.name)} has no attention")

    def _keep(
        self,
        block: nn.Module,
        names: Mapping[nn.Module, str],
        captured: Sequence[tuple[CapturedLayer, Tensor]],
        linear: Sequence[tuple[ProjectedHeads, Tensor]],
        calls: Mapping[nn.Module, Sequence[_RecordedCall]],
    ) -> None:
        """Note what a call of a block did, from the calls of its modules."""
        if not captured and not linear and block not in calls:  # rotary embeddings
            self._unread.append(names[block])
            return
        if len(captured) > 1 or len(linear) > 1 or block not in calls:
            name = self.pretrained.module_name(names[block])
            self.refuse(f"{name} has {len(captured) + len(linear)} attentions, not one")
        mixers = [self._attention_heads(layer, output, calls) for layer, output in captured]
        for heads, by_head in linear:
            gave = self._by_token(calls[heads.projection][0].gave)
            mixers.append(_WrittenHeads(LINEAR, by_head, heads.projection, gave))
        norms: dict[nn.Module, Sequence[FrozenNorm]] = {}
        for module in block.modules():
            if module in calls and not any(module.children()):
                frozen = [
                    frozen_norm(module, call.read, call.gave) if call.is_alone else None
                    for call in calls[module]
                ]
                norms |= {module: [norm for norm in frozen if norm]} if all(frozen) else {}
        read, gave = (self._by_token(tensor) for tensor in calls[block][-1][:2])
        if not all(part.shape == read.shape for part in (gave, *(mixer.projected for mixer in mixers))):
            if not mixers:  # no layer at all
                self._unread.append(names[block])
                return
            self.refuse(
                f"{self.pretrained.module_name(names[block])} reads more than one vector for each token"
            )
        writers = [
            (module, self._by_token(of_module[-1].gave))
            for module, of_module in sorted(calls.items(), key=lambda item: -names[item[0]].count("."))
            if module not in (block, *norms, *(mixer.projection for mixer in mixers))
            and (of_module[-1].gave.shape[-1], of_module[-1].gave.numel()) == (gave.shape[-1], gave.numel())
        ]
        rest = sum((-mixer.projected for mixer in mixers), gave - read)
        nothing = torch.zeros_like(rest)
        wrote = (nothing, *(wrote for _, wrote in writers))
        mlp = next((each for each in wrote if is_close(each, rest, gave)), None)
        writers = [] if mlp is not None else writers
        attention = captured[0][0].copied() if captured else None
        name = names[block]
        layer = attention.layer if attention is not None else layer_number(name)
        self._runs.append(_BlockRun(name, layer, attention, mixers, norms, read, gave, mlp, writers))

    def _attention_heads(
        self, layer: CapturedLayer, output: Tensor, calls: Mapping[nn.Module, Sequence[_RecordedCall]]
    ) -> _WrittenHeads:
        """What W_O reads of the heads of attention: what they gave, or that times gates."""
        heads = output[0].clone()
        projection = output_projection(self.model, layer.module, heads.shape[0] * heads.shape[2])
        if projection is None or projection not in calls:
            self.refuse(f"no output projection was found for {self.pretrained.module_name(layer.module)}")
        of_projection = calls[projection][0]
        read = self._by_token(of_projection.read)
        if not is_close(read, merge_heads(heads)):
            heads = read.view(self.num_tokens, heads.shape[0], -1).transpose(0, 1)
        return _WrittenHeads("head", heads, projection, self._by_token(of_projection.gave))

    @property
    def num_blocks(self) -> int:
        """The calls of blocks."""
        return len(self._runs)

    def read_by(self, call: int) -> Float[Tensor, "token embed"]:
        """What a block reads."""
        return self._runs[call].read

    def projection(self, call: int) -> nn.Module:
        """W_O of the attention of a block."""
        return self._runs[call].mixers[0].projection

    def projected(self, call: int) -> Float[Tensor, "token embed"]:
        """What W_O gives of the attention of a block."""
        return self._runs[call].mixers[0].projected

    def norm_behind_attention(self, call: int) -> FrozenNorm | None:
        """The norm of what a block reads plus what W_O gives (BERT), by its scales; None where none is."""
        run = self._runs[call]
        total = run.read + self.projected(call)
        for norm in (norm for norms in run.norms.values() for norm in norms):
            scale = norm.scale.reshape(-1, 1)
            centred = total - total.mean(dim=-1, keepdim=True) if norm.is_centred else total
            if len(scale) == len(total) and is_close(
                (centred * scale).square().mean(dim=-1, keepdim=True), torch.ones_like(scale)
            ):
                return norm
        return None

    def adds_to_stream(self, call: int) -> bool:
        """Whether a block adds to what it reads what W_O gives, as it is, and what one other module does."""
        return self._runs[call].mlp is not None

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

        def stop(_module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
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
        through, *others = (mixer.projection for mixer in run.mixers)
        of_texts = [partial(_same, of_text) for of_text in vectors]
        passed = self._passed(call, of_texts, through, {writer, *others}, constant)
        return torch.stack(passed)

    def gradients_through(
        self, call: int, gradient: Float[Tensor, "token embed"]
    ) -> tuple[Float[Tensor, "token out"], Float[Tensor, "token embed"]]:
        """From the gradient by what a block gives those by what its W_O gives, and by what it reads.

        What its attention and its MLP make of what it reads is left as it was.
        """
        run = self._runs[call]
        if run.mlp is not None or not run.mixers:
            return gradient, gradient
        writer = self._writer(call)[0]
        through, *others = (mixer.projection for mixer in run.mixers)
        with torch.enable_grad():
            read, projected = (
                torch.zeros_like(each).unsqueeze(0).requires_grad_()
                for each in (run.read, run.mixers[0].projected)
            )
            nothing = torch.zeros_like(read)
            gave = self._outputs(
                call, read, {**dict.fromkeys((writer, *others), nothing), through: projected}
            )
        by_projected, by_read = torch.autograd.grad(
            gave, (projected, read), gradient.to(gave).unsqueeze(0), materialize_grads=True
        )
        return by_projected[0].double(), by_read[0].double()

    def heads_written(self, call: int) -> Float[Tensor, "head token value_dim"]:
        """What W_O reads of the heads of attention of a block."""
        return self._runs[call].mixers[0].heads

    def columns(self, call: int) -> Float[Tensor, "head embed value_dim"]:
        """The columns of W_O of each head of a block."""
        attention = self._runs[call].mixers[0]
        return projection_of_heads(attention.projection, len(attention.heads))

    def _by_token(self, tensor: Tensor) -> Float[Tensor, "token dim"]:
        return tensor.reshape(self.num_tokens, -1)

    def parts_before(self, call: int) -> list[tuple[StreamPart, PartVectors]]:
        """The parts of what a block reads, or of the last stream, the biases last; to be asked for in rising
        order.
        """
        while self._next_call < call:
            gave = self._runs[self._next_call].gave
            self._pass_block()
            if self._next_call < len(self._runs) and not is_close(self._runs[self._next_call].read, gave):
                self.refuse("what a block gives is changed before the next one reads it")
        biases = self._biases
        return [*self._parts, (StreamPart("bias"), lambda: biases)]

    def _pass_block(self) -> None:
        """Add what the next block writes, and what it makes of what was there."""
        call, run = self._next_call, self._runs[self._next_call]
        self._next_call += 1
        mlp = StreamPart("mlp", run.layer)
        if run.mlp is not None:
            for mixer in run.mixers:
                self._parts += [(part, vectors) for part, vectors in _heads_of(run.layer, mixer)]
                self._biases = self._biases + mixer.bias
            self._parts.append((mlp, partial(_same, run.mlp)))
            return
        writer, wrote, constant, keeps_stream = self._writer(call)
        num_heads = sum(len(mixer.heads) for mixer in run.mixers)
        num_kept = num_heads + 1 + (0 if keeps_stream else len(self._parts))
        refuse_bytes("sentence", num_kept * run.read.nbytes, "a shorter text")
        projections = {mixer.projection for mixer in run.mixers}
        parts, of_heads, of_biases = list[StreamPart](), list[Tensor](), [constant]
        for mixer in run.mixers:
            through, others = mixer.projection, projections - {mixer.projection}
            heads = _heads_of(run.layer, mixer)
            *of_mixer, of_bias = self._passed(
                call,
                [*(vectors for _, vectors in heads), partial(getattr, mixer, "bias")],
                through,
                {writer, *others},
                constant,
            )
            parts += [part for part, _ in heads]
            of_heads += of_mixer
            of_biases.append(of_bias)
        (of_mlp,) = self._passed(call, [lambda: wrote], writer, projections, constant)
        if not keeps_stream:
            before = self._biases
            stream = [*(vectors for _, vectors in self._parts), lambda: before]
            *passed, self._biases = self._passed(call, stream, None, {writer, *projections}, constant)
            pairs = zip(self._parts, passed, strict=True)
            self._parts = [(part, partial(_same, vectors)) for (part, _), vectors in pairs]
        self._parts += [
            (part, partial(_same, vectors)) for part, vectors in zip(parts, of_heads, strict=True)
        ]
        self._parts.append((mlp, partial(_same, of_mlp)))
        self._biases = sum(of_biases, self._biases)
        total = sum((vectors() for _, vectors in self._parts), self._biases)
        if not is_close(total, run.gave):
            name = self.pretrained.module_name(run.name)
            self.refuse(f"{name} is not linear in what it reads once its norms are frozen")

    def _writer(self, call: int) -> tuple[nn.Module, Tensor, Tensor, bool]:
        """The module that writes what the MLP gives, what it gave, what the block gives of nothing, and
        whether what the block reads passes as it is.
        """
        run = self._runs[call]
        nothing = torch.zeros_like(run.read)
        other = torch.randn(nothing.shape, generator=torch.Generator().manual_seed(0)).to(nothing)
        for module, wrote in run.writers:
            written = [*((mixer.projection, mixer.projected) for mixer in run.mixers), (module, wrote)]
            reads = torch.stack([run.read, *[nothing] * len(written), nothing, other])
            given = {
                part: torch.stack([gave if row == place else nothing for row in range(len(reads))])
                for place, (part, gave) in enumerate(written, start=1)
            }
            *gave, constant, of_other = self._outputs(call, reads, given)
            # A module around the heads, or around all of the block, leaves nothing to pass beside it.
            others_pass = not any(is_close(alone, constant) for alone in gave[:-1])
            if others_pass and is_close(sum(gave, -len(written) * constant), run.gave):
                return module, wrote, constant, is_close(of_other - constant, other)
        name = self.pretrained.module_name(run.name)
        self.refuse(f"{name} is no sum of what it reads, its heads and its MLP")

    def _passed(
        self,
        call: int,
        vectors: Sequence[PartVectors],
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

    def chunks(self, vectors: Sequence[PartVectors]) -> Iterator[Float[Tensor, "text token embed"]]:
        """The vectors of parts, as many together as a block reads at a time."""
        size = max(1, CHUNK // self._runs[0].read.numel())
        for start in range(0, len(vectors), size):
            yield torch.stack([make() for make in vectors[start : start + size]])

    def _outputs(self, call: int, reads: Float[Tensor, "text token embed"], given: GivenVectors) -> Tensor:
        """What a block gives, its norms frozen, each text with its own vectors and what modules give."""
        outputs: list[Tensor] = []

        def stop(_module: nn.Module, _inputs: tuple[object, ...], output: BlockOutput) -> None:
            outputs.append(output if isinstance(output, Tensor) else output[0])
            raise StopCapture

        with self._frozen(call, reads, given) as hooks:
            hooks.enter_context(
                self._blocks.calls[call].register_forward_hook(_at_call(self._turn(call), stop))
            )
            run_model(self.model, self.repeated(len(reads)), output_of)
        return outputs[0].reshape(reads.shape)

    def attention_on(self, call: int, reads: Float[Tensor, "text token embed"]) -> AttentionLayer:
        """The attention of a block, its norms frozen, on other vectors in the place of what it read."""
        layers: list[AttentionLayer] = []

        def keep(layer: CapturedLayer) -> Tensor:
            attention = layer.copied().attention
            assert isinstance(attention, AttentionLayer)
            layers.append(attention)
            raise StopCapture

        with self._frozen(call, reads, {}):
            run_model(self.model, self.repeated(len(reads)), keep)
        return layers[0]

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
        given = [direction.to(output) for direction, output in zip(directions, outputs, strict=True)]
        size = max(1, CHUNK // sum(output.numel() for output in outputs))
        gradients = [
            torch.autograd.grad(
                outputs,
                nothing,
                [direction[start : start + size] for direction in given],
                retain_graph=True,
                is_grads_batched=True,
            )[0]
            for start in range(0, len(given[0]), size)
        ]
        pairs = zip(directions, outputs, strict=True)
        constants = [
            direction.flatten(1) @ output.detach().flatten().to(direction) for direction, output in pairs
        ]
        return torch.cat(gradients).squeeze(1), torch.stack(constants).sum(dim=0)

    def repeated(self, num_texts: int) -> dict[str, Tensor]:
        """The model's inputs, that many texts."""
        return {name: tensor.repeat(num_texts, 1) for name, tensor in self.inputs.items()}

    def _turn(self, call: int) -> int:
        """How often the module of a call was called before it: one may serve as several blocks (ALBERT)."""
        return sum(module is self._blocks.calls[call] for module in self._blocks.calls[:call])

    @contextmanager
    def _frozen(self, call: int, reads: Tensor, given: GivenVectors) -> Iterator[ExitStack]:
        """While the model runs: nothing before the block is computed, its norms are frozen."""

        def read(
            _module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]
        ) -> tuple[tuple[object, ...], dict[str, object]]:
            if "hidden_states" in named:
                return inputs, {**named, "hidden_states": reads}
            return (reads, *inputs[1:]), named

        def give(vectors: Tensor) -> Callable[[nn.Module, tuple[object, ...], BlockOutput], BlockOutput]:
            def replaced(_module: nn.Module, _inputs: tuple[object, ...], output: BlockOutput) -> BlockOutput:
                if isinstance(output, Tensor):
                    return vectors.reshape(output.shape)
                return vectors.reshape(output[0].shape), *output[1:]

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

    def read_parts(self, call: int) -> Iterator[tuple[list[StreamPart], AttentionLayer]]:
        """Query, key and value of the attention of a block, of each part of what it reads, as texts.

        That of nothing, from the biases of norms and of W_Q, W_K and W_V, belongs to the biases.
        """
        parts = self.parts_before(call)
        nothing = self.attention_on(call, torch.zeros_like(self._runs[0].read).unsqueeze(0))
        start = 0
        for reads in self.chunks([vectors for _, vectors in parts]):
            of_reads = [part for part, _ in parts[start : start + len(reads)]]
            start += len(reads)
            layer = self.attention_on(call, reads)
            less = torch.tensor([part.kind != "bias" for part in of_reads], device=reads.device).view(
                -1, 1, 1, 1
            )
            yield (
                of_reads,
                replace(
                    layer,
                    query=layer.query - less * nothing.query,
                    key=layer.key - less * nothing.key,
                    value=layer.value - less * nothing.value,
                ),
            )


def _same(vectors: Tensor) -> Tensor:
    return vectors


def _heads_of(layer: int, mixer: _WrittenHeads) -> list[tuple[StreamPart, PartVectors]]:
    """The heads of a layer, each with what it writes."""
    return [
        (StreamPart(mixer.kind, layer, head), partial(mixer.of_head, head))
        for head in range(len(mixer.heads))
    ]


def _at_call(turn: int, hook: Callable[HookInputs, HookOutput]) -> Callable[HookInputs, HookOutput | None]:
    """A hook that does something at one call of its module alone, counted from 0."""
    turns = count()

    def at_call(*given: HookInputs.args, **named: HookInputs.kwargs) -> HookOutput | None:
        return hook(*given, **named) if next(turns) == turn else None

    return at_call
