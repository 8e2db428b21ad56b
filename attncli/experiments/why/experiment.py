"""What each head adds to the logit of the next token: direct logit attribution."""

from collections.abc import Callable, Sequence

import torch

from attncli.errors import UserError
from attncli.experiments.ablate.named_heads import index_of_head
from attncli.experiments.attention_report import build_report
from attncli.experiments.reading.texts import Texts
from attncli.experiments.survey.experiment import SHIPPED_NOTE
from attncli.experiments.survey.reading import read_text
from attncli.experiments.why.attribution import Attribution, attribution, by_key
from attncli.experiments.why.residual import refuse
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.report import Numbers, Report, Statistic, Table
from attncli.spec.models.why import WhySpec


def read(spec: WhySpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads; UserError for a model that does not predict what comes next."""
    if pretrained.has_decoder or pretrained.predicts != "next":
        refuse(pretrained, "it does not predict the next token of one text")
    dtype = pretrained.model.dtype
    if torch.finfo(dtype).bits < 32:
        name = str(dtype).removeprefix("torch.")
        raise UserError(f"dtype: must be float32 for why: rounded parts add up to no logit (got {name})")
    return read_text(spec, texts, pretrained, generator)


@torch.no_grad()
def report_each(
    specs: Sequence[WhySpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The report of each text."""
    return [_report(spec, reading, pretrained) for spec, reading in zip(specs, readings, strict=True)]


def _report(spec: WhySpec, reading: Reading, pretrained: Pretrained) -> Report:
    found = attribution(spec, reading, pretrained)
    blocks = found.residual.blocks
    of_heads = [found.of(block.heads) for block in blocks]
    for row, number in zip(found.rows, torch.cat(of_heads).tolist(), strict=True):
        row["contribution"] = number
    ranked = sorted(found.rows, key=lambda row: -abs(row["contribution"]))
    layers = [row["layer"] for row in found.rows if row["head"] == 0]
    mlps = [float(found.of(block.mlp)) for block in blocks]
    biases = sum(float(found.of(block.bias)) for block in blocks) + found.direction.bias
    parts = Numbers(
        embedding=float(found.of(found.residual.embedding)),
        heads=float(sum(own.sum() for own in of_heads)),
        mlps=sum(mlps),
        biases=biases,
    )
    total = sum(number for number in parts.values() if number is not None)
    parts |= {"sum": total, "logit": found.logit, "norm_scale": found.direction.scale}
    shown = ranked[0]
    if spec.head is not None:
        shown = found.rows[index_of_head(found.rows, spec.head, "head", pretrained)]
    statistics: dict[str, Statistic] = {
        "heads": Table(ranked[: spec.top]),
        "layers": Table(
            {"layer": layer, "attention": float(own.sum()), "mlp": mlp}
            for layer, own, mlp in zip(layers, of_heads, mlps, strict=True)
        ),
        "parts": parts,
        "keys": by_key(found, shown, reading, pretrained),
    }
    spec = spec.model_copy(update={"head": f"{shown['layer']}:{shown['head']}"})
    tensors = {"contribution": Table(found.rows).grids("contribution")[""]}
    read = Texts(reading.text.tokens, token_spelling=pretrained.token_spelling)
    return build_report(spec, read, tensors, statistics, _notes(spec, found, reading, pretrained))


def _notes(spec: WhySpec, found: Attribution, reading: Reading, pretrained: Pretrained) -> list[str]:
    labels = pretrained.labels(found.ids)
    shown = [pretrained.text_of([token]) or label for token, label in zip(found.ids, labels, strict=True)]
    what = f"the logit of {shown[0]!r}" + (f" minus that of {shown[1]!r}" if len(shown) > 1 else "")
    notes = [
        f"{pretrained.name}: {len(found.rows)} heads, on {len(reading.text.ids)} tokens.",
        f"What each part adds to {what} at the last token, the scale of the last norm frozen.",
        f"Head {spec.head} token by token: weight times value, through W_O and W_U.",
    ]
    if spec.model is None:
        notes.append(SHIPPED_NOTE)
    return notes + reading.left_out_notes()
