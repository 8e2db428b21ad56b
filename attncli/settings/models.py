"""Settings for looking into a pretrained model: the model, its layers and heads, and its input."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from attncli.feature import ReadingKind
from attncli.index import readings
from attncli.models.folder import SHIPPED_MODEL, local_model, model_on_disk, no_such_model
from attncli.records.arguments import file_name, head_name, head_names, is_pair
from attncli.settings.fields import (
    MAX_SIZE,
    Contradictions,
    Count,
    Everyday,
    Extra,
    Heading,
    NoFlag,
    Size,
    Spec,
    TextSource,
    TokenName,
    contradiction,
)
from attncli.settings.text import FILE_SETTINGS, FileOfText, Text, TextPath, Texts

if TYPE_CHECKING:  # not imported for help and usage errors
    from attncli.models.text_files import TextFile


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def check_model(value: str) -> str:
    """Return the setting unchanged. Raises ValueError unless it is a local model or could be a hub id."""
    if not value.strip():
        raise ValueError("must name a model (got an empty text)")
    if local_model(value) is not None:
        return value
    file_name(value)
    if Path(value).is_file():
        raise ValueError(f"must be the model's folder or a .gguf file (got the file {value})")
    if _looks_like_path(value):
        raise ValueError(f"no such folder: {value}")
    return value


LAYER_AND_HEAD = re.compile("([0-9]{1,6}):([0-9]{1,6})")


def _check_head_number(value: Any) -> Any:
    if isinstance(value, str) and LAYER_AND_HEAD.fullmatch(value):
        raise ValueError(f"must match the setting layer (got {value})")
    if isinstance(value, str) and not value.isdecimal():
        raise ValueError(f"must be LAYER:HEAD, such as 5:11 (got {value})")
    return value


HEAD_SCHEMA = [
    {"type": "integer", "minimum": 0, "maximum": MAX_SIZE},
    {"type": "string", "pattern": "^[0-9]+:[0-9]+$"},
]
HeadNumber = Annotated[Count, BeforeValidator(_check_head_number), WithJsonSchema({"anyOf": HEAD_SCHEMA})]
"""A head of its layer; LAYER:HEAD sets `layer`, too."""


FILE, ON_GRID, TRANSCRIBED = "a file", "a file on a grid", "a file that is transcribed"
"""Causes of exclusions: a file that is not text, a file with tokens on a grid, a file with spoken words."""


class ReadFile(NamedTuple):
    """A file other than a text: its kind in words, the setting that names it, and its own name."""

    what: str
    kind: ReadingKind
    name: str

    @property
    def many(self) -> str:
        """`folder`, `list` (a text file with one name per line), or an empty string for a single file."""
        if Path(self.name).is_dir():
            return "folder"
        return "list" if Path(self.name).suffix.lower() == ".txt" else ""


def files_read(settings: Mapping[str, Any]) -> list[ReadFile]:
    """Return the files that settings name in place of texts."""
    return [
        ReadFile(what, kind, str(settings[kind.setting]))
        for what, kind in readings().items()
        if settings.get(kind.setting)
    ]


class ModelNameSpec(Spec):
    """The model, or None if the command works without a model; this determines which of two Specs applies."""

    group = "Model"

    model: Annotated[
        Annotated[str, AfterValidator(check_model)] | None,
        Everyday("a folder, a .gguf file or a package's name"),
    ] = Field(
        None,
        description="a pretrained model: a folder, a .gguf file, an installed package that ships a model, "
        "or a hub id (ID or ID@REVISION); use `allow_download` unless its files were downloaded before",
    )


class ModelSpec(ModelNameSpec):
    """The settings for reading the model, including permission to download it."""

    off_keys = frozenset({"truncate", "dtype", "load"})
    needs: ClassVar[Mapping[str, str]] = {"allow_download": "model"}
    # The model that is used without `model`: the shipped folder, or none.
    default_model: ClassVar[str | None] = None
    parts_elsewhere: ClassVar[Mapping[str, str]] = {
        "weights": "use attn heads --maps self to see the weights of a text"
    }
    # If true, the model is loaded with its language-modelling head, provided that it has one.
    needs_head: ClassVar[bool] = False
    # If true, it may read a folder or list of files other than texts.
    surveys_files: ClassVar[bool] = False
    # If true, one run of the model suffices for a report, so that texts can run together.
    runs_once: ClassVar[bool] = False

    allow_download: bool = Field(False, description="look up a hub id on the hub and download any new files")
    truncate: bool = Field(False, description="cut a text or sound that is too long for the model")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="the precision to compute in: half precision needs half the memory"
    )
    load: Literal["auto", "memory", "disk"] = Field(
        "auto",
        description="where to keep the model's weights: memory, disk (read as needed) or auto (by size)",
    )

    @classmethod
    def parts_of(cls, key: str, value: Any) -> dict[str, Any]:
        """Split `24:4` into a layer and a head, if these are two separate settings."""
        name = head_name(value) if is_pair(value) else value
        pair = LAYER_AND_HEAD.fullmatch(name) if isinstance(name, str) else None
        if key == "head" and pair and "layer" in cls.model_fields:
            return {"layer": pair[1], "head": pair[2]}
        return super().parts_of(key, value)

    def wants_head(self) -> bool:
        """Return True if the model is loaded with its language-modelling head, provided that it has one."""
        return self.needs_head

    def model_source(self) -> str | None:
        return self.default_model if self.model is None else self.model

    def extras(self) -> Iterator[Extra]:
        yield from super().extras()
        source = self.model_source()
        path = None if source is None else local_model(source)
        if path is not None and path.is_file():
            yield Extra("model", "gguf", ("gguf",))

    @property
    def read_file(self) -> ReadFile | None:
        """The file that is read in place of a text, or None."""
        return next(iter(files_read(self.__dict__)), None)

    @property
    def reads_grid(self) -> bool:
        """True if the file's tokens lie on a grid, with neighbours on all sides."""
        return self.read_file is not None and self.read_file.kind.on_grid

    def setting_of_file(self) -> str:
        return "" if self.read_file is None else self.read_file.kind.setting

    def reads_many_files(self) -> bool:
        """Return True if a folder or list of files is read."""
        return self.read_file is not None and bool(self.read_file.many)

    def exclusion(self, cause: str) -> tuple[str, Sequence[str]] | None:
        kind = None if self.read_file is None else self.read_file.kind
        is_read = {
            FILE: kind is not None,
            ON_GRID: kind is not None and kind.on_grid,
            TRANSCRIBED: kind is not None and kind.is_transcribed,
        }
        if cause not in is_read:
            return super().exclusion(cause)
        setting = self.setting_of_file()
        return (f"cannot be combined with `{setting}`", [setting]) if is_read[cause] else None

    def names_of_tokens(self) -> dict[str, str]:
        """Return the settings that each name a single token of the text."""
        return {}

    def least_tokens(self) -> int:
        """Return the minimum number of tokens in a text for a model that predicts the next token."""
        return 1

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if (
            self.model is not None
            and not self.allow_download
            and model_on_disk(self.model, allow_download=False) is None
        ):
            message = no_such_model(self.model, "`allow_download`")
            yield contradiction("model", message, "allow_download")
        for key in self.given("truncate", "dtype", "load"):
            if self.model_source() is None:
                yield contradiction(key, "needs `model`", "model")


class WordsSpec(ModelSpec):
    """A model whose tokens may be merged into words."""

    off_keys = frozenset({"words"})
    excludes: ClassVar[Mapping[str, str]] = {FILE: "words", "probe": "words"}

    words: Annotated[bool, Heading("Model")] = Field(
        False,
        description="merge tokens into words: weights are summed over a word's keys and averaged over its "
        "queries; for a sound, also the time of each word",
    )


def split_names(value: object) -> object:
    """Split a comma-separated string into names."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


ListedHeads = Annotated[
    list[str],
    BeforeValidator(head_names, json_schema_input_type=list[str] | str),
]


class ModelOfHeadsSpec(ModelSpec):
    """The model of a survey of heads, which is the shipped model by default."""

    default_model = SHIPPED_MODEL
    main_table = "heads"
    heading_keys = ("file", "model", "seed")


class AblatedSpec(ModelSpec):
    """A model with some of its heads ablated."""

    off_keys = frozenset({"ablate"})
    runs_once = True

    ablate: Annotated[ListedHeads, Heading("Model")] = Field(
        [], description="remove these heads (LAYER:HEAD,...), as if their columns of W_O were zero"
    )


def _default_probe(data: dict[str, Any]) -> Literal["repeated"] | None:
    read = (data.get(key) for key in ("sentence", "file", "texts", *FILE_SETTINGS))
    return None if any(read) else "repeated"


class ManyTextsSpec(Spec):
    """A file of texts, read by `attncli.models.text_files.TextFile`."""

    group = "Input"
    needs: ClassVar[Mapping[str, str]] = {"text_group": "texts"}
    excludes: ClassVar[Mapping[str, str]] = {FILE: "texts"}

    texts: Annotated[TextPath | None, Everyday("many texts, one per line, or .jsonl; - reads stdin")] = Field(
        None,
        description="many texts, one per line, or JSON Lines or CSV (.jsonl, .csv) with text, id and group "
        "(JSON Lines may have ids and tokens instead of text); - reads stdin",
    )
    text_group: str | None = Field(None, description="use only the texts of this group")

    def opened_texts(self) -> "TextFile":
        """Open the file of `texts` so that each line is read as this experiment needs it."""
        from attncli.models.text_files import TextFile

        return TextFile(str(self.texts), self.text_group)

    def check_texts(self, texts: Texts) -> None:
        super().check_texts(texts)
        if self.texts is not None:
            from attncli.models.text_files import check_lines

            check_lines(self.texts, self.opened_texts)

    def reads_many_texts(self) -> bool:
        return self.texts is not None


class TextOrProbeSpec(Spec):
    """A text, or random tokens that are repeated once."""

    group = "Input"
    argument = "sentence"
    main_table = "heads"
    excludes: ClassVar[Mapping[str, str]] = {
        "sentence": "num_tokens",
        "file": "num_tokens",
        FILE: "probe, num_tokens",
    }

    sentence: Text | None = Field(None, description="the text that the model reads")
    file: FileOfText = None
    probe: Annotated[
        Literal["repeated"] | None,
        NoFlag("is the default without a text: omit --probe (use --num-tokens N to set the length)"),
    ] = Field(
        default_factory=_default_probe,
        description="a synthetic text: repeated is [BOS] + r + r, r random tokens (default without a text)",
    )
    num_tokens: Size | None = Field(
        default_factory=lambda data: 24 if data["probe"] else None,
        description="number of random tokens in the probe, which repeats them (default: 24)",
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def exclusion(self, cause: str) -> tuple[str, Sequence[str]] | None:
        if cause != "probe":
            return super().exclusion(cause)
        read = ("probe", "sentence", "file", "texts", *FILE_SETTINGS)
        return ("needs `sentence` or `file`", read) if self.probe else None

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file", "texts", "probe")


class OneTextSpec(TextOrProbeSpec, ModelSpec):
    """The text of a question about one text, or random tokens that are repeated once."""

    default_model = SHIPPED_MODEL


class SurveyTextSpec(TextOrProbeSpec, ManyTextsSpec, ModelSpec):
    """The input of a survey: a text, random tokens that are repeated once, or many texts."""

    default_model = SHIPPED_MODEL
    excludes: ClassVar[Mapping[str, str]] = {"texts": "num_tokens"}


class EncodedTextSpec(SurveyTextSpec):
    """The input of a model and, if the model has an encoder, of its encoder."""

    excludes: ClassVar[Mapping[str, str]] = {"probe": "context", "texts": "context"}

    context: Text | None = Field(
        None, description="the encoder's text, for a model with a decoder (default: the sentence)"
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return *super().text_sources(), TextSource("context", self.context)


SHARE = re.compile(r"[01]?\.[0-9]+|[01]")


def joined_points(names: list[str], info: ValidationInfo) -> list[str]:
    """For files with a grid, rejoin points such as 0.6,0.4 that were split at the comma."""
    if not any(kind.on_grid for _, kind, _ in files_read(info.data)):
        return names
    joined: list[str] = []
    for name in names:
        is_share = SHARE.fullmatch(name) is not None
        if is_share and joined and SHARE.fullmatch(joined[-1]) and "." in joined[-1] + name:
            joined[-1] += f",{name}"
        else:
            joined.append(name)
    return joined


LookedFrom = Annotated[list[TokenName], AfterValidator(joined_points)]
