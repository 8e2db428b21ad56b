"""A text's run with all heads of a model, and batches of runs without some of the heads."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import AttentionLayer, Visibility
from attncli.errors import UserError, refuse_bytes
from attncli.models.architectures import LOGITS_TO_KEEP
from attncli.models.capture import check_computed_here, run_model
from attncli.models.layers import CapturedLayer, Consumer, ProcessedInputs, StopCapture
from attncli.models.model_blocks import ModelBlocks, after
from attncli.models.patched_heads import LayerChange, Patches, RunningLayer, patches_open
from attncli.models.predicted import Predicted
from attncli.models.pretrained import Pretrained
from attncli.models.projected_heads import ProjectedHeads, hearing_projected_heads
from attncli.models.removal import Change, Removal, Removed, attended, output_of
from attncli.models.stored import blocks_of

LOGIT_BYTES = 2**28
"""The most bytes of logits per batch of runs: a larger batch gains nothing."""
MAX_ROWS = 2**13
"""The most tokens in texts that run together, since matrix products gain nothing from more rows."""
CHECKED_TOKENS = 16
"""The number of final tokens on which a run that begins later is compared with the whole run."""
AGREES = 1e-4
"""Largest difference allowed between outputs, relative to the largest output: above float32's rounding."""
FLOAT_BYTES = 4
LOGIT_WORK = 500
"""The cost of comparing two logits, in multiplications."""
LOGIT_COPIES = 4
"""The number of arrays as large as a text's logits: logits, log-probabilities, and values to compare."""


class FirstTokens(NamedTuple):
    """Keys and values of a text's first tokens in one call of a layer, with the whole text's visibility."""

    key: Float[Tensor, "1 kv_head key dim"]
    value: Float[Tensor, "1 kv_head key value_dim"]
    visibility: Visibility

    def first(self, count: int) -> "FirstTokens":
        """Return the keys and values of fewer tokens, in no more memory than these need."""
        key, value = (part[:, :, :count].clone() for part in (self.key, self.value))
        return FirstTokens(key, value, self.visibility)


class RemovalRuns:
    """The run of a text with all heads, and its runs without some heads, each of them a row of a batch.

    `output` is the model's output: logits at the predicted places, or the last vectors of a model without a
    head. If the first tokens are the same in all runs, the runs begin at the token `start` and take the
    earlier keys and values (`starts`, for each call) from the whole run; `start` is 0 if the model does not
    support this. With `with_linear`, layers without a softmax (`linear`) also count as calls, numbered after
    those of attention; `linear_reads` holds their heads' inputs to W_O.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        reading: Predicted,
        consume: Consumer,
        *,
        key: str = "ablate",
        start: int = 0,
        with_linear: bool = False,
    ) -> None:
        self.key = key
        self.start = 0
        self.starts: list[FirstTokens] = []
        self._seen_after: dict[int, Visibility] = {}
        self.pretrained = pretrained
        self.model = pretrained.whole
        self.reading = reading
        self.is_language_model = pretrained.with_head is not None
        self.inputs = pretrained.inputs([reading])
        parameters = inspect.signature(self.model.forward).parameters
        self._keeps = self.is_language_model and LOGITS_TO_KEEP in parameters
        self.way = check_computed_here(self.model, self.inputs)
        self._refuse_what_does_not_fit()
        # If later runs skip most tokens, block outputs are stored only for the remaining tokens.
        is_short = start > 0 and 2 * start > max(tensor.shape[1] for tensor in self.inputs.values())
        self._blocks = ModelBlocks(self.model, first_token=start if is_short else 0, part=reading.part)
        self._block_of_call: list[int | None] = []
        self._calls: dict[tuple[str, int], int] = {}
        """The number of each call, by stack and layer."""
        self._modules = frozenset(self.model.modules())
        self.linear: list[ProjectedHeads] = []
        self.linear_reads: list[Tensor] = []
        linear_blocks: list[int | None] = []

        def take_linear(heads: ProjectedHeads, read: Tensor) -> None:
            self.linear.append(heads)
            self.linear_reads.append(heads.by_head(read).clone())
            linear_blocks.append(self._blocks.running)

        def taken(layer: CapturedLayer) -> Tensor | None:
            self._calls[layer.stack_name, layer.layer] = len(self._block_of_call)
            self._block_of_call.append(self._blocks.running)
            attention = layer.attention
            if start and isinstance(attention, AttentionLayer) and attention.rules.bias is None:
                self.starts.append(FirstTokens(attention.key, attention.value, attention.visibility))
            return consume(layer)

        with self._blocks.recorded(), ExitStack() as hooks:
            if with_linear:
                hooks.enter_context(hearing_projected_heads(self.model, take_linear))
            self.output = self._run(self.inputs, taken)[0]
        self.num_softmax = len(self._block_of_call)
        """The number of attention calls, which come before the calls of layers without a softmax."""
        self._block_of_call += linear_blocks
        self._can_begin_later = None not in self._block_of_call and not self._blocks.leave_notes
        self._can_begin_later = self._can_begin_later and (is_short or self._begins_well())
        has_positions = "position_ids" in parameters and len(self.starts) == self.num_softmax
        if start:
            self._begin_after(start if has_positions and self._can_begin_later else 0)
        self._can_begin_later = self._can_begin_later and (self.start > 0 or not is_short)

    def _begin_after(self, start: int) -> None:
        """Skip the first tokens in later runs if that gives the same results as the whole run.

        This is tested on the last tokens, which read the keys and values of all earlier tokens: the test
        fails if the model carries anything else from token to token (a state, a convolution).
        """
        starts, blocks = self.starts, self._blocks
        outputs = blocks.outputs

        def leave_out(count: int) -> None:
            self.start = count
            self.starts = [each.first(count) for each in starts] if count else []
            self._seen_after.clear()
            more = count - blocks.first_token
            blocks.outputs = [after(more, output) for output in outputs] if more > 0 else outputs

        if start:
            leave_out(max(start, int(self.reading.places[-1]) + 1 - CHECKED_TOKENS))
            start = start if self._begins_well(first_call=0) else 0
        leave_out(start)

    def begin_from(self, removed: Removed, change: Change) -> None:
        """Let later runs begin from the model's state with these heads changed.

        The heads must be changed in `without` as well.
        """
        if not self._can_begin_later:
            return
        # Blocks before the first one that attends (such as state-space blocks) do not change.
        del self._blocks.outputs[self.block_of(0) :]
        blocks = ModelBlocks(self.model)
        with blocks.recorded():
            self.without([removed], change, first_call=0)
        self._blocks.outputs = blocks.outputs

    @property
    def num_same(self) -> int:
        """The number of places that the runs skip."""
        return int((self.reading.places < self.start).sum())

    def _refuse_what_does_not_fit(self) -> None:
        """Raise UserError if the block outputs and the logits do not fit in memory."""
        config = self.model.config.get_text_config()
        rows = sum(tensor.shape[1] for name, tensor in self.inputs.items() if name.endswith("ids"))
        layers = self.pretrained.num_layers * (2 if "decoder_input_ids" in self.inputs else 1)
        recorded = rows * layers * getattr(config, "hidden_size", 1) * FLOAT_BYTES
        places = self.reading.num_places if self._keeps else rows
        logits_bytes = places * config.vocab_size * FLOAT_BYTES if self.is_language_model else 0
        needed = recorded + max(LOGIT_BYTES * bool(logits_bytes), logits_bytes) + LOGIT_COPIES * logits_bytes
        refuse_bytes(self.key, needed, "fewer tokens")

    def _begins_well(self, first_call: int | None = None) -> bool:
        """Return True if runs from the last block or this call on match the end of the whole run."""
        first_call = self.num_softmax - 1 if first_call is None else first_call
        again = self.without([(), ()], Removal("zero"), first_call, most_places=CHECKED_TOKENS)
        output = self.output[-again.shape[1] :]
        return bool((again - output).abs().max() <= AGREES * output.abs().max())

    def block_of(self, call: int) -> int:
        """Return the first block that must run again without a head of this call."""
        block = self._block_of_call[call]
        return block if self._can_begin_later and block is not None else 0

    def first_block(self, removed: Removed) -> int:
        """Return the first block that must run again without these heads."""
        return min(self.block_of(place.call) for place in removed)

    def work_without(self, removed: Removed) -> float:
        """Estimate the cost of a run without these heads, predictions included, in multiplications."""
        num_blocks = max(1, len(self._blocks.calls))
        first = self.first_block(removed) if removed else 0
        share = (num_blocks - first) / num_blocks
        return run_work(self.pretrained, self.reading, self.start, len(self.output) - self.num_same, share)

    def num_together(self) -> int:
        """The number of runs per batch."""
        is_processed = self.reading.inputs is not None
        num_tokens = (
            self.reading.counts[0] if is_processed else self.inputs["input_ids"].shape[1] - self.start
        )
        places = self.reading.num_places - self.num_same if self._keeps else num_tokens
        output_bytes = places * self.output.shape[-1] * self.output.element_size()
        rows = num_tokens
        if not is_processed:
            rows = max(tensor.shape[1] for tensor in self.inputs.values()) - self.start
        return max(1, min(LOGIT_BYTES // output_bytes, MAX_ROWS // rows))

    def without(
        self,
        removed: Sequence[Removed],
        removal: Change,
        first_call: int | None = None,
        *,
        most_places: int | None = None,
    ) -> Float[Tensor, "copy place vocabulary_or_dim"]:
        """Return the output with each of these sets of heads changed, in one batch.

        The batch runs from the first changed block on. With `most_places`, only the last places, at most that
        number, are predicted.
        """
        begin = min(map(self.first_block, removed)) if first_call is None else self.block_of(first_call)

        def layer_changes(layer: RunningLayer) -> Sequence[LayerChange]:
            call = self._calls[layer.stack, layer.layer]
            whole = partial(self._whole, call=call)
            changes = removal.of_call(call, removed, whole)
            if self.start and not changes:
                return [LayerChange("output", lambda layer: attended(whole(layer.attention)))]
            return changes

        inputs = self._copies(len(removed))
        if self.start:
            num_tokens = self.inputs["input_ids"].shape[1]
            positions = torch.arange(self.start, num_tokens, device=self.pretrained.device)
            inputs["position_ids"] = positions.expand(len(removed), -1)
        with self._blocks.begun_at(begin, len(removed)), ExitStack() as hooks:
            if isinstance(removal, Removal):
                for call, heads in enumerate(self.linear, start=self.num_softmax):
                    removal.apply_to_linear(heads, call, removed, hooks)
            hooks.enter_context(patches_open(Patches(self._modules, layer_changes), beneath=True))
            return self._run(inputs, _nothing_more, most_places)

    def output_on(
        self, call: int, streams: Float[Tensor, "copy token embed"]
    ) -> Float[Tensor, "copy head query value_dim"]:
        """Return the head outputs of a call if its block reads these vectors.

        Raises UserError for a model whose blocks pass anything else on to later blocks.
        """
        if not self._can_begin_later:
            raise UserError(f"into: {self.pretrained.name} cannot start a run at a later block")
        outputs: list[Tensor] = []

        def keep(layer: CapturedLayer) -> Tensor:
            outputs.append(output_of(layer))
            raise StopCapture

        with self._blocks.begun_at(self.block_of(call), len(streams), streams):
            run_model(self.model, self._copies(len(streams)), keep)
        return outputs[0]

    def _copies(self, count: int) -> dict[str, Tensor]:
        """Return the model's inputs for a batch of `count` runs."""
        if isinstance(self.inputs, ProcessedInputs):
            return self.inputs.copies(count)
        return {name: torch.cat([tensor[:, self.start :]] * count) for name, tensor in self.inputs.items()}

    def _whole(self, attention: AttentionLayer, call: int) -> AttentionLayer:
        """Complete a layer with the keys and values of the first tokens, which the run skipped."""
        if not self.start:
            return attention
        before, num_copies = self.starts[call], len(attention.query)
        key, value = (
            torch.cat([first.expand(num_copies, -1, -1, -1), read], dim=2)
            for first, read in ((before.key, attention.key), (before.value, attention.value))
        )
        if id(before.visibility) not in self._seen_after:  # shared, like the visibility of the whole text
            every = slice(None)
            after = before.visibility[every, every, self.start :, every]
            self._seen_after[id(before.visibility)] = after
        seen = self._seen_after[id(before.visibility)]
        return replace(attention, key=key, value=value, visibility=seen)

    def _run(
        self, inputs: dict[str, Tensor], consume: Consumer, most_places: int | None = None
    ) -> Float[Tensor, "copy place vocabulary_or_dim"]:
        places = self.reading.places[self.num_same :][-(most_places or 0) :] - self.start
        if self._keeps:
            inputs = copy(inputs)
            inputs[LOGITS_TO_KEEP] = places
        output: Tensor = run_model(self.model, inputs, consume)[0]
        return output[:, places] if self.is_language_model and not self._keeps else output


def _nothing_more(_layer: CapturedLayer) -> None:
    """Consume nothing, since a run without changes only needs the output of its attention."""


def run_work(
    pretrained: Pretrained,
    reading: Predicted,
    start: int = 0,
    num_places: int | None = None,
    share: float = 1.0,
) -> float:
    """Estimate the cost of a run of a text from the token `start` on, in multiplications.

    It covers that share of the blocks, and the predictions at `num_places` places (by default, all).
    """
    config, num_tokens = pretrained.whole.config.get_text_config(), max(reading.counts)
    stacks = blocks_of(pretrained.whole, in_memory=True)
    weights = sum(part.numel() for stack in stacks for part in stack.parameters())
    width, num_layers = config.hidden_size, max(1, pretrained.num_layers)
    blocks = (num_tokens - start) * (weights + num_layers * num_tokens * width)
    predictions = reading.num_places if num_places is None else num_places
    return float(blocks * share + predictions * config.vocab_size * (width + LOGIT_WORK))


def runs_together(run: RemovalRuns, removed: Sequence[Removed]) -> Iterator[list[int]]:
    """Return the indices of runs that begin at the same block and form a batch."""

    def block(index: int) -> int:
        return run.first_block(removed[index])

    size = run.num_together()
    for _, indices in groupby(sorted(range(len(removed)), key=block), key=block):
        alike = list(indices)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]
