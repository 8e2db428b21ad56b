"""What a page asks of the model, and the line in which the one model is asked."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Condition, Event, Thread
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from attncli.core.names import PLACE
from attncli.system.plain_text import counted

AskedFor = Literal["heads", "next", "ablate", "why", "generate"]
ASKS: tuple[AskedFor, ...] = get_args(AskedFor)
STOPPED: tuple[AskedFor, ...] = ("ablate", "generate")
"""What takes so long that a person may end it."""
TAB = re.compile(r"[0-9A-Za-z-]{1,64}")
MOST_HEADS, MOST_STEPS, MOST_NAMES = 4096, 1024, 64
MOST_TOKEN = 2**31
"""Above the ids of all tokens."""
MOST_WAITING = 64


class NoQuestion(ValueError):
    """What a page sent is nothing that may be asked."""


Names = Annotated[tuple[str, ...], Field(max_length=MOST_NAMES)]


@dataclass(frozen=True)
class Question:
    """All that a request can say: there is no name of a file or of a model in it.

    `tab` tells apart the pages of one browser. `heads` are taken out, `token` is the id of that of `why`,
    `steps` are tokens to write. `keys` are tokens of the text, as they are called on the page: how much each
    head looks at them, from `queries` or all.
    """

    ask: AskedFor
    tab: Annotated[str, Field(pattern=f"^(?:{TAB.pattern})$")]
    text: str
    heads: Annotated[
        tuple[Annotated[str, Field(pattern=f"^(?:{PLACE.pattern})$")], ...], Field(max_length=MOST_HEADS)
    ] = ()
    token: Annotated[int, Field(ge=0, lt=MOST_TOKEN)] | None = None
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 1
    queries: Names = ()
    keys: Names = ()

    @classmethod
    def read(cls, body: bytes) -> "Question":
        """The question in the JSON of a request; NoQuestion for anything else."""
        try:
            question = QUESTIONS.validate_json(body)
        except ValueError:
            raise NoQuestion from None
        return replace(question, heads=tuple(dict.fromkeys(question.heads)))


QUESTIONS = TypeAdapter(with_config(ConfigDict(strict=True, extra="forbid"))(Question))


@dataclass(eq=False)
class Waiting:
    """A question in the line; `put` takes the lines of its answer, and at the end None, from any thread."""

    question: Question
    put: Callable[[str | None], None]
    stopped: Event = field(default_factory=Event)
    was_told: bool = False
    """That it waits for another page."""

    def replaces(self, older: "Waiting") -> bool:
        """Whether nobody waits for an older question now: of the same tab the same, or of another text.

        Next tokens are asked by the page itself, behind what a person asks.
        """
        ours, other = self.question, older.question
        is_of_other_text = ours.text != other.text and ours.ask != "next"
        return ours.tab == other.tab and (ours.ask == other.ask or is_of_other_text)


Answering = Callable[[Question, Event, Callable[[str], None]], None]
"""Hands over the lines that answer a question; once the event is set, it ends where it can."""
REPLACED = json.dumps({"replaced": True})
HAS_STOPPED = json.dumps({"stopped": True})
WAITS, BEGINS = json.dumps({"waits": True}), json.dumps({"waits": False})
"""For another page, and no longer."""


class OneModel:
    """Asks the one model, a question at a time, in a thread of its own.

    The thread is a daemon: a process does not wait for a model that computes.
    """

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._line: list[Waiting] = []
        self._running: Waiting | None = None
        self._has_ended = False
        self._changed = Condition()
        Thread(target=self._work, name="attn serve: the model", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether the model computes."""
        return self._running is not None

    def ask(self, question: Question, put: Callable[[str | None], None]) -> Waiting:
        """Put a question into the line, in the place of those that it replaces; one that runs ends."""
        waiting = Waiting(question, put)
        with self._changed:
            older = [each for each in self._line if waiting.replaces(each)]
            self._line = [each for each in self._line if each not in older]
            running = [] if self._running is None else [self._running]
            for each in running:
                if waiting.replaces(each):
                    each.stopped.set()
            is_full = len(self._line) >= MOST_WAITING
            if not is_full:
                if any(each.question.tab != question.tab for each in (*running, *self._line)):
                    waiting.was_told = True
                    put(WAITS)
                self._line.append(waiting)
                self._changed.notify()
        for each in older:
            each.put(REPLACED)
            each.put(None)
        if is_full:
            asked = counted(MOST_WAITING, "question")
            put(json.dumps({"error": f"{asked} wait for the model: ask again when some are answered"}))
            put(None)
        return waiting

    def withdraw(self, waiting: Waiting) -> None:
        """Whoever asked has gone: the question leaves the line, or its answer ends where it can."""
        waiting.stopped.set()
        with self._changed:
            self._line = [each for each in self._line if each is not waiting]

    def stop(self, tab: str) -> None:
        """What is written for a tab ends with what there is; what is lost without heads is not said."""

        def is_meant(waiting: Waiting | None) -> bool:
            return waiting is not None and waiting.question.tab == tab and waiting.question.ask in STOPPED

        with self._changed:
            if self._running is not None and is_meant(self._running):
                self._running.stopped.set()
            in_line = [each for each in self._line if is_meant(each)]
            self._line = [each for each in self._line if not is_meant(each)]
        for each in in_line:
            each.put(HAS_STOPPED)
            each.put(None)

    def end(self) -> bool:
        """Ask the model nothing more. Whether it still computes: nobody can stop it, and nobody waits."""
        with self._changed:
            self._has_ended = True
            return self.is_busy

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._line:
                    self._changed.wait()
                if self._has_ended:
                    return
                self._running = waiting = self._line.pop(0)
            if waiting.was_told:
                waiting.put(BEGINS)
            try:
                self._answer(waiting.question, waiting.stopped, waiting.put)
            except BaseException as error:  # a tokenizer's panic, too: the server goes on
                line = f"internal error: {type(error).__name__} (please report it)"
                print(f"serve: {waiting.question.ask}: {line}", file=sys.stderr)
                waiting.put(json.dumps({"error": line}))
            finally:
                self._running = None
                waiting.put(None)
