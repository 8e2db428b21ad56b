"""Sampled weights: random generators, token vectors, and projections to query, key and value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import prod, sqrt
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.layer import split_heads
from attncli.core.progress import Progress
from attncli.errors import UserError


@dataclass(frozen=True)
class Vocabulary:
    """Sorted words and their vectors; row i of the table belongs to words[i]."""

    words: tuple[str, ...]
    table: Float[Tensor, "word dim"]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the row of each token. Raises UserError that names the missing words."""
        index = {word: row for row, word in enumerate(self.words)}
        if missing := sorted(set(tokens) - index.keys()):
            raise UserError(f"embedding: previous has no vector for {', '.join(missing[:5])}")
        return [index[token] for token in tokens]


def sample_table(num_words: int, dim: int, generator: torch.Generator) -> Float[Tensor, "word dim"]:
    """Sample one standard normal vector per word, like torch.nn.Embedding's initial weights."""
    return torch.randn(num_words, dim, generator=generator)


SAMPLERS: dict[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "gaussian": lambda shape, generator: torch.randn(shape, generator=generator),
    "integers": lambda shape, generator: torch.randint(0, 10, shape, generator=generator).float(),
}
"""Samplers of vectors without a vocabulary, which differ even for equal tokens: N(0, 1), or 0 to 9."""


@dataclass(frozen=True)
class Projection:
    """A sampled matrix in the layout that `axes` names; the projected vectors have axes `... token dim`."""

    matrix: Float[Tensor, "..."]
    axes: tuple[str, ...]

    def to(self, device: torch.device) -> "Projection":
        """Return this projection with its matrix on a device."""
        return Projection(self.matrix.to(device), self.axes)

    def __call__(self, vectors: Float[Tensor, "*batch token embed"]) -> Float[Tensor, "*out token dim"]:
        """Project vectors; a matrix with a head axis adds a head axis before the token axis."""
        if self.axes == ("embed", "dim"):
            return vectors @ self.matrix
        if self.axes == ("dim", "embed"):
            return vectors @ self.matrix.mT
        # One product for all heads, because broadcasting would copy the vectors for each head.
        return split_heads(vectors @ self.matrix.flatten(-3, -2).mT, self.matrix.shape[-3])


def sample_linear(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, "out in"]:
    """Sample from U(-1/sqrt(in_dim), 1/sqrt(in_dim)) in the layout (out, in), like a new torch.nn.Linear."""
    matrix = torch.empty(out_dim, in_dim)
    torch.nn.init.kaiming_uniform_(matrix, a=sqrt(5), generator=generator)
    return matrix


def sample_linear_bias(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, " out"]:
    """Sample from U(-1/sqrt(in_dim), 1/sqrt(in_dim)), like torch.nn.Linear's initial bias."""
    bound = 1 / sqrt(in_dim)
    return torch.empty(out_dim).uniform_(-bound, bound, generator=generator)


def sample_projections(
    kind: str,
    embed_dim: int,
    sizes: Mapping[str, tuple[int, ...]],
    order: Sequence[str],
    generator: torch.Generator,
) -> dict[str, Projection]:
    """Sample the projections for query, key and value, in this order; sizes are (dim,) or (heads, dim).

    linear: like one torch.nn.Linear without bias, in the layout (dim, embed); if there are several heads, the
    rows are split among the heads: (head, dim, embed). uniform: U[0, 1) with layout (embed, dim), or (head,
    dim, embed).
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


class Draws:
    """A generator and a vocabulary table, both passed on from one experiment to the next."""

    def __init__(self, generator: torch.Generator, progress: Progress | None = None) -> None:
        self.generator = generator
        self.vocabulary: Vocabulary | None = None
        self.progress = progress

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """Return draw(*arguments, generator)."""
        return draw(*arguments, self.generator)

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """Draw once for each text in the run, with the arguments for that text; here there is one text."""
        return [draw(*text_arguments, self.generator) for text_arguments in arguments]


MAX_CACHED_BYTES = 32 * 2**20


@dataclass
class _Point:
    """The state of a generator after some draws, and the draws made from that state."""

    state: Tensor
    sampled: dict[tuple[Any, ...], tuple[Any, "_Point"]] = field(default_factory=dict)


class DrawCache:
    """A cache of draws, by seed and previous draws, that is cleared when it grows too large."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._generator = torch.Generator()
        self._starts: dict[int, _Point] = {}
        self._max_bytes = max_bytes
        self._bytes = 0

    def start(self, seed: int) -> _Point:
        """Return a generator with this seed, before its first draw."""
        if self._bytes > self._max_bytes:
            self._starts.clear()
            self._bytes = 0
        if seed not in self._starts:
            self._starts[seed] = self._point(torch.Generator().manual_seed(seed))
        return self._starts[seed]

    def draw(
        self, point: _Point, draw: Callable[..., Drawn], arguments: tuple[Any, ...]
    ) -> tuple[Drawn, _Point]:
        """Return draw(*arguments, generator) from this point, and the point after it."""
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


DRAW_CACHE = DrawCache()
"""The cached draws of this process. Caching never changes a number."""


class DrawsTogether(Draws):
    """Draws for several experiments side by side; each experiment has its own generator and seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(torch.Generator().manual_seed(seeds[0]))
        self._points = [DRAW_CACHE.start(seed) for seed in seeds]

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """Draw for each experiment with its own arguments."""
        sampled = [
            DRAW_CACHE.draw(point, draw, text_arguments)
            for point, text_arguments in zip(self._points, arguments, strict=True)
        ]
        self._points = [point for _, point in sampled]
        return [result for result, _ in sampled]

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """Draw for each experiment with equal arguments; stack the draws unless all are the same object."""
        return stacked(self.draw_each(draw, [arguments] * len(self._points)))


def stacked(sampled: Sequence[Drawn]) -> Drawn:
    """Stack tensors, or mappings and dataclasses of tensors, along a new first axis.

    If all are the same object, that object is returned unstacked, to be broadcast.
    """
    first: Any = sampled[0]
    if all(other is first for other in sampled):
        return sampled[0]
    # All have the type of the first, and so has the result, which a type checker cannot infer.
    if isinstance(first, Tensor):
        return torch.stack(sampled)  # type: ignore[arg-type, return-value]
    if isinstance(first, dict):
        return {name: stacked([each[name] for each in sampled]) for name in first}  # type: ignore[index, return-value]
    if is_dataclass(first):
        parts = [part.name for part in fields(first) if isinstance(getattr(first, part.name), Tensor)]
        changed = {name: stacked([getattr(each, name) for each in sampled]) for name in parts}
        return replace(first, **changed)  # type: ignore[type-var, return-value]
    raise AssertionError(f"cannot stack {type(first)}")


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
    """The embedded tokens of one text, and their ids if there is a vocabulary."""

    vectors: Float[Tensor, "*batch token dim"]
    token_ids: Int[Tensor, "*batch token"] | None


def choose_device(name: str) -> torch.device:
    """Choose cpu or cuda; auto prefers CUDA. Raises UserError if CUDA is not available."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UserError("device: cuda is not available: use auto or cpu")
    return torch.device("cuda" if name != "cpu" and has_cuda else "cpu")


TokenSequences = tuple[Sequence[str], ...]
"""The tokens of a text and, in cross-attention, of its context, which share a vocabulary."""


def _vocabularies(
    texts: Sequence[TokenSequences], draws: Draws, embedding: str, dim: int
) -> list[Vocabulary]:
    if embedding == "random":
        words = [tuple(sorted({token for tokens in sequences for token in tokens})) for sequences in texts]
        tables = draws.draw_each(sample_table, [(len(vocabulary), dim) for vocabulary in words])
        return [Vocabulary(vocabulary, table) for vocabulary, table in zip(words, tables, strict=True)]
    # The plan guarantees an earlier step; its table is missing only if that step failed.
    if draws.vocabulary is None or draws.vocabulary.table.shape[1] != dim:
        raise UserError(f"embedding: previous needs a table of size {dim} from an earlier step")
    return [draws.vocabulary]


def _batched(tensors: Sequence[Tensor]) -> Tensor:
    """Stack the tensors of several texts along a first axis; return those of a single text unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


def _looked_up(vocabularies: Sequence[Vocabulary], texts: Sequence[Sequence[str]]) -> Source:
    ids = [
        torch.tensor(vocabulary.ids(tokens)) for vocabulary, tokens in zip(vocabularies, texts, strict=True)
    ]
    vectors = [vocabulary.table[rows] for vocabulary, rows in zip(vocabularies, ids, strict=True)]
    return Source(_batched(vectors), _batched(ids))


def embed(
    texts: Sequence[TokenSequences],
    draws: Draws,
    *,
    embedding: str,
    dim: int,
    batch_size: int | None,
    read: Sequence[Vocabulary],
    device: torch.device,
) -> list[Source]:
    """Return the vectors of the tokens, then those of any context tokens, read from a file or sampled.

    Everything is sampled on the CPU, so that numbers do not depend on the device. Several texts form a batch;
    each text has the vocabulary and samples that it would have alone.
    """
    sequences = list(zip(*texts, strict=True))
    if draw := SAMPLERS.get(embedding):
        batch = (batch_size,) if batch_size else ()
        shapes = [(*batch, len(tokens[0]), dim) for tokens in sequences]
        sampled = [draws.draw_each(draw, [(shape,)] * len(texts)) for shape in shapes]
        return [Source(_batched(vectors).to(device), None) for vectors in sampled]
    vocabularies = read or _vocabularies(texts, draws, embedding, dim)
    draws.vocabulary = vocabularies[-1]
    sources = [_looked_up(vocabularies, tokens) for tokens in sequences]
    return [Source(source.vectors.to(device), source.token_ids) for source in sources]
