"""Sizes are checked before memory is taken: what does not fit is refused with how much it needs."""

import os
from pathlib import Path

from attncli.errors import UserError
from attncli.spec import Spec
from attncli.spec.attention import AttentionSpec, MultiheadSpec
from attncli.spec.heads import HeadsSpec
from attncli.spec.lessons import AverageSpec, NormSpec, ScaleDemoSpec
from attncli.spec.pitfalls import PitfallsSpec
from attncli.spec.variants import PositionSpec

# Bytes that a number takes at the peak, from scores to a printed report, measured and rounded up.
BYTES_PER_WEIGHT = 80
BYTES_PER_VECTOR_ENTRY = 80
BYTES_PER_PARAMETER = 8
BYTES_PER_TOP_KEY = 40
MAX_DENSE_BYTES = 64 * 2**20
ALWAYS_THERE_BYTES = 16 * 2**20
"""Less than the import of torch takes: not worth asking the machine for each of many small experiments."""


def _num_heads(spec: AttentionSpec) -> int:
    return spec.num_heads if isinstance(spec, MultiheadSpec) else 1


def weights_bytes(spec: AttentionSpec, num_queries: int, num_keys: int) -> int:
    """What the weights of every batch item and head take in float32."""
    return (spec.batch_size or 1) * _num_heads(spec) * num_queries * num_keys * 4


def chosen_engine(spec: AttentionSpec, num_queries: int, num_keys: int) -> str:
    """dense or streaming; auto streams weights beyond 64 MiB, unless what is asked for needs the matrix."""
    if spec.engine != "auto":
        return spec.engine
    is_large = weights_bytes(spec, num_queries, num_keys) > MAX_DENSE_BYTES
    return "streaming" if is_large and not spec.needs_dense() else "dense"


def _attention_bytes(spec: AttentionSpec, num_queries: int, num_keys: int) -> int:
    heads, batch = _num_heads(spec), spec.batch_size or 1
    tokens = num_queries + num_keys
    widths = spec.embed_dim + heads * (spec.head_dim + spec.value_dim)
    parameters = spec.embed_dim * heads * (2 * spec.head_dim + 2 * spec.value_dim)
    is_dense = chosen_engine(spec, num_queries, num_keys) == "dense"
    maps = 2 if spec.differential else 1
    buckets = heads * spec.num_buckets if isinstance(spec, PositionSpec) and spec.relative_bias else 0
    top_keys = batch * heads * num_queries * min(spec.top_k, num_keys)
    return (
        (batch * heads * maps * num_queries * num_keys * BYTES_PER_WEIGHT if is_dense else 0)
        + batch * tokens * widths * BYTES_PER_VECTOR_ENTRY
        + top_keys * BYTES_PER_TOP_KEY
        + parameters * BYTES_PER_PARAMETER
        + buckets * (BYTES_PER_VECTOR_ENTRY if spec.explain else BYTES_PER_PARAMETER)
    )


def needed_bytes(spec: Spec, num_queries: int, num_keys: int) -> int:
    """About how much memory an experiment takes at its peak, in bytes."""
    match spec:
        case HeadsSpec() | AttentionSpec(model=str()):
            return 0  # known when the model is there: refuse_bytes
        case AttentionSpec():
            return _attention_bytes(spec, num_queries, num_keys)
        case AverageSpec():
            vectors = (spec.batch_size or 1) * num_queries * spec.embed_dim
            top_keys = (spec.batch_size or 1) * num_queries * min(spec.top_k, num_queries)
            return (
                num_queries**2 * BYTES_PER_WEIGHT
                + vectors * BYTES_PER_VECTOR_ENTRY
                + top_keys * BYTES_PER_TOP_KEY
            )
        case PitfallsSpec():
            pairs = 2 * num_queries * (num_queries + spec.embed_dim) + 4 * spec.embed_dim**2
            return pairs * BYTES_PER_WEIGHT
        case ScaleDemoSpec():
            rows = spec.batch_size * spec.num_tokens
            return rows * (spec.num_tokens + max(spec.head_dim)) * BYTES_PER_VECTOR_ENTRY
        case NormSpec():
            return 5 * spec.batch_size * spec.num_features * BYTES_PER_VECTOR_ENTRY
    raise AssertionError(f"no size known for {spec.experiment}")


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


def refuse_what_does_not_fit(spec: Spec, num_queries: int, num_keys: int) -> None:
    """UserError that says how much an experiment needs, where that is more than there is."""
    instead = "smaller sizes"
    if isinstance(spec, AttentionSpec) and chosen_engine(spec, num_queries, num_keys) == "dense":
        needs = spec.needs_dense()
        hindered = f"smaller sizes, or engine streaming without {' and '.join(needs)}"
        instead = hindered if needs else "engine streaming or smaller sizes"
    refuse_bytes(spec, needed_bytes(spec, num_queries, num_keys), instead)


def refuse_bytes(spec: Spec, needed: int, instead: str) -> None:
    """UserError that says how much an experiment needs, where that is more than there is, and what to do."""
    if needed <= ALWAYS_THERE_BYTES:
        return
    available = available_bytes()
    if needed > available:
        sizes = f"needs about {readable_bytes(needed)} of memory and {readable_bytes(available)} are free"
        raise UserError(f"{spec.experiment}: {sizes}: use {instead}")
