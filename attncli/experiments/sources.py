"""The vectors of an experiment: from its tokens, or drawn, in the order that the lessons draw them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.session import Session
from attncli.experiments.texts import Texts
from attncli.inputs.embeddings import DRAWN, Vocabulary, draw_vocabulary
from attncli.spec import Spec
from attncli.spec.text import TextSpec


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


def _vocabulary(spec: TextSpec, texts: Texts, session: Session) -> Vocabulary:
    if texts.word_vectors is not None:
        return Vocabulary(texts.word_vectors.words, torch.from_numpy(texts.word_vectors.table))
    if spec.embedding == "random":
        words = (*texts.tokens, *texts.context_tokens)
        return draw_vocabulary(words, spec.embed_dim, session.generator)
    # The plan has seen to a step before this one; only where that failed there is no table.
    if session.vocabulary is None or session.vocabulary.table.shape[1] != spec.embed_dim:
        raise UserError(f"embedding: previous has no table of size {spec.embed_dim} from the step before")
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
    session.vocabulary = _vocabulary(spec, texts, session)
    ids = [session.vocabulary.ids(tokens) for tokens in sides]
    return [Source(session.vocabulary.table[rows].to(device), rows) for rows in ids]
