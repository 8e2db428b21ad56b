"""A model's output on a picture, explained in several ways and compared with the removal of cells.

A cell is removed by filling its pixels with the mean colour of the picture.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.features.explanations.encoder_runs import EncoderRun, ReadEncoder
from attncli.features.explanations.explanations import NamedSource, check_sources
from attncli.features.explanations.picture_cells import PictureCells, picture_output
from attncli.features.explanations.token_flow import EmbeddedTokens
from attncli.models.encoders import EncoderOutput, run_encoder
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.source_removals import MOST_TOKENS, SourceRemoval, in_chunks

CONVOLUTION_AXES = 4
"""The number of axes of patches that are arranged in rows and columns: picture, channel, row, column."""


class PictureRun(EncoderRun):
    """A picture read by an encoder. Its class, or its similarity to the whole picture, is explained."""

    what = "the output on a picture"

    def __init__(self, pretrained: Pretrained, reading: PictureCells, output: EncoderOutput) -> None:
        super().__init__(pretrained, reading, output)
        self._reading = reading
        self._patches = torch.tensor(sorted(token for cell in reading.cells for token in cell.tokens))

    def reading(self) -> Reading:
        """Return the reading of the picture."""
        return self._reading

    @property
    def embeddings(self) -> nn.Module:
        """The embeddings, from the part that has them, because some classifiers return none (CLIP)."""
        parts = (part for part in self.whole.modules() if isinstance(part, PreTrainedModel))
        owner = next((part for part in parts if hasattr(part, "embeddings")), self.whole)
        embeddings: nn.Module = owner.get_input_embeddings()
        return embeddings

    def embedded(self, output: object) -> EmbeddedTokens | None:
        """Return the vectors of the patches, before [CLS] and the positions are added."""
        if not isinstance(output, Tensor) or len(output) != 1:
            return None
        shape, count = output.shape, len(self._patches)
        if output.ndim == CONVOLUTION_AXES and shape[2] * shape[3] == count:
            return EmbeddedTokens(output.flatten(2).mT, lambda vectors: vectors.mT.reshape(shape))
        return EmbeddedTokens(output, lambda vectors: vectors) if shape[1] == count else None

    def by_token(self, of_embedded: Float[Tensor, " vector"]) -> Float[Tensor, " token"]:
        """Return one number per token: that of a patch, or 0 for [CLS] and register tokens."""
        token_numbers = torch.zeros(len(self.ids), dtype=of_embedded.dtype)
        token_numbers[self._patches] = of_embedded
        return token_numbers


class PictureRemoval(SourceRemoval):
    """The output on a picture whose removed cells are filled with its mean colour."""

    def __init__(self, picture: PictureCells, output: EncoderOutput) -> None:
        self.picture, self.output = picture, output

    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        numbers: list[float] = []
        for some in in_chunks(masks.tolist(), max(1, MOST_TOKENS // len(self.picture.text.ids))):
            outputs = run_encoder(self.output.model, self.picture.with_only(some))
            numbers += self.output.measured(outputs).tolist()
        return torch.tensor(numbers, dtype=torch.float64)


class ReadPicture(ReadEncoder):
    """A model's output on a picture.

    Raises UserError in the same cases as `ReadAnswer`, and for an unknown class.
    """

    run: PictureRun

    def __init__(
        self,
        pretrained: Pretrained,
        reading: PictureCells,
        answer: str | None = None,
        *,
        heads: Sequence[str] = (),
        num_runs: int = 64,
        seed: int = 0,
    ) -> None:
        assert reading.origin is not None, "cells lie on a grid"
        part = reading.origin.reader(pretrained)
        check_sources(len(reading.cells), ": the picture has too few patches")
        self.picture = reading
        self.sources = tuple(NamedSource(cell.name, cell.text, cell.tokens) for cell in reading.cells)
        output = picture_output(part, reading, answer)
        self.removal = PictureRemoval(reading, output)
        self.begin(output, PictureRun(part, reading, output), heads, num_runs, seed)
