"""How often each interval that attn prints holds, by simulation: the table of benchmarks/intervals.md.

    python tools/interval_coverage.py [--repeats 4000]

Every row asks the very function that reports ask. Of shares in groups the groups differ, as texts do.
"""

import argparse
from collections.abc import Callable, Iterator
from math import isnan, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attncli.core.summaries import clustered_interval, mean_interval, share_interval
from attncli.features.separate.auroc import (
    auroc_interval,
    difference_interval,
    mean_degrees,
    paired_difference,
    separation,
)

PAGE = Path(__file__).parents[1] / "benchmarks" / "intervals.md"
REPEATS = 4000
BEGIN, END = "<!-- coverage -->", "<!-- end of coverage -->"
GENERATOR = np.random.default_rng(0)
Sampler = Callable[[int, int], Tensor]
"""Numbers, repeat by text."""


class Coverage(NamedTuple):
    """A row of the table: an interval, of what numbers, and for each size the share that holds the truth."""

    interval: str
    numbers: str
    shares: dict[str, float]

    @property
    def line(self) -> str:
        """The row as Markdown."""
        cells = ", ".join(f"{size}: {share:.2f}" for size, share in self.shares.items())
        return f"| {self.interval} | {self.numbers} | {cells} |"


def beta(a: float, b: float) -> tuple[Sampler, float]:
    """Shares, and their mean."""

    def sampled(repeats: int, size: int) -> Tensor:
        return torch.from_numpy(GENERATOR.beta(a, b, (repeats, size)))

    return sampled, a / (a + b)


MEANS: dict[str, tuple[Sampler, float]] = {
    "normal": (lambda repeats, size: torch.randn(repeats, size, dtype=torch.float64), 0.0),
    "shares of 0.5 (Beta(2, 2))": beta(2.0, 2.0),
    "shares of 0.09 (Beta(2, 20))": beta(2.0, 20.0),
    "skewed shares of 0.05 (Beta(0.5, 10))": beta(0.5, 10.0),
    "exponential": (lambda repeats, size: -torch.rand(repeats, size, dtype=torch.float64).log(), 1.0),
}


def _held(lower: Tensor, upper: Tensor, truth: float) -> float:
    return float(((lower <= truth) & (truth <= upper)).double().mean())


def means(repeats: int) -> Iterator[Coverage]:
    """Of means over texts: Student's t."""
    for name, (sampled, truth) in MEANS.items():
        shares = {}
        for size in (3, 5, 10, 20, 50, 200):
            numbers = sampled(repeats, size)
            mean = numbers.mean(dim=1)
            squares = (numbers - mean.unsqueeze(1)).square().sum(dim=1)
            ends = mean_interval(torch.full((repeats,), size), mean, squares)
            shares[f"{size}"] = _held(*ends, truth)
        yield Coverage("mean over texts (Student's t)", name, shares)


def word_shares(repeats: int) -> Iterator[Coverage]:
    """Of shares of words, each on its own: Wilson."""
    for truth in (0.5, 0.9, 0.05):
        shares = {}
        for size in (10, 30, 100, 1000):
            hits = GENERATOR.binomial(size, truth, repeats).tolist()
            known = {each: share_interval(each, size) for each in {*hits}}
            within = [known[each][0] <= truth <= known[each][1] for each in hits]
            shares[f"{size}"] = sum(within) / repeats
        yield Coverage("share of words (Wilson)", f"independent words, {truth:g}", shares)


def grouped_shares(repeats: int) -> Iterator[Coverage]:
    """Of shares in groups that differ: Wilson's with the design effect, 20 trials a group."""
    for a, b in ((2.0, 2.0), (9.0, 1.0)):
        sampled, truth = beta(a, b)
        shares = {}
        for size in (3, 5, 10, 20, 50):
            hits = torch.from_numpy(GENERATOR.binomial(20, sampled(repeats, size).numpy())).double()
            counts = torch.full((size, repeats), 20.0)
            ends = clustered_interval(hits.T, counts, torch.arange(size), torch.full((repeats,), 20.0 * size))
            shares[f"{size}"] = _held(*ends, truth)
        yield Coverage("held-out pairs (Wilson, by group)", f"groups that differ, {truth:g}", shares)


SIZES = ((5, 50), (10, 10), (20, 20), (50, 50))
AUROCS = (0.5, 0.75, 0.92, 0.98)


def _scores(auroc: float, labels: Tensor, repeats: int) -> Tensor:
    """Of texts by repeat: normal, and normal with another mean."""
    return torch.randn(len(labels), repeats, dtype=torch.float64) + _shift(auroc) * labels.unsqueeze(1)


def _shift(auroc: float) -> float:
    return sqrt(2) * NormalDist().inv_cdf(auroc)


def _labels(positive: int, negative: int) -> Tensor:
    return torch.arange(positive + negative) < positive


def aurocs(repeats: int) -> Iterator[Coverage]:
    """Of AUROCs that have an interval, as groups that overlap have."""
    for auroc in AUROCS:
        shares = {}
        for sizes in SIZES:
            labels = _labels(*sizes)
            result = separation(_scores(auroc, labels, repeats), labels)
            lower, upper = result.interval()
            known = ~lower.isnan()
            shares["+".join(map(str, sizes))] = _held(lower[known], upper[known], auroc)
        yield Coverage("AUROC (DeLong, logit)", f"normal, {auroc:g}", shares)


def mean_aurocs(repeats: int) -> Iterator[Coverage]:
    """Of means over three groups."""
    for auroc in (0.75, 0.92):
        shares = {}
        for sizes in SIZES:
            labels = _labels(*sizes)
            parts = [separation(_scores(auroc, labels, repeats), labels) for _ in range(3)]
            within = []
            for repeat in range(repeats):
                of_groups, errors, degrees = (
                    [float(values[repeat]) for values in column]
                    for column in zip(*(part.parts for part in parts), strict=True)
                )
                if not any(map(isnan, errors)):
                    error = sqrt(sum(each**2 for each in errors)) / 3
                    lower, upper = auroc_interval(sum(of_groups) / 3, error, mean_degrees(errors, degrees))
                    within.append(lower <= auroc <= upper)
            shares["+".join(map(str, sizes))] = sum(within) / len(within)
        yield Coverage("mean AUROC of three groups", f"normal, {auroc:g}", shares)


def differences(repeats: int) -> Iterator[Coverage]:
    """Of two AUROCs on the same texts, whose scores go together."""
    for first, second in ((0.75, 0.75), (0.92, 0.75)):
        shares = {}
        for sizes in SIZES:
            labels = _labels(*sizes)
            shared = torch.randn(len(labels), repeats, dtype=torch.float64)
            a, b = (
                sqrt(0.5) * (shared + torch.randn_like(shared)) + _shift(auroc) * labels.unsqueeze(1)
                for auroc in (first, second)
            )
            within = []
            for repeat in range(repeats):
                lower, upper = difference_interval(*paired_difference(a[:, repeat], b[:, repeat], labels))
                if not isnan(lower):
                    within.append(lower <= first - second <= upper)
            shares["+".join(map(str, sizes))] = sum(within) / len(within)
        yield Coverage("difference of AUROCs (DeLong)", f"normal, {first:g} and {second:g}", shares)


def table(repeats: int = REPEATS) -> list[Coverage]:
    """All rows; those that take a loop of Python with a quarter of the repeats."""
    torch.manual_seed(0)
    GENERATOR.bit_generator.state = np.random.default_rng(0).bit_generator.state
    few = max(1, repeats // 4)
    return [
        *means(repeats),
        *word_shares(repeats),
        *grouped_shares(repeats),
        *aurocs(repeats),
        *mean_aurocs(few),
        *differences(few),
    ]


def printed() -> list[Coverage]:
    """The rows of the page."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index(BEGIN) : text.index(END)].splitlines()
    rows = []
    for line in (line for line in lines if ": 0." in line or ": 1." in line):
        interval, numbers, cells = (cell.strip() for cell in line.strip("|").split("|"))
        pairs = (cell.split(": ") for cell in cells.split(", "))
        rows.append(Coverage(interval, numbers, {size: float(share) for size, share in pairs}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    for row in table(parser.parse_args().repeats):
        print(row.line)


if __name__ == "__main__":
    main()
