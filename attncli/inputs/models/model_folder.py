"""What a folder must hold to be a model: checked before torch and transformers are imported."""

import json
from importlib.util import find_spec
from math import prod
from pathlib import Path

from attncli.errors import UserError

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
LFS = b"version https://git-lfs"
LARGEST_HEADER = 100_000_000


def check_packages() -> None:
    """UserError where the extra that reads models is not installed."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise UserError('model: needs: pip install "attncli[models]"')


def quiet_transformers() -> None:
    """No warnings and no progress of its own: what a user must know, attn says."""
    from transformers.utils import logging

    # transformers leaves these without types.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def check_model_folder(folder: Path) -> None:
    """UserError, in one line, for a folder that is not a model, has no tokenizer, or has damaged files."""
    _check_config(folder / "config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickled = [path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))]
        if pickled:
            reason = f"has only pickled weights ({pickled[0]}), which can run code when they are read"
            raise UserError(f"model: {folder}: {reason}: save it as safetensors")
        raise UserError(f"model: {folder}: has no weights: model.safetensors is missing")
    for path in weights:
        _check_weights(path)
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


def _check_config(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"model: {path.parent}: is not a model folder: config.json is missing")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"model: {path}: is not valid JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UserError(f"model: {path}: names no model_type: is this a transformers model?")


def _check_weights(path: Path) -> None:
    """The header of a safetensors file: its length (8 bytes, little-endian), then JSON with offsets."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(LFS))
        if start == LFS:
            raise UserError(f"model: {path}: is a Git LFS pointer, not the weights: run git lfs pull")
        length = int.from_bytes(start[:8], "little")
        if not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise UserError(f"model: {path}: is not a safetensors file, or is cut off")
        file.seek(8)
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            raise UserError(f"model: {path}: is not a safetensors file: its header is damaged") from None
    promised = 8 + length + max(ends, default=0)
    if promised != size:
        raise UserError(f"model: {path}: is cut off: its header promises {promised} bytes")


def num_parameters(folder: Path) -> int:
    """How many numbers the weights of a folder hold, from the headers of its safetensors files.

    0 without such a file; UserError for a damaged one.
    """
    whole = folder / "model.safetensors"
    # Otherwise shards; Mistral's own format may stand beside either.
    shards = [
        path
        for path in folder.glob("*.safetensors")
        if path.is_file() and not path.name.startswith("consolidated")
    ]
    return sum(map(_num_parameters, [whole] if whole.is_file() else shards))


def _num_parameters(path: Path) -> int:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LARGEST_HEADER)))
        return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"model: {path}: is not a safetensors file: its header is damaged") from None
