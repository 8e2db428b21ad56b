"""The tokens of an experiment, read before torch is needed."""

from pathlib import Path
from typing import NamedTuple

from attncli.inputs.text import read_text, tokenize
from attncli.inputs.word_vectors import WordVectors, read_word_vectors
from attncli.spec import Spec
from attncli.spec.attention import AttentionSpec, CrossSpec
from attncli.spec.heads import HeadsSpec
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

    def counts(self) -> tuple[int, int]:
        """The numbers of queries and of keys."""
        return len(self.tokens), len(self.context_tokens or self.tokens)


def _tokens(
    spec: TextSpec, key: str, text: str | None, file: str | None, count: int | None
) -> tuple[str, ...]:
    if count is not None:
        return tuple(f"x{i}" for i in range(count))
    if file is not None:
        return tuple(tokenize(read_text(file), spec.tokenizer, key="file"))
    assert text is not None, "without a file or a count there is a text"
    return tuple(tokenize(text, spec.tokenizer, key=key))


def check_text(spec: Spec, key: str, text: str) -> None:
    """UserError where the spec's tokenizer leaves nothing of a text; a model's own comes later."""
    if isinstance(spec, TextSpec) and spec.tokenizer != "model":
        tokenize(text, spec.tokenizer, key=key)


def drawn_counts(spec: Spec) -> tuple[int, int]:
    """The numbers of random queries and keys that a spec asks for; zeros where it names texts."""
    if not isinstance(spec, TextSpec) or spec.num_tokens is None:
        return 0, 0
    num_keys = spec.num_context_tokens if isinstance(spec, CrossSpec) else None
    return spec.num_tokens, num_keys or spec.num_tokens


def _whole_text(text: str | None, file: str | None) -> str | None:
    return text if file is None else read_text(file)


def read_texts(spec: Spec) -> Texts:
    """The tokens that a spec names, and vectors from a file; UserError for what cannot be read.

    With a model the texts as they are.
    """
    if isinstance(spec, HeadsSpec):
        return Texts(text=_whole_text(spec.sentence, spec.file), context=spec.context)
    if isinstance(spec, AttentionSpec) and spec.model is not None:
        text = _whole_text(spec.sentence, spec.file)
        if isinstance(spec, CrossSpec):
            return Texts(text=text, context=_whole_text(spec.context, spec.context_file))
        return Texts(text=text)
    if not isinstance(spec, TextSpec):
        return Texts()
    tokens = _tokens(spec, "sentence", spec.sentence, spec.file, spec.num_tokens)
    context: tuple[str, ...] = ()
    if isinstance(spec, CrossSpec):
        context = _tokens(spec, "context", spec.context, spec.context_file, spec.num_context_tokens)
    if not is_vector_file(spec.embedding):
        return Texts(tokens, context)
    words = (*tokens, *context)
    vectors = read_word_vectors(Path(spec.embedding), words, spec.embed_dim, unknown=spec.unknown)
    return Texts(tokens, context, vectors)
