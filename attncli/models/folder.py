"""Checks of a model folder or a GGUF file, before torch is imported."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from itertools import islice
from logging import CRITICAL
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from threading import get_ident
from typing import TYPE_CHECKING, Any

from attncli.core.process import ALONE, SharedChange, quiet_warnings
from attncli.errors import UserError, one_line_reason, similar_word
from attncli.system.files import (
    INDEX_BYTES,
    MODEL_SETTINGS_BYTES,
    VOCABULARY_BYTES,
    check_file,
    not_a_file,
    read_whole,
)
from attncli.system.plain_text import parsed_json
from attncli.system.signals import is_command_line

if TYPE_CHECKING:
    from attncli.models.weight_headers import TensorInFile

PACKAGES = ("transformers", "safetensors", "tokenizers")
PICKLED = (".bin", ".pt", ".pth")
"""Suffixes of the files that torch.save writes."""
PICKLED_WHOLE = "pytorch_model.bin"
NOT_WEIGHTS = re.compile(r"(training_args|adapter_model|optimizer|scheduler|scaler|rng_state|global_step).*")
"""Matches the files that trainers and adapters leave beside the weights."""
UNSUPPORTED_WEIGHTS = ("*.ckpt", "*.h5", "*.msgpack")
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (
    TOKENIZER,
    "vocab.txt",
    "vocab.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "tekken.json",
)
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Names of files with the settings for turning a file other than text into a model's input."""
IDS_INSTEAD = 'use token ids instead of text: lines of JSON such as {"ids": [12, 7, 13]} in `texts` or `file`'
"""The inputs of a model without a tokenizer."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
VIRTUAL_TOKENS = (
    "its adapter puts learned vectors before a text (prompt or prefix tuning), which attn does not support: "
    "use the model without the adapter"
)
READ = frozenset({".json", ".safetensors", ".txt", ".jinja", ".gguf", ".model", ".spm", ".tiktoken"})
"""Suffixes of files that transformers reads.

A pipe or folder with such a name would be skipped, or would block.
"""
SHARDED, PICKLED_SHARDED = "model.safetensors.index.json", "pytorch_model.bin.index.json"
MOST_BYTES = {
    **dict.fromkeys((TOKENIZER, "tekken.json", "*.model", "*.spm", "*.tiktoken"), VOCABULARY_BYTES),
    **dict.fromkeys(("vocab*.json", "vocab*.txt", "merges.txt"), VOCABULARY_BYTES),
    "*.index.json": INDEX_BYTES,
    **dict.fromkeys(("*config.json", "*_tokens*.json", "chat_template*"), MODEL_SETTINGS_BYTES),
}
"""The files that transformers reads completely, each with its size limit in bytes."""
REPEATED = re.compile(r"(^|_)(layers?|depth)$")
"""Matches settings for numbers of parts; all parts are built before any weight is read."""
HEADS = re.compile(r"^(n|num)_(\w+_)?heads?$|attention_heads$")
"""Matches settings for the number of heads."""
FEW_PARTS = 1000
LABELS, MOST_LABELS = "num_labels", 1_000_000
"""The setting for the number of labels.

Each label gets a name before any weight is read; other label settings are weight sizes.
"""
MOST_BYTES_PER_BYTE, SPACIOUS_BYTES = 16, 2**30
"""Bytes of memory allowed per byte of a file (four float32 weights), and bytes for tables of positions."""
MOST_PER_TENSOR, SPACIOUS_TENSORS = 8, 10_000
"""Tensors allowed in a model per tensor in its files, and the number of tensors allowed in addition."""
MOST_REASON = 300
"""The most characters of another program's error that a message repeats."""
READ_FIRST_BYTES = 2**28
"""The size of a model's widened weights up to which all of them are read before the first is used."""
GGUF = ".gguf"
WEIGHTS = (".safetensors", ".bin", ".pt", ".h5")
UNSUPPORTED_MODELS = (".onnx", ".pth", ".ckpt", ".tflite", ".mlmodel", ".pb")
"""Suffixes of model files that only other programs read."""
HOLDS_A_MODEL = re.compile(r"(\.gguf|\.safetensors|pytorch_model\.bin),")
"""Matches a line in a package's list of files that names a model."""
SHIPPED_MODEL = str(Path(__file__).parents[1] / "data" / "tiny-induction")
"""The folder of the tiny model that ships with the package; it has learned to copy random characters."""


def local_model(model: str) -> Path | None:
    """Return a model's folder or GGUF file, or None for a name that only a model on the hub could have.

    Raises ValueError for a package that ships several models.
    """
    path = Path(model)
    with suppress(OSError):  # the name may be too long for a path
        if path.is_dir() or (path.suffix.lower() == GGUF and path.is_file()):
            return path
    if model == Path(SHIPPED_MODEL).name:
        return Path(SHIPPED_MODEL)
    return None if len(path.parts) > 1 else _package_model(model)


def model_on_disk(model: str, *, allow_download: bool) -> Path | None:
    """Return a model's files on this machine: those of `local_model`, or a hub id's cached snapshot.

    With `allow_download`, the snapshot is skipped, since the hub may have a newer version. Raises ValueError
    for a package that ships several models.
    """
    path = local_model(model)
    return downloaded_snapshot(model) if path is None and not allow_download else path


def _package_files(package: str) -> list[Path] | None:
    """Return a package's list of files without running its code, or None if the package is not installed."""
    try:
        listed = distribution(package).files if package.strip() else None
    except (PackageNotFoundError, ValueError):
        return None
    return None if listed is None else [Path(str(file.locate())) for file in listed]


@lru_cache(maxsize=64)
def _package_model(name: str) -> Path | None:
    paths = _package_files(name) or []
    models = [path for path in paths if path.suffix.lower() == GGUF]
    if not models:
        configured = {path.parent for path in paths if path.name == "config.json"}
        weighed = {path.parent for path in paths if path.suffix in WEIGHTS}
        models = sorted(configured & weighed)
    if len(models) > 1:
        names = ", ".join(map(str, models))
        raise ValueError(f"{name} ships several models: use one of {names}")
    return models[0] if models else None


@cache
def models_in_packages() -> list[str]:
    """Return the installed packages that ship one model."""
    names = {
        package.name for package in distributions() if HOLDS_A_MODEL.search(package.read_text("RECORD") or "")
    }
    return sorted(name for name in names if _is_model(name))


def _is_model(package: str) -> bool:
    try:
        return _package_model(package) is not None
    except ValueError:  # a package that ships several models
        return False


def no_such_model(name: str, allow_download: str) -> str:
    """Return the error for a name that is not a local model; `allow_download` is the name of that setting."""
    if (files := _package_files(name)) is not None:
        return _no_model_in(name, files, allow_download)
    near = similar_word(name.rpartition("/")[2], models_in_packages())
    suggestion = f"did you mean {near}? " if near else ""
    name = f"{name:.200}" if name.isprintable() else repr(name[:200])
    message = f"no such folder or installed package: {name} ({suggestion}a hub id needs {allow_download})"
    return f"{message}{_instead(name)}" if is_command_line() else message


MOST_COMMAND = 300
"""The most characters of a command that is repeated in a message."""
MOST_FOLDERS, MOST_MODELS = 200, 5
"""The most folders that are searched, and the most models that are listed."""
DOWNLOADED = "models--"
"""The prefix of a model's folder in the hub cache; the parts of its id are joined by `--`."""
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
REVISION_BYTES = 2**16
"""Size limit, in bytes, for a file with a commit hash in the hub cache."""


def _instead(name: str) -> str:
    """Suggest what to use instead: models (similar names first) and a download command."""
    downloaded = _downloaded()
    here = [*_folders_beside(), *models_in_packages(), *(f"{each} (downloaded)" for each in downloaded)]
    near = similar_word(name.rpartition("/")[2], [each.rpartition("/")[2] for each in here])
    here.sort(key=lambda each: each.rpartition("/")[2] != near)
    instead = ""
    if here:
        more = f" and {len(here) - MOST_MODELS} more" if len(here) > MOST_MODELS else ""
        instead = f"; models here: {', '.join(here[:MOST_MODELS])}{more}"
    command = shlex.join(["attn", *sys.argv[1:], "--allow-download"])
    if name in sys.argv and len(command) <= MOST_COMMAND and command.isprintable():
        instead += f"; {'to use the download' if name in downloaded else 'to download it'}: {command}"
    return instead


def _folders_beside() -> list[str]:
    """Return the models in the working folder's subfolders, down to the second level."""
    models: list[str] = []
    with suppress(OSError):
        for pattern in ("*/config.json", "*/*/config.json", "*.gguf"):
            for path in islice(Path().glob(pattern), MOST_FOLDERS):
                is_model = path.suffix == GGUF or any(path.parent.glob("*.safetensors"))
                if is_model and str(path).isprintable():
                    models.append(f"./{path if path.suffix == GGUF else path.parent}")
    return sorted(models)


def hub_cache() -> Path:
    """Return the folder of huggingface_hub's downloads, from the environment variables that it reads.

    Raises RuntimeError if the home folder is unknown.
    """
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "huggingface" / "hub"


def downloaded_snapshot(model: str) -> Path | None:
    """Return the cached snapshot of ID or ID@REVISION, or None if that lacks a config or weights."""
    name, revision = id_and_revision(model)
    if not HUB_ID.fullmatch(name) or ".." in Path(revision).parts or Path(revision).is_absolute():
        return None
    with suppress(OSError, RuntimeError, ValueError):
        folder = hub_cache() / f"{DOWNLOADED}{name.replace('/', '--')}"
        reference = folder / "refs" / revision
        commit = read_whole(reference, REVISION_BYTES).decode().strip() if reference.is_file() else revision
        snapshot = folder / "snapshots" / commit
        has_weights = any(path.suffix in WEIGHTS for path in snapshot.iterdir())
        if snapshot.parent == folder / "snapshots" and has_weights and (snapshot / "config.json").is_file():
            return snapshot
    return None


def _downloaded() -> list[str]:
    """Return the ids of models that have a revision in the hub cache."""
    with suppress(OSError, RuntimeError):
        folders = [path for path in hub_cache().glob(f"{DOWNLOADED}*") if any(path.glob("snapshots/*"))]
        return sorted(path.name.removeprefix(DOWNLOADED).replace("--", "/") for path in folders)
    return []


def _no_model_in(package: str, files: Sequence[Path], allow_download: str) -> str:
    """Return the error message for an installed package without a supported model."""
    unsupported = [file.name for file in files if file.suffix.lower() in (*WEIGHTS, *UNSUPPORTED_MODELS)]
    needs = "config.json beside weights, or a .gguf file"
    instead = f"; convert its {unsupported[0]} to such a folder, as in docs/images.md" if unsupported else ""
    ships = f"the installed package {package} ships no model that attn can read ({needs})"
    return f"{ships}{instead}; a hub id needs {allow_download}"


def opened_part(opener: Any, source: str, what: str, **how: Any) -> Any:
    """Return the part of a model that a transformers auto class loads from local files or from the hub.

    Raises UserError if that fails; the message begins with `what` ("tokenizer: that of whisper").
    """
    is_here = Path(source).exists()
    source, revision = id_and_revision(source)
    try:
        with quiet_warnings():
            return opener.from_pretrained(
                source, trust_remote_code=False, local_files_only=is_here, revision=revision, **how
            )
    except Exception as error:  # a damaged file may fail in any way
        reason = one_line_reason(error)
        if "torchvision" in reason.lower():
            reason = "it needs torchvision, since it has no version that uses Pillow"
        raise UserError(f"{what} cannot be opened: {reason:.{MOST_REASON}}") from None


def id_and_revision(model: str) -> tuple[str, str]:
    """Split a hub id from the revision after its @, by default main. A folder or file has no revision."""
    name, _, revision = (model, "", "") if Path(model).exists() else model.partition("@")
    return name, revision or "main"


def check_packages() -> None:
    """Raise UserError if the `models` extra is not installed."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise UserError('model: needs: pip install "attncli[models]"')


def quiet_transformers() -> None:
    """Silence the messages and progress bars of transformers, since attn reports what users need to know."""
    from transformers.utils import logging

    # transformers does not annotate these.
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _verbosity_restorer() -> Callable[[], None]:
    """Return a function that restores the current verbosity of transformers."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()

    def say_again() -> None:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call] # as above

    return say_again


_quiet = SharedChange(_verbosity_restorer, quiet_transformers)


def transformers_quiet() -> AbstractContextManager[None]:
    """Silence transformers inside the block, and restore its verbosity afterwards."""
    return _quiet.made()


@contextmanager
def panics_in_one_line() -> Iterator[None]:
    """Turn a panic in the Rust code of tokenizers into a ValueError, without printing its stack trace."""
    with ALONE, TemporaryFile() as captured:
        stderr = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":  # the class of this error is Rust's PanicException
                raise
            captured.truncate(0)
            raise ValueError(str(error)) from None
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            os.write(2, captured.read())


def check_model_folder(folder: Path) -> None:
    """Raise a one-line UserError for a folder without a model, or with damaged files."""
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"model: {folder}: cannot be read: {error.strerror}") from None
    if folder / "config.json" not in files:
        instead = "use a folder from save_pretrained, or a .gguf file"
        if folder / ADAPTER in files:
            instead = "it has only an adapter: put the files of the base model beside the adapter"
        raise UserError(f"model: {folder}: is not a model folder: config.json is missing: {instead}")
    for path in files:
        if path.suffix in READ:
            _check_file(path)
    config = read_config(folder / "config.json")
    weights = [path for path in files if path.suffix == ".safetensors" and path.name != ADAPTER_WEIGHTS]
    if not weights:
        weights = _pickled_files(folder)
        for path in weights:
            _check_file(path)
    elif folder / SHARDED in files and folder / "model.safetensors" not in files:
        _check_shards(folder / SHARDED)
    if not weights:
        unsupported = [path.name for pattern in UNSUPPORTED_WEIGHTS for path in sorted(folder.glob(pattern))]
        if unsupported:
            reason = f"has only {unsupported[0]}, which is not supported: convert it to model.safetensors"
            raise UserError(f"model: {folder}: {reason}")
        raise UserError(f"model: {folder}: has no weights: model.safetensors is missing")
    num_tensors = sum(len(_checked_sizes(path)) for path in weights)
    for key, count in _counts(config):
        if HEADS.search(key) and count < 1:
            raise UserError(f"model: {folder / 'config.json'}: {key} must be at least 1 (got {count!s:.20})")
        most = MOST_LABELS if key == LABELS else max(FEW_PARTS, num_tensors)
        if count > most and (key == LABELS or REPEATED.search(key)):
            reason = "" if key == LABELS else f" for a checkpoint of {num_tensors} tensors"
            wrong = f"{key} must be at most {most}{reason} (got {count!s:.20})"
            raise UserError(f"model: {folder / 'config.json'}: {wrong}")
    _check_adapter(folder)
    if folder / TOKENIZER in files:
        check_tokenizer_file(folder / TOKENIZER)


def check_tokenizer_file(path: Path) -> None:
    """Raise UserError for a tokenizer.json that is too large, is not JSON, or expands texts too much."""
    _check_file(path)
    from attncli.models.tokenizer_files import check_tokenizer

    check_tokenizer(path, partial(read_json, path, VOCABULARY_BYTES))


def has_tokenizer(folder: Path) -> bool:
    """Return True if a folder has tokenizer files, which a model without text input does not need."""
    return any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern))


def refuse_without_tokenizer(folder: Path) -> None:
    """Raise UserError for the folder of a text model that has no tokenizer files."""
    if not has_tokenizer(folder) and not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise UserError(f"model: {folder.name} has no tokenizer ({TOKENIZER} is missing): {IDS_INSTEAD}")


def _check_adapter(folder: Path) -> None:
    """Raise UserError for an adapter that transformers would silently ignore, or would read from a pickle."""
    if not (folder / ADAPTER).is_file():
        return
    if find_spec("peft") is None:
        reason = f"has an adapter ({ADAPTER}): needs: pip install peft"
        raise UserError(
            f"model: {folder}: {reason} (or remove the file to show the model without the adapter)"
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(f"model: {folder}: has no weights for its adapter: {ADAPTER_WEIGHTS} is missing")
    settings = read_json(folder / ADAPTER)
    if isinstance(settings, dict) and settings.get("num_virtual_tokens"):
        raise UserError(f"model: {folder}: {VIRTUAL_TOKENS}")


def _check_file(path: Path) -> None:
    """Raise UserError for anything but a readable file, and for a file that is too large for its purpose."""
    try:
        if wrong := not_a_file(path.stat().st_mode):
            raise UserError(f"model: {path}: {wrong}")
        check_file(path, next((most for name, most in MOST_BYTES.items() if path.match(name)), None))
    except FileNotFoundError:
        raise UserError(f"model: {path}: is a broken link, not a file") from None
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    if not os.access(path, os.R_OK):
        raise UserError(f"model: {path}: cannot be read: Permission denied")


def read_json(path: Path, most: int = MODEL_SETTINGS_BYTES) -> Any:
    """Return the contents of a model's JSON file.

    Raises UserError for invalid JSON, and for more than `most` bytes.
    """
    try:
        return parsed_json(read_whole(path, most))
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # neither JSON nor UTF-8, or a number with thousands of digits
        raise UserError(f"model: {path}: is not valid JSON: {error}") from None


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in a config. Raises UserError if the config does not describe a model."""
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UserError(f"model: {path}: has no model_type: is this a transformers model?")
    return config


def _check_shards(path: Path) -> list[Path]:
    """Return the files of an index. Raises UserError for an index with files outside its folder."""
    index = read_json(path, INDEX_BYTES)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"model: {path}: has no weight_map")
    names = [*dict.fromkeys(map(str, shards.values()))]
    for name in names:
        if Path(name).name != name or not (path.parent / name).is_file():
            raise UserError(f"model: {path}: lists {name:.200}, but the folder has no such file")
    return [path.parent / name for name in names]


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield every whole number of a config and of the configs inside it, with its key."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _counts(value)
        elif isinstance(value, int):
            yield key, value


def _checked_sizes(path: Path) -> list[int]:
    """Return the number of entries of each tensor, counting tied tensors once.

    Raises UserError for a damaged file.
    """
    distinct = {(tensor.begin, tensor.shape): tensor for tensor in tensors_in(path).values()}
    return [prod(tensor.shape) for tensor in distinct.values()]


def tensors_in(path: Path) -> "dict[str, TensorInFile]":
    """Return the tensors of a weight file by name, from its header. Raises UserError for a damaged file."""
    if path.suffix == ".safetensors":
        from attncli.models.weight_headers import safetensors_tensors

        return safetensors_tensors(path)
    from attncli.models.pickled_weights import pickled_tensors

    return pickled_tensors(path)


def num_parameters(model: Path) -> int:
    """Return the number of parameters in a folder or GGUF file, from headers, regardless of their bits.

    A folder without weights has 0. Raises UserError for a damaged file.
    """
    if model.is_file():
        from attncli.models.weight_headers import gguf_header

        return gguf_header(model).num_parameters
    return sum(sum(_checked_sizes(path)) for path in weight_files(model))


def stored_bytes(model: Path) -> int:
    """Return the size of the weights of a folder or GGUF file on disk."""
    return sum(path.stat().st_size for path in weight_files(model))


def weight_files(model: Path) -> list[Path]:
    """Return the files that hold the weights of a folder, or a GGUF file itself."""
    whole = model / "model.safetensors"
    if model.is_file() or whole.is_file():
        return [model if model.is_file() else whole]
    # Otherwise there are shards; files in Mistral's format may also exist.
    files = [path for path in model.glob("*.safetensors") if path.is_file() and path.name != ADAPTER_WEIGHTS]
    if not files:
        return _pickled_files(model)
    return [path for path in files if not path.name.startswith("consolidated")]


def _pickled_files(folder: Path) -> list[Path]:
    """Return the weight files that torch.save wrote.

    Raises UserError if these could be any of several files.
    """
    if (folder / PICKLED_WHOLE).exists():
        return [folder / PICKLED_WHOLE]
    if (folder / PICKLED_SHARDED).is_file():
        return _check_shards(folder / PICKLED_SHARDED)
    files = [path for path in sorted(folder.iterdir()) if path.suffix in PICKLED]
    weights = [path for path in files if not NOT_WEIGHTS.fullmatch(path.name)]
    if len(weights) > 1:
        names = ", ".join(path.name for path in weights[:3]) + (", ..." if len(weights) > 3 else "")
        several = f"has several files that may contain its weights ({names})"
        raise UserError(f"model: {folder}: {several}: rename the right one to {PICKLED_WHOLE}")
    return weights


def pickled_note(folder: Path) -> str | None:
    """Return a note on how to convert a folder's pickled weights, or None for other folders."""
    files = weight_files(folder)
    if not files or files[0].suffix not in PICKLED:
        return None
    names = read_config(folder / "config.json").get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    kind = name if isinstance(name, str) and name.isidentifier() else "AutoModel"
    convert = f"{kind}.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    return f"{files[0].name} is pickled (no code in it is run); to convert it to safetensors: {convert}"


@contextmanager
def bounded_building(config: Path, *, size: int, num_tensors: int) -> Iterator[None]:
    """Raise UserError for a config that describes far more weights than `size` bytes can hold.

    A model is built without memory (on the meta device), but weights missing from its files are then
    allocated.
    """
    from torch import Tensor, nn
    from torch.nn.modules.module import (
        register_module_buffer_registration_hook,
        register_module_parameter_registration_hook,
    )

    most_bytes = SPACIOUS_BYTES + MOST_BYTES_PER_BYTE * size
    most_tensors = SPACIOUS_TENSORS + MOST_PER_TENSOR * num_tensors
    taken = count = 0
    builder = get_ident()

    def add(_module: nn.Module, _name: str, tensor: Tensor | None) -> None:
        nonlocal taken, count
        if tensor is None or not tensor.is_meta or get_ident() != builder:
            return
        taken, count = taken + tensor.nbytes, count + 1
        if taken > most_bytes:
            sizes = (
                f"more than {most_bytes / 1e6:,.0f} MB of weights, but its files have {size / 1e6:,.1f} MB"
            )
            raise UserError(f"model: {config}: describes {sizes}")
        if count > most_tensors:
            counts = f"more than {most_tensors} tensors, but its files have {num_tensors}"
            raise UserError(f"model: {config}: describes {counts}")

    with ExitStack() as hooks:
        hooks.callback(register_module_parameter_registration_hook(add).remove)
        hooks.callback(register_module_buffer_registration_hook(add).remove)
        yield


def bounded_by_files(folder: Path) -> AbstractContextManager[None]:
    """Keep a model from being built with more weights than a folder or GGUF file can hold.

    There is no limit for a model on the hub.
    """
    if folder.is_file():
        from attncli.models.weight_headers import BYTES_A_NUMBER, gguf_header

        header = gguf_header(folder)
        size = BYTES_A_NUMBER * header.num_parameters
        return bounded_building(folder, size=size, num_tensors=len(header.tensors))
    files = weight_files(folder) if folder.is_dir() else []
    if not files:
        return nullcontext()
    return bounded_building(
        folder / "config.json",
        size=sum(file.stat().st_size for file in files),
        num_tensors=sum(len(_checked_sizes(file)) for file in files),
    )
