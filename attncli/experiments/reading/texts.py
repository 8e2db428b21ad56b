"""The tokens of an experiment, read before torch is needed."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np

from attncli.errors import UserError
from attncli.inputs.text import read_text, tokenize
from attncli.inputs.word_vectors import WordVectors, find_word_vectors, word_vectors
from attncli.spec.fields import Spec, TextSource
from attncli.spec.text import TextSpec, is_vector_file


class Texts(NamedTuple):
    """Tokens for the queries and, in cross-attention, for the keys and values; random ones are x0, x1, ...

    With a pretrained model the texts themselves: its tokenizer comes later.
    """

    tokens: tuple[str, ...] = ()
    context_tokens: tuple[str, ...] = ()
    word_vectors: WordVectors | None = None
    text: str | None = None
    context: str | None = None
    token_spelling: str | None = None
    """How a model's vocabulary writes a blank, as `readable_token` takes it."""
    others: tuple["Texts", ...] = ()
    """Texts of the same counts that run together with this one."""

    def together(self) -> tuple["Texts", ...]:
        """This text and those that run together with it."""
        return (self, *self.others)

    def counts(self) -> tuple[int, int]:
        """The numbers of queries and of keys."""
        return len(self.tokens), len(self.context_tokens or self.tokens)


def check_text(spec: Spec, key: str, text: str) -> None:
    """UserError where the spec's tokenizer leaves no tokens of a text; a model's own comes later."""
    if tokenizer := spec.word_tokenizer():
        tokenize(text, tokenizer, key=key)


def check_token(token: int | None, count: int) -> None:
    """UserError where the token to explain is not among that many."""
    if token is not None and token >= count:
        raise UserError(f"token: must be below {count}, the number of tokens (got {token})")


def read_tokens(spec: Spec) -> Texts:
    """The tokens of a spec's texts; with a model the texts as they are. UserError for what cannot be read."""
    sources, tokenizer = spec.text_sources(), spec.word_tokenizer()
    if spec.model_source() is not None:
        text, context = [*map(_text, sources), None][:2]
        return Texts(text=text, context=context)
    if tokenizer is None:
        return Texts()
    tokens, context_tokens = [*(_tokens(source, tokenizer) for source in sources), ()][:2]
    check_token(getattr(spec, "token", None), len(tokens))
    return Texts(tokens, context_tokens)


def _text(source: TextSource) -> str | None:
    return source.text if source.file is None else read_text(source.file)


def _tokens(source: TextSource, tokenizer: str) -> tuple[str, ...]:
    if source.num_tokens is not None:
        return tuple(f"x{i}" for i in range(source.num_tokens))
    text = _text(source)
    assert text is not None, "without a file or a count there is a text"
    return tuple(tokenize(text, tokenizer, key="file" if source.file is not None else source.key))


def find_vectors(spec: TextSpec, tokens: Iterable[str]) -> dict[str, np.ndarray]:
    """The vectors that the word-vector file of a spec has for these words."""
    return find_word_vectors(Path(spec.embedding), tokens, spec.embed_dim)


def with_vectors(spec: TextSpec, texts: Texts, found: Mapping[str, np.ndarray]) -> Texts:
    """The texts with the vectors of their words; UserError for a word without one, unless that is zeros."""
    words = (*texts.tokens, *texts.context_tokens)
    vectors = word_vectors(Path(spec.embedding), words, found, spec.embed_dim, unknown=spec.unknown)
    return texts._replace(word_vectors=vectors)


def uses_vector_file(spec: Spec) -> TypeGuard[TextSpec]:
    """Whether the tokens' vectors come from a word-vector file."""
    return isinstance(spec, TextSpec) and is_vector_file(spec.embedding)


def read_texts(spec: Spec) -> Texts:
    """The tokens that a spec names, and vectors from a file; UserError for what cannot be read."""
    texts = read_tokens(spec)
    if not uses_vector_file(spec) or texts.text is not None:
        return texts
    return with_vectors(spec, texts, find_vectors(spec, (*texts.tokens, *texts.context_tokens)))
