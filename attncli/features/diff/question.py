"""`attn diff`: two experiments or saved reports, aligned and compared."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.commands.command import DEBUG, OUTPUT_FLAGS, Command, argument, is_file, option
from attncli.commands.output import Destination, ProgressLine, first_words, progress_line
from attncli.commands.saved_files import opened, refuse_what_is_only_written
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
MAX_NAMED = 3


class ComparedHead(NamedTuple):
    """The place of a head: its stack, its layer (None where there is only one) and its number."""

    stack: str
    layer: Any
    head: Any


def places_of(report: Report, weights: NamedTensor | None) -> set[ComparedHead]:
    """The heads of a survey, else those on the axes of the weights."""
    if rows := report.table("heads"):
        return {ComparedHead._make(map(row.get, ComparedHead._fields)) for row in rows}
    if weights is None or "head" not in weights.axes:
        return set()
    sizes = dict(zip(weights.axes, weights.values.shape, strict=True))
    layers, heads = ([None] if axis not in sizes else range(sizes[axis]) for axis in PLACES)
    return {ComparedHead("self", layer, head) for layer in layers for head in heads}


def left_out_notes(a: set[ComparedHead], b: set[ComparedHead]) -> Iterator[str]:
    """`In A alone, and left out where heads are compared: layers 6 to 11.`, and the same for B."""
    for side, heads, others in (("A", a, b), ("B", b, a)):
        if parts := [part for stack in STACKS for part in _alone(stack, heads, others)]:
            yield f"In {side} alone, and left out where heads are compared: {'; '.join(parts)}."


def _alone(stack: str, places: set[ComparedHead], others: set[ComparedHead]) -> Iterator[str]:
    """What a stack has and that of the other side lacks: itself, layers, heads."""
    of_stack = {place for place in others if place.stack == stack}
    alone = {place for place in places - others if place.stack == stack}
    if alone and not of_stack:
        yield STACKS[stack]
        return
    where = f" of {STACKS[stack]}" if len({place.stack for place in places | others}) > 1 else ""
    layers = {place.layer for place in alone} - {place.layer for place in of_stack}
    in_layers = {place for place in alone if place.layer not in layers}
    heads = {place.head for place in in_layers} - {place.head for place in of_stack}
    for name, numbers in (("layer", layers), ("head", heads)):
        if numbers:
            yield f"{name}{'s' * (len(numbers) > 1)} {_ranges(numbers)}{where}"
    single = sorted(f"{place.layer}:{place.head}" for place in in_layers if place.head not in heads)
    if single:
        more = f" and {len(single) - MAX_NAMED} more" if len(single) > MAX_NAMED else ""
        yield f"head{'s' * (len(single) > 1)} {', '.join(single[:MAX_NAMED])}{more}{where}"


def _ranges(numbers: Iterable[int]) -> str:
    """`0, 6 to 11` for 0, 6, 7, 8, 9, 10, 11."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)


NO_DISTRIBUTION_NOTE = "Rows of weights that are not distributions have no Jensen-Shannon distance."
NO_SHARED_NOTE = "A and B share no token: no row of one stands beside a row of the other."
GAP_NOTE = "A token that one side lacks has no row there, and weight 0 as a key."


def _weights(report: Report, side: str) -> NamedTensor | None:
    """The weights of every query on every key; None where an experiment has none."""
    tensor = report.tensors.get("weights")
    if tensor is not None and tensor.axes[-2:] == ("query", "key"):
        return tensor
    if "pooled_mean" in report.tensors:
        raise UserError(
            f"diff: {side} holds maps of blocks, not weights: use fewer tokens, or --set engine=dense"
        )
    return None


DIFFERENT_MAPS = [{"cross", "encoder"}, {"cross", "decoder"}, {"cross", "self"}, {"encoder", "decoder"}]
"""The stacks whose heads have nothing to do with each other; a model with one stack calls it self."""


def _mapped_stack(report: Report) -> str:
    """The stack that the maps of a survey are of, as STACKS names it; empty where there are none."""
    kind = str(report.spec.get("maps")) if isinstance(report.result, HeadSurvey) else ""
    is_of_decoder = kind == "self" and any(place.stack == "decoder" for place in places_of(report, None))
    return "decoder" if is_of_decoder else kind if kind in STACKS else ""


def _named_weights(report: Report, weights: NamedTensor) -> "NamedWeights":
    from attncli.features.diff.differences import NamedWeights

    queries, keys = report.tokens[report.first_query :], report.context_tokens or report.tokens
    return NamedWeights(weights.axes, weights.values, queries, keys, weights.mask)


def _change_note(changed: "ChangedHeads") -> str:
    """How many heads changed, of those that both surveys have."""
    if not changed.num_shared:
        return "The two have no statistic of a head in common."
    chance = " Of so many comparisons some differ by chance." if changed.num_changed else ""
    heads = counted(changed.num_shared, "head")
    return f"{changed.num_changed} of {heads} changed beyond their 95 % intervals.{chance}"


def _single_numbers(report: Report, other: Report) -> Iterator[tuple[str, float]]:
    """Every number by its name, as `scores.variance`; of the statistics of rows the mean over rows.

    The rows of a table, which the other side may have one of alone, are told apart by their first cells:
    `variance.query, head_dim 16`. Those of surveys are of heads, which are compared by themselves.
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
        numbers_of_rows = tensor.values[np.isfinite(tensor.values)]
        if len(numbers_of_rows) and not name.startswith("top_"):
            yield f"{name}.mean", float(numbers_of_rows.mean())


def _finite(group: str, row: Row, which: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a row by their full names, with `which` row it is at their end."""
    for name, cell in row.items():
        if isinstance(cell, int | float) and np.isfinite(cell):
            yield f"{group}.{name}{which}", float(cell)


def _side_by_side(a: Report, b: Report) -> Records[StatisticPair]:
    of_a, of_b = dict(_single_numbers(a, b)), dict(_single_numbers(b, a))
    names = [name for name in of_a if name in of_b]
    return StatisticPair.table(
        statistic=names,
        a=[of_a[name] for name in names],
        b=[of_b[name] for name in names],
        difference=[of_b[name] - of_a[name] for name in names],
    )


def _changed_settings(a: Report, b: Report) -> str:
    """The settings that differ, in one line."""
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
    """A setting; for the model that nobody named the name of the one that ships."""
    value = report.spec.get(key)
    return Path(model_setting(report)).name or None if key == "model" and value is None else value


def _setting(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _different_models(a: Report, b: Report) -> Iterator[str]:
    """That heads of two models share no more than a number."""
    models = model_setting(a), model_setting(b)
    if all(models) and models[0] != models[1]:
        named = " and ".join(Path(model).name or model for model in models)
        yield (
            f"Two models ({named}): head 0:0 of one and head 0:0 of the other share no more than a number, "
            "unless one model was trained from the other."
        )


NOT_COMPARED = "Heads of layers without a softmax are compared over texts alone (attn heads --texts)."


def _num_texts(report: Report) -> int:
    """How many texts a survey has read."""
    return report.result.num_texts if isinstance(report.result, HeadSurvey) else 1


def compare(a: Report, b: Report) -> Report:
    """B compared with A. UserError where their weights cannot be compared.

    Without weights on both sides (norm, scale-demo, a survey without maps) only the statistics are compared.
    """
    from attncli.core.runtime import versions
    from attncli.features.diff.differences import changed_heads, head_differences, weight_differences

    weights_a, weights_b = _weights(a, "A"), _weights(b, "B")
    if (weights_a is None) != (weights_b is None):
        without = "A" if weights_a is None else "B"
        raise UserError(f"diff: {without} has no weights to compare with those of the other side")
    notes = [*left_out_notes(places_of(a, weights_a), places_of(b, weights_b))]
    mapped = _mapped_stack(a), _mapped_stack(b)
    if set(mapped) in DIFFERENT_MAPS:
        weights_a = weights_b = None
        notes.append(
            f"The maps of A are of {STACKS[mapped[0]]}, those of B of {STACKS[mapped[1]]}: left out."
        )
    moved = changed = None
    if weights_a is not None and weights_b is not None:
        moved = weight_differences(_named_weights(a, weights_a), _named_weights(b, weights_b))
        notes += _notes_on_tokens(moved)
    elif a.experiment != b.experiment:
        raise UserError(f"diff: {a.experiment} and {b.experiment} have no weights and other statistics")
    heads = a.table("heads"), b.table("heads")
    if a.table("intervals") and b.table("intervals"):
        changed = changed_heads(a.table("intervals"), b.table("intervals"), *heads)
        notes.insert(0, _change_note(changed))
        fewest = min(_num_texts(report) for report in (a, b))
        notes += few_notes(fewest, text_name(a))
    elif a.table("linear") or b.table("linear"):
        notes.insert(0, NOT_COMPARED)
    if places_of(a, weights_a) and places_of(b, weights_b):
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
        raise UserError(f"diff: {about} They share no weights and no single statistic to set side by side")
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
    """How many heads that both sides have no map tells about: those of layers, or of a stack, without."""
    if moved.axes[:2] != PLACES or not all(heads):
        return 0
    of_sides = [{(row.get("stack"), row["layer"], row["head"]) for row in table or ()} for table in heads]
    is_mapped = np.isfinite(moved.b - moved.a).any(axis=(-2, -1))
    return max(0, len(set.intersection(*of_sides)) - int(is_mapped.sum()))


def _notes_on_tokens(moved: "WeightDifferences") -> Iterator[str]:
    """Which rows and keys have nothing beside them, and rows without a distance."""
    if any(len(side.tokens) > side.num_shared for side in (moved.query, moved.key)):
        yield GAP_NOTE
    if not moved.query.num_shared:
        yield NO_SHARED_NOTE
    elif np.isnan(moved.distances).all():
        yield NO_DISTRIBUTION_NOTE


def _row_distances(moved: "WeightDifferences") -> Tensors:
    """How far apart the two sides are, row by row."""
    return Tensors(jensen_shannon=NamedTensor(moved.axes[:-1], moved.distances))


def _with_weights(report: Report, moved: "WeightDifferences", a: Report, b: Report) -> Report:
    """The comparison with the weights of both sides, their tokens and, where both saw one, the picture."""
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
    """Two texts that one model reads."""

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
    """Both texts as the model reads them; UserError for what does not fit."""
    from attncli.models.reading_text import read_text

    return read_text(pretrained, spec.a, key="A"), read_text(pretrained, spec.b, key="B")


def report(
    spec: TwoTextsSpec, reading: "tuple[Reading, Reading]", pretrained: "Pretrained", progress: object
) -> Report:
    """B compared with A."""
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
        "A config file, a saved report (.json), an array (.npz), an experiment's name; or a text. Of each of "
        "two models save a report: attn heads TEXT --model MODEL -o a.json.",
        "A",
        reads_file=True,
    ),
    argument(
        "b",
        "The same; without it A again, with the settings of --set.",
        "B",
        required=False,
        reads_file=True,
    ),
    option(
        "--model",
        "A and B are texts: what each head of this model looks at in one and the other.",
        "TEXT",
        everyday="A and B are two texts in this model",
    ),
    option(
        "--set",
        "A setting of B. Repeatable.",
        "KEY=VALUE",
        kind=list[str],
        everyday="a setting of B; may be repeated",
    ),
)


def is_saved(side: str) -> bool:
    """Whether a side names a saved report or an array, by its suffix."""
    return Path(side).suffix.lower() in (".json", ".jsonl", ".ndjson") or is_array_file(side)


def spec_of(side: str, overrides: Overrides, draws: bool) -> Spec:
    """The settings of one side: of a config file with one experiment, or an experiment's defaults."""
    given: dict[str, Given]
    if side in SPECS and not is_file(side):
        given = overridden(every_setting_of(side), {}, overrides)
        spec_class = spec_class_of(side, values_of(given))
    elif len(side.split()) > 1 and not is_file(side):
        raise UserError(f"diff: a text needs the model that reads it: --model FOLDER (got {side:.40})")
    elif is_store_name(side) and is_file(side):
        saved = f"attn heads --store {side} -o {Path(side).stem}.json"
        raise UserError(f"{side}: is a store of many runs: {saved} saves a survey in one, to compare that")
    elif Path(side).suffix.lower() not in (".yaml", ".yml") and not is_file(side):
        kinds = f"neither a file nor an experiment{nearest(side, SPECS)}"
        others = (
            "a text needs --model FOLDER, of a model save a report: attn heads TEXT --model MODEL -o a.json"
        )
        raise UserError(f"{side}: is {kinds}: one of {', '.join(SPECS)}; {others}")
    else:
        refuse_what_is_only_written(side, "compare")
        entries = ConfigFile(Path(side), overrides).entries()
        if len(entries) != 1:
            raise UserError(f"{side}: holds {len(entries)} experiments: diff takes one on each side")
        spec_class, given = type(entries[0].spec), entries[0].given
    if problems := unknown_overrides(overrides, [every_setting_of(spec_class.experiment)]):
        raise UserError(*problems)
    return build_spec(spec_class, with_maps(spec_class, given, "what is drawn") if draws else given)


def _is_model(side: str) -> bool:
    """Whether it names a model of this machine, and nothing else that can be compared."""
    if side in SPECS or is_store_name(side):
        return False
    try:
        model = local_model(side)
    except ValueError:  # a package of several
        return True
    return model is not None and (model.is_file() or (model / "config.json").is_file())


def _refuse_models(a: str, b: str | None) -> None:
    """UserError that says how two models are compared, where a side is one."""
    if models := [side for side in (a, b) if side is not None and _is_model(side)]:
        first, second = models if len(models) == 2 else (models[0], "MODEL")
        saved = [
            f"attn heads TEXT --model {shlex.join([model])} -o {name}.json"
            for model, name in ((first, "a"), (second, "b"))
        ]
        every = "; ".join([*saved, "attn diff a.json b.json"])
        raise UserError(
            f"{models[0]}: is a model: models are compared on a text that both have read: {every}"
        )


def _reports(sides: list[tuple[str, Overrides]], draws: bool, progress: ProgressLine) -> list[Report]:
    """Both sides, every setting checked before anything runs."""
    specs = {number: spec_of(*side, draws) for number, side in enumerate(sides) if not is_saved(side[0])}
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
        raise UserError(f"{side}: holds {len(reports)} reports: diff takes one on each side")
    return reports[0]


def _texts_spec(a: str, b: str | None, model: str, overrides: Overrides) -> TwoTextsSpec:
    """The settings of two texts; UserError where one of them is a file, and for --set."""
    if b is None:
        raise UserError("diff: needs a second text beside --model")
    for side in filter(is_file, (a, b)):
        raise UserError(
            f"--model: reads two texts, and {side} is a file: leave --model out, or name two texts"
        )
    for value in overrides.values():
        raise UserError(f"{value.where}: is for experiments and files, not for the two texts of --model")
    given = {"model": Given(model, "--model", is_flag=True)}
    given |= {key: Given(text, key.upper(), is_flag=True) for key, text in (("a", a), ("b", b))}
    return build_spec(TwoTextsSpec, given)


def run_diff(a: str, b: str | None, model: str | None, set: Sequence[str], **flags: Any) -> None:
    """Read or compute both sides, then show B against A."""
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
        raise UserError("diff: needs a second side: a file, or --set KEY=VALUE for what differs")
    other = a if b is None else b
    if overrides and is_saved(other):
        raise UserError(f"--set: cannot change {other}, which was computed before: give a config file")
    with progress_line() as progress:
        report = compare(*_reports([(a, {}), (other, overrides)], to.view.draws, progress))
    to.write([report])


command = partial(Command, run=run_diff, parameters=[*PARAMETERS, *OUTPUT_FLAGS, DEBUG], examples=EXAMPLES)
