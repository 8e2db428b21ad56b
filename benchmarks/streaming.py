"""How long `attention_statistics` takes next to scaled_dot_product_attention, and what memory it needs.

    python benchmarks/streaming.py                     up to 16,384 tokens, a few minutes
    python benchmarks/streaming.py --full              up to 65,536
    python benchmarks/streaming.py --lengths 4096 --threads 2

Times are medians of alternating runs (A B A B) in one process: thread CPU time on one thread, wall time
on more. Memory is the growth of the peak over the inputs, in a fresh process for each figure.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from attncli.core.attention_statistics import attention_statistics

DIM, TOP_K = 64, 5
METHODS = ("sdpa", "streaming", "materialise")


def materialise(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """The same figures from the whole matrix, as one would usually write them."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    num_keys = key.shape[-2]
    if causal:
        visible = torch.ones(num_keys, num_keys, dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -torch.inf)
    else:
        visible = torch.ones(num_keys, num_keys, dtype=torch.bool)
    weights = scores.softmax(-1)
    position = torch.arange(num_keys)
    return (
        weights @ value,
        scores.logsumexp(-1),
        torch.special.entr(weights).sum(-1),
        weights.amax(-1),
        *weights.topk(min(TOP_K, num_keys)),
        weights[..., 0],
        (weights * (position[:, None] - position).abs()).sum(-1),
        1 / weights.square().sum(-1),
        weights.diagonal(-1, -2, -1),
        scores[..., visible].var(),
    )


def inputs(num_tokens: int, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, num_heads, num_tokens, DIM, generator=generator) for _ in range(3))
    return query, key, value


def call(method: str, tensors: tuple[Tensor, Tensor, Tensor], causal: bool) -> Callable[[], object]:
    query, key, value = tensors
    return {
        "sdpa": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal),
        "streaming": lambda: attention_statistics(query, key, value, causal=causal, top_k=TOP_K),
        "materialise": lambda: materialise(query, key, value, causal),
    }[method]


def seconds(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The median time of each call, the calls taking turns."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for function, times in zip(calls, taken, strict=True):
            began = clock()
            function()
            if turn or repeats == 1:  # the first turn warms up
                times.append(clock() - began)
    return [statistics.median(times) for times in taken]


def peak_over_inputs(method: str, num_tokens: int, num_heads: int, causal: bool) -> float:
    """Growth of the peak resident memory, in MB, run in a process of its own."""
    tensors = inputs(num_tokens, num_heads)
    call(method, inputs(64, num_heads), causal)()  # what a first call loads is not the memory of a long one
    before = _peak_resident_kb()
    call(method, tensors, causal)()
    return (_peak_resident_kb() - before) / 1024


def _peak_resident_kb() -> int:
    """Linux's high-water mark of this process (ru_maxrss would begin at the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def measured_peak(method: str, num_tokens: int, num_heads: int, causal: bool, threads: int) -> float:
    arguments = [
        "--peak",
        method,
        "--lengths",
        str(num_tokens),
        "--heads",
        str(num_heads),
        "--threads",
        str(threads),
    ]
    command = [sys.executable, __file__, *arguments, "--causal", "yes" if causal else "no"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report(num_tokens: int, num_heads: int, causal: bool, threads: int, materialise_mb: int) -> str:
    """One row of the table."""
    work = num_heads * num_tokens**2
    dense = 8 * work * 4 / 2**20 <= materialise_mb  # up to eight matrices are alive at once
    methods = METHODS if dense else METHODS[:2]
    tensors = inputs(num_tokens, num_heads)
    repeats = 1 if work > 2**31 else 3 if work > 2**27 else 7
    # In pairs: a method that takes gigabytes leaves caches and pages in another state than one that does not.
    pairs = [
        seconds([call(method, tensors, causal) for method in ("sdpa", other)], repeats)
        for other in methods[1:]
    ]
    ratios = [f"{other / sdpa:9.2f}" for sdpa, other in pairs] + ["        -"] * (2 - len(pairs))
    peaks = [
        f"{measured_peak(method, num_tokens, num_heads, causal, threads):9.0f}" for method in methods[1:]
    ]
    cells = [*ratios, *peaks, *["        -"] * (2 - len(peaks))]
    return (
        f"{num_tokens:7} {num_heads:5} {'yes' if causal else 'no':>6} {pairs[0][0] * 1e3:9.1f} "
        + " ".join(cells)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--causal", choices=["yes", "no"], nargs="+", default=["no", "yes"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="also 32,768 and 65,536 tokens")
    parser.add_argument("--materialise-mb", type=int, default=2048, help="memory for the dense comparison")
    parser.add_argument("--peak", choices=METHODS, help="print one peak in MB and nothing else")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lengths = [*given.lengths, 32768, 65536] if given.full else given.lengths
    if given.peak:
        print(peak_over_inputs(given.peak, lengths[0], given.heads[0], given.causal == ["yes"]))
        return
    clock = "thread CPU" if given.threads == 1 else "wall"
    print(f"torch {torch.__version__}, {given.threads} thread(s), {clock} time, d {DIM}, top-{TOP_K}, output")
    print(f"{'':30} times SDPA         MB over the inputs")
    print(" tokens heads causal   SDPA ms streaming   dense streaming     dense")
    for heads in given.heads:
        for causal in given.causal:
            for num_tokens in lengths:
                row = report(num_tokens, heads, causal == "yes", given.threads, given.materialise_mb)
                print(row, flush=True)


if __name__ == "__main__":
    main()
