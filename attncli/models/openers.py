"""Openers of files that are not text, one per reading; cards name them."""

from typing import NamedTuple

from attncli.errors import UserError
from attncli.feature import LoadedOnUse
from attncli.index import readings
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.prompts import Prompt


class FileInput(NamedTuple):
    """A file, and what a question gives beside it.

    `is_cross`: one layer of cross-attention is read. A model that writes is asked the `question`, in its
    `chat` template if wanted, and writes `max_new_tokens` at most; None: to the end.
    """

    file: str
    text: str | None = None
    truncate: bool = False
    is_cross: bool = False
    question: str | None = None
    chat: bool = False
    max_new_tokens: int | None = None


class Opener:
    """Opens the files of one reading, for each use that questions make of it.

    Each method raises UserError for a file, and for a model, that cannot be read so.
    """

    def read(self, pretrained: Pretrained, given: FileInput) -> Reading:
        """Read for a survey of all heads; without a text, a decoder also writes one."""
        raise NotImplementedError

    def read_to_predict(self, pretrained: Pretrained, given: FileInput) -> Reading:
        """Read for predictions of words, if there are words."""
        return self.read(pretrained, given)

    def read_for_layer(self, pretrained: Pretrained, given: FileInput) -> Reading:
        """Read for one layer."""
        raise NotImplementedError

    def read_prompt(self, pretrained: Pretrained, given: FileInput) -> Prompt:
        """Read as a prompt that a model continues."""
        raise UserError(f"model: {pretrained.name} writes of text alone")

    def reader(self, pretrained: Pretrained, text: str | None) -> Pretrained:
        """The model, or the part of it that reads many files with this text beside each."""
        return pretrained

    def telling_head(self, pretrained: Pretrained) -> tuple[int, int] | None:
        """The layer and head of cross-attention that is published as the best one; None if none is."""
        return None


OPENERS: LoadedOnUse[Opener] = LoadedOnUse({what: kind.opener for what, kind in readings().items()})
"""The opener of each reading, imported when it is looked up."""
