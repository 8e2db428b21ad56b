"""The plan of a batch: every setting and sentence is validated before anything runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attncli.batch.prompts import Prompt, PromptFile, TextPrompts
from attncli.errors import UserError
from attncli.experiments.reading.text_file import TextFile
from attncli.experiments.reading.texts import check_text
from attncli.spec import SPECS
from attncli.spec.config.config_file import ConfigFile
from attncli.spec.config.overrides import Overrides, unknown_overrides
from attncli.spec.config.validation import Given
from attncli.spec.fields import Spec

# Stands for the sentences to come, so that settings are validated once and not for each sentence.
PLACEHOLDER = "sentence"


class Item(NamedTuple):
    """One experiment, its place, whether it starts a file or a new generator, and its sentence's id."""

    spec: Spec
    source: str | None = None
    starts_file: bool = True
    reseed: bool = True
    id: str | None = None


Chain = tuple[Item, ...]


def plan_files(
    paths: Sequence[Path], overrides: Overrides | None = None, texts: Overrides | None = None
) -> list[Item]:
    """The experiments of all files in order; UserError with every error of every file.

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
        errors += unknown_overrides(overrides, {type(item.spec) for item in items})
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
    """A chain of experiments on one sentence (or on their own texts), and the place of its first run."""

    chain: Chain
    prompt: Prompt | None
    place: int

    def items(self) -> Chain:
        """The experiments, each with the sentence (and the context, where it reads one)."""
        if self.prompt is None:
            return self.chain
        texts = {"sentence": self.prompt.sentence}
        if self.prompt.context is not None:
            texts["context"] = self.prompt.context
        return tuple(
            item._replace(spec=_with(item.spec, texts), source=self.name(item), id=self.label)
            for item in self.chain
        )

    @property
    def label(self) -> str | None:
        """The id of its sentence, or the line if it has none; None without a file of sentences."""
        return None if self.prompt is None else self.prompt.id or str(self.prompt.line)

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
    prompts: PromptFile | TextPrompts | None = None
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
                yield Job(self.chains_with_context[i] if has_context else chain, prompt, place)
                place += len(chain)

    def lines(self) -> Iterator[str]:
        """One line per experiment, and how many runs they make."""
        for chain in self.chains:
            for number, item in enumerate(chain):
                yield f"{item.source}: {item.spec.experiment}{', on the same generator' if number else ''}"
        num_experiments = sum(map(len, self.chains))
        experiments = _counted(num_experiments, "experiment")
        if self.prompts is None:
            yield experiments
        else:
            yield f"{experiments} × {_counted(self.num_prompts, 'sentence')} = {_counted(len(self), 'run')}"


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def make_plan(paths: Sequence[Path], overrides: Overrides, prompts: PromptFile | None = None) -> Plan:
    """The plan of config files, alone or with a file of sentences; UserError with all that is wrong."""
    if prompts is None:
        return Plan(tuple(chains(plan_files(paths, overrides))))
    texts = {"sentence": Given(PLACEHOLDER, "--file", is_flag=True)}
    items = plan_files(paths, overrides, texts)
    _refuse_what_reads_nothing(items)
    if any("texts" in type(item.spec).model_fields for item in items):
        _refuse_what_reads_many(paths, overrides)
    checked = prompts.check(_prompt_check(items))
    with_context: tuple[Chain, ...] = ()
    if checked.has_context:
        texts |= {"context": Given(PLACEHOLDER, f"--file {prompts.label}: context", is_flag=True)}
        with_context = tuple(chains(plan_files(paths, overrides, texts)))
    return Plan(tuple(chains(items)), with_context, prompts, checked.num_prompts, checked.mean_characters)


def plan_of_texts(spec: Spec, file: TextFile) -> Plan:
    """The plan of one experiment on many texts; UserError with the bad lines."""
    texts, num_texts = TextPrompts(file), file.count()
    mean = sum(len(prompt.sentence) for prompt in texts) / num_texts
    item = Item(_with(spec, {"sentence": PLACEHOLDER}), f"attn {spec.experiment}")
    return Plan(tuple(chains([item])), (), texts, num_texts, mean)


def _refuse_what_reads_nothing(items: Sequence[Item]) -> None:
    errors = [
        f"{item.source}: experiment: {item.spec.experiment} reads no sentence: leave out --file"
        for item in items
        if "sentence" not in type(item.spec).model_fields
    ]
    if errors:
        raise UserError(*dict.fromkeys(errors))


def _refuse_what_reads_many(paths: Sequence[Path], overrides: Overrides) -> None:
    """UserError where an experiment has its own file of texts."""
    items: list[Item] = []
    with suppress(UserError):  # what needs a sentence gets it from --file
        items = plan_files(paths, overrides)
    sources = dict.fromkeys(item.source for item in items if item.spec.reads_many_texts())
    if sources:
        raise UserError(*(f"{source}: reads many texts of its own: leave out --file" for source in sources))


def _prompt_check(items: Sequence[Item]) -> Callable[[Prompt], None]:
    """The check that all experiments need: at least one token, and a context only where one is read."""
    by_tokenizer = {item.spec.word_tokenizer(): item.spec for item in items}
    reads_context = any("context" in type(item.spec).model_fields for item in items)
    readers = [name for name, spec in SPECS.items() if "context" in spec.model_fields]

    def check(prompt: Prompt) -> None:
        if prompt.context is not None and not reads_context:
            raise UserError(f"context: is read by {', '.join(readers)} alone")
        for spec in by_tokenizer.values():
            check_text(spec, "sentence", prompt.sentence)
            if prompt.context is not None:
                check_text(spec, "context", prompt.context)

    return check
