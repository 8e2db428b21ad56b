"""What a report is, for people: its title, its text, and the settings that shape it."""

from collections.abc import Mapping
from typing import Any

from attncli.plain_text import plain_text
from attncli.report import PLACES, Report
from attncli.spec import SPECS

# Of reports that no experiment made: weights from another tool.
OTHER_KEYS = ("file", "array")
OTHER_TITLES = {"diff": "A and B compared", "show": "Attention weights"}
# Reports of two sides, of which the first note says what is different.
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
    """The settings, after what differs between the sides of a comparison."""
    lead = [first_note(report)] if report.experiment in COMPARISONS else []
    return " ".join([*lead, ", ".join(_settings(report))])


def nothing_to_draw(report: Report) -> str:
    """That a report has neither matrix nor curve, and what would have."""
    steps = SPECS[report.experiment].steps_after(report.spec)[:1] if report.experiment in SPECS else ()
    hint = f": try attn {report.experiment} {steps[0]}" if steps else ": --format table shows its numbers"
    return f"this report of {report.experiment} has no matrix and no curve to draw{hint}"


def first_note(report: Report) -> str:
    """`From A to B: causal false -> true.`"""
    return " ".join(map(plain_text, report.notes[:1]))


def text_of(report: Report, key: str) -> str:
    """The text of one side, its sentence or context, as it was given, else its tokens."""
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
    parts: list[str] = []
    # The values of settings that a summary stands by are no tokens.
    if report.experiment == "results":
        return parts
    if report.tokens:
        parts.append(counted(len(report.tokens), token_name(report)))
    if report.context_tokens:
        parts.append(counted(len(report.context_tokens), f"context {token_name(report)}"))
    keys = SPECS[report.experiment].heading_keys if report.experiment in SPECS else OTHER_KEYS
    return parts + [f"{key} {setting(report.spec[key])}" for key in keys if says_something(report.spec, key)]


def token_name(report: Report) -> str:
    """What stands at the queries and keys: tokens, or the words that they were merged into."""
    return "word" if report.spec.get("words") else "token"


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
