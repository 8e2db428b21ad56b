"""Weights that a program changes after its softmax are those that reached the values, or a line says so.

The oracle is each program's formula in float64.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attncli.core.layer import AttentionLayer
from attncli.features.record.listening.followed import AFTER_DROPOUT, BY_ROWS, IN_PLACE, JOINED, NO_SHARES
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.listener import Listener
from tests.features.record.heard import heard, weights_of

TEXTS, HEADS, TOKENS, DIM = 2, 3, 7, 5
SEEN = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
GATE = torch.linspace(0.1, 0.9, TOKENS)
OF_HEADS = torch.tensor([1.0, 0.0, 0.5]).view(HEADS, 1, 1)


class Attention(nn.Module):
    """Attention whose scores go through `weigh` on their way to the values."""

    def __init__(self, weigh: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.num_heads, self.weigh = HEADS, weigh
        self.to_query, self.to_key, self.to_value = (nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(3))

    def parts(self, x: Tensor) -> list[Tensor]:
        layers = self.to_query, self.to_key, self.to_value
        return [layer(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for layer in layers]

    def scores(self, x: Tensor) -> Tensor:
        query, key, _ = self.parts(x)
        return query @ key.mT / math.sqrt(DIM)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        mixed: Tensor = self.weigh(query @ key.mT / math.sqrt(DIM)) @ value
        return mixed


def heard_of(
    weigh: Callable[[Tensor], Tensor], *, with_gradient: bool = True
) -> tuple[list[HeardCall], Listener, Tensor]:
    """What is heard of such attention, whose output is what it is otherwise; and its scores in float64."""
    torch.manual_seed(3)
    layer, x = Attention(weigh), torch.randn(TEXTS, TOKENS, HEADS * DIM)
    with torch.set_grad_enabled(with_gradient):
        state = torch.get_rng_state()
        plain = layer(x)
        torch.set_rng_state(state)
        result, calls, listener = heard(lambda: layer(x))
    assert result.equal(plain)
    with torch.no_grad():
        return calls, listener, layer.double().scores(x.double())


def check(calls: list[HeardCall], *exact: Tensor) -> None:
    assert len(calls) == len(exact)
    for call, weights in zip(calls, exact, strict=True):
        torch.testing.assert_close(weights_of(call).double(), weights, rtol=0, atol=1e-6)
        assert call.weights is not None
        torch.testing.assert_close(call.weights.double(), weights, rtol=0, atol=1e-6)


def shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _in_place(scores: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    weights *= SEEN
    return weights


def _set_by_index(scores: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    weights[..., -1] = 0
    return weights


def _set_in_a_view(scores: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    weights[:, 0].fill_diagonal_(0) if weights.ndim == 2 else weights[:, :, 2].zero_()
    return weights


def _copied_over_the_scores(scores: Tensor) -> Tensor:
    return scores.copy_(scores.softmax(-1))


def _most_of_each_row(scores: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    largest, places = weights.topk(3, dim=-1)
    return shares(torch.zeros_like(weights).scatter_(-1, places, largest))


CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "AllenNLP": lambda scores: shares((scores * SEEN).softmax(-1) * SEEN),
    "mask": lambda scores: scores.softmax(-1) * SEEN,
    "mask, shares": lambda scores: shares(SEEN * scores.softmax(-1)),
    "filled": lambda scores: scores.softmax(-1).masked_fill(~SEEN, 0),
    "filled, shares": lambda scores: shares(scores.softmax(-1).masked_fill(~SEEN, 0)),
    "a filled row": lambda scores: scores.softmax(-1).masked_fill(torch.arange(TOKENS)[:, None] == 5, 0),
    "filled, heads": lambda scores: scores.softmax(-1).masked_fill(~SEEN, 0) * OF_HEADS,
    "gate of keys": lambda scores: shares(scores.softmax(-1) * GATE),
    "gate of keys, divided": lambda scores: scores.softmax(-1) / (1 + GATE),
    "norm": lambda scores: functional.normalize(scores.softmax(-1) * SEEN, p=1, dim=-1),
    "square": lambda scores: shares(scores.softmax(-1) ** 2),
    "times itself": lambda scores: shares((weights := scores.softmax(-1)) * weights),
    "second softmax": lambda scores: scores.softmax(-1).softmax(-1),
    "both axes": lambda scores: shares(scores.softmax(-1) * scores.softmax(-2)),
    "mean of two": lambda scores: (scores.softmax(-1) + (2 * scores).softmax(-1)) / 2,
    "Reformer": lambda scores: (scores - scores.logsumexp(-1, keepdim=True)).exp(),
    "Reformer, in place": lambda scores: (scores - scores.logsumexp(-1, keepdim=True)).exp_(),
    "set": _set_by_index,
    "most": _most_of_each_row,
}
IN_PLACES = {"in place": _in_place, "set in a view": _set_in_a_view, "copied": _copied_over_the_scores}


@pytest.mark.parametrize("name", [*CHANGED, *IN_PLACES])
def test_weights_are_those_that_reach_the_values(name: str) -> None:
    weigh = {**CHANGED, **IN_PLACES}[name]
    calls, listener, scores = heard_of(weigh, with_gradient=False)
    check(calls, weigh(scores))
    assert not listener.notes()


CHANGED_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda scores: functional.leaky_relu(scores, 0.2),
    "sigmoid": torch.sigmoid,
    "in place": lambda scores: scores.clone().sigmoid_(),
    "largest": lambda scores: torch.full_like(scores, -math.inf).scatter(
        -1, *reversed(scores.topk(3, dim=-1))
    ),
    "hidden by place": lambda scores: scores.index_fill(-1, torch.tensor([2, 4]), -math.inf),
    "norm": lambda scores: functional.layer_norm(scores, (TOKENS,)),
}


@pytest.mark.parametrize("name", CHANGED_SCORES)
def test_scores_may_be_changed_by_any_function(name: str) -> None:
    change = CHANGED_SCORES[name]
    calls, listener, scores = heard_of(lambda scores: change(scores).softmax(-1))
    check(calls, change(scores).softmax(-1))
    assert not listener.notes()


def test_weights_divided_by_their_sum_equal_those_of_the_product() -> None:
    for divide in (shares, lambda weights: weights / (weights.sum(-1, keepdim=True) + 1e-8)):
        calls, listener, scores = heard_of(lambda scores, divide=divide: divide(scores.softmax(-1)))
        check(calls, scores.softmax(-1))
        assert isinstance(calls[0].attention, AttentionLayer) and not listener.notes()


LINES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "heads": (lambda scores: scores.softmax(-1) * OF_HEADS, BY_ROWS),
    "a number": (lambda scores: scores.softmax(-1) * 0.5, BY_ROWS),
    "heads after dropout": (lambda scores: functional.dropout(scores.softmax(-1)) * OF_HEADS, BY_ROWS),
    "above 1": (lambda scores: scores.softmax(-1) * (GATE + 3), NO_SHARES),
    "the rest": (lambda scores: 1 - scores.softmax(-1), NO_SHARES),
    "after dropout": (lambda scores: shares(functional.dropout(scores.softmax(-1)) + GATE), AFTER_DROPOUT),
    "in place": (lambda scores: functional.dropout(scores.softmax(-1) * SEEN, inplace=True), IN_PLACE),
}


@pytest.mark.parametrize("name", LINES)
def test_changes_that_weights_do_not_include_are_noted(name: str) -> None:
    weigh, line = LINES[name]
    calls, listener, scores = heard_of(weigh)
    check(calls, scores.softmax(-1))
    assert listener.notes() == [f"Attention: {line}."]


def test_a_difference_of_softmaxes_is_noted_but_not_recorded() -> None:
    """Differential attention, Ye and others 2024."""
    calls, listener, _ = heard_of(lambda scores: scores.softmax(-1) - 0.3 * scores.tanh().softmax(-1))
    assert not calls and listener.notes() == [f"Attention: {JOINED}."]


def _straight_through(scores: Tensor) -> Tensor:
    """x-transformers' hard attention."""
    weights = scores.softmax(-1)
    return functional.one_hot(weights.argmax(-1), TOKENS) + weights - weights.detach()


def _halves(scores: Tensor) -> Tensor:
    weights = torch.cat([scores, scores.tanh()], dim=1).softmax(-1)
    return weights[:, :HEADS] - weights[:, HEADS:]


def test_a_difference_within_one_softmax_is_recorded_as_it_reaches_the_values() -> None:
    calls, listener, scores = heard_of(_straight_through)
    check(calls, functional.one_hot(scores.argmax(-1), TOKENS).double())
    assert not listener.notes()
    calls, listener, scores = heard_of(_halves)
    check(calls, torch.cat([scores, scores.tanh()], dim=1).softmax(-1))
    assert NO_SHARES in listener.notes()[-1]


def _largest_taken(scores: Tensor) -> Tensor:
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp() * SEEN
    return exponentials / exponentials.sum(-1, keepdim=True)


WITHOUT_SOFTMAX: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "exp": (lambda scores: scores.exp() / 7, "exp"),
    "sigmoid": (torch.sigmoid, "sigmoid"),
    "relu": (torch.relu, "relu"),
    "exp over its sum": (lambda scores: shares(scores.exp()), "exp"),
    "exp over its sum, the largest taken": (_largest_taken, "exp"),
    "exp of logarithms": (lambda scores: scores.log_softmax(-1).exp(), "exp"),
}


@pytest.mark.parametrize("name", WITHOUT_SOFTMAX)
def test_scores_times_values_without_a_softmax_are_noted(name: str) -> None:
    change, function = WITHOUT_SOFTMAX[name]
    calls, listener, _ = heard_of(change)
    assert not calls
    (line,) = listener.notes()
    assert f"multiplied by values after {function}, without a softmax" in line


def test_a_softmax_over_queries_is_noted_but_not_recorded() -> None:
    """Slot attention, Locatello and others 2020: a softmax over queries, then shares of keys."""
    calls, listener, _ = heard_of(lambda scores: shares(scores.softmax(-2) + 1e-8))
    assert not calls
    (line,) = listener.notes()
    assert "over axis 2" in line and "not recorded" in line


def test_weights_in_an_unsupported_product_are_noted() -> None:
    x = torch.randn(TOKENS, DIM)
    _, calls, listener = heard(lambda: torch.tensordot((x @ x.mT).softmax(-1), x, dims=1))
    assert not calls
    (line,) = listener.notes()
    assert "tensordot" in line and "not recorded" in line
