"""The tensors in a file that torch.save wrote, found without running any of it. Needs no torch.

Such a file holds a pickle, a program that makes objects, and the numbers of tensors, uncompressed. Here the
program is read and never run: what makes a tensor becomes a line on where its numbers are, and anything else
is refused by its name. What torch.load(weights_only=True) reads of a state dict is read, and nothing more.
"""

import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from zipfile import BadZipFile, ZipFile, ZipInfo

from attncli.errors import UserError
from attncli.files import open_file
from attncli.models.weight_headers import LARGEST_FILE, LFS, TensorInFile

KINDS = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
"""What safetensors call the types of torch's storages, and the bytes of a number."""
MOST_STEPS = 5_000_000
"""Of a pickle: some forty make a tensor."""
MOST_HEADER, MOST_NAME = 2**25, 2**16
"""Bytes of a pickle, or of the list of a zip file's parts, which become objects of twenty times as many."""
MOST_SHARED = 16
"""How many bytes of tensors a byte of a file may become: tied weights share theirs."""
LOCAL_HEADER, LOCAL_SIGNATURE = struct.Struct("<4s22xHH"), b"PK\x03\x04"
"""Of a part of a zip file: the lengths of its name and of what follows that are before its bytes."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""What torch.save wrote first before torch 1.6, whose files are pickles one after another, then numbers."""
SAVE_STATE_DICT = "torch.save(model.state_dict(), FILE) writes what is read here"
SAVE_ATTENTIONS = "torch.save(outputs.attentions, FILE) writes what is read here"
MAKES_A_TENSOR = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
MAKES_A_PARAMETER = "torch._utils _rebuild_parameter"
MAKES_A_DICT = "collections OrderedDict"


class _Refused(Exception):
    """What a file holds that is not read, said after its name."""


class _Named(NamedTuple):
    """A function or class that a pickle names; it is never looked up."""

    name: str


class _Storage(NamedTuple):
    """The numbers of tensors, by their key in the file."""

    key: str
    kind: str
    size: int
    """Of a number, in bytes."""
    num_numbers: int


class _View(NamedTuple):
    """A tensor as a pickle describes it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


MARK = object()


@dataclass
class _Program:
    """The steps of a pickle, followed on a stack of descriptions; ValueError where it is damaged."""

    file: Any
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def read(self) -> Any:
        """What the pickle describes. Raises _Refused for what is neither tensors nor plain values."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(self.file)):
            if number > MOST_STEPS:
                raise ValueError("too many steps")
            if opcode.name == "STOP":
                return self.stack.pop()
            step = STEPS.get(opcode.name)
            if step is None:
                raise _Refused(f"holds a pickle with {opcode.name}, which no state dict has")
            step(self, argument)
        raise ValueError("no end")

    def from_mark(self) -> list[Any]:
        """The objects since the last mark, which leave the stack."""
        start = len(self.stack) - 1
        while self.stack[start] is not MARK:
            start -= 1
        if start < 0:
            raise ValueError("no mark")
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        """The last objects, which leave the stack."""
        if len(self.stack) < count:
            raise ValueError("an empty stack")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return items

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise _Refused("holds an object that is no dict of tensors")
        target.update(zip(items[::2], items[1::2], strict=True))

    def append(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise _Refused("holds an object that is no list")
        self.stack[-1].extend(items)

    def name(self) -> None:
        module, name = self.last(2)
        self.stack.append(_Named(f"{module} {name}"))

    def make(self) -> None:
        makes, arguments = self.last(2)
        self.stack.append(_made(makes, arguments))

    def add_attributes(self) -> None:
        """Those of a dict are the versions of modules, which nobody needs; others' would change them."""
        self.last(1)
        if not isinstance(self.stack[-1], dict):
            raise _Refused("holds an object that is no tensor")


def _push(program: _Program, value: Any) -> None:
    program.stack.append(value)


def _pass(_program: _Program, _value: Any) -> None:
    """A step that says how the pickle is written."""


STEPS: Mapping[str, Callable[[_Program, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _pass),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _push),
    **dict.fromkeys(("BINFLOAT", "SHORT_BINBYTES", "BINBYTES"), _push),
    "NONE": lambda program, _: _push(program, None),
    "NEWTRUE": lambda program, _: _push(program, True),
    "NEWFALSE": lambda program, _: _push(program, False),
    "EMPTY_DICT": lambda program, _: _push(program, {}),
    "EMPTY_LIST": lambda program, _: _push(program, []),
    "EMPTY_TUPLE": lambda program, _: _push(program, ()),
    "MARK": lambda program, _: _push(program, MARK),
    "TUPLE": lambda program, _: _push(program, tuple(program.from_mark())),
    "TUPLE1": lambda program, _: _push(program, program.last(1)),
    "TUPLE2": lambda program, _: _push(program, program.last(2)),
    "TUPLE3": lambda program, _: _push(program, program.last(3)),
    "SETITEM": lambda program, _: program.set_items([*program.last(2)]),
    "SETITEMS": lambda program, _: program.set_items(program.from_mark()),
    "APPEND": lambda program, _: program.append([*program.last(1)]),
    "APPENDS": lambda program, _: program.append(program.from_mark()),
    **dict.fromkeys(
        ("BINPUT", "LONG_BINPUT"), lambda program, place: program.memo.update({place: program.stack[-1]})
    ),
    "MEMOIZE": lambda program, _: program.memo.update({len(program.memo): program.stack[-1]}),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda program, place: _push(program, program.memo[place])),
    "GLOBAL": lambda program, name: _push(program, _Named(name)),
    "STACK_GLOBAL": lambda program, _: program.name(),
    "BINPERSID": lambda program, _: _push(program, _storage(*program.last(1))),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda program, _: program.make()),
    "BUILD": lambda program, _: program.add_attributes(),
}
"""What each step of a pickle does here."""


def _storage(described: Any) -> _Storage:
    match described:
        case ("storage", _Named(name), str(key), _, int(count), *views) if count >= 0 and not any(views):
            kind = name.removeprefix("torch ")
            if kind not in KINDS:
                raise _Refused(f"holds numbers of type {kind}: save them as float32, float16 or bfloat16")
            return _Storage(key, *KINDS[kind], count)
    raise ValueError("no storage")


def _made(makes: Any, arguments: Any) -> Any:
    """What a function gives for arguments, of the few that make up a state dict."""
    match makes, arguments:
        case _Named(name), (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
            name in MAKES_A_TENSOR
        ):
            numbers = (offset, *shape, *strides)
            if not all(type(number) is int and 0 <= number <= LARGEST_FILE for number in numbers):
                raise ValueError("no shape")
            if len(shape) != len(strides):
                raise ValueError("no strides")
            return _View(storage, offset, shape, strides)
        case _Named(name), (_View() as tensor, *_) if name == MAKES_A_PARAMETER:
            return tensor
        case _Named(name), ([] | () | [[]]) if name == MAKES_A_DICT:
            return {}
        case _Named(name), _ if name not in (*MAKES_A_TENSOR, MAKES_A_PARAMETER, MAKES_A_DICT):
            raise _Refused(f"holds {name.replace(' ', '.'):.100}, which is no tensor and may be code")
    raise ValueError("no tensor")


class _Bounded:
    """A file up to `end`, of which no read takes more than a header may be long."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._end = file, end
        self.tell, self.seek, self.seekable = file.tell, file.seek, file.seekable

    def read(self, count: int = -1) -> bytes:
        left = self._end - self.tell()
        count = left if count < 0 else count
        if count > min(left, MOST_HEADER):
            raise ValueError("too long")
        return self._file.read(count)

    def readline(self) -> bytes:
        return self._file.readline(MOST_NAME)


BytePlaces = Mapping[str, tuple[int, int]]
"""The first byte of each storage, and how many there are."""


class PickledArrays(NamedTuple):
    """Tensors in lists, tuples and dicts by their places, `attentions.0`; the `tokens` that a dict has."""

    tensors: dict[str, TensorInFile]
    tokens: tuple[str, ...]


def pickled_tensors(path: Path) -> dict[str, TensorInFile]:
    """The tensors of a state dict that torch.save wrote, by its header; nothing in the file runs.

    Raises UserError for anything else, for code, and for a damaged file.
    """
    try:
        return dict(_pickled(path, _state(path), of_state_dict=True).tensors)
    except _Refused as error:
        raise UserError(f"model: {path}: {error}") from None


def pickled_arrays(path: Path) -> PickledArrays:
    """The tensors of a tuple, list or dict that torch.save wrote, as a model's attentions; nothing runs.

    Raises UserError for anything else, for code, and for a damaged file.
    """
    try:
        return _pickled(path, _state(path), of_state_dict=False)
    except _Refused as error:
        raise UserError(f"{path}: {error}") from None


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=64)
def _pickled(path: Path, state: tuple[int, int], *, of_state_dict: bool) -> PickledArrays:
    instead = SAVE_STATE_DICT if of_state_dict else SAVE_ATTENTIONS
    views = _views if of_state_dict else _nested_views
    try:
        with open_file(path) as file:
            start = file.read(len(LFS))
            file.seek(0)
            if start == LFS:
                raise _Refused("is a Git LFS pointer, not the weights: run git lfs pull")
            if start[8:9] == b"{":
                raise _Refused("is a safetensors file by another name: call it model.safetensors")
            is_zip = start.startswith(LOCAL_SIGNATURE)
            if is_zip:
                described, places = _read_zip(file, state[0])
            else:
                described, places = _read_legacy(file, state[0], views)
        tokens = described.get("tokens") if isinstance(described, dict) else None
        is_text = isinstance(tokens, list | tuple) and all(isinstance(token, str) for token in tokens)
        tensors = _tensors(dict(views(described)), places, state[0])
        if not tensors:
            raise _Refused(f"holds no tensor: {instead}")
        return PickledArrays(tensors, tuple(tokens) if is_text and tokens else ())
    except OSError as error:
        raise _Refused(f"cannot be read: {error.strerror}") from None
    except (
        *(ValueError, LookupError, TypeError, EOFError, OverflowError, RecursionError),
        *(struct.error, BadZipFile, NotImplementedError, RuntimeError),
    ):
        raise _Refused(f"is not a file of weights that torch.save wrote, or is damaged: {instead}") from None


def _read_zip(file: BinaryIO, size: int) -> tuple[Any, BytePlaces]:
    """What the pickle of a zip file describes, and where its storages are."""
    with ZipFile(cast(BinaryIO, _Bounded(file, size))) as archive:
        parts = {part.filename: part for part in archive.infolist()}
        if len(parts) < len(archive.infolist()):
            raise ValueError("two parts of one name")
        (pickle,) = (name for name in parts if name.endswith("/data.pkl") and name.count("/") == 1)
        folder = pickle.removesuffix("data.pkl")
        if f"{folder}constants.pkl" in parts:
            instead = "torch.save(torch.jit.load(FILE).state_dict(), OTHER), run where you trust it"
            raise _Refused(f"is a TorchScript archive, which holds code: {instead}, writes its weights")
        if any(part.compress_type for part in parts.values()):
            raise _Refused(f"has compressed parts: {SAVE_STATE_DICT}")
        if parts[pickle].file_size > MOST_HEADER:
            raise ValueError("too long")
        order = parts.get(f"{folder}byteorder")
        if order is not None and archive.read(order)[:16] == b"big":
            raise _Refused("has big-endian numbers: save it anew on this machine")
        described = _Program(BytesIO(archive.read(parts[pickle]))).read()
        of_data = f"{folder}data/"
        storages = {name: part for name, part in parts.items() if name.startswith(of_data)}
        places = {name.removeprefix(of_data): _place(file, part) for name, part in storages.items()}
    return described, places


def _place(file: BinaryIO, part: ZipInfo) -> tuple[int, int]:
    """Where the bytes of a part of a zip file begin, and how many there are."""
    file.seek(part.header_offset)
    signature, length_of_name, length_of_more = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != LOCAL_SIGNATURE:
        raise ValueError("no part")
    return part.header_offset + LOCAL_HEADER.size + length_of_name + length_of_more, part.file_size


def _read_legacy(file: BinaryIO, size: int, views: "Views") -> tuple[Any, BytePlaces]:
    """What the pickles of a file from before torch 1.6 describe, and where its storages are."""
    header = _Bounded(file, min(size, MOST_HEADER))
    if _Program(header).read() != LEGACY_MAGIC:
        raise ValueError("another file")
    _Program(header).read()  # the version of the format
    system = _Program(header).read()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise _Refused("has big-endian numbers: save it anew on this machine")
    described = _Program(header).read()
    keys = _Program(header).read()
    sizes = {view.storage.key: view.storage.size for _, view in views(described)}
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little", signed=True)
        if key not in sizes or not 0 <= count <= size:
            raise ValueError("a storage that no tensor has")
        places[key] = file.tell(), count * sizes[key]
        file.seek(count * sizes[key], 1)
    return described, places


def _views(described: Any) -> Iterator[tuple[str, _View]]:
    """The tensors of a state dict by name. Raises _Refused for what is none."""
    if not isinstance(described, dict):
        what = "one tensor" if isinstance(described, _View) else f"a {type(described).__name__}"
        raise _Refused(f"holds {what}, not a dict of tensors: {SAVE_STATE_DICT}")
    for name, value in described.items():
        if isinstance(value, dict) and any(isinstance(inner, _View) for inner in value.values()):
            load = f"torch.load(FILE, weights_only=True)[{name!r:.60}]"
            raise _Refused(f"has its weights under {name!r:.60}: torch.save({load}, OTHER) writes them alone")
        if isinstance(value, _View):
            if not isinstance(name, str):
                raise _Refused(f"names a tensor {name!r:.60}, which is no text: {SAVE_STATE_DICT}")
            yield name, value


Views = Callable[[Any], Iterator[tuple[str, _View]]]


def _nested_views(described: Any, place: str = "") -> Iterator[tuple[str, _View]]:
    """The tensors in lists, tuples and dicts, by their places in them."""
    if isinstance(described, _View):
        yield place, described
    elif isinstance(described, dict | list | tuple) and not isinstance(described, _Named | _Storage):
        items = described.items() if isinstance(described, dict) else enumerate(described)
        for name, value in items:
            yield from _nested_views(value, f"{place}.{name}" if place else f"{name}")


def _tensors(views: Mapping[str, _View], places: BytePlaces, size: int) -> dict[str, TensorInFile]:
    tensors: dict[str, TensorInFile] = {}
    num_bytes = 0
    for name, (storage, offset, shape, strides) in views.items():
        begin, length = places[storage.key]
        count = prod(shape)
        last = offset + sum((axis - 1) * stride for axis, stride in zip(shape, strides, strict=True))
        if count and last >= storage.num_numbers:
            raise ValueError("beyond its storage")
        if count > storage.num_numbers:
            raise _Refused(f"has {name:.100}, which repeats fewer numbers (expand): save it .contiguous()")
        if storage.num_numbers * storage.size > length or begin + length > size:
            raise EOFError
        num_bytes += count * storage.size
        in_order = (prod(shape[axis + 1 :]) for axis in range(len(shape)))
        is_in_order = count <= 1 or all(
            length == 1 or stride == expected
            for length, stride, expected in zip(shape, strides, in_order, strict=True)
        )
        more = None if is_in_order else strides
        tensors[name] = TensorInFile(
            storage.kind, shape, begin + (offset * storage.size if count else 0), more
        )
    if num_bytes > MOST_SHARED * size:
        raise ValueError("tensors that share their bytes")
    return tensors
