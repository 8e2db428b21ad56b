"""A server in a thread of this process, and requests to it as bytes on a socket."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Any, NamedTuple

from attncli.features.serve.guard import Secrets
from attncli.features.serve.questions import Answering, OneModel, Question
from attncli.features.serve.server import ServedPage, app, bound_socket, make_server

SECONDS = 10
PAGE = ServedPage("<!doctype html><title>the page</title>", "default-src 'none'")


class Reply(NamedTuple):
    """What came back: a status of 0 where the connection was closed without a word."""

    status: int
    headers: dict[str, str]
    body: bytes

    def lines(self) -> list[Any]:
        """Those of an answer; a report stays as it is."""
        return [json.loads(line) for line in self.body.decode().splitlines()]


class Running(NamedTuple):
    """A server that runs, its secrets, and the questions that reached the model."""

    port: int
    secrets: Secrets
    model: OneModel
    asked: list[Question]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def headers(self, **more: str) -> dict[str, str]:
        """Those of a page of this server, with more, or others in their place; empty ones are left out."""
        own = {"Host": self.host, "Cookie": f"{self.secrets.cookie}={self.secrets.token}"}
        own |= {"Sec-Fetch-Site": "same-origin"} | {
            name.replace("_", "-"): each for name, each in more.items()
        }
        return {name: each for name, each in own.items() if each}

    def get(self, address: str = "", **more: str) -> Reply:
        return self.raw(request("GET", self.secrets.folder + address, self.headers(**more)))

    def post(self, address: str, data: object, **more: str) -> Reply:
        body = json.dumps(data).encode()
        own = {"Origin": f"http://{self.host}", "Content_Type": "application/json"}
        headers = self.headers(**(own | {"Content_Length": str(len(body))} | more))
        return self.raw(request("POST", self.secrets.folder + address, headers, body))

    def ask(self, ask: str, text: str = "the cat", *, tab: str = "t", **more: object) -> Reply:
        return self.post("ask", {"ask": ask, "tab": tab, "text": text, **more})

    def raw(self, data: bytes) -> Reply:
        """What answers these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            try:
                connection.sendall(data)
                return read_reply(connection)
            except ConnectionError:
                return Reply(0, {}, b"")


def request(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1", "replace") + body


def read_reply(connection: socket.socket) -> Reply:
    """The whole of it, until the server closes."""
    data = b""
    while part := connection.recv(2**16):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return Reply(0, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Reply(int(first.split()[1]), headers, unchunked(body) if "transfer-encoding" in headers else body)


def unchunked(data: bytes) -> bytes:
    """The body of a reply that came in parts."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        body, data = body + data[:count], data[count + 2 :]
    return body


def no_answer(question: Question, stopped: Event, put: Callable[[str], None]) -> None:
    put(json.dumps({"asked": question.text}))


@contextmanager
def running(answer: Answering = no_answer, page: ServedPage = PAGE) -> Iterator[Running]:
    """A server, until the end of the block."""
    asked: list[Question] = []

    def noted(question: Question, stopped: Event, put: Callable[[str], None]) -> None:
        asked.append(question)
        answer(question, stopped, put)

    secrets, model = Secrets(), OneModel(noted)
    server = make_server(app(page, model, secrets))
    with bound_socket(0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        end = time.monotonic() + SECONDS
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)
        try:
            yield Running(listening.getsockname()[1], secrets, model, asked)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
    assert not thread.is_alive()
