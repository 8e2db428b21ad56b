"""What a model loses without each of its heads: the loss, the prediction, the output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

from attncli.commands.heads import SHIPPED_NOTE, pictures_of
from attncli.core.row_statistics import EFFECTS
from attncli.errors import UserError
from attncli.measure.ablate import Predicted, ablated, predicted_reading, swapped_reading
from attncli.models.pictures import read_picture, reader_of
from attncli.models.pretrained import Pretrained, Reading, read_text, token_named
from attncli.models.text_files import ManyTexts, PairFile, TextFile, TextLine
from attncli.report import Numbers, Report, Statistic, Table
from attncli.report_parts import build_report
from attncli.runs.runner import read_survey_text
from attncli.settings.ablate import EACH_TOKEN, AblateSpec
from attncli.settings.text import Texts

METHODS = {
    "zero": "A head that is taken out gives nothing, as if its columns of W_O were zero.",
    "mean": "A head that is taken out gives its mean output over all tokens.",
    "swap": "A head gives what it gave on the other prompt; back: the other prompt, with what it gave here.",
    "sink": "A head that is taken out gives the value of the first token, as if it looked there alone.",
}


PICTURE_NOTE = (
    "output_change is ||y' - y|| / ||y||, mean over the last vectors; cls_change is 1 - cos(y', y) of [CLS], "
    "where there is one."
)


def read(spec: AblateSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Predicted:
    """What the model reads, and what is predicted of it; UserError for what does not fit."""
    if spec.image is not None:
        # What predicts words reads a picture beside them as a whole.
        reader = pretrained if texts.text is None else replace(pretrained, model=pretrained.whole)
        reading = read_picture(reader, spec.image, texts.text)
        return predicted_reading(
            reading,
            reader_of(pretrained, reading),
            generator,
            answer=spec.answer,
            against=spec.against,
            key="image",
        )
    reading = read_survey_text(spec, texts, pretrained, generator)
    key = "texts" if spec.texts else "file" if spec.file else "sentence"
    if spec.other is not None:
        return _pair(spec, reading, spec.other, key, pretrained, generator)
    return predicted_reading(
        reading, pretrained, generator, answer=spec.answer, against=spec.against, key=key
    )


def _pair(
    spec: AblateSpec,
    reading: Reading,
    other: str,
    key: str,
    pretrained: Pretrained,
    generator: torch.Generator,
) -> Predicted:
    """A prompt with the other one; of encoders the same tokens are masked in both."""
    state = generator.get_state()
    there = read_text(pretrained, other, key="other", truncate=spec.truncate)
    predicted = []
    for text, name in ((reading, key), (there, "other")):
        generator.set_state(state)
        predicted.append(
            predicted_reading(text, pretrained, generator, answer=spec.answer, against=spec.against, key=name)
        )
    is_one = spec.token not in (None, EACH_TOKEN)
    token = token_named(str(spec.token), reading.text, pretrained, key="token") if is_one else None
    here, other_reading = predicted
    return swapped_reading(here, other_reading, token)


def _read_pair(
    spec: AblateSpec, line: TextLine, pretrained: Pretrained, generator: torch.Generator
) -> Predicted:
    """A line of a file of pairs, whose answers come before those of the settings."""
    answers = {"answer": line.answer or spec.answer, "against": line.against or spec.against}
    reading = read_text(pretrained, line.text, key="texts", truncate=spec.truncate)
    own = spec.model_copy(update=answers)
    assert line.other is not None
    return _pair(own, reading, line.other, "texts", pretrained, generator)


def report_each(
    specs: Sequence[AblateSpec],
    readings: Sequence[Predicted],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The report of each text."""
    return [
        _report(spec, [reading], reading.left_out_notes(), reader_of(pretrained, reading), progress)
        for spec, reading in zip(specs, readings, strict=True)
    ]


def report_many(spec: AblateSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """The report of many texts: means over them, and how sure these are."""
    assert spec.texts is not None
    generator = torch.Generator().manual_seed(spec.seed)
    is_swap = spec.method == "swap"
    with (PairFile if is_swap else TextFile)(spec.texts, spec.text_group) as file:

        def read_line(line: TextLine) -> Predicted:
            if is_swap:
                return _read_pair(spec, line, pretrained, generator)
            return read(spec, Texts(text=line.text), pretrained, generator)

        many = ManyTexts(file, read_line)
        readings = [cast(Predicted, reading) for batch in many.batches() for _, reading in batch]
    if len({(reading.is_answer, reading.against is None) for reading in readings}) > 1:
        raise UserError("texts: answer and against must be in every line, or in none")
    return _report(spec, readings, many.notes(), pretrained, progress)


def _report(
    spec: AblateSpec,
    readings: Sequence[Predicted],
    notes: Sequence[str],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> Report:
    found = ablated(
        pretrained,
        readings,
        heads=spec.named_heads,
        method=spec.method,
        jointly=spec.jointly,
        approximate=spec.approximate,
        each_token=spec.token == EACH_TOKEN,
        into=spec.into,
        progress=progress,
    )
    rows, back = found.heads, found.back
    if spec.token == EACH_TOKEN:
        tokens = pretrained.written_tokens(readings[0].text)
        rows, back = ([{**row, "token_text": tokens[row["token"]]} for row in some] for some in (rows, back))
    measured = [name for name in EFFECTS if name in rows[0]]
    sort = _sort(spec, measured, pretrained)
    if spec.sort != sort:
        spec = spec.model_copy(update={"sort": sort})
    sign = 1 if EFFECTS[sort].falls else -1
    ranked = sorted(rows, key=lambda row: (row[sort] is None, sign * (row[sort] or 0.0)))
    statistics: dict[str, Statistic] = {"heads": Table(ranked[: spec.top])}
    if back:
        statistics["back"] = Table(sorted(back, key=lambda row: -abs(float(str(row[sort])))))
    single = {
        "baseline": found.baseline,
        "back_baseline": found.back_baseline,
        "joint": found.joint,
        "approximation": found.approximation,
    }
    statistics |= {name: Numbers(numbers) for name, numbers in single.items() if numbers}
    grids = {} if spec.token == EACH_TOKEN else Table(rows).grids(sort)
    tensors = {f"{sort} {stack}".strip(): grid for stack, grid in grids.items()}
    read = Texts(token_spelling=pretrained.token_spelling)
    if spec.texts is None:
        text, context = readings[0].text, readings[0].context
        read = read._replace(tokens=text.tokens, context_tokens=context.tokens if context else ())
    notes = [*_notes(spec, readings, pretrained), *notes, *found.notes]
    num_heads = len({(row["stack"], row["layer"], row["head"]) for row in rows})
    about = _about(readings, num_heads, pretrained)
    pictures = () if spec.image is None else pictures_of(readings[0])
    return build_report(spec, read, tensors, statistics, notes, about=about, pictures=pictures)


def _sort(spec: AblateSpec, measured: Sequence[str], pretrained: Pretrained) -> str:
    """The effect that heads are sorted by; UserError for one that this model does not have."""
    if spec.sort is None and "restored" in measured:
        return "restored"
    if spec.sort is None:
        first = "approximate" if spec.approximate else "probability"
        return first if first in measured else measured[0]
    if spec.sort not in measured:
        raise UserError(f"sort: must be one of {', '.join(measured)} for {pretrained.name} (got {spec.sort})")
    return spec.sort


def _about(readings: Sequence[Predicted], num_heads: int, pretrained: Pretrained) -> str:
    counts = [len(reading.text.ids) for reading in readings]
    on = f"{counts[0]} tokens" if len(counts) == 1 else f"{len(counts):,} texts of {sum(counts):,} tokens"
    heads = "1 head" if num_heads == 1 else f"{num_heads} heads"
    return f"{pretrained.name}: {heads}, on {on}."


def _notes(spec: AblateSpec, readings: Sequence[Predicted], pretrained: Pretrained) -> list[str]:
    notes = [METHODS[spec.method], _measured(spec, readings, pretrained)]
    if spec.model is None:
        notes.append(SHIPPED_NOTE)
    if len(readings) > 1:
        notes.append("Means over the texts, with 95 % intervals (Student's t).")
    return notes


def _measured(spec: AblateSpec, readings: Sequence[Predicted], pretrained: Pretrained) -> str:
    """Which predictions the numbers are about."""
    places = sum(reading.num_places for reading in readings)
    if spec.answer is not None:
        return f"Measured where {spec.answer!r} should come: its loss is -ln p, in nats."
    if pretrained.predicts is None and readings[0].seen is not None:
        return PICTURE_NOTE
    if pretrained.predicts is None:
        return "No head predicts tokens: output_change is ||y' - y|| / ||y||, mean over the last vectors."
    if spec.probe:
        return f"The loss, in nats per token, is on the second copy of the probe ({places} tokens)."
    if pretrained.predicts == "masked":
        return f"The loss, in nats per token, is on {places} tokens that were masked at random."
    return f"The loss, in nats per token, is on {places} tokens, each predicted from those before it."
