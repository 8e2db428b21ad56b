"""Sizes are checked before memory is taken: what does not fit is refused with how much it needs."""

import os
from pathlib import Path

from attncli.errors import UserError

ALWAYS_THERE_BYTES = 16 * 2**20
"""Less than the import of torch takes: not worth asking the machine for each of many small experiments."""


def available_bytes() -> int:
    """Bytes that a process may still take: the machine's, or its control group's where that is less."""
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
    """UserError that says how much an experiment needs, where that is more than there is, and what to do."""
    if needed <= ALWAYS_THERE_BYTES:
        return
    available = available_bytes()
    if needed > available:
        sizes = f"needs about {readable_bytes(needed)} of memory and {readable_bytes(available)} are free"
        raise UserError(f"{experiment}: {sizes}: use {instead}")
