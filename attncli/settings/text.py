"""The settings of a text, and its tokens and word vectors, read before torch is needed."""

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
from attncli.system.files import JSON_SUFFIXES, MEBIBYTE, TEXT_BYTES, line_of, open_file, read_whole
from attncli.system.plain_text import binary_kind, parsed_json

if TYPE_CHECKING:  # help and usage errors do without it
    import numpy as np

SENTENCE = "the cat walks on the street"
CONTEXT = "die katze geht langsam über die straße"
TOKENIZER_HELP = 'words: lower-case, without ,;.!?:"(); whitespace: split as it stands'
FILE_SETTINGS = tuple(kind.setting for kind in readings().values())
"""The settings that name files of something other than text."""
PATH_KEYS = (
    *("file", "texts", "relations", "pairs", "context_file", "embedding", "document"),
    *(*FILE_SETTINGS, "apply"),
)
SAMPLED_EMBEDDINGS = ("random", "gaussian", "integers", "previous")
MAX_NAME = 1000
SAMPLED_LINES = 20
"""How many lines of a vector file say what size its vectors have."""


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
"""The setting `file`, beside `sentence`."""


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
        with open_file(path) as file:
            sample = b"".join(line_of(file, MEBIBYTE) for _ in range(SAMPLED_LINES))
            lines = sample.decode("utf-8-sig").split("\n")
            fields = [line.rstrip().split(" ") for line in lines if line.strip()]
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


class RandomTokensSpec(Spec):
    """Random vectors in place of a text: defined before the text that they leave out."""

    group = "Input"
    needs: ClassVar[Mapping[str, str]] = {"batch_size": "num_tokens"}

    num_tokens: Annotated[Size | None, Everyday("random vectors instead of a text")] = Field(
        None, description="use this many random vectors instead of a sentence"
    )
    batch_size: Size | None = Field(
        None, description="sequences of random vectors, each processed independently"
    )


class SentenceSpec(Spec):
    """A text, given or in a file; SENTENCE where no setting chooses the input."""

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
        description=f"{TOKENIZER_HELP}; model: its own (default: words, or model where there is one)",
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file")


class TextSpec(SentenceSpec, RandomTokensSpec):
    """Tokens and their embeddings."""

    group = "Input"
    heading_keys: ClassVar[tuple[str, ...]] = ("file", "batch_size", "embedding", "embed_dim", "seed")

    embedding: Annotated[str, AfterValidator(check_embedding)] = Field(
        default_factory=lambda data: "gaussian" if data["num_tokens"] else "random",
        description="where vectors come from: random (a table, N(0,1)), gaussian (no vocabulary), integers "
        "(0 to 9), previous (the table of the step before), or the path of a word-vector file",
    )
    unknown: Literal["error", "zero"] = Field(
        "error", description="what to do with a word that the vector file lacks"
    )
    embed_dim: Annotated[Size, Everyday("size of an embedding")] = Field(
        default_factory=_default_embed_dim, description="size of an embedding (a vector file has its own)"
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        text, *others = super().text_sources()
        return text._replace(num_tokens=self.num_tokens), *others

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
            message = (
                f"must be gaussian or integers with `num_tokens`, which has no words (got {self.embedding!r})"
            )
            yield contradiction("embedding", message, "num_tokens")
        if is_vector_file(self.embedding):
            dim = vector_file_dim(Path(self.embedding))
            if self.embed_dim != dim:
                message = f"must be {dim}, as in {self.embedding}, or left out (got {self.embed_dim})"
                yield contradiction("embed_dim", message, "embedding")
        elif self.given("unknown"):
            message = "needs `embedding` to be a word-vector file: sampled vectors know every word"
            yield contradiction("unknown", message, "embedding")


DROPPED = str.maketrans("", "", ',;.!?:"()')

TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": lambda text: text.lower().translate(DROPPED).split(),
    "whitespace": str.split,
}


def read_text(file: str, key: str = "file") -> str:
    """The UTF-8 text of a file, or of standard input for `-`. Raises UserError, at `key`, without it."""
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
    """Whether a text names a file: it has a suffix, and the file exists."""
    return len(value) < MAX_NAME and bool(Path(value).suffix) and Path(value).is_file()


def text_or_file(value: str, key: str) -> str:
    """A text, or that of the file that it names. Raises UserError at `key` for a file that cannot be read."""
    if not names_file(value):
        return value
    return read_text(value, key).strip()


def tokenize(text: str, tokenizer: str, *, key: str) -> list[str]:
    """The tokens of a text. Raises UserError, which names the setting `key`, without any."""
    if isinstance(text, TokenIds):
        raise UserError(f"{key}: token ids are for a model: give `model`, or text")
    if not text.strip():
        raise UserError(f"{key}: {NO_TEXT}")
    tokens = TOKENIZERS[tokenizer](text)
    if not tokens:
        raise UserError(
            f"{key}: no tokens left after punctuation was removed (`tokenizer` whitespace keeps it)"
        )
    return tokens


SHOWN_UNKNOWN = 5
BOM = b"\xef\xbb\xbf"


class WordVectors(NamedTuple):
    """Sorted words and the vector of each, of shape (word, dim)."""

    words: tuple[str, ...]
    table: "np.ndarray"


def _numbers(fields: list[bytes]) -> "np.ndarray | None":
    """float32, infinite where too large for it; None where a field is not a number."""
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
    """The word of a line and its vector, if it is wanted. Raises UserError where the vector is damaged."""
    import numpy as np

    word, *fields = line.rsplit(b" ", dim)
    if len(fields) != dim or word not in wanted:
        # A wanted word comes first: if only numbers follow, their count is wrong; else the word is longer.
        rest = line.split(b" ")[1:]
        if _numbers(rest) is None and len(fields) == dim:
            return None
        raise UserError(f"{path}:{number}: holds {len(rest)} numbers where other lines hold {dim}")
    vector = _numbers(fields)
    if vector is None:
        raise UserError(f"{path}:{number}: is not a word and {dim} numbers")
    if not np.isfinite(vector).all():
        raise UserError(f"{path}:{number}: holds a number that is not finite in float32")
    return word, vector


def _vector_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Every line. Raises UserError for one that is too long to be a word and its vector."""
    number = 1
    try:
        while line := line_of(file, MEBIBYTE):
            yield line
            number += 1
    except OSError as error:
        raise UserError(f"{path}:{number}: cannot be read: {error.strerror}") from None


def find_word_vectors(path: Path, words: Iterable[str], dim: int) -> "dict[str, np.ndarray]":
    """The vectors of the words that the file has. Raises UserError where one of them is damaged.

    Words of the file may hold blanks themselves (`. . .`), so a line is split from the right.
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
    path: Path, tokens: Iterable[str], known: "Mapping[str, np.ndarray]", dim: int, *, unknown: str
) -> WordVectors:
    """The vectors of the tokens' words; a missing one is an error, or zeros with unknown="zero"."""
    import numpy as np

    words = sorted(set(tokens))
    missing = [word for word in words if word not in known]
    if missing and unknown == "error":
        listed = ", ".join(missing[:SHOWN_UNKNOWN]) + (", ..." if len(missing) > SHOWN_UNKNOWN else "")
        raise UserError(f"embedding: {path} has no vector for {listed} (`unknown` zero would take zeros)")
    zeros = np.zeros(dim, dtype=np.float32)
    return WordVectors(tuple(words), np.stack([known.get(word, zeros) for word in words]))


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
    of_files: tuple[tuple[str, str], ...] = ()
    """The name and the text of each of the spec's `other_files`."""
    others: tuple["Texts", ...] = ()
    """Texts of the same counts that run together with this one."""

    def together(self) -> tuple["Texts", ...]:
        """This text and those that run together with it."""
        return (self, *self.others)

    def counts(self) -> tuple[int, int]:
        """The numbers of queries and of keys."""
        return len(self.tokens), len(self.context_tokens or self.tokens)


def check_tokens(spec: Spec, key: str, text: str) -> None:
    """Raise UserError where the spec's tokenizer finds no tokens; a model's tokenizer comes later."""
    if tokenizer := spec.word_tokenizer():
        tokenize(text, tokenizer, key=key)


def explained_token(token: int | str | None, tokens: Sequence[str]) -> int | None:
    """The position of the token whose row is explained. Raises UserError unless it is exactly one."""
    if token is None:
        return None
    name = str(token)
    try:
        positions = token_positions(name, len(tokens), occurrences_among(tokens))
        if positions:
            return the_one_position(name, positions, occurrences_among(tokens))
    except ValueError as error:
        raise UserError(f"token: {error}") from None
    raise UserError(f"token: no token of the text (got {name:.60}){nearest(name, tokens)}")


def read_tokens(spec: Spec) -> Texts:
    """The tokens of a spec's texts; with a model the texts. Raises UserError for unreadable files."""
    sources, tokenizer = spec.text_sources(), spec.word_tokenizer()
    if spec.model_source() is not None:
        text, context = [*map(_text, sources), None, None][:2]
        return Texts(text=text, context=context, of_files=_other_files(spec))
    if tokenizer is None:
        return Texts()
    tokens, context_tokens = [*(_tokens(source, tokenizer) for source in sources), ()][:2]
    explained_token(getattr(spec, "token", None), tokens)
    return Texts(tokens, context_tokens)


def _other_files(spec: Spec) -> tuple[tuple[str, str], ...]:
    return tuple((file, read_text(file, key)) for key, file in spec.other_files())


def _text(source: TextSource) -> str | None:
    """The text of a setting or of a file, which may hold token ids in its place."""
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
    assert text is not None, "without a file or a count there is a text"
    return tuple(tokenize(text, tokenizer, key="file" if source.file is not None else source.key))


def find_vectors(spec: TextSpec, tokens: Iterable[str]) -> "dict[str, np.ndarray]":
    """The vectors that the word-vector file of a spec has for these words."""
    return find_word_vectors(Path(spec.embedding), tokens, spec.embed_dim)


def with_vectors(spec: TextSpec, texts: Texts, known: "Mapping[str, np.ndarray]") -> Texts:
    """The texts with the vectors of their words. Raises UserError for a word without one, unless zeros do."""
    words = (*texts.tokens, *texts.context_tokens)
    vectors = word_vectors(Path(spec.embedding), words, known, spec.embed_dim, unknown=spec.unknown)
    return texts._replace(word_vectors=vectors)


def uses_vector_file(spec: Spec) -> TypeGuard[TextSpec]:
    """Whether the tokens' vectors come from a word-vector file."""
    return isinstance(spec, TextSpec) and is_vector_file(spec.embedding)


def read_texts(spec: Spec) -> Texts:
    """The tokens that a spec names, and vectors from a file. Raises UserError for unreadable files."""
    texts = read_tokens(spec)
    if not uses_vector_file(spec) or texts.text is not None:
        return texts
    return with_vectors(spec, texts, find_vectors(spec, (*texts.tokens, *texts.context_tokens)))


def ids_in_file(name: str, text: str) -> TokenIds | None:
    """The token ids that a file of JSON holds in place of a text; None for one that holds a text.

    Raises ValueError for what is no token id, and for several texts.
    """
    if Path(name).suffix.lower() not in JSON_SUFFIXES:
        return None
    first_line = text.strip().partition("\n")[0]
    for part in (text, first_line):
        try:
            given = parsed_json(part)
        except ValueError:
            continue
        if not isinstance(given, dict) or IDS not in given:
            return None
        if part is not text:
            raise ValueError("holds several lines of token ids: give many texts by `texts`")
        return TokenIds.of({key: value for key, value in given.items() if key not in ("id", "group")})
    return None
