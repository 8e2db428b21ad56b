"""Shell completion of values: models, layers and heads (from headers only), and names in stores."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from attncli.commands.command import HEAD_KEYS, Parameter
from attncli.errors import RunError, UserError
from attncli.models.folder import GGUF, SHIPPED_MODEL, model_on_disk, models_in_packages, read_config
from attncli.models.weight_headers import ARCHITECTURE, gguf_header
from attncli.system.plain_text import whole_number

TEXT_PARTS = ("text_config", "decoder", "llm_config")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
"""Keys of the number of heads in model configs."""


def completions(
    parameter: Parameter, values: Mapping[str, Any], start: str, *, needs_model: bool
) -> list[str]:
    """Return the values that begin with `start`; if there are none, the shell completes file names.

    `values` are the values of earlier flags. If the command `needs_model`, the shipped model is used if
    --model is missing.
    """
    model = _last(values.get("model")) or (SHIPPED_MODEL if needs_model else None)
    match parameter.name:
        case "model":
            words = [*_models_in_folder(start), *models_in_packages()]
        case "layer" | "head" | "full" | "ablate" | "heads" | "into" if model is not None:
            words = [*_places(model, with_heads=parameter.name in HEAD_KEYS)]
        case "statistic" | "group_by" if values.get("store"):
            words = _names_in(Path(str(values.get("store"))), parameter.name)
        case _:
            words = [word.replace(" ", "-") for word in parameter.choices]  # bash would split them at a space
    before = start[: start.rfind(",") + 1] if parameter.kind == list[str] else ""
    return [whole for word in words if (whole := before + word).startswith(start)]


def _names_in(store: Path, parameter: str) -> list[str]:
    """Return a store's statistics, or the settings to group its runs by; none if the store cannot be read."""
    from attncli.runs.reading import groups_there, reading

    names: list[str] = []
    with suppress(UserError, RunError, OSError), reading(store) as reader:
        names = reader.statistics() if parameter == "statistic" else groups_there(reader)
    return names


def _last(values: Sequence[str] | None) -> str | None:
    """Return the last value, or None if the option was not passed; Typer reads an option as a list."""
    return values[-1] if values else None


def _local_path(model: str) -> Path | None:
    try:
        return model_on_disk(model, allow_download=False)
    except ValueError:  # a package with several models
        return None


def _models_in_folder(start: str) -> list[str]:
    """List the GGUF files, and the folders with a config.json, in the folder part of `start`."""
    folder = start[: start.rfind("/") + 1]
    try:
        names = sorted(path.name for path in Path(folder or ".").iterdir())
    except OSError:
        return []
    return [
        folder + name
        for name in names
        if Path(folder, name, "config.json").is_file() or name.lower().endswith(GGUF)
    ]


def _places(model: str, *, with_heads: bool) -> Iterator[str]:
    """Yield `LAYER` or `LAYER:HEAD` for each layer and head, or nothing if the counts are unknown."""
    num_layers, num_heads = _counts(model)
    for layer in range(num_layers):
        yield from (f"{layer}:{head}" for head in range(num_heads)) if with_heads else [str(layer)]


def _counts(model: str) -> tuple[int, int]:
    path = _local_path(model)
    if path is None:
        return 0, 0
    try:
        if path.is_file():
            header = gguf_header(path)
            heads = header.settings.get(f"{header.settings.get(ARCHITECTURE)}.attention.head_count")
            return header.num_blocks, heads if isinstance(heads, int) else 0
        config = read_config(path / "config.json")
    except UserError:
        return 0, 0
    parts = [config, *(config[part] for part in TEXT_PARTS if isinstance(config.get(part), dict))]
    return _first_number(parts, LAYERS), _first_number(parts, HEADS)


def _first_number(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    """Return the number stored under the first of these names that has a number, or else 0."""
    numbers = (part[name] for name in names for part in parts if isinstance(part.get(name), int))
    return next(numbers, 0)


@contextmanager
def whole_words_in_bash() -> Iterator[None]:
    """Print only the part after the colon of each completion, because Bash splits words like `1:0` there.

    Raises UserError if the environment variables that Bash sets are missing or invalid.
    """
    words, number = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    current = whole_number(number)
    if current is None:
        raise UserError(f"COMP_CWORD: must be the number of a word (got {number:.60})")
    last = words[current] if current < len(words) else ""
    while ":" in words[2 : current + 1]:
        place = words.index(":", 2)
        has_end = place < current and words[place + 1][:1] not in ("", "-")
        end = place + 2 if has_end else place + 1
        words[place - 1 : end] = ["".join(words[place - 1 : end])]
        current -= end - place
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(current)}
    before = words[current].removesuffix(last.removesuffix(":")) if last else ""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        print("\n".join(line.removeprefix(before) for line in printed.getvalue().split("\n")), end="")
