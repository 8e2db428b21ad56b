"""Single blocks of a model, run on other inputs with the scales of their norms frozen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.layer import AttentionLayer
from attncli.measure.recorded_blocks import RecordedBlocks
from attncli.models.capture import run_model
from attncli.models.frozen_norms import in_turn, is_close
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.model_blocks import forwards_replaced
from attncli.models.removal import output_of

HookInputs = ParamSpec("HookInputs")
HookOutput = TypeVar("HookOutput")
BlockOutput = Tensor | tuple[Tensor, ...]
"""The vectors of the tokens, alone or as the first of several outputs."""
CHUNK = 2**24
"""The largest number of entries of the residual stream in one run of a block: 64 MB."""

PartVectors = Callable[[], Float[Tensor, "token embed"]]
"""A function that returns the vectors of a part, since storing those of all heads would take much memory."""
ReplacedOutputs = Mapping[nn.Module, Float[Tensor, "text token embed"]]
"""The vectors that modules return instead of the computed ones."""


class FrozenBlocks:
    """Runs single blocks of a recorded run on other vectors; while their norms are frozen, blocks are linear.

    A block is identified by its `call` number.
    """

    def __init__(self, recorded: RecordedBlocks) -> None:
        self.recorded, self.model = recorded, recorded.model
        self.runs, self.blocks = recorded.runs, recorded.blocks

    def beginning_behind(
        self, num_copies: int, vectors: Float[Tensor, "text token embed"] | None
    ) -> AbstractContextManager[None]:
        """Skip all blocks as the model runs; the last block returns its recorded output or these vectors."""
        return self.blocks.begun_at(len(self.blocks.calls), num_copies, vectors)

    def read_first(self, num_copies: int) -> Float[Tensor, "text token embed"]:
        """Return the input of the first block, for copies of the text."""
        reads: list[Tensor] = []

        def stop(_module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            reads.append(named["hidden_states"] if "hidden_states" in named else inputs[0])
            raise StopCapture

        with ExitStack() as hooks:
            hooks.enter_context(self.blocks.calls[0].register_forward_pre_hook(stop, with_kwargs=True))
            run_model(self.model, self.repeated(num_copies), output_of)
        return reads[0].reshape(num_copies, self.recorded.num_tokens, -1)

    def written(
        self, call: int, vectors: Float[Tensor, "text token embed"]
    ) -> Float[Tensor, "text token embed"]:
        """Return the vectors that a block adds to the stream for these outputs of W_O.

        Raises UserError if the block normalises these outputs first.
        """
        run = self.runs[call]
        if run.mlp is not None:
            return vectors
        writer, _, constant, keeps_stream = self.block_writer(call)
        if not keeps_stream:
            self.recorded.refuse("the outputs of its blocks are normalised before they reach the stream")
        through, *silent = (mixer.projection for mixer in run.mixers)
        by_text = [partial(same, text_vectors) for text_vectors in vectors]
        passed = self.passed(call, by_text, through, {writer, *silent}, constant)
        return torch.stack(passed)

    def gradients_through(
        self, call: int, gradient: Float[Tensor, "token embed"]
    ) -> tuple[Float[Tensor, "token out"], Float[Tensor, "token embed"]]:
        """The gradients for W_O's output and for the block's input, from the gradient for the block's output.

        The inputs of the block's attention and MLP are held constant.
        """
        run = self.runs[call]
        if run.mlp is not None or not run.mixers:
            return gradient, gradient
        writer = self.block_writer(call)[0]
        through, *silent = (mixer.projection for mixer in run.mixers)
        with torch.enable_grad():
            read, projected = (
                torch.zeros_like(each).unsqueeze(0).requires_grad_()
                for each in (run.read, run.mixers[0].projected)
            )
            nothing = torch.zeros_like(read)
            gave = self._outputs(
                call, read, {**dict.fromkeys((writer, *silent), nothing), through: projected}
            )
        by_projected, by_read = torch.autograd.grad(
            gave, (projected, read), gradient.to(gave).unsqueeze(0), materialize_grads=True
        )
        return by_projected[0].double(), by_read[0].double()

    def block_writer(self, call: int) -> tuple[nn.Module, Tensor, Tensor, bool]:
        """Return the module that writes the MLP's output, its own output, its output for zeros, and a flag.

        The flag is True if the block's input passes through unchanged.
        """
        run = self.runs[call]
        nothing = torch.zeros_like(run.read)
        random = torch.randn(nothing.shape, generator=torch.Generator().manual_seed(0)).to(nothing)
        for module, wrote in run.writers:
            written = [*((mixer.projection, mixer.projected) for mixer in run.mixers), (module, wrote)]
            reads = torch.stack([run.read, *[nothing] * len(written), nothing, random])
            replaced = {
                part: torch.stack([gave if row == place else nothing for row in range(len(reads))])
                for place, (part, gave) in enumerate(written, start=1)
            }
            *gave, constant, passed_random = self._outputs(call, reads, replaced)
            # A module that contains the heads or the whole block blocks everything else.
            is_separate = not any(is_close(alone, constant) for alone in gave[:-1])
            if is_separate and is_close(sum(gave, -len(written) * constant), run.gave):
                return module, wrote, constant, is_close(passed_random - constant, random)
        name = self.recorded.pretrained.module_name(run.name)
        self.recorded.refuse(f"{name} does not return the sum of its input, its heads and its MLP")

    def passed(
        self,
        call: int,
        vectors: Sequence[PartVectors],
        through: nn.Module | None,
        silent: set[nn.Module],
        constant: Float[Tensor, "token embed"],
    ) -> list[Float[Tensor, "token embed"]]:
        """The block's output if these vectors are its input or a module's output, with zeros elsewhere."""
        passed: list[Tensor] = []
        for some in self.chunks(vectors):
            nothing = torch.zeros_like(some)
            replaced = dict.fromkeys(silent, nothing)
            reads = some if through is None else nothing
            outputs = self._outputs(call, reads, replaced if through is None else {**replaced, through: some})
            passed += (outputs - constant).unbind()
        return passed

    def chunks(self, vectors: Sequence[PartVectors]) -> Iterator[Float[Tensor, "text token embed"]]:
        """Yield the vectors of parts in batches, each for one run of a block."""
        size = max(1, CHUNK // self.runs[0].read.numel())
        for start in range(0, len(vectors), size):
            yield torch.stack([make() for make in vectors[start : start + size]])

    def _outputs(
        self, call: int, reads: Float[Tensor, "text token embed"], replaced: ReplacedOutputs
    ) -> Tensor:
        """Return the block's output with frozen norms; each text has its own input and module outputs."""
        outputs: list[Tensor] = []

        def stop(_module: nn.Module, _inputs: tuple[object, ...], output: BlockOutput) -> None:
            outputs.append(output if isinstance(output, Tensor) else output[0])
            raise StopCapture

        with self._frozen(call, reads, replaced) as hooks:
            hooks.enter_context(
                self.blocks.calls[call].register_forward_hook(_at_call(self._turn(call), stop))
            )
            run_model(self.model, self.repeated(len(reads)), output_of)
        return outputs[0].reshape(reads.shape)

    def attention_on(self, call: int, reads: Float[Tensor, "text token embed"]) -> AttentionLayer:
        """The attention of a block, with frozen norms, on other inputs."""
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
        """Inner products of a block's query, key and value with directions (direction, head, token, dim), as
        linear functions of the block's input: their gradients, and their values at zero input.
        """
        with torch.enable_grad():
            nothing = torch.zeros_like(self.runs[0].read).unsqueeze(0).requires_grad_()
            layer = self.attention_on(call, nothing)
            outputs = [tensor[0] for tensor in (layer.query, layer.key, layer.value)]
        factors = [direction.to(output) for direction, output in zip(directions, outputs, strict=True)]
        size = max(1, CHUNK // sum(output.numel() for output in outputs))
        gradients = [
            torch.autograd.grad(
                outputs,
                nothing,
                [direction[start : start + size] for direction in factors],
                retain_graph=True,
                is_grads_batched=True,
            )[0]
            for start in range(0, len(factors[0]), size)
        ]
        pairs = zip(directions, outputs, strict=True)
        constants = [
            direction.flatten(1) @ output.detach().flatten().to(direction) for direction, output in pairs
        ]
        return torch.cat(gradients).squeeze(1), torch.stack(constants).sum(dim=0)

    def repeated(self, num_texts: int) -> dict[str, Tensor]:
        """Return the model's inputs, repeated for `num_texts` texts."""
        return {name: tensor.repeat(num_texts, 1) for name, tensor in self.recorded.inputs.items()}

    def _turn(self, call: int) -> int:
        """Count the earlier calls of the same module, which may serve as several blocks (ALBERT)."""
        return sum(module is self.blocks.calls[call] for module in self.blocks.calls[:call])

    @contextmanager
    def _frozen(self, call: int, reads: Tensor, outputs: ReplacedOutputs) -> Iterator[ExitStack]:
        """In runs inside this context, skip everything before the block, and freeze the block's norms."""

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
            block = self.blocks.calls[call]
            pre_hook = _at_call(self._turn(call), read)
            hooks.enter_context(block.register_forward_pre_hook(pre_hook, with_kwargs=True))
            for module, vectors in outputs.items():
                hooks.enter_context(module.register_forward_hook(give(vectors)))
            hooks.enter_context(self.blocks.begun_at(call, len(reads), reads))
            norms = {module: in_turn(frozen) for module, frozen in self.runs[call].norms.items()}
            hooks.enter_context(forwards_replaced(norms))
            yield hooks


def same(vectors: Tensor) -> Tensor:
    """Return the vectors unchanged."""
    return vectors


def _at_call(turn: int, hook: Callable[HookInputs, HookOutput]) -> Callable[HookInputs, HookOutput | None]:
    """Create a hook that acts only at one call of its module, counted from 0."""
    turns = count()

    def at_call(*inputs: HookInputs.args, **keywords: HookInputs.kwargs) -> HookOutput | None:
        return hook(*inputs, **keywords) if next(turns) == turn else None

    return at_call
