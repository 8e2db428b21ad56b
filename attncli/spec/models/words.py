"""The setting that shows words where a model reads pieces of them."""

from typing import Annotated

from pydantic import Field

from attncli.spec.fields import Group
from attncli.spec.models.pretrained import ModelSpec


class WordsSpec(ModelSpec):
    """A model whose tokens may be merged into words."""

    words: Annotated[bool, Group("Model")] = Field(
        False,
        description="merge tokens into words: weights summed over a word's keys, averaged over its queries",
    )

    def unreported_keys(self) -> frozenset[str]:
        return super().unreported_keys() | (frozenset() if self.words else {"words"})
