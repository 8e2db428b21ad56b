"""The Jensen-Shannon distance against scipy."""

import numpy as np
import scipy.spatial.distance
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attncli.core.summaries import jensen_shannon

# scipy halves what it divides by: of a weight that has no half in float64 it makes an infinite distance.
amount = st.just(0.0) | st.floats(1e-300, 1e3)
amounts = st.lists(amount, min_size=5, max_size=5).filter(lambda row: sum(row) > 1e-6)


def distance(p: list[float], q: list[float]) -> float:
    (found,) = jensen_shannon(torch.tensor([p], dtype=torch.float64), torch.tensor([q], dtype=torch.float64))
    return found.item()


def distance_by_scipy(p: list[float], q: list[float]) -> float:
    # Between rows that are nearly equal its sum may be rounded below zero, where it has no root.
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(scipy.spatial.distance.jensenshannon(p, q), nan=0.0, posinf=np.inf)


@given(p=amounts, q=amounts)
def test_the_distance_matches_scipy(p: list[float], q: list[float]) -> None:
    # Near zero the square root makes much of the last bit.
    assert abs(distance(p, q) - distance_by_scipy(p, q)) < 1e-7


@given(p=amounts, q=amounts, tiny=st.floats(0, 1e-300))
@example(p=[1.0, 0, 0, 0, 0], q=[0.0, 1, 0, 0, 0], tiny=5e-324)
def test_tiny_weights_do_not_change_the_distance(p: list[float], q: list[float], tiny: float) -> None:
    assert abs(distance([*p, tiny], [*q, 0.0]) - distance([*p, 0.0], [*q, 0.0])) < 1e-7
    assert abs(distance([*p, tiny], [*q, tiny]) - distance([*p, 0.0], [*q, 0.0])) < 1e-7


@given(p=amounts)
def test_the_distance_of_a_row_to_itself_is_zero(p: list[float]) -> None:
    row = torch.tensor([p], dtype=torch.float64)
    assert jensen_shannon(row, row).item() == 0


def test_the_largest_distance_and_rows_that_are_not_distributions() -> None:
    p = torch.tensor([[1.0, 0, 0], [0, 0, 0], [2, -1, 0], [torch.nan, 0, 1]], dtype=torch.float64)
    q = torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float64).expand(4, 3)
    found = jensen_shannon(p, q).numpy()
    np.testing.assert_allclose(found, [np.sqrt(np.log(2)), np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(jensen_shannon(q, p).numpy(), found)
