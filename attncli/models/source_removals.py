"""Removal of sources: scores of a model that reads only some of the sources in its text.

Sources of an answer are deleted from the prompt, which moves all later tokens; or hidden from all other
tokens (AT2: Cohen-Wang et al. 2025, 2504.13752), which keep their positions; or replaced by the mean
embedding. Sources of an encoder are deleted from its text or, around a masked word, replaced by masks, as in
its training.
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
from attncli.models.encoders import EncoderOutput, encoder_inputs, run_encoder, token_types
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_texts import SourcedReading, SourcedText, encoded_sources
from attncli.models.targets import Target

KEEP_SHARE = 0.5
"""The share of sources that a mask keeps, as in ContextCite (Cohen-Wang et al. 2024, 2409.00729)."""
MOST_TOKENS = 2**12
"""The most tokens in texts that run together."""

InChunk = TypeVar("InChunk")
BeforeEach = Callable[[Bool[Tensor, "run source"]], Iterator[None]]
"""A function that wraps masks; iterating over the result reports progress before the run of each mask."""


class SourceRemoval(ABC):
    """A score measured with only some of the sources."""

    @abstractmethod
    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        """Return the score with the sources of each mask: a log-probability, a logit or a cosine."""


class AnswerRemoval(SourceRemoval):
    """The log-probability of an answer, for one way of removing sources from its prompt."""

    def __init__(self, pretrained: Pretrained, reading: SourcedReading, replay: Replay) -> None:
        self.pretrained, self.reading, self.replay = pretrained, reading, replay

    @abstractmethod
    def log_probabilities(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, "run token"]:
        """Return the log-probabilities of the answer's tokens with the sources of each mask."""

    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        return self.log_probabilities(masks).sum(dim=1)

    def _without_tokens(self, masks: Bool[Tensor, "run source"]) -> Bool[Tensor, "run token"]:
        """Return, for each mask, the prompt's tokens that belong to removed sources."""
        gone = torch.zeros(len(masks), len(self.reading.prompt.ids), dtype=torch.bool)
        for source, places in enumerate(self.reading.places):
            gone[:, list(places)] |= ~masks[:, source : source + 1]
        return gone


class SourcesTakenOut(AnswerRemoval):
    """Deletes sources from the text of the prompt."""

    def log_probabilities(
        self, masks: Bool[Tensor, "run source"], before_each: BeforeEach | None = None
    ) -> Float[Tensor, "run token"]:
        """Run similar prompts one after another; see `AnswerRemoval`."""
        log_probabilities = torch.zeros(len(masks), len(self.replay.answer), dtype=torch.float64)
        order = sorted(range(len(masks)), key=lambda run: masks[run].tolist())
        begun = repeat(None) if before_each is None else before_each(masks[order])
        prompts = [self._prompt(self.reading.sourced.with_only(masks[run])) for run in order]
        for run, _, run_log_probabilities in zip(
            order, begun, self.replay.each_log_probabilities(prompts), strict=False
        ):
            log_probabilities[run] = run_log_probabilities
        return log_probabilities

    def _prompt(self, sourced: SourcedText) -> Int[Tensor, " token"]:
        ids, _ = encoded_sources(self.pretrained, sourced)
        if not ids:
            raise UserError("document: the prompt has no tokens apart from its sources: add a question")
        return torch.tensor(ids)


class SourcesHidden(AnswerRemoval):
    """Hides the tokens of sources from all other tokens."""

    def log_probabilities(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, "run token"]:
        order = sorted(range(len(masks)), key=lambda run: masks[run].tolist())
        log_probabilities = torch.zeros(len(masks), len(self.replay.answer), dtype=torch.float64)
        rows = self.replay.each_hiding(self._without_tokens(masks[order]))
        for run, row in zip(order, rows, strict=True):
            log_probabilities[run] = row
        return log_probabilities


class SourcesAveraged(AnswerRemoval):
    """Gives the tokens of sources the mean embedding of the vocabulary.

    Raises UserError for a model whose embeddings depend on more than the tokens.
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
                    f"model: {pretrained.name} has embeddings that depend on more than tokens: "
                    "use another model"
                )
        return torch.stack(rows)


def _changed(
    _module: nn.Module, _inputs: object, output: Tensor, *, places: Tensor, mean: Tensor, calls: list[int]
) -> Tensor:
    """Replace some of a text's embeddings, and record the call."""
    calls.append(len(places))
    return output.index_copy(1, places, mean.expand(len(output), len(places), -1))


REMOVAL_WAYS: Mapping[str, type[AnswerRemoval]] = {
    "taken_out": SourcesTakenOut,
    "hidden": SourcesHidden,
    "mean": SourcesAveraged,
}
"""The ways to remove a source of an answer."""


class EncoderRemoval(SourceRemoval):
    """An encoder's score for a text without the sources that a mask leaves out."""

    def __init__(self, pretrained: Pretrained, reading: SourcedReading, output: EncoderOutput) -> None:
        self.pretrained, self.reading, self.output = pretrained, reading, output
        self._has_types = token_types(pretrained, reading.sourced) is not None

    def measured(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        texts = [self._without(mask) for mask in masks.tolist()]
        order = sorted(range(len(texts)), key=lambda place: len(texts[place][0]))
        numbers = torch.zeros(len(texts), dtype=torch.float64)
        for count, alike in groupby(order, key=lambda place: len(texts[place][0])):
            if not count:
                raise UserError("sources: the text has no tokens apart from its sources: add a question")
            for some in in_chunks([*alike], max(1, MOST_TOKENS // count)):
                ids = torch.tensor([texts[place][0] for place in some])
                types = torch.tensor([texts[place][1] for place in some]) if self._has_types else None
                outputs = run_encoder(self.output.model, encoder_inputs(self.pretrained, ids, types))
                for place, number in zip(some, self.output.measured(outputs).tolist(), strict=True):
                    numbers[place] = number
        return numbers

    def _without(self, mask: Sequence[bool]) -> tuple[list[int], list[int]]:
        """Return the text's tokens with some of its sources, and each token's text in a pair."""
        pretrained, reading = self.pretrained, self.reading
        if self.output.kind == "word":
            ids = reading.text.ids.tolist()
            for places, stays in zip(reading.places, mask, strict=True):
                for place in places if not stays else ():
                    ids[place] = pretrained.tokenizer.mask_token_id
            return ids, []
        sourced = reading.sourced.with_only(mask)
        ids, _ = encoded_sources(pretrained, sourced)
        return ids, token_types(pretrained, sourced) or []


def in_chunks(items: Sequence[InChunk], size: int) -> Iterator[Sequence[InChunk]]:
    """Split the items into chunks of this size."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def sampled_masks(num_runs: int, num_sources: int, seed: int) -> Bool[Tensor, "run source"]:
    """Return random masks, each with half of the sources on average."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num_runs, num_sources, generator=generator) < KEEP_SHARE


def losses_by_removal(
    pretrained: Pretrained, reading: SourcedReading, answer: Target
) -> dict[str, Float[Tensor, " source"]]:
    """Return an answer's loss in log-probability without each source, in nats, for each way of removal.

    Raises UserError if that fails, and MemoryError if memory runs out.
    """
    replay = Replay(pretrained.whole, reading.prompt.ids, answer)
    whole = replay.layers()[1].sum()
    masks = ~torch.eye(len(reading.places), dtype=torch.bool)
    return {
        name: whole - way(pretrained, reading, replay).measured(masks) for name, way in REMOVAL_WAYS.items()
    }
