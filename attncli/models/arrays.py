"""Text files and array files (.npy, .npz, .safetensors, .pt) from other tools, read without running code.

The arrays hold weights from another tool, and the texts hold their tokens.
"""

import math
import re
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.core.process import quiet_warnings
from attncli.errors import UserError, nearest
from attncli.models.weight_headers import TensorInFile, safetensors_header, tensors_and_end
from attncli.records.values import NamedTensor
from attncli.system.files import MOST_UNPACKED, STDIN, TEXT_BYTES, check_file, most_unpacked, read_whole
from attncli.system.plain_text import binary_kind, parsed_json

if TYPE_CHECKING:
    from attncli.models.pickled_weights import PickledArrays


def checked_size(file: str, *, may_be_pipe: bool = False) -> int:
    """Return the size of a regular file in bytes, or 0 for a pipe.

    Raises UserError if there is nothing to read.
    """
    try:
        return check_file(file, may_be_pipe=may_be_pipe).st_size
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{file}: is a directory, not a file") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None


def refuse_size(name: str, needed: int, most_bytes: int | None) -> None:
    """Raise UserError if reading takes more memory than is free."""
    if most_bytes is not None and needed > most_bytes:
        sizes = f"{needed / 1e9:.3g} GB of memory, but only {most_bytes / 1e9:.3g} GB is free"
        raise UserError(f"{name}: needs about {sizes}")


def read_text(file: str, *, most_bytes: int | None = None, bytes_each: int = 1) -> tuple[str, str]:
    """Return the text of a file, or of standard input for `-`, and the file's name for error messages.

    A file that would need more than `most_bytes`, at `bytes_each` per byte of text, is refused without
    reading it.
    """
    if file == STDIN:
        if sys.stdin is None:
            raise UserError("standard input is closed: pass a file name instead")
        name = "standard input"
    else:
        refuse_size(file, checked_size(file, may_be_pipe=True) * bytes_each, most_bytes)
        name = file
    try:
        most = TEXT_BYTES if most_bytes is None else most_bytes // bytes_each
        content = read_whole(file, most, may_be_pipe=True)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = f"is not UTF-8 text (byte 0x{content[error.start]:02x} in line {line})"
        raise UserError(f"{name}: {binary_kind(content) or wrong}") from None


MOST_LISTED = 20
# In safetensors files, numbers are little-endian; a bfloat16 is the upper half of a float32.
SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip
METADATA = "__metadata__"
REPORT = "report"
"""The entry that holds the rest of a report as JSON if its numbers are saved as arrays."""
# The errors that zipfile, numpy and struct raise for a damaged file.
DAMAGE = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, EOFError, OverflowError,
    RecursionError, MemoryError, NotImplementedError, RuntimeError, OSError,
    struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip


class NoSuchArray(UserError):
    """The file has no array with the requested name."""


@contextmanager
def _damage(file: str, kind: str) -> Iterator[None]:
    """Report any failure inside the block as damage to the file, and suppress warnings about old files."""
    try:
        with quiet_warnings():
            yield
    except UserError:
        raise
    except DAMAGE:
        raise UserError(f"{file}: is not a {kind} file, or is damaged") from None


def listed_names(names: Collection[str]) -> str:
    """Return the first names, separated by commas."""
    return ", ".join(list(names)[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "")


def _chosen(file: str, names: Collection[str], name: str | None) -> str:
    """Return the requested name, or the file's only name."""
    if name is None and len(names) == 1:
        return next(iter(names))
    if not names:
        raise UserError(f"{file}: contains no arrays")
    listed = listed_names(names)
    if name is None:
        raise UserError(f"{file}: contains {len(names)} arrays: choose one with --array NAME: {listed}")
    if name not in names:
        raise NoSuchArray(f"--array: {file} has no array {name}, but it has {listed}{nearest(name, names)}")
    return name


def _stored(
    stream: IO[bytes] | zipfile.ZipExtFile,
    file: str,
    size: int,
    most_bytes: int | None,
    kinds: str = "fiub",
) -> np.ndarray:
    """Return the array in a .npy stream of `size` bytes. Raises UserError for a dtype of another kind."""
    format = np.lib.format
    is_first = format.read_magic(stream) == (1, 0)
    header = format.read_array_header_1_0 if is_first else format.read_array_header_2_0
    shape, _, dtype = header(stream)
    if dtype.hasobject:
        raise UserError(
            f"{file}: contains Python objects, which can run code when they are read: save only numbers"
        )
    if dtype.kind not in kinds:
        raise UserError(f"{file}: must be an array of real numbers (got {dtype})")
    # numpy's reader allocates the memory that a header specifies before it reads any data.
    needed = math.prod(shape) * dtype.itemsize
    if any(length < 0 for length in shape):
        raise ValueError("a negative size")
    if needed > size - stream.tell():
        raise UserError(f"{file}: is truncated: its header specifies {needed} bytes")
    refuse_size(file, _needed_to_read(math.prod(shape), dtype), most_bytes)
    stream.seek(0)
    return np.asarray(format.read_array(stream, allow_pickle=False))


def _read_npy(file: str, name: str | None, most_bytes: int | None) -> np.ndarray:
    if name is not None:
        raise UserError(f"--array: {file} contains a single array, which has no name: omit --array")
    with Path(file).open("rb") as stream:
        return _stored(stream, file, Path(file).stat().st_size, most_bytes)


@contextmanager
def _opened_npz(file: str) -> Iterator[zipfile.ZipFile]:
    """Return the zip file. Raises UserError if its arrays take far more memory than the size of the file."""
    with zipfile.ZipFile(file) as archive:
        size, unpacked = Path(file).stat().st_size, sum(part.file_size for part in archive.infolist())
        if unpacked > most_unpacked(size):
            sizes = f"{unpacked / 1e6:,.0f} MB, more than {MOST_UNPACKED} times its size"
            raise UserError(f"{file}: unpacks to {sizes}: save its arrays uncompressed, with numpy.savez")
        yield archive


def _read_npz(file: str, name: str | None, most_bytes: int | None, kinds: str = "fiub") -> np.ndarray:
    with _opened_npz(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        arrays = {key: info for key, info in members.items() if info.filename.endswith(".npy")}
        info = arrays[_chosen(file, arrays, name)]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("compression that numpy does not use")
        with archive.open(info) as stream:
            return _stored(stream, file, info.file_size, most_bytes, kinds)


def _needed_to_read(count: int, dtype: np.dtype) -> int:
    """Return the bytes needed for numbers as stored plus their conversion to float32 or float64."""
    return count * (dtype.itemsize + (4 if dtype.kind == "f" and dtype.itemsize <= 4 else 8))


# The safetensors package is optional for attn, and its numpy arrays are never bfloat16.
def _safetensors(file: str) -> tuple[dict[str, TensorInFile], Mapping[str, Any]]:
    """Return the tensors and the metadata of a safetensors file."""
    size = Path(file).stat().st_size
    with Path(file).open("rb") as stream:
        header, begin = safetensors_header(stream, size)
    tensors, end = tensors_and_end(header, begin)
    if end > size:
        raise UserError(f"{file}: is truncated: its header specifies {end} bytes")
    return tensors, header.get(METADATA, {})


def _pickled(file: str) -> "PickledArrays":
    from attncli.models.pickled_weights import pickled_arrays  # this imports torch, but only for these files

    return pickled_arrays(Path(file))


def _tensors_in_file(file: str) -> Mapping[str, TensorInFile]:
    return _safetensors(file)[0] if file.lower().endswith(".safetensors") else _pickled(file).tensors


def _read_tensor(file: str, name: str | None, most_bytes: int | None) -> np.ndarray:
    """Read one tensor from its place in a safetensors file or in a file written by torch.save."""
    tensors = _tensors_in_file(file)
    about = tensors[_chosen(file, tensors, name)]
    if about.kind not in SAFETENSORS:
        raise UserError(f"{file}: has type {about.kind!s:.20}: must be one of {', '.join(SAFETENSORS)}")
    dtype, shape, strides = np.dtype(SAFETENSORS[str(about.kind)]), about.shape, about.strides
    span = count = math.prod(shape)
    if strides is not None:
        span = 1 + sum((axis - 1) * stride for axis, stride in zip(shape, strides, strict=True))
    refuse_size(file, _needed_to_read(max(span, count), dtype), most_bytes)
    with Path(file).open("rb") as stream:
        stream.seek(about.begin)
        numbers = np.frombuffer(stream.read(span * dtype.itemsize), dtype=dtype)
    if strides is not None:
        steps = [stride * dtype.itemsize for stride in strides]
        numbers = np.lib.stride_tricks.as_strided(numbers, shape, steps)
    numbers = numbers.reshape(shape)
    return (numbers.astype(np.uint32) << 16).view(np.float32) if about.kind == "BF16" else numbers


READERS: dict[str, tuple[str, Callable[[str, str | None, int | None], np.ndarray]]] = {
    ".npy": ("NumPy", _read_npy),
    ".npz": ("NumPy", _read_npz),
    ".safetensors": ("safetensors", _read_tensor),
    ".pt": ("PyTorch", _read_tensor),
    ".pth": ("PyTorch", _read_tensor),
}
PICKLED = (".bin", ".ckpt", ".pkl", ".pickle")


def is_array_file(file: str) -> bool:
    """Return True for the name of an array file. Raises UserError for formats that can run code when read."""
    path = Path(file)
    suffix = path.suffix.lower()
    if suffix in PICKLED:
        raise UserError(
            f"{file}: is a pickled file, which can run code when it is read: save the arrays as .npz or "
            ".safetensors"
        )
    return suffix in READERS


TOKENS = "tokens"
"""The name of the tokens stored beside weights: an array of strings, or a list of them."""


def tokens_beside(file: str, shape: Sequence[int]) -> tuple[str, ...]:
    """Return the tokens stored beside weights of this shape, or () if any axis has another length."""
    tokens = _tokens_in(file)
    return tokens if (len(tokens), len(tokens)) == tuple(shape[-2:]) else ()


def _tokens_in(file: str) -> tuple[str, ...]:
    suffix = Path(file).suffix.lower()
    with _damage(file, READERS[suffix][0]):
        if suffix in (".pt", ".pth"):
            return _pickled(file).tokens
        if suffix == ".npz":
            with _opened_npz(file) as archive:
                has_tokens = f"{TOKENS}.npy" in archive.namelist()
            texts = _read_npz(file, TOKENS, None, kinds="fiubU") if has_tokens else None
            if texts is not None and texts.dtype.kind == "U" and texts.ndim == 1:
                return tuple(map(str, texts))
    return ()


class ReadWeights(NamedTuple):
    """Weights (query, key), optionally with axes for head and layer.

    `has_context` is True if the keys belong to another text.
    """

    numbers: np.ndarray
    has_context: bool


def read_weights(file: str, *, name: str | None = None, most_bytes: int | None = None) -> ReadWeights:
    """Return the array of that name (or the only one) in native byte order, as float32 or float64.

    Half precision becomes float32, and whole numbers float64; both conversions are exact (for whole numbers
    up to 2^53). Layer arrays whose names differ only in the layer number become one array (layer, head,
    query, key); `name` then has * in place of the number. Without a name, the weight arrays in a cache of
    activations are chosen. Arrays of steps and layers, as `generate` returns them, become the layers of the
    whole text.
    """
    names = _array_names(file)

    def read(each: str | None) -> np.ndarray:
        return read_stored(file, name=each, most_bytes=most_bytes)

    if any(by_layer := (step_arrays(names, name), layer_arrays(names, name))):
        refuse_size(file, checked_size(file), most_bytes)
    weights = layer_weights(*by_layer, read, file)
    if weights is None:
        name = names[0] if name is None and len(names) == 1 else name
        if name is None and len(names) > 1:
            name = _chosen(file, dict.fromkeys(map(_form, names)), None)
        weights = ReadWeights(read(name), is_cross_attention(name))
    numbers = weights.numbers
    is_single = numbers.dtype.kind == "f" and numbers.dtype.itemsize <= 4
    return weights._replace(numbers=numbers.astype(np.float32 if is_single else np.float64, order="C"))


def read_array(file: str, *, name: str | None = None, most_bytes: int | None = None) -> np.ndarray:
    """Return the array that `read_weights` reads."""
    return read_weights(file, name=name, most_bytes=most_bytes).numbers


def layer_weights(
    of_steps: Mapping[int, Sequence[str]],
    of_layers: Mapping[int, str],
    read: Callable[[str], np.ndarray],
    source: str,
) -> ReadWeights | None:
    """Return all layers' weights from arrays of layers or of steps, or None if there are no such arrays."""
    if of_steps:
        joined = {
            layer: joined_steps([read(each) for each in names], source) for layer, names in of_steps.items()
        }
        has_context = any(each.has_context for each in joined.values())
        return ReadWeights(
            stacked_layers({layer: each.numbers for layer, each in joined.items()}, source), has_context
        )
    if of_layers:
        layers = {layer: read(each) for layer, each in of_layers.items()}
        is_cross = is_cross_attention(next(iter(of_layers.values())))
        return ReadWeights(stacked_layers(layers, source), is_cross)
    return None


def is_cross_attention(name: str | None) -> bool:
    """Return True if the name of an array means that its keys belong to another text."""
    return name is not None and "cross" in name.lower()


WEIGHT_NAMES = ("hook_pattern", "pattern")
"""Names of a layer's weights in caches of activations, after the part that names the layer."""
NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)")


STEP_AND_LAYER = re.compile(r"(?:^|(?<=\.))(\d+)\.(\d+)$")
"""Matches the end of an array name in a nested list."""


def _form(name: str) -> str:
    """Return the form of a name: `blocks.*.attn.hook_pattern` for a layer, `attentions.*.*` with steps."""
    return STEP_AND_LAYER.sub("*.*", name) if STEP_AND_LAYER.search(name) else NUMBER.sub("*", name, count=1)


def step_arrays(names: Iterable[str], name: str | None) -> dict[int, list[str]]:
    """Return the arrays of each layer, step by step, for a form `name` such as `attentions.*.*`.

    Without a name, the only form is used, or the only form called attentions. The result is empty if there is
    no such form.
    """
    names = [*names]
    forms: dict[str, dict[tuple[int, int], str]] = {}
    for each in names:
        if place := STEP_AND_LAYER.search(each):
            forms.setdefault(_form(each), {})[int(place[1]), int(place[2])] = each
    called = [form for form in forms if "attentions" in form] or [*forms]
    usual = called[0] if len(called) == 1 else ""
    chosen = forms.get(usual if name is None else name, {})
    by_layer: dict[int, list[str]] = {}
    for (_, layer), each in sorted(chosen.items()):
        by_layer.setdefault(layer, []).append(each)
    return by_layer


def joined_steps(steps: Sequence[np.ndarray], source: str) -> ReadWeights:
    """Join a layer's arrays from all steps of generation into rows (head, query, key) for the whole text.

    A step has either the rows of its new tokens (over all keys so far, a cache of fixed size, or another
    text), or all rows of the text again. Raises UserError if the arrays have any other sizes.
    """
    texts = max((len(array) for array in steps if array.ndim == 4), default=1)
    if texts > 1:
        raise UserError(f"{source}: contains {texts} texts or beams: save only one text")
    arrays = [array[0] if array.ndim == 4 and len(array) == 1 else array for array in steps]
    if any(array.ndim != 3 for array in arrays) or len({len(array) for array in arrays}) > 1:
        sizes = " and ".join(dict.fromkeys(" × ".join(map(str, array.shape)) for array in steps))
        raise UserError(f"{source}: has nested lists of arrays that are not generation steps ({sizes})")
    queries, keys = ([array.shape[axis] for array in arrays] for axis in (1, 2))
    ends = np.cumsum(queries).tolist()
    last = arrays[-1]
    if keys == ends:
        return ReadWeights(np.concatenate([_with_keys(array, ends[-1]) for array in arrays], axis=1), False)
    if queries == keys == [*range(keys[0], keys[0] + len(keys))] and all(
        np.allclose(array, last[:, :size, :size], atol=SAME_ROWS)
        for array, size in zip(arrays, keys, strict=True)
    ):
        return ReadWeights(last, False)
    if len({*keys}) == 1:
        rows = np.concatenate(arrays, axis=1)
        is_cache = ends[-1] <= keys[0] and not np.triu(rows, k=1).any()
        return ReadWeights(rows[..., : ends[-1]], False) if is_cache else ReadWeights(rows, True)
    sizes = listed_names([f"{query} × {key}" for query, key in zip(queries, keys, strict=True)])
    raise UserError(
        f"{source}: contains lists of layers with {sizes} queries and keys, which are not generation steps "
        "of one text: choose one list of layers, such as 0.*"
    )


SAME_ROWS = 1e-4
"""Largest difference in the rows of a text that is read again at each step, since bfloat16 rounds."""


def _with_keys(array: np.ndarray, count: int) -> np.ndarray:
    """Extend rows to `count` keys; the added keys have weight 0."""
    return np.pad(array, ((0, 0), (0, 0), (0, count - array.shape[-1])))


def layer_arrays(names: Iterable[str], name: str | None) -> dict[int, str]:
    """Return the arrays of layers, by layer number, for a form `name` with * in place of the number.

    Without a name, the only form is used, or the only form of weights. The result is empty if there is no
    such form.
    """
    forms: dict[str, dict[int, str]] = {}
    if name is not None:
        pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)"))
        places = {each: place for each in names if (place := pattern.fullmatch(each))}
        return (
            dict(sorted((int(place[1]), each) for each, place in places.items()))
            if name.count("*") == 1
            else {}
        )
    for each in names:
        if number := NUMBER.search(each):
            forms.setdefault(_form(each), {})[int(number[0])] = each
    chosen = [form for form in forms if form.rpartition(".")[2] in WEIGHT_NAMES] or [*forms]
    is_whole = len(chosen) == 1 and (len(forms) > 1 or len(forms[chosen[0]]) == len([*names]) > 1)
    return dict(sorted(forms[chosen[0]].items())) if is_whole else {}


def forms_of_weights(names: Iterable[str]) -> list[str]:
    """Return the forms of layer names (with *) that denote weights, or else all forms that denote attention.

    Forms that denote other results of attention are left out.
    """
    last = {_form(name): name.rpartition(".")[2] for name in names if is_of_a_layer(name)}
    called = [form for form, name in last.items() if name in WEIGHT_NAMES]
    return called or [
        form for form, name in last.items() if not name.startswith("hook_") and name != "scores"
    ]


def is_of_a_layer(name: str) -> bool:
    """Return True if the name of an array contains a layer number."""
    return NUMBER.search(name) is not None


def stacked_layers(layers: Mapping[int, np.ndarray], source: str) -> np.ndarray:
    """Return the weights of each layer (head, query, key) as one array.

    Layers may have a leading axis for one text. Raises UserError for several texts, or if layers are missing
    or differ in size.
    """
    if [*layers] != [*range(len(layers))]:
        listed = ", ".join(map(str, layers))
        raise UserError(f"{source}: has only the layers {listed}: choose one of their arrays")
    texts = {len(array) if array.ndim == 4 else 1 for array in layers.values()}
    if texts != {1}:
        raise UserError(f"{source}: contains {max(texts)} texts: save only one")
    arrays = [array[0] if array.ndim == 4 else array for array in layers.values()]
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        sizes = " and ".join(" × ".join(map(str, shape)) for shape in shapes[:2])
        raise UserError(f"{source}: has layers of different sizes ({sizes}): choose one of their arrays")
    return np.stack(arrays)


def _array_names(file: str) -> list[str]:
    """Return the names of the arrays in a file, or an empty list if the file holds a single unnamed array."""
    checked_size(file)
    suffix = Path(file).suffix.lower()
    with _damage(file, READERS[suffix][0]):
        match suffix:
            case ".npz":
                with _opened_npz(file) as archive:
                    members = archive.namelist()
                names = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
                return [name for name in names if name != TOKENS] or names
            case ".pt" | ".pth" | ".safetensors":
                return [*_tensors_in_file(file)]
    return []


def read_stored(file: str, *, name: str | None = None, most_bytes: int | None = None) -> np.ndarray:
    """Return the array of that name (or the only array), as stored."""
    checked_size(file)
    kind, read = READERS[Path(file).suffix.lower()]
    with _damage(file, kind):
        return read(file, name, most_bytes)


def report_beside_arrays(file: str, *, most_bytes: int | None = None) -> str | None:
    """Return the JSON that `attn` wrote beside a report's arrays, or None for arrays from another tool."""
    checked_size(file)
    suffix = Path(file).suffix.lower()
    with _damage(file, READERS[suffix][0]):
        match suffix:
            case ".npz":
                with _opened_npz(file) as archive:
                    names = archive.namelist()
                if f"{REPORT}.npy" in names:
                    written = _read_npz(file, REPORT, most_bytes, kinds="fiubU")
                    return str(written) if written.dtype.kind == "U" else None
            case ".safetensors":
                text = _safetensors(file)[1].get(REPORT)
                return text if isinstance(text, str) else None
    return None


LARGEST = 1e200
"""Larger numbers overflow in differences and sums."""
# The axes of an array, by the number of axes.
ARRAY_AXES = {2: ("query", "key"), 3: ("head", "query", "key"), 4: ("layer", "head", "query", "key")}
# Measured peak memory: one layer's statistics in float64, and an atlas of all weights.
BYTES_PER_WEIGHT, PREVIEW_BYTES = 80, 90


def checked_weights(
    array: np.ndarray,
    name: str,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None,
    *,
    most_bytes: int | None = None,
) -> NamedTensor:
    """Return the array with named axes.

    Raises UserError if the array cannot be attention, or if the tokens do not fit.
    """
    sizes = " × ".join(map(str, array.shape))
    if array.ndim not in ARRAY_AXES:
        wanted = " or ".join(f"({', '.join(axes)})" for axes in ARRAY_AXES.values())
        raise UserError(f"{name}: must have the axes {wanted} (got {sizes or 'a single number'})")
    if array.size == 0:
        raise UserError(f"{name}: is empty ({sizes})")
    if not np.isfinite(array).any():
        raise UserError(f"{name}: contains no numbers ({sizes}, all NaN or infinite)")
    if (np.abs(array, where=np.isfinite(array), out=np.zeros_like(array)) > np.float64(LARGEST)).any():
        raise UserError(f"{name}: must contain only numbers between -{LARGEST:g} and {LARGEST:g}")
    num_queries, num_keys = array.shape[-2:]
    if tokens is not None and len(tokens) != num_queries:
        raise UserError(
            f"--tokens: must contain {num_queries} tokens, one for each query (got {len(tokens)})"
        )
    if context_tokens is not None and len(context_tokens) != num_keys:
        raise UserError(
            f"--context-tokens: must contain {num_keys} tokens, one for each key (got {len(context_tokens)})"
        )
    if tokens is not None and context_tokens is None and num_keys != num_queries:
        raise UserError(
            f"--context-tokens: is required, since {name} has {num_queries} queries but {num_keys} keys"
        )
    layer = array[0] if array.ndim == 4 else array
    refuse_size(name, layer.size * BYTES_PER_WEIGHT + array.size * PREVIEW_BYTES, most_bytes)
    return NamedTensor(ARRAY_AXES[array.ndim], array)


def read_tokens(file: str) -> tuple[str, ...]:
    """Return the tokens of a file, one per line or as a JSON list.

    Tokens are unchanged; an empty line is an empty token.
    """
    text, name = read_text(file)
    listed = _json_list(text)
    if listed is not None:
        return listed
    if file.lower().endswith(".json"):
        raise UserError(f"{name}: must be a JSON list of strings")
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        raise UserError(f"{name}: is empty: it contains no tokens")
    return tuple(line.removesuffix("\r") for line in lines)


def _json_list(text: str) -> tuple[str, ...] | None:
    """Return the strings of a JSON list, or None for anything else, such as the token `[CLS]` on a line."""
    try:
        tokens = parsed_json(text)
    except ValueError:
        return None
    is_list = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    return tuple(tokens) if is_list and tokens else None
