"""What each head adds to the logit of the next token, and why a head looks where it does, as reports."""

from collections.abc import Callable, Sequence

import torch

from attncli.commands.heads import SHIPPED_NOTE
from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.measure.scores import ScoreParts, score_parts
from attncli.measure.why import LogitAttribution, attribution, check_splits
from attncli.models.pretrained import Pretrained, Reading, token_named
from attncli.report import Numbers, Report, Statistic, Table, Tensors
from attncli.report_parts import build_report, named
from attncli.runs.runner import read_survey_text
from attncli.settings.ablate import WhySpec
from attncli.settings.text import Texts


def read(spec: WhySpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads; UserError for a model whose logits are asked for and are no sums."""
    if not spec.is_of_score:
        check_splits(pretrained)
    return read_survey_text(spec, texts, pretrained, generator)


def report_each(
    specs: Sequence[WhySpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The report of each text."""
    pairs = zip(specs, readings, strict=True)
    return [
        (_score_report if spec.is_of_score else _report)(spec, reading, pretrained) for spec, reading in pairs
    ]


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
    return f"What each part adds to {what} at the last token, with the scale of the last norm frozen."


def _notes(spec: WhySpec, found: LogitAttribution, reading: Reading) -> list[str]:
    by_token = f"Head {spec.head} token by token: weight times value, through W_O and W_U."
    return [by_token, *_shipped(spec), *found.notes, *reading.left_out_notes()]


MOST_PAIRS = 20


def _score_report(spec: WhySpec, reading: Reading, pretrained: Pretrained) -> Report:
    stack, layer, head = named_head(str(spec.head))
    if stack:
        raise UserError(f"head: must name a layer and a head, as {layer}:{head} (got {spec.head})")
    text, key = reading.text, spec.to
    found = score_parts(
        pretrained,
        reading,
        layer=layer,
        head=head,
        query=token_named(spec.query, text, pretrained, key="from"),
        key=None if key is None else token_named(key, text, pretrained, key="to"),
        over=spec.over,
    )
    tokens = pretrained.written_tokens(text)
    spec = spec.model_copy(update={"from": str(found.query), "to": str(found.key)})
    sides = {"key": found.key_side, "query": found.query_side}
    statistics: dict[str, Statistic] = {
        "sides": Table({"side": side, **row} for side, rows in sides.items() for row in rows),
        "score": Numbers(
            query=found.query,
            key=found.key,
            weight=found.weight,
            score=found.score,
            above_mean=found.above_mean,
            position=found.position,
            missing=found.missing,
        ),
        "pairs": Table(_pairs(found)),
        "keys": Tensors(weight=named(found.weights, "key")),
        "key_parts": Tensors(
            {
                f"{side}_{name}": named(numbers, "part", "key")
                for side, of_side in found.of_keys.items()
                for name, numbers in zip(("adds", "without"), of_side, strict=True)
            }
        ),
        "part_names": Table({"part": part.name} for part in found.parts),
    }
    if found.writers:  # a report has no table without rows
        statistics["writers"] = Table(row | {"key_token": tokens[row["key"]]} for row in found.writers)
    return build_report(
        spec,
        Texts(text.tokens, token_spelling=pretrained.token_spelling),
        {},
        statistics,
        [*_shipped(spec), *found.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: why head {spec.head} looks from {found.query} to {found.key}.",
        how_to_read=SCORE_NOTE,
    )


SCORE_NOTE = (
    "The score, above the mean of the keys that the query sees, is a sum over what each part wrote, the "
    "scales of the norms frozen; behind each the weight if the part had not written there."
)


def _pairs(found: ScoreParts) -> list[dict[str, str | float]]:
    """The pairs of parts that add most, of the query and of the key."""
    order = found.pairs.abs().flatten().argsort(descending=True)[:MOST_PAIRS].tolist()
    places = (divmod(place, len(found.parts)) for place in order)
    return [
        {
            "query_part": found.parts[a].name,
            "key_part": found.parts[b].name,
            "score": float(found.pairs[a, b]),
        }
        for a, b in places
    ]


def _shipped(spec: WhySpec) -> list[str]:
    return [SHIPPED_NOTE] if spec.model is None else []
