"""Experiments on a pretrained model: one text, or several of equal counts of tokens at a time."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType

import torch

from attncli.errors import UserError
from attncli.experiments.draws import Draws
from attncli.experiments.sources import choose_device
from attncli.experiments.texts import Texts, read_texts
from attncli.inputs.loaded_model import borrowed
from attncli.inputs.pretrained import Pretrained, Reading, kept_pretrained, short_name
from attncli.report import Report
from attncli.spec.model import ModelSpec

MAX_TEXTS = 32
MAX_WEIGHTS = 2**17
"""Weights of a head in texts that run together: 8 texts of 128 tokens, whose matrices may all be asked for.

Products of matrices with a thousand rows gain nothing from more of them.
"""

Outcome = Report | UserError


def _pretrained(spec: ModelSpec) -> Pretrained:
    source = spec.model_source()
    assert source is not None, "without a model nothing runs here"
    return kept_pretrained(source, allow_download=spec.allow_download, device=choose_device(spec))


def run(spec: ModelSpec, texts: Texts, draws: Draws) -> Report:
    """The report of one experiment."""
    return _run(spec, texts, draws, _pretrained(spec))


def run_loaded(spec: ModelSpec, model: object, tokenizer: object) -> Report:
    """The report of one experiment on a transformers model that is loaded already, and left as it was."""
    assert spec.model is not None
    with borrowed(short_name(spec.model), model, tokenizer) as pretrained:
        return _run(spec, read_texts(spec), Draws(spec.seed), pretrained)


def _run(spec: ModelSpec, texts: Texts, draws: Draws, pretrained: Pretrained) -> Report:
    module = import_module(spec.model_module)
    reading = module.read(spec, texts, pretrained, draws.generator)
    report: Report
    (report,) = module.report_each([spec], [reading], pretrained, draws.progress)
    return report


def run_models(specs: Mapping[int, ModelSpec], texts: Mapping[int, Texts]) -> Iterator[dict[int, Outcome]]:
    """The outcomes by their places. Each text has the numbers that it has alone, within 1e-5 of their size.

    Texts of equal counts run together, so that none is padded: a padded one would reach into its neighbours
    in models that mix tokens outside of attention.
    """
    first = next(iter(specs.values()))
    module = import_module(first.model_module)
    try:
        pretrained = _pretrained(first)
    except UserError as error:
        yield dict.fromkeys(specs, error)
        return
    by_counts: dict[tuple[int, int], dict[int, Reading]] = {}
    for place, spec in specs.items():
        try:
            generator = torch.Generator().manual_seed(spec.seed)
            reading = module.read(spec, texts[place], pretrained, generator)
        except UserError as error:
            yield {place: error}
        else:
            by_counts.setdefault(reading.counts, {})[place] = reading
    for counts, readings in by_counts.items():
        step = max(1, min(MAX_TEXTS, MAX_WEIGHTS // max(counts) ** 2))
        places = list(readings)
        for start in range(0, len(places), step):
            some = places[start : start + step]
            yield _together(module, pretrained, {i: specs[i] for i in some}, {i: readings[i] for i in some})


def _together(
    module: ModuleType,
    pretrained: Pretrained,
    specs: Mapping[int, ModelSpec],
    readings: Mapping[int, Reading],
) -> dict[int, Outcome]:
    try:
        found = module.report_each(list(specs.values()), list(readings.values()), pretrained, None)
        return dict(zip(specs, found, strict=True))
    except UserError as error:
        if len(specs) == 1:
            return dict.fromkeys(specs, error)
    outcomes: dict[int, Outcome] = {}
    for place, spec in specs.items():  # which of them is to blame shows when each runs alone
        outcomes |= _together(module, pretrained, {place: spec}, {place: readings[place]})
    return outcomes
