"""The first line of a report for people: the experiment, its tokens, and the settings that shape it."""

from collections.abc import Mapping
from typing import Any

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.spec import SPECS

# Of reports that no experiment made: weights from another tool.
OTHER_KEYS = ("file", "array")


def heading(report: Report) -> str:
    """`self: 6 tokens, embedding random, embed_dim 64, ...`"""
    parts = []
    if report.tokens:
        parts.append(counted(len(report.tokens), "token"))
    if report.context_tokens:
        parts.append(counted(len(report.context_tokens), "context token"))
    keys = SPECS[report.experiment].heading_keys if report.experiment in SPECS else OTHER_KEYS
    parts += [f"{key} {setting(report.spec[key])}" for key in keys if says_something(report.spec, key)]
    return f"{report.experiment}: {', '.join(parts)}" if parts else report.experiment


def counted(count: int, name: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def says_something(spec: Mapping[str, Any], key: str) -> bool:
    """Whether a setting belongs into the heading: it is there, and no switch in its usual place."""
    value = spec.get(key)
    return (
        value is not None
        and not (key == "causal" and value is False)
        and not (key == "softmax" and value is True)
    )


def setting(value: Any) -> str:
    """A setting's value in a heading; of a path the last part."""
    if isinstance(value, list):
        return ",".join(map(setting, value))
    if isinstance(value, bool):
        return str(value).lower()
    return plain_text(str(value).rpartition("/")[2])
