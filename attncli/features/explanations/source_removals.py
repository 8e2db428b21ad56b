"""What an answer loses without a source, by what removing it means: text taken out, keys hidden, or a mean.

Taken out, all behind it moves; hidden from all other tokens (as AT2 removes, Cohen-Wang et al. 2025,
2504.13752), these keep their positions; with the mean embedding in their place its tokens are still there.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attncli.errors import UserError
from attncli.features.source.sources import Answer, Removals
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_texts import SourcedReading


def without_tokens(reading: SourcedReading, masks: Bool[Tensor, "run source"]) -> Bool[Tensor, "run token"]:
    """Of each set of sources that are there, the prompt's tokens that are of the others."""
    gone = torch.zeros(len(masks), len(reading.prompt.ids), dtype=torch.bool)
    for source, places in enumerate(reading.places):
        gone[:, list(places)] |= ~masks[:, source : source + 1]
    return gone


def hiding(
    reading: SourcedReading, replay: Replay, masks: Bool[Tensor, "run source"]
) -> Float[Tensor, "run token"]:
    """ln p of the answer's tokens with the sources of each mask alone, the others hidden from all tokens."""
    order = sorted(range(len(masks)), key=lambda run: masks[run].tolist())
    log_probabilities = torch.zeros(len(masks), len(replay.answer), dtype=torch.float64)
    rows = replay.each_hiding(without_tokens(reading, masks[order]))
    for run, row in zip(order, rows, strict=True):
        log_probabilities[run] = row
    return log_probabilities


@torch.no_grad()
def averaging(
    pretrained: Pretrained, reading: SourcedReading, replay: Replay, masks: Bool[Tensor, "run source"]
) -> Float[Tensor, "run token"]:
    """The same, the tokens of the others with the mean embedding of the vocabulary.

    UserError for a model whose embeddings are not those of the tokens alone.
    """
    embeddings: nn.Module = pretrained.whole.get_input_embeddings()
    vocabulary = pretrained.whole.config.get_text_config().vocab_size
    mean = embeddings(torch.arange(vocabulary, device=pretrained.device)).mean(dim=0)
    rows: list[Tensor] = []
    for gone in without_tokens(reading, masks):
        places = gone.nonzero()[:, 0].to(mean.device)
        calls: list[int] = []
        hook = embeddings.register_forward_hook(partial(_changed, places=places, mean=mean, calls=calls))
        try:
            rows += replay.each_hiding(torch.zeros_like(gone).unsqueeze(0))
        finally:
            hook.remove()
        if len(calls) != 1:
            raise UserError(f"model: {pretrained.name} has no embeddings of the tokens alone: use another")
    return torch.stack(rows)


def _changed(
    _module: nn.Module, _inputs: object, output: Tensor, *, places: Tensor, mean: Tensor, calls: list[int]
) -> Tensor:
    """The embeddings of a text, some of them replaced; counts its calls."""
    calls.append(len(places))
    return output.index_copy(1, places, mean.expand(len(output), len(places), -1))


KINDS: Mapping[str, Callable[[Pretrained, SourcedReading, Replay, Tensor], Float[Tensor, "run token"]]] = {
    "taken_out": lambda pretrained, reading, replay, masks: Removals(
        pretrained, reading, replay
    ).log_probabilities(masks),
    "hidden": lambda _, reading, replay, masks: hiding(reading, replay, masks),
    "mean": averaging,
}
"""What removing a source may mean."""


def losses_by_removal(
    pretrained: Pretrained, reading: SourcedReading, answer: Answer
) -> dict[str, Float[Tensor, " source"]]:
    """What the answer loses without each source, in nats, by each kind of removal. UserError; MemoryError."""
    replay = Replay(pretrained.whole, reading.prompt.ids, torch.tensor(answer.ids), answer.cache)
    whole = replay.layers()[1].sum()
    masks = ~torch.eye(len(reading.places), dtype=torch.bool)
    return {
        name: whole - removed(pretrained, reading, replay, masks).sum(dim=1)
        for name, removed in KINDS.items()
    }
