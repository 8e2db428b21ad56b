"""Experiments on a pretrained model: one text, or several with equal numbers of tokens at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import torch

from attncli.errors import UserError
from attncli.models.loading import borrowed, kept_pretrained, short_name, source_of
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.readings import run_together
from attncli.report import Report
from attncli.runs.threads import one_torch_thread, threads_of_idle_cores
from attncli.settings.models import ModelSpec
from attncli.settings.text import Texts, read_texts
from attncli.toys.sources import Draws, Progress, choose_device

SMALL_MODEL = 5 * 10**6
"""Models with fewer parameters have products too small for torch's own threads."""

Outcome = Report | UserError


def _pretrained(spec: ModelSpec, progress: Progress | None = None) -> Pretrained:
    asked = spec.model_source()
    assert asked is not None, "without a model nothing runs here"
    found = kept_pretrained(
        source_of(asked, None if progress is None else progress.tell),
        allow_download=spec.allow_download,
        device=choose_device(spec),
        dtype=spec.dtype,
        with_head=spec.needs_head,
    )
    # Messages name it as the user did, perhaps by the name of a package.
    return found if found.name == short_name(asked) else replace(found, name=short_name(asked))


def run(spec: ModelSpec, texts: Texts, draws: Draws) -> Report:
    """The report of one experiment."""
    return _run(spec, texts, draws, _pretrained(spec, draws.progress))


def run_loaded(spec: ModelSpec, model: object, tokenizer: object) -> Report:
    """The report of one experiment on a transformers model that is already loaded, and left unchanged."""
    assert spec.model is not None
    with borrowed(short_name(spec.model), model, tokenizer) as pretrained:
        return _run(spec, read_texts(spec), Draws(spec.seed), pretrained)


def _run(spec: ModelSpec, texts: Texts, draws: Draws, pretrained: Pretrained) -> Report:
    module = import_module(spec.model_module)
    report: Report
    if spec.reads_many_texts():
        is_small = pretrained.model.num_parameters() < SMALL_MODEL
        with one_torch_thread() if is_small else threads_of_idle_cores() as adapt:

            def on_progress(done: float) -> None:
                if adapt is not None:
                    adapt()
                if draws.progress is not None:
                    draws.progress(done)

            report = module.report_many(spec, pretrained, on_progress)
        return report
    reading = module.read(spec, texts, pretrained, draws.generator)
    (report,) = module.report_each([spec], [reading], pretrained, draws.progress)
    return report


def run_models(specs: Mapping[int, ModelSpec], texts: Mapping[int, Texts]) -> Iterator[dict[int, Outcome]]:
    """The outcomes by their places. Each text has the numbers that it has alone, within 1e-5 of their size.

    Texts with equal numbers of tokens run together, so that none is padded: padding would affect its
    neighbours in models that mix tokens outside of attention.
    """
    first = next(iter(specs.values()))
    module = import_module(first.model_module)
    try:
        pretrained = _pretrained(first)
    except UserError as error:
        yield dict.fromkeys(specs, error)
        return
    readings: dict[int, Reading] = {}
    for place, spec in specs.items():
        try:
            generator = torch.Generator().manual_seed(spec.seed)
            readings[place] = module.read(spec, texts[place], pretrained, generator)
        except UserError as error:
            yield {place: error}
    for some in run_together(readings):
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
    for place, spec in specs.items():  # running each alone shows which of them is to blame
        outcomes |= _together(module, pretrained, {place: spec}, {place: readings[place]})
    return outcomes
