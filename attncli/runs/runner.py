"""Run experiments: one after another on one generator, or several with equal settings together."""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from attncli.core.runtime import idle_core_threads, one_torch_thread, without_autocast
from attncli.errors import RunError, UserError, refuse_bytes
from attncli.records.report import Report
from attncli.records.token_ids import TokenIds
from attncli.runs.jobs import Chain, Item, Job
from attncli.settings.fields import Spec
from attncli.settings.pages import ModelPage, Page, SampledPage
from attncli.settings.text import (
    FILE_SETTINGS,
    Texts,
    TextSpec,
    find_vectors,
    read_texts,
    read_tokens,
    uses_vector_file,
    with_vectors,
)

if TYPE_CHECKING:
    from torch import Generator

    from attncli.core.progress import Progress
    from attncli.models.pretrained import Pretrained, Reading
    from attncli.records.stored_columns import StoredColumns
    from attncli.settings.models import ModelSpec, OneTextSpec, SurveyTextSpec
    from attncli.toys.sampling import Draws, Source


def import_what_runs(spec: Spec) -> Page:
    """Import the page of an experiment, with torch and, for a model, the loader."""
    import torch  # noqa: F401

    if spec.model_source() is not None:
        import attncli.models.loading  # noqa: F401
    return spec.page()


def page_of(spec: Spec) -> Page:
    """Return the page that runs an experiment, imported on the first call.

    Garbage collection is off during the import, and afterwards it skips the imported objects. Traversing a
    million objects that live as long as the process, during the import and at exit, would take a third of a
    short run.
    """
    if ("torch" if spec.model_source() is None else "attncli.models.loading") in sys.modules:
        return spec.page()
    gc.disable()
    page = import_what_runs(spec)
    gc.freeze()
    gc.enable()
    return page


def model_page_of(spec: "ModelSpec") -> ModelPage:
    """Return the page of an experiment on a model; see `page_of`."""
    page = page_of(spec)
    assert isinstance(page, ModelPage), f"{spec.experiment} is not about a model"
    return page


def refuse_what_does_not_fit(spec: Spec, num_queries: int, num_keys: int) -> None:
    """Raise UserError, naming the memory that an experiment needs, if it needs more than is free."""
    advice = spec.memory_advice(num_queries, num_keys)
    refuse_bytes(spec.experiment, spec.needed_bytes(num_queries, num_keys), advice)


def check_extras(spec: Spec) -> None:
    """Raise UserError for a setting whose extra is not installed."""
    for extra in spec.extras():
        if not all(map(find_spec, extra.packages)):
            raise UserError(f'{extra.key}: needs: pip install "attncli[{extra.name}]"')


def check_before_reading(spec: Spec) -> None:
    """Raise UserError for missing memory, packages or models, before any text is read."""
    refuse_what_does_not_fit(spec, *spec.sampled_counts())
    check_extras(spec)
    source = spec.model_source()
    if source is not None:
        from attncli.models.folder import check_model_folder, check_packages, model_on_disk
        from attncli.settings.models import ModelSpec

        check_packages()
        allow_download = isinstance(spec, ModelSpec) and spec.allow_download
        if (path := model_on_disk(source, allow_download=allow_download)) is not None:
            if path.is_dir():
                check_model_folder(path)
                return
            from attncli.models.weight_headers import check_gguf

            check_gguf(path)


SMALL_MODEL = 5 * 10**6
"""In models with fewer parameters, the matrix products are too small for several threads."""


def model_of(
    spec: "ModelSpec", progress: "Progress | None" = None, *, with_head: bool | None = None
) -> "Pretrained":
    """Return the settings' model; `with_head` loads its prediction head (None: if the settings need it)."""
    from attncli.models.loading import kept_pretrained, short_name, source_of

    source = spec.model_source()
    assert source is not None, "only experiments with a model read here"
    pretrained = kept_pretrained(
        source_of(source, None if progress is None else progress.tell, allow_download=spec.allow_download),
        allow_download=spec.allow_download,
        device=spec.device,
        dtype=spec.dtype,
        load=spec.load,
        with_head=spec.wants_head() if with_head is None else with_head,
    )
    # Messages use the name that the user typed, which may be the name of a package.
    name = short_name(source)
    return pretrained if pretrained.name == name else replace(pretrained, name=name)


def _check_reads_texts(spec: "ModelSpec", texts: Texts) -> None:
    """Raise UserError for a text and a folder without a tokenizer, before the slow loading of weights."""
    source = spec.model_source()
    if source is None or texts.text is None or isinstance(texts.text, TokenIds):
        return
    from attncli.models.folder import model_on_disk, refuse_without_tokenizer

    folder = model_on_disk(source, allow_download=spec.allow_download)
    if folder is not None and folder.is_dir():
        refuse_without_tokenizer(folder)


LONGEST_TOKEN = 32
"""The most characters of a word that may be a single token."""
NEXT_TOKEN_CLASSES = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the class names of models that predict the next token."""


def _check_tokens(spec: "ModelSpec", texts: Texts) -> None:
    """Raise UserError for a token name that matches several tokens, and for a text with too few tokens.

    Only the tokenizer is read, because weights may take long to load. It is read only if a name or the text
    may be wrong.
    """
    source, text, names = spec.model_source(), texts.text, spec.names_of_tokens()
    repeated = {key: name for key, name in names.items() if text is not None and text.count(name) > 1}
    is_short = (
        isinstance(text, str) and len(text) <= LONGEST_TOKEN and len(text.split()) < spec.least_tokens()
    )
    if not (repeated or is_short) or source is None or text is None:
        return
    from attncli.models.loading import source_of, without_weights
    from attncli.models.predicted import check_num_tokens
    from attncli.models.reading_text import read_text
    from attncli.models.token_names import token_named

    checkpoint = source_of(source, allow_download=spec.allow_download)
    described = without_weights(checkpoint, allow_download=spec.allow_download)
    if described.has_decoder or described.own_tokenizer is None:
        return  # the names refer to tokens in the other text
    text_key = "file" if spec.given("file") else "sentence"
    read = read_text(described, text, key=text_key, truncate=spec.truncate)
    if any(name.endswith(NEXT_TOKEN_CLASSES) for name in described.model.config.architectures or ()):
        check_num_tokens(len(read.text.ids), spec.least_tokens(), text_key)
    for key, name in repeated.items():
        token_named(name, read.text, described, key=key)


def embedded(spec: TextSpec, texts: Texts, draws: "Draws") -> "list[Source]":
    """Return the vectors of the tokens and of any context tokens, on the device in the settings."""
    import torch

    from attncli.toys.sampling import Vocabulary, choose_device, embed

    together = texts.together()
    read = [text.word_vectors for text in together if text.word_vectors is not None]
    return embed(
        [(text.tokens, text.context_tokens) if texts.context_tokens else (text.tokens,) for text in together],
        draws,
        embedding=spec.embedding,
        dim=spec.embed_dim,
        batch_size=spec.batch_size,
        read=[Vocabulary(vectors.words, torch.from_numpy(vectors.table)) for vectors in read],
        device=choose_device(spec.device),
    )


def read_survey_text(
    spec: "OneTextSpec | SurveyTextSpec",
    texts: Texts,
    pretrained: "Pretrained",
    generator: "Generator",
    *,
    words: bool = False,
) -> "Reading":
    """Read the text in the settings, or the probe; a model with a decoder also reads an encoder text."""
    from attncli.models.probes import read_probe
    from attncli.models.reading_text import read_text
    from attncli.models.words import words_of_characters
    from attncli.settings.models import ManyTextsSpec

    if spec.probe:
        return read_probe(pretrained, int(spec.num_tokens or 0), generator)
    assert texts.text is not None
    is_line = isinstance(spec, ManyTextsSpec) and spec.texts is not None
    return read_text(
        pretrained,
        texts.text,
        context=texts.context,
        key="texts" if is_line else "file" if spec.file else "sentence",
        truncate=spec.truncate,
        words=words_of_characters if words else None,
    )


def _run_on_model(
    spec: "ModelSpec",
    texts: Texts,
    pretrained: "Pretrained",
    generator: "Generator",
    progress: "Progress | None" = None,
) -> Report:
    """Return the report of one experiment on a model."""
    from attncli.models.stored import showing_blocks

    page = model_page_of(spec)
    if not spec.reads_many_texts():
        reading = page.read(spec, texts, pretrained, generator)
        with nullcontext() if progress is None else showing_blocks(pretrained.model, progress.begin_layer):
            (report,) = page.reports([spec], [reading], pretrained, progress)
        return with_missing(report, pretrained, reading)
    with _threads_for(pretrained) as adapt:

        def on_progress(done: float) -> None:
            adapt()
            if progress is not None:
                progress(done)

        assert page.report_many is not None, f"{spec.experiment} reads one text"
        return with_missing(page.report_many(spec, pretrained, on_progress), pretrained)


def with_missing(report: Report, pretrained: "Pretrained", reading: "Reading | None" = None) -> Report:
    """Return the report, with the layers of its model that the report does not cover in `missing`."""
    if report.missing is not None:
        return report
    from attncli.models.pretrained import Reading, reader_of

    reader = reader_of(pretrained, reading) if isinstance(reading, Reading) else pretrained
    missing = reader.unshown_layers
    return replace(report, missing=missing, notes=tuple(note for note in report.notes if note != missing))


@contextmanager
def _threads_for(pretrained: "Pretrained") -> Iterator[Callable[[], None]]:
    """Set the number of torch's threads for many texts: one for a small model, else the number of idle cores.

    Yields a function to call between texts, which adapts to the idle cores.
    """
    if pretrained.model.num_parameters() < SMALL_MODEL:
        with one_torch_thread():
            yield _nothing
    else:
        with idle_core_threads() as adapt:
            yield adapt


def _nothing() -> None:
    """Leave the number of threads as it is."""


def run_loaded(
    spec: "ModelSpec", model: object, tokenizer: object, progress: "Progress | None" = None
) -> Report:
    """Return the report of one experiment on a model that is already open or that transformers has loaded.

    The model is left unchanged.
    """
    from torch import Generator

    from attncli.models.loading import borrowed, checked_model, in_use, measuring, short_name
    from attncli.models.pretrained import Pretrained

    if isinstance(model, Pretrained):
        with in_use(model) as pretrained:
            generator = Generator().manual_seed(spec.seed)
            return _run_on_model(spec, read_texts(spec), pretrained, generator, progress)
    assert spec.model is not None
    name = short_name(spec.model)
    with measuring(name, checked_model(model)), borrowed(name, model, tokenizer) as as_it_is:
        pretrained = replace(as_it_is, is_in_use=True)
        generator = Generator().manual_seed(spec.seed)
        return _run_on_model(spec, read_texts(spec), pretrained, generator, progress)


class Session:
    """Runs experiments one after another; each can continue the generator and vocabulary of the experiment
    before.

    `progress` reports on long work.
    """

    def __init__(self, progress: "Progress | None" = None) -> None:
        self._progress = progress
        self._generator: Generator | None = None
        self._draws: Draws | None = None

    def run(self, spec: Spec, *, reseed: bool) -> Report:
        """Return an experiment's report; without `reseed`, its generator continues from the previous
        experiment.

        Raises UserError for texts that cannot be read and sizes that do not fit, before torch is imported.
        """
        check_before_reading(spec)
        return self.run_texts(spec, read_texts(spec), reseed=reseed)

    def run_texts(self, spec: Spec, texts: Texts, *, reseed: bool) -> Report:
        """Return the report of an experiment whose texts have already been read."""
        refuse_what_does_not_fit(spec, *texts.counts())
        spec.check_texts(texts)
        page = page_of(spec)
        from torch import Generator

        if reseed or self._generator is None:
            self._generator, self._seed = Generator().manual_seed(spec.seed), spec.seed
        # Without reseed, the report names the seed that the generator started from.
        spec = spec.model_copy(update={"seed": self._seed})
        if isinstance(page, ModelPage):
            from attncli.models.loading import in_use
            from attncli.settings.models import ModelSpec

            assert isinstance(spec, ModelSpec), f"{spec.experiment} names no model"
            _check_reads_texts(spec, texts)
            _check_tokens(spec, texts)
            with in_use(model_of(spec, self._progress)) as pretrained:
                return _run_on_model(spec, texts, pretrained, self._generator, self._progress)
        from attncli.toys.sampling import Draws

        assert isinstance(page, SampledPage), f"{spec.experiment} is about a model"
        self._draws = self._draws or Draws(self._generator, self._progress)
        self._draws.generator = self._generator
        with without_autocast():
            return page.run(spec, texts, self._draws)


MAX_TOGETHER = 32
MAX_BYTES_TOGETHER = 64 * 2**20
MAX_TOKENS_TOGETHER = 512
TEXT_AND_SEED_KEYS = ("seed", "sentence", "file", "context", "context_file", *FILE_SETTINGS)
"""Settings that may differ between experiments that run together."""


@dataclass(frozen=True)
class Values:
    """The values and weights of a run without a report, and the versions that computed them."""

    columns: "StoredColumns"
    numbers: np.ndarray
    environment: Mapping[str, str]
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Kept:
    """The parts of a run to return: its report, or its values with each row's statistics and the weights."""

    reports: bool = False
    rows: bool = False
    weights: bool = False

    def of_texts(self, together: Report, num_texts: int) -> list[Values]:
        """Return the values of several texts that ran together."""
        from attncli.runs.report_values import text_values

        columns, numbers = text_values(together, num_texts, rows=self.rows)
        kept = together.tensors.get("weights") if self.weights else None
        weights = [None] * num_texts if kept is None else kept.values
        return [
            Values(columns, text_numbers, together.environment, text_weights)
            for text_numbers, text_weights in zip(numbers, weights, strict=True)
        ]


Outcome = Report | UserError
Part = TypeVar("Part")
Batch = Sequence[tuple[int, "Reading"]]
"""Texts that run together: the place and the reading of each."""


def run_in_buckets(specs: Sequence[Spec]) -> Iterator[dict[int, Outcome]]:
    """Yield the outcomes of `values_in_buckets`, all of them as reports."""
    for outcomes in values_in_buckets(specs, Kept(reports=True)):
        yield {i: outcome for i, outcome in outcomes.items() if not isinstance(outcome, Values)}


def load_model(spec: Spec) -> None:
    """Import an experiment's code and load its model.

    Any error is left to the experiment's runs to report.
    """

    def load(spec: Spec) -> None:
        if isinstance(page_of(spec), ModelPage):
            model_of(cast("ModelSpec", spec))

    _or_error(load, spec)


def values_in_buckets(specs: Sequence[Spec], kept: Kept) -> Iterator[dict[int, Outcome | Values]]:
    """Yield the outcome of each experiment by its place, one bucket at a time; each has its own generator.

    The numbers equal `Session().run(spec, reseed=True)` within 1e-6 of their size, with the same tokens, axes
    and notes. The reports of a bucket have the same axes and shapes. Full buckets are faster: about a
    thousand sentences of 6 to 40 words fill them.

    Unless reports are requested, an experiment may return its values without a report.
    """
    by_settings: dict[tuple[Any, ...], dict[int, Spec]] = {}
    for i, spec in enumerate(specs):
        by_settings.setdefault(_shared_settings(spec), {})[i] = spec
    for group in by_settings.values():
        first = next(iter(group.values()))
        on_model = first.model_source() is not None and not first.reads_many_texts()
        if on_model or (len(group) > 1 and first.can_run_together()):
            yield from _run_group(group, kept, on_model=on_model)
        else:
            for i, spec in group.items():
                yield {i: _run_alone(spec)}


def _shared_settings(spec: Spec) -> tuple[Any, ...]:
    """Return the settings that must be equal in experiments that run together."""
    shared = [value for key, value in spec.__dict__.items() if key not in TEXT_AND_SEED_KEYS]
    return (spec.experiment, *[tuple(value) if type(value) is list else value for value in shared])


def _run_group(
    specs: Mapping[int, Spec], kept: Kept, *, on_model: bool
) -> Iterator[dict[int, Outcome | Values]]:
    """Yield the outcomes of experiments with equal settings."""
    texts: dict[int, Texts] = {}
    for i, read in zip(specs, _read(list(specs.values())), strict=True):
        if isinstance(read, UserError):
            yield {i: read}
        else:
            texts[i] = read
    if texts and on_model:
        yield from _run_models(specs, texts, kept)
    elif texts:
        yield from _run_buckets(specs, texts, kept)


@dataclass(frozen=True)
class _TextsOnModel:
    """Texts that one model reads, by their places; each text yields its report, or only its values."""

    specs: "Mapping[int, ModelSpec]"
    texts: Mapping[int, Texts]
    page: ModelPage
    gives_values: bool

    @property
    def runs_once(self) -> bool:
        """True if a batch needs a single run of the model.

        An experiment that runs the model many times replaces parts of it meanwhile, so that no other run may
        use the model, and sets the number of threads itself.
        """
        return self.page.report_each is not None

    def read(self, pretrained: "Pretrained", place: int) -> "Reading":
        """Read the text at a place with the model, using a separate generator."""
        from torch import Generator

        generator = Generator().manual_seed(self.specs[place].seed)
        reading: Reading = self.page.read(self.specs[place], self.texts[place], pretrained, generator)
        return reading

    def run(self, readings: Mapping[int, "Reading"], loaded: "Pretrained") -> Sequence[Report | Values]:
        """Return the reports or values of readings that run together."""
        specs, read = [self.specs[place] for place in readings], [*readings.values()]
        if self.gives_values:
            assert self.page.values_each is not None, "checked before"
            table, environment = self.page.values_each(specs, read, loaded)
            if table is not None:
                return [Values(table.columns, numbers, environment) for numbers in table.values]
        reports = self.page.reports(specs, read, loaded, None)
        return [with_missing(report, loaded, reading) for report, reading in zip(reports, read, strict=True)]

    def outcomes(self, batch: Batch, loaded: "Pretrained") -> Sequence[Outcome | Values]:
        """Return the reports, values or errors. If the batch fails, each text runs by itself."""
        outcomes = _or_error(self.run, dict(batch), loaded)
        if isinstance(outcomes, UserError):
            return [_or_error(lambda text: self.run(dict([text]), loaded)[0], text) for text in batch]
        return outcomes


def _run_models(
    specs: Mapping[int, Spec], texts: Mapping[int, Texts], kept: Kept
) -> Iterator[dict[int, Outcome | Values]]:
    """Yield the outcomes of texts on one model, within 1e-5 of the numbers of each text run by itself."""
    model_specs = cast("Mapping[int, ModelSpec]", specs)
    first = model_specs[next(iter(texts))]
    page = model_page_of(first)
    pretrained = _or_error(model_of, first)
    if isinstance(pretrained, UserError):
        yield dict.fromkeys(texts, pretrained)
        return
    gives_values = kept == Kept() and page.values_each is not None
    yield from _run_together(_TextsOnModel(model_specs, texts, page, gives_values), pretrained)


def _run_together(runs: _TextsOnModel, pretrained: "Pretrained") -> Iterator[dict[int, Outcome | Values]]:
    """Yield the outcomes of texts in batches, each as large as the model and the cores allow."""
    from attncli.models.at_once import LONGEST, MOST_WORKS, can_run_at_once, run_at_once
    from attncli.models.capture import in_step, together
    from attncli.models.loading import in_use

    refused: dict[int, Outcome | Values] = {}
    from attncli.models.text_files import in_batches

    batches = in_batches(runs.texts, partial(runs.read, pretrained), refused.__setitem__)
    threads = _threads_for(pretrained) if runs.runs_once else nullcontext(_nothing)
    with in_use(pretrained) as pretrained, threads as adapt:
        # A report may keep every matrix, so the reports of several batches would take too much memory.
        at_once = runs.gives_values and runs.runs_once and can_run_at_once(pretrained)
        for some in _some(batches, MOST_WORKS) if at_once else together(pretrained.model, batches):
            works = [partial(runs.outcomes, batch) for batch in some]
            adapt()
            each_run: Iterator[Sequence[Outcome | Values]]
            if at_once and max(max(reading.counts) for batch in some for _, reading in batch) <= LONGEST:
                each_run = run_at_once(pretrained, works)
            else:
                calls = [partial(work, pretrained) for work in works]
                each_run = iter(in_step(pretrained.model, calls, adapt)) if runs.runs_once else _called(calls)
            for batch, outcomes in zip(some, each_run, strict=True):
                yield refused | dict(zip(dict(batch), outcomes, strict=True))
                refused.clear()
    if refused:
        yield refused


def _called(calls: Iterable[Callable[[], Part]]) -> Iterator[Part]:
    """Call each function when its result is needed."""
    return (call() for call in calls)


def _some(batches: Iterable[Batch], count: int) -> Iterator[list[Batch]]:
    """Yield `count` batches at a time, and fewer at the end."""
    batches = iter(batches)
    while some := list(islice(batches, count)):
        yield some


def _run_buckets(
    specs: Mapping[int, Spec], texts: Mapping[int, Texts], kept: Kept
) -> Iterator[dict[int, Outcome | Values]]:
    """Yield the outcomes of texts on sampled weights."""
    for bucket in _buckets(specs, texts):
        outcomes = _run_bucket([specs[i] for i in bucket], [texts[i] for i in bucket], kept)
        yield dict(zip(bucket, outcomes, strict=True))


def _read(specs: Sequence[Spec]) -> list[Texts | UserError]:
    """Read the texts of experiments with equal settings; a word-vector file is read once for all of them."""
    first = specs[0]
    try:
        check_before_reading(first)
    except UserError as error:
        return [error] * len(specs)
    texts = [_or_error(read_tokens, spec) for spec in specs]
    if not uses_vector_file(first):
        return texts
    words = {word for text in texts if isinstance(text, Texts) for word in _all_words(text)}
    all_vectors = _or_error(find_vectors, first, words)

    def complete(text: Texts) -> Texts:
        # A damaged line is an error only for texts that need that line.
        vectors = find_vectors(first, _all_words(text)) if isinstance(all_vectors, UserError) else all_vectors
        return with_vectors(first, text, vectors)

    return [text if isinstance(text, UserError) else _or_error(complete, text) for text in texts]


def _all_words(texts: Texts) -> tuple[str, ...]:
    return (*texts.tokens, *texts.context_tokens)


def _or_error(function: Callable[..., Part], *arguments: Any) -> Part | UserError:
    try:
        return function(*arguments)
    except UserError as error:
        return error


def _buckets(specs: Mapping[int, Spec], texts: Mapping[int, Texts]) -> Iterator[list[int]]:
    """Yield the places of texts with equal numbers of tokens, in parts, with equal draws side by side."""
    by_counts: dict[tuple[int, int], list[int]] = {}
    for i, text in texts.items():
        by_counts.setdefault(text.counts(), []).append(i)
    for counts, places in by_counts.items():
        size = _bucket_size(specs[places[0]], *counts)
        if size > 1:
            places.sort(key=lambda i: (specs[i].seed, len({*texts[i].tokens, *texts[i].context_tokens}), i))
        for start in range(0, len(places), size):
            yield places[start : start + size]


def _bucket_size(spec: Spec, num_queries: int, num_keys: int) -> int:
    streams = spec.chosen_engine(num_queries, num_keys) == "streaming"
    if streams or max(num_queries, num_keys) > MAX_TOKENS_TOGETHER:
        return 1
    fitting = MAX_BYTES_TOGETHER // max(1, spec.needed_bytes(num_queries, num_keys))
    return max(1, min(MAX_TOGETHER, fitting))


def _run_bucket(specs: Sequence[Spec], texts: Sequence[Texts], kept: Kept) -> Sequence[Outcome | Values]:
    """Return the outcomes of texts with equal numbers of tokens."""
    if len(specs) == 1:
        return [_run_alone(specs[0], texts[0])]
    try:
        refuse_what_does_not_fit(specs[0], *texts[0].counts())
        page = page_of(specs[0])
        from attncli.toys.sampling import DrawsTogether

        assert isinstance(page, SampledPage), "a model runs texts otherwise"
        draws = DrawsTogether([spec.seed for spec in specs])
        together = page.run(specs[0], texts[0]._replace(others=tuple(texts[1:])), draws)
    except UserError:  # running each text by itself shows which text is to blame
        return [_run_alone(spec, text) for spec, text in zip(specs, texts, strict=True)]
    return list(_split(together, specs, texts)) if kept.reports else kept.of_texts(together, len(texts))


def _run_alone(spec: Spec, texts: Texts | None = None) -> Outcome:
    session = Session()
    if texts is None:
        return _or_error(partial(session.run, reseed=True), spec)
    return _or_error(partial(session.run_texts, reseed=True), spec, texts)


def _split(report: Report, specs: Sequence[Spec], texts: Sequence[Texts]) -> Iterator[Report]:
    for i, (spec, text) in enumerate(zip(specs, texts, strict=True)):
        text_settings = {key: getattr(spec, key) for key in TEXT_AND_SEED_KEYS if key in report.spec}
        yield replace(
            report,
            spec={**report.spec, **text_settings},
            tokens=text.tokens,
            context_tokens=text.context_tokens,
            tensors={name: tensor.at(i) for name, tensor in report.tensors.items()},
            result=report.result.for_text(i),
        )


CONTINUED_NOTE = "Random numbers continue from the previous step, with the same generator."


OnFailure = Callable[[Item, UserError], None]


def run_items(
    items: Iterable[Item], on_failure: OnFailure, progress: "Progress | None" = None
) -> Iterator[Report]:
    """Yield the report of each experiment when it is done; a failed experiment goes to `on_failure` instead.

    A step that continues from a failed step fails too, because it would sample different numbers from those
    requested.
    """
    return (report for _, report in _one_by_one(items, on_failure, progress))


def run_jobs(
    jobs: Iterable[Job],
    on_failure: OnFailure,
    progress: "Progress | None" = None,
    *,
    stopped: Callable[[], bool] = lambda: False,
    num_together: int = 1,
) -> Iterator[tuple[Item, Report]]:
    """Yield each experiment of a plan with its report, in the order of the plan.

    Failures are handled as in `run_items`. Out of `num_together` jobs at a time, the jobs of one experiment
    are computed together, and only their reports are in memory. Nothing more is yielded once `stopped`
    returns true.
    """
    jobs = iter(jobs)
    while window := list(islice(jobs, num_together)):
        chains = [job.items() for job in window]
        results: dict[int, Outcome] = {}
        if sum(len(chain) == 1 for chain in chains) > 1:
            for bucket in alone_in_buckets(chains, run_in_buckets):
                results |= bucket
        for place, chain in enumerate(chains):
            result = results.pop(place, None)
            if result is None:
                yield from _one_by_one((item for item in chain if not stopped()), on_failure, progress)
            elif stopped():
                return
            elif isinstance(result, UserError):
                on_failure(chain[0], result)
            else:
                yield chain[0], result
        if stopped():
            return


def alone_in_buckets(
    chains: Sequence[Chain], run: Callable[[Sequence[Spec]], Iterator[dict[int, Part]]]
) -> Iterator[dict[int, Part]]:
    """Yield the outcomes of one-run chains by their place; one bucket's reports are in memory at a time."""
    alone = [place for place, chain in enumerate(chains) if len(chain) == 1]
    for bucket in run([chains[place][0].spec for place in alone]):
        yield {alone[number]: outcome for number, outcome in bucket.items()}


def _one_by_one(
    items: Iterable[Item], on_failure: OnFailure, progress: "Progress | None"
) -> Iterator[tuple[Item, Report]]:
    session = Session(progress)
    broken = False
    for item in items:
        if item.starts_file:
            session = Session(progress)
        broken = broken and not item.reseed
        try:
            if broken:
                raise RunError("skipped: this step continues from a failed step (give it a separate seed)")
            report = session.run(item.spec, reseed=item.reseed)
        except UserError as error:
            broken = True
            on_failure(item, error)
            continue
        if not item.reseed:
            report = replace(report, notes=(*report.notes, CONTINUED_NOTE))
        yield item, report
