"""The field types that several experiments share, and the settings that all of them have."""

from collections.abc import Iterator
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

MAX_SIZE = 10**9
"""What any size or count may be: sums and products of some of them still fit into 64 bits."""

Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]

SCALES = ("sqrt", "fourth-root", "none")
MAX_SCALE = 1e38
"""float32 ends at 3.4e38."""


def _scale(value: Any) -> Any:
    if value in SCALES:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be one of {', '.join(SCALES)} or a number (got {value})") from None
    if not isfinite(number):
        raise ValueError(f"must be a finite number (got {value})")
    if abs(number) > MAX_SCALE:
        raise ValueError(f"must be between {-MAX_SCALE:g} and {MAX_SCALE:g} (got {value})")
    return number


Scale = Annotated[
    Literal["sqrt", "fourth-root", "none"] | float,
    BeforeValidator(_scale),
    WithJsonSchema(
        {"anyOf": [{"enum": list(SCALES)}, {"type": "number", "minimum": -MAX_SCALE, "maximum": MAX_SCALE}]}
    ),
]


class Contradiction(NamedTuple):
    """Settings that are fine alone and make no sense together."""

    key: str
    message: str
    keys: frozenset[str]


def contradiction(key: str, message: str, *others: str) -> Contradiction:
    """A contradiction that is told at `key` and involves the other keys, too."""
    return Contradiction(key, message, frozenset((key, *others)))


class Spec(BaseModel):
    """What the user asked of one experiment: validated, frozen, every default filled in; knows no torch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    experiment: ClassVar[str]

    seed: int = Field(0, ge=0, lt=2**63, description="the generator's seed")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where it is computed")

    def contradictions(self) -> Iterator[Contradiction]:
        """Every impossible combination of settings that are each valid."""
        yield from ()

    def idle_keys(self) -> frozenset[str]:
        """The settings that have no say under the others: neither shown nor to be given."""
        return frozenset()

    def unsaid_keys(self) -> frozenset[str]:
        """The settings that a report leaves out: the idle ones, and variants that are off."""
        return self.idle_keys()

    def given(self, *keys: str) -> list[str]:
        """Those of the keys that the user set to something else than their defaults, in this order."""
        return [
            key for key in keys if key in self.model_fields_set and getattr(self, key) != self._default(key)
        ]

    def _default(self, key: str) -> Any:
        field = type(self).model_fields[key]
        return field.get_default(call_default_factory=True, validated_data=self.__dict__)
