"""`attn diff`: align and compare two experiments or saved reports."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.commands.command import DEBUG, OUTPUT_FLAGS, Command, argument, is_file, option
from attncli.commands.output import Destination, ProgressLine, first_words, progress_line
from attncli.commands.saved_files import opened, refuse_unreadable_format
from attncli.errors import UserError, nearest
from attncli.features.diff.results import UNMAPPED, ReportDifferences, StatisticPair
from attncli.models.arrays import is_array_file
from attncli.models.folder import local_model
from attncli.records.columns import Records, few_notes
from attncli.records.report import PLACES, NamedTensor, Numbers, Report, Row, Table, Tensors
from attncli.records.surveys import HeadSurvey
from attncli.settings import SPECS, every_setting_of, spec_class_of
from attncli.settings.config_file import ConfigFile
from attncli.settings.fields import Given, Spec, TextSource, build_spec, values_of, with_maps
from attncli.settings.models import ModelSpec
from attncli.settings.overrides import Overrides, overridden, parse_overrides, unknown_overrides
from attncli.settings.pages import ModelPage
from attncli.settings.text import Text, Texts
from attncli.system.files import is_store_name
from attncli.system.plain_text import counted
from attncli.views.texts import model_setting, text_name

if TYPE_CHECKING:
    from attncli.features.diff.differences import ChangedHeads, NamedWeights, WeightDifferences
    from attncli.models.pretrained import Pretrained, Reading

STACKS = {
    "self": "self-attention",
    "cross": "cross-attention",
    "encoder": "the encoder",
    "decoder": "the decoder",
}
MAX_LISTED = 3


class ComparedHead(NamedTuple):
    """The place of a head: its stack, its layer (None if there is only one layer) and its number."""

    stack: str
    layer: Any
    head: Any


def head_places(report: Report, weights: NamedTensor | None) -> set[ComparedHead]:
    """The heads of a survey, or the heads on the axes of the weights."""
    if rows := report.table("heads"):
        return {ComparedHead._make(map(row.get, ComparedHead._fields)) for row in rows}
    if weights is None or "head" not in weights.axes:
        return set()
    sizes = dict(zip(weights.axes, weights.values.shape, strict=True))
    layers, heads = ([None] if axis not in sizes else range(sizes[axis]) for axis in PLACES)
    return {ComparedHead("self", layer, head) for layer in layers for head in heads}


def left_out_notes(a: set[ComparedHead], b: set[ComparedHead]) -> Iterator[str]:
    """Yield sentences such as `Only in A, so not compared: layers 6 to 11.`, for A and then for B."""
    for side, heads, others in (("A", a, b), ("B", b, a)):
        if parts := [part for stack in STACKS for part in _alone(stack, heads, others)]:
            yield f"Only in {side}, so not compared: {'; '.join(parts)}."


def _alone(stack: str, places: set[ComparedHead], others: set[ComparedHead]) -> Iterator[str]:
    """Yield what only this side has: the stack itself, or some of its layers and heads."""
    stack_others = {place for place in others if place.stack == stack}
    alone = {place for place in places - others if place.stack == stack}
    if alone and not stack_others:
        yield STACKS[stack]
        return
    where = f" of {STACKS[stack]}" if len({place.stack for place in places | others}) > 1 else ""
    layers = {place.layer for place in alone} - {place.layer for place in stack_others}
    in_layers = {place for place in alone if place.layer not in layers}
    heads = {place.head for place in in_layers} - {place.head for place in stack_others}
    for name, numbers in (("layer", layers), ("head", heads)):
        if numbers:
            yield f"{name}{'s' * (len(numbers) > 1)} {_ranges(numbers)}{where}"
    single = sorted(f"{place.layer}:{place.head}" for place in in_layers if place.head not in heads)
    if single:
        more = f" and {len(single) - MAX_LISTED} more" if len(single) > MAX_LISTED else ""
        yield f"head{'s' * (len(single) > 1)} {', '.join(single[:MAX_LISTED])}{more}{where}"


def _ranges(numbers: Iterable[int]) -> str:
    """Ranges of numbers, such as `0, 6 to 11` for 0, 6, 7, 8, 9, 10, 11."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)


NO_DISTRIBUTION_NOTE = "Rows of weights that are not distributions have no Jensen-Shannon distance."
NO_SHARED_NOTE = "A and B have no token in common, so no rows are compared."
GAP_NOTE = "A token that one side lacks has no row there and, as a key, weight 0."


def _weights(report: Report, side: str) -> NamedTensor | None:
    """The weights of every query on every key, or None if an experiment has no such weights."""
    tensor = report.tensors.get("weights")
    if tensor is not None and tensor.axes[-2:] == ("query", "key"):
        return tensor
    if "pooled_mean" in report.tensors:
        raise UserError(
            f"diff: {side} has maps of blocks instead of weights: use fewer tokens, or --set engine=dense"
        )
    return None


DIFFERENT_MAPS = [{"cross", "encoder"}, {"cross", "decoder"}, {"cross", "self"}, {"encoder", "decoder"}]
"""Pairs of stacks with unrelated heads; if a model has only one stack, that stack is called self."""


def _mapped_stack(report: Report) -> str:
    """The stack that a survey's maps belong to, as in STACKS, or an empty string if it has no maps."""
    kind = str(report.spec.get("maps")) if isinstance(report.result, HeadSurvey) else ""
    is_decoder = kind == "self" and any(place.stack == "decoder" for place in head_places(report, None))
    return "decoder" if is_decoder else kind if kind in STACKS else ""


def _aligned_weights(report: Report, weights: NamedTensor) -> "NamedWeights":
    from attncli.features.diff.differences import NamedWeights

    queries, keys = report.tokens[report.first_query :], report.context_tokens or report.tokens
    return NamedWeights(weights.axes, weights.values, queries, keys, weights.mask)


def _change_note(changed: "ChangedHeads") -> str:
    """A sentence about the number of changed heads."""
    if not changed.num_shared:
        return "A and B have no head statistic in common."
    chance = " With this many comparisons, some changes are due to chance." if changed.num_changed else ""
    heads = counted(changed.num_shared, "head")
    return f"{changed.num_changed} of {heads} changed beyond their 95 % intervals.{chance}"


def _single_numbers(report: Report, other: Report) -> Iterator[tuple[str, float]]:
    """Yield every single number with its name, such as `scores.variance`; row statistics become means.

    The rows of a table are named by their first cells: `variance.query, head_dim 16`. Surveys are skipped
    because their rows are heads, which are compared separately.
    """
    for group, statistic in report.statistics.items():
        if isinstance(statistic, Numbers) and not isinstance(other.statistics.get(group), Table):
            yield from _finite(group, statistic)
        elif isinstance(statistic, Numbers | Table) and "heads" not in report.statistics:
            for row in filter(None, statistic if isinstance(statistic, Table) else [statistic]):
                (first, cell), *numbers = row.items()
                which = f"{cell:g}" if isinstance(cell, float) else _setting(cell)
                yield from _finite(group, dict(numbers), f", {first} {which}")
    for name, tensor in report.tensors_of("rows").items():
        finite = tensor.values[np.isfinite(tensor.values)]
        if len(finite) and not name.startswith("top_"):
            yield f"{name}.mean", float(finite.mean())


def _finite(group: str, row: Row, which: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a row with their full names, which end in `which`, the name of the row."""
    for name, cell in row.items():
        if isinstance(cell, int | float) and np.isfinite(cell):
            yield f"{group}.{name}{which}", float(cell)


def _side_by_side(a: Report, b: Report) -> Records[StatisticPair]:
    numbers_a, numbers_b = dict(_single_numbers(a, b)), dict(_single_numbers(b, a))
    names = [name for name in numbers_a if name in numbers_b]
    return StatisticPair.table(
        statistic=names,
        a=[numbers_a[name] for name in names],
        b=[numbers_b[name] for name in names],
        difference=[numbers_b[name] - numbers_a[name] for name in names],
    )


def _changed_settings(a: Report, b: Report) -> str:
    """The settings that differ, as one sentence."""
    if a.experiment != b.experiment:
        return f"A is {a.experiment}, B is {b.experiment}."
    keys = [*a.spec, *(key for key in b.spec if key not in a.spec)]
    changed = [
        f"{key} {_setting(_value(a, key))} -> {_setting(_value(b, key))}"
        for key in keys
        if a.spec.get(key) != b.spec.get(key)
    ]
    return f"From A to B: {'; '.join(changed)}." if changed else "A and B have the same settings."


def _value(report: Report, key: str) -> Any:
    """The value of a setting; the default model is replaced by its name."""
    value = report.spec.get(key)
    return Path(model_setting(report)).name or None if key == "model" and value is None else value


def _setting(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _different_models(a: Report, b: Report) -> Iterator[str]:
    """A caveat about comparing head numbers of two different models."""
    models = model_setting(a), model_setting(b)
    if all(models) and models[0] != models[1]:
        names = " and ".join(Path(model).name or model for model in models)
        yield (
            f"Two models ({names}): heads with the same number are unrelated unless one model was trained "
            "from the other."
        )


NOT_COMPARED = "Heads of layers without a softmax are only compared over texts (attn heads --texts)."


def _num_texts(report: Report) -> int:
    """The number of texts in a survey."""
    return report.result.num_texts if isinstance(report.result, HeadSurvey) else 1


def compare(a: Report, b: Report) -> Report:
    """Compare B with A. Raises UserError if the weights of the two cannot be compared.

    If one of the experiments has no weights (norm, scale-demo, a survey without maps), only the statistics
    are compared.
    """
    from attncli.core.runtime import versions
    from attncli.features.diff.differences import changed_heads, head_differences, weight_differences

    weights_a, weights_b = _weights(a, "A"), _weights(b, "B")
    if (weights_a is None) != (weights_b is None):
        without = "A" if weights_a is None else "B"
        raise UserError(f"diff: {without} has no weights, so the other side's weights cannot be compared")
    notes = [*left_out_notes(head_places(a, weights_a), head_places(b, weights_b))]
    mapped = _mapped_stack(a), _mapped_stack(b)
    if set(mapped) in DIFFERENT_MAPS:
        weights_a = weights_b = None
        notes.append(f"Maps are not compared: A shows {STACKS[mapped[0]]}, B shows {STACKS[mapped[1]]}.")
    moved = changed = None
    if weights_a is not None and weights_b is not None:
        moved = weight_differences(_aligned_weights(a, weights_a), _aligned_weights(b, weights_b))
        notes += _notes_on_tokens(moved)
    elif a.experiment != b.experiment:
        raise UserError(
            f"diff: {a.experiment} and {b.experiment} have no weights and different statistics: compare "
            "two reports of one experiment"
        )
    heads = a.table("heads"), b.table("heads")
    if a.table("intervals") and b.table("intervals"):
        changed = changed_heads(a.table("intervals"), b.table("intervals"), *heads)
        notes.insert(0, _change_note(changed))
        fewest = min(_num_texts(report) for report in (a, b))
        notes += few_notes(fewest, text_name(a))
    elif a.table("linear") or b.table("linear"):
        notes.insert(0, NOT_COMPARED)
    if head_places(a, weights_a) and head_places(b, weights_b):
        notes[:0] = _different_models(a, b)
    result = ReportDifferences(
        rows=None if moved is None else _row_distances(moved),
        changed_rows=None if moved is None else moved.changed_rows,
        by_head=None if moved is None else moved.by_head,
        changed_heads=None if changed is None else changed.rows,
        heads_difference=head_differences(*heads),
        side_by_side=_side_by_side(a, b),
    )
    about = _changed_settings(a, b)
    if moved is not None and (unmapped := _count_unmapped(moved, *heads)):
        notes.insert(0, f"{counted(unmapped, 'head')} {'has' if unmapped == 1 else 'have'} {UNMAPPED}")
    if not result.statistics():
        raise UserError(f"diff: A and B have neither weights nor a statistic in common ({about.rstrip('.')})")
    report = Report(
        "diff",
        {"a": dict(a.spec), "b": dict(b.spec)},
        versions(),
        result=result,
        notes=tuple(notes),
        token_spelling=a.token_spelling,
        about=about,
    )
    return report if moved is None else _with_weights(report, moved, a, b)


def _count_unmapped(moved: "WeightDifferences", *heads: Table | None) -> int:
    """The number of shared heads that lack a map on a side because their layers or stacks have no maps."""
    if moved.axes[:2] != PLACES or not all(heads):
        return 0
    head_sets = [{(row.get("stack"), row["layer"], row["head"]) for row in table or ()} for table in heads]
    is_mapped = np.isfinite(moved.b - moved.a).any(axis=(-2, -1))
    return max(0, len(set.intersection(*head_sets)) - int(is_mapped.sum()))


def _notes_on_tokens(moved: "WeightDifferences") -> Iterator[str]:
    """Notes on tokens that only one side has, and on rows without a distance."""
    if any(len(side.tokens) > side.num_shared for side in (moved.query, moved.key)):
        yield GAP_NOTE
    if not moved.query.num_shared:
        yield NO_SHARED_NOTE
    elif np.isnan(moved.distances).all():
        yield NO_DISTRIBUTION_NOTE


def _row_distances(moved: "WeightDifferences") -> Tensors:
    """The distance between the two sides for each row."""
    return Tensors(jensen_shannon=NamedTensor(moved.axes[:-1], moved.distances))


def _with_weights(report: Report, moved: "WeightDifferences", a: Report, b: Report) -> Report:
    """Add both sides' weights and tokens and, if both sides read the same picture, the picture."""
    tokens = moved.query.tokens
    is_cross = any(side.context_tokens or side.first_query for side in (a, b))
    is_one_picture = a.tokens == b.tokens == tokens and a.pictures == b.pictures
    return replace(
        report,
        tokens=tokens,
        context_tokens=moved.key.tokens if is_cross else (),
        tensors={
            "difference": NamedTensor(moved.axes, moved.b - moved.a, moved.shared_mask),
            "weights_a": NamedTensor(moved.axes, moved.a, moved.masks[0]),
            "weights_b": NamedTensor(moved.axes, moved.b, moved.masks[1]),
        },
        pictures=a.pictures if is_one_picture else (),
    )


class TwoTextsSpec(ModelSpec):
    """Settings for two texts that one model reads."""

    experiment = "diff"
    examples = ()
    needs_head = True

    a: Text
    b: Text

    def text_sources(self) -> tuple[TextSource, ...]:
        return TextSource("a", self.a), TextSource("b", self.b)

    def page(self) -> ModelPage:
        return ModelPage(read=read, report=report)


def read(
    spec: TwoTextsSpec, texts: Texts, pretrained: "Pretrained", generator: object
) -> "tuple[Reading, Reading]":
    """Read both texts. Raises UserError for a text that the model cannot read."""
    from attncli.models.reading_text import read_text

    return read_text(pretrained, spec.a, key="A"), read_text(pretrained, spec.b, key="B")


def report(
    spec: TwoTextsSpec, reading: "tuple[Reading, Reading]", pretrained: "Pretrained", progress: object
) -> Report:
    """Build the report that compares B with A."""
    from attncli.core.runtime import versions
    from attncli.features.diff.door import text_differences

    result = text_differences(pretrained, *reading)
    aligned = result.alignment
    assert aligned is not None
    change = "mean_jensen_shannon" if result.is_aligned else "difference"
    counts = [len(side.text.ids) for side in reading]
    read = f"on {counts[0]} and {counted(counts[1], 'token')}, {aligned.num_shared} of them aligned"
    return Report(
        "diff",
        {side: {"model": spec.model, "sentence": text} for side, text in (("a", spec.a), ("b", spec.b))},
        versions(),
        aligned.tokens,
        tensors={f"{change} {stack}".strip(): grid for stack, grid in result.heads.grids(change).items()},
        result=result,
        notes=result.notes if result.is_aligned else (NO_SHARED_NOTE, *result.notes),
        token_spelling=pretrained.token_spelling,
        about=f"{pretrained.name}: {counted(len(result.heads), 'head')}, {read}.",
    )


EXAMPLES = (
    "attn diff self --set causal=true",
    "attn diff multihead --set num_kv_heads=2 --format heatmap",
    "attn diff before.json after.json",
    "attn diff a.yaml b.yaml -o difference.html",
    'attn diff "Ann and Bob met, and Bob told" "Ann and Bob met, and Ann told" --model ./my-model',
)
PARAMETERS = (
    argument(
        "a",
        "A config file, a saved report (.json), an array (.npz), an experiment's name, or a text. To "
        "compare two models, save a report of each: attn heads TEXT --model MODEL -o a.json.",
        "A",
        reads_file=True,
    ),
    argument(
        "b",
        "Like A. Without B, A is compared with itself with the settings of --set applied.",
        "B",
        required=False,
        reads_file=True,
    ),
    option(
        "--model",
        "Compare what each head of this model looks at in the texts A and B.",
        "TEXT",
        everyday="compare two texts A and B in this model",
    ),
    option(
        "--set",
        "A setting of B. Repeatable.",
        "KEY=VALUE",
        kind=list[str],
        everyday="a setting for B; may be repeated",
    ),
)


def is_saved(side: str) -> bool:
    """True if a side names a saved report or an array, judging by the suffix."""
    return Path(side).suffix.lower() in (".json", ".jsonl", ".ndjson") or is_array_file(side)


def side_spec(side: str, overrides: Overrides, draws: bool) -> Spec:
    """The settings of one side, from a config file with one experiment or from an experiment's defaults."""
    settings: dict[str, Given]
    if side in SPECS and not is_file(side):
        settings = overridden(every_setting_of(side), {}, overrides)
        spec_class = spec_class_of(side, values_of(settings))
    elif len(side.split()) > 1 and not is_file(side):
        raise UserError(f"diff: a text needs a model: add --model FOLDER (got {side:.40})")
    elif is_store_name(side) and is_file(side):
        saved = f"attn heads --store {side} -o {Path(side).stem}.json"
        raise UserError(f"{side}: is a store of many runs: first save a survey of these runs: {saved}")
    elif Path(side).suffix.lower() not in (".yaml", ".yml") and not is_file(side):
        problem = f"neither a file nor an experiment{nearest(side, SPECS)}"
        hint = (
            "a text needs --model FOLDER; for a model, first save a report: "
            "attn heads TEXT --model MODEL -o a.json"
        )
        raise UserError(f"{side}: is {problem}: use one of {', '.join(SPECS)}; {hint}")
    else:
        refuse_unreadable_format(side, "compare")
        entries = ConfigFile(Path(side), overrides).entries()
        if len(entries) != 1:
            raise UserError(f"{side}: has {len(entries)} experiments: diff needs one per side")
        spec_class, settings = type(entries[0].spec), entries[0].given
    if problems := unknown_overrides(overrides, [every_setting_of(spec_class.experiment)]):
        raise UserError(*problems)
    return build_spec(spec_class, with_maps(spec_class, settings, "what is drawn") if draws else settings)


def _is_model(side: str) -> bool:
    """True for a model on this machine, unless its name means something else that can be compared."""
    if side in SPECS or is_store_name(side):
        return False
    try:
        model = local_model(side)
    except ValueError:  # a package that has several models
        return True
    return model is not None and (model.is_file() or (model / "config.json").is_file())


def _refuse_models(a: str, b: str | None) -> None:
    """If a side is a model, raise UserError with the commands that compare two models."""
    if models := [side for side in (a, b) if side is not None and _is_model(side)]:
        first, second = models if len(models) == 2 else (models[0], "MODEL")
        saved = [
            f"attn heads TEXT --model {shlex.join([model])} -o {name}.json"
            for model, name in ((first, "a"), (second, "b"))
        ]
        every = "; ".join([*saved, "attn diff a.json b.json"])
        raise UserError(f"{models[0]}: is a model: to compare models, run both on a text: {every}")


def _reports(sides: list[tuple[str, Overrides]], draws: bool, progress: ProgressLine) -> list[Report]:
    """Return the reports of both sides; all settings are checked before anything runs."""
    specs = {number: side_spec(*side, draws) for number, side in enumerate(sides) if not is_saved(side[0])}
    saved = {number: _saved(side) for number, (side, _) in enumerate(sides) if number not in specs}
    from attncli.runs.runner import Session

    progress.begin(first_words([spec.model_source() for spec in specs.values()]))
    return [
        saved[number] if number in saved else Session(progress).run(specs[number], reseed=True)
        for number in range(len(sides))
    ]


def _saved(side: str) -> Report:
    reports = opened(side).reports
    if len(reports) != 1:
        raise UserError(f"{side}: has {len(reports)} reports: diff needs one per side")
    return reports[0]


def _texts_spec(a: str, b: str | None, model: str, overrides: Overrides) -> TwoTextsSpec:
    """The settings of two texts. Raises UserError if one of them is a file, or if --set is used."""
    if b is None:
        raise UserError("diff: --model compares two texts: add the second text")
    for side in filter(is_file, (a, b)):
        raise UserError(f"--model: compares two texts, but {side} is a file: omit --model, or use two texts")
    for value in overrides.values():
        raise UserError(f"{value.where}: does not apply if --model compares two texts")
    settings = {"model": Given(model, "--model", is_flag=True)}
    settings |= {key: Given(text, key.upper(), is_flag=True) for key, text in (("a", a), ("b", b))}
    return build_spec(TwoTextsSpec, settings)


def run_diff(a: str, b: str | None, model: str | None, set: Sequence[str], **flags: Any) -> None:
    """Read or compute both sides, then show B compared with A."""
    to = Destination(**flags, experiment="diff")
    overrides = parse_overrides(set)
    if model is not None:
        spec = _texts_spec(a, b, model, overrides)
        from attncli.runs.runner import Session

        with progress_line() as progress:
            report = Session(progress).run(spec, reseed=True)
        to.write([report])
        return
    _refuse_models(a, b)
    if b is None and not overrides:
        raise UserError("diff: needs a second side: a file, or --set KEY=VALUE")
    second = a if b is None else b
    if overrides and is_saved(second):
        raise UserError(f"--set: cannot change {second}, which is a saved report: use a config file")
    with progress_line() as progress:
        report = compare(*_reports([(a, {}), (second, overrides)], to.view.draws, progress))
    to.write([report])


command = partial(Command, run=run_diff, parameters=[*PARAMETERS, *OUTPUT_FLAGS, DEBUG], examples=EXAMPLES)
