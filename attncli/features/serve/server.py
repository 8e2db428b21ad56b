"""The server, on 127.0.0.1 only: a page, and the answers to its questions. No request reads a file."""

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from attncli.errors import UserError
from attncli.features.serve.guard import Guard, Method, Secrets
from attncli.features.serve.questions import TAB, NoQuestion, OneModel, Question
from attncli.system.plain_text import parsed_json

HOST = "127.0.0.1"
PAGE, ASK, STOP, ALIVE = "", "ask", "stop", "alive"
ADDRESSES: dict[str, Method] = {PAGE: "GET", ASK: "POST", STOP: "POST", ALIVE: "GET"}
"""All addresses in the folder of the server, besides the link."""
MOST_HEADER_BYTES = 2**14
SECONDS_FOR_REQUEST = 10
"""Seconds from the opening of a connection to the end of its headers, and from a response to a request."""
MOST_CONNECTIONS = 64


@dataclass(frozen=True)
class ServedPage:
    """The page and its content security policy."""

    html: str
    policy: str


def app(page: ServedPage, model: OneModel, keys: Secrets) -> Guard:
    """Return the application: the link sets the cookie, and then the page asks questions."""

    async def enter(request: Request) -> Response:
        return RedirectResponse(keys.folder, status_code=303, headers={"set-cookie": keys.cookie_header()})

    async def show(request: Request) -> Response:
        policy = f"{page.policy}; frame-ancestors 'none'"
        return Response(page.html, media_type="text/html", headers={"content-security-policy": policy})

    async def ask(request: Request) -> Response:
        try:
            question = Question.read(await request.body())
        except NoQuestion:
            return Response(status_code=400)
        return StreamingResponse(answer_lines(model, question), media_type="application/x-ndjson")

    async def stop(request: Request) -> Response:
        try:
            tab = parsed_json(await request.body())
        except ValueError:
            return Response(status_code=400)
        if not isinstance(tab, str) or TAB.fullmatch(tab) is None:
            return Response(status_code=400)
        model.stop(tab)
        return Response(status_code=204)

    async def alive(request: Request) -> Response:
        return Response(status_code=204)

    handlers = {PAGE: show, ASK: ask, STOP: stop, ALIVE: alive}
    routes = [
        Route(keys.folder + name, handlers[name], methods=[method]) for name, method in ADDRESSES.items()
    ]
    asgi = Starlette(routes=[Route("/", enter, methods=["GET"]), *routes])
    asgi.router.redirect_slashes = False
    return Guard(asgi, keys, ADDRESSES)


async def answer_lines(model: OneModel, question: Question) -> AsyncIterator[bytes]:
    """Yield the lines of an answer as they arrive; if the connection closes, the question is withdrawn."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def put(line: str | None) -> None:
        with suppress(RuntimeError):  # the server's loop is closed, but the model is still computing
            loop.call_soon_threadsafe(lines.put_nowait, line)

    waiting = model.ask(question, put)
    try:
        while (line := await lines.get()) is not None:
            yield line.replace("<", "\\u003c").encode() + b"\n"  # in JSON, < occurs only in strings
    finally:
        model.withdraw(waiting)


class TimedConnection(H11Protocol):
    """A connection that closes unless a request arrives within a few seconds.

    uvicorn itself closes only connections that stay idle after a request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.loop.call_later(SECONDS_FOR_REQUEST, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None:
            self.transport.abort()


class EndedServer(Server):
    """A uvicorn server that a signal ends; ignored signals, as in a shell's background, stay ignored."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(tell_unless_full)
        await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        ignored = [number for number in HANDLED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        with super().capture_signals():
            for number in ignored if is_main else ():
                signal.signal(number, signal.SIG_IGN)
            yield


def tell_unless_full(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors of the event loop, except running out of files, which the loop retries after a second."""
    error = context.get("exception")
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        loop.default_exception_handler(context)


def bound_socket(port: int) -> socket.socket:
    """Bind a port on this machine; 0 chooses a free one. Raises UserError if the port is not available."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        is_taken = error.errno == errno.EADDRINUSE
        why = "is in use" if is_taken else f"cannot be used ({error.strerror})"
        raise UserError(f"--port: {port} {why}: use another port, or omit --port to use a free one") from None
    return listening


def make_server(guarded: Guard) -> EndedServer:
    """Return the server; when a signal ends it, it does not wait for unfinished answers."""
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # its log would contain the token
    config = Config(
        guarded,
        http=TimedConnection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=SECONDS_FOR_REQUEST,
        timeout_graceful_shutdown=0,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
    return EndedServer(config)
