"""Measurements of a model (its retrieving heads) in the user's cache, under a digest of its weights."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.models.digests import cache_folder, content_digest
from attncli.models.folder import local_model, weight_files
from attncli.settings.models import ModelSpec
from attncli.system.plain_text import parsed_json

if TYPE_CHECKING:
    from attncli.features.source.results import RetrievingHeads

HEADS = "heads"


def cache_file(spec: ModelSpec, what: str = HEADS) -> Path | None:
    """The cache file of a model, or None for a model without weight files."""
    source = spec.model_source()
    folder = None if source is None else local_model(source)
    if folder is None:
        return None
    with suppress(OSError):
        digests = [content_digest(file) for file in sorted(weight_files(folder))]
        return cache_folder(what) / f"{sha256(''.join(digests).encode()).hexdigest()[:32]}.json"
    return None


def cached_heads(spec: ModelSpec) -> list[str] | None:
    """A model's retrieving heads (an empty list if it has none), or None if the model was never searched."""
    file = cache_file(spec)
    if file is None or not file.exists():
        return None
    try:
        match parsed_json(file.read_bytes()):
            case {"heads": [*heads]} if all(isinstance(head, str) for head in heads):
                return [f"{head.layer}:{head.head}" for head in map(named_head, heads)]
        raise ValueError("without heads")
    except (OSError, ValueError):
        raise UserError(
            f"head: {file} is damaged: run attn source --find-heads to rewrite the file"
        ) from None


def explicit_or_cached_heads(names: str | None, cached: list[str] | None) -> list[str]:
    """The heads named in the settings or, if none are named, the cached heads."""
    return names.split(",") if names else cached or []


def cache_heads(spec: ModelSpec, result: "RetrievingHeads | None") -> Path | None:
    """Cache the retrieval heads or their absence. Return the path, or None if there is no cache file."""
    chosen = {"contexts": result.num_contexts, "seed": result.seed} if result else {}
    return write_cache_file(spec, HEADS, {**chosen, "heads": result.heads if result else []}, "find_heads")


def write_cache_file(spec: ModelSpec, what: str, content: Mapping[str, Any], key: str) -> Path | None:
    """Replace a cache file. Return its path, or None if the model has no cache file.

    Raises UserError, about `key`, if the file cannot be written.
    """
    file = cache_file(spec, what)
    if file is None:
        return None
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"model": spec.model_source(), **content}), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise UserError(f"{key}: {file}: cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return file
