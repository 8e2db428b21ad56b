"""Path patching: replace head outputs by those on another prompt, only along the direct path to one head.

Wang et al. 2022 (2211.00593); Goldowsky-Dill et al. 2023 (2304.05969).
"""

from collections.abc import Sequence

from torch import Tensor

from attncli.measure.residual_stream import Stream, StreamPart
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.projected_heads import LINEAR
from attncli.models.removal import HeadPlace, Removal, Removed
from attncli.models.removal_runs import RemovalRuns


class DirectPaths:
    """The direct paths from the heads of a prompt to one later head, the `reader`.

    Everything in between keeps its original output; only the norm before the reader is recomputed.
    """

    def __init__(self, run: RemovalRuns, stream: Stream, other: Stream, reader: HeadPlace) -> None:
        self.run, self.reader = run, reader
        block, layers = [*stream.attention][reader.call], [*stream.attention.values()]
        self.read = stream.read_by(block)
        self.parts = [StreamPart("head", captured.layer) for captured in layers]
        self.parts += [StreamPart(LINEAR, heads.captured.layer) for heads in run.linear]
        """The part that each call adds to the residual stream, without a head number."""
        self.writes, self.other_writes = (dict(text.parts_before(block)) for text in (stream, other))

    def outputs(self, swapped: Sequence[Removed]) -> Tensor:
        """Return the outputs with each of these sets of heads swapped, at one token or at all tokens."""
        streams = self.read.repeat(len(swapped), 1, 1)
        for text, heads in enumerate(swapped):
            for place in heads:
                part = self.parts[place.call]._replace(head=place.head)
                difference = self.other_writes[part]() - self.writes[part]()
                tokens = slice(None) if place.token is None else slice(place.token, place.token + 1)
                streams[text, tokens] += difference[tokens]
        head_outputs = {self.reader.call: self.run.output_on(self.reader.call, streams)}
        return self.run.without([[self.reader]] * len(swapped), Removal("swap", given=head_outputs))


def direct_paths(
    pretrained: Pretrained, readings: Sequence[Reading], runs: Sequence[RemovalRuns], reader: HeadPlace
) -> list[DirectPaths]:
    """Return the direct paths for swapping in the other prompt's heads, then for the opposite direction."""
    streams = [Stream(pretrained, reading) for reading in readings]
    return [DirectPaths(runs[i], streams[i], streams[1 - i], reader) for i in (0, 1)]
