"""The card of `attn cache`."""

from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(
        Question(
            "cache",
            "Increase in loss with a smaller cache, by head and policy",
            "Models",
            spec="settings:CacheSpec",
            page="question:PAGE",
            synonyms="kvcache kv_cache kv kvpress compress press evict",
        ),
        Question(
            "policies",
            "Increase in loss if only some keys of a prompt are kept",
            spec="settings:PoliciesSpec",
            page="question:POLICIES_PAGE",
            form_of="cache",
            asked_by="policy",
        ),
        Question(
            "few_bits",
            "Increase in loss if a prompt's cache is rounded to few bits",
            spec="settings:BitsSpec",
            page="question:POLICIES_PAGE",
            form_of="cache",
            asked_by="bits",
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
    papers={
        "cache": "xiao2023",
        "policy=window": "beltagy2020",
        "policy=sinks": "xiao2023",
        "policy=h2o": "zhang2023",
        "policy=tova": "oren2024",
        "policy=snapkv": "li2024",
        "policy=pyramidkv": "cai2024",
        "policy=knorm": "devoto2024",
        "policy=expected": "devoto2025",
        "policy=heads": "xiao2024",
        "bits": "liu2024",
    },
)
