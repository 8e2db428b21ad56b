"""What checks the shapes in signatures."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from beartype import beartype
from beartype._check.code import codemain
from jaxtyping import config

# Of a list one item is checked, at random: not with the numbers of the code under test, which may be seeded.
vars(codemain)["getrandbits"] = random.Random(0).getrandbits


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """An inner function stays as it is: its checks would be written anew at each call of the outer one."""
    checks: Callable[..., Any] = function if "<locals>" in function.__qualname__ else beartype(function)
    return checks


ALWAYS_CHECKED = 1000
"""Calls in the cases of one test; a check takes longer than what most functions compute."""
THEN_ONE_IN = 31


class ChecksByTest(type(config)):  # type: ignore[misc]
    """jaxtyping's settings, of which this one is read at each call of a function with shapes to check."""

    calls: ClassVar[Counter[str]] = Counter()
    test = ""

    @property
    def jaxtyping_disable(self) -> bool:
        self.calls[self.test] += 1
        count = self.calls[self.test]
        return count > ALWAYS_CHECKED and count % THEN_ONE_IN > 0


def check_by_test() -> ChecksByTest:
    """From now on all of the first calls of a test are checked, and some of the others."""
    config.__class__ = ChecksByTest
    return config
