"""The line to the one model: one question at a time, a newer one in the place of an older, and who leaves."""

import json
import socket
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event

import pytest

from attncli.features.serve import questions
from attncli.features.serve.questions import OneModel, Question
from tests.features.serve.served import Reply, Running, request, running

SECONDS = 10


class Gate:
    """An answer that waits until it is let through, and says which questions began."""

    def __init__(self) -> None:
        self.began: SimpleQueue[str] = SimpleQueue()
        self.open = Event()
        self.most = 0
        self._now = 0

    def answer(self, question: Question, stopped: Event, put: Callable[[str], None]) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        self.began.put(question.text)
        while not self.open.wait(0.01) and not stopped.is_set():
            put(json.dumps({"written": "x"}))
        put(json.dumps({"asked": question.text, "stopped": stopped.is_set()}))
        self._now -= 1


def last(reply: Reply) -> object:
    return reply.lines()[-1]


def asking(it: Running, *arguments: str, **more: str) -> tuple[threading.Thread, list[Reply]]:
    """A thread that asks, and where its reply will be."""
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(it.ask(*arguments, **more)), daemon=True)
    thread.start()
    return thread, replies


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def in_line(it: Running, text: str) -> None:
    wait_for(lambda: text in {each.question.text for each in it.model._line})


def test_a_newer_question_of_a_tab_replaces_the_older_and_tabs_take_turns() -> None:
    gate = Gate()
    with running(gate.answer) as it:
        first = asking(it, "heads", "first", tab="a")
        assert gate.began.get(timeout=SECONDS) == "first"
        other_tab = asking(it, "heads", "other tab", tab="b")
        in_line(it, "other tab")
        assert it.model.is_busy and it.get("alive").status == 204  # the server answers meanwhile
        older = asking(it, "why", "older", tab="a")  # nobody waits for the first one now
        assert gate.began.get(timeout=SECONDS) == "other tab"
        in_line(it, "older")
        newer = asking(it, "heads", "newer", tab="a")
        in_line(it, "newer")
        older[0].join(SECONDS)
        beside = asking(it, "next", "newer", tab="a")  # asks something else about the same text
        wait_for(lambda: len(it.model._line) == 2)
        gate.open.set()
        for thread, replies in (first, other_tab, newer, beside):
            thread.join(SECONDS)
            assert replies
        assert last(first[1][0]) == {"asked": "first", "stopped": True}
        assert older[1][0].lines() == [{"waits": True}, {"replaced": True}]
        for each, text in ((other_tab, "other tab"), (newer, "newer"), (beside, "newer")):
            waits, begins, *_, asked = each[1][0].lines()
            assert (waits, begins) == ({"waits": True}, {"waits": False})
            assert asked == {"asked": text, "stopped": False}
        asks = [(question.ask, question.text) for question in it.asked]
        assert asks == [
            *(("heads", "first"), ("heads", "other tab"), ("heads", "newer"), ("next", "newer")),
        ]
        assert gate.most == 1 and not it.model.is_busy


def test_a_single_page_is_not_told_that_it_waits() -> None:
    gate = Gate()
    with running(gate.answer) as it:
        first = asking(it, "heads", "a")
        assert gate.began.get(timeout=SECONDS) == "a"
        beside = asking(it, "next", "a")
        in_line(it, "a")
        gate.open.set()
        for thread, replies in (first, beside):
            thread.join(SECONDS)
            assert not any("waits" in line for line in replies[0].lines())


def test_stop_removes_a_waiting_question() -> None:
    gate = Gate()
    with running(gate.answer) as it:
        first = asking(it, "heads", "first", tab="a")
        gate.began.get(timeout=SECONDS)
        second = asking(it, "ablate", "second", tab="b")
        in_line(it, "second")
        assert it.post("stop", "b").status == 204
        second[0].join(SECONDS)  # while the first one goes on
        assert last(second[1][0]) == {"stopped": True} and not it.model._line
        gate.open.set()
        first[0].join(SECONDS)
        assert last(first[1][0]) == {"asked": "first", "stopped": False}


def test_stop_ends_only_the_answer_of_its_tab() -> None:
    gate = Gate()
    with running(gate.answer) as it:
        thread, replies = asking(it, "generate", "a", tab="a")
        gate.began.get(timeout=SECONDS)
        assert it.post("stop", "b").status == 204
        time.sleep(0.05)
        assert not replies
        assert it.post("stop", "a").status == 204
        thread.join(SECONDS)
        assert last(replies[0]) == {"asked": "a", "stopped": True}


def test_closing_a_page_withdraws_its_questions() -> None:
    gate = Gate()
    with running(gate.answer) as it:
        body = json.dumps({"ask": "heads", "tab": "a", "text": "closed"}).encode()
        headers = it.headers(Origin=f"http://{it.host}", Content_Type="application/json")
        headers["Content-Length"] = str(len(body))
        with socket.create_connection(("127.0.0.1", it.port)) as connection:
            connection.sendall(request("POST", f"{it.secrets.folder}ask", headers, body))
            assert gate.began.get(timeout=SECONDS) == "closed"
            waiting, replies = asking(it, "heads", "next", tab="b")
        assert gate.began.get(timeout=SECONDS) == "next"  # the first one was stopped
        gate.open.set()
        waiting.join(SECONDS)
        assert last(replies[0]) == {"asked": "next", "stopped": False}


def test_the_queue_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_WAITING", 2)
    gate = Gate()
    model, lines = OneModel(gate.answer), SimpleQueue[str | None]()
    for tab in range(3):
        model.ask(Question("heads", str(tab), "a"), lambda line: None)
        if not tab:
            gate.began.get(timeout=SECONDS)
    model.ask(Question("heads", "last", "a"), lines.put)
    line = lines.get(timeout=SECONDS)
    assert line is not None and json.loads(line)["error"].startswith("2 questions are waiting for the model")
    assert lines.get(timeout=SECONDS) is None
    gate.open.set()
