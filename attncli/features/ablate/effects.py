"""Every head removed in turn, on every text, and what that does to what the model predicts."""

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
    2019 (1905.10650), equation 2. Behind those of attention the layers without a softmax.
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
        for heads, of_heads in zip(linear, linear_gates, strict=True):
            hooks.enter_context(heads.changed(1, partial(gated_heads, of_heads.requires_grad_())))
        patches = Patches(frozenset(model.modules()), lambda _layer: [LayerChange("output", gated)])
        hooks.enter_context(patches_open(patches, beneath=True))
        logits = run_model(model, inputs, attended)["logits"][0, reading.places]
        loss = token_losses(logits, reading.targets).mean()
    gradients = torch.autograd.grad(loss, [*gates, *linear_gates])
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


class Looks(NamedTuple):
    """What heads look at from the tokens of a text where they are missed most, by their numbers."""

    rows: Records[LookedAtKey]
    missed_at: Mapping[int, int | None]
    tokens: Sequence[str]

    def of_head(self, number: int) -> dict[str, object]:
        """The cells of a head; without a softmax only the token where it is missed."""
        if not self.rows:
            return {}
        if number < len(self.rows):
            return dict(self.rows[number])
        query = self.missed_at.get(number)
        token = None if query is None else self.tokens[query]
        return {**dict.fromkeys(LookedAtKey.columns), "query": query, "query_token": token}


@dataclass
class Ablation:
    """Removes heads from a model on some texts, and keeps the effects of each."""

    readings: Sequence[Predicted]
    pretrained: Pretrained
    _: KW_ONLY
    named: Sequence[str]
    method: RemovalMethod
    jointly: bool
    approximate: bool
    each_token: bool
    into: str | None
    progress: Callable[[float], None] | None
    all_heads: HeadsOfModel | None = None
    chosen: list[int] = field(default_factory=list)
    reader: HeadPlace | None = None
    """The place of the head `into`."""
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
    """A sentence on the layers that have no heads here."""

    def __post_init__(self) -> None:
        self.unshown = self.pretrained.unshown_layers

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

            has_linear = bool(self.pretrained.unshown_layers)
            run = RemovalRuns(self.pretrained, reading, take, with_linear=has_linear)
        if run.linear and self.method != "sink":
            modules = {self.pretrained.module_name(heads.module) for heads in run.linear}
            self.unshown = unshown_layers(self.pretrained.model, modules)
        self.notes |= dict.fromkeys(replace(run.way, unshown=self.unshown).notes())
        if self.method == "swap":
            given |= dict(enumerate(run.linear_reads, start=run.num_softmax))
        if is_back:
            return survey, run, given
        compare_distances(survey)
        heads = surveyed_texts(survey)[0].heads
        if self.all_heads is None:
            with_softmax = [
                ModelHead(head.layer, head.module, head.kind, head.stack, head.head) for head in heads
            ]
            self.all_heads = HeadsOfModel.of_run(self.pretrained, run, with_softmax, [*_places(survey)])
            self._choose(self.all_heads)
        if self.method == "swap":
            self._choose_tokens(self.all_heads, reading)
        for head, of_texts in zip(heads, self.patterns, strict=False):
            of_texts.append(head.pattern)
        return survey, run, given

    def _effects(
        self,
        run: RemovalRuns,
        baseline: Baseline,
        outputs: Callable[[Sequence[Removed]], Tensor],
        begun: float,
        share: float,
    ) -> list[tuple[EffectNumbers, int | None]]:
        """The effects of each set of heads that is removed, and the token where it is missed most."""
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

    def _look(self, survey: Survey, missed_at: Sequence[int | None]) -> None:
        """What each head looks at from the token where it is missed most."""
        if survey.options.first_keys and not self.each_token:
            by_head = dict(zip(self.chosen, missed_at[: len(self.chosen)], strict=True))
            rows = looked_at(survey, 0, [by_head.get(head) for head in range(self.heads.num_softmax)])
            self.looks = Looks(rows, by_head, self.readings[0].text.tokens)

    def _run_pair(self, reading: Predicted, other: Predicted, number: int) -> None:
        """Heads of a prompt give what they gave on the other one, then the other way round."""
        survey, run, given = self._surveyed(reading)
        _, other_run, other_given = self._surveyed(other, is_back=True)
        runs, gave, texts = (run, other_run), (given, other_given), (reading, other)
        baselines = [Baseline(each.output, text) for each, text in zip(runs, texts, strict=True)]
        outputs: list[Callable[[Sequence[Removed]], Tensor]] = [
            partial(runs[back].without, removal=Removal("swap", given=gave[1 - back])) for back in (0, 1)
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
        """All heads, known from the first run on."""
        assert self.all_heads is not None, "a text was run"
        return self.all_heads

    def _choose_tokens(self, heads: HeadsOfModel, reading: Predicted) -> None:
        """Swap at all tokens, at one of this text, or at each by itself."""
        tokens: list[int | None] = [reading.token]
        if self.each_token:
            tokens = [*range(len(reading.text.ids))]
        alone = [heads.places[number] for number in self.chosen]
        self.removed = [[place._replace(token=token)] for place in alone for token in tokens]
        if self.jointly:
            self.removed.append([place._replace(token=reading.token) for place in alone])

    def _choose(self, heads: HeadsOfModel) -> None:
        """Each chosen head is removed in a run of its own; with `jointly`, one more run is without all."""
        self.patterns = [[] for _ in heads.heads]
        self.chosen = heads.chosen(self.named, self.method, self._mean_gradients())
        if self.into is not None:
            self.reader = heads.place_of_reader(self.into)
            earlier = heads.before(self.reader, self.chosen)
            if not earlier or (self.named and len(earlier) < len(self.chosen)):
                where = "must be in a later layer than the heads that write to it"
                raise UserError(f"into: {where} (got {self.into})")
            self.chosen = earlier
        together = [heads.places[number] for number in self.chosen]
        self.removed = [[place] for place in together] + ([together] if self.jointly else [])

    def _mean_gradients(self) -> Tensor | None:
        """The mean of |d loss / d gate| over the texts, for each head; None unless it approximates."""
        return torch.stack(self.gradients).mean(dim=0) if self.gradients else None

    def _exact(self) -> list[EffectNumbers]:
        """The effects of each chosen head over the texts."""
        return _over_texts([of_text[: len(self.chosen)] for of_text in self.effects])

    def swapped_rows(
        self, effects: Sequence[Sequence[EffectNumbers]], *, with_looks: bool
    ) -> Records[HeadEffect]:
        """One for each head, and for each token where these are swapped one by one."""
        alone = len(self.removed) - self.jointly
        rows: list[dict[str, object]] = []
        per_head = alone // len(self.chosen)
        texts = self.pretrained.written_tokens(self.readings[0].text) if self.each_token else []
        for place, numbers in enumerate(_over_texts([of_text[:alone] for of_text in effects])):
            index, token = self.chosen[place // per_head], place % per_head
            row = self.heads.row(index, self.patterns[index])
            row |= {"token": token} if self.each_token else {}
            row |= numbers
            row |= self.looks.of_head(index) if with_looks else {}
            rows.append(row | ({"token_text": texts[token]} if self.each_token else {}))
        return HeadEffect.rows(rows if self.named else self.heads.by_layer(rows))

    def rows(self) -> Records[HeadEffect]:
        """One for each head that was measured: where it is, what it looks at, and what is lost without it."""
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
            rows.append(row | self.looks.of_head(index))
        return HeadEffect.rows(rows if self.named else self.heads.by_layer(rows))

    @property
    def baseline(self) -> EffectNumbers:
        """The numbers with all heads, means over the texts."""
        return _over_texts([[numbers] for numbers in self.baselines])[0]

    def together(self) -> tuple[EffectNumbers, Approximation | None]:
        """The effects of all chosen heads at once; how well the approximation orders the heads."""
        joint: EffectNumbers = {}
        if self.jointly:
            (joint,) = _over_texts([effects[-1:] for effects in self.effects])
        if (gradients := self._mean_gradients()) is None:
            return joint, None
        losses = torch.tensor([effects["loss"] for effects in self._exact()], dtype=torch.float64).abs()
        correlation = rank_correlation(gradients[self.chosen], losses).item()
        return joint, Approximation.single(rank_correlation=correlation, heads=len(losses))


def _with_share_restored(effects: EffectNumbers, here: EffectNumbers, there: EffectNumbers) -> EffectNumbers:
    """With `restored`: the share of the way from a prompt's logit difference to that of the other one."""
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
    """Each head in the order of a survey's rows."""
    for call, layer in enumerate(survey.layers.layers):
        assert layer.computed.sums is not None
        for head in range(layer.computed.sums.shape[1]):
            yield HeadPlace(call, head)


def _over_texts(of_texts: Sequence[Sequence[EffectNumbers]]) -> list[EffectNumbers]:
    """The means of each head's effects over the texts and, with several texts, their 95 % intervals."""
    names = list(of_texts[0][0])
    if not names:
        return [{} for _ in of_texts[0]]
    numbers = torch.tensor(
        [[[effects[name] for name in names] for effects in text] for text in of_texts], dtype=torch.float64
    )
    means = numbers.mean(dim=0)
    ends: dict[str, Tensor] = {"": means}
    if len(of_texts) > 1:
        squares = (numbers - means).square().sum(dim=0)
        count = torch.full(means.shape, len(of_texts))
        ends["_low"], ends["_high"] = mean_interval(count, means, squares)
    return [
        {
            f"{name}{end}": values[head, column].item()
            for column, name in enumerate(names)
            for end, values in ends.items()
        }
        for head in range(len(means))
    ]
