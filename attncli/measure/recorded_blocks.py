"""A model's run on a text, recorded block by block: inputs, outputs, heads, MLP and norms."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, NoReturn, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.layer import merge_heads
from attncli.errors import UserError
from attncli.models.architectures import (
    BLOCK,
    block_list,
    head_projections,
    layer_number,
    layers_without_softmax,
    matrix_and_bias,
    output_projection,
    sources_switched_off,
    unshown_layers,
)
from attncli.models.capture import check_computed_here, run_model
from attncli.models.frozen_norms import FrozenNorm, frozen_norm, is_close
from attncli.models.layers import CapturedLayer
from attncli.models.model_blocks import ModelBlocks
from attncli.models.patched_heads import refuse_replaced
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.projected_heads import LINEAR, GatedHeads, ProjectedHeads, hearing_projected_heads
from attncli.models.removal import output_of

Kind = Literal["embedding", "head", "linear", "mlp", "bias"]


def _is_vectors(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1


class _RecordedCall(NamedTuple):
    """The input and the output of one call of a module.

    `is_alone` is True if the call had no other tensor as input.
    """

    read: Tensor
    gave: Tensor
    is_alone: bool


@dataclass(frozen=True)
class WrittenHeads:
    """The outputs of a layer's heads (attention or without a softmax), and the output of the layer's W_O."""

    kind: Kind
    heads: Float[Tensor, "head token value_dim"]
    projection: nn.Module
    projected: Float[Tensor, "token embed"]

    @property
    def columns(self) -> Float[Tensor, "head embed value_dim"]:
        """The columns of W_O that belong to each head."""
        return head_projections(self.projection, len(self.heads))

    def of_head(self, head: int) -> Float[Tensor, "token embed"]:
        """Return the output of a head, passed through its columns of W_O."""
        columns = self.columns[head]
        return self.heads[head].to(columns) @ columns.mT

    @property
    def bias(self) -> Float[Tensor, "token embed"]:
        """The bias of W_O, for each token."""
        _, bias = matrix_and_bias(self.projection)
        return torch.zeros_like(self.projected) if bias is None else bias.detach().expand_as(self.projected)


@dataclass(frozen=True)
class BlockRun:
    """One call of a block, with its heads (attention first), norms with their scales, input and output.

    `mlp` is the part of the output that comes neither from the input nor from heads. For a block that does
    more than add, `mlp` is None and `writers` has the modules that return one vector per token, innermost
    first.
    """

    name: str
    layer: int
    attention: CapturedLayer | None
    mixers: Sequence[WrittenHeads]
    norms: Mapping[nn.Module, Sequence[FrozenNorm]]
    read: Float[Tensor, "token embed"]
    gave: Float[Tensor, "token embed"]
    mlp: Float[Tensor, "token embed"] | None
    writers: Sequence[tuple[nn.Module, Float[Tensor, "token embed"]]]

    def norm_behind_attention(self) -> FrozenNorm | None:
        """The norm of the input plus W_O's output (BERT), recognised by its scales, or None if absent."""
        total = self.read + self.mixers[0].projected
        for norm in (norm for norms in self.norms.values() for norm in norms):
            scale = norm.scale.reshape(-1, 1)
            centred = total - total.mean(dim=-1, keepdim=True) if norm.is_centred else total
            if len(scale) == len(total) and is_close(
                (centred * scale).square().mean(dim=-1, keepdim=True), torch.ones_like(scale)
            ):
                return norm
        return None


class RecordedBlocks:
    """The blocks of a model during one run on a text, in the order of their calls.

    Raises UserError for a model whose residual stream is not the sum of the outputs of its parts.
    """

    def __init__(self, pretrained: Pretrained, reading: Reading) -> None:
        self.pretrained, self.model, self.reading = pretrained, pretrained.model, reading
        if pretrained.has_decoder:
            self.refuse("it has an encoder and a decoder")
        if torch.finfo(self.model.dtype).bits < 32:
            name = str(self.model.dtype).removeprefix("torch.")
            raise UserError(
                f"dtype: must be float32, because rounded parts do not add up to a score (got {name})"
            )
        self.inputs = pretrained.inputs([reading])
        self.num_tokens = len(reading.text.ids)
        self.way = check_computed_here(self.model, self.inputs)
        refuse_replaced(self.model, ("output", "gated"), "which does not come from values")
        self.attention: dict[int, CapturedLayer] = {}
        """The attention of each call of a block that has one."""
        self.linear: dict[str, ProjectedHeads] = {}
        """The heads of layers without a softmax, by the names of their modules."""
        self.blocks = ModelBlocks(self.model)
        self.runs: list[BlockRun] = []
        self._unread: list[str] = []
        self._record()
        if self.linear:
            modules = {pretrained.module_name(module) for module in self.linear}
            self.way = replace(self.way, unshown=unshown_layers(self.model, modules))

    def refuse(self, reason: str) -> NoReturn:
        """Raise UserError, with the reason why this model's scores are not sums of parts."""
        model = f"model: the scores of {self.pretrained.name}"
        raise UserError(f"{model} cannot be split into parts: {reason}: use another model")

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
                more = [*inputs[1:], *(value for name, value in named.items() if name != "hidden_states")]
                is_alone = not any(isinstance(value, Tensor) for value in more)
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
            hooks.enter_context(self.blocks.recorded())
            run_model(self.model, self.inputs, keep)
        if not any(run.mixers for run in self.runs):
            self.refuse("no blocks were found")
        self._check_blocks(gated)

    def _check_blocks(self, gated: GatedHeads) -> None:
        """Drop runs of modules that are not blocks. Raises UserError for a block that cannot be handled."""
        mixed = gated.mixed(lambda: run_model(self.model, self.inputs, output_of))
        if mixed:
            self.refuse(f"{self.pretrained.module_name(mixed)} changes its heads before W_O")
        lists = {block_list(run.name) for run in self.runs if run.mixers}
        self.runs = [run for run in self.runs if block_list(run.name) in lists]
        self.blocks.keep_lists(lists)
        mixed_otherwise, _ = layers_without_softmax(
            self.model, {self.pretrained.module_name(module) for module in self.linear}
        )
        for mixer, _ in mixed_otherwise:
            off = sources_switched_off([mixer])
            self.refuse(f"the outputs of the heads of its {mixer} layers cannot be read{off}")
        for name in self._unread:
            if block_list(name) in lists:
                self.refuse(f"{self.pretrained.module_name(name)} reads more than one vector per token")
        for call, run in enumerate(self.runs):
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
        """Store a call of a block, given the calls of its modules."""
        if not captured and not linear and block not in calls:  # rotary embeddings
            self._unread.append(names[block])
            return
        if len(captured) > 1 or len(linear) > 1 or block not in calls:
            name = self.pretrained.module_name(names[block])
            self.refuse(f"{name} has {len(captured) + len(linear)} attention layers instead of one")
        mixers = [self._attention_heads(layer, output, calls) for layer, output in captured]
        for heads, by_head in linear:
            gave = self._by_token(calls[heads.projection][0].gave)
            mixers.append(WrittenHeads(LINEAR, by_head, heads.projection, gave))
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
            if not mixers:  # not a layer at all
                self._unread.append(names[block])
                return
            self.refuse(f"{self.pretrained.module_name(names[block])} reads more than one vector per token")
        writers = [
            (module, self._by_token(module_calls[-1].gave))
            for module, module_calls in sorted(calls.items(), key=lambda item: -names[item[0]].count("."))
            if module not in (block, *norms, *(mixer.projection for mixer in mixers))
            and (module_calls[-1].gave.shape[-1], module_calls[-1].gave.numel())
            == (gave.shape[-1], gave.numel())
        ]
        without_heads = sum((-mixer.projected for mixer in mixers), gave - read)
        nothing = torch.zeros_like(without_heads)
        wrote = (nothing, *(wrote for _, wrote in writers))
        mlp = next((each for each in wrote if is_close(each, without_heads, gave)), None)
        writers = [] if mlp is not None else writers
        attention = captured[0][0].copied() if captured else None
        name = names[block]
        layer = attention.layer if attention is not None else layer_number(name)
        self.runs.append(BlockRun(name, layer, attention, mixers, norms, read, gave, mlp, writers))

    def _attention_heads(
        self, layer: CapturedLayer, output: Tensor, calls: Mapping[nn.Module, Sequence[_RecordedCall]]
    ) -> WrittenHeads:
        """The outputs of attention heads as W_O reads them, possibly gated."""
        heads = output[0].clone()
        projection = output_projection(self.model, layer.module, heads.shape[0] * heads.shape[2])
        if projection is None or projection not in calls:
            self.refuse(f"no output projection was found for {self.pretrained.module_name(layer.module)}")
        projection_call = calls[projection][0]
        read = self._by_token(projection_call.read)
        if not is_close(read, merge_heads(heads)):
            heads = read.view(self.num_tokens, heads.shape[0], -1).transpose(0, 1)
        return WrittenHeads("head", heads, projection, self._by_token(projection_call.gave))

    def _by_token(self, tensor: Tensor) -> Float[Tensor, "token dim"]:
        return tensor.reshape(self.num_tokens, -1)
