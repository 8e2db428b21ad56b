"""Head scores against TransformerLens' definitions, written out."""

import pytest
import torch

from attncli.experiments.head_figures import head_figures
from attncli.experiments.head_rows import head_rows
from attncli.inputs.capture import WeightsOfLayer
from attncli.statistics.head_scores import repeated_positions, sink_rate
from attncli.statistics.rollout import roll_out
from tests.naive_heads import naive_mul_score, pattern

PATTERNS = ("previous_token", "current_token", "duplicate_token", "induction")


def ideal(matrix: torch.Tensor) -> WeightsOfLayer:
    """One head that puts its weight evenly on a pattern, and on the first key where the pattern is empty."""
    weights = matrix.double()
    weights[weights.sum(-1) == 0, 0] = 1
    return WeightsOfLayer("h.0", 0, "self", (weights / weights.sum(-1, keepdim=True)).unsqueeze(0))


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("seed", range(3))
def test_mul_scores_are_those_of_transformer_lens(name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 5, (19,), generator=generator)
    scores = torch.randn(3, 19, 19, generator=generator, dtype=torch.float64)
    weights = scores.masked_fill(~torch.ones(19, 19, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    got = head_figures(head_rows(WeightsOfLayer("h.0", 0, "self", weights)), ids=ids)[f"{name}_mul"]
    wanted = torch.tensor(pattern(ids.tolist(), name)).double()
    assert got.tolist() == pytest.approx([naive_mul_score(head, wanted) for head in weights])


@pytest.mark.parametrize("name", PATTERNS)
def test_an_ideal_head_scores_one_on_its_pattern(name: str) -> None:
    ids = torch.tensor([0, 3, 1, 4, 1, 5, 3, 1, 4])
    figures = head_figures(head_rows(ideal(torch.tensor(pattern(ids.tolist(), name)))), ids=ids)
    assert figures[name].item() == pytest.approx(1)
    others = [other for other in PATTERNS if other != name]
    assert all(figures[other].item() < 0.9 for other in others)


def test_a_perfect_induction_head_scores_one_on_the_stripe() -> None:
    length = 5
    ids = torch.tensor([0, *range(1, 6), *range(1, 6)])
    figures = head_figures(
        head_rows(ideal(torch.tensor(pattern(ids.tolist(), "induction")))), ids=ids, repeat=length
    )
    assert figures["induction_stripe"].item() == pytest.approx(1)
    previous = ideal(torch.tensor(pattern(ids.tolist(), "previous_token")))
    assert head_figures(head_rows(previous), ids=ids, repeat=length)["induction_stripe"].item() == 0


def test_tokens_without_repetition_have_no_pattern() -> None:
    ids = torch.arange(4)
    figures = head_figures(head_rows(ideal(torch.ones(4, 4).tril())), ids=ids)
    assert figures["induction"].isnan().all() and figures["induction_mul"].item() == 0
    assert repeated_positions(ids) == []


def test_one_token() -> None:
    figures = head_figures(head_rows(ideal(torch.ones(1, 1))), ids=torch.tensor([7]))
    assert figures["entropy"].item() == 0 and figures["previous_token"].isnan().all()
    assert figures["sink_mass_4"].item() == 1


def test_positions_of_repeated_tokens() -> None:
    positions = repeated_positions(torch.tensor([4, 1, 4, 2, 1, 4]))
    assert [place.tolist() for place in positions] == [[1, 4], [0, 2, 5]]


def test_sink_rate_counts_heads_above_the_threshold() -> None:
    assert sink_rate(torch.tensor([0.1, 0.3, 0.31, 0.9])) == 0.5


def test_rollout_of_heads_that_look_at_themselves_is_the_identity() -> None:
    identity = torch.eye(3, dtype=torch.float64)
    assert torch.equal(roll_out(identity, identity), identity)
    first = torch.zeros(3, 3, dtype=torch.float64)
    first[:, 0] = 1
    rolled = roll_out(roll_out(identity, first), first)
    torch.testing.assert_close(rolled[2], torch.tensor([0.75, 0, 0.25], dtype=torch.float64))
