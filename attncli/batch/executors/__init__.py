"""Where the chunks of a plan are computed: in this process, in other processes, or on a Dask cluster.

Each executor has `run_chunks(chunks, work, ...)`, which pulls chunks as it needs them and yields each with
the result of `work(chunk)`, in any order. A chunk whose worker died, or whose work raised, is tried again in
halves; a chunk of one run that fails every time comes back with Died.
"""

from importlib import import_module
from types import ModuleType

# Loaded when asked for: the cluster needs an optional package.
EXECUTORS = {
    "serial": "attncli.batch.executors.serial",
    "workers": "attncli.batch.executors.workers",
    "cluster": "attncli.batch.executors.cluster",
}


def load_executor(name: str) -> ModuleType:
    """The module of an executor, with its run_chunks."""
    return import_module(EXECUTORS[name])
