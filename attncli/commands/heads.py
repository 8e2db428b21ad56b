"""What each head of a model does: on a text, on a probe, on many texts or on those of a store."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from attncli.commands.examples import report_examples
from attncli.commands.relations import report_relations
from attncli.commands.surveys import (
    ablated_notes,
    about_heads,
    notes_of,
    of_pattern,
    pattern_tables,
    ranked_parts,
    report_of_totals,
    sinks_of,
)
from attncli.core.names import HEAD_PATTERNS, STARTS_SPECIAL, WITHOUT_FIRST
from attncli.measure.heads import (
    HIGH_NORM,
    HeadMaps,
    HeadOptions,
    RestOfText,
    Surveyed,
    SurveyedLayers,
    check_reading,
    head_numbers,
    head_totals,
    stacks_of,
    surveyed,
)
from attncli.measure.looks import MEAN, ROLLOUT, FirstLooks, PictureLooks
from attncli.measure.patterns import (
    HeadRow,
    Stack,
    patterns_of_text,
    rows_behind_patterns,
    rows_by_stack,
)
from attncli.models.picture_files import PictureFolder
from attncli.models.picture_reading import read_picture
from attncli.models.pretrained import Pretrained, Reading, part_that_reads, part_that_sees, reader_of
from attncli.models.text_files import ManyTexts, PictureList, TextFile, TextLine
from attncli.models.token_names import positions_named
from attncli.plain_text import counted
from attncli.report import (
    NamedTensor,
    Numbers,
    Picture,
    PictureMaps,
    PictureRow,
    Report,
    Statistic,
    Table,
    whole_head_name,
)
from attncli.report_parts import build_report, named, versions
from attncli.runs.report_values import (
    LayerOfHeads,
    ValueTable,
    survey_values,
)
from attncli.runs.runner import read_survey_text
from attncli.settings.heads import MOST_HEADS_SHOWN, HeadsSpec
from attncli.settings.text import Texts, read_texts


def options_of(spec: HeadsSpec) -> HeadOptions:
    """What the settings ask of each head."""
    sought = spec.sought()
    return HeadOptions(
        skip_sink=spec.skip_sink,
        words=spec.words,
        weighted=spec.weighted,
        rollout=spec.rollout,
        rest=spec.names_rest(),
        maps=spec.maps,
        full=tuple(spec.full),
        queries=tuple(sought["from"]),
        keys=tuple(sought["to"]),
        looks=spec.image is not None,
    )


def read(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads, with a decoder also its encoder; UserError for what does not fit."""
    if spec.image is not None:
        reading = read_picture(pretrained, spec.image, texts.text)
        check_reading(reading, pretrained, options_of(spec))
        return reading
    reading = read_survey_text(spec, texts, pretrained, generator, words=spec.words)
    check_reading(reading, pretrained, options_of(spec))
    return reading


def report_each(
    specs: Sequence[HeadsSpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The survey of each of some texts of equal counts."""
    specs = [with_kind_of_maps(one, readings[0]) for one in specs]
    spec = specs[0]
    pretrained = reader_of(pretrained, readings[0])
    found = surveyed(pretrained, readings, options_of(spec), ablate=spec.ablate, progress=progress)
    return [report_of_text(own, readings[text], found, text, pretrained) for text, own in enumerate(specs)]


def values_each(
    specs: Sequence[HeadsSpec], readings: Sequence[Reading], pretrained: Pretrained
) -> tuple[ValueTable | None, Mapping[str, str]]:
    """The values of the reports of some texts of equal counts, and what they were made with.

    None of a picture, and where the settings choose heads or ask for more than statistics.
    """
    spec, pretrained = specs[0], reader_of(pretrained, readings[0])
    chooses = any(setting is not None for setting in (spec.statistic, spec.sort, spec.top, spec.pattern))
    asks_for_more = spec.rollout or spec.full or spec.maps not in ("auto", "self", "none")
    if chooses or asks_for_more or spec.probe or spec.image is not None or readings[0].seen is not None:
        return None, {}
    options = replace(options_of(spec), maps="none")
    survey = surveyed(pretrained, readings, options, ablate=spec.ablate).survey
    heads = _layers_of_heads(survey.found)
    first_keys = [torch.from_numpy(one.values[..., one.names.index("sink_mass")]) for one in heads]
    others: list[dict[str, Numbers | Table]] = []
    for text in range(len(readings)):
        stacks = list(stacks_of(survey.found, text).values())
        others.append(
            {
                "patterns": Table(rows_behind_patterns(stacks)),
                "pattern_rows": Table(rows_by_stack(stacks)),
                "model": sinks_of(torch.cat([mass[text] for mass in first_keys])),
            }
        )
        if survey.rest is not None:
            counts = _counts_of_rest([*stacks_of(survey.rest, text).values()])
            others[text][f"{WITHOUT_FIRST}_rows"] = counts
    named = {pattern.statistic for pattern in HEAD_PATTERNS.values()}
    rest = [] if survey.rest is None else _layers_of_heads(survey.rest, named)
    return survey_values(heads, rest, others), versions()


def _layers_of_heads(found: SurveyedLayers, named: Collection[str] | None = None) -> list[LayerOfHeads]:
    """The statistics of each layer, or those that are named, as numbers."""
    layers = []
    for layer, numbers in zip(found.layers, head_numbers(found), strict=True):
        kept = [place for place, name in enumerate(numbers.names) if named is None or name in named]
        values = numbers.values.double().numpy(force=True)[..., kept]
        names = tuple(numbers.names[place] for place in kept)
        layers.append(LayerOfHeads(layer.where["stack"], layer.where["layer"], names, values))
    return layers


def with_kind_of_maps(spec: HeadsSpec, reading: Reading) -> HeadsSpec:
    """The settings, with the kind of attention that is drawn: where words look at a picture, that."""
    if spec.maps != "auto":
        return spec
    sees = reading.context is not None and reading.context.seen is not None
    return spec.model_copy(update={"maps": "cross" if sees else "self"})


def report_many(spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """The survey of many texts: means over them, and how sure these are; of one head examples."""
    if spec.relations is not None:
        return report_relations(spec, pretrained, progress)
    if spec.image is not None:
        return _report_pictures(spec, pretrained, progress)
    assert spec.texts is not None
    pretrained = part_that_reads(pretrained)
    with TextFile(spec.texts, spec.text_group) as file:
        many = ManyTexts(file, lambda line: _read_line(spec, line, pretrained), progress)
        if spec.head is not None:
            return report_examples(spec, many, pretrained, options_of(spec))
        totals, way_notes = head_totals(pretrained, many, options_of(spec), ablate=spec.ablate)
    notes = [*many.notes(), *way_notes, *ablated_notes(spec.ablate)]
    return report_of_totals(spec, totals, pretrained.name, notes)


def _report_pictures(
    spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """The survey of the pictures of a folder or a list, and maps over the first of them."""
    image, words = str(spec.image), read_texts(spec).text
    spec = spec.model_copy(update={"maps": "none"})  # a map is of one picture
    looks = None
    if spec.statistic is None:
        is_ranked = bool(spec.sort or spec.top or spec.pattern)
        looks = FirstLooks(spec.sought()["from"], spec.heads_shown(), keeps_all=is_ranked)

    def read_one(line: TextLine) -> Reading:
        assert line.image is not None
        reading = read_picture(pretrained, line.image, words)
        if looks is not None:
            looks.note_places(line.label, reading, pretrained)
        check_reading(reading, pretrained, options_of(spec))
        return reading

    with nullcontext(PictureFolder(image)) if Path(image).is_dir() else PictureList(image, "image") as files:
        seen = ManyTexts(files, read_one, progress, key="image")
        part = part_that_sees(pretrained) if words is None else pretrained
        totals, way_notes = head_totals(part, seen, options_of(spec), ablate=spec.ablate, looks=looks)
    notes = [*seen.notes(), *way_notes, *ablated_notes(spec.ablate)]
    maps = partial(_picture_maps, spec, looks=looks, num_pictures=totals.num_texts)
    return report_of_totals(spec, totals, part.name, notes, maps)


def _picture_maps(
    spec: HeadsSpec, heads: Table, looks: FirstLooks | None, num_pictures: int
) -> PictureMaps | None:
    """The maps of the same heads over each of the first pictures; None where none was kept.

    Those that are named, or the first of a ranking; else those of the last layer, their mean and rollout.
    """
    pictures = [] if looks is None else looks.pictures()
    if looks is None or not pictures:
        return None
    kept = pictures[0].maps.keys()
    heads_kept = [name for name in kept if name not in (MEAN, ROLLOUT)]
    if named := spec.heads_shown():
        chosen, about = named, f"{'head' if len(named) == 1 else 'heads'} {', '.join(named)}"
    elif looks.keeps_all:
        stacks = ("self", "encoder") if pictures[0].reading.context is None else ("cross",)
        ranked = [f"{row['layer']}:{row['head']}" for row in heads if row["stack"] in stacks]
        chosen = [name for name in ranked if name in kept][:MOST_HEADS_SHOWN]
        about = f"the first {counted(len(chosen), 'head')}" if len(chosen) > 1 else "the first head"
        about += f" by {'least ' if spec.ascending else ''}{spec.sort}" if spec.sort else ""
    else:
        chosen, about = heads_kept[:MOST_HEADS_SHOWN], f"the heads of layer {looks.last_layer}"
        if len(heads_kept) > len(chosen):
            about = f"the first {len(chosen)} of {about[4:]}"
        chosen += [name for name in (MEAN, ROLLOUT) if name in kept]
        about += ", their mean and the rollout" if ROLLOUT in kept else " and their mean"
    if not chosen:
        return None
    names = Counter(Path(picture.file).name for picture in pictures)
    rows = tuple(
        _picture_row(picture, chosen, is_unique=names[Path(picture.file).name] == 1) for picture in pictures
    )
    return PictureMaps(tuple(chosen), about, num_pictures, rows)


def _picture_row(looks: PictureLooks, names: Sequence[str], *, is_unique: bool) -> PictureRow:
    """One picture with the maps of these names; of files of the same name with that of its folder."""
    (picture,) = pictures_of(looks.reading)
    if not is_unique:
        picture = replace(picture, name="/".join(Path(looks.file).parts[-2:]))
    side = looks.reading.text if picture.axis == "tokens" else looks.reading.context
    assert side is not None, "its picture lies among the tokens of one of the two"
    weights = np.stack([looks.maps[name] for name in names])
    return PictureRow(picture, side.tokens, looks.queries, NamedTensor(("map", "key"), weights))


def _read_line(spec: HeadsSpec, line: TextLine, pretrained: Pretrained) -> Reading:
    """One of many texts."""
    return read(spec, Texts(text=line.text), pretrained, torch.Generator())


def _rest_tables(rest: RestOfText | None) -> dict[str, Table]:
    """What `rest_pattern` is named by, and how many rows of the text that comes from."""
    if rest is None:
        return {}
    counts = _counts_of_rest([*rest.stacks.values()])
    return {WITHOUT_FIRST: Table(rest.rows), f"{WITHOUT_FIRST}_rows": counts}


def _counts_of_rest(stacks: Sequence[Stack]) -> Table:
    measured = dict.fromkeys(name for stack in stacks for name in stack.num_rows)
    return Table(
        {"stack": stack.name, STARTS_SPECIAL: stack.starts_special, **measured, **stack.num_rows}
        for stack in stacks
    )


def report_of_text(
    spec: HeadsSpec, whole: Reading, surveyed: Surveyed, text: int, pretrained: Pretrained
) -> Report:
    """The report of one of the texts that were surveyed together."""
    reading, found = whole.in_words(), surveyed.texts[text]
    patterns = patterns_of_text(found.rows, found.stacks, found.key_of)
    tables = (
        pattern_tables(patterns)
        | _rest_tables(found.rest)
        | {"named_tokens": _named_tokens(spec, reading, pretrained)}
    )
    rows, none = of_pattern(spec, found.rows, found.rows, {stack.name: stack for stack in found.stacks})
    statistics, tensors = ranked_parts(spec, rows, tables)
    if surveyed.rollout:
        tensors["rollout"] = named(surveyed.rollout[text], "query", "key")
    spelling = None if spec.words else pretrained.token_spelling
    tokens, context = reading.text.tokens, () if reading.context is None else reading.context.tokens
    if surveyed.looks:
        looks = surveyed.looks[text]
        tensors["looks"] = NamedTensor(("layer", "head", "key"), looks.by_layer())
        tensors["mean_look"] = NamedTensor(("layer", "key"), looks.mean_by_layer())
        if (rolled := looks.rolled()) is not None:
            tensors["rollout"] = named(rolled, "key")
        names = [] if looks.queries is None else [tokens[query] for query in looks.queries]
        spec = spec.model_copy(update={"from": names})
        statistics |= _norm_statistics(surveyed, reading, text)
    pictures = pictures_of(reading)
    if surveyed.maps:
        maps = surveyed.maps[text]
        tensors |= _map_tensors(maps)
        tokens, context = maps.query.tokens, maps.key.tokens if spec.maps == "cross" else ()
        if pictures and reading.context is not None and spec.maps != "cross":
            of_encoder = tuple(replace(one, axis="tokens") for one in pictures)
            pictures = () if maps.query.seen is None else of_encoder
            tensors = {name: one for name, one in tensors.items() if name not in ("looks", "mean_look")}
    count = counted(len(whole.text.ids), "token")
    if spec.words:
        count += f" of {counted(len(reading.text.ids), 'word')}"
    notes = [
        *notes_of(spec),
        *none,
        *surveyed.way.notes(),
        *whole.left_out_notes(),
        *ablated_notes(spec.ablate),
    ]
    read = Texts(tokens, context, token_spelling=spelling)
    about = about_heads(pretrained.name, len(found.rows), count)
    unseen = _unseen(spec, tables["named_tokens"], found.rows)
    return build_report(
        spec, read, tensors, statistics, notes, about=about, how_to_read=unseen, pictures=pictures
    )


def pictures_of(reading: Reading) -> tuple[Picture, ...]:
    """The pictures of a reading, as a report has them."""
    is_context = reading.text.seen is None
    return tuple(
        Picture(
            one.name, one.size, one.crop, one.png, one.boxes, "context_tokens" if is_context else "tokens"
        )
        for one in (() if reading.seen is None else reading.seen.pictures)
    )


def _norm_statistics(surveyed: Surveyed, reading: Reading, text: int) -> dict[str, Statistic]:
    """The median norm of the patches that the last block gives, and the patches far above it."""
    norms = surveyed.norms
    medians, are_high = (None, None) if norms is None else (norms.medians(), norms.are_high())
    if norms is None or norms.norms is None or medians is None or are_high is None:
        return {}
    places = are_high[text].nonzero()[:, 0].tolist()
    numbers: dict[str, Statistic] = {
        "norms": Numbers(median_norm=float(medians[text]), high_norm=HIGH_NORM, num_high=len(places))
    }
    rows = Table(
        {"position": place, "token": reading.text.tokens[place], "norm": float(norms.norms[text, place])}
        for place in places
    )
    return numbers | ({"high_norm_patches": rows} if rows else {})


def _unseen(spec: HeadsSpec, named_tokens: Table, rows: Sequence[HeadRow]) -> str:
    """A sentence where no head has any weight from what was named to what stands behind it; else nothing."""
    places = {
        key: [int(str(row["position"])) for row in named_tokens if row["setting"] == key]
        for key in spec.sought()
    }
    is_behind = places["from"] and places["to"] and max(places["from"]) < min(places["to"])
    if not is_behind or any(row["from_to_weight"] for row in rows):
        return ""
    names = spec.sought()
    flags = " ".join(
        f"--{key} {name}" for key, other in (("from", "to"), ("to", "from")) for name in names[other]
    )
    return (
        f"Every weight is 0: {', '.join(names['from'])} stands before {', '.join(names['to'])}, and this "
        f"model never looks ahead. The other way round: {flags}."
    )


def _named_tokens(spec: HeadsSpec, reading: Reading, pretrained: Pretrained) -> Table:
    """The tokens that `from` and `to` mean, each with its position and the name that means it."""
    texts = {"sentence": reading.text} | ({} if reading.context is None else {"context": reading.context})
    return Table(
        {"setting": key, "name": name, "text": which, "position": position, "token": text.tokens[position]}
        for key, names in spec.sought().items()
        for which, text in texts.items()
        for position, name in positions_named(names, text, pretrained).items()
    )


def _map_tensors(maps: HeadMaps) -> dict[str, NamedTensor]:
    """The maps of all heads, and the whole weights of those that were asked for."""
    axes = ("query", "key") if maps.is_whole else ("query_block", "key_block")
    every = {name: NamedTensor(("layer", "head", *axes), found) for name, found in maps.by_layer().items()}
    return every | {
        whole_head_name(*place): NamedTensor(("query", "key"), weights)
        for place, weights in maps.in_full().items()
    }
