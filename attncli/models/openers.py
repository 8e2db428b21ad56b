"""Openers of files that are not text, one per reading; cards name them."""

from attncli.errors import UserError
from attncli.feature import LoadedOnUse
from attncli.index import readings
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.prompts import Prompt


class Opener:
    """Opens the files of one reading, for each use that questions make of it.

    `text` is what is given beside the file. Each method raises UserError for a file, and for a model, that
    cannot be read so.
    """

    def read(
        self, pretrained: Pretrained, file: str, text: str | None = None, *, truncate: bool = False
    ) -> Reading:
        """Read for a survey of all heads; without a text, a decoder also writes one."""
        raise NotImplementedError

    def read_to_predict(self, pretrained: Pretrained, file: str, text: str | None) -> Reading:
        """Read for predictions of words, if there are words."""
        return self.read(pretrained, file, text)

    def read_for_layer(
        self, pretrained: Pretrained, file: str, text: str | None, *, is_cross: bool, truncate: bool
    ) -> Reading:
        """Read for one layer of cross-attention if `is_cross`, else of self-attention."""
        raise NotImplementedError

    def read_prompt(
        self,
        pretrained: Pretrained,
        file: str,
        text: str,
        *,
        max_new_tokens: int | None,
        question: str | None,
        chat: bool,
    ) -> Prompt:
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
