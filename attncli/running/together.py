"""Many independent experiments: those of equal settings and equal counts of tokens are computed together.

Texts that run together are a batch: mechanisms and statistics broadcast over it, the draws of each are those
that it has alone, and one report with a batch axis is taken apart into a report a text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from attncli.errors import UserError
from attncli.experiments.reading.texts import Texts, find_vectors, read_tokens, uses_vector_file, with_vectors
from attncli.report import NamedTensor, Numbers, Report, Statistic, Tensors
from attncli.running.session import (
    Session,
    check_before_reading,
    load_experiment,
    refuse_what_does_not_fit,
)
from attncli.spec.fields import Spec
from attncli.spec.models.pretrained import ModelSpec
from attncli.spec.text import TextSpec

MAX_TOGETHER = 32
MAX_BYTES_TOGETHER = 64 * 2**20
MAX_TOKENS_TOGETHER = 512
OWN_KEYS = ("seed", "sentence", "file", "context", "context_file")
"""What may differ among experiments that run together."""

# fmt: off
KEYS_TOGETHER = frozenset((
    *OWN_KEYS, "num_tokens", "num_context_tokens", "tokenizer", "embedding", "unknown", "embed_dim", "device",
    "projection", "projection_order", "head_dim", "value_dim", "num_heads", "num_kv_heads",
    "output_projection", "scale", "softmax", "causal", "top_k", "engine", "method", "over", "aggregate",
    "softmax_twice", "rope", "rope_base", "alibi", "window", "softcap", "sink", "temperature", "qk_norm",
    "qk_norm_eps",
))
# fmt: on
"""The settings of which it is known, and tested, how texts run together under them.

Where another one is set they run by themselves: what it draws or reports may not know of several texts.
"""

Outcome = Report | UserError
Part = TypeVar("Part")


def run_together(specs: Sequence[Spec]) -> list[Outcome]:
    """The report of each experiment on a generator of its own, or what was wrong with it, in this order.

    The same figures as `Session().run(spec, reseed=True)` gives for each, within 1e-6 of their size, and the
    same tokens, axes and notes. What cannot be computed together runs by itself.
    """
    outcomes: dict[int, Outcome] = {}
    for bucket in run_in_buckets(specs):
        outcomes |= bucket
    return [outcomes[i] for i in range(len(specs))]


def run_in_buckets(specs: Sequence[Spec]) -> Iterator[dict[int, Outcome]]:
    """The same outcomes by their places, a bucket at a time: no more reports than that need be in memory.

    The reports of a bucket have the same axes and shapes. The fuller the buckets the faster: of sentences
    of 6 to 40 words it takes a thousand to fill them.
    """
    by_settings: dict[tuple[Any, ...], list[int]] = {}
    for i, spec in enumerate(specs):
        by_settings.setdefault(_settings(spec), []).append(i)
    for places in by_settings.values():
        first = specs[places[0]]
        if len(places) > 1 and first.model_source() is not None and not first.reads_many_texts():
            yield from _run_on_model({i: cast(ModelSpec, specs[i]) for i in places})
        elif len(places) == 1 or not _may_run_together(first):
            yield from ({i: _run_alone(specs[i])} for i in places)
        else:
            yield from _run_group({i: cast(TextSpec, specs[i]) for i in places})


def _run_on_model(specs: Mapping[int, ModelSpec]) -> Iterator[dict[int, Outcome]]:
    """The outcomes of experiments of equal settings on one model."""
    read = dict(zip(specs, _read(list(specs.values())), strict=True))
    texts = {i: text for i, text in read.items() if isinstance(text, Texts)}
    for i, error in read.items():
        if isinstance(error, UserError):
            yield {i: error}
    if texts:
        load_experiment(specs[next(iter(texts))])
        from attncli.running.model_runs import run_models

        yield from run_models({i: specs[i] for i in texts}, texts)


def _settings(spec: Spec) -> tuple[Any, ...]:
    """Everything but the own keys of an experiment, to compare by."""
    shared = [value for key, value in spec.__dict__.items() if key not in OWN_KEYS]
    return (spec.experiment, *[tuple(value) if type(value) is list else value for value in shared])


def _run_group(specs: Mapping[int, TextSpec]) -> Iterator[dict[int, Outcome]]:
    """The outcomes of experiments of equal settings."""
    read = dict(zip(specs, _read(list(specs.values())), strict=True))
    for i, error in read.items():
        if isinstance(error, UserError):
            yield {i: error}
    texts = {i: text for i, text in read.items() if isinstance(text, Texts)}
    for bucket in _buckets(specs, texts):
        members: list[Spec] = [specs[i] for i in bucket]
        yield dict(zip(bucket, _run_bucket(members, [texts[i] for i in bucket]), strict=True))


def _may_run_together(spec: Spec) -> bool:
    """Whether texts run together under these settings, and it is known and tested how."""
    unknown = type(spec).model_fields.keys() - KEYS_TOGETHER
    return spec.can_run_together() and not spec.given(*unknown)


def _read(specs: Sequence[Spec]) -> list[Texts | UserError]:
    """The texts of experiments of equal settings; a file of word vectors is read once for all."""
    texts: list[Texts | UserError] = []
    try:
        check_before_reading(specs[0])
    except UserError as error:
        return [error] * len(specs)
    for spec in specs:
        try:
            texts.append(read_tokens(spec))
        except UserError as error:
            texts.append(error)
    if not uses_vector_file(specs[0]):
        return texts
    words = {word for one in texts if isinstance(one, Texts) for word in (*one.tokens, *one.context_tokens)}
    try:
        found = find_vectors(specs[0], words)
    except UserError:  # a damaged line spoils those texts alone that need it
        found = None
    return [one if isinstance(one, UserError) else _with_vectors(specs[0], one, found) for one in texts]


def _with_vectors(spec: TextSpec, texts: Texts, found: Mapping[str, Any] | None) -> Texts | UserError:
    try:
        if found is None:
            found = find_vectors(spec, (*texts.tokens, *texts.context_tokens))
        return with_vectors(spec, texts, found)
    except UserError as error:
        return error


def _buckets(specs: Mapping[int, TextSpec], texts: Mapping[int, Texts]) -> Iterator[list[int]]:
    """The places of texts with equal counts of tokens, some at a time; equal draws stand side by side."""
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


def _run_bucket(specs: Sequence[Spec], texts: Sequence[Texts]) -> list[Outcome]:
    """The outcomes of texts with equal counts of tokens."""
    if len(specs) == 1:
        return [_run_alone(specs[0], texts[0])]
    try:
        refuse_what_does_not_fit(specs[0], *texts[0].counts())
        run = load_experiment(specs[0])
        from attncli.running.draws_together import DrawsTogether

        draws = DrawsTogether([spec.seed for spec in specs])
        together = run(specs[0], texts[0]._replace(others=tuple(texts[1:])), draws)
    except UserError:  # which of them is to blame shows when each runs alone
        return [_run_alone(spec, text) for spec, text in zip(specs, texts, strict=True)]
    return list(_taken_apart(together, specs, texts))


def _run_alone(spec: Spec, texts: Texts | None = None) -> Outcome:
    try:
        session = Session()
        if texts is None:
            return session.run(spec, reseed=True)
        return session.run_texts(spec, texts, reseed=True)
    except UserError as error:
        return error


def _taken_apart(report: Report, specs: Sequence[Spec], texts: Sequence[Texts]) -> Iterator[Report]:
    for i, (spec, text) in enumerate(zip(specs, texts, strict=True)):
        own = {key: getattr(spec, key) for key in OWN_KEYS if key in report.spec}
        yield Report(
            report.experiment,
            {**report.spec, **own},
            report.environment,
            text.tokens,
            text.context_tokens,
            OwnPart(report.tensors, i, _own_tensor),
            OwnPart(report.statistics, i, _own_statistic),
            report.notes,
        )


def _own_tensor(tensor: NamedTensor, place: int) -> NamedTensor:
    assert tensor.axes[0] == "batch", tensor.axes
    return NamedTensor(tensor.axes[1:], tensor.values[place])


def _own_statistic(found: Statistic, place: int) -> Statistic:
    """A number for each text is the text's own number."""
    if not isinstance(found, Tensors):
        return found
    own = Tensors((name, _own_tensor(tensor, place)) for name, tensor in found.items())
    if any(tensor.axes for tensor in own.values()):
        return own
    return Numbers((name, tensor.values.item()) for name, tensor in own.items())


class OwnPart(Mapping[str, Part]):
    """What one text has of the tensors or statistics of several, taken out when it is asked for."""

    __slots__ = ("place", "take", "whole")

    def __init__(self, whole: Mapping[str, Part], place: int, take: Callable[[Part, int], Part]) -> None:
        self.whole, self.place, self.take = whole, place, take

    def __getitem__(self, name: str) -> Part:
        return self.take(self.whole[name], self.place)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)
