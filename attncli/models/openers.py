"""How files of something other than text are opened for questions; cards name the opener of each reading."""

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
        """For a survey of all heads: with a decoder also what it writes, where no text is given."""
        raise NotImplementedError

    def read_to_predict(self, pretrained: Pretrained, file: str, text: str | None) -> Reading:
        """For predictions of words, where there are some."""
        return self.read(pretrained, file, text)

    def read_for_layer(
        self, pretrained: Pretrained, file: str, text: str | None, *, is_cross: bool, truncate: bool
    ) -> Reading:
        """For one layer: of self-attention, else of cross-attention."""
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
        """For a model to write after it."""
        raise UserError(f"model: {pretrained.name} writes of text alone")

    def reader(self, pretrained: Pretrained, text: str | None) -> Pretrained:
        """The model, or the part of it that reads many files with this text beside each."""
        return pretrained

    def telling_head(self, pretrained: Pretrained) -> tuple[int, int] | None:
        """The layer and head of cross-attention that tells most by what is known of a model."""
        return None


OPENERS: LoadedOnUse[Opener] = LoadedOnUse({what: kind.opener for what, kind in readings().items()})
"""That of each reading, imported when it is looked up."""


def opener_named_by(setting: str) -> Opener:
    """That of the reading whose files a setting names. Raises UserError where no feature has it."""
    what = next((what for what, kind in readings().items() if kind.setting == setting), None)
    if what is None:
        raise UserError(f"{setting}: no feature that is on reads such files")
    return OPENERS[what]
