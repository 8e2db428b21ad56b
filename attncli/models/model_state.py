"""A comparable value of a model's state, which changes with its hooks, parts, settings or code."""

import sys
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel


def model_configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Return every distinct config in the model: parts may have separate configs or share one."""
    configs: dict[int, PreTrainedConfig] = {}
    waiting = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if id(config) not in configs:
            configs[id(config)] = config
            parts = (getattr(config, name, None) for name in config.sub_configs)
            waiting += [part for part in parts if part is not None]
    return list(configs.values())


PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device))


MOST_NESTED = 50
"""The levels of nested lists and dicts that are compared by value, since an attribute may contain itself."""


def _frozen(value: Any, depth: int = 0) -> Any:
    """Return a value that changes with an attribute: numbers, strings and lists by value, others by id."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if isinstance(value, dict | list | tuple | set | frozenset):
        if depth == MOST_NESTED:
            return kind, id(value)
        values = value.values() if isinstance(value, dict) else value
        return (
            kind,
            *([tuple(value)] if isinstance(value, dict) else []),
            tuple(_frozen(each, depth + 1) for each in values),
        )
    if isinstance(value, Tensor):
        # By id, since tensors compare their numbers; `half()` keeps the parameter object.
        return kind, id(value), value.dtype, value.device, value.shape, value.requires_grad
    # A weak reference, so that no later object can be mistaken for it.
    return kind, ref(value) if kind.__weakrefoffset__ else id(value)


def _class_functions(kind: type) -> list[Any]:
    """Return the functions that instances of a class may run: methods and the functions in their modules."""
    classes = [each for each in kind.__mro__ if each.__module__.partition(".")[0] != "torch"]
    modules = [sys.modules[each.__module__] for each in classes if each.__module__ in sys.modules]
    functions = (part for owner in (*classes, *modules) for part in vars(owner).copy().values())
    return [part for part in functions if isinstance(part, FunctionType)]


def comparable_state(model: PreTrainedModel) -> Any:
    """Return a value that changes with the model's hooks, adapters, modes, parts, settings and code.

    The values of its parameters do not count.
    """
    parts = [*model.modules()]
    global_hooks = [vars(nn.modules.module)[name] for name in GLOBAL_HOOKS]
    classes = [
        (type(part), type(part).forward, _class_functions(type(part)))
        for part in {type(part): part for part in parts}.values()
    ]
    part_states = [(type(part), vars(part)) for part in parts]
    return _frozen([global_hooks, classes, part_states, [*map(vars, model_configs(model))]])


GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")
"""The torch attributes that hold the hooks for all modules."""
