"""One text through a model with or without some heads: the blocks below them are computed once."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.experiments.ablate.predicted import Predicted
from attncli.experiments.ablate.removal import Removal, Removed
from attncli.inputs.capture.capture import check_computed_here, run_model
from attncli.inputs.capture.captured_layers import CapturedLayer, Consumer
from attncli.inputs.models.blocks import Blocks
from attncli.inputs.models.pretrained import Pretrained
from attncli.memory import refuse_bytes

LOGIT_BYTES = 2**28
"""Of the logits of a batch of runs: a larger one gains nothing."""
MAX_ROWS = 2**13
"""Tokens in texts that run together: products of matrices with more rows gain nothing."""
AGREES = 1e-4
"""By how much outputs may differ, relative to the largest: rounding of float32 is below it."""
FLOAT_BYTES = 4
COPIES_OF_LOGITS = 4
"""Of one text: its logits, their log-probabilities, and those that they are compared with."""
LOGITS_TO_KEEP = "logits_to_keep"
"""The argument of models that can compute their logits at some places alone."""


class TextRun:
    """The run of a text with all heads, and its runs without some, each a row of a batch.

    `output` is what the model gives: logits at the places that are predicted, or the last vectors of a model
    without a head.
    """

    def __init__(self, pretrained: Pretrained, reading: Predicted, consume: Consumer) -> None:
        self.pretrained = pretrained
        self.model = pretrained.whole
        self.reading = reading
        self.is_language_model = pretrained.with_head is not None
        self.inputs = pretrained.inputs([reading])
        parameters = inspect.signature(self.model.forward).parameters
        self._keeps = self.is_language_model and LOGITS_TO_KEEP in parameters
        self.way = check_computed_here(self.model, self.inputs)
        self._refuse_what_does_not_fit()
        self._blocks = Blocks(self.model)
        self._block_of_call: list[int | None] = []

        def taken(layer: CapturedLayer) -> Tensor | None:
            self._block_of_call.append(self._blocks.running)
            return consume(layer)

        with self._blocks.recorded():
            self.output = self._run(self.inputs, taken)[0]
        self._can_begin_later = None not in self._block_of_call and not self._blocks.leave_notes
        self._can_begin_later = self._can_begin_later and self._begins_well()

    def _refuse_what_does_not_fit(self) -> None:
        """UserError where the blocks' outputs and the logits do not fit into memory."""
        config = self.model.config.get_text_config()
        rows = sum(tensor.shape[1] for name, tensor in self.inputs.items() if name.endswith("ids"))
        layers = self.pretrained.num_layers * (2 if "decoder_input_ids" in self.inputs else 1)
        recorded = rows * layers * getattr(config, "hidden_size", 1) * FLOAT_BYTES
        places = self.reading.num_places if self._keeps else rows
        of_one = places * config.vocab_size * FLOAT_BYTES if self.is_language_model else 0
        needed = recorded + max(LOGIT_BYTES * bool(of_one), of_one) + COPIES_OF_LOGITS * of_one
        refuse_bytes("ablate", needed, "fewer tokens")

    def _begins_well(self) -> bool:
        """Whether runs that begin at the last block give what the whole run gave."""
        again = self.without([(), ()], Removal("zero"), len(self._block_of_call) - 1)
        return bool((again - self.output).abs().max() <= AGREES * self.output.abs().max())

    def block_of(self, call: int) -> int:
        """The first block that runs anew without a head of this call."""
        block = self._block_of_call[call]
        return block if self._can_begin_later and block is not None else 0

    def num_together(self) -> int:
        """How many runs make a batch."""
        places = self.reading.num_places if self._keeps else self.inputs["input_ids"].shape[1]
        of_one = places * self.output.shape[-1] * self.output.element_size()
        rows = max(tensor.shape[1] for tensor in self.inputs.values())
        return max(1, min(LOGIT_BYTES // of_one, MAX_ROWS // rows))

    def without(
        self, removed: Sequence[Removed], removal: Removal, first_call: int | None = None
    ) -> Float[Tensor, "copy place vocabulary_or_dim"]:
        """The output without each of these sets of heads, all at once; from the block of the first on."""
        if first_call is None:
            first_call = min(place.call for places in removed for place in places)
        begin = self.block_of(first_call)
        first = next(call for call, block in enumerate(self._block_of_call) if (block or 0) >= begin)
        calls = count(first if begin else 0)

        def consume(layer: CapturedLayer) -> Tensor:
            return removal.applied(self.model, layer, next(calls), removed, hooks)

        inputs = {name: torch.cat([tensor] * len(removed)) for name, tensor in self.inputs.items()}
        with self._blocks.begun_at(begin, len(removed)), ExitStack() as hooks:
            return self._run(inputs, consume)

    def _run(
        self, inputs: Mapping[str, Tensor], consume: Consumer
    ) -> Float[Tensor, "copy place vocabulary_or_dim"]:
        places = self.reading.places
        if self._keeps:
            inputs = {**inputs, LOGITS_TO_KEEP: places}
        output: Tensor = run_model(self.model, inputs, consume)[0]
        return output[:, places] if self.is_language_model and not self._keeps else output
