"""Splits of texts into those that something is chosen on and those that test it; groups stay together."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attncli.errors import UserError

MOST_PARTS = 10
"""Groups beyond these share parts, which are held out in turn."""
USUAL_PARTS = 5


@dataclass(frozen=True)
class TextSplit:
    """The texts on which heads are chosen, and those on which they are tested; of several splits which."""

    number: int
    choosing: Bool[Tensor, " text"]
    held_out: Bool[Tensor, " text"]


def parts_of_groups(
    groups: Int[Tensor, " text"], num_groups: int, num_parts: int, generator: torch.Generator
) -> Int[Tensor, " text"]:
    """The part of each text: groups are shuffled and dealt to parts of about as many groups."""
    order = torch.randperm(num_groups, generator=generator)
    part_of = torch.empty_like(order)
    part_of[order] = torch.arange(num_groups) * num_parts // num_groups
    return part_of[groups]


def splits_of(parts: Int[Tensor, " text"], held_out: Iterable[int]) -> list[TextSplit]:
    """Each of some parts held out, all others to choose on."""
    return [TextSplit(number, parts != part, parts == part) for number, part in enumerate(held_out)]


def dealt(
    is_positive: Bool[Tensor, " text"], num_parts: int, generator: torch.Generator
) -> Int[Tensor, " text"]:
    """A part for each text at random, with about as many texts of both labels in each."""
    parts = torch.empty(len(is_positive), dtype=torch.int64)
    start = 0
    for label in (False, True):
        places = (is_positive == label).nonzero().flatten()
        shuffled = places[torch.randperm(len(places), generator=generator)]
        parts[shuffled] = (torch.arange(len(places)) + start) % num_parts
        start += len(places)
    return parts


@dataclass(frozen=True)
class NamedParts:
    """The part that each text is held out with, and the names of the parts.

    `groups` has the group of each, within which labels may be permuted: its part, unless groups share parts.
    `shared` is a group whose texts were dealt to all parts, since no other has its label.
    """

    of_text: Int[Tensor, " text"]
    groups: Int[Tensor, " text"]
    names: tuple[str, ...]
    shared: str | None = None

    def splits(self) -> list[TextSplit]:
        """Each part held out in turn."""
        return splits_of(self.of_text, range(len(self.names)))


def named_parts(
    groups: list[str | None], is_positive: Bool[Tensor, " text"], generator: torch.Generator, *, key: str = ""
) -> NamedParts:
    """Each group is a part, texts without one are dealt to all parts; many groups share ten parts.

    Where one label has texts in a single group alone, as plain texts may have, that group is dealt, too.
    Without groups there are five parts. UserError, which names `key`, for a part without one of the labels.
    """
    names, shared = _names(groups, is_positive)
    is_alone = torch.tensor([name is None or name == shared for name in groups])
    if not names:
        if min(int(is_positive.sum()), int((~is_positive).sum())) < USUAL_PARTS:
            raise UserError(f"label: needs {USUAL_PARTS} texts or more of either value")
        parts = dealt(is_positive, USUAL_PARTS, generator)
        return NamedParts(parts, parts, tuple(f"fold {number + 1}" for number in range(USUAL_PARTS)), shared)
    if len(names) < 2:
        raise UserError(f"hold_out: {key} must have two groups or more (got {names[0]} alone)")
    numbers = {name: number for number, name in enumerate(names)}
    num_groups, num_parts = len(names), min(len(names), MOST_PARTS)
    of_text = torch.zeros(len(groups), dtype=torch.int64)
    group_of = torch.tensor([numbers.get(str(name), 0) for name in groups])
    grouped = ~is_alone
    if num_parts == len(names):
        of_text[grouped] = group_of[grouped]
    else:
        of_text[grouped] = parts_of_groups(group_of[grouped], len(names), num_parts, generator)
    if is_alone.any():
        of_text[is_alone] = dealt(is_positive[is_alone], num_parts, generator)
    groups_of_text = of_text
    if num_parts < len(names):
        groups_of_text = group_of.clone()
        if is_alone.any():
            groups_of_text[is_alone] = dealt(is_positive[is_alone], len(names), generator)
        names = [f"fold {number + 1}" for number in range(num_parts)]
    for part, name in enumerate(names):
        labels = is_positive[of_text == part]
        if len(labels) and not bool(labels.all()) and bool(labels.any()):
            continue
        if num_parts < num_groups:
            dealt_to = (
                f"{num_groups} groups share {num_parts} folds, of which one has texts of one label alone"
            )
            advice = "give fewer and larger groups, of both labels, or none"
            raise UserError(f"hold_out: {key} must have groups that can be left out ({dealt_to}): {advice}")
        what = "texts without a group are shared among all: leave its cell empty"
        raise UserError(f"hold_out: {key} {name} has texts of one label alone ({what})")
    return NamedParts(of_text, groups_of_text, tuple(names), shared)


def _names(groups: list[str | None], is_positive: Bool[Tensor, " text"]) -> tuple[list[str], str | None]:
    """The groups that are held out, and one that has a label for itself alone."""
    labels: dict[str, set[bool]] = {}
    for name, label in zip(groups, is_positive.tolist(), strict=True):
        if name is not None:
            labels.setdefault(name, set()).add(label)
    names = [*labels]
    for label in (False, True):
        with_label = [name for name in names if label in labels[name]]
        is_elsewhere = any(
            name is None and value == label for name, value in zip(groups, is_positive.tolist(), strict=True)
        )
        if len(names) > 2 and len(with_label) == 1 and labels[with_label[0]] == {label} and not is_elsewhere:
            return [name for name in names if name != with_label[0]], with_label[0]
    return names, None
