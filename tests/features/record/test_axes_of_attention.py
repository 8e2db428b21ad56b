"""The axes of texts, heads and keys are those of the program; a line names one that is not heard."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attncli
from attncli.features.record.door import Recording

TEXTS, QUERIES, KEYS, DIM, HEADS = 4, 5, 7, 6, 2


class Attending(nn.Module):
    """Keeps its weights as (text, head, query, key)."""

    weights: Tensor

    def kept(self, weights: Tensor, *, num_heads: int = 1) -> Tensor:
        shape = (TEXTS, num_heads, -1, KEYS)
        self.weights = weights.detach().reshape(shape)
        return weights


class Additive(Attending):
    """Bahdanau and others 2015, as d2l.ai writes it."""

    def __init__(self, dim: int = DIM, num_heads: int = 1) -> None:
        super().__init__()
        self.of_query, self.of_key = nn.Linear(dim, 3, bias=False), nn.Linear(dim, 3, bias=False)
        self.energy, self.number = nn.Linear(3, 1, bias=False), num_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        hidden = torch.tanh(self.of_query(query).unsqueeze(2) + self.of_key(key).unsqueeze(1))
        weights = self.kept(self.energy(hidden).squeeze(-1).softmax(-1), num_heads=self.number)
        return torch.bmm(weights, value)


class FoldedHeads(nn.Module):
    """Heads are folded into the texts before a module inside projects each of them again."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Additive(DIM // HEADS, HEADS)
        self.projections = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

    @property
    def weights(self) -> Tensor:
        return self.inside.weights

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        given = zip(self.projections, (query, key, value), strict=True)
        split = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1) for layer, x in given)
        return torch.as_tensor(self.inside(*split))


class OneQuery(Attending):
    """A state of each text over the keys: weights of two axes."""

    def forward(self, state: Tensor, keys: Tensor) -> Tensor:
        weights = self.kept((keys * state.unsqueeze(1)).sum(-1).softmax(-1))
        return (weights.unsqueeze(-1) * keys).sum(1)


class RawStates(Attending):
    """Luong and others 2015: the states of two recurrent layers, without a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, DIM)
        self.encoder, self.decoder = (nn.GRU(DIM, DIM, batch_first=True) for _ in range(2))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.embedding(source))
        states, _ = self.decoder(self.embedding(target), last)
        return self.kept(torch.bmm(states, memory.mT).softmax(-1)) @ memory


class RawInputs(Attending):
    """States that come from outside, with a mask as a further argument."""

    def forward(self, states: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        scores = torch.bmm(states, memory.mT).masked_fill(~mask[:, None], -1e9)
        return torch.bmm(self.kept(scores.softmax(-1)), memory)


class Column(Attending):
    """Yang and others 2016: a softmax over the tokens of a column of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.energy = nn.Linear(DIM, DIM), nn.Linear(DIM, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.energy(torch.tanh(self.hidden(x))).softmax(1)
        self.kept(weights.mT)
        return torch.bmm(weights.mT, x)


def states(count: int, dim: int = DIM) -> Tensor:
    return torch.randn(TEXTS, count, dim)


def ids(count: int) -> Tensor:
    return torch.randint(9, (TEXTS, count))


MASK = torch.arange(KEYS) < torch.tensor([2, 6, 7, 3])[:, None]
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "additive": (Additive, lambda: (states(QUERIES), states(KEYS), states(KEYS, 3))),
    "one query": (OneQuery, lambda: (torch.randn(TEXTS, DIM), states(KEYS))),
    "folded heads": (FoldedHeads, lambda: (states(QUERIES), states(KEYS), states(KEYS))),
    "recurrent states": (RawStates, lambda: (ids(KEYS), ids(QUERIES))),
    "states from outside": (RawInputs, lambda: (states(1), states(KEYS), MASK)),
    "column": (Column, lambda: (states(KEYS),)),
}


def recorded(program: Callable[..., object], *inputs: Tensor) -> Recording:
    with attncli.record() as seen, torch.no_grad():
        program(*inputs)
    return seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_of_a_batch_are_no_heads(name: str) -> None:
    torch.manual_seed(1)
    make, inputs = PROGRAMS[name]
    model = make().eval()
    seen = recorded(model, *inputs())
    (layer,) = seen.layers
    assert seen.notes == []
    torch.testing.assert_close(layer.weights(), model.weights, rtol=0, atol=1e-6)


def test_axes_that_nothing_tells_are_a_line() -> None:
    states_of_nobody = torch.randn(TEXTS, KEYS, DIM)
    seen = recorded(lambda x: (x @ x.mT).softmax(-1) @ x, states_of_nobody)
    assert "texts and heads share one axis" in " ".join(seen.notes)
    assert "texts and heads share one axis" in " ".join(seen.survey().notes)


class Wrong(nn.Module):
    """Self-attention, its softmax as a function gives it."""

    def __init__(self, softmax: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.energy = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        return self.softmax(self.query(x) @ self.key(x).mT) @ x


class WrongPooling(Wrong):
    """Pooling with a softmax over texts, or over a single score."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.softmax(self.energy(x)) * x).sum(1)


class Picking(Wrong):
    """Each query sees the keys of its three largest scores or weights."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT
        weights, places = self.softmax(scores).topk(3, dim=-1)
        values = x[torch.arange(len(x))[:, None, None], places]
        return torch.einsum("bqk,bqkd->bqd", weights.softmax(-1), values)


@pytest.mark.filterwarnings("ignore:Implicit dimension")
@pytest.mark.parametrize(
    ("model", "softmax", "line"),
    [
        (Wrong, lambda scores: scores.softmax(1), "over axis 1 of 4 x 7 x 7"),
        (Wrong, functional.softmax, "over axis 0 of 4 x 7 x 7"),
        (WrongPooling, lambda scores: scores.softmax(0), "over axis 0 of 4 x 7 x 1"),
        (WrongPooling, lambda scores: scores.softmax(-1), "over axis 2 of 4 x 7 x 1"),
        (Picking, lambda scores: scores, "topk"),
        (Picking, lambda scores: scores.softmax(-1), "topk"),
    ],
)
def test_a_note_names_the_axis_of_an_unrecorded_softmax(
    model: type[Wrong], softmax: Callable[[Tensor], Tensor], line: str
) -> None:
    seen = recorded(model(softmax), states(KEYS))
    assert line in " ".join(seen.notes) and "not recorded" in " ".join(seen.notes)
    with pytest.raises(attncli.UserError, match=line):
        seen.survey()


def soft_cap(scores: Tensor) -> Tensor:
    return torch.tanh(scores / 5.0) * 5.0


@pytest.mark.parametrize(
    ("cap", "is_followed"),
    [
        (soft_cap, True),
        (lambda scores: scores.clone().div_(5).tanh_().mul_(5), True),
        (lambda scores: nn.Tanh()(scores * 0.2).mul(5.0), True),
        (lambda scores: functional.hardtanh(scores, -2, 2), True),
        (lambda scores: scores / (1 + scores.abs() / 5), True),
        (lambda scores: 5 * torch.atan(scores / 5), False),
        ("scripted", False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_soft_cap_is_recorded_in_every_spelling(
    cap: Callable[[Tensor], Tensor] | str, is_followed: bool
) -> None:
    torch.manual_seed(2)
    cap = torch.jit.script(soft_cap) if isinstance(cap, str) else cap
    model, x = Wrong(lambda scores: cap(scores).softmax(-1)), states(KEYS)
    seen = recorded(model, x)
    exact = cap(model.query(x) @ model.key(x).mT).softmax(-1).unsqueeze(1)
    torch.testing.assert_close(seen.layers[0].weights(), exact, rtol=0, atol=1e-6)
    assert is_followed == (seen.notes == [])
