"""A value for what a model is like, which changes when its hooks, parts, settings or code do."""

import sys
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel


def configs_of(model: nn.Module) -> list[PreTrainedConfig]:
    """Every config in the model once: parts of a model may have separate configs, or share one."""
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
"""Levels of lists and dicts in an attribute that are compared by value; it may hold itself."""


def _frozen(value: Any, depth: int = 0) -> Any:
    """What changes when an attribute does: numbers, text and lists of them by value, anything else itself."""
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
        # By its id, since tensors compare their numbers; `half()` leaves a parameter itself.
        return kind, id(value), value.dtype, value.device, value.shape, value.requires_grad
    # A reference, so that no object that comes later is taken for it.
    return kind, ref(value) if kind.__weakrefoffset__ else id(value)


def _code_of(kind: type) -> list[Any]:
    """The functions that instances of a class may run: its methods and those of its bases' modules."""
    classes = [each for each in kind.__mro__ if each.__module__.partition(".")[0] != "torch"]
    modules = [sys.modules[each.__module__] for each in classes if each.__module__ in sys.modules]
    functions = (part for named in (*classes, *modules) for part in vars(named).copy().values())
    return [part for part in functions if isinstance(part, FunctionType)]


def state_of(model: PreTrainedModel) -> Any:
    """What equals itself until a hook, an adapter, a mode, a part, a setting or code of the model changes.

    Numbers of its parameters do not count.
    """
    parts = [*model.modules()]
    of_all = [vars(nn.modules.module)[name] for name in GLOBAL_HOOKS]
    of_kinds = [
        (type(part), type(part).forward, _code_of(type(part)))
        for part in {type(part): part for part in parts}.values()
    ]
    of_parts = [(type(part), vars(part)) for part in parts]
    return _frozen([of_all, of_kinds, of_parts, [*map(vars, configs_of(model))]])


GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")
"""Where torch keeps the hooks of all modules."""
