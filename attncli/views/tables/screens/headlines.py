"""The first and the last line of a first screen: what was shown the experiment, and what to type next."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len

from attncli.report import Report
from attncli.spec import SPECS
from attncli.spec.text import is_vector_file
from attncli.views import Display
from attncli.views.heading import ARROW, counted, heading, says_something, setting, text_of, token_name
from attncli.views.labels import shortened
from attncli.views.parts import parts_of
from attncli.views.tables.elements import Paragraph

# Settings that usually have the value of another one.
FOLLOWS = {"value_dim": "head_dim", "num_kv_heads": "num_heads"}
USUAL = {"embedding": ("random", "gaussian")}
SIZES = ("embed_dim", "num_heads", "head_dim")
# They stand elsewhere in the first lines.
TOLD = ("file", "seed")
# Of reports that no Spec is behind.
NEXT_STEPS = {
    "diff": ("--show weights", "--show statistics", "-o page.html"),
    "results": ("--statistic NAME", "--group-by layer", "-o summary.csv"),
    "show": ("--show all", "--format heatmap", "-o page.html"),
}


def opening(report: Report, display: Display) -> Iterator[Paragraph]:
    """The text on a line, and the sizes; the heading of what no experiment made."""
    if report.experiment not in SPECS:
        yield Paragraph(heading(report), "title")
        return
    yield _title(report, display)
    yield from _sizes(report, display)


def _title(report: Report, display: Display) -> Paragraph:
    """`self: the cat walks on the street`, on one line."""
    room = (display.width or 0) - cell_len(f"{report.experiment}: ")
    texts = [text_of(report, "sentence"), text_of(report, "context")]
    if texts[1]:
        room = (room - len(ARROW)) // 2
    texts = [shortened(text, max(room, 1)) for text in texts if text]
    return Paragraph(": ".join(filter(None, (report.experiment, ARROW.join(texts)))), "title")


def _sizes(report: Report, display: Display) -> Iterator[Paragraph]:
    """`6 tokens, embed_dim 64, head_dim 64   UNTRAINED (random weights, seed 0)`, on two lines if need be."""
    name = token_name(report)
    sides = ((report.tokens, name), (report.context_tokens, f"context {name}"))
    parts = [counted(len(tokens), name) for tokens, name in sides if tokens]
    lines = [", ".join([*parts, *_settings(report)]), _untrained(report)]
    whole = "   ".join(filter(None, lines))
    for line in [whole] if cell_len(whole) <= (display.width or 0) else filter(None, lines):
        yield Paragraph(line, "line")


def _settings(report: Report) -> Iterator[str]:
    """The sizes of the heading, and those of its settings that are not as usual."""
    spec = report.spec
    for key in SPECS[report.experiment].heading_keys:
        if key not in TOLD and says_something(spec, key) and (key in SIZES or not _is_usual(report, key)):
            yield key if spec[key] is True else f"{key} {setting(spec[key])}"


def _is_usual(report: Report, key: str) -> bool:
    """Whether a setting has its default, or follows from another one."""
    value = report.spec[key]
    default = SPECS[report.experiment].model_fields[key].default
    return value in (default, *USUAL.get(key, ())) or value == report.spec.get(FOLLOWS.get(key, ""))


def _untrained(report: Report) -> str:
    """That nothing was trained, where weights or embeddings are random."""
    spec = report.spec
    projection, embedding = spec.get("projection"), spec.get("embedding")
    if projection in ("linear", "uniform"):
        return f"UNTRAINED (random weights, seed {spec.get('seed')})"
    if projection == "none" and embedding is not None and not is_vector_file(embedding):
        return f"UNTRAINED (random embeddings, seed {spec.get('seed')})"
    return ""


def next_steps(report: Report) -> Iterator[Paragraph]:
    """What to type next; a flag is left out where the report has that setting already, or cannot have it."""
    name = report.experiment
    steps = SPECS[name].steps_after(report.spec) if name in SPECS else NEXT_STEPS.get(name, ())
    if shown := [step for step in steps if _is_new(step, report)]:
        yield Paragraph(f"Next, with attn {name}: {'  '.join(shown)}", "prose")


def _default(field: Any, report: Report) -> Any:
    """What a setting is where nobody says otherwise: some follow from others, which may be off."""
    return field.get_default(call_default_factory=True, validated_data=defaultdict(lambda: None, report.spec))


def _is_new(step: str, report: Report) -> bool:
    flag, _, value = step.partition(" ")
    key = flag.removeprefix("--").replace("-", "_")
    if flag == "--show":
        return {*value.split(",")} <= {*parts_of(report), "all"}
    if key == "explain" and (report.spec.get("engine") == "streaming" or report.spec.get("words")):
        return False
    if report.experiment not in SPECS or key not in SPECS[report.experiment].model_fields:
        return True
    field, given = SPECS[report.experiment].model_fields[key], report.spec.get(key)
    if value and given not in (None, [], _default(field, report)):
        return False
    if key in SPECS[report.experiment].off_keys and key not in report.spec:
        return True
    return key in report.spec and setting(report.spec[key]) != (value or "true")
