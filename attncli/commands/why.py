"""What each head adds to the logit of the next token, as a report."""

from collections.abc import Callable, Sequence

import torch

from attncli.commands.heads import SHIPPED_NOTE
from attncli.measure.why import LogitAttribution, attribution, check_splits
from attncli.models.pretrained import Pretrained, Reading
from attncli.report import Numbers, Report, Statistic, Table, Tensors
from attncli.report_parts import build_report, named
from attncli.runs.runner import read_survey_text
from attncli.settings.ablate import WhySpec
from attncli.settings.text import Texts


def read(spec: WhySpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads; UserError for a model that does not predict what comes next."""
    check_splits(pretrained)
    return read_survey_text(spec, texts, pretrained, generator)


def report_each(
    specs: Sequence[WhySpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The report of each text."""
    return [_report(spec, reading, pretrained) for spec, reading in zip(specs, readings, strict=True)]


def _report(spec: WhySpec, reading: Reading, pretrained: Pretrained) -> Report:
    found = attribution(pretrained, reading, answer=spec.answer, against=spec.against, head=spec.head)
    ranked = sorted(found.heads, key=lambda row: -abs(row["contribution"]))
    statistics: dict[str, Statistic] = {
        "heads": Table(ranked[: spec.top]),
        "layers": Table(found.layers),
        "parts": Numbers(found.parts),
        "keys": Tensors(
            contribution=named(found.keys.contribution, "key"), weight=named(found.keys.weight, "key")
        ),
    }
    spec = spec.model_copy(update={"head": f"{found.head['layer']}:{found.head['head']}"})
    tensors = {"contribution": Table(found.heads).grids("contribution")[""]}
    texts = Texts(reading.text.tokens, token_spelling=pretrained.token_spelling)
    return build_report(
        spec,
        texts,
        tensors,
        statistics,
        _notes(spec, found, reading),
        about=f"{pretrained.name}: {len(found.heads)} heads, on {len(reading.text.ids)} tokens.",
        how_to_read=_how_to_read(found, pretrained),
    )


def _how_to_read(found: LogitAttribution, pretrained: Pretrained) -> str:
    labels = pretrained.labels(found.ids)
    shown = [pretrained.text_of([token]) or label for token, label in zip(found.ids, labels, strict=True)]
    what = f"the logit of {shown[0]!r}" + (f" minus that of {shown[1]!r}" if len(shown) > 1 else "")
    return f"What each part adds to {what} at the last token, the scale of the last norm frozen."


def _notes(spec: WhySpec, found: LogitAttribution, reading: Reading) -> list[str]:
    notes = [f"Head {spec.head} token by token: weight times value, through W_O and W_U."]
    if spec.model is None:
        notes.append(SHIPPED_NOTE)
    return [*notes, *found.notes, *reading.left_out_notes()]
