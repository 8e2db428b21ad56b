"""What is recorded of padded batches: the same as of each text by itself, in float64 by a naive loop."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attncli
from tests.naive_heads import naive_figures

SMALLEST = torch.finfo(torch.float32).min
NUMBERS = (-torch.inf, -1e9, -1e4, -1e3, SMALLEST)
"""What masks add, or put in the place of scores."""
HEADS, DIM = 4, 8
FIGURES = (
    *("entropy", "normalized_entropy", "max_weight", "participation", "sink_mass", "sink_mass_4"),
    *("previous_token", "next_token", "current_token", "one_key_mass", "distance"),
)


class Attention(nn.Module):
    """Attention of some heads over x: `attend` is handed query, key, value and who sees whom."""

    def __init__(self, attend: Callable[..., Tensor], *, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.kv_heads = attend, kv_heads
        self.query = nn.Linear(DIM, HEADS * DIM)
        self.key, self.value = (nn.Linear(DIM, kv_heads * DIM) for _ in range(2))

    def parts(self, x: Tensor, context: Tensor) -> list[Tensor]:
        made = self.query(x), self.key(context), self.value(context)
        return [part.unflatten(-1, (-1, DIM)).transpose(1, 2) for part in made]

    def forward(self, x: Tensor, seen: Tensor, context: Tensor | None = None) -> Tensor:
        return self.attend(*self.parts(x, x if context is None else context), seen)


def repeated(part: Tensor) -> Tensor:
    return part.repeat_interleave(HEADS // part.shape[1], dim=1)


def fused(made: Callable[[Tensor], Tensor | None]) -> Callable[..., Tensor]:
    """scaled_dot_product_attention with a mask made of who sees whom."""

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        mask = made(seen)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=key.shape[1] < HEADS
        )

    return attend


def by_hand(mask: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A softmax of scores that `mask` has changed."""

    def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        scores = query @ repeated(key).mT / DIM**0.5
        return mask(scores, seen).softmax(dim=-1) @ repeated(value)

    return attend


def forms(number: float) -> dict[str, Callable[..., Tensor]]:
    """Ways in which programs hide a key."""
    hidden = torch.tensor(number)

    def added(seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape).masked_fill(~seen, number)

    return {
        "fused, bool": fused(lambda seen: seen),
        "fused, added": fused(added),
        "masked_fill": by_hand(lambda scores, seen: scores.masked_fill(~seen, number)),
        "where": by_hand(lambda scores, seen: torch.where(seen, scores, hidden)),
        "where, no scores": by_hand(lambda scores, seen: scores + torch.where(seen, 0.0, hidden)),
        "added": by_hand(lambda scores, seen: scores + added(seen)),
        "times": by_hand(lambda scores, seen: scores + (1 - seen.float()) * max(number, -1e30)),
        "fused, bias": fused(lambda seen: added(seen) + by_distance(seen.shape[-1])),
        "bias": by_hand(lambda scores, seen: scores + (by_distance(seen.shape[-1]) + added(seen))),
        "bias, masked_fill": by_hand(
            lambda scores, seen: (scores + by_distance(seen.shape[-1])).masked_fill(~seen, number)
        ),
    }


def by_distance(count: int) -> Tensor:
    """A bias (head, query, key) of how far a key is from its query."""
    apart = torch.arange(count) - torch.arange(count)[:, None]
    return torch.stack([torch.sin(apart * (head + 1.0)) - 0.3 * apart.abs() for head in range(HEADS)])


def who_sees_whom(there: Tensor, *, causal: bool, rows: str) -> Tensor:
    """(text, 1, query, key) of texts with these tokens; `rows` says what queries of padding see."""
    num_texts, count = there.shape
    seen = there[:, None, None, :].expand(num_texts, 1, count, count)
    if causal:
        seen = seen & torch.ones(count, count, dtype=torch.bool).tril()
    if rows == "nothing" or (rows == "themselves" and causal):
        seen = seen & there[:, None, :, None]
    return seen | torch.eye(count, dtype=torch.bool) if rows == "themselves" else seen


def naive(weights: Tensor) -> dict[str, list[float]]:
    """The statistics of one text."""
    return naive_figures(weights, [*range(weights.shape[-1])])


def weights_alone(query: Tensor, key: Tensor, *, causal: bool, bias: Tensor | None = None) -> Tensor:
    """softmax(q k / sqrt(dim)) of one text without padding, in float64."""
    scores = (query.double() @ repeated(key).double().mT)[0] / DIM**0.5
    scores = scores if bias is None else scores + bias.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(dim=-1)


def padded(texts: Sequence[Tensor], side: str, extra: int) -> tuple[Tensor, Tensor]:
    """The texts as a batch, and where a token is."""
    count = max(len(text) for text in texts) + extra
    batch, there = torch.randn(len(texts), count, DIM), torch.zeros(len(texts), count, dtype=torch.bool)
    for number, text in enumerate(texts):
        own = side if side != "both" else ("left", "right", "middle")[number % 3]
        start = {"left": count - len(text), "right": 0, "middle": (count - len(text)) // 2}[own]
        batch[number, start : start + len(text)] = text
        there[number, start : start + len(text)] = True
    return batch, there


def assert_is_mean(seen: attncli.Recording, alone: Sequence[dict[str, list[float]]], within: float) -> None:
    heads = seen.heads
    for name in {*FIGURES} & alone[0].keys():
        for head, row in enumerate(heads):
            numbers = [text[name][head] for text in alone if not math.isnan(text[name][head])]
            mean = sum(numbers) / len(numbers) if numbers else None
            got = row[name]
            assert (got is None) == (mean is None), (name, head, got, mean)
            assert mean is None or abs(got - mean) <= within * (1 + abs(mean)), (name, head, got, mean)


def drawn(seed: int) -> str:
    """One recorded layer, by a seed; what it was."""
    random.seed(seed)
    torch.manual_seed(seed)
    number = random.choice(NUMBERS)
    form, attend = random.choice([*forms(number).items()])
    causal, kv_heads = random.random() < 0.5, random.choice((HEADS, 2, 1))
    side, rows = random.choice(("left", "right", "both")), random.choice(("all", "nothing", "themselves"))
    lengths = [random.randint(2, 13) for _ in range(random.randint(1, 5))]
    layer = Attention(attend, kv_heads=kv_heads).eval()
    texts = [torch.randn(length, DIM) * 2 for length in lengths]
    batch, there = padded(texts, side, random.choice((0, 0, 3)))
    seen_by = who_sees_whom(there, causal=causal, rows=rows)
    with attncli.record() as seen, torch.no_grad():
        layer(batch, seen_by)
    alone = []
    for text in texts:
        query, key, _ = layer.parts(text[None], text[None])
        bias = by_distance(len(text)) if "bias" in form else None
        alone.append(naive(weights_alone(query, key, causal=causal, bias=bias)))
    assert_is_mean(seen, alone, 2e-5)
    (module,) = seen.modules
    assert (module.num_rows, module.padding) == (there.numel(), int((~there).sum()))
    said = f"{int(there.sum())} rows; {module.padding} of padding left out"
    assert any(note.startswith(said) for note in seen.notes) == (module.padding > 0)
    return f"{form}, {number}, {side}, {rows}, causal {causal}"


@pytest.mark.parametrize("seed", range(40))
def test_a_padded_batch_is_its_texts(seed: int) -> None:
    drawn(seed)


@pytest.mark.nightly
def test_many_padded_batches_are_their_texts() -> None:
    for seed in range(1000, 1400):
        drawn(seed)
