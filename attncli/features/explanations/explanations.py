"""Which sources an answer came from, by several ways to read a model, beside what it loses without them."""

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
    first_of_ranks,
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
"""Fewer sources have no order that could be right or wrong."""


CUT_FINER = ": --split word or sentence cuts finer"


def check_sources(count: int, instead: str = CUT_FINER) -> None:
    """Raise UserError for fewer sources than have an order."""
    if count < LEAST_SOURCES:
        must = f"must be at least {LEAST_SOURCES} for an order of them (got {count})"
        raise UserError(f"sources: {must}{instead}")


class NamedSource(NamedTuple):
    """A source by its name, what it holds, and its tokens."""

    name: str
    text: str | None
    places: tuple[int, ...]


class ReadAnswer:
    """An answer of a decoder that is explained: what several ways share is computed once.

    The prompt's first token, where sinks are, counts for no source, whatever the way. UserError for a model
    of another kind, for fewer than three sources, and for heads that are not there. `kind` says what is
    explained; losses nearer than `tied` have the same rank.
    """

    run: ExplainedRun
    weights: SourceWeights
    removal: SourceRemoval
    sources: tuple[NamedSource, ...]
    kind: Explained = "answer"
    skips_first = True
    tied = TIED_NATS
    name: str | None = None
    """The class or the word of an encoder."""
    head_weights: Float[Tensor, " head"] | None = None
    """Those that are learned from answers, where they are known."""
    texts_alike: tuple[str, ...] = ()
    """Notes on texts that several sources hold."""

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
        self.sources, self.texts_alike = named_sources(reading), (*source_notes(reading.sourced),)
        self.reading, self.num_runs, self.seed = reading, num_runs, seed
        self.replay = Replay(pretrained.whole, reading.prompt.ids, answer)
        layers, self.expected = self.replay.layers()
        each = replace(reading, places=tuple((place,) for place in range(len(reading.prompt.ids))))
        self.weights = source_weights(layers, each, len(ids), list(map(named_head, heads)), with_first=True)
        """Of each token of the prompt."""
        self.head_weights = None if head_weights is None else self._weights_of(head_weights)
        self._answer = answer
        self.removal = SourcesTakenOut(pretrained, reading, self.replay)
        self._losses: dict[tuple[bool, ...], float] = {}

    def _weights_of(self, named: Mapping[str, float]) -> Float[Tensor, " head"]:
        """The weight of each head, by its name as 18:6. UserError for a head that is not there."""
        of_place = {(layer, head): place for place, (_, layer, head) in enumerate(self.weights.heads)}
        weights = torch.zeros(len(of_place), dtype=torch.float64)
        for name, weight in named.items():
            head = named_head(name)
            if (head.layer, head.head) not in of_place:
                raise UserError(f"head_weights: {self.run.pretrained.name} has no head {name}")
            weights[of_place[head.layer, head.head]] = weight
        return weights

    @property
    def num_sources(self) -> int:
        """How many there are."""
        return len(self.sources)

    @property
    def value(self) -> float:
        """The log-probability of what is explained, or what else is lost of it."""
        return float(self.expected.sum())

    @property
    def num_explained(self) -> int:
        """The tokens of the answer."""
        return len(self._answer.ids)

    @property
    def said(self) -> str:
        """The answer."""
        return self.run.pretrained.text_of(self._answer.ids)

    @property
    def said_ids(self) -> list[int]:
        """Its tokens."""
        return self._answer.ids

    def notes(self) -> tuple[str, ...]:
        """What there is to know of it."""
        return ()

    @cached_property
    def gradients(self) -> Gradients:
        """Those of one backward pass."""
        return gradients(self.run)

    def by_source(self, of_tokens: Float[Tensor, "*head token"]) -> Float[Tensor, "*head source"]:
        """The sum over the tokens of each source."""
        sources = [
            [place for place in source.places if place or not self.skips_first] for source in self.sources
        ]
        return torch.stack([of_tokens[..., places].sum(dim=-1) for places in sources], dim=-1)

    @property
    def attention(self) -> Float[Tensor, "head source"]:
        """The weight of each head on each source, mean over the queries that chose the answer's tokens."""
        return self.by_source(self.weights.of_heads)

    def losses(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " run"]:
        """What the answer's log-probability loses with the sources of each mask alone, each mask run once."""
        keys = [tuple(mask) for mask in masks.tolist()]
        new = [key for key in dict.fromkeys(keys) if key not in self._losses and not all(key)]
        self._losses[(True,) * self.num_sources] = 0.0
        if new:
            lost = self.value - self.removal.measured(torch.tensor(new))
            self._losses |= dict(zip(new, lost.tolist(), strict=True))
        return torch.tensor([self._losses[key] for key in keys], dtype=torch.float64)

    def sampled_effects(self, masks: Bool[Tensor, "run source"]) -> Float[Tensor, " source"]:
        """What each source adds, by ContextCite's fit on these sets of them."""
        log_probabilities = self.expected.sum() - self.losses(masks)
        return lasso_effects(masks, log_probabilities, self.num_explained)

    @cached_property
    def lost(self) -> Float[Tensor, " source"]:
        """What the answer loses without each source."""
        return self.losses(self.without_each)

    def orders(self, number: int) -> dict[str, Float[Tensor, " source"]]:
        """Orders that read nothing of the model, the largest first; random ones by the prompt's number."""
        places = torch.arange(self.num_sources).double()
        return {
            "last": places,
            "first": -places,
            "longest": torch.tensor([len(source.places) for source in self.sources]).double(),
            "random": self.random_order(number),
        }

    def random_order(self, number: int) -> Float[Tensor, " source"]:
        """That of a prompt, by its number."""
        return torch.from_numpy(np.random.default_rng([self.seed, number]).random(self.num_sources))

    @property
    def without_each(self) -> Bool[Tensor, "source source"]:
        """All sources but one, for each."""
        return ~torch.eye(self.num_sources, dtype=torch.bool)


def named_sources(reading: SourcedReading) -> tuple[NamedSource, ...]:
    """Those of a text."""
    names = [source.name for source in reading.sourced.sources]
    return tuple(map(NamedSource, names, reading.sourced.texts(), reading.places))


@dataclass(frozen=True)
class SourceScores:
    """What a way gives each source, and each token of the prompt where it knows them."""

    sources: Float[Tensor, " source"]
    tokens: Float[Tensor, " token"] | None = None


def _of_tokens(
    way: Callable[[ExplainedRun], Float[Tensor, " token"]],
) -> Callable[[ReadAnswer], SourceScores]:
    def scores(answer: ReadAnswer) -> SourceScores:
        of_tokens = way(answer.run)
        return SourceScores(answer.by_source(of_tokens), of_tokens)

    return scores


def _all_heads(answer: ReadAnswer) -> SourceScores:
    of_tokens = answer.weights.mean.sum(dim=0)
    return SourceScores(answer.by_source(of_tokens), of_tokens)


def _best_heads(answer: ReadAnswer) -> SourceScores:
    if answer.weights.chosen is None:
        name = answer.run.pretrained.name
        how = "attn source --find-heads" if answer.kind == "answer" else "--head names some"
        raise UserError(f"best_heads: no retrieving heads of {name} are known: {how}")
    of_tokens = answer.weights.chosen.sum(dim=0)
    return SourceScores(answer.by_source(of_tokens), of_tokens)


def _at2(answer: ReadAnswer) -> SourceScores:
    name = answer.run.pretrained.name
    if answer.kind != "answer":
        raise UserError(f"at2: {name} writes no answers, which weights of heads are learned from")
    if answer.head_weights is None:
        raise UserError(f"at2: no weights of the heads of {name} are learned: attn source PROMPTS --learn")
    of_tokens = answer.head_weights @ answer.weights.of_heads
    return SourceScores(answer.by_source(of_tokens), of_tokens)


def _attention_gradient(answer: ReadAnswer) -> SourceScores:
    answer.run.refuse_unshown_layers("attention_gradient")
    of_tokens = answer.gradients.attention_gradient
    return SourceScores(answer.by_source(of_tokens), of_tokens)


def _gradient_input(answer: ReadAnswer) -> SourceScores:
    of_tokens = answer.gradients.gradient_input
    return SourceScores(answer.by_source(of_tokens), of_tokens)


def _context_cite(answer: ReadAnswer) -> SourceScores:
    masks = sampled_masks(answer.num_runs, answer.num_sources, answer.seed)
    # What is lost without each is asked for anyway: prompts that begin alike are read together.
    answer.losses(torch.cat([masks, answer.without_each]))
    return SourceScores(answer.sampled_effects(masks))


@dataclass(frozen=True)
class WayToRead:
    """A way to read: what it gives the sources of an answer, and the passes through the model that it needs.

    A backward pass counts as two. `runs` is None for as many as sets of sources are sampled.
    """

    scores: Callable[[ReadAnswer], SourceScores]
    runs: int | None


WAYS: Mapping[str, WayToRead] = {
    "all_heads": WayToRead(_all_heads, 1),
    "best_heads": WayToRead(_best_heads, 1),
    "at2": WayToRead(_at2, 1),
    "rollout": WayToRead(_of_tokens(rollout), 1),
    "value_norms": WayToRead(_of_tokens(value_norms), 1),
    "alti": WayToRead(_of_tokens(alti), 1),
    "attention_gradient": WayToRead(_attention_gradient, 3),
    "gradient_input": WayToRead(_gradient_input, 3),
    "attnlrp": WayToRead(_of_tokens(lambda run: attnlrp(run).of_prompt), 3),
    "direct_logit": WayToRead(_of_tokens(lambda run: direct_contributions(run, directions(run))), 2),
    "context_cite": WayToRead(_context_cite, None),
}
"""Each way to read an answer's sources; see docs/explain.md for what it says and who published it."""


def chosen_ways(names: Sequence[str]) -> list[str]:
    """The ways of these names, or all; UserError for another name."""
    for name in names:
        if name not in WAYS:
            raise UserError(f"ways: must be of {', '.join(WAYS)} (got {name})")
    return list(dict.fromkeys(names)) or [*WAYS]


@dataclass(frozen=True)
class Scored:
    """What ways say of an answer, and why the others are not right for the model."""

    scores: dict[str, SourceScores]
    refused: dict[str, str]


def scored(answer: ReadAnswer, names: Sequence[str]) -> Scored:
    """The scores of each way; a way that is not right for the model is left out."""
    scores: dict[str, SourceScores] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            scores[name] = WAYS[name].scores(answer)
        except UserError as error:
            refused[name] = error.lines[0].removeprefix(f"{name}: ")
    return Scored(scores, refused)


def ranks_of(scores: Float[Tensor, " source"]) -> list[int]:
    """1 for the largest score; those that rounding could tell apart are tied."""
    return tied_ranks(scores.tolist())


def ranks_of_losses(answer: ReadAnswer) -> list[int]:
    """1 for the largest loss; those within the rounding of two runs are tied."""
    return tied_ranks(answer.lost.tolist(), answer.tied)


def correlation(ranks: Sequence[int], of_losses: Sequence[int]) -> float | None:
    """Spearman's; None where all are tied."""
    numbers = (torch.tensor(some, dtype=torch.float64) for some in (ranks, of_losses))
    number = float(rank_correlation(*numbers))
    return None if number != number else number


def first_agrees(ranks: Sequence[int], of_losses: Sequence[int]) -> int | None:
    """1 where the same source is first, 0 where another or none is; None where several lose most."""
    first = first_of_ranks(of_losses)
    return None if first is None else int(first_of_ranks(ranks) == first)


def mean_notes(pretrained: Pretrained, names: Iterable[str]) -> Iterator[str]:
    """What the mean over the heads cannot have of layers without weights."""
    if "all_heads" in names and (unshown := pretrained.unshown_layers):
        yield f"all_heads: the mean over the layers that have weights. {unshown}"


def runs_of(name: str, num_runs: int) -> int:
    """The passes through the model that a way needs."""
    runs = WAYS[name].runs
    return num_runs if runs is None else runs


def explanations(answer: ReadAnswer, ways: Sequence[str] = ()) -> Explanations:
    """What ways, by default all, say of each source of an answer, beside what it loses without it.

    The sources are in the order of what is lost, the ways in that of the table. UserError where none of the
    ways is right for the model; MemoryError.
    """
    names = chosen_ways(ways)
    result = scored(answer, names)
    if not result.scores:
        raise UserError(*(f"{name}: {reason}" for name, reason in result.refused.items()))
    lost = answer.lost
    of_losses = ranks_of_losses(answer)
    ranks = {name: ranks_of(of_way.sources) for name, of_way in result.scores.items()}
    rows = [
        {
            "way": name,
            "spearman": correlation(of_way, of_losses),
            "first": first_of_ranks(of_way),
            "first_agrees": first_agrees(of_way, of_losses),
            "runs": runs_of(name, answer.num_runs),
        }
        for name, of_way in ranks.items()
    ]
    sources = ExplainedSource.rows(
        {
            "source": place + 1,
            "name": source.name,
            "text": source.text,
            "tokens": len(source.places),
            "lost": float(lost[place]),
            **{name: float(of_way.sources[place]) for name, of_way in result.scores.items()},
        }
        for place, source in enumerate(answer.sources)
    )
    unknown = torch.full((answer.run.num_prompt,), torch.nan, dtype=torch.float64)
    of_ways = [of_way.tokens for of_way in result.scores.values()]
    tokens = torch.stack([unknown if of_way is None else of_way for of_way in of_ways])
    return Explanations(
        sources=sources.sorted(lambda row: of_losses[row.source - 1]),
        ways=WayOfReading.rows(rows),
        answer=answer.said,
        ids=answer.said_ids,
        explained=ExplainedOutput.rows([{"kind": answer.kind, "output": answer.name, "value": answer.value}]),
        tokens=tokens.numpy(force=True),
        notes=(
            *answer.notes(),
            *mean_notes(answer.run.pretrained, result.scores),
            *(f"{name}: {reason}" for name, reason in result.refused.items()),
            *answer.texts_alike,
        ),
    )
