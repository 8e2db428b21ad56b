"""Tensors in files of torch.save, located by torch.load(weights_only=True) in a limited child process.

The child maps the file into memory without reading any numbers and reports the location of each tensor's
numbers, where the parent reads them. If a file makes its reader hang or crash, only the child ends.
"""

import json
import sys
import zipfile
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from attncli.errors import UserError
from attncli.models.child import MOST_MEMORY, made_in_child
from attncli.models.number_sources import DTYPES
from attncli.models.weight_headers import LFS, MOST_AXES, TensorInFile
from attncli.system.files import MEBIBYTE, open_file

MOST_OBJECTS, MOST_DEPTH = 1_000_000, 64
"""The most objects in lists, tuples and dicts, and the deepest nesting: a small file may repeat an object."""
MOST_SECONDS, SECONDS_PER_MEBIBYTE, LONGEST_SECONDS = 5.0, 0.6, 60.0
"""Limits on the child's processor time: a small tensor takes 0.1 ms, and 320 bytes of the file."""
MOST_SHARED = 16
"""The most bytes of tensors per byte of a file, since tied weights share bytes."""
LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The first bytes of files that torch.save wrote before torch 1.6."""
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
DAMAGED = "is not a file of weights from torch.save, or is damaged"
SAVE_STATE_DICT = "save it with torch.save(model.state_dict(), FILE)"
SAVE_ATTENTIONS = "save it with torch.save(outputs.attentions, FILE)"
SAVE_ANEW = 'convert it with torch.save(torch.load(FILE, map_location="cpu", weights_only=True), OTHER)'


class PickledArrays(NamedTuple):
    """Tensors in lists, tuples and dicts, by place (`attentions.0`), and the entry `tokens` of a dict."""

    tensors: dict[str, TensorInFile]
    tokens: tuple[str, ...]


def pickled_tensors(path: Path) -> dict[str, TensorInFile]:
    """Return the tensors of a state dict saved by torch.save.

    Raises UserError for any other file and for a damaged file.
    """
    try:
        return dict(_pickled(path, _state(path), of_state_dict=True).tensors)
    except ValueError as error:
        raise UserError(f"model: {path}: {error}") from None


def pickled_arrays(path: Path) -> PickledArrays:
    """Return the tensors of a tuple, list or dict saved by torch.save, such as a model's attentions.

    Raises UserError for any other file and for a damaged file.
    """
    try:
        return _pickled(path, _state(path), of_state_dict=False)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=64)
def _pickled(path: Path, state: tuple[int, int], *, of_state_dict: bool) -> PickledArrays:
    """Describe the tensors in a file.

    If torch.load cannot read the file, raises ValueError with the part of the error line that follows the
    file's name.
    """
    try:
        with open_file(path) as file:
            start = file.read(len(LFS))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if start == LFS:
        raise ValueError("is a Git LFS pointer, not the weights: run git lfs pull")
    if start[8:9] == b"{":
        raise ValueError("is a safetensors file: rename it to model.safetensors")
    if start.startswith(LEGACY):
        raise ValueError(f"is in the format of torch before 1.6: {SAVE_ANEW}")
    instead = SAVE_STATE_DICT if of_state_dict else SAVE_ATTENTIONS
    if not start.startswith(b"PK\x03\x04"):
        raise ValueError(f"{DAMAGED}: {instead}")
    size = state[0]
    describe, most = partial(_described, path, instead, of_state_dict), MOST_MEMORY + size
    seconds = min(MOST_SECONDS + SECONDS_PER_MEBIBYTE * size // MEBIBYTE, LONGEST_SECONDS)
    try:
        described = json.loads(made_in_child(describe, most_memory=most, most_seconds=seconds, is_quiet=True))
    except ValueError as error:
        if str(error).startswith("it "):
            raise ValueError(f"cannot be read by torch.load(weights_only=True): {error}") from None
        raise
    tensors = {
        name: TensorInFile(kind, tuple(shape), begin, None if strides is None else tuple(strides))
        for name, kind, shape, begin, strides in described["tensors"]
    }
    return PickledArrays(tensors, tuple(described["tokens"]))


class _Refused(ValueError):
    """The reason why attn refuses a file that torch.load can read."""


def _described(path: Path, instead: str, of_state_dict: bool) -> str:
    """Return the tensors as JSON: name, type, shape, first byte and, unless contiguous, strides.

    Raises ValueError, with the reason, for a refused file.
    """
    try:
        parts = _checked_parts(path)
        for name in torch.serialization.get_unsafe_globals_in_checkpoint(path):
            raise _Refused(f"contains {name:.100}, which is not a tensor and may be code")
        loaded, first_byte = _mapped(path)
        views = [*(_state_dict_tensors if of_state_dict else _nested)(loaded)]
        tensors = [(name, *_in_file(name, tensor, first_byte, parts)) for name, tensor in views]
    except (_Refused, MemoryError):
        raise
    except Exception:  # with a damaged file, zipfile and torch may raise anything
        raise ValueError(f"{DAMAGED}: {instead}") from None
    if not tensors:
        raise ValueError(f"contains no tensors: {instead}")
    if len(dict(views)) < len(views):
        raise ValueError("has two tensors with the same name")
    if sum(tensor.nbytes for _, tensor in views) > MOST_SHARED * path.stat().st_size:
        raise ValueError("has too many tensors that share their bytes")
    tokens = loaded.get("tokens") if isinstance(loaded, dict) else None
    is_text = isinstance(tokens, list | tuple) and all(isinstance(token, str) for token in tokens)
    return json.dumps({"tensors": tensors, "tokens": tokens if is_text and tokens else ()})


def _checked_parts(path: Path) -> list[zipfile.ZipInfo]:
    """Return the parts of the zip file, in order. Raises _Refused unless torch can map them unchanged."""
    with zipfile.ZipFile(path) as archive:
        parts = sorted(archive.infolist(), key=lambda part: part.header_offset)
        if any(part.filename.endswith("/constants.pkl") for part in parts):
            script = "torch.save(torch.jit.load(FILE).state_dict(), OTHER)"
            raise _Refused(
                f"is a TorchScript archive, which contains code: extract its weights with {script}"
            )
        if any(part.compress_type for part in parts):
            raise _Refused(f"has compressed parts: {SAVE_STATE_DICT}")
        orders = {archive.read(part) for part in parts if part.filename.endswith("/byteorder")}
    if orders > {sys.byteorder.encode()}:
        raise _Refused("has numbers in another machine's byte order: save it again on this machine")
    return parts


def _mapped(path: Path) -> tuple[Any, int]:
    """Return the objects of a file, with tensors mapped into memory, and the address of its first byte."""
    addresses: list[int] = []
    from_file = torch.UntypedStorage.from_file

    def noted(*arguments: Any) -> Any:
        addresses.append((storage := from_file(*arguments)).data_ptr())
        return storage

    with mock.patch.object(torch.UntypedStorage, "from_file", noted):
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return loaded, addresses[0]


def _state_dict_tensors(loaded: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors of a state dict by name."""
    if not isinstance(loaded, dict):
        kind = "one tensor" if isinstance(loaded, torch.Tensor) else f"a {type(loaded).__name__}"
        raise _Refused(f"contains {kind}, not a dict of tensors: {SAVE_STATE_DICT}")
    for name, value in loaded.items():
        if isinstance(value, dict) and any(isinstance(inner, torch.Tensor) for inner in value.values()):
            load = f"torch.load(FILE, weights_only=True)[{name!r:.60}]"
            raise _Refused(f"has its weights under {name!r:.60}: extract them with torch.save({load}, OTHER)")
        if isinstance(value, torch.Tensor):
            if not isinstance(name, str):
                raise _Refused(
                    f"has a tensor with the key {name!r:.60}, which must be a string: {SAVE_STATE_DICT}"
                )
            yield name, value


def _nested(loaded: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors in lists, tuples and dicts, by place."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), loaded)]
    num_objects = 0
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield ".".join(place), value
        elif isinstance(value, dict | list | tuple):
            items = [*(value.items() if isinstance(value, dict) else enumerate(value))]
            if (num_objects := num_objects + len(items)) > MOST_OBJECTS:
                raise _Refused(f"has more than {MOST_OBJECTS:,} objects: {SAVE_ATTENTIONS}")
            if len(place) == MOST_DEPTH:
                raise _Refused(f"has more than {MOST_DEPTH} levels of nesting: {SAVE_ATTENTIONS}")
            waiting += (((*place, f"{name}"), inner) for name, inner in items[::-1])


def _in_file(name: str, tensor: torch.Tensor, first_byte: int, parts: list[zipfile.ZipInfo]) -> list[Any]:
    """Return the type, shape, first byte and strides of a tensor, with None for contiguous strides."""
    has = f"has {name:.100}, of" if name else "has a tensor of"
    kind = KINDS.get(tensor.dtype)
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if kind is None or not is_dense or tensor.is_neg():
        kind = str(tensor.dtype if is_dense else tensor.layout).removeprefix("torch.")
        kind = f"negated {kind}" if tensor.is_neg() else kind
        raise _Refused(f"{has} type {kind}: save it dense, as float32, float16 or bfloat16")
    if tensor.ndim > MOST_AXES:
        raise _Refused(f"{has} {tensor.ndim:,} axes: at most {MOST_AXES} are supported")
    storage = tensor.untyped_storage()
    if tensor.nbytes > storage.nbytes():
        has = f"has {name:.100}" if name else "has a tensor"
        raise _Refused(f"{has} that was expanded from fewer numbers: call .contiguous() before saving it")
    begin = storage.data_ptr() - first_byte if tensor.numel() else 0
    part = parts[bisect_right(parts, begin, key=lambda part: part.header_offset) - 1]
    if tensor.numel() and storage.nbytes() > part.file_size:
        raise ValueError("numbers beyond their part of the file")
    begin += int(tensor.storage_offset()) * tensor.itemsize if tensor.numel() else 0
    strides = None if tensor.is_contiguous() else tensor.stride()
    return [kind, tuple(tensor.shape), begin, strides]
