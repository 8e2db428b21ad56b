"""Check of how much a tokenizer.json lengthens a short text, before it is used: anyone may have written it.

Its normalizers may double a text forty times, and its post-processor may add a million tokens to each text.
The most that each part can lengthen a text is known; if all parts together could exceed the limit, the
tokenizer is tried in a separate process.
"""

import string
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf, prod
from pathlib import Path
from typing import Any

from attncli.errors import UserError, one_line_reason
from attncli.models.child import MOST_MEMORY, made_in_child
from attncli.models.digests import cache_folder, content_digest
from attncli.system.files import MEBIBYTE

PARTS = ("normalizer", "pre_tokenizer", "decoder")
"""The parts of a tokenizer that replace a text by another text."""
SEQUENCES = ("normalizers", "pretokenizers", "decoders", "processors")
"""The names under which a sequence lists its parts."""
GROWTH = {
    **dict.fromkeys(("NFC", "NFD", "StripAccents", "Strip", "Lowercase", "Nmt", "Punctuation", "Digits"), 4),
    **dict.fromkeys(("NFKC", "NFKD"), 11),
    **dict.fromkeys(("BertNormalizer", "BertPreTokenizer", "ByteLevel", "Metaspace"), 4),
    **dict.fromkeys(("Whitespace", "WhitespaceSplit", "CharDelimiterSplit", "UnicodeScripts", "Split"), 1),
    **dict.fromkeys(("FixedLength", "ByteFallback", "Fuse", "WordPiece", "BPEDecoder", "CTC"), 4),
}
"""The largest growth of a text in bytes, by type of part."""
MOST_GROWTH, MOST_ADDED = 1000, 1000
"""The growth in bytes above which a tokenizer is tried, and the most tokens that it may add to each text."""
SMALL_BYTES = MEBIBYTE
"""Files up to this size are checked in a few ms, so their results are not cached."""
MOST_TRIED, LONGEST_TRIED, MOST_DECODED = 20_000, 200, 1000
"""The most characters of the text for a trial, of each text from the file, and the most tokens to decode."""
MEMORY_PER_BYTE = 40
"""The memory that a tokenizer takes per byte of its file."""


def check_tokenizer(path: Path, read: Callable[[], Any]) -> None:
    """Raise UserError for a tokenizer.json that produces far more tokens than a text's length warrants.

    `read` reads the file. The digest of a harmless file is cached, so that the file is not read again.
    """
    note = None
    size = path.stat().st_size
    if size > SMALL_BYTES:
        with suppress(OSError):
            note = cache_folder("tokenizers") / content_digest(path)[:32]
            if note.exists():
                return
    written = read()
    if not isinstance(written, dict):
        return  # the code that loads the file raises the error
    added = _added(written.get("post_processor"))
    if MOST_ADDED < added < inf:
        raise UserError(f"model: {path}: adds {added:,.0f} tokens to every text (limit: {MOST_ADDED:,})")
    if added == inf or prod(_growth(written.get(name)) for name in PARTS) > MOST_GROWTH:
        memory = max(MOST_MEMORY, MEMORY_PER_BYTE * size)
        try:
            made_in_child(partial(_tried, path, written), most_memory=memory, is_quiet=True)
        except ValueError as error:
            raise UserError(f"model: {path}: expands a short text too much: {error}") from None
    if note is not None:
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def _growth(part: Any) -> float:
    """Return the most bytes that a part makes of one byte, or infinity for an unknown type of part."""
    match part:
        case None:
            return 1.0
        case {"type": "Sequence"}:
            return float(prod(_growth(inner) for inner in _inner(part)))
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new.encode("utf-8", "replace")) / len(old.encode("utf-8", "replace")))
        case {"type": "Replace", "content": str(text)} | {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text.encode("utf-8", "replace"))
        case {"type": "Precompiled", "precompiled_charsmap": str(characters)}:
            return _longest_replacement(characters)
        case {"type": str(kind)}:
            return float(GROWTH.get(kind, inf))
    return inf


def _inner(sequence: dict[str, Any]) -> list[Any]:
    """Return the parts of a sequence, or one part of unknown type if the parts are not listed."""
    listed = next((sequence[name] for name in SEQUENCES if name in sequence), None)
    return listed if isinstance(listed, list) else [{}]


def _longest_replacement(characters: str) -> float:
    """Return the longest replacement in SentencePiece's table of characters.

    Replacements are at the end of the file, and each is followed by a zero byte.
    """
    try:
        table = b64decode(characters)
    except ValueError:
        return inf
    after_index = 4 + int.from_bytes(table[:4], "little")
    return float(max(1, *map(len, table[after_index:].split(b"\0"))))


def _added(part: Any) -> float:
    """Return the number of tokens that a post-processor adds, or infinity for an unknown or copying one."""
    match part:
        case None | {"type": "ByteLevel"}:
            return 0.0
        case {"type": "BertProcessing" | "RobertaProcessing"}:
            return 4.0
        case {"type": "Sequence"}:
            return float(sum(map(_added, _inner(part))))
        case {"type": "TemplateProcessing", "single": [*single], "pair": [*pair]}:
            return max(_added_by_template(pieces, part) for pieces in (single, pair))
    return inf


def _added_by_template(pieces: list[Any], part: dict[str, Any]) -> float:
    special = part.get("special_tokens")
    texts: list[str] = []
    added = 0.0
    for piece in pieces:
        match piece:
            case {"Sequence": {"id": str(name)}} if name not in texts:
                texts.append(name)
            case {"SpecialToken": {"id": str(name)}} if isinstance(special, dict):
                match special.get(name):
                    case {"ids": [*ids]}:
                        added += len(ids)
                    case _:
                        return inf
            case _:
                return inf
    return added


def _texts_in(part: Any) -> Iterator[str]:
    """Yield every text in a part of a tokenizer: patterns and their replacements."""
    if isinstance(part, str):
        yield part[:LONGEST_TRIED]
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _texts_in(inner)


def _tried(path: Path, written: dict[str, Any]) -> str:
    """Try a text with everything that a part could replace. Raises ValueError for too many tokens."""
    from tokenizers import Tokenizer

    parts = [text for name in PARTS for text in _texts_in(written.get(name)) if text]
    text = f"{string.printable} {' '.join(dict.fromkeys(parts))}"[:MOST_TRIED]
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        ids = tokenizer.encode(text).ids
        if len(ids) > MOST_GROWTH * len(text):
            raise ValueError(f"{len(ids):,} tokens from {len(text):,} characters")
        touched = (i for token, i in tokenizer.get_vocab().items() if any(part in token for part in parts))
        tokenizer.decode([*ids, *islice(touched, MOST_DECODED)])
    except (MemoryError, ValueError):
        raise
    except BaseException as error:  # this includes Rust panics, which are not Exceptions
        if type(error).__module__ == "pyo3_runtime":
            raise ValueError(one_line_reason(error)[:300]) from None
        return ""  # a damaged file raises an error when it is loaded
    return ""
