"""Attention with sampled weights: the random numbers, the vectors of tokens, their query, key and value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import prod, sqrt
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import (
    MAP_SIZE,
    PLAIN,
    AttentionLayer,
    Computed,
    Moments,
    ScoreRules,
    Visibility,
    Wanted,
    merge_heads,
    score_factor,
    split_heads,
)
from attncli.core.mechanisms import (
    alibi_bias,
    attend_by_loop,
    attend_differentially,
    differential_lambda,
    relative_bias,
    rms_norm,
    rotate,
)
from attncli.core.progress import Stage
from attncli.errors import RunError, UserError


@dataclass(frozen=True)
class Vocabulary:
    """Sorted words and a vector for each: row i of the table belongs to words[i]."""

    words: tuple[str, ...]
    table: Float[Tensor, "word dim"]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """The row of each token; UserError that names the words without one."""
        index = {word: row for row, word in enumerate(self.words)}
        if missing := sorted(set(tokens) - index.keys()):
            raise UserError(f"embedding: previous has no vector for {', '.join(missing[:5])}")
        return [index[token] for token in tokens]


def sample_table(num_words: int, dim: int, generator: torch.Generator) -> Float[Tensor, "word dim"]:
    """Standard normal vectors, one per word, as torch.nn.Embedding starts."""
    return torch.randn(num_words, dim, generator=generator)


SAMPLERS: dict[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "gaussian": lambda shape, generator: torch.randn(shape, generator=generator),
    "integers": lambda shape, generator: torch.randint(0, 10, shape, generator=generator).float(),
}
"""Vectors without a vocabulary; equal tokens get different ones: N(0, 1), or whole numbers from 0 to 9."""


@dataclass(frozen=True)
class Projection:
    """A sampled matrix in its own layout, which `axes` names; applying it gives `... token dim`."""

    matrix: Float[Tensor, "..."]
    axes: tuple[str, ...]

    def to(self, device: torch.device) -> "Projection":
        """The same projection with its matrix on a device."""
        return Projection(self.matrix.to(device), self.axes)

    def __call__(self, vectors: Float[Tensor, "*batch token embed"]) -> Float[Tensor, "*out token dim"]:
        """The projected vectors; a matrix with a head axis puts a head axis before the tokens."""
        if self.axes == ("embed", "dim"):
            return vectors @ self.matrix
        if self.axes == ("dim", "embed"):
            return vectors @ self.matrix.mT
        # One product for all heads: a broadcast one would copy the vectors for each.
        return split_heads(vectors @ self.matrix.flatten(-3, -2).mT, self.matrix.shape[-3])


def sample_linear(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, "out in"]:
    """U(-1/sqrt(in_dim), 1/sqrt(in_dim)) with layout (out, in), as torch.nn.Linear starts its weight."""
    matrix = torch.empty(out_dim, in_dim)
    torch.nn.init.kaiming_uniform_(matrix, a=sqrt(5), generator=generator)
    return matrix


def sample_linear_bias(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, " out"]:
    """U(-1/sqrt(in_dim), 1/sqrt(in_dim)), as torch.nn.Linear starts its bias."""
    bound = 1 / sqrt(in_dim)
    return torch.empty(out_dim).uniform_(-bound, bound, generator=generator)


def sample_projections(
    kind: str,
    embed_dim: int,
    sizes: Mapping[str, tuple[int, ...]],
    order: Sequence[str],
    generator: torch.Generator,
) -> dict[str, Projection]:
    """Projections for query, key and value, sampled in the given order; sizes are (dim,) or (heads, dim).

    linear: one torch.nn.Linear without bias, layout (dim, embed), its rows split into heads where there are
    several: (head, dim, embed). uniform: U[0, 1) with layout (embed, dim), or (head, dim, embed).
    """
    projections = {}
    for name in order:
        shape, axes = (*sizes[name], embed_dim), ("head", "dim", "embed")[-1 - len(sizes[name]) :]
        if kind == "linear":
            matrix = sample_linear(prod(sizes[name]), embed_dim, generator).view(shape)
        else:
            if len(shape) == 2:
                shape, axes = shape[::-1], axes[::-1]
            matrix = torch.rand(shape, generator=generator)
        projections[name] = Projection(matrix, axes)
    return projections


Drawn = TypeVar("Drawn")


@runtime_checkable
class Progress(Protocol):
    """What hears from an experiment while it runs."""

    def __call__(self, share: float, /) -> None:
        """The share of a long computation that is done, between 0 and 1."""

    def stage(self, stage: Stage, /) -> None:
        """A part of a long computation begins."""

    def if_long(self, ways_out: str, /) -> None:
        """What would take less, to be said where all takes long."""

    def write(self, text: str, /) -> None:
        """Text as a model generates it."""

    def begin(self, text: str, /) -> None:
        """A line until anything else is shown: what follows takes long and says nothing."""

    def tell(self, line: str, /) -> None:
        """A line that stays: a part is finished."""

    def of_layers(self, number: int, count: int, /) -> None:
        """A layer of a model that is read as it is used begins, and how many there are."""


class Draws:
    """A generator and the vocabulary's table, which one experiment leaves to the next."""

    def __init__(self, generator: torch.Generator, progress: Progress | None = None) -> None:
        self.generator = generator
        self.vocabulary: Vocabulary | None = None
        self.progress = progress

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """draw(*arguments, generator)."""
        return draw(*arguments, self.generator)

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """One draw for each text that runs together, each with its own arguments: here there is one text."""
        return [draw(*text_arguments, self.generator) for text_arguments in arguments]


MAX_KEPT_BYTES = 32 * 2**20


@dataclass
class _Point:
    """A generator after some draws, and what has been sampled from there on."""

    state: Tensor
    sampled: dict[tuple[Any, ...], tuple[Any, "_Point"]] = field(default_factory=dict)


class KeptDraws:
    """Every draw by its seed and the draws before it; all are forgotten when they grow too large."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._generator = torch.Generator()
        self._starts: dict[int, _Point] = {}
        self._max_bytes = max_bytes
        self._bytes = 0

    def start(self, seed: int) -> _Point:
        """A generator with this seed, before its first draw."""
        if self._bytes > self._max_bytes:
            self._starts.clear()
            self._bytes = 0
        if seed not in self._starts:
            self._starts[seed] = self._point(torch.Generator().manual_seed(seed))
        return self._starts[seed]

    def draw(
        self, point: _Point, draw: Callable[..., Drawn], arguments: tuple[Any, ...]
    ) -> tuple[Drawn, _Point]:
        """draw(*arguments, generator) from this point, and the point after it."""
        key = (draw, *map(_hashable, arguments))
        if key not in point.sampled:
            self._generator.set_state(point.state)
            result = draw(*arguments, self._generator)
            self._bytes += _bytes(result)
            point.sampled[key] = (result, self._point(self._generator))
        return point.sampled[key]

    def _point(self, generator: torch.Generator) -> _Point:
        point = _Point(generator.get_state())
        self._bytes += point.state.nbytes
        return point


KEPT = KeptDraws()
"""What this process has sampled so far. Whether a draw is found here or repeated changes no number."""


class DrawsTogether(Draws):
    """The draws of several experiments side by side, each as from a generator with its own seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(torch.Generator().manual_seed(seeds[0]))
        self._points = [KEPT.start(seed) for seed in seeds]

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """The draw of each experiment, with its own arguments."""
        sampled = [
            KEPT.draw(point, draw, text_arguments)
            for point, text_arguments in zip(self._points, arguments, strict=True)
        ]
        self._points = [point for _, point in sampled]
        return [result for result, _ in sampled]

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """The same draw for each experiment, along a first axis unless all sampled the same numbers."""
        return stacked(self.draw_each(draw, [arguments] * len(self._points)))


def stacked(sampled: Sequence[Drawn]) -> Drawn:
    """Tensors, and mappings and dataclasses of tensors, stacked along a new first axis.

    Where all are the same object nothing is stacked: it broadcasts.
    """
    first: Any = sampled[0]
    if all(other is first for other in sampled):
        return sampled[0]
    # All have the type of the first, and so does the result: a type checker cannot follow that.
    if isinstance(first, Tensor):
        return torch.stack(sampled)  # type: ignore[arg-type, return-value]
    if isinstance(first, dict):
        return {name: stacked([each[name] for each in sampled]) for name in first}  # type: ignore[index, return-value]
    if is_dataclass(first):
        parts = [part.name for part in fields(first) if isinstance(getattr(first, part.name), Tensor)]
        changed = {name: stacked([getattr(each, name) for each in sampled]) for name in parts}
        return replace(first, **changed)  # type: ignore[type-var, return-value]
    raise AssertionError(f"no way to stack {type(first)}")


def _hashable(argument: Any) -> Any:
    if isinstance(argument, dict):
        return tuple(argument.items())
    return tuple(argument) if isinstance(argument, list) else argument


def _bytes(sampled: Any) -> int:
    if isinstance(sampled, Tensor):
        return sampled.nbytes
    if isinstance(sampled, dict):
        return sum(map(_bytes, sampled.values()))
    return (
        sum(_bytes(getattr(sampled, part.name)) for part in fields(sampled)) if is_dataclass(sampled) else 0
    )


@dataclass(frozen=True)
class Source:
    """The embedded tokens of one text, and their ids where there is a vocabulary."""

    vectors: Float[Tensor, "*batch token dim"]
    token_ids: Int[Tensor, "*batch token"] | None


def choose_device(name: str) -> torch.device:
    """cpu or cuda; auto is CUDA where there is one. UserError where it is missing."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UserError("device: cuda is not available here: use auto or cpu")
    return torch.device("cuda" if name != "cpu" and has_cuda else "cpu")


Sides = tuple[Sequence[str], ...]
"""The tokens of a text, and of a context where there is one: both share one vocabulary."""


def _vocabularies(texts: Sequence[Sides], draws: Draws, embedding: str, dim: int) -> list[Vocabulary]:
    if embedding == "random":
        words = [tuple(sorted({token for tokens in sides for token in tokens})) for sides in texts]
        tables = draws.draw_each(sample_table, [(len(vocabulary), dim) for vocabulary in words])
        return [Vocabulary(vocabulary, table) for vocabulary, table in zip(words, tables, strict=True)]
    # The plan has seen to a step before this one; only where that failed there is no table.
    if draws.vocabulary is None or draws.vocabulary.table.shape[1] != dim:
        raise UserError(f"embedding: previous has no table of size {dim} from the step before")
    return [draws.vocabulary]


def _batched(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors of several texts stacked along a first axis; that of a single text unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


def _looked_up(vocabularies: Sequence[Vocabulary], texts: Sequence[Sequence[str]]) -> Source:
    ids = [
        torch.tensor(vocabulary.ids(tokens)) for vocabulary, tokens in zip(vocabularies, texts, strict=True)
    ]
    vectors = [vocabulary.table[rows] for vocabulary, rows in zip(vocabularies, ids, strict=True)]
    return Source(_batched(vectors), _batched(ids))


def embed(
    texts: Sequence[Sides],
    draws: Draws,
    *,
    embedding: str,
    dim: int,
    batch_size: int | None,
    read: Sequence[Vocabulary],
    device: torch.device,
) -> list[Source]:
    """The vectors of the tokens, then of any context tokens, from what was read or by a way of sampling.

    Everything is sampled on the CPU: no number depends on the device. Several texts form a batch, each with
    the vocabulary and the samples that it would have alone.
    """
    sides = list(zip(*texts, strict=True))
    if draw := SAMPLERS.get(embedding):
        batch = (batch_size,) if batch_size else ()
        shapes = [(*batch, len(tokens[0]), dim) for tokens in sides]
        sampled = [draws.draw_each(draw, [(shape,)] * len(texts)) for shape in shapes]
        return [Source(_batched(vectors).to(device), None) for vectors in sampled]
    vocabularies = read or _vocabularies(texts, draws, embedding, dim)
    draws.vocabulary = vocabularies[-1]
    sources = [_looked_up(vocabularies, tokens) for tokens in sides]
    return [Source(source.vectors.to(device), source.token_ids) for source in sources]


LAMBDA_DEVIATION = 0.1
LARGEST_FLOAT32 = 3.4e38
LEAST_FACTOR = 1e-20
"""Scores that were multiplied by less cannot be recovered from float32."""
MAX_LOOP_CELLS = 2**16
NamedVectors = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True, kw_only=True)
class AttentionForm:
    """softmax(query key^T scale) value, and its variants; a number of None is off."""

    scale: str | float = "sqrt"
    softmax: bool = True
    causal: bool = False
    window: int | None = None
    rope_base: float | None = None
    alibi: bool = False
    num_buckets: int | None = None
    """Of the distances of a relative bias; those from `max_distance` on share the last one."""
    max_distance: int = 128
    qk_norm_eps: float | None = None
    softcap: float | None = None
    temperature: float = 1.0
    sink: float | None = None
    lambda_init: float | None = None
    """Of differential attention."""

    @property
    def is_differential(self) -> bool:
        """Whether query and key have two halves, and a softmax each."""
        return self.lambda_init is not None


@dataclass(frozen=True)
class VariantParameters:
    """What the variants would learn, here sampled: the relative bias's table, the vectors behind lambda."""

    bias_table: Float[Tensor, "head bucket"] | None = None
    lambda_vectors: Float[Tensor, "4 half"] | None = None


@dataclass(frozen=True)
class SampledAttention:
    """The layer, with query and key as its scores multiply them, and what was computed of it.

    `raw_moments` are of the scores before the scale. Differential attention has two `halves`, whose scores
    those are, and `factor`, its lambda; it has no moments.
    """

    layer: AttentionLayer
    parameters: VariantParameters
    computed: Computed
    output: Float[Tensor, "text head query dim"]
    raw_moments: Moments | None = None
    halves: tuple[Computed, ...] = ()
    factor: float | None = None


def project(
    sources: Sequence[Source],
    draws: Draws,
    *,
    projection: str,
    order: Sequence[str],
    sizes: Mapping[str, tuple[int, ...]],
) -> tuple[dict[str, Float[Tensor, "..."]], dict[str, Projection]]:
    """Query of the first source, key and value of the last, and what made them: linear, uniform or none.

    Sizes are (dim,), or (heads, dim) for an axis of heads; without a projection each head sees its own slice.
    """
    projected = {"query": sources[0].vectors, "key": sources[-1].vectors, "value": sources[-1].vectors}
    if projection == "none":
        heads = sizes["query"][:-1]
        return {
            name: split_heads(vectors, *heads) if heads else vectors for name, vectors in projected.items()
        }, {}
    embed_dim = sources[0].vectors.shape[-1]
    projections = draws.draw(sample_projections, projection, embed_dim, sizes, order)
    return {
        name: projections[name].to(vectors.device)(vectors) for name, vectors in projected.items()
    }, projections


def _sample(table: tuple[int, int] | None, half: int | None, generator: torch.Generator) -> VariantParameters:
    """N(0, 1) for the table, then N(0, 0.1^2) for the vectors q1, k1, q2, k2, of these sizes."""
    return VariantParameters(
        None if table is None else torch.randn(table, generator=generator),
        None if half is None else LAMBDA_DEVIATION * torch.randn(4, half, generator=generator),
    )


def _apply_qk_norm_and_rope(form: AttentionForm, vectors: NamedVectors) -> dict[str, Float[Tensor, "..."]]:
    """Query and key as the scores multiply them: normalised, then rotated; the value is unchanged.

    In differential attention each half is normalised and rotated separately.
    """
    applied = dict(vectors)
    for name in ("query", "key"):
        heads = split_heads(vectors[name], 2) if form.is_differential else vectors[name]
        if form.qk_norm_eps is not None:
            heads = rms_norm(heads, eps=form.qk_norm_eps)
        if form.rope_base is not None:
            heads = rotate(heads, base=form.rope_base)
        applied[name] = merge_heads(heads) if form.is_differential else heads
    return applied


def _score_rules(
    form: AttentionForm, parameters: VariantParameters, query: Float[Tensor, "text head query dim"]
) -> ScoreRules:
    """What happens to the scores between scale and weights."""
    bias, num_heads, num_queries = None, query.shape[1], query.shape[2]
    if form.alibi:
        bias = alibi_bias(num_heads, num_queries)
    if parameters.bias_table is not None:
        distance, causal = form.max_distance, form.causal
        bias = relative_bias(parameters.bias_table, num_queries, max_distance=distance, causal=causal)
    if bias is not None:
        bias = bias.to(query).unsqueeze(0)
    sink = None if form.sink is None else torch.tensor([[form.sink]], dtype=torch.float64)
    rules = ScoreRules(softcap=form.softcap, bias=bias, temperature=form.temperature, sink=sink)
    if rules.softmax_sink is not None and rules.softmax_sink.abs() > LARGEST_FLOAT32:
        given = f"got sink {form.sink:g}, temperature {form.temperature:g}"
        raise RunError(f"sink / temperature overflows float32: use a smaller sink ({given})")
    return rules


def sampled_attention(
    vectors: NamedVectors,
    form: AttentionForm,
    draws: Draws,
    *,
    rows: tuple[str, ...],
    top_k: int,
    is_streamed: bool = False,
) -> SampledAttention:
    """softmax(query key^T scale) value of vectors (text, head, token, dim), and these statistics of its rows.

    Key and value may have fewer heads than the query. What variants would learn is sampled here. Streamed, it
    has pooled maps instead of weights. RunError where scores overflow.
    """
    num_heads, dim = vectors["query"].shape[1], vectors["query"].shape[-1]
    table = None if form.num_buckets is None else (num_heads, form.num_buckets)
    parameters = draws.draw(_sample, table, dim // 2 if form.is_differential else None)
    layer = _layer(form, _apply_qk_norm_and_rope(form, vectors), parameters)
    wanted = Wanted(rows=rows, top_k=min(top_k, layer.shape[3]), received_mass=True)
    if is_streamed:
        wanted = replace(wanted, output=True, score_moments=True, pooled=MAP_SIZE)
        result = _attended(layer, parameters, wanted, draws.progress)
    elif parameters.lambda_vectors is not None:
        assert form.lambda_init is not None
        factor = differential_lambda(parameters.lambda_vectors, form.lambda_init)
        *halves, computed = attend_differentially(layer, factor, wanted)
        assert computed.output is not None
        result = SampledAttention(
            layer, parameters, computed, computed.output, halves=tuple(halves), factor=factor
        )
    else:
        wanted = replace(wanted, output=True) if form.softmax else Wanted()
        wanted = replace(wanted, weights=True, scores=True, score_moments=True)
        result = _attended(layer, parameters, wanted)
    if not result.output.abs().max().isfinite():
        raise RunError(_overflow(form))
    return result


def _layer(form: AttentionForm, vectors: NamedVectors, parameters: VariantParameters) -> AttentionLayer:
    """The layer of these vectors: fourth-root scales query and key each, any other scale their product."""
    query, key, value = (vectors[name] for name in ("query", "key", "value"))
    factor = score_factor(form.scale, query.shape[-1] // (2 if form.is_differential else 1))
    visibility = Visibility(query.shape[-2], key.shape[-2], causal=form.causal, window=form.window)
    return AttentionLayer(query, key, value, visibility, factor, _score_rules(form, parameters, query))


def _attended(
    layer: AttentionLayer,
    parameters: VariantParameters,
    wanted: Wanted,
    progress: Callable[[float], None] | None = None,
) -> SampledAttention:
    computed = attend(layer, wanted, progress)
    raw, output = _raw_moments(layer, computed), computed.output
    if output is None:  # without softmax the weights are the scores
        assert computed.scores is not None
        weights = computed.scores.masked_fill(computed.scores == -torch.inf, 0.0)
        computed, output = replace(computed, weights=weights), weights @ layer.expanded()[1]
    return SampledAttention(layer, parameters, computed, output, raw)


def _overflow(form: AttentionForm) -> str:
    message = f"the scores overflow float32: use a smaller scale (got {form.scale})"
    hotter = f" or a larger temperature (got {form.temperature:g})"
    return message if form.temperature == 1 else message + hotter


def _raw_moments(layer: AttentionLayer, computed: Computed) -> Moments:
    """The moments of the scores before the scale and all that follows it."""
    assert computed.moments is not None
    factor = layer.scale / layer.rules.temperature
    if layer.rules.is_plain and abs(factor) >= LEAST_FACTOR:
        return _divided(computed.moments, factor)
    # What was capped, or too small for float32, is lost: the moments before it take a pass of their own.
    raw = attend(replace(layer, scale=1.0, rules=PLAIN), Wanted(score_moments=True)).moments
    assert raw is not None
    return raw


def _divided(moments: Moments, factor: float) -> Moments:
    """The moments of numbers that were multiplied by a factor, of either sign, before it."""
    ends = moments.smallest / factor, moments.largest / factor
    return Moments(
        moments.mean / factor,
        moments.variance / factor / factor,  # the square of a factor may overflow
        torch.minimum(*ends),
        torch.maximum(*ends),
    )


def loop_difference(
    form: AttentionForm, vectors: Float[Tensor, "*batch token dim"], output: Float[Tensor, "*batch token dim"]
) -> float | None:
    """The largest difference between the loop form and the matrix form; None where a loop takes too long."""
    *batch, num_tokens, _ = vectors.shape
    if num_tokens**2 * (batch[0] if batch else 1) > MAX_LOOP_CELLS:
        return None
    visibility = Visibility(num_tokens, num_tokens, causal=form.causal, window=form.window)
    (visible,) = visibility.whole(vectors.device)
    looped = attend_by_loop(vectors, visible, scale=form.scale, softmax=form.softmax)
    return (looped - output).abs().max().item()


@dataclass(frozen=True)
class Unified:
    """The heads after one more linear layer, and its sampled matrix and bias."""

    output: Float[Tensor, "*batch token embed"]
    matrix: Float[Tensor, "... embed merged"]
    bias: Float[Tensor, "... embed"]


def unify(merged: Float[Tensor, "*batch token merged"], embed_dim: int, draws: Draws) -> Unified:
    """merged W_O^T + b, back to embed_dim."""
    matrix = draws.draw(sample_linear, embed_dim, merged.shape[-1])
    bias = draws.draw(sample_linear_bias, embed_dim, merged.shape[-1])
    output = merged @ matrix.to(merged.device).mT + bias.to(merged.device).unsqueeze(-2)
    return Unified(output, matrix, bias)
