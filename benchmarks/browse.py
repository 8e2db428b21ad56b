"""How quickly the browser for heads answers a key, and how long a report takes to open.

    python benchmarks/browse.py [--rounds 20]

Each key is pressed in textual's own test driver, on a screen of 160 x 50, until every panel has drawn the
answer. Prints the median and the worst time of each key, in ms; the screen's own idle check is in them.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

import numpy as np

from attncli.report import NamedTensor, Report
from attncli.views.browser.app import Browser
from attncli.views.browser.atlas import grids
from attncli.views.browser.choice import Choice

SIZE = (160, 50)
# Name, heads in a layer, layers, tokens.
REPORTS = {
    "12 x 12 heads, 128 tokens": (12, 12, 128),
    "1 head, 512 tokens": (1, 1, 512),
    "2 x 12 heads, 512 tokens": (2, 12, 512),
}
KEYS = {
    "token": ("tab",),
    "head": ("right", "left"),
    "who looks": ("w",),
    "scale": ("c",),
    "sink": ("x",),
    "order": ("o",),
    "map": ("z",),
    "ranking": ("s",),
}


def report_of(layers: int, heads: int, tokens: int) -> Report:
    """Random causal weights, and a row of statistics a head."""
    generator = np.random.default_rng(0)
    scores = generator.normal(0, 3, (layers, heads, tokens, tokens)).astype(np.float32)
    weights = np.exp(scores) * np.tri(tokens, dtype=np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    rows = [
        {"layer": layer, "head": head, "kind": "self", "entropy": float(generator.random())}
        for layer in range(layers)
        for head in range(heads)
    ]
    tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), weights)}
    words = tuple(f"token{i % 97}" for i in range(tokens))
    return Report("heads", {}, {}, words, tensors=tensors, statistics={"heads": rows})


async def measured(report: Report, rounds: int) -> tuple[float, dict[str, list[float]]]:
    """Seconds to open, and seconds of each press of each key."""
    start = time.perf_counter()
    app = Browser(Choice(grids(report)), depth="truecolor")
    seconds: dict[str, list[float]] = {name: [] for name in KEYS}
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        opened = time.perf_counter() - start
        for _ in range(rounds):
            for name, keys in KEYS.items():
                for key in keys:
                    begun = time.perf_counter()
                    app.action_move(key) if key != "z" else app.action_whole()
                    app.screen._compositor.render_full_update()
                    seconds[name].append(time.perf_counter() - begun)
                    await pilot.pause()
    return opened, seconds


def show(name: str, opened: float, seconds: dict[str, Sequence[float]]) -> None:
    """A row a report."""
    cells = [f"{statistics.median(times) * 1000:.1f} ({max(times) * 1000:.1f})" for times in seconds.values()]
    print(f"| {name} | {opened * 1000:.0f} | {' | '.join(cells)} |")


def main() -> None:
    """Measure every report and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"| median (worst) ms | open | {' | '.join(KEYS)} |")
    print(f"| --- | {' | '.join(['---:'] * (len(KEYS) + 1))} |")
    for name, (layers, heads, tokens) in REPORTS.items():
        show(name, *asyncio.run(measured(report_of(layers, heads, tokens), rounds)))


if __name__ == "__main__":
    main()
