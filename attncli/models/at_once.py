"""Concurrent runs of a model, each in its own thread, on separate modules that share parameters."""

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
from attncli.models.stored import stored_use

WorkResult = TypeVar("WorkResult")
ModelWork = Callable[[Pretrained], WorkResult]

MOST_WORKS = 32
"""The number of tasks submitted together; each keeps its results and the readings of its texts in memory."""
MOST_THREADS = 8
LONGEST = 1024
"""The text length, in tokens, up to which torch's own threads speed up a run only a little."""


def can_run_at_once(pretrained: Pretrained) -> bool:
    """Return True if runs may use separate modules.

    They may if the model is in memory and was not passed by a caller, since a caller's hooks would run in
    other threads.
    """
    is_here = pretrained.lent is None and pretrained.model.device.type == "cpu"
    return is_here and stored_use(pretrained.whole) is None


def run_at_once(pretrained: Pretrained, works: Sequence[ModelWork[WorkResult]]) -> Iterator[WorkResult]:
    """Return the results of tasks, in order, with as many concurrent tasks as torch has threads.

    Torch's own threads split each small operation and then wait for each other; separate tasks need not wait.
    Until the model's way of computing attention is known, tasks run alone. With eager attention they run one
    by one, since a model may then use state of the whole process (BigBird uses numpy's generator). Raises the
    error of the first task that fails.
    """
    waiting = deque(works)
    while waiting and not comes_by_interface(pretrained.model):
        yield waiting.popleft()(pretrained)
    num_threads = min(torch.get_num_threads(), len(waiting), MOST_THREADS)
    if num_threads < 2:
        yield from (work(pretrained) for work in waiting)
        return
    # The copies are made before any task runs, since a run changes the modules temporarily.
    free = deque([pretrained, *(with_separate_modules(pretrained) for _ in range(num_threads - 1))])

    def run(work: ModelWork[WorkResult]) -> WorkResult:
        copy = free.pop()
        try:
            return work(copy)
        finally:
            free.append(copy)

    with torch_threads(1):
        yield from run_jobs([partial(run, work) for work in waiting], num_threads)


def with_separate_modules(pretrained: Pretrained) -> Pretrained:
    """Return a copy of the model with separate modules, configs, hooks and buffers, but shared parameters."""
    whole = pretrained.whole
    copies: dict[int, Any] = {id(parameter): parameter for parameter in whole.parameters()}
    whole_copy = deepcopy(whole, copies)
    body = copies[id(pretrained.model)]
    copy_ways(pretrained.model, body)
    with_head = None if pretrained.with_head is None else whole_copy
    return replace(pretrained, model=body, with_head=with_head, classifier=None)
