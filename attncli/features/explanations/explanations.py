"""Attribute an answer to its sources in several ways, and compare them with the loss without each source."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.names import named_head
from attncli.core.summaries import rank_correlation
from attncli.errors import UserError
from attncli.features.explanations.relevance import Gradients, attnlrp, directions, gradients
from attncli.features.explanations.results import (
    TIED_NATS,
    Explained,
    ExplainedOutput,
    ExplainedSource,
    Explanations,
    WayOfReading,
    first_ranked,
    tied_ranks,
)
from attncli.features.explanations.token_flow import (
    AnswerRun,
    ExplainedRun,
    alti,
    direct_contributions,
    rollout,
    value_norms,
)
from attncli.features.source.sources import (
    SourceWeights,
    lasso_effects,
    source_notes,
    source_weights,
)
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_removals import SourceRemoval, SourcesTakenOut, sampled_masks
from attncli.models.source_texts import SourcedReading
from attncli.models.targets import Target

LEAST_SOURCES = 3
"""The smallest number of sources for which an order is meaningful."""


CUT_FINER = ": use --split word or sentence for smaller sources"


def check_sources(count: int, instead: str = CUT_FINER) -> None:
    """Raise UserError if there are fewer sources than a ranking needs."""
    if count < LEAST_SOURCES:
        needs = f"a ranking needs at least {LEAST_SOURCES} sources (got {count})"
        raise UserError(f"sources: {needs}{instead}")


class NamedSource(NamedTuple):
    """A source with its name, text and tokens."""

    name: str
    text: str | None
    places: tuple[int, ...]


class ReadAnswer:
    """A decoder's answer to be explained, with the results that several ways share.

    The first token of the prompt, which is often an attention sink, belongs to no source. `kind` is the kind
    of the explained output; losses that differ by less than `tied` share a rank. Raises UserError for a model
    of another kind, fewer than three sources, or unknown heads.
    """

    run: ExplainedRun
    weights: SourceWeights
    removal: SourceRemoval
    sources: tuple[NamedSource, ...]
    kind: Explained = "answer"
    skips_first = True
    tied = TIED_NATS
    name: str | None = None
    """The class or word that an encoder predicts."""
    head_weights: Float[Tensor, " head"] | None = None
    """The head weights that were learned from answers, or None."""
    texts_alike: tuple[str, ...] = ()
    """Notes on sources with the same text."""

    def __init__(
        self,
        pretrained: Pretrained,
        reading: SourcedReading,
        answer: Target,
        *,
        heads: Sequence[str] = (),
        head_weights: Mapping[str, float] | None = None,
        num_runs: int = 64,
        seed: int = 0,
    ) -> None:
        ids = torch.tensor(answer.ids)
        self.run = AnswerRun(pretrained, reading.prompt.ids, ids)
        check_sources(len(reading.places))
        self.sources, self.texts_alike = text_sources(reading), (*source_notes(reading.sourced),)
        self.reading, self.num_runs, self.seed = reading, num_runs, seed
        self.replay = Replay(pretrained.whole, reading.prompt.ids, answer)
        layers, self.expected = self.replay.layers()
        each = replace(reading, places=tuple((place,) for place in range(len(reading.prompt.ids))))
        self.weights = source_weights(layers, each, len(ids), list(map(named_head, heads)), with_first=True)
        """The weights on each token of the prompt."""
        self.head_weights = None if head_weights is None else self._weights_by_name(head_weights)
        self._answer = answer
        self.removal = SourcesTakenOut(pretrained, reading, self.replay)
        self._losses: dict[tuple[bool, ...], float] = {}

    def _weights_by_name(self, weights_by_name: Mapping[str, float]) -> Float[Tensor, " head"]:
        """Return the weights by head, given a mapping from names such as 18:6.

        Raises UserError for a head that the model does not have.
        """
        head_places = {(layer, head): place for place, (_, layer, head) in enumerate(self.weights.heads)}
        weights = torch.zeros(len(head_places), dtype=torch.float64)
        for name, weight in weights_by_name.items():
            head = named_head(name)
            if (head.layer, head.head) not in head_places:
                raise UserError(f"head_weights: {self.run.pretrained.name} has no head {name}")
            weights[head_places[head.layer, head.head]] = weight
        return weights

    @property
    def num_sources(self) -> int:
        """The number of sources."""
        return len(self.sources)

    @property
    def value(self) -> float:
        """The log-probability, score or cosine that is explained."""
        return float(self.expected.sum())

    @property
    def num_explained(self) -> int:
        """The number of tokens in the answer."""
        return len(self._answer.ids)

    @property
    def answer_text(self) -> str:
        """The text of the answer."""
        return self.run.pretrained.text_of(self._answer.ids)

    @property
    def answer_ids(self) -> list[int]:
        """The token ids of the answer."""
        return self._answer.ids

    def notes(self) -> tuple[str, ...]:
        """Notes about the answer."""
        return ()

    @cached_property
    def gradients(self) -> Gradients:
        """The gradients, which take one backward pass."""
        return gradients(self.run)

    def by_source(self, of_tokens: Float[Tensor, "*head token"]) -> Float[Tensor, "*head source"]:
        """Return the sum over the tokens of each source."""
        sources = [
            [place for place in source.places if place or not self.skips_first] for source in self.sources
        ]
        return torch.stack([of_tokens[..., places].sum(dim=-1) for places in sources], dim=-1)

    @property
    def attention(self) -> Float[Tensor, "head source"]:
        """The weight of each head on each source, averaged over the queries that chose the answer's
        tokens.
        """
        return self.by_source(self.weights.by_head)

    def losses(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        """Return the losses of log-probability with only the sources of each mask. No mask is run twice."""
        keys = [tuple(mask) for mask in masks.tolist()]
        new = [key for key in dict.fromkeys(keys) if key not in self._losses and not all(key)]
        self._losses[(True,) * self.num_sources] = 0.0
        if new:
            lost = self.value - self.removal.measured(torch.tensor(new))
            self._losses |= dict(zip(new, lost.tolist(), strict=True))
        return torch.tensor([self._losses[key] for key in keys], dtype=torch.float64)

    def sampled_effects(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " source"]:
        """Return the effect of each source that ContextCite fits to these sets of sources."""
        log_probabilities = self.expected.sum() - self.losses(masks)
        return lasso_effects(masks, log_probabilities, self.num_explained)

    @cached_property
    def lost(self) -> Float[Tensor, " source"]:
        """The loss without each source."""
        return self.losses(self.without_each)

    def orders(self, number: int) -> dict[str, Float[Tensor, " source"]]:
        """Orders that ignore the model, largest first. The prompt's number seeds the random order."""
        places = torch.arange(self.num_sources).double()
        return {
            "last": places,
            "first": -places,
            "longest": torch.tensor([len(source.places) for source in self.sources]).double(),
            "random": self.random_order(number),
        }

    def random_order(self, number: int) -> Float[Tensor, " source"]:
        """Return a random order, seeded with the prompt's number."""
        return torch.from_numpy(np.random.default_rng([self.seed, number]).random(self.num_sources))

    @property
    def without_each(self) -> Bool[Tensor, "source source"]:
        """For each source, the mask that keeps all other sources."""
        return ~torch.eye(self.num_sources, dtype=torch.bool)


def text_sources(reading: SourcedReading) -> tuple[NamedSource, ...]:
    """Return the sources of a text."""
    names = [source.name for source in reading.sourced.sources]
    return tuple(map(NamedSource, names, reading.sourced.texts(), reading.places))


@dataclass(frozen=True)
class SourceScores:
    """The scores that a way gives to each source and, if the way has them, to each token of the prompt."""

    sources: Float[Tensor, " source"]
    tokens: Float[Tensor, " token"] | None = None


def _token_way(
    way: Callable[[ExplainedRun], Float[Tensor, " token"]],
) -> Callable[[ReadAnswer], SourceScores]:
    def scores(answer: ReadAnswer) -> SourceScores:
        token_scores = way(answer.run)
        return SourceScores(answer.by_source(token_scores), token_scores)

    return scores


def _all_heads(answer: ReadAnswer) -> SourceScores:
    token_scores = answer.weights.mean.sum(dim=0)
    return SourceScores(answer.by_source(token_scores), token_scores)


def _best_heads(answer: ReadAnswer) -> SourceScores:
    if answer.weights.chosen is None:
        name = answer.run.pretrained.name
        how = (
            "find them with attn source --find-heads"
            if answer.kind == "answer"
            else ("name them with --head")
        )
        raise UserError(f"best_heads: the retrieval heads of {name} are unknown: {how}")
    token_scores = answer.weights.chosen.sum(dim=0)
    return SourceScores(answer.by_source(token_scores), token_scores)


def _at2(answer: ReadAnswer) -> SourceScores:
    name = answer.run.pretrained.name
    if answer.kind != "answer":
        raise UserError(f"at2: {name} writes no answers, so head weights cannot be learned")
    if answer.head_weights is None:
        raise UserError(
            f"at2: {name} has no learned head weights: learn them with attn source PROMPTS --learn"
        )
    token_scores = answer.head_weights @ answer.weights.by_head
    return SourceScores(answer.by_source(token_scores), token_scores)


def _attention_gradient(answer: ReadAnswer) -> SourceScores:
    answer.run.refuse_unshown_layers("attention_gradient")
    token_scores = answer.gradients.attention_gradient
    return SourceScores(answer.by_source(token_scores), token_scores)


def _gradient_input(answer: ReadAnswer) -> SourceScores:
    token_scores = answer.gradients.gradient_input
    return SourceScores(answer.by_source(token_scores), token_scores)


def _context_cite(answer: ReadAnswer) -> SourceScores:
    masks = sampled_masks(answer.num_runs, answer.num_sources, answer.seed)
    # The losses without each source are needed anyway; prompts that begin alike run together.
    answer.losses(torch.cat([masks, answer.without_each]))
    return SourceScores(answer.sampled_effects(masks))


@dataclass(frozen=True)
class WayToRead:
    """A way to read, with its scoring function and the number of passes through the model that it takes.

    A backward pass counts as two. If `runs` is None, the way takes one pass per sampled set of sources.
    """

    scores: Callable[[ReadAnswer], SourceScores]
    runs: int | None


WAYS: Mapping[str, WayToRead] = {
    "all_heads": WayToRead(_all_heads, 1),
    "best_heads": WayToRead(_best_heads, 1),
    "at2": WayToRead(_at2, 1),
    "rollout": WayToRead(_token_way(rollout), 1),
    "value_norms": WayToRead(_token_way(value_norms), 1),
    "alti": WayToRead(_token_way(alti), 1),
    "attention_gradient": WayToRead(_attention_gradient, 3),
    "gradient_input": WayToRead(_gradient_input, 3),
    "attnlrp": WayToRead(_token_way(lambda run: attnlrp(run).prompt), 3),
    "direct_logit": WayToRead(_token_way(lambda run: direct_contributions(run, directions(run))), 2),
    "context_cite": WayToRead(_context_cite, None),
}
"""The ways to read an answer's sources; docs/explain.md describes them and their papers."""


def chosen_ways(names: Sequence[str]) -> list[str]:
    """Return the named ways, or all ways. Raises UserError for an unknown name."""
    for name in names:
        if name not in WAYS:
            raise UserError(f"ways: must be one of {', '.join(WAYS)} (got {name})")
    return list(dict.fromkeys(names)) or [*WAYS]


@dataclass(frozen=True)
class Scored:
    """The scores of the ways that apply to a model, and the reasons why other ways do not apply."""

    scores: dict[str, SourceScores]
    refused: dict[str, str]


def scored(answer: ReadAnswer, names: Sequence[str]) -> Scored:
    """Compute the scores of each way. Ways that do not apply to the model are left out."""
    scores: dict[str, SourceScores] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            scores[name] = WAYS[name].scores(answer)
        except UserError as error:
            refused[name] = error.lines[0].removeprefix(f"{name}: ")
    return Scored(scores, refused)


def score_ranks(scores: Float[Tensor, " source"]) -> list[int]:
    """Return ranks of scores, where 1 is the largest. Scores that differ only by rounding are tied."""
    return tied_ranks(scores.tolist())


def loss_ranks(answer: ReadAnswer) -> list[int]:
    """Return ranks of losses, where 1 is the largest. Losses that differ only by rounding are tied."""
    return tied_ranks(answer.lost.tolist(), answer.tied)


def correlation(ranks: Sequence[int], losses_ranked: Sequence[int]) -> float | None:
    """Return Spearman's rank correlation, or None if all ranks are tied."""
    numbers = (torch.tensor(some, dtype=torch.float64) for some in (ranks, losses_ranked))
    number = float(rank_correlation(*numbers))
    return None if number != number else number


def first_agrees(ranks: Sequence[int], losses_ranked: Sequence[int]) -> int | None:
    """Return 1 if the source with the largest loss is ranked first, and 0 if another source is.

    The result is None if several sources have the largest loss.
    """
    first = first_ranked(losses_ranked)
    return None if first is None else int(first_ranked(ranks) == first)


def mean_notes(pretrained: Pretrained, names: Iterable[str]) -> Iterator[str]:
    """Yield a note on layers that return no weights and so are missing from the mean over the heads."""
    if "all_heads" in names and (unshown := pretrained.unshown_layers):
        yield f"all_heads: the mean only covers layers with weights. {unshown}"


def num_passes(name: str, num_runs: int) -> int:
    """Return the number of passes through the model that a way needs."""
    runs = WAYS[name].runs
    return num_runs if runs is None else runs


def explanations(answer: ReadAnswer, ways: Sequence[str] = ()) -> Explanations:
    """Score each source of an answer in several ways, and measure the loss without each source.

    The default is all ways. The sources are sorted by loss, and the ways are in the order of the table of
    ways. Raises UserError if no way applies to the model, and MemoryError if memory runs out.
    """
    names = chosen_ways(ways)
    result = scored(answer, names)
    if not result.scores:
        raise UserError(*(f"{name}: {reason}" for name, reason in result.refused.items()))
    lost = answer.lost
    ranked_losses = loss_ranks(answer)
    ranks = {name: score_ranks(way_scores.sources) for name, way_scores in result.scores.items()}
    rows = [
        {
            "way": name,
            "spearman": correlation(way_scores, ranked_losses),
            "first": first_ranked(way_scores),
            "first_agrees": first_agrees(way_scores, ranked_losses),
            "runs": num_passes(name, answer.num_runs),
        }
        for name, way_scores in ranks.items()
    ]
    sources = ExplainedSource.rows(
        {
            "source": place + 1,
            "name": source.name,
            "text": source.text,
            "tokens": len(source.places),
            "lost": float(lost[place]),
            **{name: float(way_scores.sources[place]) for name, way_scores in result.scores.items()},
        }
        for place, source in enumerate(answer.sources)
    )
    unknown = torch.full((answer.run.num_prompt,), torch.nan, dtype=torch.float64)
    token_scores = [way_scores.tokens for way_scores in result.scores.values()]
    tokens = torch.stack([unknown if way_scores is None else way_scores for way_scores in token_scores])
    return Explanations(
        sources=sources.sorted(lambda row: ranked_losses[row.source - 1]),
        ways=WayOfReading.rows(rows),
        answer=answer.answer_text,
        ids=answer.answer_ids,
        explained=ExplainedOutput.rows([{"kind": answer.kind, "output": answer.name, "value": answer.value}]),
        tokens=tokens.numpy(force=True),
        notes=(
            *answer.notes(),
            *mean_notes(answer.run.pretrained, result.scores),
            *(f"{name}: {reason}" for name, reason in result.refused.items()),
            *answer.texts_alike,
        ),
    )
