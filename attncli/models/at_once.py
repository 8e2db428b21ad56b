"""Simultaneous runs of a model, each in one thread and on separate modules with the same parameters."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from attncli.core.row_tiles import run_jobs
from attncli.core.runtime import torch_threads
from attncli.models.capture import comes_by_interface, copy_ways
from attncli.models.pretrained import Pretrained
from attncli.models.stored import use_of

WorkResult = TypeVar("WorkResult")
ModelWork = Callable[[Pretrained], WorkResult]

MOST_WORKS = 32
"""Works handed over together: each keeps the readings of its texts and its results."""
MOST_THREADS = 8
LONGEST = 1024
"""Tokens of a text up to which a run gains little from torch's own threads."""


def can_run_at_once(pretrained: Pretrained) -> bool:
    """Whether runs may use separate modules: for a model in memory, but not for a caller's, whose hooks would
    run in other threads.
    """
    is_here = pretrained.lent is None and pretrained.model.device.type == "cpu"
    return is_here and use_of(pretrained.whole) is None


def run_at_once(pretrained: Pretrained, works: Sequence[ModelWork[WorkResult]]) -> Iterator[WorkResult]:
    """The results of the works, in order, each computed in one thread, as many at a time as torch's threads.

    Torch's threads divide each small operation and wait for each other; works need not wait. The first work
    runs alone until it is known how the model computes attention. With eager attention all run one by one: a
    model may use state of the whole process then (BigBird uses numpy's generator). Raises the error of the
    first work that fails.
    """
    rest = deque(works)
    while rest and not comes_by_interface(pretrained.model):
        yield rest.popleft()(pretrained)
    num_threads = min(torch.get_num_threads(), len(rest), MOST_THREADS)
    if num_threads < 2:
        yield from (work(pretrained) for work in rest)
        return
    # Before any of them runs: a run changes the modules for a while.
    free = deque([pretrained, *(with_own_modules(pretrained) for _ in range(num_threads - 1))])

    def run(work: ModelWork[WorkResult]) -> WorkResult:
        copy = free.pop()
        try:
            return work(copy)
        finally:
            free.append(copy)

    with torch_threads(1):
        yield from run_jobs([partial(run, work) for work in rest], num_threads)


def with_own_modules(pretrained: Pretrained) -> Pretrained:
    """A copy of the model with separate modules, configs, hooks and buffers, but the same parameters."""
    whole = pretrained.whole
    copies: dict[int, Any] = {id(parameter): parameter for parameter in whole.parameters()}
    copy_of_whole = deepcopy(whole, copies)
    body = copies[id(pretrained.model)]
    copy_ways(pretrained.model, body)
    with_head = None if pretrained.with_head is None else copy_of_whole
    return replace(pretrained, model=body, with_head=with_head, classifier=None)
