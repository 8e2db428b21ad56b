"""How long `attn` takes to start, as a multiple of `python -c "import torch"` measured in turns.

    python benchmarks/startup.py [--rounds 15]

Prints the median wall time of each command and the median of its ratio to the import, round by round.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ATTN = str(Path(sys.executable).with_name("attn"))
REFERENCE = 'python -c "import torch"'
COMMANDS = {
    REFERENCE: [sys.executable, "-c", "import torch"],
    "attn --help": [ATTN, "--help"],
    "attn self --help": [ATTN, "self", "--help"],
    'attn self --sentence "the cat walks on the street"': [
        *(ATTN, "self", "--sentence", "the cat walks on the street"),
    ],
}


def wall_seconds(command: list[str]) -> float:
    """Wall time of one run of a command, its output thrown away."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Run all commands in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for command in COMMANDS.values():
        wall_seconds(command)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(wall_seconds(command))
    print(f"| {'command':52} | median ms | of the import |")
    print(f"|{'-' * 54}|{'-' * 10}:|{'-' * 14}:|")
    for name, measured in times.items():
        ratio = statistics.median(a / b for a, b in zip(measured, times[REFERENCE], strict=True))
        print(f"| {name:52} | {statistics.median(measured) * 1000:9.0f} | {ratio:13.2f} |")


if __name__ == "__main__":
    main()
