"""Tokens by their names: positions, texts, and numbered occurrences."""

import pytest

from attncli.core.names import occurrences_among, the_one_position, token_positions

TOKENS = ("to", "be", "or", "5", "last", "to", "-1", "#2", "to#2", "##2", "C#")


def positions(name: str) -> tuple[int, ...]:
    return token_positions(name, len(TOKENS), occurrences_among(TOKENS))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("3", (3,)),
        ("last", (10,)),
        ("-1", (10,)),
        ("-11", (0,)),
        ("to", (0, 5)),
        ("to#1", (0,)),
        ("be#1", (1,)),
        # A token that is written like a position is meant in quotes.
        ("5", (5,)),
        ('"5"', (3,)),
        ('"last"', (4,)),
        ('"last"#1', (4,)),
        ('"-1"', (6,)),
        # One that is written like the number of a place is meant as it stands.
        ("#2", (7,)),
        ("to#2", (8,)),
        ("##2", (9,)),
        ("C#", (10,)),
        ("C##1", (10,)),
        ("not", ()),
        ("not#2", ()),
        ('"not"', ()),
        ('""', ()),
        ("٣", ()),
    ],
)
def test_names_of_tokens_give_positions(name: str, expected: tuple[int, ...]) -> None:
    assert positions(name) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("11", "must be a position from 0 to 10, or from -1 to -11, counted from the end (got 11)"),
        ("-12", "must be a position from 0 to 10, or from -1 to -11, counted from the end (got -12)"),
        ("to#3", "must be to#1 to to#2 (got to#3)"),
        ("to#0", "must be to#1 to to#2 (got to#0)"),
        ("be#2", "must be be#1 (got be#2)"),
    ],
)
def test_wrong_positions_are_refused_with_the_range(name: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        positions(name)
    assert str(caught.value) == said


def test_occurrences_of_words_are_counted_by_word() -> None:
    def words(text: str) -> list[range]:
        return [range(2, 4), range(7, 9)] if text == "lizard" else []

    assert token_positions("lizard", 9, words) == (2, 3, 7, 8)
    assert token_positions("lizard#2", 9, words) == (7, 8)


def test_an_ambiguous_name_of_one_token_is_refused() -> None:
    def words(text: str) -> list[range]:
        return {"to": [range(0, 1), range(5, 6)], "lizard": [range(2, 4)]}.get(text, [])

    assert the_one_position("be", (1,), words) == 1
    with pytest.raises(
        ValueError, match=r"must be one token: to is at 0, 5: use to#1 to to#2, or a position"
    ):
        the_one_position("to", (0, 5), words)
    with pytest.raises(ValueError, match=r"must be one token: lizard is at 2, 3: use a position"):
        the_one_position("lizard", (2, 3), words)
