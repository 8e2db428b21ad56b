"""What checks the shapes in signatures."""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """An inner function stays as it is: its checks would be written anew at each call of the outer one."""
    checks: Callable[..., Any] = function if "<locals>" in function.__qualname__ else beartype(function)
    return checks
