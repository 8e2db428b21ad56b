"""What is known of a model from before, kept in the user's cache by the contents of its weights."""

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


def place_of(spec: ModelSpec, what: str = HEADS) -> Path | None:
    """The file that keeps something about a model; None for a model without files of weights."""
    source = spec.model_source()
    folder = None if source is None else local_model(source)
    if folder is None:
        return None
    with suppress(OSError):
        digests = [content_digest(file) for file in sorted(weight_files(folder))]
        return cache_folder(what) / f"{sha256(''.join(digests).encode()).hexdigest()[:32]}.json"
    return None


def kept_heads(spec: ModelSpec) -> list[str] | None:
    """The heads that were chosen for a model, an empty list where none retrieves; None before a search."""
    place = place_of(spec)
    if place is None or not place.exists():
        return None
    try:
        match parsed_json(place.read_bytes()):
            case {"heads": [*heads]} if all(isinstance(head, str) for head in heads):
                return [f"{head.layer}:{head.head}" for head in map(named_head, heads)]
        raise ValueError("without heads")
    except (OSError, ValueError):
        raise UserError(f"head: {place} is damaged: attn source --find-heads writes it anew") from None


def named_or_kept(named: str | None, kept: list[str] | None) -> list[str]:
    """The heads that are named, else those that are kept for the model."""
    return named.split(",") if named else kept or []


def keep_heads(spec: ModelSpec, result: "RetrievingHeads | None") -> Path | None:
    """Write the chosen heads whole, or that there are none; None where there is no place for them."""
    chosen = {"contexts": result.num_contexts, "seed": result.seed} if result else {}
    return keep(spec, HEADS, {**chosen, "heads": result.heads if result else []}, "find_heads")


def keep(spec: ModelSpec, what: str, of_model: Mapping[str, Any], key: str) -> Path | None:
    """Write a file whole; None where there is no place for it. Raises UserError, at `key`, if it cannot."""
    place = place_of(spec, what)
    if place is None:
        return None
    part = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"model": spec.model_source(), **of_model}), encoding="utf-8")
        part.replace(place)
    except OSError as error:
        raise UserError(f"{key}: {place}: cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return place
