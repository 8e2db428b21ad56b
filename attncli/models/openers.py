"""Openers for files other than text: one for each reading, named on its card."""

from typing import NamedTuple

from attncli.errors import UserError
from attncli.feature import LoadedOnUse
from attncli.index import readings
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.prompts import Prompt


class FileInput(NamedTuple):
    """A file, and the settings of a question that apply to it.

    `is_cross` is True if one layer of cross-attention is read. A model that generates gets the `question` (in
    its chat template if `chat` is True) and generates at most `max_new_tokens` tokens, or any number if
    `max_new_tokens` is None.
    """

    file: str
    text: str | None = None
    truncate: bool = False
    is_cross: bool = False
    question: str | None = None
    chat: bool = False
    max_new_tokens: int | None = None


class Opener:
    """Opens the files of one reading, with one method for each use of a file.

    Each method raises UserError for a file or a model that does not support the use.
    """

    def read(self, pretrained: Pretrained, given: FileInput) -> Reading:
        """Read a file for a survey of all heads; without a text, a decoder also generates the text."""
        raise NotImplementedError

    def read_to_predict(self, pretrained: Pretrained, given: FileInput) -> Reading:
        """Read a file for predictions of words, if the reading has words."""
        return self.read(pretrained, given)

    def read_for_layer(self, pretrained: Pretrained, given: FileInput) -> Reading:
        """Read a file for one layer."""
        raise NotImplementedError

    def read_prompt(self, pretrained: Pretrained, given: FileInput) -> Prompt:
        """Read a file as a prompt that a model continues."""
        raise UserError(f"model: {pretrained.name} generates text only from text")

    def reader(self, pretrained: Pretrained, text: str | None) -> Pretrained:
        """Return the model, or the part of the model that reads many files, each with this text."""
        return pretrained

    def telling_head(self, pretrained: Pretrained) -> tuple[int, int] | None:
        """Return the cross-attention layer and head published as the best, or None if none was published."""
        return None


OPENERS: LoadedOnUse[Opener] = LoadedOnUse({what: kind.opener for what, kind in readings().items()})
"""The opener of each reading, imported when it is first used."""
