"""The first and the last lines of a first screen: what was read, the notes, and what to type next."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.spec import SPECS
from attncli.spec.text import is_vector_file
from attncli.views import Display
from attncli.views.heading import ARROW, heading, is_in_heading, setting, text_of, token_counts
from attncli.views.labels import shortened
from attncli.views.parts import parts_of
from attncli.views.tables.elements import Paragraph
from attncli.views.terminal.blocks import wrap_cells

NOTE_LINES = 3
# Settings that usually have the value of another one.
FOLLOWS = {"value_dim": "head_dim", "num_kv_heads": "num_heads"}
USUAL = {"embedding": ("random", "gaussian")}
SIZES = ("embed_dim", "num_heads", "head_dim")
# They are elsewhere in the first lines.
SHOWN_ELSEWHERE = ("file", "seed")
# Of reports without a Spec.
NEXT_STEPS = {
    "diff": ("--show weights", "--show statistics", "-o page.html"),
    "results": ("--statistic NAME", "--group-by layer", "-o summary.csv"),
    "show": ("--show all", "--format heatmap", "-o page.html"),
}


def opening(report: Report, display: Display) -> Iterator[Paragraph]:
    """The text on a line, and the sizes; the heading of a report that no experiment made."""
    if report.experiment not in SPECS:
        yield Paragraph(heading(report), "title")
        return
    width = display.width or 0
    room = width - cell_len(f"{report.experiment}: ")
    texts = [text_of(report, "sentence"), text_of(report, "context")]
    if texts[1]:
        room = (room - len(ARROW)) // 2
    texts = [shortened(text, max(room, 1)) for text in texts if text]
    yield Paragraph(": ".join(filter(None, (report.experiment, ARROW.join(texts)))), "title")
    # On two lines where one is too short.
    lines = [", ".join([*token_counts(report), *_settings(report)]), _untrained(report)]
    whole = "   ".join(filter(None, lines))
    for line in [whole] if cell_len(whole) <= width else filter(None, lines):
        yield Paragraph(line, "line")


def one_line(text: str, display: Display, style: str = "") -> Paragraph:
    """A text, shortened to one line."""
    return Paragraph(shortened(plain_text(text), display.width), style)


def model_name(report: Report) -> str:
    """The model's folder or id, the default one where the user named none."""
    default = getattr(SPECS[report.experiment], "default_model", "")
    return Path(str(report.spec.get("model") or default)).name


def text_line(report: Report, display: Display) -> Paragraph:
    """What the model read, on one line."""
    spec = report.spec
    if spec.get("probe"):
        return Paragraph(f"probe: {spec.get('num_tokens')} random tokens, twice", "")
    group = f", group {spec['text_group']}" if spec.get("text_group") else ""
    texts = f"texts {spec['texts']}{group}" if spec.get("texts") else ""
    text = texts or spec.get("sentence") or f"file {spec.get('file')}"
    return one_line(" ".join(str(text).split()), display)


def closing_notes(notes: Iterable[str]) -> Iterator[Paragraph]:
    """Notes below a blank line."""
    yield Paragraph("", "dim")
    for note in notes:
        yield Paragraph(plain_text(note), "note")


def fitting_notes(report: Report, display: Display, num_lines: int = NOTE_LINES) -> Iterator[Paragraph]:
    """The notes of a report that fit that many lines."""
    for text in map(plain_text, report.notes):
        num_lines -= len(wrap_cells(text, display.width or 0))
        if num_lines >= 0:
            yield Paragraph(text, "note")


def _settings(report: Report) -> Iterator[str]:
    """The sizes of the heading, and those of its settings that are not usual."""
    spec = report.spec
    for key in SPECS[report.experiment].heading_keys:
        if (
            key not in SHOWN_ELSEWHERE
            and is_in_heading(spec, key)
            and (key in SIZES or not _is_usual(report, key))
        ):
            yield key if spec[key] is True else f"{key} {setting(spec[key])}"


def _is_usual(report: Report, key: str) -> bool:
    """Whether a setting has its default, or follows from another one."""
    value = report.spec[key]
    default = SPECS[report.experiment].model_fields[key].default
    return value in (default, *USUAL.get(key, ())) or value == report.spec.get(FOLLOWS.get(key, ""))


def _untrained(report: Report) -> str:
    spec = report.spec
    projection, embedding = spec.get("projection"), spec.get("embedding")
    if projection in ("linear", "uniform"):
        return f"UNTRAINED (random weights, seed {spec.get('seed')})"
    if projection == "none" and embedding is not None and not is_vector_file(embedding):
        return f"UNTRAINED (random embeddings, seed {spec.get('seed')})"
    return ""


def next_steps(report: Report) -> Iterator[Paragraph]:
    """What to type next, without flags that the report has already or cannot have."""
    name = report.experiment
    steps = SPECS[name].steps_after(report.spec) if name in SPECS else NEXT_STEPS.get(name, ())
    if shown := [step for step in steps if _is_new(step, report)]:
        yield Paragraph(f"Next, with attn {name}: {'  '.join(shown)}", "prose")


def _is_new(step: str, report: Report) -> bool:
    flag, _, value = step.partition(" ")
    key = flag.removeprefix("--").replace("-", "_")
    if flag == "--show":
        return {*value.split(",")} <= {*parts_of(report), "all"}
    if key == "explain" and (report.spec.get("engine") == "streaming" or report.spec.get("words")):
        return False
    spec = SPECS.get(report.experiment)
    if spec is None or key not in spec.model_fields:
        return True
    # Some defaults follow from settings before them; a report may lack some.
    settings: dict[str, Any] = {}
    for name, field in spec.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data=settings)
        settings[name] = report.spec.get(name, default)
        if name == key:
            break
    if value and report.spec.get(key) not in (None, [], default):
        return False
    if key in spec.off_keys and key not in report.spec:
        return True
    return key in report.spec and setting(report.spec[key]) != (value or "true")
