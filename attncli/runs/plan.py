"""The plan of a batch: every setting and sentence is validated before anything runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UserError
from attncli.models.text_files import FILE_KINDS, FileList, TextFile, TextLine
from attncli.runs.jobs import Chain, Item, Job, with_texts
from attncli.settings import SPECS, every_setting_of
from attncli.settings.config_file import ConfigFile
from attncli.settings.fields import Given, Spec
from attncli.settings.overrides import Overrides, unknown_overrides
from attncli.settings.text import check_tokens
from attncli.system.plain_text import counted

if TYPE_CHECKING:  # a plan counts texts without torch
    from attncli.models.labelled_files import WholeLines


class CheckedPrompts(NamedTuple):
    """The number of prompts in a file, the first context (or None), and the mean length of a sentence."""

    num_prompts: int
    context: str | None
    mean_characters: float


class PromptFile(FileList):
    """The sentences in a file.

    The file has one sentence per line, or is JSON Lines or CSV with sentence (or text), context, answer and
    id. If the first line is the name of a file, the file is a list of other files, one name per line.
    """

    columns = ("sentence", "context", "answer", "id")

    def __init__(self, name: str) -> None:
        super().__init__(name, f"--file {name}", "sentence")
        first = self.folder / next(self.lines(), (0, b""))[1].decode("utf-8", "replace")
        keys = (key for key, kind in FILE_KINDS.items() if kind.is_one(first))
        self.key = "sentence" if self.is_json else next(keys, "sentence")

    def __iter__(self) -> Iterator[TextLine]:
        """Yield every prompt from the start. Raises UserError at the first invalid line."""
        for number, data in self.lines():
            yield self._prompt(number, data)

    def first(self) -> TextLine:
        """Return the first valid prompt; the settings are validated with it once for all prompts.

        Raises UserError with the bad lines if no prompt is valid.
        """
        for number, data in self.lines():
            with suppress(UserError):  # `check` reports this line with all other bad lines
                return self._prompt(number, data)
        self.check(lambda prompt: None)
        raise AssertionError("a file without a prompt is refused")

    def check(self, check: Callable[[TextLine], None]) -> CheckedPrompts:
        """Count and check the prompts. Raises UserError with the bad lines.

        The function `check` raises UserError for a prompt that the experiments cannot use.
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
            raise UserError(f"--file {self.label}: contains no sentence")
        self._refuse_numbers_used_as_ids(numbers_as_ids)
        return CheckedPrompts(count, context, characters / count)

    def _refuse_numbers_used_as_ids(self, ids: set[str]) -> None:
        """Raise UserError if a line has no id and its line number is the id of another line."""
        for number, data in self.lines() if ids else ():
            if str(number) in ids and self._prompt(number, data).id is None:
                message = f"is required, because {number}, the number of this line, is the id of another line"
                raise UserError(f"{self.label}:{number}: id: {message}")

    def _prompt(self, number: int, data: bytes) -> TextLine:
        if self.key in FILE_KINDS:
            return self.named(number, data)
        fields = self.fields(number, data, ("sentence", "context", "answer"), ("id",))
        sentence = fields["sentence"]
        assert sentence is not None
        texts = {key: fields.get(key) for key in ("context", "answer")}
        return TextLine(number, sentence, fields.get("id"), **texts)


def plan_files(
    paths: Sequence[Path], overrides: Overrides | None = None, texts: Overrides | None = None
) -> list[Item]:
    """Return the experiments of all files in order. Raises UserError with every error in every file.

    `overrides` replace settings in the files, and so do `texts` in experiments that read texts.
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
    """Divide the items into the smallest sequences that do not depend on one another.

    An item that continues the previous generator belongs with the previous item and has its seed; an item
    with `embedding: previous` belongs with the last item that has a table of words.
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


@dataclass(frozen=True)
class Plan:
    """The chains, by themselves or combined with every sentence of a file."""

    chains: tuple[Chain, ...]
    chains_with_context: tuple[Chain, ...] = ()
    prompts: "PromptFile | TextFile | WholeLines | None" = None
    num_prompts: int = 1
    mean_characters: float = 0.0

    def __len__(self) -> int:
        return self.num_prompts * sum(map(len, self.chains))

    @property
    def num_jobs(self) -> int:
        """The number of jobs, which can be computed independently."""
        return self.num_prompts * len(self.chains)

    def items(self) -> list[Item]:
        """Return every experiment, once for all sentences, and again with a context if any prompt has one."""
        return [item for chain in (*self.chains, *self.chains_with_context) for item in chain]

    def specs(self) -> Iterator[Spec]:
        """Yield the settings of each experiment, once for all sentences."""
        return (item.spec for chain in self.chains for item in chain)

    def jobs(self) -> Iterator[Job]:
        """Yield every chain with all its sentences before the next: neighbours have equal settings."""
        place = 1
        for i, chain in enumerate(self.chains):
            for prompt in self.prompts if self.prompts is not None else (None,):
                has_context = prompt is not None and prompt.context is not None
                yield Job(self.chains_with_context[i] if has_context else chain, prompt, place, self.key)
                place += len(chain)

    def lines(self) -> Iterator[str]:
        """Yield one line per experiment, then the number of runs."""
        for chain in self.chains:
            for number, item in enumerate(chain):
                yield f"{item.source}: {item.spec.experiment}{', with the same generator' if number else ''}"
        num_experiments = sum(map(len, self.chains))
        experiments = counted(num_experiments, "experiment")
        if self.prompts is None:
            yield experiments
        else:
            kind = _kind_name(self.key)
            yield f"{experiments} × {counted(self.num_prompts, kind)} = {counted(len(self), 'run')}"

    @property
    def key(self) -> str:
        """The setting that each line of the file provides: a sentence or the name of a file."""
        return self.prompts.key if isinstance(self.prompts, PromptFile) else "sentence"


def _kind_name(key: str) -> str:
    return FILE_KINDS[key].name if key in FILE_KINDS else key


def make_plan(paths: Sequence[Path], overrides: Overrides, prompts: PromptFile | None = None) -> Plan:
    """Return the plan for config files, optionally with a file of sentences.

    Raises UserError with every error.
    """
    if prompts is None:
        return Plan(tuple(chains(plan_files(paths, overrides))))
    first = prompts.first()
    key, text = prompts.key, first.file or first.text
    texts = {key: Given(text, "--file", is_flag=True)}
    items = plan_files(paths, overrides, texts)
    _refuse_what_reads_nothing(items, key)
    if key in FILE_KINDS:
        items = [item._replace(spec=with_texts(item.spec, {key: prompts.label})) for item in items]
    if any("texts" in type(item.spec).model_fields for item in items):
        _refuse_what_reads_many(paths, overrides)
    checked = prompts.check(_prompt_check(items))
    with_context: tuple[Chain, ...] = ()
    if checked.context is not None:
        texts |= {"context": Given(checked.context, f"--file {prompts.label}: context", is_flag=True)}
        with_context = tuple(chains(plan_files(paths, overrides, texts)))
    return Plan(tuple(chains(items)), with_context, prompts, checked.num_prompts, checked.mean_characters)


def plan_texts(spec: Spec, source: str, texts: "TextFile | WholeLines") -> Plan:
    """Return the plan for one experiment on many texts. Raises UserError with the bad lines."""
    num_texts = texts.count()
    mean_characters = sum(len(line.text) for line in texts) / num_texts
    first = next(iter(texts))
    alone = tuple(chains([Item(with_texts(spec, {"sentence": first.text}), source)]))
    with_context = () if first.context is None else alone
    return Plan(alone, with_context, texts, num_texts, mean_characters)


def _refuse_what_reads_nothing(items: Sequence[Item], key: str) -> None:
    kind = _kind_name(key)
    errors = [
        f"{item.source}: experiment: {item.spec.experiment} reads no {kind}: omit --file"
        for item in items
        if key not in type(item.spec).model_fields
    ]
    if errors:
        raise UserError(*dict.fromkeys(errors))


def _refuse_what_reads_many(paths: Sequence[Path], overrides: Overrides) -> None:
    """Raise UserError if an experiment itself reads a file of texts."""
    items: list[Item] = []
    with suppress(UserError):  # a missing sentence is no error here, because --file provides it
        items = plan_files(paths, overrides)
    sources = dict.fromkeys(item.source for item in items if item.spec.reads_many_texts())
    if sources:
        message = "the experiment reads a file of texts itself: omit --file"
        raise UserError(*(f"{source}: {message}" for source in sources))


def _prompt_check(items: Sequence[Item]) -> Callable[[TextLine], None]:
    """Return a check that a prompt has at least one token and no fields that the experiments do not read."""
    by_tokenizer = {item.spec.word_tokenizer(): item.spec for item in items}
    optional = ("context", "answer")
    is_read = {key: any(key in type(item.spec).model_fields for item in items) for key in optional}

    def check(prompt: TextLine) -> None:
        for key in optional:
            if getattr(prompt, key) is not None and not is_read[key]:
                readers = ", ".join(name for name, spec in SPECS.items() if key in spec.model_fields)
                raise UserError(f"{key}: is read only by {readers}")
        for spec in by_tokenizer.values() if prompt.file is None else ():
            check_tokens(spec, "sentence", prompt.text)
            if prompt.context is not None:
                check_tokens(spec, "context", prompt.context)

    return check
