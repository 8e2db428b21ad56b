"""The page's questions to the model, and the queue in which they wait."""

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
"""Questions that may take long; a user can stop them."""
TAB = re.compile(r"[0-9A-Za-z-]{1,64}")
MOST_HEADS, MOST_STEPS, MOST_NAMES = 4096, 1024, 64
MOST_TOKEN = 2**31
"""An upper bound of token ids."""
MOST_WAITING = 64


class NoQuestion(ValueError):
    """Raised if the page sent an invalid question."""


Names = Annotated[tuple[str, ...], Field(max_length=MOST_NAMES)]


@dataclass(frozen=True)
class Question:
    """The contents of a request, which cannot name a file or a model.

    `tab` distinguishes the pages of one browser. `heads` are ablated, `token` is the token id for `why`, and
    `steps` is the number of tokens to write. `keys` are tokens of the text, named as on the page; the result
    is each head's weight on them, from `queries` or from all tokens.
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
        """Parse the question in a request's JSON. Raises NoQuestion for anything else."""
        try:
            question = QUESTIONS.validate_json(body)
        except ValueError:
            raise NoQuestion from None
        return replace(question, heads=tuple(dict.fromkeys(question.heads)))


QUESTIONS = TypeAdapter(with_config(ConfigDict(strict=True, extra="forbid"))(Question))


@dataclass(eq=False)
class Waiting:
    """A question in the queue.

    Any thread may call `put` with the lines of its answer and, at the end, with None.
    """

    question: Question
    put: Callable[[str | None], None]
    stopped: Event = field(default_factory=Event)
    has_notice: bool = False
    """True once the page knows that the question waits for another page."""

    def replaces(self, older: "Waiting") -> bool:
        """Return True if an older question is obsolete because this question repeats it or has a new text.

        Questions about next tokens do not count, because the page itself asks for the next tokens after each
        question of the user.
        """
        ours, theirs = self.question, older.question
        has_other_text = ours.text != theirs.text and ours.ask != "next"
        return ours.tab == theirs.tab and (ours.ask == theirs.ask or has_other_text)


Answering = Callable[[Question, Event, Callable[[str], None]], None]
"""Sends the lines that answer a question; once the event is set, the function ends as soon as possible."""
REPLACED = json.dumps({"replaced": True})
HAS_STOPPED = json.dumps({"stopped": True})
WAITS, BEGINS = json.dumps({"waits": True}), json.dumps({"waits": False})
"""A question waits for another page, or no longer waits."""


class OneModel:
    """Asks a single model one question at a time, in a separate thread.

    The thread is a daemon, so the process does not wait for it to finish.
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
        """True while the model computes."""
        return self._running is not None

    def ask(self, question: Question, put: Callable[[str | None], None]) -> Waiting:
        """Queue a question in place of those that it replaces; stop a running question that it replaces."""
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
                    waiting.has_notice = True
                    put(WAITS)
                self._line.append(waiting)
                self._changed.notify()
        for each in older:
            each.put(REPLACED)
            each.put(None)
        if is_full:
            waiting_questions = counted(MOST_WAITING, "question")
            put(json.dumps({"error": f"{waiting_questions} are waiting for the model: ask again later"}))
            put(None)
        return waiting

    def withdraw(self, waiting: Waiting) -> None:
        """Remove a closed page's question from the queue, or stop its answer."""
        waiting.stopped.set()
        with self._changed:
            self._line = [each for each in self._line if each is not waiting]

    def stop(self, tab: str) -> None:
        """Stop a tab's generation or ablation; the part already written is shown."""

        def is_stopped(waiting: Waiting | None) -> bool:
            return waiting is not None and waiting.question.tab == tab and waiting.question.ask in STOPPED

        with self._changed:
            if self._running is not None and is_stopped(self._running):
                self._running.stopped.set()
            in_line = [each for each in self._line if is_stopped(each)]
            self._line = [each for each in self._line if not is_stopped(each)]
        for each in in_line:
            each.put(HAS_STOPPED)
            each.put(None)

    def end(self) -> bool:
        """Stop asking the model.

        Return True if the model is still computing, because a computation cannot be stopped.
        """
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
            if waiting.has_notice:
                waiting.put(BEGINS)
            try:
                self._answer(waiting.question, waiting.stopped, waiting.put)
            except BaseException as error:  # even if a tokenizer panics, the server continues
                line = f"internal error: {type(error).__name__} (please report it)"
                print(f"serve: {waiting.question.ask}: {line}", file=sys.stderr)
                waiting.put(json.dumps({"error": line}))
            finally:
                self._running = None
                waiting.put(None)
