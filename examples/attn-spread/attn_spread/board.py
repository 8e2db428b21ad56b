"""Boards: words in rows and columns, read as text."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attncli.models.openers import FileInput, Opener
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.reading_text import tokens_of_text
from attncli.models.token_places import Origin


@dataclass(frozen=True, kw_only=True, eq=False)
class BoardTokens(Origin):
    """Positions of the tokens of a board."""

    what = "board"

    def reader(self, pretrained: Pretrained) -> Pretrained:
        return pretrained


class BoardOpener(Opener):
    """Opens a file with a board."""

    def read(self, pretrained: Pretrained, given: FileInput) -> Reading:
        board = Path(given.file).read_text(encoding="utf-8").strip()
        read = tokens_of_text(pretrained, board, "board", truncate=given.truncate, with_spans=True)
        grid = torch.full((len(read.ids), 2), torch.nan)
        for token, (first, end) in enumerate(read.spans or ()):
            *rows, row = board[:first].split("\n")
            if first < end:  # special tokens have no characters
                grid[token] = torch.tensor([float(len(rows)), float(len(row.split()))])
        origin = BoardTokens(grid=grid, special=grid[:, 0].isnan())
        return Reading(replace(read, origin=origin))


BOARDS = BoardOpener()
