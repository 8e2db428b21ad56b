"""The built-in features by name, copied from their cards by `python tools/write_index.py`.

Commands, kinds of results, first screens and functions are made from this table: help imports no feature.
"""

from collections.abc import Mapping
from functools import cache as computed_once
from typing import TYPE_CHECKING

from attncli.feature import Feature, Question, features_in_use

if TYPE_CHECKING:
    from attncli.features.cache.door import cache as cache
    from attncli.features.cache.door import cache_policies as cache_policies

__all__ = ["cache", "cache_policies"]
"""Functions, for type checkers: at run time `attncli.NAME` imports them."""

FEATURES: dict[str, Feature] = {
    "cache": Feature(
        questions=(
            Question(
                name="cache",
                summary="What a smaller cache loses, by head and policy",
                group="Models",
                spec="attncli.features.cache.settings:CacheSpec",
                page="attncli.features.cache.question:PAGE",
                synonyms="kvcache kv_cache kv kvpress compress press evict",
            ),
        ),
        results={
            "cache": "attncli.features.cache.results:LimitedHeads",
            "cache of policies": "attncli.features.cache.results:PolicyCosts",
        },
        screens={
            "attncli.features.cache.results:LimitedHeads": "attncli.features.cache.screens:LIMITED_SCREEN",
            "attncli.features.cache.results:PolicyCosts": "attncli.features.cache.screens:POLICIES_SCREEN",
        },
        functions={
            "cache": "attncli.features.cache.door:cache",
            "cache_policies": "attncli.features.cache.door:cache_policies",
        },
        extras=("models",),
        docs="cache.md",
    ),
}


@computed_once
def installed_features() -> Mapping[str, Feature]:
    """Built-in features, then those of other packages; see `features_in_use`."""
    return features_in_use(FEATURES)
