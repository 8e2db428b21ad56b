"""An encoder's output on a text, explained in several ways and compared with the removal of sources.

Sentence encoders and classifiers read the text without the removed sources. For a masked word, removed tokens
are replaced by the mask token, which such a model knows from training.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.utils.generic import ModelOutput

from attncli.core.names import NamedHead, head_range, named_head
from attncli.errors import UserError
from attncli.features.explanations.explanations import ReadAnswer, check_sources, text_sources
from attncli.features.explanations.picture_cells import PictureCells
from attncli.features.explanations.relevance import rows_read
from attncli.features.explanations.token_flow import ExplainedRun
from attncli.features.source.sources import SourceWeights, lasso_effects, source_notes, standardised_effects
from attncli.models.capture import capture
from attncli.models.encoders import EncoderOutput, encoder_inputs, output_to_explain, token_types
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.source_removals import EncoderRemoval
from attncli.models.source_texts import SourcedReading

TIED_COSINES = 1e-5
"""Cosines closer than this are tied, because two runs in float32 differ by about 1e-7."""


class EncoderRun(ExplainedRun):
    """A text read by an encoder, with the class, masked word or similarity that is explained."""

    what = "the output of an encoder"

    def __init__(
        self, pretrained: Pretrained, reading: SourcedReading | PictureCells, output: EncoderOutput
    ) -> None:
        super().__init__(pretrained, output.model, reading.text.ids, len(reading.text.ids))
        self.output, self._text = output, reading.text
        types = token_types(pretrained, reading.sourced) if isinstance(reading, SourcedReading) else None
        self._types = None if types is None else torch.tensor([types])

    def reading(self) -> Reading:
        """Return the reading of all tokens, with the segment of each token if the text is a pair."""
        if self._types is None:
            return Reading(ModelText(self._text.tokens, self.ids))
        inputs = encoder_inputs(self.pretrained, self.ids.unsqueeze(0), self._types)
        return Reading(ModelText(self._text.tokens, self.ids), inputs=inputs)

    @cached_property
    def _rows(self) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        if self.output.kind == "word":
            return torch.tensor([self.output.place]), torch.ones(1, dtype=torch.float64)
        return rows_read(self)

    @property
    def places(self) -> Int[Tensor, " row"]:
        """The place of the mask, or the places that the explained output depends on, by its gradient."""
        return self._rows[0]

    @property
    def shares(self) -> Float[Tensor, " row"]:
        """The share of each place in the length of the gradient; the shares sum to 1."""
        return self._rows[1]

    def explained(self, outputs: ModelOutput, *, keeps_lengths: bool = False) -> Float[Tensor, " new"]:
        """Return the logit of the class or word, or the cosine."""
        return self.output.logit(outputs, keeps_lengths=keeps_lengths)


class ReadEncoder(ReadAnswer):
    """An encoder's output on a text.

    Raises UserError in the same cases as `ReadAnswer`, and for an unknown class or word.
    """

    run: EncoderRun
    skips_first = False

    def __init__(
        self,
        pretrained: Pretrained,
        reading: SourcedReading,
        answer: str | None = None,
        *,
        heads: Sequence[str] = (),
        num_runs: int = 64,
        seed: int = 0,
    ) -> None:
        check_sources(len(reading.places))
        self.sources, self.texts_alike = text_sources(reading), (*source_notes(reading.sourced),)
        output = output_to_explain(pretrained, reading, answer)
        self.removal = EncoderRemoval(pretrained, reading, output)
        self.begin(output, EncoderRun(pretrained, reading, output), heads, num_runs, seed)

    def begin(
        self, output: EncoderOutput, run: EncoderRun, heads: Sequence[str], num_runs: int, seed: int
    ) -> None:
        """Set up the explanation, and measure the output with all sources."""
        self.output, self.run = output, run
        self.num_runs, self.seed = num_runs, seed
        self._losses = {}
        self.weights = _weights(run, [named_head(name) for name in heads])
        is_score = self.output.kind == "class" and not self.output.is_probability
        self.kind = "score" if is_score else self.output.kind
        self.name = "itself" if self.output.compares_itself else self.output.name or None
        self._value = float(self.removal.measured(torch.ones(1, self.num_sources, dtype=torch.bool))[0])
        self.tied = 1e-4 if self.output.is_probability else TIED_COSINES

    @property
    def value(self) -> float:
        """The log-probability of the class or word, the score, or the cosine, for the full text."""
        return self._value

    @property
    def num_explained(self) -> int:
        """One, because a single number, the logit or the cosine, is explained."""
        return 1

    @property
    def answer_text(self) -> str:
        """The class or word, or an empty string for a similarity."""
        return self.output.name

    @property
    def answer_ids(self) -> list[int]:
        """The index of the class or token; empty for a similarity."""
        return [] if self.kind == "similarity" else [self.output.index]

    def sampled_effects(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " source"]:
        """Return ContextCite's effects, in standard deviations for an output without a logit."""
        numbers = self.value - self.losses(masks)
        if self.output.is_probability:
            return lasso_effects(masks, numbers, 1)
        return standardised_effects(masks, numbers)

    def notes(self) -> tuple[str, ...]:
        """Notes on the answer and on how token vectors are pooled."""
        return self.output.notes


def _weights(run: EncoderRun, heads: Sequence[NamedHead]) -> SourceWeights:
    """Return the weight of each head on each token, from the places that are read.

    Raises UserError for a head that the model does not have.
    """
    names: list[tuple[str, int, int]] = []
    head_weights: list[Tensor] = []

    def take(layer: CapturedLayer) -> None:
        rows = layer.weights()[0][:, run.places].double().cpu()
        head_weights.append(torch.einsum("r,hrk->hk", run.shares, rows))
        names.extend((layer.stack_name, layer.layer, head) for head in range(len(rows)))

    capture(run.pretrained.model, run.inputs(), take)
    num_heads = {layer: 1 + max(head for _, at, head in names if at == layer) for _, layer, _ in names}
    for head in heads:
        if head.head >= num_heads.get(head.layer, 0):
            raise UserError(f"head: {head_range(num_heads)} (got {head.layer}:{head.head})")
    weights = torch.cat(head_weights)
    wanted = {(head.layer, head.head) for head in heads}
    chosen = [row for row, (_, layer, head) in zip(weights, names, strict=True) if (layer, head) in wanted]
    mean = weights.mean(dim=0, keepdim=True)
    return SourceWeights(names, weights, mean, torch.stack(chosen).mean(dim=0)[None] if chosen else None)
