"""Cross-validation splits of texts that keep groups of texts together."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attncli.errors import UserError

MOST_PARTS = 10
"""The largest number of parts, which are held out in turn. If there are more groups, groups share parts."""
USUAL_PARTS = 5


@dataclass(frozen=True)
class TextSplit:
    """One numbered split: the texts for choosing heads, and the texts for testing them."""

    number: int
    choosing: Bool[Tensor, " text"]
    held_out: Bool[Tensor, " text"]


def shuffled_parts(
    groups: Int[Tensor, " text"], num_groups: int, num_parts: int, generator: torch.Generator
) -> Int[Tensor, " text"]:
    """Assign each text to a part; groups are shuffled into parts with about the same number of groups."""
    order = torch.randperm(num_groups, generator=generator)
    part_by_group = torch.empty_like(order)
    part_by_group[order] = torch.arange(num_groups) * num_parts // num_groups
    return part_by_group[groups]


def held_out_splits(parts: Int[Tensor, " text"], held_out: Iterable[int]) -> list[TextSplit]:
    """Make one split per held-out part, with all other texts for choosing."""
    return [TextSplit(number, parts != part, parts == part) for number, part in enumerate(held_out)]


def dealt(
    is_positive: Bool[Tensor, " text"], num_parts: int, generator: torch.Generator
) -> Int[Tensor, " text"]:
    """Assign each text to a random part; every part has about the same number of texts of each label."""
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

    `groups` is the group of each text, within which labels may be permuted; the group equals the part unless
    groups share parts. `shared` is the name of a group that is spread over all parts because no other group
    has its label.
    """

    by_text: Int[Tensor, " text"]
    groups: Int[Tensor, " text"]
    names: tuple[str, ...]
    shared: str | None = None

    def splits(self) -> list[TextSplit]:
        """Make one split per part, in which that part is held out."""
        return held_out_splits(self.by_text, range(len(self.names)))


def group_parts(
    groups: list[str | None], is_positive: Bool[Tensor, " text"], generator: torch.Generator, *, key: str = ""
) -> NamedParts:
    """Make one part per group (more than ten groups share ten parts); texts without a group go to all parts.

    A group that has all texts of one label is spread, too. Without groups there are five parts. Raises
    UserError, which names `key`, if a part lacks one of the labels.
    """
    names, shared = _names(groups, is_positive)
    is_alone = torch.tensor([name is None or name == shared for name in groups])
    if not names:
        if min(int(is_positive.sum()), int((~is_positive).sum())) < USUAL_PARTS:
            raise UserError(f"label: needs at least {USUAL_PARTS} texts of each value")
        parts = dealt(is_positive, USUAL_PARTS, generator)
        return NamedParts(parts, parts, tuple(f"fold {number + 1}" for number in range(USUAL_PARTS)), shared)
    if len(names) < 2:
        raise UserError(f"hold_out: {key} must have at least two groups (got only {names[0]})")
    numbers = {name: number for number, name in enumerate(names)}
    num_groups, num_parts = len(names), min(len(names), MOST_PARTS)
    part_by_text = torch.zeros(len(groups), dtype=torch.int64)
    group_by_text = torch.tensor([numbers.get(str(name), 0) for name in groups])
    grouped = ~is_alone
    if num_parts == len(names):
        part_by_text[grouped] = group_by_text[grouped]
    else:
        part_by_text[grouped] = shuffled_parts(group_by_text[grouped], len(names), num_parts, generator)
    if is_alone.any():
        part_by_text[is_alone] = dealt(is_positive[is_alone], num_parts, generator)
    permutation_groups = part_by_text
    if num_parts < len(names):
        permutation_groups = group_by_text.clone()
        if is_alone.any():
            permutation_groups[is_alone] = dealt(is_positive[is_alone], len(names), generator)
        names = [f"fold {number + 1}" for number in range(num_parts)]
    for part, name in enumerate(names):
        labels = is_positive[part_by_text == part]
        if len(labels) and not bool(labels.all()) and bool(labels.any()):
            continue
        if num_parts < num_groups:
            reason = f"{num_groups} groups share {num_parts} folds, and one fold has texts of only one label"
            advice = "use fewer, larger groups with both labels, or no groups"
            raise UserError(f"hold_out: the groups of {key} cannot be held out ({reason}): {advice}")
        advice = "leave their cells empty to spread these texts over all folds"
        raise UserError(f"hold_out: {key} {name} has texts of only one label: {advice}")
    return NamedParts(part_by_text, permutation_groups, tuple(names), shared)


def _names(groups: list[str | None], is_positive: Bool[Tensor, " text"]) -> tuple[list[str], str | None]:
    """Return the groups to hold out, and the group that has all texts of one label, or None without one."""
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
