"""The plan of a batch: every setting and sentence is validated before anything runs."""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import UserError
from attncli.models.digests import content_digest
from attncli.models.folder import READ_FIRST_BYTES, local_model, num_parameters, stored_bytes
from attncli.models.text_files import KINDS_OF_FILES, FileList, TextFile, TextLine
from attncli.records.token_ids import TokenIds
from attncli.settings import SPECS, every_setting_of
from attncli.settings.config_file import ConfigFile
from attncli.settings.fields import Given, Spec
from attncli.settings.models import ModelSpec
from attncli.settings.overrides import Overrides, unknown_overrides
from attncli.settings.text import PATH_KEYS, check_tokens, is_vector_file, names_file
from attncli.system.plain_text import counted

if TYPE_CHECKING:  # a plan counts texts without torch
    from attncli.models.labelled_files import WholeLines


class CheckedPrompts(NamedTuple):
    """How many prompts a file has, the first context if any has one, and the mean length of a sentence."""

    num_prompts: int
    context: str | None
    mean_characters: float


class PromptFile(FileList):
    """The sentences of a file: one per line, or JSON Lines or CSV with sentence (or text),
    context, answer and id; or names of pictures or sounds, one per line, where the first line is one.
    """

    columns = ("sentence", "context", "answer", "id")

    def __init__(self, name: str) -> None:
        super().__init__(name, f"--file {name}", "sentence")
        first = self.folder / next(self.lines(), (0, b""))[1].decode("utf-8", "replace")
        keys = (key for key, kind in KINDS_OF_FILES.items() if kind.is_one(first))
        self.key = "sentence" if self.is_json else next(keys, "sentence")

    def __iter__(self) -> Iterator[TextLine]:
        """Every prompt, from the start. Raises UserError at the first line that is not one."""
        for number, data in self.lines():
            yield self._prompt(number, data)

    def first(self) -> TextLine:
        """The first valid prompt: settings are validated with it, once for all.

        Raises UserError with the bad lines without any.
        """
        for number, data in self.lines():
            with suppress(UserError):  # check tells it with all others
                return self._prompt(number, data)
        self.check(lambda prompt: None)
        raise AssertionError("a file without a prompt is refused")

    def check(self, check: Callable[[TextLine], None]) -> CheckedPrompts:
        """What the plan needs to know about the prompts. Raises UserError with the bad lines.

        `check` raises a UserError for a prompt that the experiments cannot use.
        """
        count, characters = 0, 0
        context: str | None = None
        numbers_as_ids: set[str] = set()

        def check_line(number: int, data: bytes) -> None:
            nonlocal count, characters, context
            prompt = self._prompt(number, data)
            try:
                check(prompt)
            except UserError as error:
                raise UserError(*(f"{self.label}:{number}: {line}" for line in error.lines)) from None
            count += 1
            characters += len(prompt.text)
            context = prompt.context if context is None else context
            if prompt.id is not None and prompt.id.isdecimal():
                numbers_as_ids.add(prompt.id)

        self.check_lines(check_line)
        if not count:
            raise UserError(f"--file {self.label}: holds no sentence")
        self._refuse_numbers_used_as_ids(numbers_as_ids)
        return CheckedPrompts(count, context, characters / count)

    def _refuse_numbers_used_as_ids(self, ids: set[str]) -> None:
        """Raise UserError for a line without an id whose number is the id of another."""
        for number, data in self.lines() if ids else ():
            if str(number) in ids and self._prompt(number, data).id is None:
                message = f"must be given: {number}, the number of this line, is the id of another"
                raise UserError(f"{self.label}:{number}: id: {message}")

    def _prompt(self, number: int, data: bytes) -> TextLine:
        if self.key in KINDS_OF_FILES:
            return self.named(number, data)
        fields = self.fields(number, data, ("sentence", "context", "answer"), ("id",))
        sentence = fields["sentence"]
        assert sentence is not None
        texts = {key: fields.get(key) for key in ("context", "answer")}
        return TextLine(number, sentence, fields.get("id"), **texts)


class Item(NamedTuple):
    """One experiment, its place, whether it starts a file or a new generator, and the id of its sentence, or
    of the step of a training run.
    """

    spec: Spec
    source: str | None = None
    starts_file: bool = True
    reseed: bool = True
    id: str | None = None


Chain = tuple[Item, ...]


def plan_files(
    paths: Sequence[Path], overrides: Overrides | None = None, texts: Overrides | None = None
) -> list[Item]:
    """The experiments of all files in order. Raises UserError with every error of every file.

    Overrides override the files' settings, and so do texts, where an experiment reads them.
    """
    items: list[Item] = []
    errors: list[str] = []
    overrides = overrides or {}
    for path in paths:
        try:
            entries = ConfigFile(path, {**overrides, **(texts or {})}).entries()
        except UserError as error:
            errors += error.lines
            continue
        items += [
            Item(entry.spec, entry.source, entry.starts, entry.starts or entry.reseed) for entry in entries
        ]
    if not errors:
        experiments = dict.fromkeys(item.spec.experiment for item in items)
        errors += unknown_overrides(overrides, map(every_setting_of, experiments))
    if errors:
        raise UserError(*dict.fromkeys(errors))
    return items


def chains(items: Sequence[Item]) -> Iterator[Chain]:
    """The items, divided into the smallest sequences that do not depend on one another.

    An item that continues the generator of the one before belongs to it and has its seed; one with
    `embedding: previous` belongs to the last item that has a table of words.
    """
    starts = [i for i, item in enumerate(items) if item.starts_file or item.reseed]
    for i, item in enumerate(items):
        if getattr(item.spec, "embedding", None) == "previous":
            table = next(j for j in range(i - 1, -1, -1) if items[j].spec.table_dim() is not None)
            starts = [start for start in starts if not table < start <= i]
    for start, end in zip(starts, [*starts[1:], len(items)], strict=True):
        chain: list[Item] = []
        for item in items[start:end]:
            seed = item.spec.seed if item.reseed else chain[-1].spec.seed
            spec = item.spec.model_copy(update={"seed": seed})
            chain.append(item._replace(spec=spec, starts_file=not chain))
        yield tuple(chain)


class Job(NamedTuple):
    """A chain of experiments on one sentence (or on their texts), and the place of its first run."""

    chain: Chain
    prompt: TextLine | None
    place: int
    key: str = "sentence"

    def items(self) -> Chain:
        """The experiments, each with the sentence (and the context and the answer, where it reads them)."""
        if self.prompt is None:
            return self.chain
        texts = {self.key: self.prompt.file or self.prompt.text}
        others = {"context": self.prompt.context, "answer": self.prompt.answer}
        texts |= {key: text for key, text in others.items() if text is not None}
        return tuple(
            item._replace(spec=_with(item.spec, texts), source=self.name(item), id=self.label)
            for item in self.chain
        )

    @property
    def label(self) -> str | None:
        """The id of its sentence, or its line; without a file of sentences that of its experiment."""
        return self.chain[0].id if self.prompt is None else self.prompt.label

    def name(self, item: Item) -> str:
        """The name of a run in messages: `sweep.yaml:1:1 (head_dim 8), prompt 7`."""
        if self.prompt is None:
            return str(item.source)
        return f"{item.source}, {self.prompt.id or f'line {self.prompt.line}'}"


def _with(spec: Spec, texts: Mapping[str, str]) -> Spec:
    fields = type(spec).model_fields
    return spec.model_copy(update={key: text for key, text in texts.items() if key in fields})


@dataclass(frozen=True)
class Plan:
    """The chains, alone or combined with every sentence of a file."""

    chains: tuple[Chain, ...]
    chains_with_context: tuple[Chain, ...] = ()
    prompts: "PromptFile | TextFile | WholeLines | None" = None
    num_prompts: int = 1
    mean_characters: float = 0.0

    def __len__(self) -> int:
        return self.num_prompts * sum(map(len, self.chains))

    @property
    def num_jobs(self) -> int:
        """How many jobs there are, each of which can be computed alone."""
        return self.num_prompts * len(self.chains)

    def items(self) -> list[Item]:
        """Every experiment, once for all sentences; again as it is with a context, where some have one."""
        return [item for chain in (*self.chains, *self.chains_with_context) for item in chain]

    def specs(self) -> Iterator[Spec]:
        """The settings of each experiment, once for all sentences."""
        return (item.spec for chain in self.chains for item in chain)

    def jobs(self) -> Iterator[Job]:
        """Every chain with all its sentences, then the next: neighbours have equal settings."""
        place = 1
        for i, chain in enumerate(self.chains):
            for prompt in self.prompts if self.prompts is not None else (None,):
                has_context = prompt is not None and prompt.context is not None
                yield Job(self.chains_with_context[i] if has_context else chain, prompt, place, self.key)
                place += len(chain)

    def lines(self) -> Iterator[str]:
        """One line per experiment, and how many runs they make."""
        for chain in self.chains:
            for number, item in enumerate(chain):
                yield f"{item.source}: {item.spec.experiment}{', on the same generator' if number else ''}"
        num_experiments = sum(map(len, self.chains))
        experiments = counted(num_experiments, "experiment")
        if self.prompts is None:
            yield experiments
        else:
            kind = _kind_of(self.key)
            yield f"{experiments} × {counted(self.num_prompts, kind)} = {counted(len(self), 'run')}"

    @property
    def key(self) -> str:
        """The setting that each line of the file is: a sentence, or the name of a picture or a sound."""
        return self.prompts.key if isinstance(self.prompts, PromptFile) else "sentence"


def _kind_of(key: str) -> str:
    return KINDS_OF_FILES[key].name if key in KINDS_OF_FILES else key


def make_plan(paths: Sequence[Path], overrides: Overrides, prompts: PromptFile | None = None) -> Plan:
    """The plan of config files, alone or with a file of sentences. Raises UserError with all errors."""
    if prompts is None:
        return Plan(tuple(chains(plan_files(paths, overrides))))
    first = prompts.first()
    key, text = prompts.key, first.file or first.text
    texts = {key: Given(text, "--file", is_flag=True)}
    items = plan_files(paths, overrides, texts)
    _refuse_what_reads_nothing(items, key)
    if key in KINDS_OF_FILES:
        items = [item._replace(spec=_with(item.spec, {key: prompts.label})) for item in items]
    if any("texts" in type(item.spec).model_fields for item in items):
        _refuse_what_reads_many(paths, overrides)
    checked = prompts.check(_prompt_check(items))
    with_context: tuple[Chain, ...] = ()
    if checked.context is not None:
        texts |= {"context": Given(checked.context, f"--file {prompts.label}: context", is_flag=True)}
        with_context = tuple(chains(plan_files(paths, overrides, texts)))
    return Plan(tuple(chains(items)), with_context, prompts, checked.num_prompts, checked.mean_characters)


def plan_of_texts(spec: Spec, source: str, texts: "TextFile | WholeLines") -> Plan:
    """The plan of one experiment on many texts. Raises UserError with the bad lines."""
    num_texts = texts.count()
    mean_characters = sum(len(line.text) for line in texts) / num_texts
    first = next(iter(texts))
    alone = tuple(chains([Item(_with(spec, {"sentence": first.text}), source)]))
    with_context = () if first.context is None else alone
    return Plan(alone, with_context, texts, num_texts, mean_characters)


def _refuse_what_reads_nothing(items: Sequence[Item], key: str) -> None:
    kind = _kind_of(key)
    errors = [
        f"{item.source}: experiment: {item.spec.experiment} reads no {kind}: leave out --file"
        for item in items
        if key not in type(item.spec).model_fields
    ]
    if errors:
        raise UserError(*dict.fromkeys(errors))


def _refuse_what_reads_many(paths: Sequence[Path], overrides: Overrides) -> None:
    """Raise UserError where an experiment reads a file of texts itself."""
    items: list[Item] = []
    with suppress(UserError):  # what needs a sentence gets it from --file
        items = plan_files(paths, overrides)
    sources = dict.fromkeys(item.source for item in items if item.spec.reads_many_texts())
    if sources:
        raise UserError(*(f"{source}: reads many texts of its own: leave out --file" for source in sources))


def _prompt_check(items: Sequence[Item]) -> Callable[[TextLine], None]:
    """The check that all experiments need: at least one token, and no field that no experiment reads."""
    by_tokenizer = {item.spec.word_tokenizer(): item.spec for item in items}
    others = ("context", "answer")
    is_read = {key: any(key in type(item.spec).model_fields for item in items) for key in others}

    def check(prompt: TextLine) -> None:
        for key in others:
            if getattr(prompt, key) is not None and not is_read[key]:
                readers = ", ".join(name for name, spec in SPECS.items() if key in spec.model_fields)
                raise UserError(f"{key}: is read by {readers} alone")
        for spec in by_tokenizer.values() if prompt.file is None else ():
            check_tokens(spec, "sentence", prompt.text)
            if prompt.context is not None:
                check_tokens(spec, "context", prompt.context)

    return check


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


def settings_as_json(spec: Spec) -> str:
    """The resolved settings as stores have them."""
    return json.dumps(resolved_settings(spec), ensure_ascii=False)


def _earlier_digest(path: Path) -> str:
    """How store keys before 0.3.0 named a file: beyond 64 MiB by its size, time, first and last 8 MiB."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if about.st_size <= WHOLE_BYTES:
            return file_digest(file, "sha256").hexdigest()
        digest = sha256(f"{about.st_size} {about.st_mtime_ns} ".encode())
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(-SAMPLE_BYTES, os.SEEK_END)
        digest.update(file.read())
        return digest.hexdigest()


def _model_files(model: Path) -> list[Path]:
    """The files of a model; without hidden ones, which systems leave in folders that are looked at."""
    return sorted(path for path in model.iterdir() if path.is_file() and not path.name.startswith("."))


class _Contents:
    """What stands for files in keys: their content, whatever they are called and wherever they lie.

    Each file is read once for all settings that name it.
    """

    def __init__(self, on_read: Callable[[Path], None]) -> None:
        self._on_read = on_read
        self._digests: dict[Path, str] = {}

    def of_file(self, path: Path) -> str:
        """Raise UserError for a file that cannot be read."""
        if path not in self._digests:
            try:
                self._digests[path] = self.digest(path)
            except OSError as error:
                raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        return self._digests[path]

    def digest(self, path: Path) -> str:
        return content_digest(path, partial(self._on_read, path))

    def of_model(self, model: Path) -> Any:
        """The files of a folder with their names, which tell their kinds; a GGUF file stands alone."""
        if not model.is_dir():
            return self.of_file(model)
        return {path.name: self.of_file(path) for path in _model_files(model)}


class _EarlierContents(_Contents):
    """The same, as stores before 0.3.0 had it."""

    def digest(self, path: Path) -> str:
        return _earlier_digest(path)

    def of_model(self, model: Path) -> Any:
        files = sorted(path for path in model.iterdir() if path.is_file()) if model.is_dir() else [model]
        return {path.name: self.of_file(path) for path in files}


def _settings_digest(spec: Spec, contents: _Contents, *, without: Collection[str] = ()) -> bytes:
    """The hash of the settings, with the contents of the files that they name in place of their paths."""
    settings = {key: value for key, value in resolved_settings(spec).items() if key not in without}
    for key in (key for key in PATH_KEYS if key not in without):
        value = getattr(spec, key, None)
        if isinstance(value, str) and (key != "embedding" or is_vector_file(value)):
            if value == "-":
                advice = "name a file" if spec.reads_many_texts() else "give the sentences with --file -"
                raise UserError(f"{key}: cannot be - in a batch: {advice}")
            is_folder = Path(value).is_dir()
            settings[key] = (contents.of_model if is_folder else contents.of_file)(Path(value))
        elif isinstance(value, list):
            settings[key] = [contents.of_file(Path(file)) for file in value]
    answer = getattr(spec, "answer", None)
    if answer is not None and names_file(answer):
        settings["answer"] = contents.of_file(Path(answer))
    model = getattr(spec, "model", None)
    folder = None if model is None else local_model(model)
    if folder is not None:
        try:
            settings["model"] = contents.of_model(folder)
        except OSError as error:
            raise UserError(f"model: {folder}: cannot be read: {error.strerror}") from None
    return sha256(canonical({"experiment": spec.experiment, "settings": settings})).digest()


class RunKeys:
    """The keys of the runs of jobs; the settings of an experiment are hashed once for all its sentences."""

    def __init__(self, plan: Plan, on_read: Callable[[Path], None] = lambda path: None) -> None:
        """Raise UserError for a file of an experiment that cannot be read, or not twice.

        `on_read` is called with the file whenever a block of it has been read.
        """
        self._items = plan.items()
        self._without = (plan.key,) if plan.key in KINDS_OF_FILES else ()
        self._set_digests(_Contents(on_read))

    def _set_digests(self, contents: _Contents) -> None:
        self._contents = contents
        self._digests = [_settings_digest(item.spec, contents, without=self._without) for item in self._items]
        # By identity, which is quick; the items are kept so that no id is reused.
        self._beginnings = {
            id(item): sha256(digest) for item, digest in zip(self._items, self._digests, strict=True)
        }

    def earlier(self) -> "RunKeys | None":
        """The keys of the same runs in stores before 0.3.0; None where they are equal."""
        keys = copy(self)
        keys._set_digests(_EarlierContents(lambda path: None))
        return None if keys._digests == self._digests else keys

    def of_job(self, job: Job) -> list[bytes]:
        """The key of each run of the job; the key of a run that continues from others includes theirs."""
        keys: list[bytes] = []
        for item in job.chain:
            digest = self._beginnings[id(item)].copy()
            digest.update(canonical(_texts(item.spec, job.prompt)))
            if job.prompt is not None and job.prompt.file is not None:
                digest.update(self._contents.of_file(Path(job.prompt.file)).encode())
            for before in keys:
                digest.update(before)
            keys.append(digest.digest())
        return keys


def _texts(spec: Spec, prompt: TextLine | None) -> list[Any]:
    """Sentence, context, id and answer in the file: equal texts with different ids are two runs."""
    sentence, context = (getattr(spec, key, None) for key in TEXT_KEYS)
    if prompt is None:
        return [sentence, context]
    if prompt.context is not None and "context" in type(spec).model_fields:
        context = prompt.context
    parts = [_hashed(prompt.text), _hashed(context), *([prompt.id] if prompt.id is not None else [])]
    reads_answer = prompt.answer is not None and "answer" in type(spec).model_fields
    return [*parts, {"answer": prompt.answer}] if reads_answer else parts


def _hashed(text: str | None) -> Any:
    """A text, or the object with the token ids in its place: not the text that reads like that object."""
    return json.loads(text) if isinstance(text, TokenIds) else text


# Measured on one core, and rounded: a factor of three or so does not matter here.
SECONDS_A_RUN = 3e-4
SECONDS_A_BYTE = 5e-10
SECONDS_A_WEIGHT = 1e-8
OPERATIONS_A_SECOND = 2e10
CHARACTERS_A_TOKEN = 5
SECONDS_TO_START, SECONDS_TO_START_WITH_MODEL = 2.0, 4.0
LEAST_SECONDS_WITH_MODEL = 50.0
"""Where a model runs once for each text, less than that is not shared among workers: each of them imports and
loads it again, and torch has threads for it in one process. It takes a half to a fifth of the estimate."""
BYTES_OF_A_WORKER = 300 * 10**6
SHARE_OF_MEMORY = 1 / 3
BYTES_OF_A_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_TOGETHER, MAX_SECONDS_TOGETHER, MAX_BYTES_TOGETHER = 256, 2.0, 512 * 2**20
MAX_SECONDS_THROUGH_MODEL = 10.0
"""Of texts through which a model runs once: together they take a fraction of the estimate."""
BYTES_READ_A_SECOND = 10**9
"""Of the files of a model that a worker reads again for each lot of jobs."""
SHARE_IN_MEMORY, SHARE_OF_READING = 1 / 8, 1 / 8
"""For such a model, the share in memory at a time, and the largest share of a lot's time for reading it."""


class WorkLeft(NamedTuple):
    """What is left of a plan: jobs, seconds on one core, and the memory of its largest run and its models."""

    num_jobs: int
    seconds: float
    run_bytes: int
    model_bytes: int | None = None
    """In each worker; None where no experiment has a model."""
    reading_seconds: float = 0.0
    """For the models that are read again for each lot of jobs."""
    runs_once: bool = False
    """Whether each job is a run of a model, and no more."""

    @property
    def seconds_a_job(self) -> float:
        """On one core."""
        return self.seconds / max(1, self.num_jobs)


def num_workers(work: WorkLeft, *, cores: int, free_bytes: int) -> int:
    """How many workers to start; 0 where this process alone is faster.

    One per core, as long as each has more to do than its start takes and all fit into a third of the free
    memory.
    """
    has_model = work.model_bytes is not None
    if work.runs_once and work.seconds < LEAST_SECONDS_WITH_MODEL:
        return 0
    worker_bytes = BYTES_OF_A_WORKER + work.run_bytes + (work.model_bytes or 0)
    most = min(
        cores,
        work.num_jobs,
        int(work.seconds / (SECONDS_TO_START_WITH_MODEL if has_model else SECONDS_TO_START)),
        int(free_bytes * SHARE_OF_MEMORY / worker_bytes),
    )
    return most if most > 1 else 0


def num_together(work: WorkLeft) -> int:
    """How many jobs to compute together before their reports are shown in order.

    It depends on the plan alone: results agree to the last bit only when the same jobs are computed together.
    """
    fitting = MAX_BYTES_TOGETHER // max(1, work.run_bytes)
    most = MAX_SECONDS_THROUGH_MODEL if work.runs_once else MAX_SECONDS_TOGETHER
    seconds = max(most, work.reading_seconds / SHARE_OF_READING)
    in_time = int(seconds / max(work.seconds_a_job, 1e-9))
    return max(1, min(MAX_TOGETHER, fitting, in_time))


def estimated_work(plan: Plan, num_left: int) -> WorkLeft:
    """A rough estimate for the last `num_left` runs of a plan, before anything is imported or loaded."""
    costs = [(spec, _num_tokens(spec, plan)) for spec in plan.specs()]
    share = num_left / len(plan)
    models = {
        (model, _setting(spec, "dtype"), _setting(spec, "load"))
        for spec, _ in costs
        if (model := spec.model_source()) is not None
    }
    return WorkLeft(
        num_jobs=round(plan.num_jobs * share),
        seconds=plan.num_prompts * share * sum(seconds_of_run(*cost) for cost in costs),
        run_bytes=max(spec.needed_bytes(num_tokens, num_tokens) for spec, num_tokens in costs),
        model_bytes=sum(_bytes_in_worker(*model) for model in models) if models else None,
        reading_seconds=sum(_seconds_to_read(*model) for model in models),
        runs_once=all(
            isinstance(spec, ModelSpec) and spec.runs_once and spec.model_source() is not None
            for spec, _ in costs
        ),
    )


def seconds_of_run(spec: Spec, num_tokens: int) -> float:
    """Roughly how long one run takes on one core, with texts of that many tokens."""
    if (model := spec.model_source()) is not None:
        # Every parameter takes part in one product and one sum for each token.
        return SECONDS_A_RUN + 2 * _parameters(model) * num_tokens / OPERATIONS_A_SECOND
    return (
        SECONDS_A_RUN
        + SECONDS_A_BYTE * spec.needed_bytes(num_tokens, num_tokens)
        + SECONDS_A_WEIGHT * spec.num_weights(num_tokens, num_tokens)
    )


def parameter_bytes(model: str, dtype: str = "float32") -> int:
    """The bytes of a model's parameters once it is loaded; 0 for a model on the hub, which is unknown."""
    return BYTES_OF_A_NUMBER[dtype] * _parameters(model)


def _is_read_again(model: str, dtype: str, load: str) -> bool:
    size = parameter_bytes(model, dtype)
    return load == "disk" or (load == "auto" and size > READ_FIRST_BYTES)


def _bytes_in_worker(model: str, dtype: str, load: str) -> int:
    size = parameter_bytes(model, dtype)
    return int(size * SHARE_IN_MEMORY) if _is_read_again(model, dtype, load) else size


def _seconds_to_read(model: str, dtype: str, load: str) -> float:
    path = local_model(model)
    if path is None or not _is_read_again(model, dtype, load):
        return 0.0
    return stored_bytes(path) / BYTES_READ_A_SECOND


@cache
def _parameters(model: str) -> int:
    """How many parameters a folder, a package's model or a GGUF file has; 0 where nothing says so."""
    path = local_model(model)
    try:
        return 0 if path is None else num_parameters(path)
    except UserError:  # each of its runs will fail with this error
        return 0


def _setting(spec: Spec, key: str) -> str:
    """A setting of experiments with a model."""
    return str(getattr(spec, key))


def _num_tokens(spec: Spec, plan: Plan) -> int:
    """Roughly how many tokens the texts of an experiment have; for a file of sentences the mean."""
    if num_sampled := max(spec.sampled_counts()):
        return num_sampled
    if plan.prompts is not None:
        return round(plan.mean_characters / CHARACTERS_A_TOKEN) + 1
    file = getattr(spec, "file", None)
    if file is not None and Path(file).is_file():
        return Path(file).stat().st_size // CHARACTERS_A_TOKEN + 1
    return len(getattr(spec, "sentence", None) or "") // CHARACTERS_A_TOKEN + 1
