"""What each head adds to the logit of the next token: direct logit attribution.

The logit is a sum: what each head and each MLP adds to the stream, along what W_U reads.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attncli.commands.heads import SHIPPED_NOTE, read_survey_text
from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer
from attncli.core.wanted import Wanted
from attncli.errors import UserError
from attncli.measure.ablate import answer_token
from attncli.measure.heads import NOTHING_MORE, Survey, found_texts
from attncli.measure.removal import index_of_head, output_of
from attncli.measure.why import (
    Direction,
    Residual,
    difference,
    direction_of,
    recorded_calls,
    refuse,
    residual_of,
)
from attncli.models.blocks import output_projection, projection_of_heads
from attncli.models.capture import Way, capture, check_computed_here, run_model
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.pretrained import Pretrained, Reading
from attncli.report import Numbers, Report, Statistic, Table, Tensors
from attncli.report_parts import build_report, named
from attncli.settings.ablate import WhySpec
from attncli.settings.text import Texts

WHERE = ("layer", "module", "kind", "stack", "head", "pattern")


@dataclass(frozen=True)
class Attribution:
    """The rows of all heads, the residual stream of the last token, and the direction that a logit reads.

    `ids` are the token of the logit and, where asked for, the one that it is compared with.
    """

    rows: list[dict[str, Any]]
    residual: Residual
    direction: Direction
    ids: list[int]
    logit: float
    way: Way


def attribution(spec: WhySpec, reading: Reading, pretrained: Pretrained) -> Attribution:
    """That of the answer's logit, or of the most likely token's; UserError where the logits are not a sum."""
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    way = check_computed_here(model, inputs)
    modules: list[str] = []
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        survey = Survey(NOTHING_MORE, [reading], pretrained, None, hooks)

        def keep(layer: CapturedLayer) -> Tensor:
            output = survey.take(layer)
            assert output is not None
            modules.append(layer.module)
            outputs.append(output[0, :, -1].double())
            return output

        with recorded_calls(model, len(reading.text.ids)) as calls:
            logits = run_model(model, inputs, keep)["logits"][0, -1]
    ids = [int(logits.argmax()) if spec.answer is None else answer_token(pretrained, spec.answer, "answer")]
    if spec.against is not None:
        ids.append(answer_token(pretrained, spec.against, "against"))
    residual = residual_of(pretrained, calls, modules, outputs)
    direction = direction_of(pretrained, calls, residual.last, logits, ids)
    rows = [{name: row[name] for name in WHERE} for row in found_texts(survey)[0].rows]
    return Attribution(rows, residual, direction, ids, float(difference(logits[ids])), way)


def by_key(found: Attribution, shown: Mapping[str, Any], reading: Reading, pretrained: Pretrained) -> Tensors:
    """p_ij v_j W_O . direction of one head at the last token, and its weights p_ij, for each token j."""
    head, kept = shown["head"], Tensors()

    def keep(layer: CapturedLayer) -> Tensor:
        if layer.module != shown["module"]:
            return output_of(layer)
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        weights = attend(attention, Wanted(kept_heads=(head,))).kept_weights
        assert weights is not None
        _, values = attention.expanded()
        in_dim = attention.num_heads * values.shape[-1]
        projection = output_projection(pretrained.whole, layer.module, in_dim)
        assert projection is not None
        columns = projection_of_heads(projection, attention.num_heads)[head].double()
        own = weights[0, 0, -1].double()
        of_values = values[0, head].double() @ (found.direction.vector @ columns)
        kept["contribution"] = named(own * of_values, "key")
        kept["weight"] = named(own, "key")
        raise StopCapture

    capture(pretrained.whole, pretrained.inputs([reading]), keep)
    return kept


def read(spec: WhySpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads; UserError for a model that does not predict what comes next."""
    if pretrained.has_decoder or pretrained.predicts != "next":
        refuse(pretrained, "it does not predict the next token of one text")
    dtype = pretrained.model.dtype
    if torch.finfo(dtype).bits < 32:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"dtype: must be float32 for why: rounded parts do not add up to the logit (got {name})"
        )
    return read_survey_text(spec, texts, pretrained, generator)


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
    vector, blocks = found.direction.vector, found.residual.blocks
    of_heads = [block.heads @ vector for block in blocks]
    for row, number in zip(found.rows, torch.cat(of_heads).tolist(), strict=True):
        row["contribution"] = number
    ranked = sorted(found.rows, key=lambda row: -abs(row["contribution"]))
    layers = [row["layer"] for row in found.rows if row["head"] == 0]
    mlps = [float(block.mlp @ vector) for block in blocks]
    biases = sum(float(block.bias @ vector) for block in blocks) + found.direction.bias
    parts = Numbers(
        embedding=float(found.residual.embedding @ vector),
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
    return build_report(
        spec,
        read,
        tensors,
        statistics,
        _notes(spec, found, reading),
        about=f"{pretrained.name}: {len(found.rows)} heads, on {len(reading.text.ids)} tokens.",
        how_to_read=_how_to_read(found, pretrained),
    )


def _how_to_read(found: Attribution, pretrained: Pretrained) -> str:
    labels = pretrained.labels(found.ids)
    shown = [pretrained.text_of([token]) or label for token, label in zip(found.ids, labels, strict=True)]
    what = f"the logit of {shown[0]!r}" + (f" minus that of {shown[1]!r}" if len(shown) > 1 else "")
    return f"What each part adds to {what} at the last token, the scale of the last norm frozen."


def _notes(spec: WhySpec, found: Attribution, reading: Reading) -> list[str]:
    notes = [f"Head {spec.head} token by token: weight times value, through W_O and W_U."]
    if spec.model is None:
        notes.append(SHIPPED_NOTE)
    return notes + found.way.notes() + reading.left_out_notes()
