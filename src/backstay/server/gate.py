"""The gate: everything that is decided about a request before routing, and the headers and log of every answer.

    host ─▶ url ─▶ size ─▶ who ─▶ where from ─▶ body ─▶ route

Each step refuses with a Problem, and a refused request has cost no more than the steps before. Which paths need no key
is read from the table of routes (routing.py). The access log has no query, body, header or key in it, and our own
errors are logged without their message, which may quote a payload.
"""

from __future__ import annotations

import asyncio
import html
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backstay import codec, limits
from backstay.app import Backstay
from backstay.errors import PROBLEM_MEDIA_TYPE, BackstayError
from backstay.server import problems
from backstay.server.auth import Authenticator, KeyRing, Principal, is_operator
from backstay.server.problems import Problem
from backstay.server.proxies import FORWARDED, Proxies
from backstay.server.request import (
    DASHBOARD,
    Deadline,
    Deadlines,
    Disconnected,
    Hosts,
    Incoming,
    Openings,
    check_body_head,
    check_dashboard_origin,
    linger,
    parse_body,
    read_body,
)

access_log = logging.getLogger("backstay.access")


_LINE = "%s %s %s, %s ms, from %s%s (%s)"


def write(request: Incoming, status: int | None, seconds: float) -> None:
    principal: Principal | None = request.principal
    fields = {
        "method": request.method if request.method.isalpha() else "?",
        "path": request.shown_path,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "client": request.client,
        "key_id": None if principal is None else principal.key_id,
        "request_id": request.request_id,
    }
    said = "gone" if status is None else status
    with_key = "" if principal is None or principal.key_id is None else f" with key {principal.key_id}"
    args = (fields["method"], fields["path"], said, fields["ms"], request.client, with_key, request.request_id)
    # Not access_log.info, which looks for the caller in the stack: it is always this one.
    record = access_log.makeRecord(
        access_log.name, logging.INFO, __file__, 0, _LINE, args, None, "write", {"fields": fields}
    )
    access_log.handle(record)


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
# Of artifacts, which handlers make: nothing in them runs, not even when they are opened in a window of their own.
ARTIFACT_POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
# Defaults: an artifact has a policy of its own, a style sheet may be cached.
_USUALLY = ((b"content-security-policy", POLICY.encode()), (b"cache-control", b"no-store"))

_REPLACED = frozenset((*(name for name, _ in _ALWAYS), b"x-request-id"))

Headers = list[tuple[bytes, bytes]]


def added(given: Iterable[tuple[bytes, bytes]], request_id: str) -> Headers:
    headers: Headers = []
    names = set()
    for name, value in given:
        name = name.lower()
        if name not in _REPLACED:
            headers.append((name, value))
            names.add(name)
    headers += _ALWAYS
    headers.append((b"x-request-id", request_id.encode()))
    for each in _USUALLY:
        if each[0] not in names:
            headers.append(each)
    return headers


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{0} · Backstay</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{2}">
<main><h1>{0}</h1><p class="lead">{1}</p></main>
</html>
"""


class Answer:
    def __init__(self, request: Incoming, send: Send, began: Callable[[Answer], None]) -> None:
        self.request = request
        self.status: int | None = None
        self.is_stream = False  # its length is not known in advance
        self.is_over = False
        self.limit: Deadline | None = None
        self._began = began
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = added(message.get("headers", ()), self.request.request_id)
            self.is_stream = True
            for name, _ in headers:
                if name == b"content-length":
                    self.is_stream = False
            self._began(self)
            message = {"type": "http.response.start", "status": self.status, "headers": headers}
        elif message["type"] == "http.response.body":
            self.is_over = not message.get("more_body", False)
        await self._send(message)

    async def end(self) -> None:
        """End a stream: everything that was to be sent has been sent."""
        if self.is_stream and not self.is_over:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, problem: Problem, receive: Receive | None) -> None:
        """Answer with a problem, as JSON or as a page. With `receive`, the rest of the request is discarded and the
        connection is closed."""
        body, media_type = _written(problem, self.request)
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
            *(() if receive is None else ((b"connection", b"close"),)),
        ]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": receive is not None})
        if receive is not None:
            await linger(receive)
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def _written(problem: Problem, request: Incoming) -> tuple[bytes, str]:
    if problem.status in (301, 302, 303, 307, 308):
        return b"", "text/plain; charset=utf-8"
    if request.is_dashboard:
        style = f"{request.root}{DASHBOARD}/static/-/dashboard.css"
        detail = problem.detail or ""
        said = [html.escape(each) for each in (problem.title, f"{detail[:1].upper()}{detail[1:]}", style)]
        return _PAGE.format(*said).encode(), "text/html; charset=utf-8"
    return codec.encode(problem.document(None if request.has_key_in_url else request.scope["path"])), PROBLEM_MEDIA_TYPE


log = logging.getLogger("backstay.server")


def tell(what: str, error: BaseException) -> None:
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s broke: %s\n%s", what, type(error).__qualname__, where)


LOGIN = f"{DASHBOARD}/login"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a single request."""

    body_bytes: int = limits.HTTP_BODY_BYTES_MAX
    read_seconds: float = limits.HTTP_READ_SECONDS
    answer_seconds: float = limits.HTTP_ANSWER_SECONDS
    failures_burst: int = limits.HTTP_FAILURES_MAX
    rate: float = limits.HTTP_RATE


class Gate:
    """`inner`: the application behind it, which is started and stopped; `serve`: what answers its requests."""

    def __init__(
        self,
        inner: FastAPI,
        serve: ASGIApp,
        app: Backstay,
        ring: KeyRing,
        openings: Openings,
        *,
        hosts: Sequence[str] | None = None,
        proxies: Sequence[str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.inner = inner
        self.stopping = asyncio.Event()
        self._serve = serve
        self._app = app
        self._hosts = Hosts(hosts)
        self._proxies = Proxies(proxies)
        self._bounds = bounds or Bounds()
        self._openings = openings
        self._authenticator = Authenticator(
            app, ring, rate=self._bounds.rate, failures_burst=self._bounds.failures_burst
        )
        self._answering = Deadlines()
        self._reading = Deadlines()
        self._streams: set[Deadline] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self.inner(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})  # there are no websockets here

    def end_streams(self) -> None:
        """End all streams, because the server stops. Clients reconnect elsewhere."""
        self.stopping.set()
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._streams):
            limit.move(now)
        for limit in tuple(self._reading.live):  # a slow body would outlast the grace period of a stop
            limit.move(min(limit.at, now + limits.HTTP_STOP_SECONDS / 2))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Incoming(scope)
        if not FORWARDED.isdisjoint(request.headers):
            request = Incoming(self._proxies.applied(scope))
        answer = Answer(request, send, self._began)
        began = self._app.clock.monotonic()
        try:
            await self._admit(request, receive)
            await self._pass_on(request, answer, receive)
        except Disconnected:
            pass
        except Problem as problem:
            await answer.refuse(problem, receive if request.has_body_left else None)
        finally:
            if access_log.isEnabledFor(logging.INFO):
                write(request, answer.status, self._app.clock.monotonic() - began)

    async def _admit(self, request: Incoming, receive: Receive) -> None:
        """Take all steps before the route. They leave the principal and the body in the request."""
        if not self._hosts.allows(request.header(b"host")):
            raise Problem(
                421, "unknown-host", "this server does not answer to that host name: start it with --hosts NAME"
            )
        if request.has_key_in_url:
            raise Problem(
                400, "key-in-url", "a key must not be sent in a URL, where it ends up in logs: send a header instead"
            )
        check_body_head(request, self._bounds.body_bytes)
        request.principal = await self._principal(request)
        if request.is_dashboard:
            check_dashboard_origin(request)
        request.body = await read_body(
            request, receive, self._bounds.body_bytes, self._bounds.read_seconds, self._reading
        )
        request.has_body_left = False
        request.document = await parse_body(request, request.body) if request.body else None

    async def _principal(self, request: Incoming) -> Principal | None:
        opening = self._openings.of(request.path)
        if opening == "anyone" or (opening == "local" and request.is_local):
            return await self._authenticator.principal_if_any(request)
        try:
            return await self._authenticator.principal(request)
        except BackstayError as error:
            raise problems.of_error(error) from None
        except Problem as problem:
            raise (_to_the_door(request) if problem.status == 401 and request.is_dashboard else problem) from None

    async def _pass_on(self, request: Incoming, answer: Answer, receive: Receive) -> None:
        state = {
            **request.scope.get("state", {}),
            "incoming": request,
            "check_failures": self._authenticator.check_failures,  # for a login, which is a route
        }
        answer.limit = limit = self._answering.within(self._bounds.answer_seconds)
        try:
            with limit:
                await self._serve({**request.scope, "state": state}, receive, answer.send)
        except TimeoutError as error:
            if not limit.expired:
                raise self._broke(answer, error) from None
            if answer.status is None:
                raise Problem(503, "too-slow-here", "this took too long: try again later", retry_after=1) from None
            await answer.end()
        except Exception as error:
            if answer.status is not None or not isinstance(error, Problem | BackstayError):
                raise self._broke(answer, error) from None
            raise error if isinstance(error, Problem) else self._of(error, request) from None
        finally:
            answer.limit = None
            self._streams.discard(limit)
        if answer.status == 401 and not request.is_safe:
            self._authenticator.count_failure(request)  # a login

    def _began(self, answer: Answer) -> None:
        """The answer has begun: from here on it may take its time, until the server stops."""
        limit = answer.limit
        if limit is None:
            return
        limit.at = math.inf
        if answer.is_stream:
            self._streams.add(limit)
            if self.stopping.is_set():
                limit.move(asyncio.get_running_loop().time())

    def _of(self, error: BackstayError, request: Incoming) -> Problem:
        return problems.of_error(error, ("body",), to_operator=is_operator(request.principal))

    def _broke(self, answer: Answer, error: Exception) -> Exception:
        request_id = answer.request.request_id
        tell(f"request {request_id}", error)
        if answer.status is not None:
            return Disconnected()  # by us: half an answer has been sent
        return Problem(500, "internal", f"the server log says more, under {request_id}")


def _to_the_door(request: Incoming) -> Problem:
    """Redirect to the login page, with the way back. What a form contained is lost, so after a form that is the start
    page."""
    query = request.scope["query_string"].decode("latin-1")
    here = quote(request.root + request.path, safe="/") + (f"?{query}" if query else "")
    back = f"?next={quote(here, safe='')}" if request.method == "GET" and request.path.rstrip("/") != DASHBOARD else ""
    return Problem(303, "log-in", headers={"Location": f"{quote(request.root, safe='/')}{LOGIN}{back}"})
