"""The settings of an experiment that looks into a pretrained model, and where `model` is on this machine."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from attncli.spec.fields import Contradictions, Group, Spec, contradiction

GGUF = ".gguf"
WEIGHTS = (".safetensors", ".bin", ".pt", ".h5")


def local_model(model: str) -> Path | None:
    """The folder or GGUF file; None for what could only be a model of the hub.

    ValueError for a package that ships several.
    """
    path = Path(model)
    if path.is_dir() or (path.suffix.lower() == GGUF and path.is_file()):
        return path
    return None if len(path.parts) > 1 else _of_package(model)


@lru_cache(maxsize=64)
def _of_package(name: str) -> Path | None:
    """What an installed package's list of files says, none of whose code runs."""
    try:
        listed = files(name) if name.strip() else None
    except (PackageNotFoundError, ValueError):
        return None
    paths = [Path(str(file.locate())) for file in listed or ()]
    models = [path for path in paths if path.suffix.lower() == GGUF]
    if not models:
        configured = {path.parent for path in paths if path.name == "config.json"}
        weighed = {path.parent for path in paths if path.suffix in WEIGHTS}
        models = sorted(configured & weighed)
    if len(models) > 1:
        names = ", ".join(map(str, models))
        raise ValueError(f"{name} ships several models: name one of {names}")
    return models[0] if models else None


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model


def check_model(value: str) -> str:
    """The setting as it is; ValueError for what is neither a model here nor could be a hub id."""
    if local_model(value) is None and (_looks_like_path(value) or not value.strip()):
        is_file = Path(value).is_file()
        raise ValueError(
            f"must be a folder or a .gguf file: {value}" if is_file else f"no such folder: {value}"
        )
    return value


class ModelSpec(Spec):
    """Which model, and whether it may come from the network."""

    group = "Model"
    off_keys = frozenset({"truncate", "dtype"})
    # What is used without `model`: a folder that ships, or nothing.
    default_model: ClassVar[str | None] = None
    # What runs with a model: read(spec, texts, pretrained, generator) gives a Reading; report_each(specs,
    # readings, pretrained, progress) a report for each of some readings of equal counts, whose settings
    # differ in the texts; report_many(spec, pretrained, progress) one of many texts, where it reads them.
    model_module: ClassVar[str]
    # Whether the model is loaded with the head that predicts tokens, where it has one.
    needs_head: ClassVar[bool] = False

    model: Annotated[str, AfterValidator(check_model)] | None = Field(
        None,
        description="a pretrained model: a folder, a .gguf file, an installed package that ships one, "
        "or a hub id with allow_download",
    )
    allow_download: bool = Field(False, description="let model be a hub id and fetch it")
    truncate: bool = Field(False, description="cut a text that is longer than the model reads")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="what the model's numbers are held as: half precision takes half the memory"
    )

    def model_source(self) -> str | None:
        return self.default_model if self.model is None else self.model

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.model is not None and not self.allow_download and local_model(self.model) is None:
            message = f"no such folder: {self.model} (a hub id needs allow_download)"
            yield contradiction("model", message, "allow_download")
        if self.allow_download and self.model is None:
            yield contradiction("allow_download", "needs model", "model")
        for key in self.given("truncate", "dtype"):
            if self.model_source() is None:
                yield contradiction(key, "needs model", "model")


class WordsSpec(ModelSpec):
    """A model whose tokens may be merged into words."""

    off_keys = frozenset({"words"})

    words: Annotated[bool, Group("Model")] = Field(
        False,
        description="merge tokens into words: weights summed over a word's keys, averaged over its queries",
    )
