"""Refusing what does not fit into memory, before it is taken."""

import os
import re
import resource
from pathlib import Path

from attncli.errors import UserError

ALWAYS_THERE_BYTES = 16 * 2**20
"""Less than importing torch takes: not worth a look at the machine for each of many small experiments."""


def available_bytes() -> int:
    """Bytes of memory that are free: on the machine; in the control group or to the process where less is."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        available = min(available, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and Path("/proc/self/statm").exists():
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        available = min(available, most - taken)
    return available


def readable_bytes(count: int) -> str:
    """`17.2 GB`: a size for people, in powers of 1000."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if size < 1000 or unit == "EB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def refuse_bytes(experiment: str, needed: int, instead: str) -> None:
    """UserError that says what an experiment needs and what to use instead, where memory does not suffice."""
    if needed <= ALWAYS_THERE_BYTES:
        return
    available = available_bytes()
    if needed > available:
        sizes = f"needs about {readable_bytes(needed)} of memory and {readable_bytes(available)} are free"
        raise UserError(f"{experiment}: {sizes}: use {instead}")


NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory")
WANTED = re.compile(r"allocate (\d+) bytes|allocate ([\d.]+) ([KMG])iB")
LESS_MEMORY = "use a shorter text, --dtype bfloat16 with a model, or fewer --workers in a batch"


def is_about_memory(error: BaseException) -> bool:
    """Whether memory was wanted that is not there: torch and safetensors raise errors of other kinds then."""
    # torch.OutOfMemoryError by its name: torch may not have been imported.
    is_named_so = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named_so or NO_MEMORY.search(str(error)) is not None


def wanted_memory(error: BaseException) -> str:
    """How much an error says was wanted: `another 34.4 GB`; a MemoryError of ours says it in these words."""
    match = WANTED.search(str(error))
    if match is None:
        return str(error) if type(error) is MemoryError and error.args else "more"
    size = int(match[1]) if match[1] else float(match[2]) * 2 ** (10 * " KMG".index(match[3]))
    return f"another {readable_bytes(int(size))}"


def raise_if_memory(error: Exception) -> None:
    """MemoryError from an error that is about memory."""
    if is_about_memory(error):
        raise MemoryError(wanted_memory(error)) from error


def out_of_memory(error: BaseException) -> str:
    """How much was wanted, how much is free, and what takes less."""
    free = readable_bytes(max(0, available_bytes()))
    return f"out of memory: needs {wanted_memory(error)}, and {free} are free: {LESS_MEMORY}"
