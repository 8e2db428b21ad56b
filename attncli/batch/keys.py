"""The key of a run: a hash of its resolved settings and of what it reads, the same on every machine."""

import json
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from attncli.batch.plan import Job, Plan
from attncli.batch.prompts import Prompt
from attncli.errors import UserError
from attncli.spec.fields import Spec
from attncli.spec.models.pretrained import local_model
from attncli.spec.text import PATH_KEYS, is_vector_file

TEXT_KEYS = ("sentence", "context")
WHOLE_BYTES = 64 * 2**20
SAMPLE_BYTES = 8 * 2**20
ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no blanks, so that equal values give equal bytes."""
    return ENCODER.encode(value).encode()


def resolved_settings(spec: Spec) -> dict[str, Any]:
    """Every setting that affects the result, without the texts."""
    return spec.model_dump(mode="json", exclude={*spec.unused_keys(), *TEXT_KEYS})


@cache
def content_digest(path: Path) -> str:
    """SHA-256 of a file; beyond 64 MiB only of its size, time, first and last 8 MiB, to be quick."""
    try:
        with path.open("rb") as file:
            about = path.stat()
            if about.st_size <= WHOLE_BYTES:
                return file_digest(file, "sha256").hexdigest()
            digest = sha256(f"{about.st_size} {about.st_mtime_ns} ".encode())
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(-SAMPLE_BYTES, 2)
            digest.update(file.read())
            return digest.hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _file_digests(spec: Spec) -> dict[str, Any]:
    """The digests of the files that settings name, in place of their paths."""
    digests: dict[str, Any] = {}
    for key in PATH_KEYS:
        value = getattr(spec, key, None)
        if isinstance(value, str) and (key != "embedding" or is_vector_file(value)):
            if value == "-":
                advice = "name a file" if spec.reads_many_texts() else "give the sentences with --file -"
                raise UserError(f"{key}: cannot be - in a batch: {advice}")
            digests[key] = content_digest(Path(value))
    model = getattr(spec, "model", None)
    found = None if model is None else local_model(model)
    if found is not None:
        files = sorted(path for path in found.iterdir() if path.is_file()) if found.is_dir() else [found]
        digests["model"] = {path.name: content_digest(path) for path in files}
    return digests


def _settings_digest(spec: Spec) -> bytes:
    settings = resolved_settings(spec) | _file_digests(spec)
    return sha256(canonical({"experiment": spec.experiment, "settings": settings})).digest()


class RunKeys:
    """The keys of the runs of jobs; the settings of an experiment are hashed once for all its sentences."""

    def __init__(self, plan: Plan) -> None:
        """UserError for a file of an experiment that cannot be read, or not twice."""
        items = [item for chain in (*plan.chains, *plan.chains_with_context) for item in chain]
        # By identity, which is quick; the item is kept so that its id is not reused.
        self._beginnings = {id(item): (item, sha256(_settings_digest(item.spec))) for item in items}

    def of_job(self, job: Job) -> list[bytes]:
        """The key of each run of the job; the key of a run that continues from others includes theirs."""
        keys: list[bytes] = []
        for item in job.chain:
            digest = self._beginnings[id(item)][1].copy()
            digest.update(canonical(_texts(item.spec, job.prompt)))
            for before in keys:
                digest.update(before)
            keys.append(digest.digest())
        return keys


def _texts(spec: Spec, prompt: Prompt | None) -> list[str | None]:
    """Sentence, context and the id in the file: equal texts with different ids are two runs."""
    sentence, context = (getattr(spec, key, None) for key in TEXT_KEYS)
    if prompt is None:
        return [sentence, context]
    if prompt.context is not None and "context" in type(spec).model_fields:
        context = prompt.context
    return [prompt.sentence, context, *([prompt.id] if prompt.id is not None else [])]
