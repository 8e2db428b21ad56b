"""Remove heads one after the other, on every text, and compare the predictions of the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend_with_gradients
from attncli.core.layer import AttentionLayer
from attncli.core.names import RemovalMethod
from attncli.core.predictions import Predictions, token_losses
from attncli.core.runtime import idle_core_threads
from attncli.core.summaries import mean_interval, rank_correlation, relative_changes
from attncli.errors import UserError, refuse_bytes
from attncli.features.ablate.removed_heads import HeadsOfModel
from attncli.features.ablate.results import Approximation, BaselineNumbers, Effects, HeadEffect, HeadEffects
from attncli.measure.heads import (
    NOTHING_MORE,
    WHERE_IT_LOOKS,
    Survey,
    compare_distances,
    looked_at,
    surveyed_texts,
)
from attncli.models.architectures import unshown_layers
from attncli.models.capture import check_computed_here, run_model
from attncli.models.layers import CapturedLayer
from attncli.models.patched_heads import LayerChange, Patches, RunningLayer, patches_open
from attncli.models.predicted import Predicted
from attncli.models.pretrained import CLS, Pretrained
from attncli.models.projected_heads import gated_heads, projected_heads
from attncli.models.removal import (
    HeadPlace,
    ModelHead,
    Removal,
    Removed,
    mean_outputs,
    output_of,
)
from attncli.models.removal_runs import AGREES, FLOAT_BYTES, RemovalRuns, runs_together
from attncli.records.columns import Records
from attncli.records.surveys import LookedAtKey

SAVED_PER_SCORE, SAVED_PER_ENTRY = 4, 30
"""Numbers saved by a layer for the backward pass, per score of a head and per entry of a token's vector."""

EffectNumbers = dict[str, float]


class Baseline:
    """The output with all heads, with which the outputs without some heads are compared.

    The numbers are the loss in nats per token and, for an answer, its probability and its logit minus the
    logit of the token to compare with. Effects are differences: without the heads minus with all
    heads. kl is sum p ln(p / q), where p are the predictions with all heads and q the predictions without
    some. output_change, for a model that predicts no tokens, is ||y' - y|| / ||y||; cls_change, for a
    picture, is 1 - cos(y', y) of [CLS].
    """

    def __init__(self, output: Float[Tensor, "place vocabulary_or_dim"], reading: Predicted) -> None:
        self.reading = reading
        origin, tokens = reading.text.origin, reading.text.tokens
        is_grid_alone = origin is not None and origin.kind.on_grid and not reading.part
        self.cls = tokens.index(CLS) if is_grid_alone and CLS in tokens else None
        self.output = output
        self.expected = Predictions(output, reading.targets) if reading.num_places else None
        self.numbers = {} if self.expected is None else self._numbers(output, self.expected.losses)

    def _numbers(
        self, output: Float[Tensor, "place vocabulary"], losses: Float[Tensor, " place"]
    ) -> EffectNumbers:
        numbers = {"loss": float(losses.mean())}
        if (answer := self.reading.answer) is not None:
            numbers["probability"] = float(losses[0].neg().exp())
            if answer.against is not None:
                numbers["logit_difference"] = answer.logit(output[0].double())
        return numbers

    def effects(
        self, outputs: Float[Tensor, "copy place vocabulary_or_dim"]
    ) -> list[tuple[EffectNumbers, int | None]]:
        """Return the effects in each output, and the position where the loss rose or the output changed most.

        The outputs are compared one after another, so that memory holds only one copy of the predictions.
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
    """Return the position of the largest change, or None if none of several changes exceeds rounding."""
    most = int(changes.argmax())
    return most if len(changes) == 1 or changes[most] > AGREES else None


def gate_gradients(pretrained: Pretrained, reading: Predicted) -> list[Float[Tensor, " head"]]:
    """Compute |d loss / d gate| of each head on one text, by call; a gate of 1 multiplies the head's output.

    Michel et al. 2019 (1905.10650), equation 2. Layers without a softmax come after the attention layers.
    """
    gates: list[Tensor] = []

    def attended(layer: CapturedLayer) -> Tensor:
        assert isinstance(layer.attention, AttentionLayer)
        return attend_with_gradients(layer.attention)

    def gated(layer: RunningLayer) -> Tensor:
        gates.append(torch.ones_like(layer.output[:1, :, :1, :1], requires_grad=True))
        return layer.output * gates[-1]

    model, inputs = pretrained.whole, pretrained.inputs([reading])
    check_computed_here(model, inputs)
    _refuse_what_does_not_fit(pretrained, reading)
    linear = projected_heads(model, lambda: run_model(model, inputs, output_of))
    linear_gates = [torch.ones(heads.num_heads, device=pretrained.device) for heads in linear]
    with torch.enable_grad(), ExitStack() as hooks:
        for heads, gate in zip(linear, linear_gates, strict=True):
            hooks.enter_context(heads.changed(1, partial(gated_heads, gate.requires_grad_())))
        patches = Patches(frozenset(model.modules()), lambda _layer: [LayerChange("output", gated)])
        hooks.enter_context(patches_open(patches, beneath=True))
        logits = run_model(model, inputs, attended)["logits"][0, reading.places]
        loss = token_losses(logits, reading.targets).mean()
    gradients = torch.autograd.grad(loss, [*gates, *linear_gates])
    return [gradient.flatten().abs().double().cpu() for gradient in gradients]


def _refuse_what_does_not_fit(pretrained: Pretrained, reading: Predicted) -> None:
    """Raise UserError if the backward pass needs more memory than is available."""
    config = pretrained.model.config.get_text_config()
    num_tokens, layers = max(reading.counts), pretrained.num_layers
    scores = num_tokens**2 * getattr(config, "num_attention_heads", 1) * SAVED_PER_SCORE
    vectors = num_tokens * getattr(config, "hidden_size", 1) * SAVED_PER_ENTRY
    logits = num_tokens * config.vocab_size * SAVED_PER_SCORE
    needed = FLOAT_BYTES * (layers * (scores + vectors) + logits)
    refuse_bytes("ablate", needed, "fewer tokens, or no `approximate`")


class Looks(NamedTuple):
    """The keys that each head looks at from the token where removing it costs the most, by head number."""

    rows: Records[LookedAtKey]
    query_positions: Mapping[int, int | None]
    tokens: Sequence[str]

    def cells(self, number: int) -> dict[str, object]:
        """Return the table cells of a head. A head without a softmax has no key, only a query."""
        if not self.rows:
            return {}
        if number < len(self.rows):
            return dict(self.rows[number])
        query = self.query_positions.get(number)
        token = None if query is None else self.tokens[query]
        return {**dict.fromkeys(LookedAtKey.columns), "query": query, "query_token": token}


@dataclass
class Ablation:
    """Removes heads from a model on some texts, and collects the effect of each head."""

    readings: Sequence[Predicted]
    pretrained: Pretrained
    _: KW_ONLY
    head_names: Sequence[str]
    method: RemovalMethod
    jointly: bool
    approximate: bool
    each_token: bool
    into: str | None
    progress: Callable[[float], None] | None
    all_heads: HeadsOfModel | None = None
    chosen: list[int] = field(default_factory=list)
    reader: HeadPlace | None = None
    """The head that `into` names."""
    removed: list[list[HeadPlace]] = field(default_factory=list)
    patterns: list[list[str]] = field(default_factory=list)
    looks: Looks = Looks(LookedAtKey.rows([]), {}, ())  # noqa: RUF009 - immutable
    effects: list[list[EffectNumbers]] = field(default_factory=list)
    baselines: list[EffectNumbers] = field(default_factory=list)
    back_effects: list[list[EffectNumbers]] = field(default_factory=list)
    back_baselines: list[EffectNumbers] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    adapt: Callable[[], None] = lambda: None
    notes: dict[str, None] = field(default_factory=dict)
    unshown: str = ""
    """A sentence that names the layers whose heads are not measured."""

    def __post_init__(self) -> None:
        self.unshown = self.pretrained.unshown_layers

    def run(self) -> None:
        """Measure all texts. Raises UserError for heads that the model does not have."""
        if self.approximate:
            if not self.readings[0].num_places:
                name = self.pretrained.name
                raise UserError(f"approximate: {name} predicts no tokens, so it has no loss")
            self.gradients = [
                torch.cat(gate_gradients(self.pretrained, reading)) for reading in self.readings
            ]
        means: list[Tensor] = []
        if self.method == "mean":
            inputs = (self.pretrained.inputs([reading]) for reading in self.readings)
            means = mean_outputs(self.pretrained.whole, inputs)
        removal = Removal(self.method, means)
        with idle_core_threads() as adapt:
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
        outputs = partial(run.without, removal=removal)
        begun, share = number / len(self.readings), 1 / len(self.readings)
        effects = self._effects(run, baseline, outputs, begun, share)
        self.effects.append([numbers for numbers, _ in effects])
        self._look(survey, [position for _, position in effects])

    def _surveyed(
        self, reading: Predicted, *, is_back: bool = False
    ) -> tuple[Survey, RemovalRuns, dict[int, Tensor]]:
        """Return the survey of a text and its run with all heads.

        With swap, the result includes the outputs of the text's heads by call.
        """
        options = WHERE_IT_LOOKS if len(self.readings) == 1 and not is_back else NOTHING_MORE
        head_outputs: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            survey = Survey(options, [reading], self.pretrained, None, hooks)

            def take(layer: CapturedLayer) -> Tensor | None:
                output = survey.take(layer)
                if self.method == "swap":
                    output = output_of(layer) if output is None else output
                    head_outputs[len(head_outputs)] = output.clone()
                return output

            has_linear = bool(self.pretrained.unshown_layers)
            run = RemovalRuns(self.pretrained, reading, take, with_linear=has_linear)
        if run.linear and self.method != "sink":
            modules = {self.pretrained.module_name(heads.module) for heads in run.linear}
            self.unshown = unshown_layers(self.pretrained.model, modules)
        self.notes |= dict.fromkeys(replace(run.way, unshown=self.unshown).notes())
        if self.method == "swap":
            head_outputs |= dict(enumerate(run.linear_reads, start=run.num_softmax))
        if is_back:
            return survey, run, head_outputs
        compare_distances(survey)
        heads = surveyed_texts(survey)[0].heads
        if self.all_heads is None:
            with_softmax = [
                ModelHead(head.layer, head.module, head.kind, head.stack, head.head) for head in heads
            ]
            self.all_heads = HeadsOfModel.from_run(self.pretrained, run, with_softmax, [*_places(survey)])
            self._choose(self.all_heads)
        if self.method == "swap":
            self._choose_tokens(self.all_heads, reading)
        for head, patterns in zip(heads, self.patterns, strict=False):
            patterns.append(head.pattern)
        return survey, run, head_outputs

    def _effects(
        self,
        run: RemovalRuns,
        baseline: Baseline,
        outputs: Callable[[Sequence[Removed]], Tensor],
        begun: float,
        share: float,
    ) -> list[tuple[EffectNumbers, int | None]]:
        """Return the effects of removing each set of heads, and where each removal costs the most."""
        effects: list[tuple[EffectNumbers, int | None]] = [({}, None)] * len(self.removed)
        done = 0
        begins = [[self.reader]] * len(self.removed) if self.reader else self.removed
        for some in runs_together(run, begins):
            removed = [self.removed[i] for i in some]
            for i, effect in zip(some, baseline.effects(outputs(removed)), strict=True):
                effects[i] = effect
            done += len(some)
            self.adapt()
            if self.progress is not None:
                self.progress(begun + share * done / len(self.removed))
        return effects

    def _look(self, survey: Survey, query_positions: Sequence[int | None]) -> None:
        """Record the keys that each head looks at from the token where removing the head costs the most."""
        if survey.options.first_keys and not self.each_token:
            by_head = dict(zip(self.chosen, query_positions[: len(self.chosen)], strict=True))
            rows = looked_at(survey, 0, [by_head.get(head) for head in range(self.heads.num_softmax)])
            self.looks = Looks(rows, by_head, self.readings[0].text.tokens)

    def _run_pair(self, reading: Predicted, other: Predicted, number: int) -> None:
        """Swap in the heads of the other prompt, then measure the opposite direction."""
        survey, run, head_outputs = self._surveyed(reading)
        _, other_run, other_outputs = self._surveyed(other, is_back=True)
        runs, outputs_by_call, texts = (run, other_run), (head_outputs, other_outputs), (reading, other)
        baselines = [Baseline(each.output, text) for each, text in zip(runs, texts, strict=True)]
        outputs: list[Callable[[Sequence[Removed]], Tensor]] = [
            partial(runs[back].without, removal=Removal("swap", given=outputs_by_call[1 - back]))
            for back in (0, 1)
        ]
        if self.reader is not None:
            from attncli.features.ablate.path_patching import direct_paths

            outputs = [paths.outputs for paths in direct_paths(self.pretrained, texts, runs, self.reader)]
        for back in (0, 1):
            begun, share = (number + back / 2) / len(self.readings), 0.5 / len(self.readings)
            effects = self._effects(runs[back], baselines[back], outputs[back], begun, share)
            here, there = baselines[back].numbers, baselines[1 - back].numbers
            restored = [_with_share_restored(numbers, here, there) for numbers, _ in effects]
            (self.back_effects if back else self.effects).append(restored)
            (self.back_baselines if back else self.baselines).append(here)
            if not back:
                self._look(survey, [position for _, position in effects])

    @property
    def heads(self) -> HeadsOfModel:
        """All heads of the model, available after the first run."""
        assert self.all_heads is not None, "a text was run"
        return self.all_heads

    def _choose_tokens(self, heads: HeadsOfModel, reading: Predicted) -> None:
        """Set the heads to swap: at all tokens, at one token of this text, or at each token separately."""
        tokens: list[int | None] = [reading.token]
        if self.each_token:
            tokens = [*range(len(reading.text.ids))]
        alone = [heads.places[number] for number in self.chosen]
        self.removed = [[place._replace(token=token)] for place in alone for token in tokens]
        if self.jointly:
            self.removed.append([place._replace(token=reading.token) for place in alone])

    def _choose(self, heads: HeadsOfModel) -> None:
        """Set the heads to remove: one chosen head per run and, with `jointly`, all of them in a last run."""
        self.patterns = [[] for _ in heads.heads]
        self.chosen = heads.chosen(self.head_names, self.method, self._mean_gradients())
        if self.into is not None:
            self.reader = heads.reader_place(self.into)
            earlier = heads.before(self.reader, self.chosen)
            if not earlier or (self.head_names and len(earlier) < len(self.chosen)):
                where = "must be in a later layer than the heads to swap"
                raise UserError(f"into: {where} (got {self.into})")
            self.chosen = earlier
        together = [heads.places[number] for number in self.chosen]
        self.removed = [[place] for place in together] + ([together] if self.jointly else [])

    def _mean_gradients(self) -> Tensor | None:
        """Return the mean of |d loss / d gate| over the texts by head, or None without `approximate`."""
        return torch.stack(self.gradients).mean(dim=0) if self.gradients else None

    def _exact(self) -> list[EffectNumbers]:
        """Return the effects of removing each chosen head, averaged over the texts."""
        return _over_texts([text_effects[: len(self.chosen)] for text_effects in self.effects])

    def swapped_rows(
        self, effects: Sequence[Sequence[EffectNumbers]], *, with_looks: bool
    ) -> Records[HeadEffect]:
        """One row per head, or per head and token if tokens are swapped separately."""
        alone = len(self.removed) - self.jointly
        rows: list[dict[str, object]] = []
        per_head = alone // len(self.chosen)
        texts = self.pretrained.written_tokens(self.readings[0].text) if self.each_token else []
        for place, numbers in enumerate(_over_texts([text_effects[:alone] for text_effects in effects])):
            index, token = self.chosen[place // per_head], place % per_head
            row = self.heads.row(index, self.patterns[index])
            row |= {"token": token} if self.each_token else {}
            row |= numbers
            row |= self.looks.cells(index) if with_looks else {}
            rows.append(row | ({"token_text": texts[token]} if self.each_token else {}))
        return HeadEffect.rows(rows if self.head_names else self.heads.by_layer(rows))

    def rows(self) -> Records[HeadEffect]:
        """One row per head that was measured."""
        if self.method == "swap":
            return self.swapped_rows(self.effects, with_looks=True)
        exact: dict[int, Mapping[str, float | None]] = dict(zip(self.chosen, self._exact(), strict=True))
        nothing = dict.fromkeys(exact[self.chosen[0]])
        gradients = self._mean_gradients()
        approximate = [] if gradients is None else gradients.tolist()
        rows: list[dict[str, object]] = []
        for index in range(len(approximate)) if approximate else self.chosen:
            row = self.heads.row(index, self.patterns[index])
            row |= exact.get(index, nothing)
            row |= {"approximate": approximate[index]} if approximate else {}
            rows.append(row | self.looks.cells(index))
        return HeadEffect.rows(rows if self.head_names else self.heads.by_layer(rows))

    @property
    def baseline(self) -> EffectNumbers:
        """The numbers with all heads, averaged over the texts."""
        return _over_texts([[numbers] for numbers in self.baselines])[0]

    def together(self) -> tuple[EffectNumbers, Approximation | None]:
        """Return the effects of removing all chosen heads at once, and the quality of the approximation."""
        joint: EffectNumbers = {}
        if self.jointly:
            (joint,) = _over_texts([effects[-1:] for effects in self.effects])
        if (gradients := self._mean_gradients()) is None:
            return joint, None
        losses = torch.tensor([effects["loss"] for effects in self._exact()], dtype=torch.float64).abs()
        correlation = rank_correlation(gradients[self.chosen], losses).item()
        return joint, Approximation.single(rank_correlation=correlation, heads=len(losses))


def _with_share_restored(effects: EffectNumbers, here: EffectNumbers, there: EffectNumbers) -> EffectNumbers:
    """Add `restored`, the share of the gap between the prompts' logit differences that the swap closes."""
    if "logit_difference" not in here:
        return effects
    way = there["logit_difference"] - here["logit_difference"]
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
    """Measure the effect of removing each named head, such as 5:11, or every head, on some texts.

    `method` says what replaces the output of a head (see `Removal`). `jointly` also removes all of the heads
    at once. `approximate` ranks every head with a single backward pass, and measures only some heads exactly.
    With swap, each reading has an `other` reading; with `each_token`, each token is swapped separately; with
    `into`, only that later head, such as 18:6, reads the change, along the direct path.

    Raises UserError for heads that the model does not have and for arguments that cannot be combined or do
    not fit the model, and MemoryError if memory runs out.
    """
    if approximate and method != "zero":
        raise UserError(
            f"approximate: needs method zero, because it estimates the effect of a zero output (got {method})"
        )
    if into is not None and jointly:
        raise UserError("jointly: cannot be combined with `into`, which swaps one head at a time")
    if each_token and len(readings) > 1:
        raise UserError(
            "token: each needs a single text, because texts differ in their tokens "
            f"(got {len(readings)} texts)"
        )
    ablation = Ablation(
        readings,
        pretrained,
        head_names=heads,
        method=method,
        jointly=jointly,
        approximate=approximate,
        each_token=each_token,
        into=into,
        progress=progress,
    )
    ablation.run()
    is_swap = method == "swap"
    back = ablation.swapped_rows(ablation.back_effects, with_looks=False) if is_swap else None
    back_baseline = _over_texts([[numbers] for numbers in ablation.back_baselines])[0] if is_swap else {}
    joint, approximation = ablation.together()
    answers = [reading.answer for reading in readings if reading.answer is not None]
    return HeadEffects(
        heads=ablation.rows(),
        back=back,
        baseline=BaselineNumbers.single(**ablation.baseline) if ablation.baseline else None,
        back_baseline=BaselineNumbers.single(**back_baseline) if back_baseline else None,
        joint=Effects.single(**joint) if joint else None,
        approximation=approximation,
        notes=(*dict.fromkeys(note for answer in answers for note in answer.notes), *ablation.notes),
        unshown=ablation.unshown,
    )


def _places(survey: Survey) -> Iterator[HeadPlace]:
    """Yield the place of each head, in the order of the survey's rows."""
    for call, layer in enumerate(survey.layers.layers):
        assert layer.computed.sums is not None
        for head in range(layer.computed.sums.shape[1]):
            yield HeadPlace(call, head)


def _over_texts(text_effects: Sequence[Sequence[EffectNumbers]]) -> list[EffectNumbers]:
    """Return the mean effects of each head over the texts, with 95 % intervals if there are several texts."""
    names = list(text_effects[0][0])
    if not names:
        return [{} for _ in text_effects[0]]
    numbers = torch.tensor(
        [[[effects[name] for name in names] for effects in text] for text in text_effects],
        dtype=torch.float64,
    )
    means = numbers.mean(dim=0)
    ends: dict[str, Tensor] = {"": means}
    if len(text_effects) > 1:
        squares = (numbers - means).square().sum(dim=0)
        count = torch.full(means.shape, len(text_effects))
        ends["_low"], ends["_high"] = mean_interval(count, means, squares)
    return [
        {
            f"{name}{end}": values[head, column].item()
            for column, name in enumerate(names)
            for end, values in ends.items()
        }
        for head in range(len(means))
    ]
