"""Where the tokens of what a model reads lie: in a line of text, on a grid, in seconds."""

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
    """The name of an input, and the token that each of its numbers goes into, -1 for none."""

    name: str
    tokens: Int[Tensor, "..."]


@dataclass(frozen=True, kw_only=True, eq=False)
class Origin:
    """The places of the tokens of a reading that is not a line of text; each kind of reading extends it.

    `grid` is the row and column of each token, `begins` the second at which each begins: NaN for a token that
    is no part of what was read, as a word beside it; None where tokens have no such places. `special` marks
    the tokens that the model adds ([CLS], registers). `notes` say how the file was read.
    """

    what: ClassVar[str]
    """The name of the reading, on its card and in messages."""

    notes: tuple[str, ...] = ()
    grid: Float[Tensor, "token 2"] | None = None
    begins: Float[Tensor, " token"] | None = None
    special: Bool[Tensor, " token"] | None = None

    @property
    def kind(self) -> ReadingKind:
        """The reading of the card."""
        return readings()[self.what]

    def reader(self, pretrained: "Pretrained") -> "Pretrained":
        """The model, or the part of it that reads nothing else."""
        raise NotImplementedError

    def made_of(self, part: "Pretrained", inputs: Mapping[str, Tensor]) -> MadeOf:
        """Which input of the part that reads it the tokens are made of, and the token of each number."""
        raise NotImplementedError

    def before_words(self, pretrained: "Pretrained") -> int | None:
        """The token after which a decoder writes what is in it; None for the model's start token."""
        return None

    def token_at(self, name: str, tokens: Sequence[str]) -> int | None:
        """The token at the place that a user names; None for a name of no place.

        Raises ValueError where no token lies there.
        """
        return None

    def drawn(self, axis: Axis) -> tuple[Picture, ...]:
        """The pictures that a page shows beside maps of the tokens, which are on this axis of a report."""
        return ()

    def box(self, token: int) -> Box | None:
        """The place of a token on what is drawn, as shares of it."""
        return None

    def check_lacks_heads(self, name: str, shapes: Sequence[Sequence[int]]) -> None:
        """Raise UserError where a model without some of its heads could not be compared.

        `shapes` are those of the inputs of the model, whose name is given.
        """
