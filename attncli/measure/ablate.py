"""Every head removed in turn, on every text, and what that does to what the model predicts."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count, groupby
from math import nan
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.engines import attend_with_gradients
from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.predictions import Predictions, token_losses
from attncli.core.runtime import threads_of_idle_cores
from attncli.core.summaries import mean_interval, rank_correlation, relative_changes
from attncli.errors import UserError, refuse_bytes
from attncli.measure.answers import log_probabilities_at, one_token_each
from attncli.measure.heads import (
    NOTHING_MORE,
    WHERE_IT_LOOKS,
    Survey,
    compare_distances,
    looked_at,
    surveyed_texts,
)
from attncli.measure.removal import (
    Blocks,
    Change,
    HeadPlace,
    Removal,
    RemovalMethod,
    Removed,
    after,
    index_of_head,
    mean_outputs,
    output_of,
)
from attncli.measure.scores import Part, Stream
from attncli.models.architectures import LOGITS_TO_KEEP
from attncli.models.capture import check_computed_here, run_model
from attncli.models.layers import CapturedLayer, Consumer, PictureInputs, StopCapture
from attncli.models.pretrained import CLS, FIRST_WORD_ID, Pretrained, Reading
from attncli.models.stored import blocks_of
from attncli.models.token_names import checked_position
from attncli.records.columns import Records
from attncli.records.effects import Approximation, BaselineNumbers, Effects, HeadEffect, HeadEffects
from attncli.records.surveys import LookedAtKey, SurveyedHead

MASKED_SHARE = 0.15
"""Of the tokens of a text, as BERT was trained: Devlin et al. 2019 (1810.04805), 3.1."""
NO_PLACES = torch.empty(0, dtype=torch.long)


@dataclass(frozen=True)
class Predicted(Reading):
    """What a model reads, the places of its predictions, and the token that each should be.

    A model without a head has none. An answer is the only target, and `against` a token that it is compared
    with. `other` is another prompt, of as many tokens, whose heads may give what they gave there: all tokens,
    or at the position `token`. `notes` say what was done to the answer.
    """

    places: Int[Tensor, " place"] = NO_PLACES
    targets: Int[Tensor, " place"] = NO_PLACES
    is_answer: bool = False
    against: int | None = None
    other: "Predicted | None" = None
    token: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_places(self) -> int:
        """How many tokens are predicted."""
        return len(self.places)


def predicted_reading(
    reading: Reading,
    pretrained: Pretrained,
    generator: torch.Generator,
    *,
    answer: str | None = None,
    against: str | None = None,
    key: str = "text",
) -> Predicted:
    """What is predicted of a text; UserError, which names `key`, where that is nothing.

    Where tokens are predicted from those before: every token but the first; of the repeated probe the second
    copy without its first token, which nothing gives away. For an encoder a random share of the tokens is
    masked. With an answer, what comes after the text, or replaces its mask.
    """
    if against is not None and answer is None and pretrained.predicts is not None:
        raise UserError("against: needs `answer`, with which it is compared")
    if answer is not None:
        return _with_answer(reading, pretrained, answer, against, key)
    if pretrained.predicts is None:
        return _without_predictions(reading, pretrained.name)
    if pretrained.predicts == "masked":
        return _masked(pretrained, reading, key, generator)
    return _with_next_tokens(reading, key)


def _predicted(reading: Reading, **predicted: Any) -> Predicted:
    """A reading with what is predicted of it."""
    own = {field.name: getattr(reading, field.name) for field in fields(Reading)}
    return Predicted(**own, **predicted)


def _without_predictions(reading: Reading, name: str) -> Predicted:
    """Of a model without a head; UserError for a picture that is read in parts."""
    are_whole = all(len(shape) == len(("picture", "colour", "row", "column")) for shape in reading.shapes)
    if not are_whole and not reading.part:
        raise UserError(f"image: {name} reads patches one after another: attn ablate needs whole pictures")
    return _predicted(reading)


def _with_answer(
    reading: Reading, pretrained: Pretrained, answer: str, against: str | None, key: str
) -> Predicted:
    """An answer of one token as the only target; UserError where it has no place, or is no token."""
    name, ids, is_next = pretrained.name, reading.text.ids, pretrained.predicts == "next"
    if pretrained.predicts is None:
        raise UserError(f"answer: {name} has no head that predicts tokens")
    mask = pretrained.tokenizer.mask_token_id
    if not is_next and mask is None:
        raise UserError(f"answer: the tokenizer of {name} has no mask token, in whose place it could stand")
    place = torch.tensor([len(ids) - 1]) if is_next else (ids == mask).nonzero().flatten()
    if len(place) != 1:
        token = pretrained.tokenizer.mask_token
        raise UserError(f"{key}: must hold one {token}, where the answer stands (got {len(place)})")
    found = one_token_each(
        pretrained,
        {"answer": answer} | ({} if against is None else {"against": against}),
        ids if is_next else None,
        lambda: log_probabilities_at(pretrained, reading, int(place)),
    )
    target, *other = found.ids
    return _predicted(
        reading,
        places=place,
        targets=torch.tensor([target]),
        is_answer=True,
        against=other[0] if other else None,
        notes=found.notes,
    )


def _with_next_tokens(reading: Reading, key: str) -> Predicted:
    """Every token but the first; of the repeated probe the second copy without its first token."""
    ids, repeated = reading.text.ids, reading.repeat
    first = 1 if repeated is None else len(ids) - repeated + 1
    if first >= len(ids):
        key, count = (key, len(ids)) if repeated is None else ("num_tokens", repeated)
        raise UserError(f"{key}: must be at least 2 tokens, so that one predicts another (got {count})")
    predicted = torch.arange(first, len(ids))
    if reading.seen is not None:  # words alone are predicted
        predicted = predicted[ids[first:] < FIRST_WORD_ID]
    return _predicted(reading, places=predicted - 1, targets=ids[predicted])


def swapped_reading(reading: Predicted, other: Predicted, token: int | None = None) -> Predicted:
    """A prompt with another of as many tokens, whose heads give what they gave there; UserError otherwise."""
    counts = len(reading.text.ids), len(other.text.ids)
    if counts[0] != counts[1]:
        raise UserError(f"other: must have as many tokens as the text, {counts[0]} (got {counts[1]})")
    if reading.is_answer:  # the same tokens after both
        other = replace(other, targets=reading.targets, against=reading.against)
    token = None if token is None else checked_position(token, counts[0], "token")
    return replace(reading, other=other, token=token)


def _masked(pretrained: Pretrained, reading: Reading, key: str, generator: torch.Generator) -> Predicted:
    """Some tokens that are not special, hidden behind the mask; at least one."""
    ids, mask = reading.text.ids, pretrained.tokenizer.mask_token_id
    if mask is None:
        raise UserError(f"model: the tokenizer of {pretrained.name} has no mask token")
    words = torch.tensor([i for i, one in enumerate(ids.tolist()) if one not in pretrained.special_ids])
    if not len(words):
        raise UserError(f"{key}: must hold a token that is not special, to predict")
    count = max(1, round(MASKED_SHARE * len(words)))
    places = words[torch.randperm(len(words), generator=generator)[:count]].sort().values
    hidden = ids.clone()
    hidden[places] = mask
    text = replace(reading.text, tokens=pretrained.labels(hidden.tolist()), ids=hidden)
    return Predicted(text, reading.context, places, ids[places], repeat=reading.repeat)


LOGIT_BYTES = 2**28
"""Of the logits of a batch of runs: a larger one gains nothing."""
MAX_ROWS = 2**13
"""Tokens in texts that run together: products of matrices with more rows gain nothing."""
CHECKED_TOKENS = 16
"""The last ones, of which it is seen that a run that begins later gives what the whole run gave."""
AGREES = 1e-4
"""By how much outputs may differ, relative to the largest: rounding of float32 is below it."""
FLOAT_BYTES = 4
WORK_OF_A_LOGIT = 500
"""To compare it with another, in products of numbers that cost as much."""
COPIES_OF_LOGITS = 4
"""Of one text: its logits, their log-probabilities, and those that they are compared with."""


class Start(NamedTuple):
    """What a call of a layer had made of the first tokens of a text, and who sees whom in all of it."""

    key: Float[Tensor, "1 kv_head key dim"]
    value: Float[Tensor, "1 kv_head key value_dim"]
    visibility: Visibility

    def first(self, count: int) -> "Start":
        """That of fewer tokens; it holds no more memory than they need."""
        key, value = (part[:, :, :count].clone() for part in (self.key, self.value))
        return Start(key, value, self.visibility)


class TextRun:
    """The run of a text with all heads, and its runs without some, each a row of a batch.

    `output` is what the model gives: logits at the places that are predicted, or the last vectors of a model
    without a head. Where the first tokens are the same in all runs, these begin at the token `start`, and
    take the keys and values before it, `starts` of each call, from the whole run; `start` is 0 where a model
    cannot.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        reading: Predicted,
        consume: Consumer,
        *,
        key: str = "ablate",
        start: int = 0,
    ) -> None:
        self.key = key
        self.start = 0
        self.starts: list[Start] = []
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
        # Where most is left out of the runs to come, no more of the blocks' outputs is kept.
        is_short = start > 0 and 2 * start > max(tensor.shape[1] for tensor in self.inputs.values())
        self._blocks = Blocks(self.model, first_token=start if is_short else 0, part=reading.part)
        self._block_of_call: list[int | None] = []

        def taken(layer: CapturedLayer) -> Tensor | None:
            self._block_of_call.append(self._blocks.running)
            attention = layer.attention
            if start and isinstance(attention, AttentionLayer) and attention.rules.bias is None:
                self.starts.append(Start(attention.key, attention.value, attention.visibility))
            return consume(layer)

        with self._blocks.recorded():
            self.output = self._run(self.inputs, taken)[0]
        self._can_begin_later = None not in self._block_of_call and not self._blocks.leave_notes
        self._can_begin_later = self._can_begin_later and (is_short or self._begins_well())
        is_known = "position_ids" in parameters and len(self.starts) == len(self._block_of_call)
        if start:
            self._begin_after(start if is_known and self._can_begin_later else 0)
        self._can_begin_later = self._can_begin_later and (self.start > 0 or not is_short)

    def _begin_after(self, start: int) -> None:
        """Leave the first tokens out of the runs to come, where that gives what the whole run gave.

        That is seen of the last tokens, which read the keys and values of all others: what else a model
        carries from token to token (a state, a convolution) they would miss.
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
        """Let the runs to come begin from what the model gives with these heads changed.

        They need them changed as well, in `without`.
        """
        if not self._can_begin_later:
            return
        # What comes before the first block that attends (a state-space block, perhaps) stays as it is.
        del self._blocks.outputs[self.block_of(0) :]
        blocks = Blocks(self.model)
        with blocks.recorded():
            self.without([removed], change, first_call=0)
        self._blocks.outputs = blocks.outputs

    @property
    def num_same(self) -> int:
        """How many of the places are left out of the runs."""
        return int((self.reading.places < self.start).sum())

    def _refuse_what_does_not_fit(self) -> None:
        """UserError where the blocks' outputs and the logits do not fit into memory."""
        config = self.model.config.get_text_config()
        rows = sum(tensor.shape[1] for name, tensor in self.inputs.items() if name.endswith("ids"))
        layers = self.pretrained.num_layers * (2 if "decoder_input_ids" in self.inputs else 1)
        recorded = rows * layers * getattr(config, "hidden_size", 1) * FLOAT_BYTES
        places = self.reading.num_places if self._keeps else rows
        of_one = places * config.vocab_size * FLOAT_BYTES if self.is_language_model else 0
        needed = recorded + max(LOGIT_BYTES * bool(of_one), of_one) + COPIES_OF_LOGITS * of_one
        refuse_bytes(self.key, needed, "fewer tokens")

    def _begins_well(self, first_call: int | None = None) -> bool:
        """Whether runs that begin at the last block, or at that call, give what the whole run gave, at the
        last places.
        """
        first_call = len(self._block_of_call) - 1 if first_call is None else first_call
        again = self.without([(), ()], Removal("zero"), first_call, most_places=CHECKED_TOKENS)
        output = self.output[-again.shape[1] :]
        return bool((again - output).abs().max() <= AGREES * output.abs().max())

    def block_of(self, call: int) -> int:
        """The first block that runs anew without a head of this call."""
        block = self._block_of_call[call]
        return block if self._can_begin_later and block is not None else 0

    def work_without(self, removed: Removed) -> float:
        """About what a run without these costs, in products of numbers: its blocks, and the predictions."""
        num_blocks = max(1, len(self._blocks.calls))
        first = self.block_of(min(place.call for place in removed)) if removed else 0
        share = (num_blocks - first) / num_blocks
        return work_of_run(self.pretrained, self.reading, self.start, len(self.output) - self.num_same, share)

    def num_together(self) -> int:
        """How many runs make a batch."""
        is_picture = self.reading.inputs is not None
        num_tokens = self.reading.counts[0] if is_picture else self.inputs["input_ids"].shape[1] - self.start
        places = self.reading.num_places - self.num_same if self._keeps else num_tokens
        of_one = places * self.output.shape[-1] * self.output.element_size()
        rows = num_tokens
        if not is_picture:
            rows = max(tensor.shape[1] for tensor in self.inputs.values()) - self.start
        return max(1, min(LOGIT_BYTES // of_one, MAX_ROWS // rows))

    def without(
        self,
        removed: Sequence[Removed],
        removal: Change,
        first_call: int | None = None,
        *,
        most_places: int | None = None,
    ) -> Float[Tensor, "copy place vocabulary_or_dim"]:
        """The output with each of these sets of heads changed, all at once; from the first block on.

        With `most_places` predictions at no more than these last ones.
        """
        if first_call is None:
            first_call = min(place.call for places in removed for place in places)
        begin = self.block_of(first_call)
        first = next(call for call, block in enumerate(self._block_of_call) if (block or 0) >= begin)
        calls = count(first if begin else 0)

        def consume(layer: CapturedLayer) -> Tensor:
            call = next(calls)
            return removal.applied(self.model, self._whole(layer, call), call, removed, hooks)

        inputs = self._copies(len(removed))
        if self.start:
            num_tokens = self.inputs["input_ids"].shape[1]
            positions = torch.arange(self.start, num_tokens, device=self.pretrained.device)
            inputs["position_ids"] = positions.expand(len(removed), -1)
        with self._blocks.begun_at(begin, len(removed)), ExitStack() as hooks:
            return self._run(inputs, consume, most_places)

    def output_on(
        self, call: int, streams: Float[Tensor, "copy token embed"]
    ) -> Float[Tensor, "copy head query value_dim"]:
        """What the heads of a call give when their block reads these.

        UserError for a model whose blocks leave something to later ones.
        """
        if not self._can_begin_later:
            raise UserError(f"into: {self.pretrained.name} cannot be run from a later block on")
        found: list[Tensor] = []

        def keep(layer: CapturedLayer) -> Tensor:
            found.append(output_of(layer))
            raise StopCapture

        with self._blocks.begun_at(self.block_of(call), len(streams), streams):
            run_model(self.model, self._copies(len(streams)), keep)
        return found[0]

    def _copies(self, count: int) -> dict[str, Tensor]:
        """What the model reads in a batch of so many runs."""
        if isinstance(self.inputs, PictureInputs):
            return self.inputs.copies(count)
        return {name: torch.cat([tensor[:, self.start :]] * count) for name, tensor in self.inputs.items()}

    def _whole(self, layer: CapturedLayer, call: int) -> CapturedLayer:
        """The layer with the keys and values of the first tokens, which it did not read."""
        if not self.start:
            return layer
        attention, before = layer.attention, self.starts[call]
        assert isinstance(attention, AttentionLayer)
        num_copies = len(attention.query)
        key, value = (
            torch.cat([first.expand(num_copies, -1, -1, -1), own], dim=2)
            for first, own in ((before.key, attention.key), (before.value, attention.value))
        )
        if id(before.visibility) not in self._seen_after:  # shared, as that of the whole text is
            every = slice(None)
            after = before.visibility[every, every, self.start :, every]
            self._seen_after[id(before.visibility)] = after
        seen = self._seen_after[id(before.visibility)]
        return replace(layer, attention=replace(attention, key=key, value=value, visibility=seen))

    def _run(
        self, inputs: dict[str, Tensor], consume: Consumer, most_places: int | None = None
    ) -> Float[Tensor, "copy place vocabulary_or_dim"]:
        places = self.reading.places[self.num_same :][-(most_places or 0) :] - self.start
        if self._keeps:
            inputs = copy(inputs)
            inputs[LOGITS_TO_KEEP] = places
        output: Tensor = run_model(self.model, inputs, consume)[0]
        return output[:, places] if self.is_language_model and not self._keeps else output


KEPT_PER_SCORE, KEPT_PER_ENTRY = 4, 30
"""Numbers that a layer keeps for the backward pass, per score of a head and per entry of a token's vector."""

EffectNumbers = dict[str, float]


class Baseline:
    """The output with all heads, and how each output without some compares to it.

    loss, in nats per token; of an answer its probability, and by how much its logit is above that of the
    token it is compared with. Their effects are differences: without the heads, minus with them. kl is
    sum p ln(p / q) of the predictions with all heads (p) and without (q); output_change, of a model
    without a head, ||y' - y|| / ||y||; cls_change, of a picture, 1 - cos(y', y) of [CLS].
    """

    def __init__(self, output: Float[Tensor, "place vocabulary_or_dim"], reading: Predicted) -> None:
        self.reading = reading
        is_picture = reading.text.seen is not None and not reading.part and CLS in reading.text.tokens
        self.cls = reading.text.tokens.index(CLS) if is_picture else None
        self.output = output
        self.expected = Predictions(output, reading.targets) if reading.num_places else None
        self.numbers = {} if self.expected is None else self._numbers(output, self.expected.losses)

    def _numbers(
        self, output: Float[Tensor, "place vocabulary"], losses: Float[Tensor, " place"]
    ) -> EffectNumbers:
        numbers = {"loss": float(losses.mean())}
        if self.reading.is_answer:
            numbers["probability"] = float(losses[0].neg().exp())
        if self.reading.against is not None:
            own, other = output[0, [int(self.reading.targets[0]), self.reading.against]].tolist()
            numbers["logit_difference"] = own - other
        return numbers

    def effects(
        self, outputs: Float[Tensor, "copy place vocabulary_or_dim"]
    ) -> list[tuple[EffectNumbers, int | None]]:
        """Those of each output, one after the other: a single copy of the predictions is in memory.

        With each the token, by its position, where the loss rose most, or the output changed most.
        """
        return [self._effects(output) for output in outputs]

    def _effects(self, output: Float[Tensor, "place vocabulary_or_dim"]) -> tuple[EffectNumbers, int | None]:
        if self.expected is None:
            before, now = self.output.double(), output.double()
            changes = relative_changes(before, now)
            effects = {"output_change": float(changes.mean())}
            if self.cls is not None:
                similarity = torch.cosine_similarity(before[self.cls], now[self.cls], dim=-1)
                effects = {"cls_change": 1 - float(similarity)} | effects
            return effects, _largest(changes)
        losses, divergences = self.expected.compared(output)
        numbers = self._numbers(output, losses)
        changed = {name: number - self.numbers[name] for name, number in numbers.items()}
        divergence = float(divergences.mean())
        most = _largest(losses - self.expected.losses)
        position = None if most is None else int(self.reading.places[most])
        return {"loss": changed.pop("loss"), "kl": divergence, **changed}, position


def _largest(changes: Float[Tensor, " place"]) -> int | None:
    """The place of the largest change; of several places None where none is more than rounding."""
    most = int(changes.argmax())
    return most if len(changes) == 1 or changes[most] > AGREES else None


def gate_gradients(pretrained: Pretrained, reading: Predicted) -> list[Float[Tensor, " head"]]:
    """By call, |d loss / d gate| of one text, where a gate of 1 multiplies each head's output: Michel et al.
    2019 (1905.10650), equation 2.
    """
    gates: list[Tensor] = []

    def gated(layer: CapturedLayer) -> Tensor:
        assert isinstance(layer.attention, AttentionLayer)
        output = attend_with_gradients(layer.attention)
        gates.append(torch.ones_like(output[:1, :, :1, :1], requires_grad=True))
        return output * gates[-1]

    model, inputs = pretrained.whole, pretrained.inputs([reading])
    check_computed_here(model, inputs)
    _refuse_what_does_not_fit(pretrained, reading)
    with torch.enable_grad():
        logits = run_model(model, inputs, gated)["logits"][0, reading.places]
        loss = token_losses(logits, reading.targets).mean()
    gradients = torch.autograd.grad(loss, gates)
    return [gradient.flatten().abs().double().cpu() for gradient in gradients]


def _refuse_what_does_not_fit(pretrained: Pretrained, reading: Predicted) -> None:
    """UserError where the backward pass needs more of the forward pass than fits into memory."""
    config = pretrained.model.config.get_text_config()
    num_tokens, layers = max(reading.counts), pretrained.num_layers
    scores = num_tokens**2 * getattr(config, "num_attention_heads", 1) * KEPT_PER_SCORE
    vectors = num_tokens * getattr(config, "hidden_size", 1) * KEPT_PER_ENTRY
    logits = num_tokens * config.vocab_size * KEPT_PER_SCORE
    needed = FLOAT_BYTES * (layers * (scores + vectors) + logits)
    refuse_bytes("ablate", needed, "fewer tokens, or leave out `approximate`")


WHERE = ("layer", "module", "kind", "stack", "head")
SAMPLED_HEADS = 16
"""Heads that are removed exactly beside the approximation, evenly spread over its order."""


class Ablation:
    """Removes heads from a model on some texts, and keeps the effects of each."""

    def __init__(
        self,
        readings: Sequence[Predicted],
        pretrained: Pretrained,
        *,
        named: Sequence[str],
        method: RemovalMethod,
        jointly: bool,
        approximate: bool,
        each_token: bool,
        into: str | None,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.readings = readings
        self.each_token, self.into = each_token, into
        self.into_place: HeadPlace | None = None
        self.pretrained = pretrained
        self.named, self.method = named, method
        self.jointly, self.approximate = jointly, approximate
        self.progress = progress
        self.heads: Records[SurveyedHead] = SurveyedHead.rows([])
        self.chosen: list[int] = []
        self.removed: list[list[HeadPlace]] = []
        self.patterns: list[Counter[str]] = []
        self.looks: Records[LookedAtKey] = LookedAtKey.rows([])
        self.effects: list[list[EffectNumbers]] = []
        self.baselines: list[EffectNumbers] = []
        self.back_effects: list[list[EffectNumbers]] = []
        self.back_baselines: list[EffectNumbers] = []
        self.gradients: list[Tensor] = []
        self.places: Sequence[HeadPlace] = []
        self.adapt: Callable[[], None] = lambda: None
        self.notes: dict[str, None] = {}

    def run(self) -> None:
        """All texts. UserError for heads that are not there, and for what the model cannot do."""
        if self.approximate:
            if not self.readings[0].num_places:
                name = self.pretrained.name
                raise UserError(f"approximate: {name} has no head that predicts tokens, and so no loss")
            self.gradients = [
                torch.cat(gate_gradients(self.pretrained, reading)) for reading in self.readings
            ]
        means: list[Tensor] = []
        if self.method == "mean":
            inputs = (self.pretrained.inputs([reading]) for reading in self.readings)
            means = mean_outputs(self.pretrained.whole, inputs)
        removal = Removal(self.method, means)
        with threads_of_idle_cores() as adapt:
            self.adapt = adapt
            for number, reading in enumerate(self.readings):
                if reading.other is None:
                    self._run_text(reading, removal, number)
                else:
                    self._run_pair(reading, reading.other, number)

    def _run_text(self, reading: Predicted, removal: Removal, number: int) -> None:
        survey, run, _ = self._surveyed(reading)
        baseline = Baseline(run.output, reading)
        self.baselines.append(baseline.numbers)

        def outputs(some: Sequence[int]) -> Tensor:
            return run.without([self.removed[i] for i in some], removal)

        found = self._found(run, baseline, outputs, number / len(self.readings), 1 / len(self.readings))
        self.effects.append([effects for effects, _ in found])
        self._look(survey, [position for _, position in found])

    def _surveyed(
        self, reading: Predicted, *, is_back: bool = False
    ) -> tuple[Survey, TextRun, dict[int, Tensor]]:
        """The run of a text, what its heads do, and, where heads are swapped, what they gave, by call."""
        options = WHERE_IT_LOOKS if len(self.readings) == 1 and not is_back else NOTHING_MORE
        given: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            survey = Survey(options, [reading], self.pretrained, None, hooks)

            def take(layer: CapturedLayer) -> Tensor | None:
                output = survey.take(layer)
                if self.method == "swap":
                    output = output_of(layer) if output is None else output
                    given[len(given)] = output.clone()
                return output

            run = TextRun(self.pretrained, reading, take)
        self.notes |= dict.fromkeys(run.way.notes())
        if is_back:
            return survey, run, given
        compare_distances(survey)
        heads = surveyed_texts(survey)[0].heads
        if not self.heads:
            self._choose(heads, list(_places(survey)))
        if self.method == "swap":
            self._choose_tokens(reading)
        for head, counter in zip(heads, self.patterns, strict=True):
            counter[head.pattern] += 1
        return survey, run, given

    def _found(
        self,
        run: TextRun,
        baseline: Baseline,
        outputs: Callable[[Sequence[int]], Tensor],
        begun: float,
        share: float,
    ) -> list[tuple[EffectNumbers, int | None]]:
        """The effects of each set of heads that is removed, and the token where it is missed most."""
        found: list[tuple[EffectNumbers, int | None]] = [({}, None)] * len(self.removed)
        done = 0
        begins = [[self.into_place]] * len(self.removed) if self.into_place else self.removed
        for some in runs_together(run, begins):
            for i, effect in zip(some, baseline.effects(outputs(some)), strict=True):
                found[i] = effect
            done += len(some)
            self.adapt()
            if self.progress is not None:
                self.progress(begun + share * done / len(self.removed))
        return found

    def _look(self, survey: Survey, missed_at: Sequence[int | None]) -> None:
        """What each head looks at from the token where it is missed most."""
        if survey.options.first_keys and not self.each_token:
            by_head = dict(zip(self.chosen, missed_at[: len(self.chosen)], strict=True))
            self.looks = looked_at(survey, 0, [by_head.get(head) for head in range(len(self.heads))])

    def _run_pair(self, reading: Predicted, other: Predicted, number: int) -> None:
        """Heads of a prompt give what they gave on the other one, then the other way round."""
        survey, run, given = self._surveyed(reading)
        _, other_run, other_given = self._surveyed(other, is_back=True)
        runs, gave, texts = (run, other_run), (given, other_given), (reading, other)
        baselines = [Baseline(each.output, text) for each, text in zip(runs, texts, strict=True)]
        streams = None
        if self.into_place is not None:
            streams = [Stream(self.pretrained, text) for text in texts]
        for back in (0, 1):
            removal = Removal("swap", given=gave[1 - back])
            outputs = partial(self._without, runs[back], removal)
            if streams is not None:
                paths = _Paths(runs[back], streams[back], streams[1 - back], self.into_place)
                outputs = partial(self._through, paths)
            begun, share = (number + back / 2) / len(self.readings), 0.5 / len(self.readings)
            found = self._found(runs[back], baselines[back], outputs, begun, share)
            own, others = baselines[back].numbers, baselines[1 - back].numbers
            effects = [_with_share_restored(effect, own, others) for effect, _ in found]
            (self.back_effects if back else self.effects).append(effects)
            (self.back_baselines if back else self.baselines).append(own)
            if not back:
                self._look(survey, [position for _, position in found])

    def _without(self, run: TextRun, removal: Removal, some: Sequence[int]) -> Tensor:
        return run.without([self.removed[i] for i in some], removal)

    def _through(self, paths: "_Paths", some: Sequence[int]) -> Tensor:
        return paths.outputs([self.removed[i] for i in some])

    def _choose_tokens(self, reading: Predicted) -> None:
        """Swap at all tokens, at one of this text, or at each by itself."""
        tokens: list[int | None] = [reading.token]
        if self.each_token:
            tokens = [*range(len(reading.text.ids))]
        alone = [self.places[index] for index in self.chosen]
        self.removed = [[place._replace(token=token)] for place in alone for token in tokens]
        if self.jointly:
            self.removed.append([place._replace(token=reading.token) for place in alone])

    def _choose(self, heads: Records[SurveyedHead], places: Sequence[HeadPlace]) -> None:
        """The heads that are removed exactly: those named, or all; of an approximation a sample.

        Each is removed in a run of its own; with `jointly`, one more run is without all of them.
        """
        self.heads = heads
        self.patterns = [Counter() for _ in heads]
        self.chosen = list(range(len(heads)))
        if self.named:
            self.chosen = [index_of_head(self.heads, name, "heads", self.pretrained) for name in self.named]
        elif self.approximate:
            order = self._mean_gradients().argsort(descending=True, stable=True)
            spread = torch.linspace(0, len(order) - 1, min(SAMPLED_HEADS, len(order))).round().long()
            self.chosen = sorted(order[spread].tolist())
        self.places = places
        if self.into is not None:
            self._choose_into(places)
        together = [places[index] for index in self.chosen]
        self.removed = [[place] for place in together] + ([together] if self.jointly else [])

    def _choose_into(self, places: Sequence[HeadPlace]) -> None:
        """The later head, and of those that are chosen the heads before it; UserError where one is not."""
        self.into_place = places[index_of_head(self.heads, str(self.into), "into", self.pretrained)]
        earlier = [index for index in self.chosen if places[index].call < self.into_place.call]
        if not earlier or (self.named and len(earlier) < len(self.chosen)):
            where = "must be in a later layer than the heads that write to it"
            raise UserError(f"into: {where} (got {self.into})")
        self.chosen = earlier

    def _mean_gradients(self) -> Tensor:
        """The mean of |d loss / d gate| over the texts, for each head."""
        return torch.stack(self.gradients).mean(dim=0)

    def _exact(self) -> list[EffectNumbers]:
        """The effects of each chosen head over the texts."""
        return _over_texts([found[: len(self.chosen)] for found in self.effects])

    def swapped_rows(
        self, effects: Sequence[Sequence[EffectNumbers]], *, with_looks: bool
    ) -> list[dict[str, object]]:
        """One for each head, and for each token where these are swapped one by one."""
        alone = len(self.removed) - self.jointly
        rows: list[dict[str, object]] = []
        per_head = alone // len(self.chosen)
        texts = self.pretrained.written_tokens(self.readings[0].text) if self.each_token else []
        for place, found in enumerate(_over_texts([each[:alone] for each in effects])):
            index = self.chosen[place // per_head]
            ((pattern, _),) = self.patterns[index].most_common(1)
            row = {**self._place(index), "pattern": pattern}
            token = place % per_head
            row |= {"token": token} if self.each_token else {}
            row |= {**found, **(self.looks[index] if self.looks and with_looks else {})}
            rows.append(row | ({"token_text": texts[token]} if self.each_token else {}))
        return rows

    def _place(self, index: int) -> dict[str, object]:
        """Where a head is."""
        return {name: self.heads[index][name] for name in WHERE}

    def rows(self) -> list[dict[str, object]]:
        """One for each head that was measured: where it is, what it looks at, and what is lost without it."""
        if self.method == "swap":
            return self.swapped_rows(self.effects, with_looks=True)
        exact = dict(zip(self.chosen, self._exact(), strict=True))
        nothing: dict[str, float | None] = dict.fromkeys(exact[self.chosen[0]])
        approximate = self._mean_gradients().tolist() if self.gradients else []
        rows = []
        for index in range(len(self.heads)) if approximate else self.chosen:
            ((pattern, _),) = self.patterns[index].most_common(1)
            row = {**self._place(index), "pattern": pattern, **exact.get(index, nothing)}
            row |= {"approximate": approximate[index]} if approximate else {}
            rows.append({**row, **(self.looks[index] if self.looks else {})})
        return rows

    @property
    def baseline(self) -> EffectNumbers:
        """The numbers with all heads, means over the texts."""
        return _over_texts([[numbers] for numbers in self.baselines])[0]

    def together(self) -> tuple[EffectNumbers, Approximation | None]:
        """The effects of all chosen heads at once; how well the approximation orders the heads."""
        joint: EffectNumbers = {}
        if self.jointly:
            (joint,) = _over_texts([effects[-1:] for effects in self.effects])
        if not self.gradients:
            return joint, None
        losses = torch.tensor([effects["loss"] for effects in self._exact()], dtype=torch.float64).abs()
        correlation = rank_correlation(self._mean_gradients()[self.chosen], losses).item()
        return joint, Approximation.single(rank_correlation=correlation, heads=len(losses))


class _Paths:
    """What heads wrote on another prompt in the place of what they wrote, in what one later head reads alone.

    Path patching (Wang et al. 2022, 2211.00593; Goldowsky-Dill et al. 2023, 2304.05969) along the direct
    path: everything between is as it was, the norm before the later head is computed anew.
    """

    def __init__(self, run: TextRun, stream: Stream, other: Stream, into: HeadPlace | None) -> None:
        assert into is not None
        self.run, self.into = run, into
        self.read = stream.read_by(into.call)
        self.layers = [captured.layer for captured in stream.attention]
        self.wrote, self.wrote_there = (dict(one.parts_before(into.call)) for one in (stream, other))

    def outputs(self, changed: Sequence[Removed]) -> Tensor:
        """What the model gives with what each of these wrote there, at one token or all."""
        streams = self.read.repeat(len(changed), 1, 1)
        for text, each in enumerate(changed):
            for place in each:
                part = Part("head", self.layers[place.call], place.head)
                difference = self.wrote_there[part]() - self.wrote[part]()
                tokens = slice(None) if place.token is None else slice(place.token, place.token + 1)
                streams[text, tokens] += difference[tokens]
        given = {self.into.call: self.run.output_on(self.into.call, streams)}
        return self.run.without([[self.into]] * len(changed), Removal("swap", given=given))


def _with_share_restored(effects: EffectNumbers, own: EffectNumbers, other: EffectNumbers) -> EffectNumbers:
    """With `restored`: the share of the way from a prompt's logit difference to that of the other one."""
    if "logit_difference" not in own:
        return effects
    way = other["logit_difference"] - own["logit_difference"]
    return {**effects, "restored": effects["logit_difference"] / way if way else nan}


@torch.no_grad()
def ablated(
    pretrained: Pretrained,
    readings: Sequence[Predicted],
    *,
    heads: Sequence[str] = (),
    method: RemovalMethod = "zero",
    jointly: bool = False,
    approximate: bool = False,
    each_token: bool = False,
    into: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> HeadEffects:
    """What the model loses on some texts without each of the named heads, as 5:11, or of all heads.

    `method` says what replaces a head's output (see `Removal`). With `jointly` also what is lost without all
    of them at once. `approximate` orders every head by one backward pass and measures some of them. With
    `method` swap each reading has another one, and with `each_token` each token is swapped by itself; `into`,
    as 18:6, is the one later head that reads the change, by the direct path, all else as it was. UserError
    for heads that are not there, and for what the model cannot do; MemoryError.
    """
    if approximate and method != "zero":
        raise UserError(f"approximate: is for method zero: a gate goes from 1 to 0 (got {method})")
    if into is not None and jointly:
        raise UserError("jointly: cannot be combined with `into`, head by head")
    if each_token and len(readings) > 1:
        raise UserError(
            f"token: each is for one text: several have tokens of their own (got {len(readings)})"
        )
    ablation = Ablation(
        readings,
        pretrained,
        named=heads,
        method=method,
        jointly=jointly,
        approximate=approximate,
        each_token=each_token,
        into=into,
        progress=progress,
    )
    ablation.run()
    is_swap = method == "swap"
    back = ablation.swapped_rows(ablation.back_effects, with_looks=False) if is_swap else []
    back_baseline = _over_texts([[numbers] for numbers in ablation.back_baselines])[0] if is_swap else {}
    joint, approximation = ablation.together()
    return HeadEffects(
        heads=HeadEffect.rows(ablation.rows()),
        back=HeadEffect.rows(back) if back else None,
        baseline=BaselineNumbers.single(**ablation.baseline) if ablation.baseline else None,
        back_baseline=BaselineNumbers.single(**back_baseline) if back_baseline else None,
        joint=Effects.single(**joint) if joint else None,
        approximation=approximation,
        notes=(*dict.fromkeys(note for reading in readings for note in reading.notes), *ablation.notes),
    )


def _places(survey: Survey) -> Iterator[HeadPlace]:
    """Each head in the order of a survey's rows."""
    for call, layer in enumerate(survey.found.layers):
        assert layer.computed.sums is not None
        for head in range(layer.computed.sums.shape[1]):
            yield HeadPlace(call, head)


def work_of_run(
    pretrained: Pretrained,
    reading: Predicted,
    start: int = 0,
    num_places: int | None = None,
    share: float = 1.0,
) -> float:
    """About what a run of a text from the token `start` on costs, in products of numbers: that share of its
    blocks, and the predictions at so many places, of None at all.
    """
    config, num_tokens = pretrained.whole.config.get_text_config(), max(reading.counts)
    stacks = blocks_of(pretrained.whole, in_memory=True)
    weights = sum(part.numel() for stack in stacks for part in stack.parameters())
    width, num_layers = config.hidden_size, max(1, pretrained.num_layers)
    blocks = (num_tokens - start) * (weights + num_layers * num_tokens * width)
    predictions = reading.num_places if num_places is None else num_places
    return float(blocks * share + predictions * config.vocab_size * (width + WORK_OF_A_LOGIT))


def runs_together(run: TextRun, removed: Sequence[Removed]) -> Iterator[list[int]]:
    """The indices of what runs together: what begins at the same block."""

    def block(index: int) -> int:
        return run.block_of(min(place.call for place in removed[index]))

    size = run.num_together()
    for _, indices in groupby(sorted(range(len(removed)), key=block), key=block):
        alike = list(indices)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _over_texts(found: Sequence[Sequence[EffectNumbers]]) -> list[EffectNumbers]:
    """The means of each head's effects over the texts and, with several texts, their 95 % intervals."""
    names = list(found[0][0])
    if not names:
        return [{} for _ in found[0]]
    numbers = torch.tensor(
        [[[one[name] for name in names] for one in text] for text in found], dtype=torch.float64
    )
    means = numbers.mean(dim=0)
    ends: dict[str, Tensor] = {"": means}
    if len(found) > 1:
        squares = (numbers - means).square().sum(dim=0)
        count = torch.full(means.shape, len(found))
        ends["_low"], ends["_high"] = mean_interval(count, means, squares)
    return [
        {
            f"{name}{end}": values[head, column].item()
            for column, name in enumerate(names)
            for end, values in ends.items()
        }
        for head in range(len(means))
    ]
