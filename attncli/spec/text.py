"""The settings of an experiment that starts from tokens: a sentence, a file, or random vectors."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from attncli.spec.fields import Contradictions, Size, Spec, TextSource, contradiction

SENTENCE = "the cat walks on the street"
CONTEXT = "die katze geht langsam über die straße"
TOKENIZERS = 'words: lower-case, without ,;.!?:"(); whitespace: split as it stands'
PATH_KEYS = ("file", "texts", "relations", "context_file", "embedding")
ALTERNATIVES = (
    ("sentence", "file", "texts", "relations", "num_tokens"),
    ("context", "context_file", "num_context_tokens"),
)
SAMPLED_EMBEDDINGS = ("random", "gaussian", "integers", "previous")
SAMPLED_LINES = 20
"""How many lines of a vector file say what size its vectors have."""


def check_text(value: str) -> str:
    if not value.strip():
        raise ValueError("must hold at least one token (got an empty text)")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("must be valid UTF-8 text") from None
    return value


def check_file(value: str) -> str:
    if value != "-" and not Path(value).exists():
        raise ValueError(f"no such file: {value}")
    if value != "-" and Path(value).is_dir():
        raise ValueError(f"must be a text file (got the directory {value})")
    return value


def check_embedding(value: str) -> str:
    if is_vector_file(value):
        vector_file_dim(Path(value))
    return value


Text = Annotated[str, AfterValidator(check_text)]
FileName = Annotated[str, AfterValidator(check_file)]
"""The name of a text file, or - for stdin."""


def is_vector_file(embedding: str) -> bool:
    """Whether the setting `embedding` names a word-vector file rather than a way of sampling."""
    return embedding not in SAMPLED_EMBEDDINGS


def _trailing_numbers(fields: list[str]) -> int:
    """How many numbers end a line; the rest is the word, which may hold blanks and look like a number."""
    count = 0
    for field in reversed(fields[1:]):
        try:
            float(field)
        except ValueError:
            break
        count += 1
    return count


def vector_file_dim(path: Path) -> int:
    """Numbers on a line of a GloVe file (`word v1 v2 ...`), so that embed_dim needs not be given.

    A word may itself end in numbers, so the shortest of the first lines counts. ValueError where the file
    cannot be read or its first lines are no word vectors.
    """
    if not path.exists():
        raise ValueError(f"no such file: {path} (or one of random, gaussian, integers, previous)")
    if not path.is_file():
        raise ValueError(f"must be a word-vector file (got {path}, which is not one)")
    try:
        with path.open(encoding="utf-8-sig") as lines:
            fields = [line.rstrip().split(" ") for line in islice(lines, SAMPLED_LINES) if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8 text (got {path}, byte {error.start} is not)") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {error.strerror}") from None
    if len(fields) > 1 and len(fields[0]) == 2 and len(fields[1]) != 2:
        raise ValueError(f"{path}: the first line is a word2vec header, not a word and its vector: remove it")
    dim = min(map(_trailing_numbers, fields), default=0)
    if dim < 1:
        raise ValueError(f"{path}: is not a word-vector file: its lines must be a word and numbers")
    return dim


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
    file: FileName | None = Field(None, description="a text file instead of the sentence; - reads stdin")
    sentence: Text | None = Field(
        default_factory=lambda data: None if data["num_tokens"] or data["file"] else SENTENCE,
        description="the text for the queries",
    )
    tokenizer: Literal["words", "whitespace", "model"] = Field("words", description=TOKENIZERS)
    embedding: Annotated[str, AfterValidator(check_embedding)] = Field(
        default_factory=lambda data: "gaussian" if data["num_tokens"] else "random",
        description="where vectors come from: random (a table, N(0,1)), gaussian (no vocabulary), integers "
        "(0 to 9), previous (the table of the step before), or the path of a word-vector file",
    )
    unknown: Literal["error", "zero"] = Field(
        "error", description="what to do with a word that the vector file lacks"
    )
    embed_dim: Size = Field(
        default_factory=_default_embed_dim, description="size of an embedding (a vector file has its own)"
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file, self.num_tokens),)

    def word_tokenizer(self) -> str | None:
        return None if self.tokenizer == "model" else self.tokenizer

    def table_dim(self) -> int | None:
        return None if self.embedding in ("gaussian", "integers") else self.embed_dim

    def can_run_together(self) -> bool:
        return self.batch_size is None and self.embedding != "previous"

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for first, second in (("sentence", "file"), ("num_tokens", "sentence"), ("num_tokens", "file")):
            yield from self.conflicts(first, second)
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
