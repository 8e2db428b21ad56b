"""The settings for a text, its tokens and its word vectors, which are read before torch is imported."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeGuard

from pydantic import AfterValidator, Field

from attncli.core.names import occurrences_among, the_one_position, token_positions
from attncli.errors import NO_TEXT, UserError, nearest
from attncli.index import readings
from attncli.records.arguments import NonBlankText
from attncli.records.token_ids import IDS, TokenIds
from attncli.settings.fields import Contradictions, Everyday, Size, Spec, TextSource, contradiction
from attncli.system.files import JSON_SUFFIXES, MEBIBYTE, TEXT_BYTES, next_line, open_file, read_whole
from attncli.system.plain_text import binary_kind, parsed_json

if TYPE_CHECKING:  # not imported for help and usage errors
    import numpy as np

SENTENCE = "the cat walks on the street"
CONTEXT = "die katze geht langsam über die straße"
TOKENIZER_HELP = 'words: lower-case, without ,;.!?:"(); whitespace: split only at whitespace'
FILE_SETTINGS = tuple(kind.setting for kind in readings().values())
"""Settings that name files other than text."""
PATH_KEYS = (
    *("file", "texts", "relations", "pairs", "context_file", "embedding", "document"),
    *(*FILE_SETTINGS, "apply"),
)
SAMPLED_EMBEDDINGS = ("random", "gaussian", "integers", "previous")
MAX_NAME = 1000
SAMPLED_LINES = 20
"""The number of lines that determine the dimension of a vector file."""


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


Text = NonBlankText
TextPath = Annotated[str, AfterValidator(check_file)]
"""The name of a text file, or - for stdin."""
IN_FILE = Everyday("a text file; - reads stdin")
FileOfText = Annotated[
    TextPath | None, IN_FILE, Field(description="a text file instead of the sentence; - reads stdin")
]
"""The setting `file`, an alternative to `sentence`."""


def is_vector_file(embedding: str) -> bool:
    """Return True if `embedding` names a file of word vectors rather than a way of sampling."""
    return embedding not in SAMPLED_EMBEDDINGS


def _trailing_numbers(fields: list[str]) -> int:
    """Count the numbers at the end of a line; the word before may contain spaces or look like a number."""
    count = 0
    for field in reversed(fields[1:]):
        try:
            float(field)
        except ValueError:
            break
        count += 1
    return count


def vector_file_dim(path: Path) -> int:
    """Return the dimension of the vectors in a GloVe file (`word v1 v2 ...`).

    A word may itself end in numbers, so the shortest of the first lines determines the dimension. Raises
    ValueError if the file cannot be read or its first lines are not word vectors.
    """
    if not path.exists():
        raise ValueError(f"no such file: {path} (or one of random, gaussian, integers, previous)")
    if not path.is_file():
        raise ValueError(f"must be a word-vector file (got {path})")
    try:
        with open_file(path) as file:
            sample = b"".join(next_line(file, MEBIBYTE) for _ in range(SAMPLED_LINES))
            lines = sample.decode("utf-8-sig").split("\n")
            fields = [line.rstrip().split(" ") for line in lines if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8 text (got {path}, byte {error.start} is not)") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {error.strerror}") from None
    if len(fields) > 1 and len(fields[0]) == 2 and len(fields[1]) != 2:
        header = "a word2vec header, not a word and its vector: remove that line"
        raise ValueError(f"{path}: the first line is {header}")
    dim = min(map(_trailing_numbers, fields), default=0)
    if dim < 1:
        raise ValueError(f"{path}: is not a word-vector file: its lines must be a word and numbers")
    return dim


def _default_embed_dim(data: dict[str, Any]) -> int:
    embedding: str = data["embedding"]
    return vector_file_dim(Path(embedding)) if is_vector_file(embedding) else 64


class RandomTokensSpec(Spec):
    """Random vectors in place of a text.

    The class is defined before the text settings, because their defaults depend on it.
    """

    group = "Input"
    needs: ClassVar[Mapping[str, str]] = {"batch_size": "num_tokens"}

    num_tokens: Annotated[Size | None, Everyday("use this many random vectors instead of text")] = Field(
        None, description="use this many random vectors instead of a sentence"
    )
    batch_size: Size | None = Field(
        None, description="number of sequences of random vectors, processed independently"
    )


class SentenceSpec(Spec):
    """A text from the command line or a file; SENTENCE if no setting chooses the input."""

    group = "Input"
    argument = "sentence"

    file: FileOfText = None
    sentence: Annotated[Text | None, Everyday()] = Field(
        default_factory=lambda data: (
            None if any(data.get(key) for key in ("num_tokens", "file", *FILE_SETTINGS)) else SENTENCE
        ),
        description="the text for the queries",
    )
    tokenizer: Literal["words", "whitespace", "model"] = Field(
        default_factory=lambda data: "model" if data.get("model") else "words",
        description=f"{TOKENIZER_HELP}; model: the model's own (default: model with a model, else words)",
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file")


class TextSpec(SentenceSpec, RandomTokensSpec):
    """The tokens and their embeddings."""

    group = "Input"
    heading_keys: ClassVar[tuple[str, ...]] = ("file", "batch_size", "embedding", "embed_dim", "seed")

    embedding: Annotated[str, AfterValidator(check_embedding)] = Field(
        default_factory=lambda data: "gaussian" if data["num_tokens"] else "random",
        description="source of the vectors: random (a table, N(0,1)), gaussian (no vocabulary), integers "
        "(0 to 9), previous (the table of the previous step), or the path of a word-vector file",
    )
    unknown: Literal["error", "zero"] = Field(
        "error", description="what to do with a word missing from the vector file"
    )
    embed_dim: Annotated[Size, Everyday("size of an embedding")] = Field(
        default_factory=_default_embed_dim,
        description="size of an embedding (default: 64, or that of the vector file)",
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        text, *further = super().text_sources()
        return text._replace(num_tokens=self.num_tokens), *further

    def word_tokenizer(self) -> str | None:
        return None if self.tokenizer == "model" else self.tokenizer

    def table_dim(self) -> int | None:
        return None if self.embedding in ("gaussian", "integers") else self.embed_dim

    def can_run_together(self) -> bool:
        return self.batch_size is None and self.embedding != "previous" and not self.given("explain")

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for text in ("sentence", "file"):
            yield from self.conflicts("num_tokens", text)
        if self.num_tokens and self.embedding not in ("gaussian", "integers"):
            why = f"because random vectors have no words (got {self.embedding!r})"
            message = f"must be gaussian or integers with `num_tokens`, {why}"
            yield contradiction("embedding", message, "num_tokens")
        if is_vector_file(self.embedding):
            dim = vector_file_dim(Path(self.embedding))
            if self.embed_dim != dim:
                message = f"must be {dim}, as in {self.embedding}, or left out (got {self.embed_dim})"
                yield contradiction("embed_dim", message, "embedding")
        elif self.given("unknown"):
            message = "needs `embedding` to be a word-vector file: sampled vectors cover every word"
            yield contradiction("unknown", message, "embedding")


DROPPED = str.maketrans("", "", ',;.!?:"()')

TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": lambda text: text.lower().translate(DROPPED).split(),
    "whitespace": str.split,
}


def read_text(file: str, key: str = "file") -> str:
    """Return the UTF-8 text of a file, or of standard input for `-`. Raises UserError that names `key`."""
    try:
        if file == "-" and sys.stdin is None:
            raise UserError(f"{key}: standard input is closed")
        data = read_whole(file, TEXT_BYTES, may_be_pipe=True)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{key}: cannot be read: {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        wrong = binary_kind(data) or f"is not UTF-8 text (byte {error.start})"
        raise UserError(f"{key}: {file} {wrong}") from None


def names_file(value: str) -> bool:
    """Return True if a string is the name of an existing file with a suffix."""
    return len(value) < MAX_NAME and bool(Path(value).suffix) and Path(value).is_file()


def text_or_file(value: str, key: str) -> str:
    """Return the text, or the contents of the file that it names. Raises UserError for an unreadable file."""
    if not names_file(value):
        return value
    return read_text(value, key).strip()


def tokenize(text: str, tokenizer: str, *, key: str) -> list[str]:
    """Return the tokens of a text. Raises UserError, naming the setting `key`, if there are none."""
    if isinstance(text, TokenIds):
        raise UserError(f"{key}: token ids need `model`: give a model, or a text")
    if not text.strip():
        raise UserError(f"{key}: {NO_TEXT}")
    tokens = TOKENIZERS[tokenizer](text)
    if not tokens:
        raise UserError(
            f"{key}: no tokens left after punctuation was removed (use `tokenizer` whitespace to keep it)"
        )
    return tokens


MAX_LISTED_WORDS = 5
BOM = b"\xef\xbb\xbf"


class WordVectors(NamedTuple):
    """Sorted words and their vectors, of shape (word, dim)."""

    words: tuple[str, ...]
    table: "np.ndarray"


def _numbers(fields: list[bytes]) -> "np.ndarray | None":
    """Parse numbers as float32, which may be infinite. Return None if a field is not a number."""
    import numpy as np

    try:
        wide = np.array(fields, dtype=np.float64)
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        return wide.astype(np.float32)


def _vector(
    path: Path, number: int, line: bytes, wanted: set[bytes], dim: int
) -> "tuple[bytes, np.ndarray] | None":
    """Return the word and vector of a line if the word is wanted. Raises UserError for an invalid vector."""
    import numpy as np

    word, *fields = line.rsplit(b" ", dim)
    if len(fields) != dim or word not in wanted:
        # The first word is wanted: either the count of numbers after it is wrong, or the word is longer.
        values = line.split(b" ")[1:]
        if _numbers(values) is None and len(fields) == dim:
            return None
        raise UserError(f"{path}:{number}: must have {dim} numbers, like the other lines (got {len(values)})")
    vector = _numbers(fields)
    if vector is None:
        raise UserError(f"{path}:{number}: is not a word and {dim} numbers")
    if not np.isfinite(vector).all():
        raise UserError(f"{path}:{number}: holds a number that is not finite in float32")
    return word, vector


def _vector_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines of a vector file. Raises UserError if a line is too long."""
    number = 1
    try:
        while line := next_line(file, MEBIBYTE):
            yield line
            number += 1
    except OSError as error:
        raise UserError(f"{path}:{number}: cannot be read: {error.strerror}") from None


def find_word_vectors(path: Path, words: Iterable[str], dim: int) -> "dict[str, np.ndarray]":
    """Return the vectors that the file has for these words. Raises UserError for an invalid vector.

    Words in the file may contain spaces (`. . .`), so lines are split from the right.
    """
    missing = {word.encode() for word in words}
    vectors: dict[str, np.ndarray] = {}
    with open_file(path) as lines:
        for number, line in enumerate(_vector_lines(lines, path), 1):
            line = line.removeprefix(BOM) if number == 1 else line
            if line.partition(b" ")[0] in missing:
                read = _vector(path, number, line.rstrip(), missing, dim)
                if read is not None:
                    vectors[read[0].decode()] = read[1]
                    missing.remove(read[0])
                if not missing:
                    break
    return vectors


def word_vectors(
    path: Path, tokens: Iterable[str], vectors: "Mapping[str, np.ndarray]", dim: int, *, unknown: str
) -> WordVectors:
    """Return the vectors of the tokens' words; a missing word is an error, or zeros with unknown="zero"."""
    import numpy as np

    words = sorted(set(tokens))
    missing = [word for word in words if word not in vectors]
    if missing and unknown == "error":
        listed = ", ".join(missing[:MAX_LISTED_WORDS]) + (", ..." if len(missing) > MAX_LISTED_WORDS else "")
        raise UserError(f"embedding: {path} has no vector for {listed} (use `unknown` zero for zeros)")
    zeros = np.zeros(dim, dtype=np.float32)
    return WordVectors(tuple(words), np.stack([vectors.get(word, zeros) for word in words]))


class Texts(NamedTuple):
    """The tokens of queries and, in cross-attention, of keys and values; random tokens are x0, x1, ...

    With a pretrained model it holds the texts instead, which the model's tokenizer splits later.
    """

    tokens: tuple[str, ...] = ()
    context_tokens: tuple[str, ...] = ()
    word_vectors: WordVectors | None = None
    text: str | None = None
    context: str | None = None
    token_spelling: str | None = None
    """How the model's vocabulary spells a blank, for `readable_token`."""
    named_texts: tuple[tuple[str, str], ...] = ()
    """The name and text of each file in the Spec's `other_files`."""
    others: tuple["Texts", ...] = ()
    """Texts with the same numbers of tokens that run together with this text."""

    def together(self) -> tuple["Texts", ...]:
        """Return this text and the texts that run together with it."""
        return (self, *self.others)

    def counts(self) -> tuple[int, int]:
        """Return the number of queries and the number of keys."""
        return len(self.tokens), len(self.context_tokens or self.tokens)


def check_tokens(spec: Spec, key: str, text: str) -> None:
    """Raise UserError if the Spec's tokenizer finds no tokens; a model's tokenizer is not checked."""
    if tokenizer := spec.word_tokenizer():
        tokenize(text, tokenizer, key=key)


def explained_token(token: int | str | None, tokens: Sequence[str]) -> int | None:
    """Return the position of the token to explain. Raises UserError unless exactly one token matches."""
    if token is None:
        return None
    name = str(token)
    try:
        positions = token_positions(name, len(tokens), occurrences_among(tokens))
        if positions:
            return the_one_position(name, positions, occurrences_among(tokens))
    except ValueError as error:
        raise UserError(f"token: {error}") from None
    raise UserError(f"token: must be a token of the text (got {name:.60}){nearest(name, tokens)}")


def read_tokens(spec: Spec) -> Texts:
    """Return the tokens of a Spec's texts, or a model's texts. Raises UserError for unreadable files."""
    sources, tokenizer = spec.text_sources(), spec.word_tokenizer()
    if spec.model_source() is not None:
        text, context = [*map(_text, sources), None, None][:2]
        return Texts(text=text, context=context, named_texts=_other_files(spec))
    if tokenizer is None:
        return Texts()
    tokens, context_tokens = [*(_tokens(source, tokenizer) for source in sources), ()][:2]
    explained_token(getattr(spec, "token", None), tokens)
    return Texts(tokens, context_tokens)


def _other_files(spec: Spec) -> tuple[tuple[str, str], ...]:
    return tuple((file, read_text(file, key)) for key, file in spec.other_files())


def _text(source: TextSource) -> str | None:
    """Return the text of a setting or file, or the token ids that the file holds instead of a text."""
    if source.file is None:
        return source.text
    text = read_text(source.file)
    try:
        return ids_in_file(source.file, text) or text
    except ValueError as error:
        raise UserError(f"file: {source.file}: {error}") from None


def _tokens(source: TextSource, tokenizer: str) -> tuple[str, ...]:
    if source.num_tokens is not None:
        return tuple(f"x{i}" for i in range(source.num_tokens))
    text = _text(source)
    assert text is not None, "a source without a file or count has a text"
    return tuple(tokenize(text, tokenizer, key="file" if source.file is not None else source.key))


def find_vectors(spec: TextSpec, tokens: Iterable[str]) -> "dict[str, np.ndarray]":
    """Return the vectors that the Spec's word-vector file has for these words."""
    return find_word_vectors(Path(spec.embedding), tokens, spec.embed_dim)


def with_vectors(spec: TextSpec, texts: Texts, file_vectors: "Mapping[str, np.ndarray]") -> Texts:
    """Return the texts with their word vectors. Raises UserError for a missing word if `unknown` is error."""
    words = (*texts.tokens, *texts.context_tokens)
    vectors = word_vectors(Path(spec.embedding), words, file_vectors, spec.embed_dim, unknown=spec.unknown)
    return texts._replace(word_vectors=vectors)


def uses_vector_file(spec: Spec) -> TypeGuard[TextSpec]:
    """Return True if the tokens' vectors come from a word-vector file."""
    return isinstance(spec, TextSpec) and is_vector_file(spec.embedding)


def read_texts(spec: Spec) -> Texts:
    """Return the tokens of a Spec and any vectors from a file. Raises UserError for unreadable files."""
    texts = read_tokens(spec)
    if not uses_vector_file(spec) or texts.text is not None:
        return texts
    return with_vectors(spec, texts, find_vectors(spec, (*texts.tokens, *texts.context_tokens)))


def ids_in_file(name: str, text: str) -> TokenIds | None:
    """Return the token ids in a JSON file, or None if the file contains text.

    Raises ValueError for invalid token ids and for several texts.
    """
    if Path(name).suffix.lower() not in JSON_SUFFIXES:
        return None
    first_line = text.strip().partition("\n")[0]
    for part in (text, first_line):
        try:
            content = parsed_json(part)
        except ValueError:
            continue
        if not isinstance(content, dict) or IDS not in content:
            return None
        if part is not text:
            raise ValueError("holds several lines of token ids: use `texts` for many texts")
        return TokenIds.of({key: value for key, value in content.items() if key not in ("id", "group")})
    return None
