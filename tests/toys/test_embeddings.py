"""Samples against torch's own modules with the same generator's stream."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attncli.errors import UserError
from attncli.settings.text import WordVectors, find_word_vectors, word_vectors
from attncli.toys.sampling import (
    SAMPLERS,
    Vocabulary,
    sample_linear,
    sample_linear_bias,
    sample_projections,
    sample_table,
)


def read_word_vectors(path: Path, words: list[str], dim: int, *, unknown: str) -> WordVectors:
    return word_vectors(path, words, find_word_vectors(path, words, dim), dim, unknown=unknown)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_table_matches_torch_nn_embedding() -> None:
    torch.manual_seed(3)
    expected = torch.nn.Embedding(5, 7).weight
    assert torch.equal(sample_table(5, 7, seeded(3)), expected)
    vocabulary = Vocabulary(("cat", "on", "street", "the", "walks"), expected.detach())
    assert vocabulary.ids(["the", "cat", "the"]) == [3, 0, 3]
    with pytest.raises(UserError, match="no vector for dog"):
        vocabulary.ids(["dog"])


def test_linear_and_its_bias_match_torch_nn_linear() -> None:
    torch.manual_seed(4)
    expected = torch.nn.Linear(7, 5)
    generator = seeded(4)
    assert torch.equal(sample_linear(5, 7, generator), expected.weight)
    assert torch.equal(sample_linear_bias(5, 7, generator), expected.bias)


def test_integers_match_torch_randint() -> None:
    torch.manual_seed(42)
    assert torch.equal(SAMPLERS["integers"]((3, 2), seeded(42)), torch.randint(0, 10, (3, 2)).float())


def test_projections_are_sampled_in_the_given_order() -> None:
    vectors, sizes = torch.randn(5, 7), {"query": (3,), "key": (3,), "value": (2,)}
    torch.manual_seed(1)
    key, query, value = (torch.nn.Linear(7, size, bias=False) for size in (3, 3, 2))
    drawn = sample_projections("linear", 7, sizes, ["key", "query", "value"], seeded(1))
    for name, module in {"key": key, "query": query, "value": value}.items():
        torch.testing.assert_close(drawn[name](vectors), module(vectors))


def test_uniform_projections_have_layout_in_out() -> None:
    vectors = torch.randn(5, 7)
    torch.manual_seed(2)
    query = torch.rand(7, 3)
    drawn = sample_projections("uniform", 7, {"query": (3,)}, ["query"], seeded(2))
    assert drawn["query"].axes == ("embed", "dim")
    torch.testing.assert_close(drawn["query"](vectors), vectors @ query)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_head_projections_are_one_linear_split_or_a_uniform_tensor(batch: tuple[int, ...]) -> None:
    vectors = torch.randn(*batch, 5, 7)
    torch.manual_seed(3)
    module = torch.nn.Linear(7, 2 * 3, bias=False)
    linear = sample_projections("linear", 7, {"query": (2, 3)}, ["query"], seeded(3))["query"]
    expected = module(vectors).unflatten(-1, (2, 3)).transpose(-2, -3)
    torch.testing.assert_close(linear(vectors), expected)
    torch.manual_seed(3)
    matrices = torch.rand(2, 3, 7)
    uniform = sample_projections("uniform", 7, {"query": (2, 3)}, ["query"], seeded(3))["query"]
    torch.testing.assert_close(uniform(vectors), torch.einsum("...te,hde->...htd", vectors, matrices))


@pytest.fixture
def vector_file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text("the 1 2 3\n. . 4 5 6\n. 7 8 9\ncat -1 -2e-1 .5\nthe 9 9 9\nnaïve 1 1 1\n")
    return path


def test_word_vectors_are_split_from_the_right_and_the_first_counts(vector_file: Path) -> None:
    vocabulary = read_word_vectors(vector_file, ["the", "naïve", ".", "cat"], 3, unknown="error")
    assert vocabulary.words == (".", "cat", "naïve", "the")
    np.testing.assert_allclose(vocabulary.table, [[7, 8, 9], [-1, -0.2, 0.5], [1, 1, 1], [1, 2, 3]])


def test_unknown_words_are_reported_or_zero(vector_file: Path) -> None:
    with pytest.raises(UserError, match=r"vectors.txt has no vector for dog, zebra \(use `unknown` zero"):
        read_word_vectors(vector_file, ["dog", "the", "zebra"], 3, unknown="error")
    vocabulary = read_word_vectors(vector_file, ["dog", "the"], 3, unknown="zero")
    assert vocabulary.table.tolist() == [[0, 0, 0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cat 1 2\n", "2: must have 3 numbers, like the other lines \\(got 2\\)"),
        ("cat 1 2 3 4\n", "2: must have 3 numbers, like the other lines \\(got 4\\)"),
        ("cat 1 2 1e39\n", "2: .*not finite"),
        ("cat 1 2 x\n", "2: is not a word"),
        ("cat 1 2 nan\n", "2: .*not finite"),
    ],
)
def test_damaged_lines_are_reported_with_their_numbers(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "damaged.txt"
    path.write_text(f"the 1 2 3\n{line}")
    with pytest.raises(UserError, match=message):
        read_word_vectors(path, ["cat"], 3, unknown="error")
