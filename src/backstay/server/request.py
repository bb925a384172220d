"""A request before routing: its head, its body and its origin, and what is refused for them.

A foreign page can make a browser send requests to this machine under the page's own host name (DNS rebinding); that
name is then in `Host`, and is refused. An address in `Host` cannot be forged in this way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal
from urllib.parse import unquote_plus, urlsplit

from starlette.requests import cookie_parser
from starlette.types import Message, Receive, Scope

from backstay import codec
from backstay.core import access_keys
from backstay.errors import ConfigurationError, InvalidPayload
from backstay.server.problems import Problem

Via = Literal["http", "dashboard"]
_FORWARDED = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-forwarded",
        b"x-real-ip",
        b"x-client-ip",
        b"x-original-host",
        b"x-envoy-external-address",
        b"cf-connecting-ip",
        b"true-client-ip",
    )
)
_FORWARDED_START = b"x-forwarded-"


class Hosts:
    """The allowed host names. None: the application that mounts us has checked them."""

    def __init__(self, given: Sequence[str] | None) -> None:
        if isinstance(given, str):
            raise ConfigurationError(f"hosts={given!r:.80}: give a list of names")
        self._any = given is None or "*" in given
        self._names = frozenset(name.lower().rstrip(".") for name in given or () if not name.startswith("*"))
        self._endings = tuple(name[1:].lower().rstrip(".") for name in given or () if name.startswith("*."))

    def allows(self, host: str | None) -> bool:
        if self._any:
            return True
        name = name_of(host)
        if name is None:
            return False
        return is_loopback(name) or address(name) is not None or self._names_it(name)

    def _names_it(self, name: str) -> bool:
        return name in self._names or bool(self._endings and name.endswith(self._endings))


def name_of(host: str | None) -> str | None:
    """Return the name or address in a Host header, without its port; None if it has neither."""
    if not host:
        return None
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
    else:
        name, colon, port = host.partition(":")
        if colon and not _is_port(colon + port):
            return None
    return name.lower().rstrip(".") or None


def _is_port(text: str) -> bool:
    return text[:1] == ":" and (not text[1:] or (text[1:].isascii() and text[1:].isdigit()))


@lru_cache(maxsize=1024)
def address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(name: str) -> bool:
    """Whether a name or an address is a loopback."""
    found = address(name)
    return name == "localhost" or name.endswith(".localhost") if found is None else found.is_loopback


def is_forwarded(names: Sequence[bytes]) -> bool:
    """Whether a proxy forwards the request: then the client's address is that of the proxy."""
    return any(name in _FORWARDED or name.startswith(_FORWARDED_START) for name in names)


def network(client: str | None) -> str:
    """Return the name under which a client's failures are counted: a client with one IPv6 address has 2⁶⁴ of them."""
    found = None if client is None else address(client)
    if found is None:
        return client or "unknown"
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


DASHBOARD = "/dashboard"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_KEY_PARAMETERS = re.compile(r"(?:^|[&;])(?:x-)?(?:api[_-]?key|access[_-]?token|authorization)=", re.IGNORECASE)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Incoming:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.root = str(scope.get("root_path", "")).rstrip("/")
        self.path = below(scope["path"], self.root)
        self.is_dashboard = self.path == DASHBOARD or self.path.startswith(f"{DASHBOARD}/")
        self.client: str | None = scope["client"][0] if scope.get("client") else None
        self.request_id = self._request_id()

    @property
    def via(self) -> Via:
        return "dashboard" if self.is_dashboard else "http"

    @property
    def is_safe(self) -> bool:
        return self.method in SAFE_METHODS

    def header(self, name: bytes) -> str | None:
        """Return a header that may occur once: of two, a proxy could trust the one and we the other."""
        found = [value for each, value in self.scope["headers"] if each == name]
        if len(found) > 1:
            raise Problem(400, "repeated-header", f"send {name.decode()} once")
        return found[0].decode("latin-1").strip() if found else None

    @cached_property
    def is_local(self) -> bool:
        """Whether the request comes from this machine, is addressed to a loopback name, and was not forwarded. Public
        names of this machine do not count: a proxy on it passes them on."""
        name = name_of(self.header(b"host"))
        return (
            self.client is not None
            and is_loopback(self.client)
            and name is not None
            and is_loopback(name)
            and not is_forwarded([each for each, _ in self.scope["headers"]])
        )

    def cookie(self, name: str) -> str | None:
        text = "; ".join(value.decode("latin-1") for each, value in self.scope["headers"] if each == b"cookie")
        return cookie_parser(text).get(name) if text else None

    @property
    def has_key_in_url(self) -> bool:
        """Whether the URL contains a key. Logs, histories and proxies keep URLs: such a key is no longer secret."""
        query = self.scope["query_string"].decode("latin-1")
        if query and _KEY_PARAMETERS.search(query):
            return True
        text = f"{self.scope['path']}?{unquote_plus(query)}"
        return "bs_" in text and access_keys.masked(text) != text

    @property
    def shown_path(self) -> str:
        """The path for a log: one line, without control characters, query or key."""
        if self.has_key_in_url:
            return "(removed: it contained a key)"
        return str(self.scope["path"]).encode("ascii", "backslashreplace").decode().translate(_ESCAPED)

    def _request_id(self) -> str:
        for each, value in self.scope["headers"]:
            text = str(value, "latin-1") if each == b"x-request-id" else ""
            if _REQUEST_ID.fullmatch(text):
                return text
        return secrets.token_hex(8)


_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


def below(path: str, root: str) -> str:
    """Return the path below the prefix that we are mounted at; a server may or may not have removed it."""
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :]
    return path


Opening = Literal["anyone", "local"]


class Openings:
    """`anyone`: everyone may call it. `local`: this machine may, others need a key."""

    def __init__(self, paths: Sequence[tuple[re.Pattern[str], Opening]]) -> None:
        self._paths = tuple(paths)

    def of(self, path: str) -> Opening | None:
        return next((opening for pattern, opening in self._paths if pattern.match(path)), None)


# The body

_INSPECT_INLINE_BYTES = 64 * 1024  # a larger document is inspected in a thread: other requests should not wait for it
LINGER_SECONDS = 2.0
LINGER_BYTES_MAX = 16 * 1024 * 1024


class Disconnected(Exception):
    """The client has disconnected."""


def check_body_head(request: Incoming, bytes_max: int) -> None:
    """Refuse a request for what its head says about the body, before any of it is read."""
    if (request.header(b"content-encoding") or "identity").lower() != "identity":
        raise Problem(415, "encoded-body", "send the body as it is, without Content-Encoding")
    length = request.header(b"content-length")
    if length is not None and request.header(b"transfer-encoding") is not None:
        # a proxy may trust the other one, and take the rest for a second request (request smuggling)
        raise Problem(400, "two-lengths", "send Content-Length or Transfer-Encoding, not both")
    if length is not None and (not length.isascii() or not length.isdigit()):
        raise Problem(400, "bad-length", "Content-Length is not a number")
    if length is not None and (len(length) > 18 or int(length) > bytes_max):
        raise too_large(bytes_max)


async def read_body(receive: Receive, bytes_max: int, seconds: float, reading: set[asyncio.Timeout]) -> bytes:
    """Read the whole body. `reading` contains the time limit meanwhile, so that a stopping server can shorten it."""
    parts: list[bytes] = []
    size = 0
    limit = asyncio.timeout(seconds)
    reading.add(limit)
    try:
        async with limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise too_large(bytes_max)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "too-slow", f"the request did not arrive within {seconds:g} seconds") from None
    finally:
        reading.discard(limit)


async def parse_body(request: Incoming, body: bytes) -> Any:
    """Check the media type, and that JSON can be read in only one way; return the JSON document for the route."""
    if not body:
        return None
    wanted = "application/x-www-form-urlencoded" if request.is_dashboard else "application/json"
    if not _is_type(request.header(b"content-type") or "", wanted):
        raise Problem(415, "unsupported-media-type", f"send the body as {wanted}")
    if request.is_dashboard:
        return None
    try:
        if len(body) > _INSPECT_INLINE_BYTES:
            return await asyncio.to_thread(codec.inspect, body, "body")
        return codec.inspect(body, "body")
    except InvalidPayload as error:
        raise Problem(400, "invalid-json", str(error).replace("cannot be stored", "cannot be read")) from None


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body again, and then whatever follows it, such as a disconnect."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def linger(receive: Receive) -> None:
    """Discard what a refused client still sends, for a while: it does not read the answer before it has sent all."""
    size = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while size <= LINGER_BYTES_MAX:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def too_large(bytes_max: int) -> Problem:
    return Problem(413, "body-too-large", f"a body may have {bytes_max:,} bytes: send less at once")


def _is_type(given: str, wanted: str) -> bool:
    media_type, _, parameters = given.partition(";")
    charset = parameters.replace(" ", "").lower()
    return media_type.strip().lower() == wanted and charset in ("", "charset=utf-8", 'charset="utf-8"')


# The origin

_OURS = ("same-origin", "none")  # none: typed or opened by the user


def check_dashboard_origin(request: Incoming) -> None:
    """Refuse a change by cookie unless it is known to come from one of our pages."""
    if request.is_safe:
        return
    if not (_says_ours(request) if request.header(b"sec-fetch-site") is not None else _is_own_origin(request)):
        raise _foreign()


def check_keyless_origin(request: Incoming) -> None:
    """Refuse changes by foreign pages: without keys, any page in a browser on this machine could make them. Programs do
    not send these headers."""
    if request.is_safe:
        return
    if request.header(b"sec-fetch-site") is not None and not _says_ours(request):
        raise _foreign()
    if _says_ours(request) and request.header(b"origin") == "null":
        return  # one of our forms: our Referrer-Policy withholds its origin
    if request.header(b"origin") is not None and not _is_own_origin(request):
        raise _foreign()


def _says_ours(request: Incoming) -> bool:
    return request.header(b"sec-fetch-site") in _OURS


def _is_own_origin(request: Incoming) -> bool:
    origin, host = request.header(b"origin"), request.header(b"host")
    if not origin or not host or origin == "null":
        return False
    return urlsplit(origin).netloc.lower() == host.lower()


def _foreign() -> Problem:
    return Problem(403, "foreign-origin", "this request came from another site: use the dashboard of this server")
