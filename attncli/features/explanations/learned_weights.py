"""Learn a weight for each head from answer losses when sets of sources are hidden (AT2).

Cohen-Wang et al. 2025, 2504.13752: the score of a source is the sum over the heads of the head's weight x its
attention to the source. The weights maximise Pearson's correlation between the logit of the answer's
probability and the sum of the scores of the sources in a set. They are fitted as in version 0.0.1 of at2, the
authors' package.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.errors import UserError
from attncli.features.explanations.explanations import ReadAnswer
from attncli.features.explanations.results import LearnedFit, LearnedHead, LearnedWeights
from attncli.features.source.sources import answer_logits
from attncli.models.source_removals import SourcesHidden, sampled_masks

STEPS, LEARNING_RATE, MAX_PER_STEP = 1000, 1e-3, 512
"""Settings of Adam with a cosine schedule, and the largest number of answers per step, as in at2."""
LARGEST_GRADIENT = 1.0
NEAR_ZERO = 1e-8


class Ablations(NamedTuple):
    """Each head's attention to an answer's sources, and the answer's logit for different sets of sources."""

    attention: Float[Tensor, "head source"]
    masks: Bool[Tensor, "run source"]
    logits: Float[Tensor, " run"]

    def features(self) -> Float[Tensor, "run head"]:
        """Return each head's attention to the sources in a set minus its attention to the other sources."""
        return (self.masks.double() * 2 - 1) @ self.attention.double().mT


@torch.no_grad()
def ablations(answer: ReadAnswer) -> Ablations:
    """Measure an answer with random sets of sources. A source is in a set with probability one half."""
    masks = sampled_masks(answer.num_runs, answer.num_sources, answer.seed)
    hidden = SourcesHidden(answer.run.pretrained, answer.reading, answer.replay).measured(masks)
    return Ablations(answer.attention, masks, answer_logits(hidden))


def correlations(
    features: Float[Tensor, "answer run head"],
    logits: Float[Tensor, "answer run"],
    weights: Float[Tensor, " head"],
) -> Float[Tensor, " answer"]:
    """Compute Pearson's correlation over the sets of sources of each answer."""
    scores = features @ weights
    scores = scores - scores.mean(dim=1, keepdim=True)
    centred = logits - logits.mean(dim=1, keepdim=True)
    spreads = [numbers.square().mean(dim=1).sqrt() for numbers in (scores, centred)]
    return (scores * centred).mean(dim=1) / (spreads[0] * spreads[1] + NEAR_ZERO)


def fitted_weights(
    features: Float[Tensor, "answer run head"], logits: Float[Tensor, "answer run"], seed: int = 0
) -> Float[Tensor, " head"]:
    """Fit the weights with the largest mean correlation, scaled so that their absolute values sum to 1.

    The search starts with equal weights; gradients are clipped to length 1.
    """
    num_heads, generator = features.shape[2], torch.Generator().manual_seed(seed)
    weights = torch.full((num_heads,), 1 / num_heads, dtype=features.dtype, requires_grad=True)
    adam = torch.optim.Adam([weights], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=STEPS)
    for _ in range(STEPS):
        some = torch.randperm(len(features), generator=generator)[:MAX_PER_STEP]
        with torch.enable_grad():
            loss = -correlations(features[some], logits[some], weights).mean()
            (weights.grad,) = torch.autograd.grad(loss, [weights])
        torch.nn.utils.clip_grad_norm_([weights], LARGEST_GRADIENT)
        adam.step()
        schedule.step()
    learned = weights.detach()
    return learned / learned.abs().sum()


@torch.no_grad()
def learned_weights(
    heads: Sequence[tuple[str, int, int]], answers: Sequence[Ablations], seed: int = 0
) -> LearnedWeights:
    """Learn the weights of a model's heads, largest first. Raises UserError if no answer needs sources."""
    informative = [
        (features, ablation.logits)
        for ablation in answers
        if (features := ablation.features()).std(dim=0).any() and ablation.logits.std() > 0
    ]
    if not informative:
        raise UserError("prompts: no answer depends on its sources: use other prompts")
    features, logits = (torch.stack(parts) for parts in zip(*informative, strict=True))
    weights = fitted_weights(features, logits, seed)
    equal = torch.ones_like(weights)
    fits = [float(correlations(features, logits, head_weights).mean()) for head_weights in (weights, equal)]
    rows = [
        {"stack": stack, "layer": layer, "head": head, "weight": float(weight)}
        for (stack, layer, head), weight in zip(heads, weights, strict=True)
    ]
    return LearnedWeights(
        rows=LearnedHead.rows(rows).sorted(lambda row: -row.weight),
        fit=LearnedFit.single(prompts=len(informative), correlation=fits[0], correlation_of_mean=fits[1]),
        seed=seed,
    )
