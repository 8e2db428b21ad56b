"""How long it takes to say why heads look where they look: whole commands, as typed.

    python benchmarks/circuit.py --model FOLDER              SmolLM2: about five minutes
    python benchmarks/circuit.py --model FOLDER --rounds 1

`logit` is attn why, `score` attn why --head on the same text. `edges`: attn circuit on 81 tokens, all heads;
`compositions`: the same from weights alone. `swaps`: every head at each of 14 tokens, in both directions.
Seconds and CPU seconds of whole processes, the least of the rounds; how busy the cores were is printed, too.
Linux only.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

TEXT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Mary and John went to the store, Mary gave a drink to"
COMMANDS = {
    "logit": ("why", TEXT),
    "score": ("why", TEXT, "--head", "18:6"),
    "edges": ("circuit", "--num-tokens", "40"),
    "compositions": ("circuit", "--weights"),
    "swaps": (
        *("ablate", TEXT, "--method", "swap", "--other", OTHER, "--token", "each"),
        *("--answer", " Mary", "--against", " John"),
    ),
}


def seconds(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of one command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "attncli", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, of_cpu


def main() -> None:
    """One line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, arguments in COMMANDS.items():
        rounds = [seconds((*arguments, "--model", asked.model)) for _ in range(asked.rounds)]
        wall, of_cpu = (min(numbers) for numbers in zip(*rounds, strict=True))
        print(f"{name:12} {wall:6.1f} s  {of_cpu:6.1f} s of CPU")


if __name__ == "__main__":
    main()
