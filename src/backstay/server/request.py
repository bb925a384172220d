"""A request before routing: its head, its body and its origin, and what is refused for them.

A foreign page can make a browser send requests to this machine under the page's own host name (DNS rebinding); that
name is then in `Host`, and is refused. An address in `Host` cannot be forged in this way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, cast
from urllib.parse import unquote_plus, urlsplit

from starlette.requests import cookie_parser
from starlette.types import Receive, Scope

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
    return _name_of(host) if host and len(host) <= _HOST_LENGTH_MAX else None


@lru_cache(maxsize=1024)
def _name_of(host: str) -> str | None:
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
    else:
        name, colon, port = host.partition(":")
        if colon and not _is_port(colon + port):
            return None
    return name.lower().rstrip(".") or None


_HOST_LENGTH_MAX = 300  # a name has 253 characters at most: nothing longer is worth remembering


def _is_port(text: str) -> bool:
    return text[:1] == ":" and (not text[1:] or (text[1:].isascii() and text[1:].isdigit()))


@lru_cache(maxsize=1024)
def address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@lru_cache(maxsize=1024)
def is_loopback(name: str) -> bool:
    """Whether a name or an address is a loopback."""
    found = address(name)
    return name == "localhost" or name.endswith(".localhost") if found is None else found.is_loopback


def is_forwarded(names: Iterable[bytes]) -> bool:
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
    """The head of a request, read once, and what the gate finds out about it."""

    principal: Any = None  # a Principal, once the gate knows it
    body: bytes = b""
    document: Any = None  # the decoded JSON body
    _is_local: bool | None = None

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        root = scope.get("root_path")
        self.root = str(root).rstrip("/") if root else ""
        self.path: str = below(scope["path"], self.root)
        self.is_dashboard = self.path.startswith(DASHBOARD) and self.path[len(DASHBOARD) :][:1] in ("", "/")
        client = scope.get("client")
        self.client: str | None = client[0] if client else None
        self.headers: dict[bytes, bytes] = {}
        self._repeated: set[bytes] = set()
        for name, value in scope["headers"]:
            if name in self.headers:
                self._repeated.add(name)
            else:
                self.headers[name] = value
        given = self.headers.get(b"x-request-id")
        text = "" if given is None else str(given, "latin-1")
        self.request_id = text if text and _REQUEST_ID.fullmatch(text) else secrets.token_hex(8)
        self.has_body_left = (
            self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers
        )  # that has not been read

    @property
    def via(self) -> Via:
        return "dashboard" if self.is_dashboard else "http"

    @property
    def is_safe(self) -> bool:
        return self.method in SAFE_METHODS

    def header(self, name: bytes) -> str | None:
        """Return a header that may occur once: of two, a proxy could trust the one and we the other."""
        value = self.headers.get(name)
        if value is None:
            return None
        if name in self._repeated:
            raise Problem(400, "repeated-header", f"send {name.decode()} once")
        return value.decode("latin-1").strip()

    @property
    def is_local(self) -> bool:
        """Whether the request comes from this machine, is addressed to a loopback name, and was not forwarded. Public
        names of this machine do not count: a proxy on it passes them on."""
        if self._is_local is None:
            name = name_of(self.header(b"host"))
            self._is_local = (
                self.client is not None
                and is_loopback(self.client)
                and name is not None
                and is_loopback(name)
                and not is_forwarded(self.headers)
            )
        return self._is_local

    def cookie(self, name: str) -> str | None:
        if b"cookie" not in self.headers:
            return None
        text = "; ".join(value.decode("latin-1") for each, value in self.scope["headers"] if each == b"cookie")
        return cookie_parser(text).get(name)

    @property
    def has_key_in_url(self) -> bool:
        """Whether the URL contains a key. Logs, histories and proxies keep URLs: such a key is no longer secret."""
        path, query = self.scope["path"], self.scope["query_string"].decode("latin-1")
        if not query:
            return "bs_" in path and access_keys.masked(path) != path
        if _KEY_PARAMETERS.search(query):
            return True
        text = f"{path}?{unquote_plus(query)}"
        return "bs_" in text and access_keys.masked(text) != text

    @property
    def shown_path(self) -> str:
        """The path for a log: one line, without control characters, query or key."""
        if self.has_key_in_url:
            return "(removed: it contained a key)"
        return str(self.scope["path"]).encode("ascii", "backslashreplace").decode().translate(_ESCAPED)


_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


def below(path: str, root: str) -> str:
    """Return the path below the prefix that we are mounted at; a server may or may not have removed it."""
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :]
    return path


Opening = Literal["anyone", "local"]


class Openings:
    """`anyone`: everyone may call it. `local`: this machine may, others need a key."""

    def __init__(self, paths: Mapping[str, Opening], patterns: Sequence[tuple[re.Pattern[str], Opening]]) -> None:
        self._paths = paths
        self._patterns = patterns

    def of(self, path: str) -> Opening | None:
        if path in self._paths:
            return self._paths[path]
        for pattern, opening in self._patterns:
            if pattern.match(path):
                return opening
        return None


# The body

_INSPECT_INLINE_BYTES = 64 * 1024  # a larger document is inspected in a thread: other requests should not wait for it
LINGER_SECONDS = 2.0
LINGER_BYTES_MAX = 16 * 1024 * 1024


class Disconnected(Exception):
    """The client has disconnected."""


class Deadline:
    """A time limit around what the current task does: `with limits.within(10): …` raises TimeoutError after it."""

    __slots__ = ("_all", "_cancels", "_task", "at", "expired")

    def __init__(self, limits: Deadlines, at: float) -> None:
        self._all = limits
        self.at = at
        self.expired = False

    def __enter__(self) -> Deadline:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._cancels = self._task.cancelling()
        self._all.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._all.live.discard(self)
        if self.expired and self._task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise TimeoutError

    def move(self, at: float) -> None:
        """Change it; infinity lifts it."""
        self.at = at
        self._all.arm(at)

    def expire(self) -> None:
        self.expired = True
        self.at = math.inf
        self._task.cancel()


class Deadlines:
    """Time limits that share one timer: requests have two each and nearly always keep them, and starting and cancelling
    a timer for each costs as much as reading the body."""

    def __init__(self) -> None:
        self.live: set[Deadline] = set()
        self._next = math.inf  # when the timer fires
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self.live)

    def within(self, seconds: float) -> Deadline:
        return Deadline(self, asyncio.get_running_loop().time() + seconds)

    def add(self, limit: Deadline) -> None:
        self.live.add(limit)
        self.arm(limit.at)

    def arm(self, at: float) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # timers of another loop, which may have been closed, say nothing about this one
            self._loop, self._timer, self._next = loop, None, math.inf
        if at < self._next:
            if self._timer is not None:
                self._timer.cancel()
            self._next = at
            self._timer = loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer, self._next = None, math.inf
        now = asyncio.get_running_loop().time() + _TICK_SECONDS
        for limit in tuple(self.live):
            if limit.at <= now:
                limit.expire()
        self.arm(min((limit.at for limit in self.live), default=math.inf))


_TICK_SECONDS = 0.001  # the timers of an event loop are about as exact


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


async def read_body(request: Incoming, receive: Receive, bytes_max: int, seconds: float, limits: Deadlines) -> bytes:
    """Read the whole body. The time limit is one of `limits` meanwhile, so that a stopping server can shorten it."""
    if request.is_safe and not request.has_body_left:
        return b""  # one that has no body says so by leaving out its length
    parts: list[bytes] = []
    size = 0
    try:
        with limits.within(seconds):
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
    if given == wanted:
        return True
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
    if request.is_safe or not (b"sec-fetch-site" in request.headers or b"origin" in request.headers):
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
