"""How quickly the browser for heads answers a key, and how long a report takes to open.

    python benchmarks/browse.py [--rounds 20]

Each key is pressed in textual's own test driver, on a screen of 160 x 50, until every panel has drawn the
answer. Prints the best time of each key in ms, by the clock and of the processor; `nothing` is a key without
a meaning, which shows what the driver itself takes.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attncli.features.browse.browser import Browser
from attncli.features.browse.browser_choice import Choice, grids
from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table

SIZE = (160, 50)
# Name, heads in a layer, layers, tokens.
REPORTS = {
    "12 x 12 heads, 128 tokens": (12, 12, 128),
    "1 head, 512 tokens": (1, 1, 512),
    "2 x 12 heads, 512 tokens": (2, 12, 512),
}
KEYS = {
    "nothing": ("f5",),
    "token (Tab)": ("tab",),
    "head (arrows)": ("right", "left", "down", "up"),
    "who looks (f)": ("f",),
    "colours (c)": ("c",),
    "sink (x)": ("x",),
    "order (o)": ("o",),
    "map (z)": ("z",),
    "ranking (s)": ("s",),
}


class Times(NamedTuple):
    """Seconds by the clock and of the processor."""

    wall: float
    processor: float


def report_of(layers: int, heads: int, tokens: int) -> Report:
    """Random causal weights, and a row of statistics a head."""
    generator = np.random.default_rng(0)
    scores = generator.normal(0, 3, (layers, heads, tokens, tokens)).astype(np.float32)
    weights = np.exp(scores) * np.tri(tokens, dtype=np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    rows = Table(
        {"layer": layer, "head": head, "stack": "self", "entropy": float(generator.random())}
        for layer in range(layers)
        for head in range(heads)
    )
    tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), weights)}
    words = tuple(f"token{i % 97}" for i in range(tokens))
    return Report("heads", {}, {}, words, tensors=tensors, result=read_result("", {"heads": rows}))


def now() -> Times:
    """Both clocks."""
    return Times(time.perf_counter(), time.process_time())


def least(begun: Times, best: Times | None) -> Times:
    """What has passed since then, or less where it took less before."""
    passed = Times(*(end - start for end, start in zip(now(), begun, strict=True)))
    return passed if best is None else Times(*map(min, passed, best))


async def opened(report: Report, presses: Sequence[str]) -> tuple[Times, Times | None]:
    """The time to open a report, and the best time of the presses."""
    begun = now()
    best: Times | None = None
    app = Browser(Choice(grids(report)), depth="truecolor")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        opening = least(begun, None)
        for key in presses:
            begun = now()
            await pilot.press(key)
            best = least(begun, best)
    return opening, best


def measured(report: Report, rounds: int) -> dict[str, Times]:
    """The best times of opening and of each key."""
    openings, fastest = [], {}
    for name, keys in KEYS.items():
        opening, best = asyncio.run(opened(report, keys * rounds))
        openings.append(opening)
        assert best is not None
        fastest[name] = best
    return {"open": Times(*map(min, zip(*openings, strict=True)))} | fastest


def main() -> None:
    """Measure every report and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    by_report = {name: measured(report_of(*sizes), rounds) for name, sizes in REPORTS.items()}
    print(f"| ms by the clock, of the processor | {' | '.join(by_report)} |")
    print(f"| --- |{' ---: |' * len(by_report)}")
    for key in ("open", *KEYS):
        cells = [
            f"{times[key].wall * 1000:.0f}, {times[key].processor * 1000:.0f}" for times in by_report.values()
        ]
        print(f"| {key} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
