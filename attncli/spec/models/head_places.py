"""Heads by their names, LAYER:HEAD or STACK:LAYER:HEAD, and the setting that takes some out of a model."""

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from attncli.spec.fields import Group
from attncli.spec.models.pretrained import ModelSpec

PLACE = re.compile(r"(?:(encoder|decoder|cross):)?([0-9]{1,6}):([0-9]{1,6})")


class NamedHead(NamedTuple):
    """A head as it was named; its stack empty where the name has none."""

    stack: str
    layer: int
    head: int


def named_head(name: str) -> NamedHead:
    """A head by its name; ValueError for what is no head's name."""
    found = PLACE.fullmatch(name)
    if found is None:
        raise ValueError(f"must name a layer and a head, as 5:11 (got {name})")
    return NamedHead(found[1] or "", int(found[2]), int(found[3]))


def check_head(name: str) -> str:
    """The name of a head in any stack; ValueError for what is none."""
    named_head(name)
    return name


def check_head_of_model(name: str) -> str:
    """The name of a head as LAYER:HEAD, without a stack; ValueError for what is none."""
    if named_head(name).stack:
        raise ValueError(f"must name a layer and a head, as 5:11 (got {name})")
    return name


def check_heads(names: list[str]) -> list[str]:
    """The names of heads in any stack without repeats; ValueError for what is none."""
    return list(dict.fromkeys(map(check_head, names)))


def split_names(value: object) -> object:
    """A text as the list of names that it holds, between commas."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


HeadNames = Annotated[list[str], BeforeValidator(split_names), AfterValidator(check_heads)]


class AblatedSpec(ModelSpec):
    """A model some of whose heads give nothing."""

    off_keys = frozenset({"ablate"})

    ablate: Annotated[HeadNames, Group("Model")] = Field(
        [], description="take out these heads, as LAYER:HEAD: as if their columns of W_O were zero"
    )
