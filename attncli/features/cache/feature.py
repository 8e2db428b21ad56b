"""The card of `attn cache`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "cache",
            "What a smaller cache loses, by head and policy",
            "Models",
            spec="settings:CacheSpec",
            page="question:PAGE",
            synonyms="kvcache kv_cache kv kvpress compress press evict",
        ),
    ),
    results={"cache": "results:LimitedHeads", "cache of policies": "results:PolicyCosts"},
    screens={
        "results:LimitedHeads": "screens:LIMITED_SCREEN",
        "results:PolicyCosts": "screens:POLICIES_SCREEN",
    },
    page={"results:LimitedHeads": "page:FORGOTTEN"},
    functions={"cache": "door:cache", "cache_policies": "door:cache_policies"},
    extras=("models",),
    lessons=("lessons/19-smaller-cache.md",),
    docs="cache.md",
)
