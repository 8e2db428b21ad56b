"""The title, text and main settings of a report, for people."""

from collections.abc import Mapping
from typing import Any

from attncli.plain_text import plain_text
from attncli.report import PLACES, Report
from attncli.spec import SPECS

# For reports that no experiment made: weights from another tool.
OTHER_KEYS = ("file", "array")
OTHER_TITLES = {"diff": "A and B compared", "show": "Attention weights"}
# Reports that compare, whose first note says what differs.
COMPARISONS = ("diff", "pitfalls")
ARROW = " -> "


def heading(report: Report) -> str:
    """`self: 6 tokens, embedding random, embed_dim 64, ...`"""
    parts = _settings(report)
    return f"{report.experiment}: {', '.join(parts)}" if parts else report.experiment


def title(report: Report) -> str:
    """`Self-attention, tiny-induction, layer 0, head 2: the cat walks on the street`"""
    name = (SPECS[report.experiment].title if report.experiment in SPECS else "") or report.experiment
    parts = [OTHER_TITLES.get(name, name)]
    parts += [setting(report.spec[key]) for key in ("model", "pitfall") if report.spec.get(key)]
    parts += [f"{key} {report.spec[key]}" for key in PLACES if report.spec.get(key) is not None]
    text = ARROW.join(filter(None, (text_of(report, "sentence"), text_of(report, "context"))))
    return ": ".join(filter(None, (", ".join(parts), text)))


def subtitle(report: Report) -> str:
    """The settings, after what differs in a comparison."""
    lead = [first_note(report)] if report.experiment in COMPARISONS else []
    return " ".join([*lead, ", ".join(_settings(report))])


def nothing_to_draw(report: Report) -> str:
    """A message that a report has neither matrix nor curve, and what to run instead."""
    steps = SPECS[report.experiment].steps_after(report.spec)[:1] if report.experiment in SPECS else ()
    hint = f": try attn {report.experiment} {steps[0]}" if steps else ": --format table shows its numbers"
    return f"this report of {report.experiment} has no matrix and no curve to draw{hint}"


def first_note(report: Report) -> str:
    """`From A to B: causal false -> true.`"""
    return " ".join(map(plain_text, report.notes[:1]))


def text_of(report: Report, key: str) -> str:
    """The `sentence` or `context` as it was given, else its tokens."""
    spec = report.spec
    tokens = report.tokens if key == "sentence" else report.context_tokens
    if not tokens:
        return ""
    if spec.get("probe"):
        return f"random tokens, {spec['probe']}"
    if spec.get("num_tokens"):
        return "random vectors" if key == "sentence" else ""
    return plain_text(" ".join((spec.get(key) or " ".join(tokens)).split()))


def _settings(report: Report) -> list[str]:
    # The tokens of a summary are values of settings.
    if report.experiment == "results":
        return []
    keys = SPECS[report.experiment].heading_keys if report.experiment in SPECS else OTHER_KEYS
    settings = [f"{key} {setting(report.spec[key])}" for key in keys if is_in_heading(report.spec, key)]
    return token_counts(report) + settings


def token_counts(report: Report) -> list[str]:
    """`6 tokens` and `3 context tokens`, of those that the report has."""
    name = token_name(report)
    sides = ((report.tokens, name), (report.context_tokens, f"context {name}"))
    return [counted(len(tokens), name) for tokens, name in sides if tokens]


def token_name(report: Report) -> str:
    """What queries and keys are: tokens, or the words that they were merged into."""
    return "word" if report.spec.get("words") else "token"


def counted(count: int, name: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def is_in_heading(spec: Mapping[str, Any], key: str) -> bool:
    """Whether a setting is there, and is not a switch in its usual position."""
    value = spec.get(key)
    return value is not None and (key, value) not in (("causal", False), ("softmax", True))


def setting(value: Any) -> str:
    """The value of a setting in a heading; the last part of a path."""
    if isinstance(value, list):
        return ",".join(map(setting, value))
    if isinstance(value, bool):
        return str(value).lower()
    return plain_text(str(value).rpartition("/")[2])
