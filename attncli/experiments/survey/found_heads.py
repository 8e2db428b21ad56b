"""What was found of a model's heads: numbers by layer, text and head, and a row for each head of a text."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.experiments.survey.head_patterns import Stack, pattern_of
from attncli.experiments.survey.head_scores import head_scores, one_key, rows_of_patterns
from attncli.experiments.survey.layers import Survey

HeadRow = dict[str, Any]
"""Where a head stands, and its statistics by name."""


class SurveyedText(NamedTuple):
    """The heads of one text, what their patterns stand on, and the key that gets most of each head."""

    rows: list[HeadRow]
    stacks: list[Stack]
    one_keys: dict[tuple[str, int, int], int]

    def key_of(self, row: Mapping[str, Any]) -> int:
        """The position of the key that gets most of a head."""
        return self.one_keys[row["stack"], row["layer"], row["head"]]


class HeadNumbers(NamedTuple):
    """The statistics of the heads of some layers, and the key that gets most of each head.

    `places` are those of the layers in `Survey.layers`: of one stack, and of equal shapes.
    """

    places: list[int]
    names: tuple[str, ...]
    values: Float[Tensor, "layer text head statistic"]
    keys: Int[Tensor, "layer text head"]


def head_numbers(survey: Survey) -> Iterator[HeadNumbers]:
    """Every statistic of every layer; those of layers of the same stack and shapes are computed together."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, layer in enumerate(survey.layers):
        assert layer.found.sums is not None
        alike.setdefault((layer.where["stack"], layer.found.sums.shape), []).append(number)
    for (stack, _), places in alike.items():
        computed = [survey.layers[place].found for place in places]
        mass, keys = one_key(computed, survey.wanted[stack])
        scores = head_scores(computed, survey.wanted[stack]) | {"one_key_mass": mass}
        norms = [norm for place in places if (norm := survey.layers[place].norms) is not None]
        first = {"value_norm": torch.stack(norms)} if norms else {}
        numbers = first | scores
        yield HeadNumbers(places, tuple(numbers), torch.stack(list(numbers.values()), dim=-1), keys)


def stacks_of(survey: Survey, text: int) -> dict[str, Stack]:
    """On how many rows of a text each statistic stands, for each stack; its layers see the same rows."""
    stacks: dict[str, Stack] = {}
    for layer in survey.layers:
        name, wanted = layer.where["stack"], survey.wanted[layer.where["stack"]]
        if name not in stacks:
            assert wanted.patterns is not None and layer.found.visible is not None
            counts = rows_of_patterns(layer.found, wanted)[text].tolist()
            num_rows = dict.fromkeys(("sink_mass", "one_key_mass"), int(layer.found.seeing[text].sum()))
            num_rows["normalized_entropy"] = int((layer.found.visible[text] > 1).sum())
            num_rows |= dict(zip(wanted.patterns.names, counts, strict=True))
            stacks[name] = Stack(name, num_rows, bool(wanted.patterns.marks.special[text, 0]))
    return stacks


def found_texts(survey: Survey) -> list[SurveyedText]:
    """What was found on each text: a row for each head, in the order of the layers, and what they do."""
    names: dict[int, tuple[str, ...]] = {}
    values: dict[int, list[Any]] = {}
    keys: dict[int, list[Any]] = {}
    for numbers in head_numbers(survey):
        for place, of_layer, of_keys in zip(numbers.places, numbers.values, numbers.keys, strict=True):
            names[place], values[place], keys[place] = numbers.names, of_layer.tolist(), of_keys.tolist()
    texts = []
    for text in range(len(survey.ids)):
        stacks = stacks_of(survey, text)
        rows: list[HeadRow] = []
        one_keys: dict[tuple[str, int, int], int] = {}
        for place, layer in enumerate(survey.layers):
            stack = stacks[layer.where["stack"]]
            for head, of_head in enumerate(values[place][text]):
                by_name = dict(zip(names[place], of_head, strict=True))
                rows.append({**layer.where, "head": head, "pattern": pattern_of(by_name, stack), **by_name})
                one_keys[stack.name, layer.where["layer"], head] = keys[place][text][head]
        texts.append(SurveyedText(rows, list(stacks.values()), one_keys))
    return texts
