"""The settings of an experiment that looks into a pretrained model instead of sampling weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from attncli.spec.fields import Contradiction, Count, Spec, contradiction


def is_model_folder(model: str) -> bool:
    """Whether a setting `model` names a folder of this machine rather than a model of the hub."""
    return Path(model).is_dir()


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model


def check_model(value: str | None) -> str | None:
    """The setting as it is; ValueError for what is neither a folder nor could be a hub id."""
    if value is not None and not is_model_folder(value) and (_looks_like_path(value) or not value.strip()):
        raise ValueError(f"no such folder: {value}")
    return value


KEYS_WITH_MODEL = {
    "sentence",
    "file",
    "context",
    "context_file",
    "tokenizer",
    "top_k",
    "explain",
    "token",
    "head",
}
"""The settings of attention on sampled weights that a model leaves in effect."""


class ModelSpec(Spec):
    """Which model, and whether it may come from the network."""

    group = "Model"
    # What is used without `model`: a folder that ships, or nothing.
    default_model: ClassVar[str | None] = None
    # What runs with a model: read(spec, texts, pretrained, generator) gives a Reading; report_each(specs,
    # readings, pretrained, progress) a report for each of some readings of equal counts, whose settings
    # differ in the texts.
    model_module: ClassVar[str]

    model: str | None = Field(
        None, description="a pretrained model: a folder, or a hub id with allow_download"
    )
    allow_download: bool = Field(False, description="let model be a hub id and fetch it")
    truncate: bool = Field(False, description="cut a text that is longer than the model reads")

    _model = field_validator("model")(check_model)

    def model_source(self) -> str | None:
        return self.default_model if self.model is None else self.model

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.model is not None and not self.allow_download and not is_model_folder(self.model):
            message = f"no such folder: {self.model} (a hub id needs allow_download)"
            yield contradiction("model", message, "allow_download")
        if self.allow_download and self.model is None:
            yield contradiction("allow_download", "needs model", "model")
        if self.truncate and self.model_source() is None:
            yield contradiction("truncate", "needs model", "model")

    def unreported_keys(self) -> frozenset[str]:
        return super().unreported_keys() | (frozenset() if self.truncate else {"truncate"})


def _first_of_model(data: dict[str, Any]) -> int | None:
    return 0 if data["model"] is not None else None


class LayerSpec(ModelSpec):
    """Which layer of a model, where there is one."""

    model_module = "attncli.experiments.model_attention"
    model_keys: ClassVar[frozenset[str]] = frozenset({"layer"})

    layer: Count | None = Field(
        default_factory=_first_of_model,
        description="the model's layer, from 0 (default: the first that attends)",
    )

    def unused_keys(self) -> frozenset[str]:
        return super().unused_keys() | self._keys_of_the_other_source()

    def _keys_of_the_other_source(self) -> frozenset[str]:
        """The settings of a model where weights are sampled, those of sampling where there is a model."""
        own = self.model_keys | LayerSpec.model_fields.keys()
        if self.model is None:
            return own - {*Spec.model_fields, "model"}
        return frozenset(type(self).model_fields.keys() - own - KEYS_WITH_MODEL)

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.model is None:
            for key in self.given(*sorted(self.model_keys, reverse=True)):
                yield contradiction(key, "needs model", "model")
        else:
            for key in self.given(*sorted(self._keys_of_the_other_source())):
                yield contradiction(key, "cannot be combined with model, which has its own", "model")


class HeadSpec(LayerSpec):
    """Which head of the layer, too."""

    model_keys = frozenset({"layer", "head"})

    head: Count | None = Field(
        default_factory=_first_of_model, description="the layer's head, from 0 (default: 0)"
    )
