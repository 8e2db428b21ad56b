"""What was found about a model's heads: numbers by layer, text and head, and one row per head of a text."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.experiments.survey.head_patterns import HeadRow, Stack, pattern_of
from attncli.experiments.survey.head_scores import head_scores, one_key, rows_of_patterns
from attncli.experiments.survey.layers import Survey


class SurveyedText(NamedTuple):
    """The heads of one text, the rows behind their patterns, and each head's key with the most weight."""

    rows: list[HeadRow]
    stacks: list[Stack]
    one_keys: dict[tuple[str, int, int], int]

    def key_of(self, row: HeadRow) -> int:
        """The position of the key with the most weight of a head."""
        return self.one_keys[row["stack"], row["layer"], row["head"]]


class HeadNumbers(NamedTuple):
    """The statistics of the heads of a layer, and the key with the most weight of each."""

    names: tuple[str, ...]
    values: Float[Tensor, "text head statistic"]
    keys: Int[Tensor, "text head"]


def head_numbers(survey: Survey) -> list[HeadNumbers]:
    """Every statistic of every layer; those of layers of the same stack and shapes are computed together."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, layer in enumerate(survey.layers):
        assert layer.found.sums is not None
        alike.setdefault((layer.where["stack"], layer.found.sums.shape), []).append(number)
    by_layer: dict[int, HeadNumbers] = {}
    for (stack, _), places in alike.items():
        computed = [survey.layers[place].found for place in places]
        mass, keys = one_key(computed, survey.wanted[stack])
        scores = head_scores(computed, survey.wanted[stack]) | {"one_key_mass": mass}
        norms = [norm for place in places if (norm := survey.layers[place].norms) is not None]
        numbers = ({"value_norm": torch.stack(norms)} if norms else {}) | scores
        values = torch.stack(list(numbers.values()), dim=-1)
        for place, *of_layer in zip(places, values, keys, strict=True):
            by_layer[place] = HeadNumbers(tuple(numbers), *of_layer)
    return [by_layer[place] for place in range(len(survey.layers))]


def stacks_of(survey: Survey, text: int) -> dict[str, Stack]:
    """For each stack the rows of a text that each statistic is a mean of; its layers see the same rows."""
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
    numbers = [(one.names, one.values.tolist(), one.keys.tolist()) for one in head_numbers(survey)]
    texts = []
    for text in range(survey.num_texts):
        stacks = stacks_of(survey, text)
        rows: list[HeadRow] = []
        one_keys: dict[tuple[str, int, int], int] = {}
        for (where, *_), (names, values, keys) in zip(survey.layers, numbers, strict=True):
            stack = stacks[where["stack"]]
            for head, (of_head, key) in enumerate(zip(values[text], keys[text], strict=True)):
                by_name = dict(zip(names, of_head, strict=True))
                rows.append({**where, "head": head, "pattern": pattern_of(by_name, stack), **by_name})
                one_keys[stack.name, where["layer"], head] = key
        texts.append(SurveyedText(rows, list(stacks.values()), one_keys))
    return texts
