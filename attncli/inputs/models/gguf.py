"""GGUF files, as llama.cpp reads: read once by transformers, kept as safetensors in the user's cache."""

import io
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from attncli.errors import UserError, WriteError
from attncli.file_digests import cache_folder, content_digest
from attncli.inputs.models.model_folder import quiet_transformers

PACKAGES = ("gguf", "accelerate")
MAGIC = b"GGUF"
NUMBERS = dict(enumerate("BbHhIif?")) | dict(zip((10, 11, 12), "Qqd", strict=True))
TEXT, ARRAY = 8, 9
"""The types of values in a GGUF header: numbers as `struct` has them, texts, and arrays of any of them."""


def check_gguf(path: Path) -> None:
    """UserError, in one line, for what is not a GGUF file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    if start != MAGIC:
        raise UserError(f"model: {path}: is not a GGUF file")


def num_parameters_of_gguf(path: Path) -> int:
    """How many numbers a GGUF file holds, however few bits each takes, from its header.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. UserError for a damaged file.
    """
    check_gguf(path)
    try:
        with path.open("rb") as file:
            *_, num_tensors, num_values = _numbers(file, "4sIQQ")
            for _ in range(num_values):
                _skip(file, TEXT)  # its name
                _skip(file, *_numbers(file, "I"))
            return sum(_tensor_size(file) for _ in range(num_tensors))
    except (OSError, OverflowError, KeyError, struct.error):
        raise UserError(f"model: {path}: is not a GGUF file: its header is damaged") from None


def _numbers(file: BinaryIO, form: str) -> tuple[Any, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _skip(file: BinaryIO, kind: int, count: int = 1) -> None:
    """Leave out values of one type; those of variable length one by one."""
    if kind == TEXT:
        for _ in range(count):
            (length,) = _numbers(file, "Q")
            file.seek(length, io.SEEK_CUR)
    elif kind == ARRAY:
        for _ in range(count):
            _skip(file, *_numbers(file, "IQ"))
    else:
        file.seek(count * struct.calcsize(f"<{NUMBERS[kind]}"), io.SEEK_CUR)


def _tensor_size(file: BinaryIO) -> int:
    _skip(file, TEXT)
    (num_axes,) = _numbers(file, "I")
    *shape, _kind, _offset = _numbers(file, f"{num_axes}QIQ")
    return prod(shape)


def folder_of_gguf(path: Path, tell: Callable[[str], None] | None) -> Path:
    """The folder with what a GGUF file holds, found by the file's content; made where it does not exist yet.

    `tell` gets a line when it was made. UserError for a file that transformers cannot read.
    """
    folder = cache_folder("gguf") / content_digest(path)[:32] / path.stem
    if not folder.is_dir():
        if any(find_spec(package) is None for package in PACKAGES):
            raise UserError('model: a GGUF file needs: pip install "attncli[gguf]"')
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
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

    quiet_transformers()
    options = {"gguf_file": path.name, "local_files_only": True}
    try:
        # Its own progress goes nowhere: attn reports one line.
        with redirect_stderr(io.StringIO()):
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                path.parent, dtype=torch.float32, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    except Exception as error:  # a damaged file may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model: {path}: cannot be read as GGUF: {reason:.200}") from None
    # The weights are plain numbers by now, but transformers refuses to write what was quantized once.
    vars(model)["hf_quantizer"] = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
