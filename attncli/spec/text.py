"""The settings of an experiment that starts from tokens: a sentence, a file, or random vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from attncli.spec.fields import Contradiction, Size, Spec, TextSource, contradiction
from attncli.spec.vector_file import vector_file_dim

SENTENCE = "the cat walks on the street"
CONTEXT = "die katze geht langsam über die straße"
TOKENIZERS = 'words: lower-case, without ,;.!?:"(); whitespace: split as it stands'
PATH_KEYS = ("file", "texts", "relations", "context_file", "embedding")
ALTERNATIVES = (
    ("sentence", "file", "texts", "relations", "num_tokens"),
    ("context", "context_file", "num_context_tokens"),
)
SAMPLED_EMBEDDINGS = ("random", "gaussian", "integers", "previous")


def check_text(value: str | None) -> str | None:
    if value is not None:
        if not value.strip():
            raise ValueError("must hold at least one token (got an empty text)")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("must be valid UTF-8 text") from None
    return value


def check_file(value: str | None) -> str | None:
    if value is not None and value != "-":
        if not Path(value).exists():
            raise ValueError(f"no such file: {value}")
        if Path(value).is_dir():
            raise ValueError(f"must be a text file (got the directory {value})")
    return value


def is_vector_file(embedding: str) -> bool:
    """Whether the setting `embedding` names a word-vector file rather than a way of sampling."""
    return embedding not in SAMPLED_EMBEDDINGS


def _default_sentence(data: dict[str, Any]) -> str | None:
    return None if data["num_tokens"] or data["file"] else SENTENCE


def _default_embedding(data: dict[str, Any]) -> str:
    return "gaussian" if data["num_tokens"] else "random"


def _default_embed_dim(data: dict[str, Any]) -> int:
    embedding: str = data["embedding"]
    return vector_file_dim(Path(embedding)) if is_vector_file(embedding) else 64


class TextSpec(Spec):
    """Tokens and their embeddings."""

    group = "Input"
    argument = "sentence"
    heading_keys: ClassVar[tuple[str, ...]] = ("file", "batch_size", "embedding", "embed_dim", "seed")

    num_tokens: Size | None = Field(None, description="use this many random vectors instead of a sentence")
    batch_size: Size | None = Field(
        None, description="sequences of random vectors, each processed independently"
    )
    file: str | None = Field(None, description="a text file instead of the sentence; - reads stdin")
    sentence: str | None = Field(default_factory=_default_sentence, description="the text for the queries")
    tokenizer: Literal["words", "whitespace", "model"] = Field("words", description=TOKENIZERS)
    embedding: str = Field(
        default_factory=_default_embedding,
        description="where vectors come from: random (a table, N(0,1)), gaussian (no vocabulary), integers "
        "(0 to 9), previous (the table of the step before), or the path of a word-vector file",
    )
    unknown: Literal["error", "zero"] = Field(
        "error", description="what to do with a word that the vector file lacks"
    )
    embed_dim: Size = Field(
        default_factory=_default_embed_dim, description="size of an embedding (a vector file has its own)"
    )

    _text = field_validator("sentence")(check_text)
    _file = field_validator("file")(check_file)

    @field_validator("embedding")
    @classmethod
    def _embedding_exists(cls, value: str) -> str:
        if is_vector_file(value):
            vector_file_dim(Path(value))
        return value

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file, self.num_tokens),)

    def has_table(self) -> bool:
        return self.embedding not in ("gaussian", "integers")

    def can_run_together(self) -> bool:
        return self.batch_size is None and self.embedding != "previous"

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        for first, second in (("sentence", "file"), ("num_tokens", "sentence"), ("num_tokens", "file")):
            if len(self.given(first, second)) == 2:
                yield contradiction(first, f"cannot be combined with {second}: give one of them", second)
        if self.batch_size and not self.num_tokens:
            yield contradiction("batch_size", "needs num_tokens: only random vectors come in batches")
        if self.num_tokens and self.embedding not in ("gaussian", "integers"):
            message = (
                f"must be gaussian or integers with num_tokens, which has no words (got {self.embedding!r})"
            )
            yield contradiction("embedding", message, "num_tokens")
        if is_vector_file(self.embedding):
            dim = vector_file_dim(Path(self.embedding))
            if self.embed_dim != dim:
                message = f"must be {dim}, as in {self.embedding}, or left out (got {self.embed_dim})"
                yield contradiction("embed_dim", message, "embedding")
        elif self.given("unknown"):
            message = "needs embedding to be a word-vector file: sampled vectors know every word"
            yield contradiction("unknown", message, "embedding")
