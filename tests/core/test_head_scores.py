"""Head scores against TransformerLens' definitions, written out."""

import pytest
import torch

from attncli.core.engines import attend
from attncli.core.formulas import roll_out, sink_rate
from attncli.core.layer import Marks
from attncli.core.names import HEAD_STATISTICS, IN_TIME, REQUESTED_PATTERNS
from attncli.core.row_tiles import GivenWeights
from attncli.measure.patterns import head_scores, wanted_scores
from tests.naive_heads import NAMES, naive_figures, naive_mul_score, pattern

PATTERNS = NAMES


def unmarked(ids: torch.Tensor) -> Marks:
    """No special tokens and no requested tokens."""
    return Marks(*torch.zeros(3, *ids.shape, dtype=torch.bool))


def scores_of_texts(
    weights: torch.Tensor, ids: torch.Tensor, first_key: int = 0, repeat: int | None = None
) -> dict[str, torch.Tensor]:
    """The scores (text, head) of weights (text, head, query, key)."""
    given = GivenWeights(weights, (weights > 0).any(dim=1))
    wanted = wanted_scores(ids, unmarked(ids), first_key=first_key, repeat=repeat)
    return {name: scores[0] for name, scores in head_scores([attend(given, wanted)], wanted).items()}


def scores_of(weights: torch.Tensor, ids: torch.Tensor, repeat: int | None = None) -> dict[str, torch.Tensor]:
    """The scores (head) of weights (head, query, key)."""
    found = scores_of_texts(weights.unsqueeze(0), ids.unsqueeze(0), repeat=repeat)
    return {name: score[0] for name, score in found.items()}


def ideal(matrix: torch.Tensor) -> torch.Tensor:
    """One head with even weight on a pattern, and on the first key where the pattern is empty."""
    weights = matrix.double()
    weights[weights.sum(-1) == 0, 0] = 1
    return (weights / weights.sum(-1, keepdim=True)).unsqueeze(0)


def causal_weights(*heads: int, num_tokens: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*heads, num_tokens, num_tokens, generator=generator, dtype=torch.float64)
    return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf).softmax(-1)


def test_mul_scores_match_transformer_lens() -> None:
    ids = torch.randint(0, 5, (19,), generator=torch.Generator().manual_seed(0))
    weights = causal_weights(3, num_tokens=19, seed=0)
    scores = scores_of(weights, ids)
    for name in PATTERNS:
        wanted = torch.tensor(pattern(ids.tolist(), name)).double()
        expected = [naive_mul_score(head, wanted) for head in weights]
        assert scores[f"{name}_mul"].tolist() == pytest.approx(expected), name


def test_an_ideal_head_scores_one_on_its_pattern_only() -> None:
    ids = torch.tensor([0, 3, 1, 4, 1, 5, 3, 1, 4])
    for name in PATTERNS:
        scores = scores_of(ideal(torch.tensor(pattern(ids.tolist(), name))), ids)
        assert scores[name].item() == pytest.approx(1)
        assert all(scores[other].item() < 0.9 for other in PATTERNS if other != name), name


def test_a_perfect_induction_head_scores_one_on_the_stripe() -> None:
    length = 5
    ids = torch.tensor([0, *range(1, 6), *range(1, 6)])
    figures = scores_of(ideal(torch.tensor(pattern(ids.tolist(), "induction"))), ids, repeat=length)
    assert figures["induction_stripe"].item() == pytest.approx(1)
    previous = ideal(torch.tensor(pattern(ids.tolist(), "previous_token")))
    assert scores_of(previous, ids, repeat=length)["induction_stripe"].item() == 0
    assert "induction_stripe" not in scores_of(previous, ids), "which is of the probe alone"


def test_tokens_without_repetition_have_no_pattern() -> None:
    ids = torch.arange(4)
    figures = scores_of(ideal(torch.ones(4, 4).tril()), ids)
    for name in ("induction", "duplicate_token"):
        assert figures[name].isnan().all() and figures[f"{name}_mul"].item() == 0


def test_one_token() -> None:
    figures = scores_of(ideal(torch.ones(1, 1)), torch.tensor([7]))
    assert figures["entropy"].item() == 0 and figures["previous_token"].isnan().all()
    assert figures["sink_mass_4"].item() == 1


@pytest.mark.parametrize(("num_tokens", "first_key"), [(9, 2), (40, 0)])
def test_each_of_several_texts_is_scored_by_its_own_tokens(num_tokens: int, first_key: int) -> None:
    """The same tokens have other positions in each text, so the texts have different patterns."""
    generator = torch.Generator().manual_seed(num_tokens)
    ids = torch.randint(0, 4, (3, num_tokens), generator=generator)
    weights = causal_weights(3, 2, num_tokens=num_tokens, seed=first_key)
    weights[..., :first_key] = 0
    got = scores_of_texts(weights, ids, first_key)
    for text in range(3):
        naive = naive_figures(weights[text], ids[text].tolist(), first_key)
        del naive["from_to_weight"], naive["one_key_mass"]
        for name, numbers in naive.items():
            assert got[name][text].tolist() == pytest.approx(numbers, rel=1e-12, nan_ok=True), name


def test_the_stripe_is_the_diagonal_of_the_second_copy() -> None:
    length = 6
    weights = causal_weights(2, 3, num_tokens=2 * length + 1, seed=5)
    copies = torch.stack([torch.randperm(20)[:length] for _ in range(2)])
    ids = torch.cat([torch.full((2, 1), 99), copies, copies], dim=1)
    got = scores_of_texts(weights, ids, repeat=length)["induction_stripe"]
    queries = torch.arange(length + 1, 2 * length + 1)
    torch.testing.assert_close(got, weights[..., queries, queries + 1 - length].mean(dim=-1))


def test_every_name_has_a_score_and_in_this_order() -> None:
    ids = torch.tensor([0, 1, 2, 1, 2])
    scores = scores_of(causal_weights(2, num_tokens=5, seed=0), ids, repeat=2)
    others = {"value_norm", "one_key_mass", *REQUESTED_PATTERNS, "neighbour", "high_norm_mass", *IN_TIME}
    assert set(scores) == set(HEAD_STATISTICS) - others, "of values, keys, pictures, sounds"
    across = GivenWeights(causal_weights(1, 2, num_tokens=5, seed=0), torch.ones(1, 5, 5).tril().bool())
    wanted = wanted_scores(None, unmarked(ids.unsqueeze(0)))
    found = head_scores([attend(across, wanted)], wanted)
    assert list(found) == [name for name in scores if name != "induction_stripe"]
    compared = {
        "distance",
        "local_mass",
        "max_score",
        "special_mass",
        *PATTERNS,
        *(f"{name}_mul" for name in PATTERNS),
    }
    assert {name for name, score in found.items() if score.isnan().all()} == compared


def test_sink_rate_counts_heads_above_the_threshold() -> None:
    assert sink_rate(torch.tensor([0.1, 0.3, 0.31, 0.9])) == 0.5


def test_rollout_of_heads_that_look_at_themselves_is_the_identity() -> None:
    identity = torch.eye(3, dtype=torch.float64)
    assert torch.equal(roll_out(identity, identity), identity)
    first = torch.zeros(3, 3, dtype=torch.float64)
    first[:, 0] = 1
    rolled = roll_out(roll_out(identity, first), first)
    torch.testing.assert_close(rolled[2], torch.tensor([0.75, 0, 0.25], dtype=torch.float64))
