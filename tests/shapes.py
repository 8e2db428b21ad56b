"""What checks the shapes in signatures."""

import ast
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from beartype import beartype
from beartype._check.code import codemain
from jaxtyping import _import_hook, config

# Of a list one item is checked, at random: not with the numbers of the code under test, which may be seeded.
vars(codemain)["getrandbits"] = random.Random(0).getrandbits


def with_checks(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is compiled with it stays on disk by this name: another one where what is decorated changes."""
    checks: Callable[..., Any] = beartype(function)
    return checks


class OuterFunctions(_import_hook.JaxtypingTransformer):
    """Decorates functions but for those in others, whose checks would be written anew at each call."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        function = super().visit_FunctionDef
        self.visit_FunctionDef = lambda inner: inner  # type: ignore[method-assign]
        try:
            return function(node)
        finally:
            del self.visit_FunctionDef


vars(_import_hook)["JaxtypingTransformer"] = OuterFunctions

ALWAYS_CHECKED = 1000
"""Calls in the cases of one test; a check takes longer than what most functions compute."""
THEN_ONE_IN = 31


class ChecksByTest(type(config)):  # type: ignore[misc]
    """jaxtyping's settings, of which this one is read at each call of a function with shapes to check."""

    numbers: dict[str, Iterator[int]]
    number: Iterator[int]

    def begin(self, test: str) -> None:
        """The calls from now on are those of a test, which may have had some."""
        self.number = self.numbers.setdefault(test, count(1))

    @property
    def jaxtyping_disable(self) -> bool:
        number = next(self.number)
        return number > ALWAYS_CHECKED and number % THEN_ONE_IN > 0


def check_by_test() -> ChecksByTest:
    """From now on all of the first calls of a test are checked, and some of the others."""
    config.__class__ = ChecksByTest
    config.numbers = {}
    config.begin("")
    return config
