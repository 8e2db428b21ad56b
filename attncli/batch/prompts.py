"""Sentences from a text file, JSON Lines or standard input: each line checked once, then read as needed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attncli.errors import UserError
from attncli.experiments.reading.text_file import LineFile, TextFile


class Prompt(NamedTuple):
    """One line of the file; `id` is its name in the file, where it has one."""

    line: int
    sentence: str
    context: str | None = None
    id: str | None = None


class CheckedPrompts(NamedTuple):
    """How many prompts a file has, whether some have a context, and the mean length of a sentence."""

    num_prompts: int
    has_context: bool
    mean_characters: float


class PromptFile(LineFile):
    """The sentences of a file: one per line, or JSON Lines with sentence, context and id."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"--file {name}")

    def __iter__(self) -> Iterator[Prompt]:
        """Every prompt, from the start; UserError at the first line that is not one."""
        for number, data in self.lines():
            yield self._prompt(number, data)

    def check(self, check: Callable[[Prompt], None]) -> CheckedPrompts:
        """What the plan needs to know about the prompts; UserError with the bad lines.

        `check` raises a UserError for a prompt that the experiments cannot use.
        """
        count, characters, has_context = 0, 0, False
        numbers_as_ids: set[str] = set()

        def check_line(number: int, data: bytes) -> None:
            nonlocal count, characters, has_context
            prompt = self._prompt(number, data)
            try:
                check(prompt)
            except UserError as error:
                raise UserError(*(f"{self.label}:{number}: {line}" for line in error.lines)) from None
            count += 1
            characters += len(prompt.sentence)
            has_context = has_context or prompt.context is not None
            if prompt.id is not None and prompt.id.isdecimal():
                numbers_as_ids.add(prompt.id)

        self.check_lines(check_line)
        if not count:
            raise UserError(f"--file {self.label}: holds no sentence")
        self._refuse_numbers_used_as_ids(numbers_as_ids)
        return CheckedPrompts(count, has_context, characters / count)

    def _refuse_numbers_used_as_ids(self, ids: set[str]) -> None:
        """UserError for a line without an id whose number is the id of another."""
        for number, data in self.lines() if ids else ():
            if str(number) in ids and self._prompt(number, data).id is None:
                message = f"must be given: {number}, the number of this line, is the id of another"
                raise UserError(f"{self.label}:{number}: id: {message}")

    def _prompt(self, number: int, data: bytes) -> Prompt:
        fields = self.fields(number, data, ("sentence", "context"), ("id",))
        sentence = fields["sentence"]
        assert sentence is not None
        return Prompt(number, sentence, fields.get("context"), fields.get("id"))


@dataclass(frozen=True)
class TextPrompts:
    """The texts of a survey as prompts of a batch."""

    file: TextFile

    def __iter__(self) -> Iterator[Prompt]:
        """Every text, from the start."""
        return (Prompt(line.line, line.text, None, line.id) for line in self.file)
