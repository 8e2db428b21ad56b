"""Functions of torch by name, each with the methods and operators that call it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def functions_named(*names: str) -> set[Callable[..., object]]:
    """Return the torch functions with these names, including tensor methods, operators and in-place forms."""
    forms = [form for name in names for form in (name, f"{name}_", f"__{name}__", f"__i{name}__")]
    holders = (torch, Tensor, functional, torch.special)
    functions = (getattr(holder, form, None) for holder in holders for form in forms)
    return {function for function in functions if callable(function)}  # torch.float is a type


MATMULS = {*functions_named("matmul", "bmm", "mm"), Tensor.__rmatmul__}
SOFTMAXES = functions_named("softmax", "_softmax")
SCALINGS = {*functions_named("mul", "multiply"), Tensor.__rmul__}
