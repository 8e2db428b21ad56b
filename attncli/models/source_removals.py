"""Removal of sources: what is judged of a model that reads some of its sources alone.

An answer's sources are taken out of the prompt, which moves all behind them; hidden from all other tokens
(AT2: Cohen-Wang et al. 2025, 2504.13752) and keep their positions; or have the mean embedding in their place.
An encoder's are taken out of its text; around a masked word masks replace them, as in its training.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncli.errors import UserError
from attncli.models.encoders import EncoderOutput, inputs_of, run_encoder, token_types
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_texts import SourcedReading, SourcedText, encoded_sources
from attncli.models.targets import Target

KEEP_SHARE = 0.5
"""As ContextCite samples (Cohen-Wang et al. 2024, 2409.00729)."""
MOST_TOKENS = 2**12
"""In texts that run together."""

InChunk = TypeVar("InChunk")
BeforeEach = Callable[[Bool[Tensor, "run source"]], Iterator[None]]
"""Iterated over as the runs of some masks go on, in their order: once before each."""


class SourceRemoval(ABC):
    """What is judged, measured with some of the sources alone."""

    @abstractmethod
    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        """The number that is judged with the sources of each mask: a log-probability, a score or a cosine."""


class AnswerRemoval(SourceRemoval):
    """The log-probability of an answer, by one way to remove sources from its prompt."""

    def __init__(self, pretrained: Pretrained, reading: SourcedReading, replay: Replay) -> None:
        self.pretrained, self.reading, self.replay = pretrained, reading, replay

    @abstractmethod
    def log_probabilities(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, "run token"]:
        """Those of the answer's tokens with the sources of each mask."""

    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        return self.log_probabilities(masks).sum(dim=1)

    def _without_tokens(self, masks: Bool[Tensor, "run source"]) -> Bool[Tensor, "run token"]:
        """Of each set of sources that are there, the prompt's tokens that are of the others."""
        gone = torch.zeros(len(masks), len(self.reading.prompt.ids), dtype=torch.bool)
        for source, places in enumerate(self.reading.places):
            gone[:, list(places)] |= ~masks[:, source : source + 1]
        return gone


class SourcesTakenOut(AnswerRemoval):
    """Their text is taken out of the prompt."""

    def log_probabilities(
        self, masks: Bool[Tensor, "run source"], before_each: BeforeEach | None = None
    ) -> Float[Tensor, "run token"]:
        """As that of every removal; alike prompts run one after another."""
        log_probabilities = torch.zeros(len(masks), len(self.replay.answer), dtype=torch.float64)
        order = sorted(range(len(masks)), key=lambda run: masks[run].tolist())
        begun = repeat(None) if before_each is None else before_each(masks[order])
        prompts = [self._prompt(self.reading.sourced.with_only(masks[run])) for run in order]
        for run, _, given in zip(order, begun, self.replay.each_log_probabilities(prompts), strict=False):
            log_probabilities[run] = given
        return log_probabilities

    def _prompt(self, sourced: SourcedText) -> Int[Tensor, " token"]:
        ids, _ = encoded_sources(self.pretrained, sourced)
        if not ids:
            raise UserError("document: no token of the prompt is left without its sources: give a question")
        return torch.tensor(ids)


class SourcesHidden(AnswerRemoval):
    """Their tokens are hidden from all others."""

    def log_probabilities(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, "run token"]:
        order = sorted(range(len(masks)), key=lambda run: masks[run].tolist())
        log_probabilities = torch.zeros(len(masks), len(self.replay.answer), dtype=torch.float64)
        rows = self.replay.each_hiding(self._without_tokens(masks[order]))
        for run, row in zip(order, rows, strict=True):
            log_probabilities[run] = row
        return log_probabilities


class SourcesAveraged(AnswerRemoval):
    """Their tokens have the mean embedding of the vocabulary.

    UserError for a model whose embeddings are not those of the tokens alone.
    """

    @torch.no_grad()
    def log_probabilities(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, "run token"]:
        pretrained = self.pretrained
        embeddings: nn.Module = pretrained.whole.get_input_embeddings()
        vocabulary = pretrained.whole.config.get_text_config().vocab_size
        mean = embeddings(torch.arange(vocabulary, device=pretrained.device)).mean(dim=0)
        rows: list[Tensor] = []
        for gone in self._without_tokens(masks):
            places = gone.nonzero()[:, 0].to(mean.device)
            calls: list[int] = []
            hook = embeddings.register_forward_hook(partial(_changed, places=places, mean=mean, calls=calls))
            try:
                rows += self.replay.each_hiding(torch.zeros_like(gone).unsqueeze(0))
            finally:
                hook.remove()
            if len(calls) != 1:
                raise UserError(
                    f"model: {pretrained.name} has no embeddings of the tokens alone: use another"
                )
        return torch.stack(rows)


def _changed(
    _module: nn.Module, _inputs: object, output: Tensor, *, places: Tensor, mean: Tensor, calls: list[int]
) -> Tensor:
    """The embeddings of a text, some of them replaced; counts its calls."""
    calls.append(len(places))
    return output.index_copy(1, places, mean.expand(len(output), len(places), -1))


WAYS_OF_REMOVAL: Mapping[str, type[AnswerRemoval]] = {
    "taken_out": SourcesTakenOut,
    "hidden": SourcesHidden,
    "mean": SourcesAveraged,
}
"""What removing a source of an answer may mean."""


class EncoderRemoval(SourceRemoval):
    """What an encoder says of a text without the sources that a mask leaves out."""

    def __init__(self, pretrained: Pretrained, reading: SourcedReading, output: EncoderOutput) -> None:
        self.pretrained, self.reading, self.output = pretrained, reading, output
        self._has_types = token_types(pretrained, reading.sourced) is not None

    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        texts = [self._without(mask) for mask in masks.tolist()]
        order = sorted(range(len(texts)), key=lambda place: len(texts[place][0]))
        numbers = torch.zeros(len(texts), dtype=torch.float64)
        for count, alike in groupby(order, key=lambda place: len(texts[place][0])):
            if not count:
                raise UserError("sources: no token of the text is left without them: give a question")
            for some in in_chunks([*alike], max(1, MOST_TOKENS // count)):
                ids = torch.tensor([texts[place][0] for place in some])
                types = torch.tensor([texts[place][1] for place in some]) if self._has_types else None
                outputs = run_encoder(self.output.model, inputs_of(self.pretrained, ids, types))
                for place, number in zip(some, self.output.measured(outputs).tolist(), strict=True):
                    numbers[place] = number
        return numbers

    def _without(self, mask: Sequence[bool]) -> tuple[list[int], list[int]]:
        """The tokens of the text with some of its sources, and which text of a pair each is of."""
        pretrained, reading = self.pretrained, self.reading
        if self.output.kind == "word":
            ids = reading.text.ids.tolist()
            for places, is_kept in zip(reading.places, mask, strict=True):
                for place in places if not is_kept else ():
                    ids[place] = pretrained.tokenizer.mask_token_id
            return ids, []
        sourced = reading.sourced.with_only(mask)
        ids, _ = encoded_sources(pretrained, sourced)
        return ids, token_types(pretrained, sourced) or []


def in_chunks(items: Sequence[InChunk], size: int) -> Iterator[Sequence[InChunk]]:
    """So many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def sampled_masks(num_runs: int, num_sources: int, seed: int) -> Bool[Tensor, "run source"]:
    """Each source is there in half of the runs, at random."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num_runs, num_sources, generator=generator) < KEEP_SHARE


def losses_by_removal(
    pretrained: Pretrained, reading: SourcedReading, answer: Target
) -> dict[str, Float[Tensor, " source"]]:
    """What an answer loses without each source, in nats, by each way to remove it. UserError; MemoryError."""
    replay = Replay(pretrained.whole, reading.prompt.ids, answer)
    whole = replay.layers()[1].sum()
    masks = ~torch.eye(len(reading.places), dtype=torch.bool)
    return {
        name: whole - way(pretrained, reading, replay).measured(masks)
        for name, way in WAYS_OF_REMOVAL.items()
    }
