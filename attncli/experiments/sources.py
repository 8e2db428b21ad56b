"""The vectors of an experiment: from its tokens, or drawn, in the order that the lessons draw them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.session import Session
from attncli.experiments.texts import Texts
from attncli.inputs.embeddings import DRAWN, Vocabulary, draw_vocabulary
from attncli.inputs.word_vectors import read_word_vectors
from attncli.spec import Spec
from attncli.spec.text import TextSpec, is_vector_file


@dataclass(frozen=True)
class Source:
    """The embedded tokens of one text, and their ids where there is a vocabulary."""

    vectors: Float[Tensor, "*batch token dim"]
    token_ids: Int[Tensor, " token"] | None


def choose_device(spec: Spec) -> torch.device:
    """The device that a spec names; auto is CUDA where there is one. UserError where it is missing."""
    has_cuda = torch.cuda.is_available()
    if spec.device == "cuda" and not has_cuda:
        raise UserError("device: cuda is not available here: use auto or cpu")
    return torch.device("cuda" if spec.device != "cpu" and has_cuda else "cpu")


def _vocabulary(spec: TextSpec, tokens: tuple[str, ...], session: Session) -> Vocabulary:
    if is_vector_file(spec.embedding):
        return read_word_vectors(Path(spec.embedding), tokens, spec.embed_dim, unknown=spec.unknown)
    if spec.embedding == "random":
        return draw_vocabulary(tokens, spec.embed_dim, session.generator)
    if session.vocabulary is None:
        raise UserError("embedding: previous needs a step before it that has a table of words")
    dim = session.vocabulary.table.shape[1]
    if dim != spec.embed_dim:
        raise UserError(f"embed_dim: must be {dim}, as in the step before (got {spec.embed_dim})")
    return session.vocabulary


def embed(spec: TextSpec, texts: Texts, session: Session) -> list[Source]:
    """The vectors of the tokens and, where there are some, of the context tokens, on the spec's device.

    Both texts share one vocabulary. Everything is drawn on the CPU, so that a device changes no number drawn.
    """
    device = choose_device(spec)
    sides = [tokens for tokens in (texts.tokens, texts.context_tokens) if tokens]
    if draw := DRAWN.get(spec.embedding):
        batch = (spec.batch_size,) if spec.batch_size else ()
        shapes = [(*batch, len(tokens), spec.embed_dim) for tokens in sides]
        return [Source(draw(shape, session.generator).to(device), None) for shape in shapes]
    session.vocabulary = _vocabulary(spec, sum(sides, ()), session)
    ids = [session.vocabulary.ids(tokens) for tokens in sides]
    return [Source(session.vocabulary.table[rows].to(device), rows) for rows in ids]
