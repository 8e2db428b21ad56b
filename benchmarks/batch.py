"""How fast many sentences are computed: a process each, a loop, together, and by `attn batch` into a store.

    python benchmarks/batch.py                      2,000 sentences, then 100,000 into a store: some minutes
    python benchmarks/batch.py --sentences 500 --stored 5000

Sentences of 6 to 40 random words, multihead attention with 8 heads, every statistic of every row, one thread.
Rates are sentences in a second of processor time, so that neighbours on the machine count for little; the
loop and the computing together take turns. A process each is measured on a few, its import included, and the
same for every one of them.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from attncli.experiments.session import Session
from attncli.experiments.together import run_in_buckets
from attncli.spec import SPECS, Spec
from attncli.spec.validation import Given, build_spec

NUM_WORDS, SHORTEST, LONGEST = 3000, 6, 40
EXPERIMENT, NUM_HEADS = "multihead", 8
WINDOW = 4096
TURNS = 5
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Cost(NamedTuple):
    """What some sentences took: processor and wall seconds, and the peak memory in MB where measured."""

    sentences: int
    processor: float
    wall: float
    peak: float | None = None


def sentences(count: int) -> list[str]:
    """Random words, the same each time."""
    chooser = random.Random(0)
    words = [f"w{i}" for i in range(NUM_WORDS)]
    return [" ".join(chooser.choices(words, k=chooser.randint(SHORTEST, LONGEST))) for _ in range(count)]


def spec_of(sentence: str) -> Spec:
    """The settings of one run."""
    values = {"sentence": sentence, "num_heads": NUM_HEADS}
    return build_spec(SPECS[EXPERIMENT], {key: Given(value, key) for key, value in values.items()})


def by_loop(specs: Sequence[Spec]) -> None:
    """One run after the other; no report is kept."""
    for spec in specs:
        Session().run(spec, reseed=True)


def in_buckets(specs: Sequence[Spec]) -> None:
    """As `attn batch` does, among 4,096 sentences at a time; no report is kept."""
    for start in range(0, len(specs), WINDOW):
        for _ in run_in_buckets(specs[start : start + WINDOW]):
            pass


def in_turns(calls: Sequence[Callable[[Sequence[Spec]], None]], specs: Sequence[Spec]) -> list[Cost]:
    """The median cost of each call, the calls taking turns."""
    taken: list[list[Cost]] = [[] for _ in calls]
    for turn in range(TURNS + 1):
        for call, costs in zip(calls, taken, strict=True):
            processor, wall = time.thread_time(), time.perf_counter()
            call(specs)
            cost = Cost(len(specs), time.thread_time() - processor, time.perf_counter() - wall)
            if turn:  # the first turn warms up
                costs.append(cost)
    return [
        Cost(
            len(specs),
            *(statistics.median(getattr(cost, of) for cost in costs) for of in ("processor", "wall")),
        )
        for costs in taken
    ]


def peak_of(process: int) -> float:
    """The most memory that a process has taken so far, in MB; 0 where it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0.0


def run_command(arguments: Sequence[str], count: int) -> Cost:
    """A command by itself: its time with that of its workers, and its own peak."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "attncli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ONE_THREAD)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, peak_of(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0, f"{command} ended with {process.returncode}"
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(count, processor, time.perf_counter() - began, peak)


def into_store(folder: Path, prompts: Sequence[str], *options: str) -> Cost:
    """`attn batch` on a new store."""
    (folder / "settings.yaml").write_text(f"experiment: {EXPERIMENT}\nnum_heads: {NUM_HEADS}\n")
    (folder / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
    files = [str(folder / "settings.yaml"), "--file", str(folder / "prompts.txt")]
    return run_command(["batch", *files, "-o", str(folder / "runs.db"), "--fresh", *options], len(prompts))


def row(name: str, cost: Cost, loop: Cost, each: Cost) -> str:
    """A line of the table."""
    rate = cost.sentences / cost.processor
    ratios = [rate * other.processor / other.sentences for other in (loop, each)]
    peak = "-" if cost.peak is None else f"{cost.peak:,.0f} MB"
    numbers = (
        f"{rate:,.1f} | {cost.sentences / cost.wall:,.1f} | {ratios[0]:,.2f} | {ratios[1]:,.0f} | {peak}"
    )
    return f"| {name} | {cost.sentences:,} | {numbers} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--stored", type=int, default=100_000, help="sentences for the last row")
    parser.add_argument("--processes", type=int, default=5, help="runs in a process each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = sentences(given.stored)
    specs = [spec_of(text) for text in texts[: given.sentences]]
    loop, together = in_turns([by_loop, in_buckets], specs)
    commands = [
        run_command([EXPERIMENT, "--sentence", text, "--num-heads", str(NUM_HEADS), "--format", "json"], 1)
        for text in texts[: given.processes]
    ]
    each = Cost(len(commands), sum(cost.processor for cost in commands), sum(cost.wall for cost in commands))
    lengths = f"{SHORTEST} to {LONGEST} words"
    print(f"torch {torch.__version__}, {EXPERIMENT}, {NUM_HEADS} heads, {lengths}, one thread")
    columns = [
        "",
        "sentences",
        "a processor second",
        "a second",
        "times the loop",
        "times a process each",
        "peak",
    ]
    print(f"| {' | '.join(columns)} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(row("a process each", each, loop, each))
    print(row("a loop in one process", loop, loop, each))
    print(row("together, in buckets of 32", together, loop, each))
    with tempfile.TemporaryDirectory() as folder:
        for name, prompts, options in (
            ("attn batch -o runs.db", texts[: given.sentences], ()),
            ("attn batch -o runs.db", texts, ()),
            ("attn batch -o runs.db --workers 2", texts[: given.stored // 5], ("--workers", "2")),
        ):
            print(row(name, into_store(Path(folder), prompts, *options), loop, each), flush=True)


if __name__ == "__main__":
    main()
