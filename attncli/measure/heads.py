"""The survey of a model's heads: statistics measured layer by layer as the model runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attncli.core.engines import attend
from attncli.core.formulas import roll_out, value_norms
from attncli.core.layer import AttentionLayer, Computed, Marks, Wanted, merge_heads
from attncli.core.names import HEAD_PATTERNS, LOOKED_AT
from attncli.core.row_tiles import GivenWeights, LayerOrWeights, side_by_side
from attncli.errors import UserError, refuse_bytes
from attncli.measure.head_numbers import (
    HeadNumbers,
    SurveyedLayers,
    head_counts,
    head_numbers,
    numbers_by_text,
    stacks_of,
)
from attncli.measure.looks import FirstLooks, HeadLooks, HeadMaps, LastNorms
from attncli.measure.masks import joint_rollout_mask, layer_mask
from attncli.measure.patterns import (
    HeadTotals,
    LayerPlace,
    RestOfText,
    SurveyedText,
    wanted_scores,
    without_first_key,
)
from attncli.models.architectures import (
    head_projections,
    matrix_and_bias,
    output_projection,
    unshown_layers,
)
from attncli.models.capture import Way, capture, in_step, together
from attncli.models.layers import CapturedLayer, DeferredLayers
from attncli.models.pretrained import Pretrained, Reading, attention_between_words, stack_texts
from attncli.models.probes import shorter_probe
from attncli.models.removal import heads_removed
from attncli.models.side_by_side import of_this_run
from attncli.models.text_files import ManyTexts, TextLine
from attncli.models.token_names import check_tokens_named, positions_named
from attncli.records.columns import Records
from attncli.records.surveys import MIN_ROWS, HeadSurvey, LookedAtKey
from attncli.records.values import Mask

if TYPE_CHECKING:  # few models have such layers
    from attncli.measure.signed_heads import SignedHeads

BYTES_PER_ROLLED_WEIGHT = 40
BYTES_PER_MERGED_WEIGHT = 8


@dataclass(frozen=True)
class HeadOptions:
    """Options of a survey: changes to the attention before it is measured, and additional results.

    - `skip_sink`: leave out the first keys and renormalise the other weights.
    - `words`: merge tokens into words. `weighted`: multiply each weight by ||v W_O||.
    - `rollout`: accumulate attention over the layers.
    - `rest`: for heads that look mostly at the first key, name the pattern of the weight on the other keys.
    - `maps`: store maps of self, cross or encoder attention; for more than `whole_tokens` tokens, whole
      weights are stored only for the heads in `full` (24:4).
    - `queries`, `keys`: the tokens, by text or position, between which weight is measured; `keys` is
      required.
    - `first_keys`: store, for every query, the key with the most weight; see `looked_at`.
    - `looks`: store the weights from `queries` or, if none are given, from [CLS] or all tokens; see
      `HeadLooks`.
    - `linear`: also measure heads without a softmax, on all tokens.
    """

    skip_sink: int = 0
    words: bool = False
    weighted: bool = False
    rollout: bool = False
    rest: bool = False
    maps: str = "none"
    full: tuple[str, ...] = ()
    whole_tokens: int = 128
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    first_keys: bool = False
    looks: bool = False
    linear: bool = False


NOTHING_MORE = HeadOptions()
WHERE_IT_LOOKS = HeadOptions(first_keys=True)


def check_reading(
    whole: Reading, pretrained: Pretrained, options: HeadOptions, places: tuple[str, str] = ("from", "to")
) -> None:
    """Raise UserError if a text, in tokens, does not suit the options; `places` are two token settings."""
    if options.queries and not options.keys and not whole.on_grid:
        raise UserError(f"{places[0]}: needs `{places[1]}`, since a query's weights over all keys sum to 1")
    reading = whole.in_words()
    fewest = min(count for count in reading.counts if count)
    if options.skip_sink >= fewest:
        raise UserError(f"skip_sink: must be below {fewest}, the number of tokens (got {options.skip_sink})")
    texts = [reading.text] if reading.context is None else [reading.text, reading.context]
    for key, names in zip(places, (options.queries, options.keys), strict=True):
        check_tokens_named(names, texts, pretrained, key=key)
    if options.rollout:
        refuse_bytes("heads", reading.counts[0] ** 2 * BYTES_PER_ROLLED_WEIGHT, "fewer tokens")
    if options.words:
        refuse_merged(reading, pretrained, "fewer words, or leave out `words`")


def refuse_merged(reading: Reading, pretrained: Pretrained, advice: str) -> None:
    """Raise UserError if a layer's weights between words do not fit in memory."""
    num_heads = getattr(pretrained.model.config.get_text_config(), "num_attention_heads", 1)
    refuse_bytes("heads", num_heads * max(reading.counts) ** 2 * BYTES_PER_MERGED_WEIGHT, advice)


def without_first_keys(attention: LayerOrWeights, count: int) -> LayerOrWeights:
    """The attention with its first keys and any learned sink hidden, and its other weights renormalised.

    Otherwise the first token, on which heads put unused weight (Xiao et al. 2023, 2309.17453), dominates
    every causal model.
    """
    if count == 0:
        return attention
    if isinstance(attention, GivenWeights):
        weights = attention.weights.clone()
        weights[..., :count] = 0
        weights = (weights / weights.sum(dim=-1, keepdim=True)).nan_to_num(0.0)
        return GivenWeights(weights, (weights > 0).any(dim=1))
    visibility = attention.visibility
    key_mask = (torch.arange(visibility.num_keys, device=attention.key.device) >= count).unsqueeze(0)
    if visibility.key_mask is not None:
        key_mask = key_mask & visibility.key_mask
    rules = replace(attention.rules, sink=None)
    return replace(attention, visibility=replace(visibility, key_mask=key_mask), rules=rules)


def weighted_by_values(layer: AttentionLayer, norms: Float[Tensor, "text head key"]) -> AttentionLayer:
    """The layer with weights p_ij ||v_j W_O||, each row normalised: ln ||v_j W_O|| is added to the scores.

    A sink is dropped, since it has no value.
    """
    logs = norms.clamp(min=torch.finfo(torch.float32).tiny).log().to(layer.query.dtype).unsqueeze(2)
    bias = logs if layer.rules.bias is None else layer.rules.bias + logs
    return replace(layer, rules=replace(layer.rules, bias=bias, sink=None))


def looks_ahead(attention: LayerOrWeights) -> bool:
    """True if queries see keys after their own position."""
    if isinstance(attention, GivenWeights):
        return bool(attention.seen.triu(1).any())
    return not attention.visibility.causal


class MarkedTexts:
    """Texts of equal length, and the statistics to measure on them; `whole` holds them in tokens."""

    def __init__(self, options: HeadOptions, whole: Sequence[Reading], pretrained: Pretrained) -> None:
        self.options = options
        self.whole = whole
        self.readings = [reading.in_words() for reading in whole]
        self.pretrained = pretrained
        self.special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids))

    def attention(self, layer: CapturedLayer) -> LayerOrWeights:
        """The attention of a layer, between words or without the first keys if the options say so."""
        attention = attention_between_words(layer, self.whole) if self.options.words else layer.attention
        return without_first_keys(attention, self.options.skip_sink)

    def wanted(self, layer: CapturedLayer) -> Wanted:
        """The values from which the statistics of a layer's heads are computed."""
        ids = [stack_texts(reading, layer.stack_name)[0].ids for reading in self.readings]
        query, key = stack_texts(self.readings[0], layer.stack_name)
        origin = query.origin if query is key else None
        return wanted_scores(
            None if layer.kind == "cross" else torch.stack(ids),
            self._marks(layer.stack_name),
            first_key=self.options.skip_sink,
            repeat=self.whole[0].repeat,
            to_some=bool(self.options.keys),
            from_some=bool(self.options.keys and self.options.queries),
            looks_ahead=layer.kind == "cross" or looks_ahead(layer.attention),
            places=None if origin is None else origin.grid,
            seconds=None if origin is None else origin.begins,
        )

    def _marks(self, stack: str) -> Marks:
        texts = [stack_texts(reading, stack) for reading in self.readings]
        marks = torch.zeros(3, len(texts), max(len(text.ids) for text in texts[0]), dtype=torch.bool)
        for number, (query, key) in enumerate(texts):
            marks[0, number, : len(key.ids)] = torch.isin(key.ids, self.special)
            if key.origin is not None and key.origin.special is not None:
                marks[0, number, : len(key.ids)] |= key.origin.special
            for mark, names, text in (
                (marks[1], self.options.queries, query),
                (marks[2], self.options.keys, key),
            ):
                mark[number, [*positions_named(names, text, self.pretrained)] if names else slice(None)] = (
                    True
                )
        return Marks(*marks.to(self.pretrained.device))


ROUNDING = 1e-3
"""The largest difference between the input of W_O and the heads, relative to the largest entry."""


class Survey:
    """Measures the heads of each layer as the model runs, and stores what their statistics need."""

    def __init__(
        self,
        options: HeadOptions,
        whole: Sequence[Reading],
        pretrained: Pretrained,
        progress: Callable[[float], None] | None,
        hooks: ExitStack,
    ) -> None:
        self.options = options
        self.hooks = hooks
        self.progress = progress
        self.pretrained = pretrained
        self.texts = MarkedTexts(options, whole, pretrained)
        self.num_texts = len(whole)
        self._layers = SurveyedLayers()
        self.rest = SurveyedLayers() if options.rest else None
        self.shorter: Survey | None = None
        """The survey of a shorter probe, if this probe shows heads that may be induction heads."""
        # Hooks measure the norms of the values as the model runs.
        self._later = None if options.weighted else DeferredLayers(self._measure)
        self.rolled: list[Tensor] = []
        self.rolled_masks: list[list[Mask | None]] = []
        self.maps: list[HeadMaps] = []
        if options.maps != "none":
            self.maps = [
                HeadMaps(options.maps, options.full, options.whole_tokens, reading)
                for reading in self.texts.readings
            ]
        self.looks: list[HeadLooks] = []
        if options.looks:
            self.looks = [
                HeadLooks(options.queries, reading, pretrained, text)
                for text, reading in enumerate(self.texts.readings)
            ]
        origin = whole[0].text.origin
        if origin is not None and origin.grid is not None:
            self._layers.norms = LastNorms(whole, pretrained, hooks)

    @property
    def layers(self) -> SurveyedLayers:
        """The summaries of all layers, once the model has run."""
        if self._later is not None:
            self._later.finish()
        return self._layers

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Measure one layer, now or later. Return the layer's output, or None if it is not computed here."""
        return self._measure([layer]) if self._later is None else self._later.take(layer)

    def _measure(self, layers: Sequence[CapturedLayer]) -> Tensor | None:
        """Measure layers of the same shapes. Return the output of a single layer with unchanged weights."""
        attentions = [self.texts.attention(layer) for layer in layers]
        norms = None
        if self.options.weighted:
            attentions[0], norms = self._weighted(layers[0], attentions[0])
        wanted = [self._wanted(*each) for each in zip(layers, attentions, strict=True)]
        if any(each.head_mean or each.kept_heads for each in wanted):
            computed = [attend(*each) for each in zip(attentions, wanted, strict=True)]
        else:
            together = attend(side_by_side(attentions), wanted[0])
            size = attentions[0].shape[1]
            heads = (slice(start, start + size) for start in range(0, size * len(layers), size))
            computed = [together] if len(layers) == 1 else [together.for_heads(some) for some in heads]
        for layer, attention, summary in zip(layers, attentions, computed, strict=True):
            self._keep(layer, attention, summary, norms)
            for looks in self.looks:
                looks.take(layer, attention, summary)
        if self.progress is not None:
            num_stacks = 3 if self.pretrained.has_decoder else 1  # encoder, decoder, across
            num_layers = num_stacks * self.pretrained.num_layers
            self.progress(min(1.0, len(self._layers.layers) / num_layers))
        return computed[0].output

    def _wanted(self, layer: CapturedLayer, attention: LayerOrWeights) -> Wanted:
        """The values to compute, shared by all layers of a stack except for the maps and the output.

        The output of a layer is computed here if its attention is unchanged.
        """
        stack = layer.stack_name
        wanted_before = self._layers.wanted
        if stack not in wanted_before:
            has_rollout = self.options.rollout or any(looks.has_rollout for looks in self.looks)
            head_mean = has_rollout and layer.kind == "self"
            top_k = int(self.options.first_keys)
            wanted = self.texts.wanted(layer)
            rest = None if self.rest is None else without_first_key(wanted)
            if self.rest is not None and rest is not None:
                self.rest.wanted[stack] = rest
            wanted_before[stack] = replace(wanted, head_mean=head_mean, top_k=top_k, rest=rest)
        has_values = isinstance(attention, AttentionLayer) and attention.value.shape[-1] > 0
        wanted = replace(wanted_before[stack], output=has_values and attention is layer.attention)
        return self.maps[0].wanted(layer, wanted) if self.maps else wanted

    def _keep(
        self, layer: CapturedLayer, attention: LayerOrWeights, computed: Computed, norms: Tensor | None
    ) -> None:
        module = self.pretrained.module_name(layer.module)
        place = LayerPlace(layer.layer, layer.kind, layer.stack_name, module)
        self._layers.keep(place, computed, norms)
        if self.rest is not None:
            assert computed.rest is not None
            self.rest.keep(place, computed.rest, None)
        for text in range(self.num_texts):
            if self.maps:
                self.maps[text].take(layer, attention, computed, text)
            if computed.head_mean is not None and self.options.rollout:
                mean = computed.head_mean[text].double()
                if text == len(self.rolled):
                    self.rolled.append(torch.eye(len(mean), dtype=mean.dtype, device=mean.device))
                    self.rolled_masks.append([])
                self.rolled[text] = roll_out(self.rolled[text], mean)
                self.rolled_masks[text].append(layer_mask(attention, text))

    def _weighted(
        self, layer: CapturedLayer, attention: LayerOrWeights
    ) -> tuple[AttentionLayer, Float[Tensor, "text head"]]:
        """Multiply the weights by the norms of the values; also return mean_i sum_j ||p_ij v_j W_O||."""
        name = self.pretrained.name
        if isinstance(attention, GivenWeights):
            raise UserError(f"weighted: {name} exposes only its weights, not its values")
        num_heads = attention.num_heads
        in_dim = num_heads * attention.value.shape[-1]
        projection = output_projection(self.pretrained.model, layer.module, in_dim)
        if projection is None:
            raise UserError(f"weighted: no output projection was found for {layer.module} of {name}")
        self._compare_with_model(projection, layer.module, layer.attention)
        columns = head_projections(projection, num_heads)
        _, values = attention.expanded()
        norms = torch.stack([value_norms(value, columns) for value in values]).to(values.dtype)
        normed = replace(attention, key=attention.expanded()[0], value=norms.unsqueeze(-1))
        weighted = attend(normed, Wanted(output=True))
        assert weighted.output is not None
        totals = weighted.output[..., 0].double().sum(dim=-1) / weighted.seeing.sum(dim=-1, keepdim=True)
        return weighted_by_values(attention, norms), totals

    def _compare_with_model(self, projection: nn.Module, module: str, attention: LayerOrWeights) -> None:
        """Check W_O while the rest of the model runs.

        Raises UserError if the input of W_O is not the heads (they may be gated) or if a hook or an adapter
        changes the output of W_O.
        """
        heads = attend(attention, Wanted(output=True)).output
        assert heads is not None
        merged, place = merge_heads(heads), f"{module} of {self.pretrained.name}"
        matrix, bias = matrix_and_bias(projection)
        if matrix.is_meta:
            raise UserError(f"weighted: W_O of {place} is not in memory: leave out `weighted`")

        def compare(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            hook.remove()
            if not _is_near(inputs[0].reshape(merged.shape), merged):
                raise UserError(f"weighted: {place} changes the heads before W_O: leave out `weighted`")
            if not _is_near(output, nn.functional.linear(inputs[0], matrix, bias)):
                raise UserError(f"weighted: {place} changes the output of W_O: leave out `weighted`")

        hook = self.hooks.enter_context(projection.register_forward_hook(of_this_run(compare)))


def _is_near(ours: Tensor, theirs: Tensor) -> bool:
    rounding = max(ROUNDING, torch.finfo(ours.dtype).eps)
    return bool((ours - theirs).abs().max() <= rounding * theirs.abs().max())


COPY_PATTERNS = ("induction", "duplicate token")
"""Patterns that compare a token with its earlier copy. In a probe, all copies are at the same distance."""


def compare_distances(survey: Survey, ablate: Sequence[str] = ()) -> None:
    """Also survey a shorter probe if heads show a pattern of copies on this probe.

    A head that always looks back by the distance between the copies, or by one less, finds the copy or the
    token after the copy without comparing tokens; at any other distance, the head finds neither. Call this
    while the model is in use, with the heads that were removed.
    """
    readings = survey.texts.whole
    if any((reading.repeat or 0) < MIN_ROWS for reading in readings):
        return
    parts = [survey.layers] if survey.rest is None else [survey.layers, survey.rest]
    numbers = [layer for part in parts for layer in head_numbers(part)]
    if any(bool(_has_pattern(layer, name).any()) for layer in numbers for name in COPY_PATTERNS):
        full = survey.options
        options = HeadOptions(skip_sink=full.skip_sink, weighted=full.weighted, rest=full.rest)
        shorter = [shorter_probe(reading) for reading in readings]
        survey.shorter = surveyed(survey.pretrained, shorter, options, ablate=ablate).survey


def _has_pattern(numbers: HeadNumbers, name: str) -> Bool[Tensor, "text head"]:
    pattern = HEAD_PATTERNS[name]
    return numbers.values[..., numbers.names.index(pattern.statistic)] > pattern.threshold


def at_any_distance(surveyed: SurveyedLayers, shorter: SurveyedLayers | None) -> list[HeadNumbers]:
    """The statistics of every layer; copy patterns that the shorter probe lacks have its values."""
    numbers = head_numbers(surveyed)
    if shorter is None:
        return numbers
    judged = []
    for long_probe, short_probe in zip(numbers, head_numbers(shorter), strict=True):
        values = long_probe.values.clone()
        for name in COPY_PATTERNS:
            statistic = HEAD_PATTERNS[name].statistic
            at, at_short = (each.names.index(statistic) for each in (long_probe, short_probe))
            depends_on_distance = _has_pattern(long_probe, name) & ~_has_pattern(short_probe, name)
            short_values = short_probe.values[..., at_short].to(values)
            values[..., at] = values[..., at].where(~depends_on_distance, short_values)
        judged.append(long_probe._replace(values=values))
    return judged


def surveyed_texts(survey: Survey) -> list[SurveyedText]:
    """Yield the heads of each text, in the order of the layers, with their patterns."""
    shorter = survey.shorter
    numbers = at_any_distance(survey.layers, None if shorter is None else shorter.layers)
    layers = head_counts(survey.layers, numbers)
    keys = torch.cat([layer.keys for layer in numbers], dim=1).numpy(force=True)
    rests = None if survey.rest is None else [*rests_by_text(survey)]
    texts = []
    for text, by_name in enumerate(numbers_by_text(numbers)):
        rest = None if rests is None else rests[text]
        stacks = stacks_of(survey.layers, text)
        texts.append(SurveyedText.from_numbers(layers, by_name, stacks, keys[text], rest))
    return texts


def looked_at(survey: Survey, text: int, queries: Sequence[int | None]) -> Records[LookedAtKey]:
    """The key with the most weight for each head, in the order of the rows, at one query per head.

    The key is None for a head without a query, and for encoder heads if the queries are decoder tokens. Needs
    a survey with `first_keys`.
    """
    reading = survey.texts.readings[text]
    remaining = iter(queries)
    looks: list[tuple[int, str, int, str, float] | None] = []
    for place, computed, _ in survey.layers.layers:
        assert computed.top_keys is not None and computed.top_weights is not None
        query_text, key_text = stack_texts(reading, place.stack)
        for keys, weights in zip(computed.top_keys[text], computed.top_weights[text], strict=True):
            query = next(remaining)
            key = -1 if query is None or query_text is not reading.text else int(keys[query, 0])
            if query is None or key < 0:
                looks.append(None)
            else:
                tokens = query_text.tokens[query], key_text.tokens[key]
                looks.append((query, tokens[0], key, tokens[1], float(weights[query, 0])))
    return LookedAtKey.table(
        **{
            name: [None if look is None else look[number] for look in looks]
            for number, name in enumerate(LOOKED_AT)
        }
    )


def rests_by_text(survey: Survey) -> Iterator[RestOfText]:
    """The heads of each text without its first key, in the order of the layers."""
    assert survey.rest is not None
    numbers = at_any_distance(survey.rest, None if survey.shorter is None else survey.shorter.rest)
    layers = head_counts(survey.rest, numbers)
    for text, by_name in enumerate(numbers_by_text(numbers)):
        yield RestOfText.from_numbers(layers, by_name, stacks_of(survey.rest, text))


def _add_layers(totals: HeadTotals, surveyed: SurveyedLayers, num_texts: int) -> None:
    for layer, numbers in zip(surveyed.layers, head_numbers(surveyed), strict=True):
        totals.add(layer.place, numbers.names, numbers.values.cpu())
    for text in range(num_texts):
        for stack in stacks_of(surveyed, text).values():
            totals.add_rows(stack)


@dataclass(frozen=True)
class Surveyed:
    """The survey of the heads on some texts of equal length, and how the attention was captured."""

    survey: Survey
    way: Way
    linear: "SignedHeads | None" = None
    """The heads of layers without a softmax, if they were measured and the model has such layers."""

    @cached_property
    def texts(self) -> list[SurveyedText]:
        """The heads of each text."""
        return surveyed_texts(self.survey)

    def add_to(self, totals: HeadTotals) -> None:
        """Add these texts to the totals over many."""
        survey = self.survey
        totals.num_texts += survey.num_texts
        _add_layers(totals, survey.layers, survey.num_texts)
        if survey.rest is not None:
            totals.rest = HeadTotals() if totals.rest is None else totals.rest
            totals.rest.num_texts += survey.num_texts
            _add_layers(totals.rest, survey.rest, survey.num_texts)

    def text_survey(self, text: int) -> HeadSurvey:
        """The survey of the heads on one text."""
        survey = self.texts[text].survey()
        return survey if self.linear is None else replace(survey, linear=self.linear.text_table(text))

    def signed_maps(self, text: int) -> Float[npt.NDArray[np.float32], "layer head query key"] | None:
        """The matrices of heads without a softmax, or None if they were not stored.

        Also returns None if one of the layers has attention, too, since views look statistics up by layer and
        head.
        """
        attending = {layer.place.layer for layer in self.survey.layers.layers}
        if self.linear is None or attending & self.linear.maps.keys():
            return None
        return self.linear.text_maps(text)

    @property
    def rollout(self) -> list[Float[Tensor, "query key"]]:
        """The attention rollout of each text, if the options include `rollout`."""
        return self.survey.rolled

    def rollout_mask(self, text: int) -> Mask | None:
        """The mask of a text's rollout; see `joint_rollout_mask`."""
        return joint_rollout_mask(self.survey.rolled_masks[text])

    @property
    def looks(self) -> list[HeadLooks]:
        """Each head's weights from some tokens, by text, if the options include `looks`."""
        return self.survey.looks

    @property
    def norms(self) -> LastNorms | None:
        """The norms of the tokens, if the texts are on a grid."""
        return self.survey.layers.norms

    @property
    def maps(self) -> list[HeadMaps]:
        """The maps of the heads, by text, if the options include `maps`."""
        return self.survey.maps


def _signed_heads(
    options: HeadOptions, pretrained: Pretrained, readings: Sequence[Reading]
) -> "SignedHeads | None":
    """Return a collector of heads without a softmax; None if these are not measured or do not exist."""
    if not options.linear or not pretrained.unshown_layers:
        return None
    from attncli.measure.signed_heads import SignedHeads

    num_tokens = len(readings[0].text.ids)
    keeps_maps = options.maps == "self" and num_tokens <= options.whole_tokens
    return SignedHeads(pretrained, num_tokens, keeps_maps=keeps_maps)


def surveyed(
    pretrained: Pretrained,
    readings: Sequence[Reading],
    options: HeadOptions = NOTHING_MORE,
    *,
    ablate: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> Surveyed:
    """Survey the heads on some texts of equal length, with the heads in `ablate` removed.

    Raises UserError for options that the model does not support and for heads that the model lacks, and
    MemoryError if memory runs out.
    """
    if options.rollout and pretrained.has_decoder:
        raise UserError(f"rollout: needs one stack, but {pretrained.name} has an encoder and a decoder")
    with ExitStack() as hooks, heads_removed(ablate, pretrained):
        survey = Survey(options, readings, pretrained, progress, hooks)
        linear = _signed_heads(options, pretrained, readings)
        meanwhile = nullcontext if linear is None else linear.capturing
        inputs = pretrained.inputs(readings)
        way = capture(pretrained.model, inputs, survey.take, meanwhile)
    if linear is not None:
        way = replace(way, unshown=unshown_layers(pretrained.model, linear.modules))
    compare_distances(survey, ablate)
    return Surveyed(survey, way, linear)


def head_totals(
    pretrained: Pretrained,
    many: ManyTexts[TextLine],
    options: HeadOptions = NOTHING_MORE,
    *,
    ablate: Sequence[str] = (),
    looks: FirstLooks | None = None,
) -> tuple[HeadTotals, list[str]]:
    """Survey the heads over many texts. Return totals, and notes about how the attention was captured.

    The heads in `ablate` (5:11) are removed. `looks` collects the weights of the first files; weights are not
    computed for later files. Raises UserError for options that the model does not support and if no text can
    be read, and MemoryError if memory runs out.
    """
    totals = HeadTotals()
    notes: dict[str, None] = {}
    for batches in together(pretrained.model, many.batches()):
        runs = []
        for batch in batches:
            has_looks = looks is not None and looks.wants(text.line for text, _ in batch)
            batch_options = replace(options, looks=has_looks)
            readings = [reading for _, reading in batch]
            runs.append(partial(surveyed, pretrained, readings, batch_options, ablate=ablate))
        for batch, run in zip(batches, in_step(pretrained.model, runs), strict=True):
            notes |= dict.fromkeys(run.way.notes())
            run.add_to(totals)
            totals.unshown = run.way.unshown
            if run.linear is not None:
                for place, numbers in run.linear.numbers():
                    totals.linear.add(place, numbers)
            for (text, reading), text_looks in zip(batch, run.looks, strict=False):
                assert looks is not None, "only `looks` needs them"
                looks.take(text, reading, text_looks)
    totals.num_tokens = many.num_tokens
    return totals, list(notes)
