"""What a folder or a GGUF file must hold to be a model, checked before torch is there; digests of files."""

import errno
import io
import json
import os
import re
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    suppress,
)
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from logging import CRITICAL
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from attncli.errors import UserError, WriteError
from attncli.memory import readable_bytes

PACKAGES = ("transformers", "safetensors", "tokenizers")
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "tekken.json",
)
ADAPTER = "adapter_config.json"
READ = frozenset({".json", ".safetensors", ".txt", ".jinja", ".gguf", ".model", ".spm", ".tiktoken"})
"""What transformers reads of a folder. It takes what is no file (a pipe, a folder) for absent, or waits."""
SHARDED = "model.safetensors.index.json"
LFS = b"version https://git-lfs"
LARGEST_HEADER, LARGEST_FILE = 100_000_000, 2**63
REPEATED = re.compile(r"(^|_)(layers?|depth)$")
"""Settings of so many parts, which are made one by one before any weight is read."""
FEW_PARTS = 1000
LABELS, MOST_LABELS = "num_labels", 1_000_000
"""Each is given a name before any weight is read; other labels are sizes of weights."""
MOST_BYTES_PER_BYTE, SPACIOUS_BYTES = 16, 2**30
"""What a byte of a file may become (four weights of float32), and what tables of positions may take."""
MOST_PER_TENSOR, SPACIOUS_TENSORS = 8, 10_000
"""What a tensor of a file may become, and what a model may make beside these."""
GGUF = ".gguf"
WEIGHTS = (".safetensors", ".bin", ".pt", ".h5")
SHIPPED_MODEL = str(Path(__file__).parents[1] / "data" / "tiny-induction")
"""The folder of the tiny model that comes with the package; it learned to copy random characters."""

_stderr_lock = threading.RLock()


def local_model(model: str) -> Path | None:
    """The folder or GGUF file; None for what could only be a model of the hub.

    ValueError for a package that ships several.
    """
    path = Path(model)
    if path.is_dir() or (path.suffix.lower() == GGUF and path.is_file()):
        return path
    return None if len(path.parts) > 1 else _of_package(model)


@lru_cache(maxsize=64)
def _of_package(name: str) -> Path | None:
    """What an installed package's list of files says, none of whose code runs."""
    try:
        listed = distribution(name).files if name.strip() else None
    except (PackageNotFoundError, ValueError):
        return None
    paths = [Path(str(file.locate())) for file in listed or ()]
    models = [path for path in paths if path.suffix.lower() == GGUF]
    if not models:
        configured = {path.parent for path in paths if path.name == "config.json"}
        weighed = {path.parent for path in paths if path.suffix in WEIGHTS}
        models = sorted(configured & weighed)
    if len(models) > 1:
        names = ", ".join(map(str, models))
        raise ValueError(f"{name} ships several models: name one of {names}")
    return models[0] if models else None


def check_packages() -> None:
    """UserError where the extra that reads models is not installed."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise UserError('model: needs: pip install "attncli[models]"')


def quiet_transformers() -> None:
    """No messages and no progress of its own: what a user must know, attn says."""
    from transformers.utils import logging

    # transformers leaves these without types.
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def panics_in_one_line() -> Iterator[None]:
    """A panic of the Rust in tokenizers as a ValueError; its stack, hundreds of lines, is not printed."""
    with _stderr_lock, TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":  # where Rust's PanicException is, and nothing else
                raise
            kept.truncate(0)
            raise ValueError(str(error)) from None
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            os.write(2, kept.read())


def check_model_folder(folder: Path) -> None:
    """UserError, in one line, for a folder that is not a model, has no tokenizer, or has damaged files."""
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"model: {folder}: cannot be read: {error.strerror}") from None
    if folder / "config.json" not in files:
        wanted = "give the folder that save_pretrained wrote, or a .gguf file"
        raise UserError(f"model: {folder}: is not a model folder: config.json is missing: {wanted}")
    for path in files:
        if path.suffix in READ:
            _check_file(path)
    config = _read_config(folder / "config.json")
    weights = [path for path in files if path.suffix == ".safetensors"]
    if not weights:
        pickled = [path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))]
        if pickled:
            reason = f"has only pickled weights ({pickled[0]}), which can run code when they are read"
            instead = f"AutoModel.from_pretrained({str(folder)!r}).save_pretrained(FOLDER) writes safetensors"
            raise UserError(f"model: {folder}: {reason}: {instead}")
        raise UserError(f"model: {folder}: has no weights: model.safetensors is missing")
    if folder / SHARDED in files and folder / "model.safetensors" not in files:
        _check_shards(folder / SHARDED)
    num_tensors = sum(len(_checked_sizes(path)) for path in weights)
    for key, count in _counts(config):
        most = MOST_LABELS if key == LABELS else max(FEW_PARTS, num_tensors)
        if count > most and (key == LABELS or REPEATED.search(key)):
            reason = "" if key == LABELS else f" for weights of {num_tensors} tensors"
            wrong = f"{key} must be at most {most}{reason} (got {count!s:.20})"
            raise UserError(f"model: {folder / 'config.json'}: {wrong}")
    _check_adapter(folder)
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise UserError(f"model: {folder}: has no tokenizer: tokenizer.json is missing")


def _check_adapter(folder: Path) -> None:
    """UserError for an adapter that transformers would leave out without a word, or read from a pickle."""
    if not (folder / ADAPTER).is_file():
        return
    if find_spec("peft") is None:
        reason = f"holds an adapter ({ADAPTER}): needs: pip install peft"
        raise UserError(f"model: {folder}: {reason} (without that file the model is shown without it)")
    if not (folder / "adapter_model.safetensors").is_file():
        raise UserError(
            f"model: {folder}: has no weights of its adapter: adapter_model.safetensors is missing"
        )


def _check_file(path: Path) -> None:
    """UserError for what is not a file that may be read."""
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or a device" if path.exists() else "a broken link"
        raise UserError(f"model: {path}: is {kind}, not a file")
    if not os.access(path, os.R_OK):
        raise UserError(f"model: {path}: cannot be read: Permission denied")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise UserError(f"model: {path}: is nested too deeply") from None
    except ValueError as error:  # neither JSON nor UTF-8, or a number of thousands of digits
        raise UserError(f"model: {path}: is not valid JSON: {error}") from None


def _read_config(path: Path) -> dict[str, Any]:
    config = _read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UserError(f"model: {path}: names no model_type: is this a transformers model?")
    return config


def _check_shards(path: Path) -> None:
    """UserError for an index that names other files than those of its folder."""
    index = _read_json(path)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"model: {path}: has no weight_map")
    for name in dict.fromkeys(map(str, shards.values())):
        if Path(name).name != name or not (path.parent / name).is_file():
            raise UserError(f"model: {path}: names {name:.200}, which is no file of its folder")


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number of a config and of the configs in it, with its key."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _counts(value)
        elif isinstance(value, int):
            yield key, value


def safetensors_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """What a safetensors file of that size says of its tensors, by name, and where their bytes begin.

    Its length (8 bytes, little-endian), then JSON with offsets. EOFError where the file is too short, else
    ValueError or RecursionError for a damaged one.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, LARGEST_HEADER):
        raise EOFError
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("no object")
    return header, 8 + length


def _checked_sizes(path: Path) -> list[int]:
    """How many numbers each tensor of a safetensors file has; UserError for a damaged file."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise UserError(f"model: {path}: is a Git LFS pointer, not the weights: run git lfs pull")
            file.seek(0)
            header, begin = safetensors_header(file, size)
        sizes, ends = _sizes_and_ends(header)
    except EOFError:
        raise UserError(f"model: {path}: is not a safetensors file, or is cut off") from None
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"model: {path}: is not a safetensors file: its header is damaged") from None
    promised = begin + max(ends, default=0)
    if promised != size:
        raise UserError(f"model: {path}: is cut off: its header promises {promised} bytes")
    return sizes


def _sizes_and_ends(header: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """How many numbers each tensor has, and where it ends; ValueError where the header does not say so."""
    sizes, ends = [], []
    for name, entry in header.items():
        match entry:
            case _ if name == "__metadata__":
                continue
            case {"shape": [*shape], "data_offsets": [int(), int() as end]} if 0 <= end <= LARGEST_FILE:
                if not all(isinstance(length, int) and length >= 0 for length in shape):
                    raise ValueError(name)
                sizes.append(prod(shape))
                ends.append(end)
            case _:
                raise ValueError(name)
    return sizes, ends


def num_parameters(folder: Path) -> int:
    """How many numbers the weights of a folder hold, from the headers of its safetensors files.

    0 without such a file; UserError for a damaged one.
    """
    return sum(sum(_checked_sizes(path)) for path in weight_files(folder))


def weight_files(model: Path) -> list[Path]:
    """The files with the weights of a folder, or a GGUF file itself."""
    whole = model / "model.safetensors"
    if model.is_file() or whole.is_file():
        return [model if model.is_file() else whole]
    # Otherwise shards; Mistral's own format may stand beside either.
    files = (path for path in model.glob("*.safetensors") if path.is_file())
    return [path for path in files if not path.name.startswith("consolidated")]


@contextmanager
def bounded_building(config: Path, *, size: int, num_tensors: int) -> Iterator[None]:
    """UserError for a config that asks for far more than the weights can be: of `size` bytes in their files.

    A model is built without memory (on the meta device), but what its files lack is then made of memory.
    """
    from torch import Tensor, nn
    from torch.nn.modules.module import (
        register_module_buffer_registration_hook,
        register_module_parameter_registration_hook,
    )

    most_bytes = SPACIOUS_BYTES + MOST_BYTES_PER_BYTE * size
    most_tensors = SPACIOUS_TENSORS + MOST_PER_TENSOR * num_tensors
    taken = count = 0

    def add(_module: nn.Module, _name: str, tensor: Tensor | None) -> None:
        nonlocal taken, count
        if tensor is None or not tensor.is_meta:
            return
        taken, count = taken + tensor.nbytes, count + 1
        if taken > most_bytes:
            sizes = (
                f"more than {most_bytes / 1e6:,.0f} MB of weights, and its files hold {size / 1e6:,.1f} MB"
            )
            raise UserError(f"model: {config}: describes {sizes}")
        if count > most_tensors:
            counts = f"more than {most_tensors} tensors, and its files hold {num_tensors}"
            raise UserError(f"model: {config}: describes {counts}")

    with ExitStack() as hooks:
        hooks.callback(register_module_parameter_registration_hook(add).remove)
        hooks.callback(register_module_buffer_registration_hook(add).remove)
        yield


def building_of_folder(folder: Path) -> AbstractContextManager[None]:
    """Building bounded by what the weights of a folder can be; not for a model of the hub."""
    files = [*folder.glob("*.safetensors")] if folder.is_dir() else []
    if not files:
        return nullcontext()
    return bounded_building(
        folder / "config.json",
        size=sum(file.stat().st_size for file in files),
        num_tensors=sum(len(_checked_sizes(file)) for file in files),
    )


GGUF_PACKAGES = ("gguf", "accelerate")
MAGIC = b"GGUF"
NUMBERS = dict(enumerate("BbHhIif?")) | dict(zip((10, 11, 12), "Qqd", strict=True))
TEXT, ARRAY = 8, 9
"""The types of values in a GGUF header: numbers as `struct` has them, texts, and arrays of any of them."""
MOST_AXES, MOST_ITEMS, NUMBERS_PER_BYTE = 8, 4_000_000, 8
"""Of a tensor; in all arrays of a header, each of which its reader makes an object; in a file, a bit each."""
BLOCK, BLOCK_COUNT = re.compile(r"(?:^|\.)blk\.([0-9]+)\."), ".block_count"


def check_gguf(path: Path) -> None:
    """UserError, in one line, for what is not a GGUF file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    if start != MAGIC:
        raise UserError(f"model: {path}: is not a GGUF file")


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says: the numbers of each tensor, of how many blocks; settings that are no arrays."""

    sizes: tuple[int, ...]
    num_blocks: int
    settings: Mapping[str, str | int | float]


def num_parameters_of_gguf(path: Path) -> int:
    """How many numbers a GGUF file holds, however few bits each takes, from its header.

    UserError for a damaged file.
    """
    return sum(_gguf_header(path).sizes)


def _gguf_header(path: Path) -> GgufHeader:
    """https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. UserError for a damaged file.

    Its own reader believes every count, and goes on beyond the end of the file.
    """
    check_gguf(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = _Header(file, size)
            tensors, settings = header.read()
    except (OSError, ValueError, KeyError, struct.error, RecursionError):
        raise UserError(f"model: {path}: is not a GGUF file: its header is damaged") from None
    if sum(tensors.values()) > NUMBERS_PER_BYTE * size:
        raise UserError(f"model: {path}: is cut off: its header promises {sum(tensors.values())} numbers")
    blocks = {found[1] for name in tensors if (found := BLOCK.search(name))}
    return GgufHeader(tuple(tensors.values()), len(blocks), settings)


class _Header:
    """A GGUF header as it is read; ValueError, KeyError or struct.error where it is damaged."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._num_items = file, size, 0
        version = int.from_bytes(file.read(8)[4:], "little")
        self._order = "<" if version & 0xFFFF else ">"

    def read(self) -> tuple[dict[str, int], dict[str, str | int | float]]:
        """The sizes of the tensors, and the settings that are no arrays."""
        num_tensors, num_values = self._numbers("QQ")
        values = [self._value() for _ in range(num_values)]
        settings = {name: value for name, value in values if value is not None}
        return dict(self._tensor() for _ in range(num_tensors)), settings

    def _numbers(self, form: str) -> tuple[Any, ...]:
        form = self._order + form
        return struct.unpack(form, self._file.read(struct.calcsize(form)))

    def _skip(self, length: int) -> None:
        if length > self._size - self._file.tell():
            raise ValueError("beyond the end")
        self._file.seek(length, io.SEEK_CUR)

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        if length > self._size - self._file.tell():
            raise ValueError("beyond the end")
        return self._file.read(length).decode()

    def _value(self) -> tuple[str, str | int | float | None]:
        name, (kind,) = self._text(), self._numbers("I")
        if kind == TEXT:
            return name, self._text()
        if kind == ARRAY:
            self._skip_values(*self._numbers("IQ"))
            return name, None
        return name, self._numbers(NUMBERS[kind])[0]

    def _skip_values(self, kind: int, count: int) -> None:
        """Leave out values of one type; those of variable length one by one."""
        self._num_items += count
        if self._num_items > MOST_ITEMS:
            raise ValueError("too many items")
        if kind == TEXT:
            for _ in range(count):
                self._skip(*self._numbers("Q"))
        elif kind == ARRAY:
            for _ in range(count):
                self._skip_values(*self._numbers("IQ"))
        else:
            self._skip(count * struct.calcsize(f"<{NUMBERS[kind]}"))

    def _tensor(self) -> tuple[str, int]:
        name, (num_axes,) = self._text(), self._numbers("I")
        if num_axes > MOST_AXES:
            raise ValueError("too many axes")
        *shape, _kind, _offset = self._numbers(f"{num_axes}QIQ")
        return name, prod(shape)


def folder_of_gguf(
    path: Path, tell: Callable[[str], None] | None, begin: Callable[[str], None] | None = None
) -> Path:
    """The folder with what a GGUF file holds, found by the file's content; made where it does not exist yet.

    `begin` gets a line before it is made, which takes up to a minute, and `tell` one afterwards. UserError
    for a file that transformers cannot read.
    """
    folder = cache_folder("gguf") / content_digest(path)[:32] / path.stem
    if not folder.is_dir():
        if any(find_spec(package) is None for package in GGUF_PACKAGES):
            raise UserError('model: a GGUF file needs: pip install "attncli[gguf]"')
        if begin is not None:
            begin(f"converting {path.name}, {readable_bytes(path.stat().st_size)}, this once")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _make(path, folder)
        except OSError as error:
            raise WriteError(f"model: {folder}: cannot be written: {error.strerror or error}") from None
        size = sum(file.stat().st_size for file in folder.iterdir())
        if tell is not None:
            tell(f"model: {path.name} was read once and is kept in {folder} ({size / 1e6:,.0f} MB)")
    return folder


def _make(path: Path, folder: Path) -> None:
    """The folder appears whole, however many processes want it at once."""
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        convert(path, unfinished)
        if not folder.is_dir():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def convert(path: Path, folder: Path) -> None:
    """Write a GGUF file's model as float32 safetensors, with its tokenizer; UserError for a damaged file."""
    header = _gguf_header(path)
    counts = {key: count for key, count in header.settings.items() if key.endswith(BLOCK_COUNT)}
    kind = "general.architecture"
    key = f"{header.settings[kind]}{BLOCK_COUNT}" if kind in header.settings else kind
    if kind not in header.settings or key not in counts:  # transformers would take the count of another model
        raise UserError(f"model: {path}: is not a GGUF file of a model: {key:.200} is missing")
    for key, count in counts.items():
        if not isinstance(count, int) or count > header.num_blocks:
            wrong = f"must be at most {header.num_blocks}, the blocks of its tensors (got {count!s:.20})"
            raise UserError(f"model: {path}: {key:.200} {wrong}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

    quiet_transformers()
    options = {"gguf_file": path.name, "local_files_only": True}
    try:
        # Its own progress goes nowhere: attn reports one line.
        size, num_tensors = 4 * sum(header.sizes), len(header.sizes)
        building = bounded_building(path, size=size, num_tensors=num_tensors)
        with panics_in_one_line(), building, redirect_stderr(io.StringIO()):
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                path.parent, dtype=torch.float32, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    except UserError:
        raise
    except Exception as error:  # a damaged file may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model: {path}: cannot be read as GGUF: {reason:.200}") from None
    # The weights are plain numbers by now, but transformers refuses to write what was quantized once.
    vars(model)["hf_quantizer"] = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


LARGE_BYTES = 8 * 2**20
"""What is read in 7 ms is not worth a note."""
BLOCK_BYTES = 2**20
SETTLED_SECONDS = 2.0
"""A file that changed so recently may change again within the same tick of its file system's clock."""


def cache_folder(name: str) -> Path:
    """Where the user's programs keep what they can make again; OSError for a user without a home."""
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "attncli" / name
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "no home folder: set XDG_CACHE_HOME") from None


def content_digest(path: Path, on_read: Callable[[], None] = lambda: None) -> str:
    """The SHA-256 of a file, the same on every machine; OSError where it cannot be read.

    That of a large file is noted in the user's cache with the file's state: device, inode, size, time of
    change, and the time of the last change of its inode, which no program can set back. `on_read` is called
    after each block that is read.
    """
    with path.open("rb") as file:
        state = _state_of(file)
        note = None
        if os.fstat(file.fileno()).st_size >= LARGE_BYTES:
            with suppress(OSError):
                note = cache_folder("digests") / sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        if note is not None and (noted := _noted(note, state)) is not None:
            return noted
        digest = sha256()
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            on_read()
        settled = time.time() - os.fstat(file.fileno()).st_ctime > SETTLED_SECONDS
        if note is not None and settled and _state_of(file) == state:
            _write_note(note, state, digest.hexdigest())
    return digest.hexdigest()


def _state_of(file: BinaryIO) -> list[int]:
    about = os.fstat(file.fileno())
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _noted(note: Path, state: list[int]) -> str | None:
    try:
        found = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    if isinstance(found, dict) and found.get("state") == state and isinstance(found.get("sha256"), str):
        return str(found["sha256"])
    return None


def _write_note(note: Path, state: list[int], digest: str) -> None:
    """The note appears whole; where nothing can be written the file is read again next time."""
    part = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps({"state": state, "sha256": digest}))
            part.replace(note)
        finally:
            part.unlink(missing_ok=True)
