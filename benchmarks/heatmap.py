"""How long a heatmap takes to be written, at several sizes and depths of colour.

    python benchmarks/heatmap.py [--rounds 15]

Prints the shortest time of each, from numbers to text, with a cell a number. `softmax` is a matrix
of weights, in which many neighbours share a colour; in `random` nearly every cell has one of its own.
"""

import argparse
import io
import time

import numpy as np

from attncli.records.report import NamedTensor, Report
from attncli.views import Display, load_view

SIZES = (64, 160, 512)
DEPTHS = ("truecolor", "256", "16", "none")


def matrices(size: int) -> dict[str, np.ndarray]:
    """Weights of standard normal scores, and uniform numbers."""
    generator = np.random.default_rng(0)
    weights = np.exp(generator.normal(size=(size, size)))
    return {
        "softmax": weights / weights.sum(axis=1, keepdims=True),
        "random": generator.uniform(size=(size, size)),
    }


def shortest_seconds(report: Report, colors: str, rounds: int) -> tuple[float, int]:
    """The shortest time of some rounds, and the bytes written."""
    write = load_view("heatmap")
    times = []
    for _ in range(rounds):
        stream = io.StringIO()
        start = time.perf_counter()
        write([report], stream, Display(colors=colors))
        times.append(time.perf_counter() - start)
    return min(times), len(stream.getvalue().encode())


def main() -> None:
    """Print a table: size, numbers, depth, milliseconds, kilobytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print("| size | numbers | colours | ms | kB |")
    print("| ---: | --- | --- | ---: | ---: |")
    for size in SIZES:
        for name, values in matrices(size).items():
            report = Report("self", {}, {}, tensors={"weights": NamedTensor(("query", "key"), values)})
            for colors in DEPTHS:
                seconds, count = shortest_seconds(report, colors, rounds)
                print(f"| {size} | {name} | {colors} | {seconds * 1e3:.1f} | {count / 1e3:.0f} |")


if __name__ == "__main__":
    main()
