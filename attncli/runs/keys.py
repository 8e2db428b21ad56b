"""Keys of runs in a store: hashes of the settings and of the contents of the files that settings name."""

import json
from collections.abc import Callable, Collection
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import UserError
from attncli.models.digests import content_digest
from attncli.models.folder import local_model
from attncli.models.text_files import FILE_KINDS, TextLine
from attncli.records.token_ids import TokenIds
from attncli.runs.jobs import Job
from attncli.settings.fields import Spec
from attncli.settings.text import PATH_KEYS, is_vector_file, names_file

if TYPE_CHECKING:
    from attncli.runs.plan import Plan

TEXT_KEYS = ("sentence", "context")
ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: Any) -> bytes:
    """Return JSON with sorted keys and without whitespace, so that equal values give equal bytes."""
    return ENCODER.encode(value).encode()


def resolved_settings(spec: Spec) -> dict[str, Any]:
    """Return every setting that affects the result, except the texts."""
    return spec.model_dump(mode="json", exclude={*spec.unused_keys(), *TEXT_KEYS})


def settings_as_json(spec: Spec) -> str:
    """Return the resolved settings in the form that stores keep."""
    return json.dumps(resolved_settings(spec), ensure_ascii=False)


def _model_files(model: Path) -> list[Path]:
    """Return a model's files, except hidden ones, because file browsers leave hidden files in folders."""
    return sorted(path for path in model.iterdir() if path.is_file() and not path.name.startswith("."))


class _Contents:
    """Digests of files by content, whatever their names and paths.

    Each file is read once for all settings that name it.
    """

    def __init__(self, on_read: Callable[[Path], None]) -> None:
        self._on_read = on_read
        self._digests: dict[Path, str] = {}

    def file_digest(self, path: Path) -> str:
        """Return the digest of a file. Raises UserError if it cannot be read."""
        if path not in self._digests:
            try:
                self._digests[path] = content_digest(path, partial(self._on_read, path))
            except OSError as error:
                raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        return self._digests[path]

    def model_digest(self, model: Path) -> Any:
        """Return digests of a folder's files by name, since names decide their kinds, or of a GGUF file."""
        if not model.is_dir():
            return self.file_digest(model)
        return {path.name: self.file_digest(path) for path in _model_files(model)}


def _settings_digest(spec: Spec, contents: _Contents, *, without: Collection[str] = ()) -> bytes:
    """Hash the settings, with the contents of the files that they name in place of the paths."""
    settings = {key: value for key, value in resolved_settings(spec).items() if key not in without}
    for key in (key for key in PATH_KEYS if key not in without):
        value = getattr(spec, key, None)
        if isinstance(value, str) and (key != "embedding" or is_vector_file(value)):
            if value == "-":
                advice = "name a file" if spec.reads_many_texts() else "give the sentences with --file -"
                raise UserError(f"{key}: cannot be - in a batch: {advice}")
            is_folder = Path(value).is_dir()
            settings[key] = (contents.model_digest if is_folder else contents.file_digest)(Path(value))
        elif isinstance(value, list):
            settings[key] = [contents.file_digest(Path(file)) for file in value]
    answer = getattr(spec, "answer", None)
    if answer is not None and names_file(answer):
        settings["answer"] = contents.file_digest(Path(answer))
    model = getattr(spec, "model", None)
    folder = None if model is None else local_model(model)
    if folder is not None:
        try:
            settings["model"] = contents.model_digest(folder)
        except OSError as error:
            raise UserError(f"model: {folder}: cannot be read: {error.strerror}") from None
    return sha256(canonical({"experiment": spec.experiment, "settings": settings})).digest()


class RunKeys:
    """The keys of the runs in jobs; an experiment's settings are hashed once for all its sentences."""

    def __init__(self, plan: "Plan", on_read: Callable[[Path], None] = lambda path: None) -> None:
        """Raise UserError if a file of an experiment cannot be read, or can be read only once.

        `on_read` is called with the file after each block that is read.
        """
        self._items = plan.items()
        self._contents = _Contents(on_read)
        without = (plan.key,) if plan.key in FILE_KINDS else ()
        # Keyed by identity, which is quick; holding the items prevents their ids from being reused.
        self._beginnings = {
            id(item): sha256(_settings_digest(item.spec, self._contents, without=without))
            for item in self._items
        }

    def job_keys(self, job: Job) -> list[bytes]:
        """Return each run's key; the key of a run that continues earlier runs covers their keys."""
        keys: list[bytes] = []
        for item in job.chain:
            digest = self._beginnings[id(item)].copy()
            digest.update(canonical(_texts(item.spec, job.prompt)))
            if job.prompt is not None and job.prompt.file is not None:
                digest.update(self._contents.file_digest(Path(job.prompt.file)).encode())
            for before in keys:
                digest.update(before)
            keys.append(digest.digest())
        return keys


def _texts(spec: Spec, prompt: TextLine | None) -> list[Any]:
    """Return the sentence, context, id and answer; equal texts with different ids count as two runs."""
    sentence, context = (getattr(spec, key, None) for key in TEXT_KEYS)
    if prompt is None:
        return [sentence, context]
    if prompt.context is not None and "context" in type(spec).model_fields:
        context = prompt.context
    parts = [_hashed(prompt.text), _hashed(context), *([prompt.id] if prompt.id is not None else [])]
    reads_answer = prompt.answer is not None and "answer" in type(spec).model_fields
    return [*parts, {"answer": prompt.answer}] if reads_answer else parts


def _hashed(text: str | None) -> Any:
    """Return a text or, for token ids, the parsed object: an identical text must have a different key."""
    return json.loads(text) if isinstance(text, TokenIds) else text
