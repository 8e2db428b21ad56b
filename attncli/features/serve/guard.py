"""Access control: requests need the link, and must come from this machine and from a page of this server.

Other requests get 403, before anything else handles them and without a reason, except for the owner's link. A
request is answered if all of these hold:

- it comes from this machine, and its Host is 127.0.0.1, localhost or [::1], which excludes a name that an
  attacker's DNS server resolves to 127.0.0.1 (DNS rebinding);
- its address is exactly one of the known addresses;
- it opens the link with the token, or it has the cookie that the link sets;
- it does not come from another site: Origin, if sent, equals the Host, and Sec-Fetch-Site is same-origin
  or none;
- a POST sends an Origin and JSON, is small, and arrives in time.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import compare_digest
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "::1"})
HOST = re.compile(rb"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")
ONCE = frozenset(
    {
        b"host",
        b"origin",
        b"cookie",
        b"content-type",
        b"content-length",
        b"sec-fetch-site",
        b"transfer-encoding",
    }
)
"""The headers that are checked; a request that repeats any of these headers is refused as ambiguous."""
SAME_SITE = frozenset({b"same-origin", b"none"})
JSON = b"application/json"
MOST_BYTES = 2**20
"""Maximum number of bytes in the body of a request."""
BODY_SECONDS = 5.0
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
REFUSED = b"attn serve answers only its own page: paste the link that it printed into the address bar.\n"
FROM_ELSEWHERE = b"Another page opened this link: copy it, and paste it into the address bar.\n"
NOTHING_LOADED = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

Headers = Mapping[bytes, bytes]


@dataclass(frozen=True)
class Secrets:
    """A server's secrets: the token in its link and cookie, and the folder in its addresses.

    A browser sends a cookie for 127.0.0.1 to every port there, and so also to other people's servers, but
    only to addresses in this folder, whose name those people do not know.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    folder: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(12)}/", repr=False)
    cookie: str = field(default_factory=lambda: f"attn-{secrets.token_hex(4)}")

    def link(self, port: int) -> str:
        """Return the link for the owner."""
        return f"http://127.0.0.1:{port}/?token={self.token}"

    def cookie_header(self) -> str:
        """Return the cookie that the link sets."""
        return f"{self.cookie}={self.token}; Path={self.folder}; HttpOnly; SameSite=Strict"


Method = Literal["GET", "POST"]


class Guard:
    """Lets the owner's requests through; `addresses` lists the pages in the folder, each with its method."""

    def __init__(self, app: ASGIApp, keys: Secrets, addresses: Mapping[str, Method]) -> None:
        self.app, self.keys = app, keys
        self.methods = {keys.folder + name: method for name, method in addresses.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # WebSockets are not accepted
        if not self.admits(scope):
            await refuse(send, FROM_ELSEWHERE if self._is_followed_link(scope) else REFUSED)
            return
        body = b""
        if scope["method"] == "POST":
            whole = await whole_body(receive)
            if whole is None:
                await refuse(send)
                return
            body = whole
        is_read = False

        async def replayed() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replayed, with_headers(send))

    def _is_followed_link(self, scope: Scope) -> bool:
        """Return True for the owner's link if another page opened it, such as a terminal in a browser."""
        if (read_once(scope) or {}).get(b"sec-fetch-dest") != b"document":
            return False
        headers = [(name, value) for name, value in scope["headers"] if name != b"sec-fetch-site"]
        return scope.get("raw_path") == b"/" and self.admits({**scope, "headers": headers})

    def admits(self, scope: Scope) -> bool:
        """Return True for a request from the owner, judged by its request line and headers."""
        headers = read_once(scope)
        if headers is None or (scope.get("client") or ("",))[0] not in LOOPBACK:
            return False
        host = headers.get(b"host", b"")
        if not HOST.fullmatch(host) or b"upgrade" in headers:
            return False
        if headers.get(b"origin", b"http://" + host) != b"http://" + host:
            return False
        if headers.get(b"sec-fetch-site", b"none") not in SAME_SITE:
            return False
        method, path, query = scope["method"], scope.get("raw_path"), scope["query_string"]
        if path == b"/":
            return method == "GET" and has_no_body(headers) and self._is_link(query)
        return (
            query == b""
            and self._has_cookie(headers)
            and self._knows(method, path)
            and (has_no_body(headers) if method == "GET" else is_small_json(headers))
        )

    def _is_link(self, query: bytes) -> bool:
        return compare_digest(query, f"token={self.keys.token}".encode())

    def _has_cookie(self, headers: Headers) -> bool:
        """Return True if the request has the cookie exactly once."""
        pairs = [pair.strip().partition(b"=") for pair in headers.get(b"cookie", b"").split(b";")]
        values = [value for name, _, value in pairs if name == self.keys.cookie.encode()]
        return len(values) == 1 and compare_digest(values[0], self.keys.token.encode())

    def _knows(self, method: str, path: bytes | None) -> bool:
        matching = [
            its_method == method
            for address, its_method in self.methods.items()
            if compare_digest(address.encode(), path or b"")
        ]
        return matching == [True]


def read_once(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers of a request, or None if the request repeats a header that is checked."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in ONCE:
            return None
        headers[name] = value
    return headers


def has_no_body(headers: Headers) -> bool:
    """Return True if no body follows the headers."""
    return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers


def is_small_json(headers: Headers) -> bool:
    """Return True for a POST that sends its origin and a small JSON body."""
    if {b"content-length", b"transfer-encoding"} <= headers.keys():
        return False  # ambiguous
    length = headers.get(b"content-length", b"0")
    is_small = length.isdigit() and len(length) < 10 and int(length) <= MOST_BYTES
    return b"origin" in headers and headers.get(b"content-type") == JSON and is_small


async def whole_body(receive: Receive) -> bytes | None:
    """Return the body of a request, or None if the body is too large, too slow or incomplete."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MOST_BYTES:
                    return None
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return None


async def refuse(send: Send, body: bytes = REFUSED) -> None:
    """Send status 403 with a line of text."""
    length = str(len(body)).encode()
    about = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)]
    headers = [*HEADERS, NOTHING_LOADED, *about, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def with_headers(send: Send) -> Send:
    """Add the headers that every response has; a page already has a content policy."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            has_policy = any(name.lower() == NOTHING_LOADED[0] for name, _ in headers)
            message["headers"] = [*headers, *HEADERS, *([] if has_policy else [NOTHING_LOADED])]
        await send(message)

    return sent
