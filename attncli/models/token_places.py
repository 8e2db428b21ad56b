"""Positions of the tokens of a model's input: in a line of text, on a grid, or in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.feature import ReadingKind
from attncli.index import readings
from attncli.records.report import Axis, Box, Picture

if TYPE_CHECKING:
    from attncli.models.pretrained import Pretrained


class MadeOf(NamedTuple):
    """The name of an input, and the token to which each of its numbers belongs, or -1 for no token."""

    name: str
    tokens: Int[Tensor, "..."]


@dataclass(frozen=True, kw_only=True, eq=False)
class Origin:
    """The places of tokens in a reading that is not a line of text; each kind of reading has a subclass.

    `grid` holds the row and column of each token, and `begins` its start in seconds: NaN for tokens outside
    the input, such as accompanying words, or None if tokens have no such places. `special` marks the tokens
    that the model adds ([CLS], registers). `notes` describe how the file was read.
    """

    what: ClassVar[str]
    """The name of the reading, on its card and in messages."""

    notes: tuple[str, ...] = ()
    grid: Float[Tensor, "token 2"] | None = None
    begins: Float[Tensor, " token"] | None = None
    special: Bool[Tensor, " token"] | None = None

    @property
    def kind(self) -> ReadingKind:
        """The entry for the reading on its card."""
        return readings()[self.what]

    def reader(self, pretrained: "Pretrained") -> "Pretrained":
        """Return the model, or the part of the model that reads only this input."""
        raise NotImplementedError

    def made_of(self, part: "Pretrained", inputs: Mapping[str, Tensor]) -> MadeOf:
        """Return the input from which this part makes its tokens, and the token of each number in it."""
        raise NotImplementedError

    def before_words(self, pretrained: "Pretrained") -> int | None:
        """The token after which a decoder generates the words, or None for the model's start token."""
        return None

    def token_at(self, name: str, tokens: Sequence[str]) -> int | None:
        """Return the token at a place that the user names, or None if the name is not a place.

        Raises ValueError if there is no token at that place.
        """
        return None

    def drawn(self, axis: Axis) -> tuple[Picture, ...]:
        """Return the pictures that a page shows beside maps of the tokens on this axis of a report."""
        return ()

    def box(self, token: int) -> Box | None:
        """Return the place of a token in the picture, as fractions of the picture's size."""
        return None

    def check_lacks_heads(self, name: str, shapes: Sequence[Sequence[int]]) -> None:
        """Raise UserError if the model's runs without some of its heads could not be compared.

        `name` is the name of the model, and `shapes` are the shapes of its inputs.
        """
