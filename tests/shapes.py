"""What checks the shapes in signatures."""

import random
from collections.abc import Callable
from typing import Any

from beartype import beartype
from beartype._check.code import codemain

# Of a list one item is checked, at random: not with the numbers of the code under test, which may be seeded.
vars(codemain)["getrandbits"] = random.Random(0).getrandbits


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """An inner function stays as it is: its checks would be written anew at each call of the outer one."""
    checks: Callable[..., Any] = function if "<locals>" in function.__qualname__ else beartype(function)
    return checks
