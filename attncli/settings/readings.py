"""Settings for files other than texts; each kind of reading declares its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import create_model

from attncli.feature import LoadedOnUse, ReadingKind
from attncli.index import readings
from attncli.settings.fields import Contradictions, Spec, contradiction
from attncli.settings.models import FILE, ModelSpec, files_read

ReadingSpec = TypeVar("ReadingSpec", bound=Spec)
READING_SPECS: LoadedOnUse[type[Spec]] = LoadedOnUse({what: kind.spec for what, kind in readings().items()})


def reads(
    fits: Callable[[ReadingKind], bool] = lambda kind: True,
) -> Callable[[type[ReadingSpec]], type[ReadingSpec]]:
    """Return a decorator that adds to a Spec the settings of all readings that `fits` accepts."""

    def with_settings(spec: type[ReadingSpec]) -> type[ReadingSpec]:
        matches = (what for what, kind in readings().items() if fits(kind) and what in READING_SPECS)
        bases: Any = (spec, *(READING_SPECS[what] for what in matches))
        if len(bases) == 1:
            return spec
        extended: type[ReadingSpec] = create_model(spec.__name__, __base__=bases, __module__=spec.__module__)
        return extended

    return with_settings


def check_file_or_many(value: str, what: str, takers: str) -> str:
    """Return the name of a file, a folder or a list. Raises ValueError if it does not exist."""
    if not value.strip() or not Path(value).exists():
        many = f"for {takers} also a folder of them, or a list (.txt)"
        raise ValueError(f"no such file: {value}: give a {what}; {many}")
    return value


class FileSpec(ModelSpec):
    """A model that may read a file that is not text; the base class of the readings' settings."""

    excludes: ClassVar[Mapping[str, str]] = {FILE: "context, context_file"}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        files = files_read(self.__dict__)
        yield from self.conflicts(*(file.kind.setting for file in files))
        for file in files:
            setting = file.kind.setting
            if self.model is None:
                yield contradiction(setting, f"needs `model`, {file.kind.reader}", "model")
            if file.many and not self.surveys_files:
                value = f"(got the {file.many} {file.name})"
                yield contradiction(setting, f"must be one {file.what} {value}")
