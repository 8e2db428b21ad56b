"""`attn serve` as a user runs it: the link, what is refused before a model is read, and how it ends."""

import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from http.cookiejar import CookieJar
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest

import attncli.features.serve.question as serve_page
from attncli.features.serve.guard import Guard, Secrets
from attncli.features.serve.server import bound_socket, make_server
from tests.conftest import Attn
from tools.refresh_outputs import start_attn

SECONDS = 60


class Started(NamedTuple):
    """A server in a process of its own, and the files that it writes."""

    process: BaseProcess
    link: str
    stderr: Path

    @property
    def port(self) -> int:
        return int(self.link.split(":")[2].partition("/")[0])

    def end_by(self, number: int) -> tuple[int | None, float]:
        """The exit code after a signal, and the seconds until it was there."""
        assert self.process.pid is not None
        begun = time.monotonic()
        os.kill(self.process.pid, number)
        self.process.join(SECONDS)
        return self.process.exitcode, time.monotonic() - begun


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Started]:
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = start_attn(
            ["serve", *arguments],
            folder=folder,
            environment={**os.environ},
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
        )
    end = time.monotonic() + SECONDS
    while not out.read_text().endswith("\n") and time.monotonic() < end:
        assert process.exitcode is None, err.read_text()
        time.sleep(0.02)
    try:
        yield Started(process, out.read_text().rstrip("\n"), err)
    finally:
        process.kill()


class Browser:
    """What opens a link as a browser does: it follows it and keeps the cookie."""

    def __init__(self, link: str) -> None:
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with self.opener.open(link, timeout=SECONDS) as page:
            self.address, self.html = page.url, page.read().decode()

    def ask(self, **question: object) -> list[object]:
        origin = self.address.rsplit("/", 2)[0]
        headers = {"Content-Type": "application/json", "Origin": origin}
        asked = urllib.request.Request(f"{self.address}ask", json.dumps(question).encode(), headers)
        with self.opener.open(asked, timeout=SECONDS) as reply:
            return [json.loads(line) for line in reply.read().splitlines()]


def test_the_link_opens_the_page_and_ctrl_c_ends_a_busy_server(tmp_path: Path) -> None:
    with started(tmp_path, "--sentence", "abcabc") as it:
        browser = Browser(it.link)
        assert browser.address.startswith(f"http://127.0.0.1:{it.port}/") and "token" not in browser.address
        assert '"text":"abcabc"' in browser.html and '"model":"tiny-induction"' in browser.html
        assert browser.ask(ask="next", tab="t", text="abcabc")[0]
        for tab in range(40):  # so that it computes until its end
            arguments = {"ask": "heads", "tab": str(tab), "text": "abcdefgh" * 14}
            threading.Thread(target=asking, args=(browser, arguments), daemon=True).start()
        time.sleep(0.3)
        code, seconds = it.end_by(signal.SIGINT)
        assert code == 130 and seconds < 3  # a second, where no other test takes the cores
        told = it.stderr.read_text()
        assert f"  ssh -L {it.port}:127.0.0.1:{it.port} HOST" in told.splitlines()
        assert f"Use --port {it.port} to keep" in told and "Traceback" not in told
        first, second, *_ = told.splitlines()
        assert first == "reading tiny-induction, 469 kB: the link follows"
        assert second == "The link opens tiny-induction, which ships with attn (use --model for another)."
        assert max(map(len, told.splitlines())) <= 80
        token = it.link.partition("token=")[2]
        assert len(token) > 40 and token not in told
        bound_socket(it.port).close()


def asking(browser: Browser, question: dict[str, object]) -> None:
    try:
        browser.ask(**question)
    except (OSError, HTTPException):  # the server has ended
        return


def test_sigterm_ends_the_server(tmp_path: Path) -> None:
    with started(tmp_path, "--port", str(free_port())) as it:
        assert Browser(it.link).html
        assert it.end_by(signal.SIGTERM)[0] == 143
        assert "Traceback" not in it.stderr.read_text()


def test_an_ignored_signal_stays_ignored() -> None:
    async def no_app(*_: object) -> None:
        """Nothing is asked."""

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with make_server(Guard(no_app, Secrets(), {})).capture_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def free_port() -> int:
    with bound_socket(0) as listening:
        return int(listening.getsockname()[1])


def test_a_port_in_use_is_refused_before_the_model_is_read(attn: Attn) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = attn(["serve", "--port", str(port)])
    line = f"--port: {port} is in use: use another port, or omit --port to use a free one\n"
    assert ended == (2, "", line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "70000"], "--port: must be at most 65535 (got 70000)"),
        (["--port", "0"], "--port: must be a whole number, at least 1 (got 0)"),
        (["a text", "--sentence", "another"], "--sentence: cannot be combined with the argument (a text)"),
        (["--model", "/nonexistent"], "--model: no such folder: /nonexistent"),
        (
            ["--config", "heads.yaml"],
            "heads.yaml:2:1: sort: cannot be used with attn serve: questions are asked on its page",
        ),
        (["--texts", "lines.txt"], "--texts: is not a flag of attn serve"),
    ],
)
def test_wrong_arguments_are_one_line(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("heads.yaml").write_text("experiment: heads\nsort: entropy\n")
    ended = attn(["serve", *arguments])
    assert ended.code == 2 and not ended.out
    assert ended.err.lower().startswith(line.lower()) and len(ended.err.splitlines()) == 1


def test_missing_packages_are_one_line(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_page, "find_spec", lambda name: None)
    assert attn(["serve"]) == (2, "", 'serve: needs: pip install "attncli[serve]"\n')
