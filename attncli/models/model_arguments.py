"""Arguments of library calls: models, texts, prompts and sources, each in plain form or already read."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Annotated, Any

from attncli.models.pretrained import Pretrained, Reading
from attncli.models.prompts import Prompt
from attncli.models.source_texts import SourcedReading, SourcedText
from attncli.models.text_files import ManyTexts, TextLine
from attncli.records.arguments import by, check_text, file_name, is_list, listed, shown
from attncli.records.token_ids import text_or_ids


def _model(value: Any) -> Any:
    if isinstance(value, Pretrained):
        return value
    if hasattr(value, "config"):
        kind = type(value).__name__
        raise ValueError(f"must be a model from open_model: use open_model(model, tokenizer) (got a {kind})")
    try:
        return file_name(value)
    except ValueError:
        instead = "must be a model from open_model, or the name of a model folder"
        other = "; for any other module, use record or layers_of" if callable(value) else ""
        raise ValueError(f"{instead} (got {shown(value)}){other}") from None


def _text(value: Any) -> Any:
    if isinstance(value, str | Mapping):
        return check_text(text_or_ids(value))
    if not isinstance(value, Reading):
        raise ValueError(f"must be text, or a reading from read_text (got {shown(value)})")
    return value


def several_texts(value: Any) -> Any:
    """Return the texts as a list, even if only one is passed."""
    return [value] if isinstance(value, str | Mapping | Reading) else value


def _one_or_more_texts(value: Any) -> Any:
    texts = several_texts(value)
    if not is_list(texts):
        raise ValueError(f"must be text, a reading from read_text, or a list of these (got {shown(value)})")
    texts = listed(texts)
    if not texts:
        raise ValueError("must contain at least one text (got none)")
    return [_text(text) for text in texts]


def _texts(value: Any) -> Any:
    if isinstance(value, ManyTexts):
        return value
    if isinstance(value, str | PathLike):
        return file_name(value)
    texts = listed(value)
    for text in texts:
        if not isinstance(text, str | Mapping):
            raise ValueError(f"must contain only texts (got {shown(text)})")
    return [text_or_ids(text) for text in texts]


def _text_or_prompt(value: Any) -> Any:
    if isinstance(value, Prompt):
        return value
    if isinstance(value, Reading) and value.origin is not None and value.origin.kind.is_transcribed:
        return value
    if not isinstance(value, str | Mapping):
        raise ValueError(f"must be text (got {shown(value)})")
    return check_text(text_or_ids(value))


def checked_sources(value: Any) -> Any:
    """Return the sources of a text from an argument. Raises ValueError if these are not texts."""
    if isinstance(value, SourcedReading):
        return value
    if isinstance(value, str):
        return check_text(value)
    texts = value.sources if isinstance(value, SourcedText) else listed(value)
    if not texts:
        raise ValueError("must contain at least one source (got none)")
    if isinstance(value, SourcedText):
        return value
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"must be texts (got {shown(text)})")
        check_text(text)
    return texts


def _texts_with_pairs(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    texts = listed(value)
    for text in texts:
        if not isinstance(text, Mapping):
            raise ValueError(
                f'must be mappings such as {{"text": "...", "pairs": [[0, 3]]}} (got {shown(text)})'
            )
    return texts


TextOrReading = Annotated[str | Mapping[str, Any] | Reading, by(_text)]
"""A string, a mapping {"ids": [...], "tokens": [...]} with token ids and optional labels, or a reading."""
OneOrMoreTexts = Annotated[
    str | Mapping[str, Any] | Reading | Sequence[str | Mapping[str, Any] | Reading], by(_one_or_more_texts)
]
TextsOrFile = Annotated[
    str | PathLike[str] | Iterable[str | Mapping[str, Any]] | ManyTexts[TextLine], by(_texts)
]
TextsWithPairs = Annotated[str | PathLike[str] | Iterable[Mapping[str, object]], by(_texts_with_pairs)]
TextOrPrompt = Annotated[str | Mapping[str, Any] | Prompt | Reading, by(_text_or_prompt)]
"""A string or token ids, a prompt, or a reading of a file that models transcribe."""
Model = Annotated[Pretrained | str | PathLike[str], by(_model)]
Sources = Annotated[str | Sequence[str] | SourcedText | SourcedReading, by(checked_sources)]
