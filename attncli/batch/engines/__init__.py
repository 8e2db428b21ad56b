"""Where chunks of a plan are worked on: in this process, in others of this machine, or on a Dask cluster.

Each engine has `run_chunks(chunks, work, ...)`, which pulls chunks as it needs them and yields each with what
`work(chunk)` gave, in any order. A chunk whose worker died, or whose work raised, is split in halves that are
tried again; a chunk of one run that fails so, time after time, comes back with Died.
"""

from importlib import import_module
from types import ModuleType

# Loaded when asked for: the cluster needs an optional package.
ENGINES = {
    "serial": "attncli.batch.engines.serial",
    "workers": "attncli.batch.engines.workers",
    "cluster": "attncli.batch.engines.cluster",
}


def load_engine(name: str) -> ModuleType:
    """The module of an engine, with its run_chunks."""
    return import_module(ENGINES[name])
