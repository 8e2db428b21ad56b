"""The statistics of every head on many texts, as a table of features: text by (head, statistic)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from attncli.core.engines import FusedAttention, attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.row_tiles import LayerOrWeights
from attncli.errors import UserError, refuse_bytes
from attncli.features.separate.labelled_texts import PartedReading
from attncli.measure.head_numbers import head_numbers
from attncli.measure.heads import HeadOptions, Survey
from attncli.models.capture import Way, capture
from attncli.models.labelled_files import MARKED, LabelledText
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.replay import with_queries
from attncli.models.side_by_side import of_this_run
from attncli.models.text_files import ManyTexts

LOGIT_BYTES = 2**28
"""Memory for the logits of texts that run together, from which losses are computed."""
BYTES_PER_NUMBER = 24
"""The bytes per number, in float32 and in the float64 of ranks and regressions."""
EPSILON = 1e-8
"""Attention Tracker adds this number to its denominator, because a head may put no weight on any part."""
LOOKBACK, SHARE = "lookback_ratio", "instruction_share"


class HeadFeature(NamedTuple):
    """A statistic of a head."""

    stack: str
    layer: int
    head: int
    statistic: str

    @property
    def name(self) -> str:
        """The layer, head and statistic, as in 5:11 entropy."""
        return f"{self.layer}:{self.head} {self.statistic}"


@dataclass
class FeatureTable:
    """The statistics of every head on each text, in file order, and the inputs of the baselines.

    `losses` has the mean negative log-likelihood of the tokens of each text or of its answer, in nats, or is
    None if the model does not predict the next token. `lengths` and `answer_lengths` are in tokens; the
    latter is None without answers; `ids` has the tokens of each text.
    """

    features: Sequence[HeadFeature]
    numbers: Float[Tensor, "text feature"]
    texts: list[LabelledText]
    lengths: Int[Tensor, " text"]
    losses: Float[Tensor, " text"] | None
    notes: list[str] = field(default_factory=list)
    answer_lengths: Int[Tensor, " text"] | None = None
    ids: list[list[int]] = field(default_factory=list)

    def places(self, *statistics: str) -> list[int]:
        """The columns that have these statistics."""
        return [place for place, feature in enumerate(self.features) if feature.statistic in statistics]


class PartMasses:
    """The weight that an answer's rows, or the last row, put on the parts of texts that run together.

    The weight is the mean over the rows of sum_j p_ij over the keys j of a part. instruction_share is the
    instruction's share of the weight on the instruction, document and text together (Attention Tracker, Hung
    et al. 2024, 2411.00348). lookback_ratio is the mean over the rows of m / (m + n), where m is the mean
    weight on the keys of the context and n the mean weight on the keys after it (Lookback Lens, Chuang et al.
    2024, 2407.07071); the ratio is 1 if no keys follow the context. For a bidirectional model, the rows of
    all tokens count.
    """

    def __init__(self, readings: Sequence[PartedReading], *, is_causal: bool) -> None:
        self.readings, self.is_causal = readings, is_causal
        num_tokens = len(readings[0].text.ids)
        self.start = min(reading.rows.start for reading in readings) if is_causal else 0
        self.stop = max(reading.rows.stop for reading in readings) if is_causal else num_tokens
        places = torch.arange(self.start, self.stop)
        self.rows = torch.stack(
            [
                ((places >= reading.rows.start) & (places < reading.rows.stop)) | (not is_causal)
                for reading in readings
            ]
        ).float()
        self.names = list(readings[0].places)
        self.has_answer = readings[0].num_answer > 0
        self.masks = torch.stack(
            [torch.stack([each.mask(name, num_tokens) for name in self.names]) for each in readings]
        )

    def statistics(self) -> list[str]:
        """The names of the statistics."""
        names = [f"{name}_mass" for name in self.names if name != "text" or self.has_answer]
        return [
            *names,
            *([SHARE] if "instruction" in self.names else []),
            *([LOOKBACK] if self.has_answer else []),
        ]

    def layer_masses(self, layer: CapturedLayer) -> Float[Tensor, "text head statistic"]:
        """The statistics of a layer's heads."""
        weights = self._row_weights(layer)
        counts = self.rows.sum(dim=1).to(weights)
        rows = self.rows.to(weights)
        masks = self.masks[..., : weights.shape[-1]].to(weights)
        on_parts = torch.einsum("thqk,tpk,tq->thp", weights, masks, rows) / counts.view(-1, 1, 1)
        by_name = dict(zip(self.names, on_parts.unbind(dim=-1), strict=True))
        numbers = [by_name[name] for name in self.names if name != "text" or self.has_answer]
        if "instruction" in by_name:
            read = sum(by_name[name] for name in by_name if name != MARKED)
            numbers.append(by_name["instruction"] / (read + EPSILON))
        if self.has_answer:
            numbers.append(self._lookback(weights, rows) / counts.unsqueeze(1))
        return torch.stack(numbers, dim=-1)

    def _row_weights(self, layer: CapturedLayer) -> Float[Tensor, "text head query key"]:
        """The weights of the measured rows; a causal layer is first cut down to these rows."""
        attention = layer.attention
        if self.is_causal and isinstance(attention, AttentionLayer) and attention.visibility.causal:
            return _weights(with_queries(layer, self.start, self.stop).attention)
        return _weights(attention)[:, :, self.start : self.stop]

    def _lookback(
        self, weights: Float[Tensor, "text head query key"], rows: Float[Tensor, "text query"]
    ) -> Float[Tensor, "text head"]:
        """The sum of the lookback ratios over each text's rows."""
        ends = [reading.context_end for reading in self.readings]
        return torch.stack(
            [
                lookback_ratios(text_weights, end, self.start if self.is_causal else None) @ row_mask
                for text_weights, end, row_mask in zip(weights, ends, rows, strict=True)
            ]
        )


def lookback_ratios(
    weights: Float[Tensor, "head query key"], context_end: int, first_query: int | None
) -> Float[Tensor, "head query"]:
    """The lookback ratio of each row, m / (m + n): see `PartMasses`. Query i is at position first_query + i.

    Without `first_query`, every row sees all keys, as in an encoder.
    """
    num_queries, num_keys = weights.shape[1:]
    num_new = torch.full((num_queries,), num_keys - context_end, device=weights.device)
    if first_query is not None:
        num_new = torch.arange(num_queries, device=weights.device) + first_query + 1 - context_end
    on_context = weights[..., :context_end].sum(dim=-1) / context_end
    on_new = weights[..., context_end:].sum(dim=-1) / num_new.clamp(min=1)
    return on_context / (on_context + on_new)


def _weights(attention: LayerOrWeights) -> Float[Tensor, "text head query key"]:
    if not isinstance(attention, AttentionLayer):
        return attention.weights.float()
    weights = attend(attention, Wanted(weights=True)).weights
    assert weights is not None
    return weights.float()


class FeatureRun:
    """Runs a model over texts of equal length, and measures the features of its heads.

    `layers` has the needed layers, by stack and number (all by default); the model stops after the last of
    these layers.
    """

    def __init__(
        self, pretrained: Pretrained, *, layers: Collection[tuple[str, int]] = (), with_loss: bool = False
    ) -> None:
        self.pretrained, self.layers = pretrained, frozenset(layers)
        self.model = pretrained.whole if with_loss else pretrained.model
        self.with_loss = with_loss
        self.notes: dict[str, None] = {}
        self.unshown = ""

    def in_parts(self, readings: Sequence[Reading]) -> Iterator["TextNumbers"]:
        """Run the texts in batches; if losses are computed, the logits of a batch fit in memory."""
        step = len(readings)
        if self.with_loss:
            vocabulary = self.model.config.get_text_config().vocab_size
            step = max(1, LOGIT_BYTES // (4 * vocabulary * len(readings[0].text.ids)))
        for start in range(0, len(readings), step):
            yield self.go(readings[start : start + step])

    def go(self, readings: Sequence[Reading]) -> "TextNumbers":
        """The features of texts and, if `with_loss` is set, the losses of these texts."""
        parted = [reading for reading in readings if isinstance(reading, PartedReading)]
        has_survey = not parted or not parted[0].num_answer
        losses: list[Tensor] = []
        part_masses: list[tuple[CapturedLayer, Tensor]] = []
        left, fused = {*self.layers}, FusedAttention()
        with ExitStack() as hooks:
            survey = Survey(HeadOptions(), readings, self.pretrained, None, hooks) if has_survey else None
            masses: PartMasses | None = None

            def take(layer: CapturedLayer) -> Tensor | None:
                nonlocal masses
                place = layer.stack_name, layer.layer
                if self.layers and not left:
                    raise StopCapture
                if self.layers and place not in left:
                    return _output(layer, fused)
                left.discard(place)
                if parted:
                    masses = masses or PartMasses(parted, is_causal=self._is_causal(layer))
                    part_masses.append((layer, masses.layer_masses(layer)))
                return _output(layer, fused) if survey is None else survey.take(layer)

            way = self._captured(readings, take, losses)
        self.notes |= dict.fromkeys(way.notes())
        self.unshown = way.unshown
        return self._numbers(survey, masses, part_masses, losses)

    def _is_causal(self, layer: CapturedLayer) -> bool:
        attention = layer.attention
        is_causal = isinstance(attention, AttentionLayer) and attention.visibility.causal
        return is_causal or self.pretrained.predicts == "next"

    def _captured(
        self,
        readings: Sequence[Reading],
        take: Callable[[CapturedLayer], Tensor | None],
        losses: list[Tensor],
    ) -> Way:
        inputs = self.pretrained.inputs(readings)
        if not self.with_loss:
            return capture(self.model, inputs, take)
        num_scored = [getattr(reading, "num_answer", 0) or len(reading.text.ids) - 1 for reading in readings]

        @contextmanager
        def with_losses() -> Iterator[None]:
            def keep(_module: nn.Module, _inputs: object, output: ModelOutput) -> None:
                losses.append(_losses(output["logits"], inputs["input_ids"], num_scored))

            with self.model.register_forward_hook(of_this_run(keep)):
                yield

        return capture(self.model, inputs, take, with_losses)

    def _numbers(
        self,
        survey: Survey | None,
        masses: PartMasses | None,
        part_masses: Sequence[tuple[CapturedLayer, Tensor]],
        losses: Sequence[Tensor],
    ) -> "TextNumbers":
        shapes: list[tuple[str, int, int, tuple[str, ...]]] = []
        numbers: list[Tensor] = []
        if survey is not None:
            layers = zip(survey.layers.layers, head_numbers(survey.layers), strict=True)
            for layer, layer_numbers in layers:
                place, num_heads = layer.place, layer_numbers.values.shape[1]
                shapes.append((place.stack, place.layer, num_heads, layer_numbers.names))
                numbers.append(layer_numbers.values.flatten(1).float().cpu())
        if masses is not None:
            for layer_taken, values in part_masses:
                statistics = tuple(masses.statistics())
                shapes.append((layer_taken.stack_name, layer_taken.layer, values.shape[1], statistics))
                numbers.append(values.flatten(1).float().cpu())
        loss = losses[-1].double().cpu() if losses else None
        table = torch.cat(numbers, dim=1) if numbers else torch.empty(0, 0)  # the model has no such layer
        return TextNumbers(_layer_features(tuple(shapes)), table, loss)


def _losses(
    logits: Float[Tensor, "text token word"], ids: Int[Tensor, "text token"], num_scored: Sequence[int]
) -> Float[Tensor, " text"]:
    """The mean negative log-likelihood of each text's last `num_scored` tokens; NaN for a single token."""
    return torch.stack(
        [
            nn.functional.cross_entropy(text_logits[-1 - count : -1].float(), targets[len(targets) - count :])
            for text_logits, targets, count in zip(logits, ids, num_scored, strict=True)
        ]
    )


def _output(layer: CapturedLayer, fused: FusedAttention) -> Tensor | None:
    attention = layer.attention
    return fused.output(attention) if isinstance(attention, AttentionLayer) else None


class TextNumbers(NamedTuple):
    """The features of texts that ran together, and their mean losses."""

    features: tuple[HeadFeature, ...]
    numbers: Float[Tensor, "text feature"]
    losses: Float[Tensor, " text"] | None


@lru_cache(maxsize=32)
def _layer_features(layers: tuple[tuple[str, int, int, tuple[str, ...]], ...]) -> tuple[HeadFeature, ...]:
    """The features of layers, given each layer's stack, number, head count and statistics."""
    return tuple(
        HeadFeature(stack, layer, head, name)
        for stack, layer, num_heads, names in layers
        for head in range(num_heads)
        for name in names
    )


def feature_table(
    pretrained: Pretrained, many: ManyTexts[LabelledText], *, with_loss: bool = False
) -> FeatureTable:
    """Measure every head on each text with a survey's statistics and those of marked parts or of an answer.

    Raises UserError for texts that cannot be read or do not fit, and MemoryError if memory runs out.
    """
    run = FeatureRun(pretrained, with_loss=with_loss and pretrained.predicts == "next")
    texts: list[LabelledText] = []
    ids: list[list[int]] = []
    answer_lengths: list[int] = []
    numbers: list[Tensor] = []
    losses: list[Tensor] = []
    features: tuple[HeadFeature, ...] = ()
    for batch in many.batches():
        texts += [text for text, _ in batch]
        ids += [reading.text.ids.tolist() for _, reading in batch]
        answer_lengths += [getattr(reading, "num_answer", 0) for _, reading in batch]
        for part in run.in_parts([reading for _, reading in batch]):
            if features and part.features != features:
                raise UserError(
                    "texts: must all have the same parts, so that every text has the same statistics"
                )
            features = part.features
            numbers.append(part.numbers)
            refuse_bytes("texts", len(texts) * len(features) * BYTES_PER_NUMBER, "fewer texts")
            losses += [] if part.losses is None else [part.losses]
    order = sorted(range(len(texts)), key=lambda place: texts[place].line.line)
    return FeatureTable(
        features,
        torch.cat(numbers)[order],
        [texts[place] for place in order],
        torch.tensor([len(ids[place]) for place in order]),
        without_gaps(torch.cat(losses)[order]) if losses else None,
        [*many.notes(), *run.notes],
        torch.tensor(answer_lengths)[order] if any(answer_lengths) else None,
        [ids[place] for place in order],
    )


def without_gaps(losses: Float[Tensor, " text"]) -> Float[Tensor, " text"] | None:
    """Replace missing losses of single-token texts with the median; return None if no text has a loss."""
    return None if losses.isnan().all() else losses.where(~losses.isnan(), losses.nanmedian())


class UsableFeatures(NamedTuple):
    """The columns of the usable features, and their numbers without gaps."""

    places: list[int]
    numbers: Float[Tensor, "text feature"]


def usable_features(numbers: Float[Tensor, "text feature"]) -> UsableFeatures:
    """The features that vary and that most texts have; missing numbers are replaced with the median."""
    lacking = numbers.isnan() | numbers.isinf()
    medians = numbers.masked_fill(lacking, torch.nan).nanmedian(dim=0).values
    filled = torch.where(lacking, medians, numbers)
    is_usable: Bool[Tensor, " feature"] = lacking.float().mean(dim=0) < 0.5
    is_usable &= filled.amax(dim=0) > filled.amin(dim=0)
    return UsableFeatures(is_usable.nonzero().flatten().tolist(), filled[:, is_usable])
