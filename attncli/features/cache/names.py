"""The names of cache policies and their papers, without torch or numpy."""

from typing import NamedTuple


class CachePolicy(NamedTuple):
    """A policy for the keys of a prompt: the cache keeps the keys with the highest scores.

    `keeps` describes the keys that stay. A policy sees nothing that comes after the prompt; policies.py
    computes the scores.
    """

    keeps: str
    paper: str


USUAL_BUDGETS = (0.1, 0.3, 0.5)
"""The default shares of the cache at which policies are measured."""
CACHE_POLICIES = {
    "window": CachePolicy("the last keys", "Beltagy et al. 2020 (2004.05150)"),
    "sinks": CachePolicy("the first four keys and the last keys", "Xiao et al. 2023 (2309.17453)"),
    "h2o": CachePolicy(
        "the keys with the most weight, averaged over the queries that see them",
        "Zhang et al. 2023 (2306.14048)",
    ),
    "tova": CachePolicy(
        "the keys with the most weight from the last token, equal for all heads",
        "Oren et al. 2024 (2401.06104)",
    ),
    "snapkv": CachePolicy(
        "the keys with the most weight from the last 64 tokens, smoothed over five keys",
        "Li et al. 2024 (2404.14469)",
    ),
    "pyramidkv": CachePolicy(
        "like snapkv, but with more keys in lower layers",
        "Cai et al. 2024 (2406.02069)",
    ),
    "knorm": CachePolicy("the shortest keys", "Devoto et al. 2024 (2406.11430)"),
    "expected": CachePolicy(
        "the keys with the most weight from Gaussian estimates of future queries",
        "Devoto et al. 2025 (2510.00636)",
    ),
    "random": CachePolicy("random keys", "a baseline"),
    "heads": CachePolicy(
        "all keys of the heads whose output changes most; the first and last keys of the other heads",
        "Xiao et al. 2024 (2410.10819)",
    ),
}
"""The policies in the order in which reports list them."""
