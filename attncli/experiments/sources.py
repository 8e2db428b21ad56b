"""The vectors of an experiment: of its tokens, or sampled, in the order in which the lessons sample them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.draws import Draws
from attncli.experiments.reading.texts import Texts
from attncli.inputs.vectors import SAMPLERS, Vocabulary, sample_table
from attncli.spec.fields import Spec
from attncli.spec.text import TextSpec


@dataclass(frozen=True)
class Source:
    """The embedded tokens of one text, and their ids where there is a vocabulary."""

    vectors: Float[Tensor, "*batch token dim"]
    token_ids: Int[Tensor, "*batch token"] | None


def choose_device(spec: Spec) -> torch.device:
    """The device that a spec names; auto is CUDA where there is one. UserError where it is missing."""
    has_cuda = torch.cuda.is_available()
    if spec.device == "cuda" and not has_cuda:
        raise UserError("device: cuda is not available here: use auto or cpu")
    return torch.device("cuda" if spec.device != "cpu" and has_cuda else "cpu")


def _vocabularies(spec: TextSpec, texts: Texts, draws: Draws) -> list[Vocabulary]:
    if texts.word_vectors is not None:
        read = [one.word_vectors for one in texts.together() if one.word_vectors is not None]
        return [Vocabulary(vectors.words, torch.from_numpy(vectors.table)) for vectors in read]
    if spec.embedding == "random":
        words = [tuple(sorted({*one.tokens, *one.context_tokens})) for one in texts.together()]
        tables = draws.draw_each(sample_table, [(len(own), spec.embed_dim) for own in words])
        return [Vocabulary(own, table) for own, table in zip(words, tables, strict=True)]
    # The plan has seen to a step before this one; only where that failed there is no table.
    if draws.vocabulary is None or draws.vocabulary.table.shape[1] != spec.embed_dim:
        raise UserError(f"embedding: previous has no table of size {spec.embed_dim} from the step before")
    return [draws.vocabulary]


def _batched(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors of several texts stacked along a first axis; that of a single text unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


def _looked_up(vocabularies: Sequence[Vocabulary], texts: Sequence[Sequence[str]]) -> Source:
    ids = [torch.tensor(own.ids(tokens)) for own, tokens in zip(vocabularies, texts, strict=True)]
    vectors = [own.table[rows] for own, rows in zip(vocabularies, ids, strict=True)]
    return Source(_batched(vectors), _batched(ids))


def embed(spec: TextSpec, texts: Texts, draws: Draws) -> list[Source]:
    """The vectors of the tokens and of any context tokens, on the spec's device.

    Both texts share one vocabulary. Everything is sampled on the CPU: no number depends on the device.
    Several texts form a batch, each with the vocabulary and the samples that it would have alone.
    """
    device = choose_device(spec)
    together = texts.together()
    tokens_of_texts = [[one.tokens for one in together]]
    if texts.context_tokens:
        tokens_of_texts.append([one.context_tokens for one in together])
    if draw := SAMPLERS.get(spec.embedding):
        batch = (spec.batch_size,) if spec.batch_size else ()
        shapes = [(*batch, len(tokens[0]), spec.embed_dim) for tokens in tokens_of_texts]
        sampled = [draws.draw_each(draw, [(shape,)] * len(together)) for shape in shapes]
        return [Source(_batched(vectors).to(device), None) for vectors in sampled]
    vocabularies = _vocabularies(spec, texts, draws)
    draws.vocabulary = vocabularies[-1]
    sources = [_looked_up(vocabularies, tokens) for tokens in tokens_of_texts]
    return [Source(source.vectors.to(device), source.token_ids) for source in sources]
