"""The settings of an experiment that looks into a pretrained model instead of sampling weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from attncli.spec.fields import Contradiction, Spec, contradiction
from attncli.spec.models.sources import local_model


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model


def check_model(value: str | None) -> str | None:
    """The setting as it is; ValueError for what is neither a model here nor could be a hub id."""
    if value is not None and local_model(value) is None and (_looks_like_path(value) or not value.strip()):
        is_file = Path(value).is_file()
        raise ValueError(
            f"must be a folder or a .gguf file: {value}" if is_file else f"no such folder: {value}"
        )
    return value


class ModelSpec(Spec):
    """Which model, and whether it may come from the network."""

    group = "Model"
    # What is used without `model`: a folder that ships, or nothing.
    default_model: ClassVar[str | None] = None
    # What runs with a model: read(spec, texts, pretrained, generator) gives a Reading; report_each(specs,
    # readings, pretrained, progress) a report for each of some readings of equal counts, whose settings
    # differ in the texts; report_many(spec, pretrained, progress) one of many texts, where it reads them.
    model_module: ClassVar[str]
    # Whether the model is loaded with the head that predicts tokens, where it has one.
    needs_head: ClassVar[bool] = False

    model: str | None = Field(
        None,
        description="a pretrained model: a folder, a .gguf file, an installed package that ships one, "
        "or a hub id with allow_download",
    )
    allow_download: bool = Field(False, description="let model be a hub id and fetch it")
    truncate: bool = Field(False, description="cut a text that is longer than the model reads")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="what the model's numbers are held as: half precision takes half the memory"
    )

    _model = field_validator("model")(check_model)

    def model_source(self) -> str | None:
        return self.default_model if self.model is None else self.model

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.model is not None and not self.allow_download and local_model(self.model) is None:
            message = f"no such folder: {self.model} (a hub id needs allow_download)"
            yield contradiction("model", message, "allow_download")
        if self.allow_download and self.model is None:
            yield contradiction("allow_download", "needs model", "model")
        for key in self.given("truncate", "dtype"):
            if self.model_source() is None:
                yield contradiction(key, "needs model", "model")

    def unreported_keys(self) -> frozenset[str]:
        return super().unreported_keys() | {"truncate", "dtype"}.difference(self.given("truncate", "dtype"))
