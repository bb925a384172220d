"""The gate: everything that is decided about a request before it is routed.

    host ─▶ url ─▶ size ─▶ who ─▶ where from ─▶ body ─▶ route

Each step refuses with a Problem, and what is refused has cost no more than the steps before. Who needs no key, and
where, is not decided here but read from the table of routes: see openapi.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import limits
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.server import mistakes, problems
from holdfast.server.gating import access_log, origins
from holdfast.server.gating import body as bodies
from holdfast.server.gating.answer import Answer
from holdfast.server.gating.authenticating import Authenticator
from holdfast.server.gating.body import Disconnected
from holdfast.server.gating.hosts import Hosts
from holdfast.server.gating.incoming import DASHBOARD, Incoming
from holdfast.server.gating.keyring import KeyRing
from holdfast.server.gating.opening import Openings
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem

LOGIN = f"{DASHBOARD}/login"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of everything one request may have."""

    body_bytes: int = limits.HTTP_BODY_BYTES_MAX
    read_seconds: float = limits.HTTP_READ_SECONDS
    answer_seconds: float = limits.HTTP_ANSWER_SECONDS
    failures_burst: int = limits.HTTP_FAILURES_MAX
    rate: float = limits.HTTP_RATE


@dataclass(slots=True)
class _Passage:
    """One request on its way through."""

    request: Incoming
    answer: Answer
    principal: Principal | None = None
    has_body_left: bool = True
    document: Any = None  # that a body of JSON was


class Gate:
    def __init__(
        self,
        inner: ASGIApp,
        app: Holdfast,
        ring: KeyRing,
        openings: Openings,
        *,
        hosts: Sequence[str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.inner = inner
        self.stopping = asyncio.Event()
        self._app = app
        self._hosts = Hosts(hosts)
        self._bounds = bounds or Bounds()
        self._openings = openings
        self._authenticator = Authenticator(
            app, ring, rate=self._bounds.rate, failures_burst=self._bounds.failures_burst
        )
        self._streams: set[asyncio.Timeout] = set()
        self._reading: set[asyncio.Timeout] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self.inner(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})  # there are none here

    def end_streams(self) -> None:
        """The server stops: streams end as if there were no more to say, and clients come again elsewhere."""
        self.stopping.set()
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._streams):
            limit.reschedule(now)
        for limit in tuple(self._reading):  # a body that comes slowly would outlast the time that a stop has
            limit.reschedule(min(limit.when() or now, now + limits.HTTP_STOP_SECONDS / 2))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Incoming(scope)
        passage = _Passage(request, Answer(request, send))
        began = self._app.clock.monotonic()
        try:
            inner_receive = await self._admit(passage, receive)
            await self._pass_on(passage, inner_receive)
        except Disconnected:
            pass
        except Problem as problem:
            await passage.answer.refuse(problem, receive if passage.has_body_left else None)
        finally:
            seconds = self._app.clock.monotonic() - began
            access_log.write(request, passage.principal, passage.answer.status, seconds)

    async def _admit(self, passage: _Passage, receive: Receive) -> Receive:
        """The steps before a route; they leave the principal, and the body for the route to read again."""
        request = passage.request
        passage.has_body_left = _announces_body(request)
        if not self._hosts.allows(request.header(b"host")):
            raise Problem(421, "unknown-host", "this server does not go by that name: start it with --hosts NAME")
        if request.has_key_in_url:
            raise Problem(400, "key-in-url", "a key does not belong in a URL, which others keep: send a header instead")
        bodies.check_head(request, self._bounds.body_bytes)
        passage.principal = await self._principal(request)
        if request.is_dashboard:
            origins.check_dashboard(request)
        body = await bodies.read(receive, self._bounds.body_bytes, self._bounds.read_seconds, self._reading)
        passage.has_body_left = False
        passage.document = await bodies.check(request, body)
        return bodies.replayed(body, receive)

    async def _principal(self, request: Incoming) -> Principal | None:
        opening = self._openings.of(request.path)
        if opening == "anyone" or (opening == "local" and request.is_local):
            return await self._authenticator.principal_if_any(request)
        try:
            return await self._authenticator.principal(request)
        except HoldfastError as error:
            raise problems.of_error(error) from None
        except Problem as problem:
            raise (_to_the_door(request) if problem.status == 401 and request.is_dashboard else problem) from None

    async def _pass_on(self, passage: _Passage, receive: Receive) -> None:
        request, answer = passage.request, passage.answer
        state: dict[str, Any] = {
            **request.scope.get("state", {}),
            "principal": passage.principal,
            "is_local": request.is_local,
            "request_id": request.request_id,
            "document": passage.document,
            "check_failures": lambda: self._authenticator.check_failures(request),  # for a login, which is a route
        }
        try:
            async with asyncio.timeout(self._bounds.answer_seconds) as limit:
                answer.began = lambda: self._unlimited(limit, answer)
                await self.inner({**request.scope, "state": state}, receive, answer.send)
        except TimeoutError as error:
            if not limit.expired():
                self._broke(passage, error)
            elif answer.status is None:
                raise Problem(503, "too-slow-here", "this took too long: try again later", retry_after=1) from None
            else:
                await answer.end()
        except Exception as error:
            self._broke(passage, error)
        finally:
            answer.began = lambda: None
            self._streams.discard(limit)
        if answer.status == 401 and not request.is_safe:
            self._authenticator.count_failure(request)  # a login

    def _unlimited(self, limit: asyncio.Timeout, answer: Answer) -> None:
        """What has begun to answer may take its time, until the server stops."""
        limit.reschedule(None)
        if answer.is_stream:
            self._streams.add(limit)
            if self.stopping.is_set():
                limit.reschedule(asyncio.get_running_loop().time())

    def _broke(self, passage: _Passage, error: Exception) -> None:
        mistakes.tell(f"request {passage.request.request_id}", error)
        if passage.answer.status is None:
            raise Problem(500, "internal", f"the log says more, under {passage.request.request_id}") from None


def _announces_body(request: Incoming) -> bool:
    return any(
        (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
        for name, value in request.scope["headers"]
    )


def _to_the_door(request: Incoming) -> Problem:
    """Where to log in, and the way back; what a form held is lost, so that one goes to the beginning."""
    query = request.scope["query_string"].decode("latin-1")
    here = quote(request.root + request.path, safe="/") + (f"?{query}" if query else "")
    back = f"?next={quote(here, safe='')}" if request.method == "GET" and request.path.rstrip("/") != DASHBOARD else ""
    return Problem(303, "log-in", headers={"Location": f"{quote(request.root, safe='/')}{LOGIN}{back}"})
