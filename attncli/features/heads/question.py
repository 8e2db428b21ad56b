"""The survey of heads on a text, a probe, many texts, or the texts in a store."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from attncli.commands.surveys import ablated_notes, sink_heads_rate, survey_title
from attncli.core.runtime import versions
from attncli.features.heads.surveys import ranked, survey_notes, totals_report, with_pattern
from attncli.measure.head_numbers import SurveyedLayers, head_numbers, stacks_of
from attncli.measure.heads import HeadOptions, Surveyed, check_reading, head_totals, surveyed
from attncli.measure.looks import HIGH_NORM, MEAN, ROLLOUT, FileLooks, FirstLooks, HeadMaps
from attncli.measure.patching import activations_and_missing
from attncli.models.openers import OPENERS, FileInput
from attncli.models.pretrained import Pretrained, Reading, part_that_reads, reader_of
from attncli.models.text_files import ManyTexts, TextLine, file_texts
from attncli.models.token_names import positions_named
from attncli.records.columns import Records
from attncli.records.report import Mask, NamedTensor, PictureMaps, PictureRow, Report, whole_head_name
from attncli.records.stored_columns import ValueTable, with_unshown
from attncli.records.surveys import (
    NAMING,
    SIGNED_OVER_TEXTS,
    HeadSurvey,
    LayerOfHeads,
    PatchNorm,
    PatchNorms,
    StacksOfText,
    SurveyedHead,
    TokenNamed,
    survey_values,
)
from attncli.runs.report_parts import build_report, named
from attncli.runs.runner import read_survey_text
from attncli.settings.heads import MAX_DRAWN_HEADS, HeadsSpec
from attncli.settings.models import ReadFile
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts, read_texts
from attncli.system.plain_text import counted

NOT_DRAWN = (
    "Maps show only attention: heads without a softmax have maps for up to 128 tokens, if no layer "
    "has both kinds of heads."
)


def survey_options(spec: HeadsSpec) -> HeadOptions:
    """Return the options of a survey."""
    queries, keys = spec.sought().values()
    return HeadOptions(
        skip_sink=spec.skip_sink,
        words=spec.words,
        weighted=spec.weighted,
        rollout=spec.rollout,
        rest=spec.measures_rest(),
        maps=spec.maps,
        full=tuple(spec.full),
        queries=tuple(queries),
        keys=tuple(keys),
        looks=spec.reads_grid,
    )


def read(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """Read the input of the model and, if it has a decoder, of its encoder.

    Raises UserError if the input does not fit.
    """
    if (file := spec.read_file) is not None:
        reading = OPENERS[file.what].read(pretrained, FileInput(file.name, texts.text, spec.truncate))
    else:
        reading = read_survey_text(spec, texts, pretrained, generator, words=spec.words)
    check_reading(reading, pretrained, survey_options(spec))
    return reading


def report_each(
    specs: Sequence[HeadsSpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
    *,
    whole_tokens: int | None = None,
) -> list[Report]:
    """Return the surveys of texts of equal length. Texts of up to `whole_tokens` tokens keep whole maps."""
    specs = [with_map_kind(spec, readings[0]) for spec in specs]
    first, options = specs[0], survey_options(specs[0])
    if whole_tokens is not None:
        options = replace(options, whole_tokens=whole_tokens)
    options = replace(options, linear=first.shows_signed_heads())
    pretrained = reader_of(pretrained, readings[0])
    run = surveyed(pretrained, readings, options, ablate=first.ablate, progress=progress)
    reports = [
        text_report(spec, reading, run, text, pretrained)
        for text, (spec, reading) in enumerate(zip(specs, readings, strict=True))
    ]
    if first.names is None:
        return reports
    return [
        _with_activations(
            spec, report, *activations_and_missing(pretrained, reading, first.names), pretrained=pretrained
        )
        for spec, report, reading in zip(specs, reports, readings, strict=True)
    ]


def _with_activations(
    spec: HeadsSpec,
    report: Report,
    tensors: Mapping[str, torch.Tensor],
    missing: str,
    *,
    pretrained: Pretrained,
) -> Report:
    """Return the report with the activations of every layer instead of its maps."""
    side = ("row", "column", "vector") if pretrained.has_decoder else ("query", "key", "token")
    is_heads_first = spec.names == "nnsight"
    tensors_by_name: dict[str, NamedTensor] = {}
    for name, tensor in tensors.items():
        is_matrix = name.endswith(("pattern", "scores"))
        vectors = ("batch", "head", side[2], "dim") if is_heads_first else ("batch", side[2], "head", "dim")
        axes = ("batch", "head", *side[:2]) if is_matrix else vectors
        tensors_by_name[name] = named(tensor, *axes)
    note = f"{counted(len(tensors_by_name), 'tensor')} of every layer: -o FILE.safetensors or FILE.npz."
    notes = (*report.notes, note, *([missing] if missing else []))
    return replace(report, tensors=tensors_by_name, notes=notes)


def values_each(
    specs: Sequence[HeadsSpec], readings: Sequence[Reading], pretrained: Pretrained
) -> tuple[ValueTable | None, Mapping[str, str]]:
    """Return the values of the reports on texts of equal length, and the versions that computed them.

    Returns None for files, for settings that choose heads or request more than statistics, and if a column is
    computed from rows.
    """
    spec, pretrained = specs[0], reader_of(pretrained, readings[0])
    chooses = any(setting is not None for setting in (spec.statistic, spec.sort, spec.top, spec.pattern))
    asks_for_more = spec.rollout or spec.full or spec.maps not in ("auto", "self", "none")
    asks_for_more = asks_for_more or SurveyedHead.has_computed_columns()
    if chooses or asks_for_more or spec.probe or spec.read_file or readings[0].on_grid:
        return None, {}
    options = replace(survey_options(spec), maps="none", linear=spec.shows_signed_heads())
    run = surveyed(pretrained, readings, options, ablate=spec.ablate)
    survey = run.survey
    heads = _head_layers(survey.layers)
    first_keys = [torch.from_numpy(each.values[..., each.names.index("sink_mass")]) for each in heads]
    texts = []
    for text in range(len(readings)):
        rest_stacks = {} if survey.rest is None else stacks_of(survey.rest, text)
        sinks = sink_heads_rate(torch.cat([mass[text] for mass in first_keys]))
        texts.append(StacksOfText([*stacks_of(survey.layers, text).values()], [*rest_stacks.values()], sinks))
    rest = [] if survey.rest is None else _head_layers(survey.rest, NAMING)
    linear: list[LayerOfHeads] = []
    if run.linear is not None:
        for place, numbers in run.linear.numbers():
            linear.append(LayerOfHeads("linear", place.layer, SIGNED_OVER_TEXTS, numbers.numpy()))
    return survey_values(heads, rest, texts, linear), versions() | with_unshown(run.way.unshown)


def _head_layers(surveyed: SurveyedLayers, chosen: Collection[str] | None = None) -> list[LayerOfHeads]:
    """Return the statistics of each layer, or only the chosen ones."""
    layers = []
    for layer, numbers in zip(surveyed.layers, head_numbers(surveyed), strict=True):
        places = [place for place, name in enumerate(numbers.names) if chosen is None or name in chosen]
        values = numbers.values.double().numpy(force=True)[..., places]
        names = tuple(numbers.names[place] for place in places)
        layers.append(LayerOfHeads(layer.place.stack, layer.place.layer, names, values))
    return layers


def with_map_kind(spec: HeadsSpec, reading: Reading) -> HeadsSpec:
    """Return the settings with the kind of attention to draw: cross-attention if the context is not text."""
    if spec.maps != "auto":
        return spec
    context = reading.context
    is_text = context is None or context.origin is None
    return spec.model_copy(update={"maps": "self" if is_text else "cross"})


def report_many(spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """Return the survey of many texts: means with intervals."""
    if spec.read_file is not None:
        return _report_files(spec, spec.read_file, pretrained, progress)
    assert spec.texts is not None
    pretrained = part_that_reads(pretrained)
    with spec.opened_texts() as file:
        many = ManyTexts(file, lambda line: _read_line(spec, line, pretrained), progress)
        options = replace(survey_options(spec), linear=spec.shows_signed_heads())
        totals, way_notes = head_totals(pretrained, many, options, ablate=spec.ablate)
    run_notes = [note for note in way_notes if note != totals.unshown]
    notes = [*many.notes(), *run_notes, *ablated_notes(spec.ablate)]
    report = totals_report(spec, totals, pretrained.name, notes, num_left_out=many.num_left_out)
    return replace(report, missing=totals.unshown)


def _report_files(
    spec: HeadsSpec, file: ReadFile, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """Survey the files in a folder or a list, with maps over the first files that have a grid."""
    words, opener = read_texts(spec).text, OPENERS[file.what]
    spec = spec.model_copy(update={"maps": "none"})  # a map belongs to a single file
    options = survey_options(spec)
    looks = None
    if spec.statistic is None and options.looks:
        is_ranked = bool(spec.sort or spec.top or spec.pattern)
        queries, _ = spec.sought().values()
        looks = FirstLooks(queries, spec.drawn_heads(), keeps_all=is_ranked)

    def read_one(line: TextLine) -> Reading:
        assert line.file is not None
        reading = opener.read(pretrained, FileInput(line.file, words, spec.truncate))
        if looks is not None:
            looks.note_places(line.label, reading, pretrained)
        check_reading(reading, pretrained, options)
        return reading

    key = file.kind.setting
    with file_texts(file.name, key) as files:
        many = ManyTexts(files, read_one, progress, key=key)
        part = opener.reader(pretrained, words)
        totals, way_notes = head_totals(part, many, options, ablate=spec.ablate, looks=looks)
    notes = [*many.notes(), *way_notes, *ablated_notes(spec.ablate)]
    maps = partial(_picture_maps, spec, looks=looks, num_pictures=totals.num_texts)
    return totals_report(spec, totals, part.name, notes, maps, num_left_out=many.num_left_out)


def _picture_maps(
    spec: HeadsSpec, heads: Records[SurveyedHead], looks: FirstLooks | None, num_pictures: int
) -> PictureMaps | None:
    """Return maps of the same heads over each of the first pictures, or None if there are no maps.

    The heads are the chosen heads, or the first heads in a ranking, or the heads of the last layer with their
    mean and rollout.
    """
    pictures = [] if looks is None else looks.files()
    if looks is None or not pictures:
        return None
    map_names = pictures[0].maps.keys()
    mapped_heads = [name for name in map_names if name not in (MEAN, ROLLOUT)]
    if named := spec.drawn_heads():
        chosen, about = (
            named,
            f"{'head' if len(named) == 1 else 'heads'} {', '.join(named)}",
        )
    elif looks.keeps_all:
        stacks = ("self", "encoder") if pictures[0].reading.context is None else ("cross",)
        ranked_names = [f"{head.layer}:{head.head}" for head in heads if head.stack in stacks]
        chosen = [name for name in ranked_names if name in map_names][:MAX_DRAWN_HEADS]
        about = f"the first {counted(len(chosen), 'head')}" if len(chosen) > 1 else "the first head"
        about += f" by {'least ' if spec.ascending else ''}{spec.sort}" if spec.sort else ""
    else:
        chosen, about = mapped_heads[:MAX_DRAWN_HEADS], f"the heads of layer {looks.last_layer}"
        if len(mapped_heads) > len(chosen):
            about = f"the first {len(chosen)} of {about[4:]}"
        chosen += [name for name in (MEAN, ROLLOUT) if name in map_names]
        about += ", their mean and the rollout" if ROLLOUT in map_names else " and their mean"
    if not chosen:
        return None
    names = Counter(Path(picture.file).name for picture in pictures)
    rows = tuple(
        _picture_row(picture, chosen, is_unique=names[Path(picture.file).name] == 1) for picture in pictures
    )
    return PictureMaps(tuple(chosen), about, num_pictures, rows)


def _picture_row(looks: FileLooks, names: Sequence[str], *, is_unique: bool) -> PictureRow:
    """Return one picture with its maps. If several files share a name, the name of the folder precedes it."""
    (picture,) = looks.reading.drawn()
    if not is_unique:
        picture = replace(picture, name="/".join(Path(looks.file).parts[-2:]))
    side = looks.reading.text if picture.axis == "tokens" else looks.reading.context
    assert side is not None, "the picture belongs to the text or the context"
    weights = np.stack([looks.maps[name] for name in names])
    return PictureRow(picture, side.tokens, looks.queries, NamedTensor(("map", "key"), weights))


def _read_line(spec: HeadsSpec, line: TextLine, pretrained: Pretrained) -> Reading:
    """Read one of many texts."""
    return read(spec, Texts(text=line.text), pretrained, torch.Generator())


def text_report(spec: HeadsSpec, whole: Reading, run: Surveyed, text: int, pretrained: Pretrained) -> Report:
    """Return the report on one of the texts that were surveyed together."""
    reading, surveyed_text = whole.in_words(), run.texts[text]
    named_tokens = _named_tokens(spec, reading, pretrained)
    survey = replace(run.text_survey(text), named_tokens=named_tokens)
    numbers = {name: survey.heads.numbers(name) for name in NAMING if name in survey.heads.cells}
    survey, none = with_pattern(spec, survey, numbers, {stack.name: stack for stack in surveyed_text.stacks})
    survey, tensors = ranked(spec, survey)
    if run.rollout:
        tensors |= {"rollout": named(run.rollout[text], "query", "key", mask=run.rollout_mask(text))}
    spelling = pretrained.spelling_of(reading.text)
    tokens, context = reading.text.tokens, () if reading.context is None else reading.context.tokens
    if run.looks:
        looks = run.looks[text]
        tensors |= {
            "looks": NamedTensor(("layer", "head", "key"), looks.by_layer()),
            "mean_look": NamedTensor(("layer", "key"), looks.mean_by_layer()),
        }
        if (rolled := looks.rolled()) is not None:
            tensors |= {"rollout": named(rolled, "key")}
        names = [] if looks.queries is None else [tokens[query] for query in looks.queries]
        spec = spec.model_copy(update={"from": names})
        survey = _with_norms(survey, run, reading, text)
    pictures, not_drawn = reading.drawn(), list[str]()
    if run.maps:
        maps = run.maps[text]
        tensors |= _map_tensors(maps)
        if run.linear is not None:
            signed = run.signed_maps(text)
            if signed is None:
                not_drawn = [NOT_DRAWN]
            else:
                axes = ("layer", "head", "query", "key")
                tensors |= {"linear_weights": NamedTensor(axes, signed, Mask(causal=True))}
        tokens, context = maps.query.tokens, maps.key.tokens if spec.maps == "cross" else ()
        if pictures and reading.context is not None and spec.maps != "cross":
            encoder_pictures = tuple(replace(picture, axis="tokens") for picture in pictures)
            is_drawn = maps.query.origin is not None and maps.query.origin.kind.on_grid
            pictures = encoder_pictures if is_drawn else ()
            tensors = {name: tensor for name, tensor in tensors.items() if name not in ("looks", "mean_look")}
    count = counted(len(whole.text.ids), "token")
    if spec.words:
        count += f" of {counted(len(reading.text.ids), 'word')}"
    notes = [
        *survey_notes(spec),
        *none,
        *replace(run.way, unshown="").notes(),
        *not_drawn,
        *whole.left_out_notes(),
        *ablated_notes(spec.ablate),
    ]
    read = Texts(tokens, context, token_spelling=spelling)
    about = survey_title(pretrained.name, len(surveyed_text.heads), count)
    unseen = _unseen(spec, named_tokens, surveyed_text.heads)
    report = build_report(
        spec, read, tensors, survey, notes, about=about, how_to_read=unseen, pictures=pictures
    )
    return replace(report, missing=run.way.unshown)


def _with_norms(survey: HeadSurvey, run: Surveyed, reading: Reading, text: int) -> HeadSurvey:
    """Return the survey with the median norm of patches after the last block, and patches far above it."""
    norms = run.norms
    medians, are_high = (None, None) if norms is None else (norms.medians(), norms.are_high())
    if norms is None or norms.norms is None or medians is None or are_high is None:
        return survey
    places = are_high[text].nonzero()[:, 0].tolist()
    return replace(
        survey,
        norms=PatchNorms.single(median_norm=float(medians[text]), high_norm=HIGH_NORM, num_high=len(places)),
        high_norm_patches=PatchNorm.table(
            position=places,
            token=[reading.text.tokens[place] for place in places],
            norm=norms.norms[text, places].tolist(),
        ),
    )


def _unseen(spec: HeadsSpec, named_tokens: Records[TokenNamed], heads: Records[SurveyedHead]) -> str:
    """Return a sentence if the chosen keys follow the chosen queries, in which case every weight is 0."""
    queries, keys = (
        [token.position for token in named_tokens if token.setting == setting] for setting in spec.sought()
    )
    is_behind = queries and keys and max(queries) < min(keys)
    if not is_behind or heads.column("from_to_weight").any():
        return ""
    from_names, to_names = spec.sought().values()
    flags = [word for name in to_names for word in ("--from", name)]
    flags += [word for name in from_names for word in ("--to", name)]
    stand = "stands" if len(from_names) == 1 else "stand"
    return (
        f"Every weight is 0: {', '.join(from_names)} {stand} before {', '.join(to_names)}, and this model "
        f"never looks ahead. To look the other way, use {shlex.join(flags)}."
    )


def _named_tokens(spec: HeadsSpec, reading: Reading, pretrained: Pretrained) -> Records[TokenNamed]:
    """Return the tokens that `from` and `to` name, each with its position and name."""
    texts = {"sentence": reading.text} | ({} if reading.context is None else {"context": reading.context})
    return TokenNamed.rows(
        {"setting": key, "name": name, "text": which, "position": position, "token": text.tokens[position]}
        for key, names in spec.sought().items()
        for which, text in texts.items()
        for position, name in positions_named(names, text, pretrained).items()
    )


def _map_tensors(maps: HeadMaps) -> dict[str, NamedTensor]:
    """Return the maps of all heads, and the complete weights of the requested heads."""
    axes = ("query", "key") if maps.is_whole else ("query_block", "key_block")
    every = {
        name: NamedTensor(("layer", "head", *axes), kept, maps.mask(*kept.shape[-2:]))
        for name, kept in maps.by_layer().items()
    }
    return every | {
        whole_head_name(*place): NamedTensor(("query", "key"), weights, mask)
        for place, (weights, mask) in maps.in_full().items()
    }


PAGE = ModelPage(
    read=read,
    report_each=report_each,
    report_many=report_many,
    values_each=values_each,
)
