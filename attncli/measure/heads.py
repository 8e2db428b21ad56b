"""What is measured of a model's heads while it runs, a layer at a time, and what was found about each."""

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
    head_numbers,
    heads_of_layers,
    numbers_of_texts,
    stacks_of,
)
from attncli.measure.looks import FirstLooks, HeadLooks, HeadMaps, LastNorms
from attncli.measure.masks import mask_of, mask_of_rollout
from attncli.measure.patterns import (
    HeadTotals,
    LayerPlace,
    RestOfText,
    SurveyedText,
    wanted_scores,
    without_first_key,
)
from attncli.models.architectures import (
    matrix_and_bias,
    output_projection,
    projection_of_heads,
    unshown_layers,
)
from attncli.models.capture import Way, capture, in_step, together
from attncli.models.layers import CapturedLayer, DeferredLayers
from attncli.models.pretrained import Pretrained, Reading, attention_between_words, texts_of_stack
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
    """Of which attention the statistics of heads are, and what is kept beside them.

    The first `skip_sink` keys are left out, the other weights renormalised; `words` merges tokens into words;
    `weighted` multiplies each weight by ||v W_O||. `rollout` adds attention up over the layers. `rest` names
    what a head does with the weight that is not on the first key, where it looks at that most. `maps` keeps
    what each head looks at (of self, cross or encoder attention), `full` names heads, as 24:4, whose weights
    are kept beyond `whole_tokens` tokens. The weight from the tokens `queries` to the tokens `keys`, named by
    text or position, is measured where there are keys. With `first_keys` the key with the most weight of
    every query is kept: see `looked_at`. With `looks` what each head looks at from the `queries` is kept,
    else from [CLS], else from all: see `HeadLooks`. `linear` also measures the heads of layers without a
    softmax, whose weights are those of tokens, whole.
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
    """UserError for a text, in tokens, on which this cannot be measured; `places` are what names tokens."""
    if options.queries and not options.keys and not whole.on_grid:
        raise UserError(f"{places[0]}: needs `{places[1]}`: without it every query's weights sum to 1")
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
        refuse_merged(reading, pretrained, "fewer words, or leave `words` out")


def refuse_merged(reading: Reading, pretrained: Pretrained, advice: str) -> None:
    """UserError where the weights between words of a layer do not fit into memory."""
    num_heads = getattr(pretrained.model.config.get_text_config(), "num_attention_heads", 1)
    refuse_bytes("heads", num_heads * max(reading.counts) ** 2 * BYTES_PER_MERGED_WEIGHT, advice)


def without_first_keys(attention: LayerOrWeights, count: int) -> LayerOrWeights:
    """The attention with its first keys (and a learned sink, if there is one) hidden, the rest renormalised.

    Otherwise every causal model looks like its first token, where heads park what they do not need (Xiao
    et al. 2023, 2309.17453).
    """
    if count == 0:
        return attention
    if isinstance(attention, GivenWeights):
        kept = attention.weights.clone()
        kept[..., :count] = 0
        kept = (kept / kept.sum(dim=-1, keepdim=True)).nan_to_num(0.0)
        return GivenWeights(kept, (kept > 0).any(dim=1))
    visibility = attention.visibility
    kept_keys = (torch.arange(visibility.num_keys, device=attention.key.device) >= count).unsqueeze(0)
    if visibility.key_mask is not None:
        kept_keys = kept_keys & visibility.key_mask
    rules = replace(attention.rules, sink=None)
    return replace(attention, visibility=replace(visibility, key_mask=kept_keys), rules=rules)


def weighted_by_values(layer: AttentionLayer, norms: Float[Tensor, "text head key"]) -> AttentionLayer:
    """The layer with weights p_ij ||v_j W_O||, each row normalised: ln ||v_j W_O|| joins the scores.

    A sink has no value.
    """
    logs = norms.clamp(min=torch.finfo(torch.float32).tiny).log().to(layer.query.dtype).unsqueeze(2)
    bias = logs if layer.rules.bias is None else layer.rules.bias + logs
    return replace(layer, rules=replace(layer.rules, bias=bias, sink=None))


def looks_ahead(attention: LayerOrWeights) -> bool:
    """Whether queries see keys behind them."""
    if isinstance(attention, GivenWeights):
        return bool(attention.seen.triu(1).any())
    return not attention.visibility.causal


class MarkedTexts:
    """Texts of equal counts, and what is measured of a layer on them; `whole` are in tokens, not in words."""

    def __init__(self, options: HeadOptions, whole: Sequence[Reading], pretrained: Pretrained) -> None:
        self.options = options
        self.whole = whole
        self.readings = [reading.in_words() for reading in whole]
        self.pretrained = pretrained
        self.special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids))

    def attention(self, layer: CapturedLayer) -> LayerOrWeights:
        """The attention of a layer, between words and without the first keys where that was asked for."""
        attention = attention_between_words(layer, self.whole) if self.options.words else layer.attention
        return without_first_keys(attention, self.options.skip_sink)

    def wanted(self, layer: CapturedLayer) -> Wanted:
        """What the statistics of the heads of a layer need."""
        ids = [texts_of_stack(reading, layer.stack_name)[0].ids for reading in self.readings]
        query, key = texts_of_stack(self.readings[0], layer.stack_name)
        origin = query.origin if query is key else None
        return wanted_scores(
            None if layer.kind == "cross" else torch.stack(ids),
            self._marks(layer.stack_name),
            first_key=self.options.skip_sink,
            repeat=self.whole[0].repeat,
            asked=bool(self.options.keys),
            from_some=bool(self.options.keys and self.options.queries),
            looks_ahead=layer.kind == "cross" or looks_ahead(layer.attention),
            places=None if origin is None else origin.grid,
            seconds=None if origin is None else origin.begins,
        )

    def _marks(self, stack: str) -> Marks:
        texts = [texts_of_stack(reading, stack) for reading in self.readings]
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
"""By how much what W_O takes may differ from the heads, relative to the largest entry."""


class Survey:
    """Takes the layers as the model hands them over and keeps what the statistics of their heads need."""

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
        self._found = SurveyedLayers()
        self.rest = SurveyedLayers() if options.rest else None
        self.shorter: Survey | None = None
        """That of a shorter probe, where heads of this probe may be induction heads."""
        # Norms of values are measured by hooks while the model runs.
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
            self._found.norms = LastNorms(whole, pretrained, hooks)

    @property
    def found(self) -> SurveyedLayers:
        """What was found about every layer, once the model has run."""
        if self._later is not None:
            self._later.finish()
        return self._found

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Look at one layer, now or later; its output where that is computed here."""
        return self._measure([layer]) if self._later is None else self._later.take(layer)

    def _measure(self, layers: Sequence[CapturedLayer]) -> Tensor | None:
        """The statistics of layers that are alike, and the output of a single one where it is not of other
        weights.
        """
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
            computed = [together] if len(layers) == 1 else [together.of_heads(some) for some in heads]
        for layer, attention, of_layer in zip(layers, attentions, computed, strict=True):
            self._keep(layer, attention, of_layer, norms)
            for looks in self.looks:
                looks.take(layer, attention, of_layer)
        if self.progress is not None:
            num_stacks = 3 if self.pretrained.has_decoder else 1  # encoder, decoder, across
            num_layers = num_stacks * self.pretrained.num_layers
            self.progress(min(1.0, len(self._found.layers) / num_layers))
        return computed[0].output

    def _wanted(self, layer: CapturedLayer, attention: LayerOrWeights) -> Wanted:
        """The same for all layers of a stack, and so are the patterns in it; but for the maps and the output,
        which a layer has from here where it is the model's own and nothing else has computed it before.
        """
        stack = layer.stack_name
        wanted_before = self._found.wanted
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
        self, layer: CapturedLayer, attention: LayerOrWeights, found: Computed, norms: Tensor | None
    ) -> None:
        module = self.pretrained.module_name(layer.module)
        place = LayerPlace(layer.layer, layer.kind, layer.stack_name, module)
        self._found.keep(place, found, norms)
        if self.rest is not None:
            assert found.rest is not None
            self.rest.keep(place, found.rest, None)
        for text in range(self.num_texts):
            if self.maps:
                self.maps[text].take(layer, attention, found, text)
            if found.head_mean is not None and self.options.rollout:
                mean = found.head_mean[text].double()
                if text == len(self.rolled):
                    self.rolled.append(torch.eye(len(mean), dtype=mean.dtype, device=mean.device))
                    self.rolled_masks.append([])
                self.rolled[text] = roll_out(self.rolled[text], mean)
                self.rolled_masks[text].append(mask_of(attention, text))

    def _weighted(
        self, layer: CapturedLayer, attention: LayerOrWeights
    ) -> tuple[AttentionLayer, Float[Tensor, "text head"]]:
        """The layer with its weights times the values' norms, and mean_i sum_j ||p_ij v_j W_O||."""
        name = self.pretrained.name
        if isinstance(attention, GivenWeights):
            raise UserError(f"weighted: {name} gives its weights alone, without the values")
        num_heads = attention.num_heads
        in_dim = num_heads * attention.value.shape[-1]
        projection = output_projection(self.pretrained.model, layer.module, in_dim)
        if projection is None:
            raise UserError(f"weighted: no output projection was found for {layer.module} of {name}")
        self._compare_with_model(projection, layer.module, layer.attention)
        of_heads = projection_of_heads(projection, num_heads)
        _, values = attention.expanded()
        norms = torch.stack([value_norms(value, of_heads) for value in values]).to(values.dtype)
        normed = replace(attention, key=attention.expanded()[0], value=norms.unsqueeze(-1))
        weighted = attend(normed, Wanted(output=True))
        assert weighted.output is not None
        totals = weighted.output[..., 0].double().sum(dim=-1) / weighted.seeing.sum(dim=-1, keepdim=True)
        return weighted_by_values(attention, norms), totals

    def _compare_with_model(self, projection: nn.Module, module: str, attention: LayerOrWeights) -> None:
        """UserError, as the model runs on, where W_O takes something else than the heads: gated ones, say.

        Also where it gives something else than its matrix does, by a hook or an adapter.
        """
        heads = attend(attention, Wanted(output=True)).output
        assert heads is not None
        merged, place = merge_heads(heads), f"{module} of {self.pretrained.name}"
        matrix, bias = matrix_and_bias(projection)
        if matrix.is_meta:
            raise UserError(f"weighted: W_O of {place} is not in memory: leave `weighted` out")

        def compare(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            hook.remove()
            if not _is_near(inputs[0].reshape(merged.shape), merged):
                raise UserError(f"weighted: {place} changes the heads before W_O: leave `weighted` out")
            if not _is_near(output, nn.functional.linear(inputs[0], matrix, bias)):
                raise UserError(f"weighted: {place} gives something else than its W_O: leave `weighted` out")

        hook = self.hooks.enter_context(projection.register_forward_hook(of_this_run(compare)))


def _is_near(ours: Tensor, theirs: Tensor) -> bool:
    rounding = max(ROUNDING, torch.finfo(ours.dtype).eps)
    return bool((ours - theirs).abs().max() <= rounding * theirs.abs().max())


OF_COPIES = ("induction", "duplicate token")
"""The patterns that compare a token with its earlier copy, which in a probe is always as far away."""


def compare_distances(survey: Survey, ablate: Sequence[str] = ()) -> None:
    """Survey a shorter probe, too, where heads of a probe would be named by what they do with copies.

    A head that looks back by as many tokens as the copies of the probe are apart, or by one less, finds the
    copy or the token after it without reading a token: at another distance it does not. To be called while
    the model is in use, with the heads that gave nothing meanwhile.
    """
    readings = survey.texts.whole
    if any((reading.repeat or 0) < MIN_ROWS for reading in readings):
        return
    layers = [survey.found] if survey.rest is None else [survey.found, survey.rest]
    numbers = [of_layer for each in layers for of_layer in head_numbers(each)]
    if any(bool(_has_pattern(of_layer, name).any()) for of_layer in numbers for name in OF_COPIES):
        kept = survey.options
        options = HeadOptions(skip_sink=kept.skip_sink, weighted=kept.weighted, rest=kept.rest)
        shorter = [shorter_probe(reading) for reading in readings]
        survey.shorter = surveyed(survey.pretrained, shorter, options, ablate=ablate).survey


def _has_pattern(numbers: HeadNumbers, name: str) -> Bool[Tensor, "text head"]:
    pattern = HEAD_PATTERNS[name]
    return numbers.values[..., numbers.names.index(pattern.statistic)] > pattern.threshold


def at_any_distance(surveyed: SurveyedLayers, shorter: SurveyedLayers | None) -> list[HeadNumbers]:
    """The statistics of every layer; those of copies are the shorter probe's for heads that it gives no such
    pattern.
    """
    numbers = head_numbers(surveyed)
    if shorter is None:
        return numbers
    judged = []
    for longer, other in zip(numbers, head_numbers(shorter), strict=True):
        values = longer.values.clone()
        for name in OF_COPIES:
            at, there = (each.names.index(HEAD_PATTERNS[name].statistic) for each in (longer, other))
            is_of_distance = _has_pattern(longer, name) & ~_has_pattern(other, name)
            values[..., at] = values[..., at].where(~is_of_distance, other.values[..., there].to(values))
        judged.append(longer._replace(values=values))
    return judged


def surveyed_texts(survey: Survey) -> list[SurveyedText]:
    """The heads of each text, in the order of the layers, and what they do."""
    shorter = survey.shorter
    numbers = at_any_distance(survey.found, None if shorter is None else shorter.found)
    layers = heads_of_layers(survey.found, numbers)
    keys = torch.cat([of_layer.keys for of_layer in numbers], dim=1).numpy(force=True)
    rests = None if survey.rest is None else [*rest_of_texts(survey)]
    texts = []
    for text, by_name in enumerate(numbers_of_texts(numbers)):
        rest = None if rests is None else rests[text]
        texts.append(SurveyedText.of(layers, by_name, stacks_of(survey.found, text), keys[text], rest))
    return texts


def looked_at(survey: Survey, text: int, queries: Sequence[int | None]) -> Records[LookedAtKey]:
    """The key with the most weight of each head, in the order of the rows, at the query that is asked for.

    None where no query is asked for, and in an encoder whose decoder has the queries. The survey's options
    have `first_keys`.
    """
    reading = survey.texts.readings[text]
    asked = iter(queries)
    looks: list[tuple[int, str, int, str, float] | None] = []
    for place, computed, _ in survey.found.layers:
        assert computed.top_keys is not None and computed.top_weights is not None
        of_query, of_key = texts_of_stack(reading, place.stack)
        for keys, weights in zip(computed.top_keys[text], computed.top_weights[text], strict=True):
            query = next(asked)
            key = -1 if query is None or of_query is not reading.text else int(keys[query, 0])
            if query is None or key < 0:
                looks.append(None)
            else:
                tokens = of_query.tokens[query], of_key.tokens[key]
                looks.append((query, tokens[0], key, tokens[1], float(weights[query, 0])))
    return LookedAtKey.table(
        **{
            name: [None if look is None else look[number] for look in looks]
            for number, name in enumerate(LOOKED_AT)
        }
    )


def rest_of_texts(survey: Survey) -> Iterator[RestOfText]:
    """What names the patterns of the heads of each text without its first key, in the order of the layers."""
    assert survey.rest is not None
    numbers = at_any_distance(survey.rest, None if survey.shorter is None else survey.shorter.rest)
    layers = heads_of_layers(survey.rest, numbers)
    for text, by_name in enumerate(numbers_of_texts(numbers)):
        yield RestOfText.of(layers, by_name, stacks_of(survey.rest, text))


def _add_layers(totals: HeadTotals, surveyed: SurveyedLayers, num_texts: int) -> None:
    for layer, numbers in zip(surveyed.layers, head_numbers(surveyed), strict=True):
        totals.add(layer.place, numbers.names, numbers.values.cpu())
    for text in range(num_texts):
        for stack in stacks_of(surveyed, text).values():
            totals.add_rows(stack)


@dataclass(frozen=True)
class Surveyed:
    """What was found about the heads on some texts of equal counts, and how their attention came."""

    survey: Survey
    way: Way
    linear: "SignedHeads | None" = None
    """The heads of layers without a softmax, where that was asked for and the model has such layers."""

    @cached_property
    def texts(self) -> list[SurveyedText]:
        """The heads of each text."""
        return surveyed_texts(self.survey)

    def add_to(self, totals: HeadTotals) -> None:
        """Add these texts to totals over many."""
        survey = self.survey
        totals.num_texts += survey.num_texts
        _add_layers(totals, survey.found, survey.num_texts)
        if survey.rest is not None:
            totals.rest = HeadTotals() if totals.rest is None else totals.rest
            totals.rest.num_texts += survey.num_texts
            _add_layers(totals.rest, survey.rest, survey.num_texts)

    def survey_of(self, text: int) -> HeadSurvey:
        """What was found about the heads of one of the texts, in tokens."""
        found = self.texts[text].survey()
        return found if self.linear is None else replace(found, linear=self.linear.of_text(text))

    def signed_maps(self, text: int) -> Float[npt.NDArray[np.float32], "layer head query key"] | None:
        """The matrices of heads of layers without a softmax; None where they were not kept.

        Nor where a layer has attention, too: views find the statistics of a map by its layer and head.
        """
        attending = {layer.place.layer for layer in self.survey.found.layers}
        if self.linear is None or attending & self.linear.maps.keys():
            return None
        return self.linear.maps_of(text)

    @property
    def rollout(self) -> list[Float[Tensor, "query key"]]:
        """How attention adds up over the layers, of each text, where that was asked for."""
        return self.survey.rolled

    def rollout_mask(self, text: int) -> Mask | None:
        """Which tokens that may reach; see `mask_of_rollout`."""
        return mask_of_rollout(self.survey.rolled_masks[text])

    @property
    def looks(self) -> list[HeadLooks]:
        """What each head looks at from some tokens, of each text, where that was asked for."""
        return self.survey.looks

    @property
    def norms(self) -> LastNorms | None:
        """The norms of the tokens on a grid, where texts are such."""
        return self.survey.found.norms

    @property
    def maps(self) -> list[HeadMaps]:
        """What each head looks at, of each text, where that was asked for."""
        return self.survey.maps


def _signed_heads(
    options: HeadOptions, pretrained: Pretrained, readings: Sequence[Reading]
) -> "SignedHeads | None":
    """What takes the layers without a softmax, where they are asked for and there are some."""
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
    """What each head does on some texts of equal counts; `ablate` names heads that give nothing meanwhile.

    UserError for what the model cannot do, and for a head that it does not have; MemoryError.
    """
    if options.rollout and pretrained.has_decoder:
        raise UserError(f"rollout: {pretrained.name} has an encoder and a decoder: rollout is for one stack")
    with ExitStack() as hooks, heads_removed(ablate, pretrained):
        survey = Survey(options, readings, pretrained, progress, hooks)
        linear = _signed_heads(options, pretrained, readings)
        meanwhile = nullcontext if linear is None else linear.heard
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
    """What each head does over many texts, and notes about how their attention came.

    `ablate` names heads, as 5:11, that give nothing meanwhile. `looks` takes where heads look on the first of
    many files; of the others that is not computed. UserError for what the model cannot do, and
    where no text could be read; MemoryError.
    """
    totals = HeadTotals()
    notes: dict[str, None] = {}
    for batches in together(pretrained.model, many.batches()):
        runs = []
        for batch in batches:
            has_looks = looks is not None and looks.wants(text.line for text, _ in batch)
            of_batch = replace(options, looks=has_looks)
            readings = [reading for _, reading in batch]
            runs.append(partial(surveyed, pretrained, readings, of_batch, ablate=ablate))
        for batch, run in zip(batches, in_step(pretrained.model, runs), strict=True):
            notes |= dict.fromkeys(run.way.notes())
            run.add_to(totals)
            totals.unshown = run.way.unshown
            if run.linear is not None:
                for place, numbers in run.linear.numbers():
                    totals.linear.add(place, numbers)
            for (text, reading), of_text in zip(batch, run.looks, strict=False):
                assert looks is not None, "nothing else asks for them"
                looks.take(text, reading, of_text)
    totals.num_tokens = many.num_tokens
    return totals, list(notes)
