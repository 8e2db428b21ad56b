"""Who is answered, and that nobody else learns anything: on a socket, as an attacker would ask."""

import errno
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from unittest.mock import Mock

import pytest

from attncli.features.serve import guard, server
from tests.features.serve.served import PAGE, Reply, Running, read_reply, request, running

QUESTION = {"ask": "heads", "tab": "t", "text": "a"}
WHOLE = json.dumps(QUESTION | {"text": "x" * guard.MOST_BYTES}).encode()
LARGE_IN_PARTS = b"%x\r\n" % len(WHOLE) + WHOLE + b"\r\n0\r\n\r\n"
FILES = ("etc/passwd", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/", "static/x.js", "favicon.ico")


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as it:
        yield it


def is_refused(reply: Reply) -> bool:
    """403 with the same line for everybody, or what is no HTTP at all."""
    if reply.status == 403:
        told = {"set-cookie", "access-control-allow-origin", "location"} & reply.headers.keys()
        return reply.body in (guard.REFUSED, b"") and not told  # HEAD has no body
    return (reply.status, reply.body) in ((0, b""), (400, b"Invalid HTTP request received."))


def test_the_link_sets_the_cookie_and_leads_to_the_page_without_the_token(served: Running) -> None:
    target = served.secrets.link(served.port).partition(str(served.port))[2]
    entered = served.raw(request("GET", target, {"Host": served.host}))
    assert entered.status == 303 and entered.headers["location"] == served.secrets.folder
    assert served.secrets.token not in entered.headers["location"] and entered.body == b""
    cookie, *rules = entered.headers["set-cookie"].split("; ")
    assert {*rules} == {f"Path={served.secrets.folder}", "HttpOnly", "SameSite=Strict"}
    page = served.get(Cookie=f"other=1; {cookie}")
    assert page.status == 200 and page.body.decode() == PAGE.html
    policy = page.headers["content-security-policy"]
    assert policy == f"{PAGE.policy}; frame-ancestors 'none'"
    for reply in (entered, page, served.get("alive"), served.raw(b"GET / HTTP/1.1\r\n\r\n")):
        if reply.status != 400:  # said by what reads HTTP, before us
            assert reply.headers["cache-control"] == "no-store" and "server" not in reply.headers
            assert reply.headers["x-frame-options"] == "DENY"
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:54321", "[::1]:8080"])
def test_a_forwarded_port_has_another_number(served: Running, host: str) -> None:
    assert served.get("alive", Host=host).status == 204
    reply = served.post("ask", {"ask": "heads", "tab": "t", "text": "a"}, Host=host, Origin=f"http://{host}")
    assert reply.lines() == [{"asked": "a"}]


HOSTILE: dict[str, Callable[[Running], Reply]] = {
    "no token": lambda it: it.raw(request("GET", "/", {"Host": it.host})),
    "another token": lambda it: it.raw(request("GET", f"/?token={'A' * 43}", {"Host": it.host})),
    "the token with more": lambda it: it.raw(
        request("GET", f"/?token={it.secrets.token}&x=1", {"Host": it.host})
    ),
    "the token of a post": lambda it: it.raw(
        request("POST", f"/?token={it.secrets.token}", {"Host": it.host, "Content-Length": "0"})
    ),
    "the token from another site": lambda it: it.raw(
        request("GET", f"/?token={it.secrets.token}", {"Host": it.host, "Sec-Fetch-Site": "cross-site"})
    ),
    "no cookie": lambda it: it.get(Cookie=""),
    "another cookie": lambda it: it.get(Cookie=f"{it.secrets.cookie}=x"),
    "the cookie twice": lambda it: it.get(Cookie="; ".join([f"{it.secrets.cookie}={it.secrets.token}"] * 2)),
    "a rebound name": lambda it: it.get(Host=f"evil.example:{it.port}"),
    "a name that begins like one": lambda it: it.get(Host=f"localhost.evil.example:{it.port}"),
    "127.0.0.1 otherwise": lambda it: it.get(Host=f"0x7f.1:{it.port}"),
    "all interfaces": lambda it: it.get(Host=f"0.0.0.0:{it.port}"),
    "a host with a user": lambda it: it.get(Host=f"127.0.0.1:{it.port}@evil.example"),
    "two hosts": lambda it: it.raw(
        request("GET", it.secrets.folder, it.headers() | {"host": "evil.example"})
    ),
    "two origins": lambda it: it.raw(
        request(
            "GET",
            it.secrets.folder,
            {"origin": "http://evil.example"} | it.headers(Origin=f"http://{it.host}"),
        )
    ),
    "two sites": lambda it: it.raw(
        request("GET", it.secrets.folder, {"sec-fetch-site": "cross-site"} | it.headers())
    ),
    "no host": lambda it: it.raw(f"GET {it.secrets.folder} HTTP/1.0\r\n\r\n".encode()),
    "another origin": lambda it: it.get(Origin="http://evil.example"),
    "the origin of a sandbox": lambda it: it.get(Origin="null"),
    "the origin of another port": lambda it: it.get(Origin="http://127.0.0.1:1"),
    "the origin with tls": lambda it: it.get(Origin=f"https://{it.host}"),
    "another site": lambda it: it.get(Sec_Fetch_Site="cross-site"),
    "a neighbour": lambda it: it.get(Sec_Fetch_Site="same-site"),
    "a query": lambda it: it.get("?x=1"),
    "a get of what is posted": lambda it: it.get("ask"),
    "a post of what is got": lambda it: it.post("", QUESTION),
    "head": lambda it: it.raw(request("HEAD", it.secrets.folder, it.headers())),
    "options": lambda it: it.raw(
        request("OPTIONS", f"{it.secrets.folder}ask", it.headers(Access_Control_Request_Method="POST"))
    ),
    "a websocket": lambda it: it.get(
        Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version="13", Sec_WebSocket_Key="x" * 24
    ),
    "a form": lambda it: it.post("ask", QUESTION, Content_Type="application/x-www-form-urlencoded"),
    "plain text": lambda it: it.post("ask", QUESTION, Content_Type="text/plain"),
    "a post without an origin": lambda it: it.post("ask", QUESTION, Origin=""),
    "a post from elsewhere": lambda it: it.post("ask", QUESTION, Origin="http://evil.example"),
    "a large body": lambda it: it.post("ask", QUESTION | {"text": "x" * guard.MOST_BYTES}),
    "a body that says it is large": lambda it: it.post("ask", QUESTION, Content_Length="9" * 20),
    "a large body in parts": lambda it: it.raw(
        request(
            "POST",
            f"{it.secrets.folder}ask",
            it.headers(
                Origin=f"http://{it.host}", Content_Type="application/json", Transfer_Encoding="chunked"
            ),
            LARGE_IN_PARTS,
        )
    ),
    "a body of two lengths": lambda it: it.post("ask", QUESTION, Transfer_Encoding="chunked"),
    "a get with a body": lambda it: it.get(Content_Length="3"),
    "large headers": lambda it: it.get(X="x" * 2**17),
    "an address of its own": lambda it: it.raw(request("GET", f"http://{it.host}/", it.headers())),
    "no http": lambda it: it.raw(b"\x16\x03\x01\x02\x00 hello\r\n\r\n"),
    **{path: lambda it, path=path: it.get(path) for path in FILES},  # type: ignore[misc]
    **{f"/{path}": lambda it, path=path: it.raw(request("GET", f"/{path}", it.headers())) for path in FILES},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_get_403(served: Running, name: str) -> None:
    before = len(served.asked)
    assert is_refused(HOSTILE[name](served)), name
    assert len(served.asked) == before


def test_client_address_and_body_size_are_checked_before_reading() -> None:
    """No socket of ours is heard on another machine: what the guard adds to that is asked here alone."""
    secrets = guard.Secrets()
    guarded = guard.Guard(no_app, secrets, server.ADDRESSES)

    def is_admitted(client: str, length: str) -> bool:
        named = {"Host": "127.0.0.1:1", "Origin": "http://127.0.0.1:1", "Content-Type": "application/json"}
        named |= {"Cookie": f"{secrets.cookie}={secrets.token}", "Content-Length": length}
        headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        scope = {"type": "http", "method": "POST", "query_string": b"", "headers": headers}
        address = f"{secrets.folder}ask".encode()
        return guarded.admits({**scope, "client": (client, 1), "raw_path": address})

    assert is_admitted("127.0.0.1", "10") and is_admitted("::1", str(guard.MOST_BYTES))
    assert not is_admitted("10.0.0.1", "10") and not is_admitted("127.0.0.1.evil", "10")
    for length in (str(guard.MOST_BYTES + 1), "9" * 5000, "-1", "1e3", ""):
        assert not is_admitted("127.0.0.1", length)


async def no_app(*_: object) -> None:
    raise AssertionError("nothing gets here")


def test_the_owner_is_told_if_another_page_opened_the_link(served: Running) -> None:
    sent = {"Host": served.host, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    reply = served.raw(request("GET", f"/?token={served.secrets.token}", sent))
    assert (reply.status, reply.body) == (403, guard.FROM_ELSEWHERE) and "set-cookie" not in reply.headers
    for target, headers in (
        (f"/?token={'A' * 43}", sent),
        (f"/?token={served.secrets.token}", sent | {"Host": "evil.example"}),
        (f"/?token={served.secrets.token}", sent | {"Sec-Fetch-Dest": "iframe"}),
    ):
        assert is_refused(served.raw(request("GET", target, headers)))


def test_beyond_some_connections_requests_are_refused_until_idle_ones_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(server, "SECONDS_FOR_REQUEST", 1)
    with running() as it, ExitStack() as opened:
        address = ("127.0.0.1", it.port)
        idle = [opened.enter_context(socket.create_connection(address, timeout=5)) for _ in range(2)]
        assert it.get("alive").status == 204
        idle += [opened.enter_context(socket.create_connection(address, timeout=5)) for _ in range(2)]
        assert it.get("alive").status == 503
        for each in idle:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""  # closed
        assert it.get("alive").status == 204


def test_an_idle_connection_is_closed_after_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "SECONDS_FOR_REQUEST", 1)
    with running() as it, socket.create_connection(("127.0.0.1", it.port), timeout=5) as kept:
        asking = request("GET", f"{it.secrets.folder}alive", it.headers())
        for _ in range(2):
            kept.sendall(asking.replace(b"Connection: close\r\n", b""))
            assert kept.recv(2**16).startswith(b"HTTP/1.1 204")
        assert kept.recv(1) == b""


def test_running_out_of_files_prints_no_traceback() -> None:
    told: list[object] = []
    loop = Mock(default_exception_handler=told.append)
    server.tell_unless_full(loop, {"exception": OSError(errno.EMFILE, "Too many open files")})
    assert not told
    server.tell_unless_full(loop, {"exception": ValueError()})
    assert len(told) == 1


def test_slow_requests_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(server, "SECONDS_FOR_REQUEST", 0.4)
    with running() as it:
        headers = it.headers(
            Origin=f"http://{it.host}", Content_Type="application/json", Content_Length="100"
        )
        slow_body = request("POST", f"{it.secrets.folder}ask", headers, b"{")
        for start, most in ((slow_body, 0.2), (b"GET / HT", 0.4)):
            begun = time.monotonic()
            with socket.create_connection(("127.0.0.1", it.port), timeout=5) as connection:
                connection.sendall(start)
                try:
                    reply = read_reply(connection)
                except ConnectionResetError:
                    reply = Reply(0, {}, b"")
            assert is_refused(reply) and most - 0.1 < time.monotonic() - begun < most + 2
        assert not it.asked and it.get("alive").status == 204


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"ask": "heads"},
        {"ask": "open", "tab": "t", "text": "a"},
        {"ask": "heads", "tab": "t", "text": "a", "model": "/etc"},
        {"ask": "heads", "tab": "t", "text": "a", "file": "/etc/passwd"},
        {"ask": "heads", "tab": "../x", "text": "a"},
        {"ask": "heads", "tab": "t", "text": 3},
        {"ask": "heads", "tab": "t", "text": "\ud800"},
        {"ask": "next", "tab": "t", "text": "a", "heads": ["0:1; rm"]},
        {"ask": "next", "tab": "t", "text": "a", "heads": ["0:1"] * 5000},
        {"ask": "why", "tab": "t", "text": "a", "heads": ["z:0:0"]},
        {"ask": "generate", "tab": "t", "text": "a", "steps": 10**9},
        {"ask": "generate", "tab": "t", "text": "a", "steps": True},
        {"ask": "why", "tab": "t", "text": "a", "token": "x"},
        {"ask": "why", "tab": "t", "text": "a", "token": -1},
        {"ask": "why", "tab": "t", "text": "a", "token": 2**31},
        {"ask": "why", "tab": "t", "text": "a", "token": True},
        {"ask": "why", "tab": "t", "text": "a", "answer": "x"},
    ],
)
def test_invalid_questions_are_refused(served: Running, body: object) -> None:
    before = len(served.asked)
    reply = served.post("ask", body)
    assert (reply.status, reply.body) == (400, b"") and len(served.asked) == before


def test_deeply_nested_json_is_refused(served: Running) -> None:
    deep = b"[" * 10**5
    headers = served.headers(
        Origin=f"http://{served.host}", Content_Type="application/json", Content_Length=str(len(deep))
    )
    for address in ("ask", "stop"):
        assert served.raw(request("POST", served.secrets.folder + address, headers, deep)).status == 400


def hostile_request(choose: random.Random, it: Running, *, hostile: bool = True) -> bytes:
    """A request as a page sends it, but for one to three things that an attacker would send."""
    method, target, body = "GET", it.secrets.folder, b""
    headers = it.headers()
    if choose.random() < 0.5:
        body = json.dumps(QUESTION).encode()
        method, target = "POST", f"{it.secrets.folder}ask"
        headers |= {"Origin": f"http://{it.host}", "Content-Type": "application/json"}
        headers |= {"Content-Length": str(len(body))}
    kinds = choose.sample(
        ["path", "host", "origin", "site", "cookie", "size", "method", "type"], k=choose.randint(1, 3)
    )
    for kind in kinds if hostile else ():
        noise = "".join(choose.choices("abc/.%\\0:;?#&=@ ~", k=choose.randint(1, 30)))
        if kind == "path":
            target = (
                choose.choice(
                    [
                        f"/{noise}",
                        f"{target}{noise}x",
                        f"/..{target}",
                        target[:-1] + "%00",
                        "*",
                        f"//{target}",
                        target.upper() + "A",
                    ]
                )
                .replace(" ", "%20")
                .replace("#", "%23")
            )
        elif kind == "host":
            headers["Host"] = choose.choice(
                [
                    "evil.example",
                    f"evil.example:{it.port}",
                    "127.0.0.1.nip.io",
                    "2130706433",
                    "localhost.",
                    "LOCALHOST",
                    noise,
                    "[::ffff:127.0.0.1]",
                ]
            )
        elif kind == "origin":
            headers["Origin"] = choose.choice(
                ["null", "http://evil.example", f"http://{it.host}.evil.example", "file://", noise]
            )
        elif kind == "site":
            headers["Sec-Fetch-Site"] = choose.choice(["cross-site", "same-site", noise])
        elif kind == "cookie":
            headers["Cookie"] = choose.choice(
                [
                    noise,
                    f"{it.secrets.cookie}=",
                    f"{it.secrets.cookie}={it.secrets.token}x",
                    f"{it.secrets.cookie}={it.secrets.token[:-1]}",
                    "x=" + it.secrets.token,
                ]
            )
        elif kind == "size":
            if method == "GET":
                headers["Content-Length"] = str(choose.randint(1, 10**6))
            else:
                headers["Content-Length"] = str(choose.randint(guard.MOST_BYTES + 1, 10**12))
        elif kind == "method":
            method = choose.choice(
                ["PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "PROPFIND"]
            )
        else:
            headers["Upgrade" if method == "GET" else "Content-Type"] = choose.choice(
                ["text/plain", "websocket", "h2c", noise]
            )
    return request(method, target, headers, body)


def test_a_thousand_hostile_requests_are_refused() -> None:
    seed = random.randrange(2**32)
    choose, statuses = random.Random(seed), Counter[int]()
    with running() as it:
        for number in range(1000):
            data = hostile_request(choose, it)
            reply = it.raw(data)
            assert is_refused(reply), (seed, number, data)
            statuses[reply.status] += 1
        assert not it.asked and it.get("alive").status == 204
        # The same without anything hostile is answered.
        assert {it.raw(hostile_request(choose, it, hostile=False)).status for _ in range(10)} == {200}
    assert statuses[403] > 800, statuses  # the rest is no HTTP at all
