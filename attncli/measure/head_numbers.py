"""The summary of each layer in a survey, and the statistics of its heads that follow from the summary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.layer import Computed, Wanted
from attncli.measure.patterns import (
    LayerPlace,
    NumbersByName,
    head_scores,
    joined_numbers,
    one_key,
    pattern_row_counts,
)
from attncli.records.surveys import Stack, TextMean

if TYPE_CHECKING:  # code that runs models imports transformers
    from attncli.measure.looks import LastNorms


class SurveyedLayer(NamedTuple):
    """The place of a layer, its computed summary and, if measured, the norms of its values."""

    place: LayerPlace
    computed: Computed
    norms: Float[Tensor, "text head"] | None


@dataclass
class SurveyedLayers:
    """The summaries of all layers of a run, and the `Wanted` of each stack."""

    layers: list[SurveyedLayer] = field(default_factory=list)
    wanted: dict[str, Wanted] = field(default_factory=dict)
    norms: "LastNorms | None" = None

    def keep(self, place: LayerPlace, computed: Computed, norms: Tensor | None = None) -> None:
        """Store the parts of `computed` that the statistics of the heads need."""
        summary = Computed(
            computed.rows,
            computed.sums,
            visible=computed.visible,
            received_mass=computed.received_mass,
            pattern_mass=computed.pattern_mass,
            nothing_left=computed.nothing_left,
            top_keys=computed.top_keys,
            top_weights=computed.top_weights,
        )
        self.layers.append(SurveyedLayer(place, summary, norms))


class HeadNumbers(NamedTuple):
    """The statistics of the heads in a layer, and each head's key with the most weight.

    `undefined` marks heads with weights that are not finite; all their statistics are NaN.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "text head statistic"]
    keys: Int[Tensor, "text head"]
    undefined: Bool[Tensor, "text head"]


def head_numbers(survey: SurveyedLayers) -> list[HeadNumbers]:
    """Compute every statistic of every layer; layers of the same stack and shapes are computed together."""
    alike: dict[tuple[str, torch.Size], list[int]] = {}
    for number, layer in enumerate(survey.layers):
        assert layer.computed.sums is not None
        alike.setdefault((layer.place.stack, layer.computed.sums.shape), []).append(number)
    by_layer: dict[int, HeadNumbers] = {}
    for (stack, _), places in alike.items():
        computed = [survey.layers[place].computed for place in places]
        mass, keys = one_key(computed, survey.wanted[stack])
        scores = head_scores(computed, survey.wanted[stack]) | {"one_key_mass": mass}
        if survey.norms is not None:
            scores["high_norm_mass"] = _high_norm_mass(computed, survey.norms)
        norms = [norm for place in places if (norm := survey.layers[place].norms) is not None]
        numbers = ({"value_norm": torch.stack(norms)} if norms else {}) | scores
        undefined = torch.stack([_has_no_number(layer) for layer in computed])
        values = torch.stack(list(numbers.values()), dim=-1)
        for place, is_undefined, layer_values, strongest in zip(places, undefined, values, keys, strict=True):
            layer_numbers = HeadNumbers(
                tuple(numbers), layer_values, strongest, torch.zeros_like(is_undefined)
            )
            by_layer[place] = without_numbers(layer_numbers, is_undefined)
    return [by_layer[place] for place in range(len(survey.layers))]


def without_numbers(numbers: HeadNumbers, undefined: Bool[Tensor, "#text #head"]) -> HeadNumbers:
    """Return the numbers with some heads marked as undefined."""
    values = numbers.values.masked_fill(undefined.unsqueeze(-1), torch.nan)
    return HeadNumbers(
        numbers.names, values, numbers.keys.masked_fill(undefined, -1), numbers.undefined | undefined
    )


def _has_no_number(computed: Computed) -> Bool[Tensor, "text head"]:
    """True for heads in which a row of weights is not finite."""
    assert computed.sums is not None
    bad = ~computed.sums.isfinite()
    if "max_weight" in computed.rows:
        bad |= ~computed.rows["max_weight"].isfinite() & computed.seeing.unsqueeze(1)
    return bad.any(dim=-1)


def _high_norm_mass(layers: Sequence[Computed], norms: "LastNorms") -> Float[Tensor, "layer text head"]:
    """mean_i sum_j p_ij over the patches j with a high norm; NaN if norms were not measured."""
    received = torch.stack([layer.received_mass for layer in layers if layer.received_mass is not None])
    are_high = norms.are_high()
    if are_high is None:
        return torch.full_like(received[..., 0], torch.nan)
    num_rows = torch.stack([layer.seeing.sum(dim=-1) for layer in layers])
    on_high = received * are_high.to(received).unsqueeze(1)
    return on_high.sum(dim=-1) / num_rows.unsqueeze(-1)


def stacks_of(survey: SurveyedLayers, text: int) -> dict[str, Stack]:
    """For each stack, the number of rows behind each statistic on a text, the same for all layers."""
    stacks: dict[str, Stack] = {}
    for layer in survey.layers:
        name, computed = layer.place.stack, layer.computed
        wanted = survey.wanted[name]
        if name not in stacks:
            assert wanted.patterns is not None and computed.visible is not None
            counts = pattern_row_counts(computed, wanted)[text].tolist()
            num_rows = dict.fromkeys(("sink_mass", "one_key_mass"), int(computed.seeing[text].sum()))
            num_rows["normalized_entropy"] = int((computed.visible[text] > 1).sum())
            num_rows |= dict(zip(wanted.patterns.names, counts, strict=True))
            special = wanted.patterns.marks.special[text].numpy(force=True)
            visible = computed.visible[text].numpy(force=True)
            even = _even_weights(visible, special, wanted.patterns.first_key, num_rows)
            stacks[name] = Stack(name, num_rows, bool(special[0]), even)
    return stacks


def _even_weights(
    visible: Int[npt.NDArray[np.int64], " query"],
    special: Bool[npt.NDArray[np.bool_], " key"],
    first_key: int,
    num_rows: Mapping[str, int],
) -> dict[str, TextMean]:
    """The mean of each statistic over the rows if each row gave equal weights to all its `visible` keys.

    Row i of a causal model sees the i + 1 - `first_key` keys up to key i or, in a window, the last of these;
    a row that sees more keys looks ahead. In cross-attention, every row that sees any key sees the first key.
    """
    has_positions = "current_token" in num_rows
    place = np.arange(1, len(visible) + 1) - first_key if has_positions else np.ones_like(visible)
    share = np.divide(1.0, visible, out=np.zeros(len(visible)), where=visible > 0)
    looks_ahead = visible > place
    num_special = np.append(0, np.cumsum(special & (np.arange(len(special)) >= first_key)))
    ends = np.where(looks_ahead | (not has_positions), len(special), place + first_key)
    on_special = num_special[ends] - num_special[np.maximum(ends - visible, 0)]
    sums = {
        "sink_mass": share[visible >= place].sum(),
        "previous_token": share[(place > 1) & (visible > 1)].sum(),
        "next_token": share[looks_ahead].sum(),
        "current_token": share.sum(),
        "special_mass": (share * on_special).sum(),
        "one_key_mass": share[(visible >= place - 1) & ((place > 1) | looks_ahead)].sum(),
    }
    return {
        name: TextMean.of(total / num_rows[name] if num_rows[name] else None)
        for name, total in sums.items()
        if name in num_rows
    }


def head_counts(surveyed: SurveyedLayers, numbers: Sequence[HeadNumbers]) -> list[tuple[LayerPlace, int]]:
    """The place of each layer, with the number of heads in the layer."""
    return [
        (layer.place, layer_numbers.values.shape[1])
        for layer, layer_numbers in zip(surveyed.layers, numbers, strict=True)
    ]


def numbers_by_text(numbers: Sequence[HeadNumbers]) -> Iterator[NumbersByName]:
    """Yield the statistics of all heads of each text."""
    by_layer = [(layer.names, layer.values.double().numpy(force=True)) for layer in numbers]
    for text in range(len(by_layer[0][1])):
        yield joined_numbers([(names, values[text]) for names, values in by_layer])
