"""Refusing what does not fit into memory, before it is taken."""

import os
from pathlib import Path

from attncli.errors import UserError

ALWAYS_THERE_BYTES = 16 * 2**20
"""Less than importing torch takes: not worth a look at the machine for each of many small experiments."""


def available_bytes() -> int:
    """Bytes of memory that are free: on the machine, or in the control group where that is less."""
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
    """UserError that says what an experiment needs and what to use instead, where memory does not suffice."""
    if needed <= ALWAYS_THERE_BYTES:
        return
    available = available_bytes()
    if needed > available:
        sizes = f"needs about {readable_bytes(needed)} of memory and {readable_bytes(available)} are free"
        raise UserError(f"{experiment}: {sizes}: use {instead}")
