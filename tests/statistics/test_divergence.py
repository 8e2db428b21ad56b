"""The Jensen-Shannon distance against scipy."""

import numpy as np
import scipy.spatial.distance
import torch
from hypothesis import given
from hypothesis import strategies as st

from attncli.statistics.divergence import jensen_shannon

amounts = st.lists(st.floats(0, 1e3), min_size=5, max_size=5).filter(lambda row: sum(row) > 1e-6)


@given(p=amounts, q=amounts)
def test_it_is_scipys(p: list[float], q: list[float]) -> None:
    ours = jensen_shannon(torch.tensor([p], dtype=torch.float64), torch.tensor([q], dtype=torch.float64))
    # Near zero the square root makes much of the last bit.
    assert abs(ours.item() - scipy.spatial.distance.jensenshannon(p, q)) < 1e-7


@given(p=amounts)
def test_a_row_is_no_way_from_itself(p: list[float]) -> None:
    row = torch.tensor([p], dtype=torch.float64)
    assert jensen_shannon(row, row).item() == 0


def test_the_furthest_and_what_is_no_distribution() -> None:
    p = torch.tensor([[1.0, 0, 0], [0, 0, 0], [2, -1, 0], [torch.nan, 0, 1]], dtype=torch.float64)
    q = torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float64).expand(4, 3)
    found = jensen_shannon(p, q).numpy()
    np.testing.assert_allclose(found, [np.sqrt(np.log(2)), np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(jensen_shannon(q, p).numpy(), found)
