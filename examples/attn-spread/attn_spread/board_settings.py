"""The setting `board`."""

from typing import Annotated

from pydantic import Field

from attncli.settings.fields import Heading
from attncli.settings.readings import FileSpec
from attncli.settings.text import TextPath


class BoardSpec(FileSpec):
    off_keys = frozenset({"board"})

    board: Annotated[TextPath | None, Heading("Input")] = Field(None, description="a file with rows of words")
