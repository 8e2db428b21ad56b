"""`attn separate`: heads that separate two groups of texts, tested on held-out groups."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

import attncli
from attncli.models.folder import SHIPPED_MODEL
from attncli.models.text_files import check_lines
from attncli.records.report import Report
from attncli.settings.fields import Everyday, Extra, Size, TextSource
from attncli.settings.models import ModelSpec
from attncli.settings.pages import ModelPage
from attncli.settings.text import TextPath, Texts, check_file
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    from attncli.features.separate.results import SeparatedTexts
    from attncli.models.pretrained import Pretrained, Reading
    from attncli.records.stored_columns import ValueTable

EXAMPLE = Path(attncli.__file__).parent / "data" / "answered.csv"
"""Questions to the shipped model, some of which their texts answer."""
EXAMPLE_LABEL, EXAMPLE_GROUP = "answered", "lines"


def _default_texts(data: dict[str, Any]) -> str:
    return str(EXAMPLE)


def _is_example(data: dict[str, Any]) -> bool:
    return data.get("texts") == str(EXAMPLE)


def _column(value: str) -> str:
    if not value.strip():
        raise ValueError("must name a column (got an empty text)")
    return value


NameOfColumn = Annotated[str, AfterValidator(_column)]


ColumnOfLabels = Annotated[NameOfColumn | None, Everyday("the column of labels, with two values")]
LABEL_HELP = "the column of labels, which has two values; `kind=attack` makes attack the positive one"


class LabelledTextsSpec(ModelSpec):
    """Settings shared by all forms of `attn separate`."""

    experiment = "separate"
    title = "Separating two groups of texts"
    main_table = "heads"
    default_model = SHIPPED_MODEL
    needs_head = True
    group = "Input"
    argument = "texts"
    examples: ClassVar[tuple[str, ...]] = ()
    heading_keys = ("texts", "model", "label", "hold_out", "seed")
    next_steps = ("-o detector.json", "--show by_group", "-o page.html")

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("texts", None),)

    def reads_many_texts(self) -> bool:
        return True


class SeparateSpec(LabelledTextsSpec):
    examples = (
        "attn separate",
        "attn separate prompts.csv --label injected --hold-out family --model M",
        "attn separate prompts.csv --label kind=attack --model M -o detector.json",
        "attn separate more.csv --apply detector.json --model M",
        'attn separate prompts.csv --label injected --model M --expect "held_out.auroc > 0.8"',
    )
    needs: ClassVar[Mapping[str, str]] = {"texts": "label"}

    texts: Annotated[TextPath, Everyday("CSV or JSON Lines with text and a label; - reads stdin")] = Field(
        default_factory=_default_texts,
        description="CSV or JSON Lines with text and a column of labels, and optionally instruction, "
        "document, answer and id; << and >> mark passages that are measured separately; - "
        "reads stdin",
    )
    label: ColumnOfLabels = Field(
        default_factory=lambda data: EXAMPLE_LABEL if _is_example(data) else None, description=LABEL_HELP
    )
    hold_out: Annotated[NameOfColumn | None, Everyday("the column of groups to hold out in turn")] = Field(
        default_factory=lambda data: EXAMPLE_GROUP if _is_example(data) else None,
        description="the column of groups to hold out in turn, such as families of attacks (default: "
        "five random parts of the texts)",
    )
    permutations: Size = Field(
        1000, description="permutations of the labels, to correct p for the number of heads and statistics"
    )

    def extras(self) -> Iterator[Extra]:
        yield from super().extras()
        yield Extra("separate", "probe", ("sklearn",))

    def result_kind(self) -> str:
        return "separate"

    def check_texts(self, texts: Texts) -> None:
        from attncli.models.labelled_files import LabelledFile, LabelNames

        if self.label is not None:
            names = LabelNames.of(self.label)
            check_lines(self.texts, lambda: LabelledFile(self.texts, names, self.hold_out))


class DetectedTextsSpec(LabelledTextsSpec):
    off_keys = frozenset({"apply"})

    texts: TextPath
    label: ColumnOfLabels = Field(None, description=LABEL_HELP)
    apply: Annotated[
        Annotated[str, AfterValidator(check_file)] | None,
        Everyday("score the texts with the detector in this report"),
    ] = Field(
        None,
        description="score the texts with the detector in this report, from `attn separate -o FILE.json`",
    )

    def result_kind(self) -> str:
        return "separate of texts"


class MeasuredTextSpec(ModelSpec):
    """Settings for one text that is measured into a store; `context` is its line with all columns."""

    experiment = "separate"
    examples: ClassVar[tuple[str, ...]] = ()
    default_model = SHIPPED_MODEL
    needs_head = True
    runs_once = True

    sentence: str = ""
    context: str | None = None

    def text_sources(self) -> tuple[TextSource, ...]:
        return TextSource("sentence", self.sentence), TextSource("context", self.context)


def read(spec: MeasuredTextSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> Any:
    """Read one text with its parts; files of many texts are read as they are measured."""
    from attncli.features.separate.door import read_line

    assert texts.context is not None, "a text in a store has its line"
    return read_line(pretrained, texts.context, truncate=spec.truncate)


def values_each(
    specs: Sequence[MeasuredTextSpec], readings: "Sequence[Reading]", pretrained: "Pretrained"
) -> "tuple[ValueTable, Mapping[str, str]]":
    """The statistics of texts of equal length, and the versions with which they were measured."""
    import numpy as np

    from attncli.core.runtime import versions
    from attncli.features.separate.door import measure_texts
    from attncli.records.stored_columns import ValueTable, feature_columns, with_unshown

    measured = measure_texts(pretrained, readings)
    values = measured.numbers.double().numpy(force=True)
    statistics: tuple[str, ...] = ()
    if measured.losses is not None:
        statistics = (LOSS,)
        values = np.concatenate([values, measured.losses.double().numpy(force=True)[:, None]], axis=1)
    values[~np.isfinite(values)] = np.nan
    columns = feature_columns((*measured.features,), statistics)
    return ValueTable(columns, values), versions() | with_unshown(measured.unshown)


def report_many(
    spec: SeparateSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """Build the report on the texts of a file."""
    from attncli.features.separate.door import separate

    assert spec.label is not None
    result = separate(
        pretrained,
        spec.texts,
        label=spec.label,
        hold_out=spec.hold_out,
        permutations=spec.permutations,
        seed=spec.seed,
        truncate=spec.truncate,
        progress=progress,
    )
    return separation_report(spec, pretrained, result)


def separation_report(
    spec: SeparateSpec, pretrained: "Pretrained", result: "SeparatedTexts", more: Sequence[str] = ()
) -> Report:
    """Build the report of a separation."""
    from attncli.runs.report_parts import build_report

    tensors = {} if result.weights is None else {"weights": result.weights}
    # Centred at chance, so that the colours diverge from there.
    tensors |= {
        f"{ABOVE_CHANCE} {stack}".strip(): replace(grid, values=grid.values - 0.5)
        for stack, grid in result.heads.grids("auroc").items()
    }
    texts = Texts(result.tokens, token_spelling=pretrained.token_spelling)
    notes = [*more, *result.notes, *_notes(spec, result)]
    if result.weights is not None:
        notes.append(MAP_NOTE.format(head=_strongest_head(result), text=result.maps[0].name))
    return build_report(spec, texts, tensors, result, notes, about=_verdict(spec, result))


def _strongest_head(result: "SeparatedTexts") -> str:
    """The name of the strongest head."""
    return f"{result.strongest[0].layer}:{result.strongest[0].head}"


def page_reports(report: Report) -> Iterator[Report]:
    """Yield the reports of the page: the result without a map, then each misclassified text with its map."""
    from attncli.features.separate.results import SeparatedTexts
    from attncli.records.columns import UntypedResult

    maps = report.result.maps if isinstance(report.result, SeparatedTexts) else ()
    if not maps:
        yield report
        return
    whole = report.result_of(SeparatedTexts)
    tensors = {name: tensor for name, tensor in report.tensors.items() if name != "weights"}
    notes = tuple(note for note in report.notes if not note.startswith("weights: "))
    result = replace(whole, weights=None, tokens=(), notes=notes)
    yield replace(report, tokens=(), tensors=tensors, result=result, notes=notes)
    rows = {row.text: row for row in whole.wrong}
    name_counts = Counter(row.id for row in whole.predictions)
    for line, name, tokens, weights in maps:
        row = rows[line]
        where = f"{name} (line {line})" if row.id and name_counts[row.id] > 1 else name
        labels = f"Text {where} is {row.label} but was classified as {row.predicted}"
        about = f"{labels}: weights of head {_strongest_head(whole)}."
        yield replace(
            report,
            tokens=tokens,
            tensors={"weights": weights},
            result=UntypedResult(),
            notes=(),
            about=about,
        )


BASELINES = {
    "length": "the length",
    "answer length": "the answer's length",
    "loss": "the loss",
    "bag of words": "a bag of words",
    "bag of tokens": "a bag of tokens",
}
"""The names of the baselines in a sentence."""


def _verdict(spec: SeparateSpec, result: "SeparatedTexts") -> str:
    """A sentence on whether the heads do better than the baselines on held-out groups."""
    held_out, best = result.held_out, result.best_baseline()
    name = BASELINES.get(best.detector, best.detector)
    alone = f"{name[0].upper()}{name[1:]} alone"
    heads = f"all heads {held_out.auroc:.2f}{_between(held_out.lower, held_out.upper, ' ({})')}"
    baseline = f"{best.detector} {best.auroc:.2f}"
    numbers = f"AUROC on held-out {'groups' if spec.hold_out else 'texts'}: {heads}, {baseline}."
    if held_out.hits is not None and held_out.false_alarms is not None:
        numbers = f"{numbers[:-1]}; {held_out.hits:.0%} hits, {held_out.false_alarms:.0%} false alarms."
    lowest = [row.lower for row in result.detectors if row.lower is not None]
    if not next(row.num_features for row in result.detectors):
        return f"The heads do not help: the regression uses none of their statistics. {numbers}"
    if not lowest:
        return f"There are too few texts per group for a verdict. {numbers}"
    if max(lowest) <= 0.5:
        return f"No detector separates the texts. {numbers}"
    if result.attention_adds:
        return f"The heads improve on {name}. {numbers}"
    if (held_out.difference or 0.0) > 0:
        interval = _between(held_out.difference_lower, held_out.difference_upper, " (difference {})")
        return f"{alone} may do as well{interval}. {numbers}"
    return f"{alone} does as well. {numbers}"


def _between(lower: float | None, upper: float | None, form: str) -> str:
    return "" if lower is None or upper is None else form.format(f"{lower:.2f} to {upper:.2f}")


HELD_OUT_NOTE = (
    "AUROC: the probability that a text with {positive} scores above a text without it. Each group is tested "
    "with a detector fitted without that group; intervals cover the sampling of its texts, not new "
    "groups."
)
FEW_TEXTS = 50
"""With fewer texts than this, intervals of differences cover less than 94 % of cases."""
P_NOTE = "p is corrected for all {count:,} statistics with {permutations:,} permutations of the labels."
MAP_NOTE = "weights: head {head} in text {text}, the misclassified text farthest from the threshold."
SHARED_NOTE = "The texts of {group}, the only group with its label, are divided among all groups."


def _notes(spec: SeparateSpec, result: "SeparatedTexts") -> Iterator[str]:
    yield HELD_OUT_NOTE.format(positive=result.fitted[0].positive)
    if min(min(row.positive, row.texts - row.positive) for row in result.by_group) < FEW_TEXTS:
        yield f"A label has under {FEW_TEXTS} texts in a group, so intervals of differences are too narrow."
    yield P_NOTE.format(count=result.num_features, permutations=result.num_permutations)
    if result.shared is not None:
        yield SHARED_NOTE.format(group=result.shared)
    if spec.model is None:
        yield "This model ships with attn. Use --model FOLDER for another model."


def report_detected(
    spec: DetectedTextsSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """Build the report on a detector that is applied to a file of texts."""
    from attncli.features.separate.door import apply_detector
    from attncli.runs.report_parts import build_report

    assert spec.apply is not None
    result = apply_detector(
        pretrained, spec.texts, spec.apply, label=spec.label, truncate=spec.truncate, progress=progress
    )
    about = f"{pretrained.name}: {counted(result.num_texts, 'text')}"
    if measured := result.measured:
        between = _between(measured.lower, measured.upper, " ({})")
        auroc = "" if measured.auroc is None else f"AUROC {measured.auroc:.2f}{between}; "
        rates = (("hits", measured.hits), ("false alarms", measured.false_alarms))
        rate_list = ", ".join(f"{rate:.0%} {name}" for name, rate in rates if rate is not None)
        alike = "" if auroc else f", all {'positive' if measured.hits is not None else 'negative'}"
        about = f"On these texts{alike}: {auroc}{rate_list}."
    notes = [
        "margin: the score minus the threshold; texts with a margin above 0 are called positive.",
        *result.notes,
    ]
    return build_report(spec, Texts(), {}, result, notes, about=about)


ABOVE_CHANCE = "auroc_above_chance"
LOSS = "loss"
"""The name of the loss column in a store."""


PAGE = ModelPage(read=read, report_many=report_many, values_each=values_each)
DETECTED_PAGE = ModelPage(report_many=report_detected)
