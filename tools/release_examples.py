"""Keeps what this version writes, so that later ones are tested on it: python tools/release_examples.py

tests/releases gets VERSION.jsonl, a report of each experiment, and VERSION.db.gz, the store of a batch. It is
run once for a release. Another version's attn, on PYTHONPATH, is asked for what it has.
"""

import gzip
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "releases"
REPORTS = (
    'self "the cat" --embed-dim 2 --explain',
    'multihead "the cat sat" --num-heads 2 --embed-dim 2 --causal --top-k 2',
    'cross "a b" --context "c d e" --embed-dim 2',
    "average --num-tokens 3 --embed-dim 2",
    "scale-demo --head-dim 4 --factors 1,8",
    "norm --batch-size 3 --num-features 2",
    "pitfalls --pitfall late-mask",
    "heads --num-tokens 2",
    "ablate --num-tokens 2",
    "why --sentence abab",
    "generate --sentence abab --max-new-tokens 2",
    "cache --num-tokens 3 --budget 0.5 --window 1 --sink 0",
    "circuit --num-tokens 2",
    'source "<source A>a b</source> a" --answer " b" --head 1:0',
)
BATCH: dict[str, Any] = {
    "experiment": "self",
    "sentence": "the cat sat",
    "embed_dim": 2,
    "sweep": {"seed": [0, 1], "causal": [False, True]},
}


def attn(*arguments: str, folder: str) -> subprocess.CompletedProcess[bytes]:
    """What `attn` ended with, where this or the one on PYTHONPATH is."""
    environment = {"PYTHONPATH": str(ROOT), **os.environ}
    command = [sys.executable, "-P", "-m", "attncli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)


def write_examples(folder: Path) -> None:
    """The two files of the version that answers."""
    with TemporaryDirectory() as work:
        version = attn("--version", folder=work).stdout.decode().split()[1]
        reports = map(shlex.split, REPORTS)
        known = [report for report in reports if not attn(report[0], "--help", folder=work).returncode]
        ended = [attn(*report, "--format", "jsonl", folder=work) for report in known]
        for each in ended:
            assert not each.returncode, each
        (folder / f"{version}.jsonl").write_bytes(b"".join(each.stdout for each in ended))
        Path(work, "batch.yaml").write_text(json.dumps(BATCH))
        store = Path(work, "store.db")
        attn("batch", "batch.yaml", "-o", str(store), "--workers", "1", folder=work).check_returncode()
        (folder / f"{version}.db.gz").write_bytes(gzip.compress(store.read_bytes(), mtime=0))
        print(f"{version}: {len(ended)} reports and a store")


if __name__ == "__main__":
    write_examples(FOLDER)
