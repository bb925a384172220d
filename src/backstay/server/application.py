"""Assembles the ASGI application: routers, gate, lifespan, the front page `/`, and mounting in another app.

A server that is asked to stop waits for its connections, and only then for the lifespan: an open dashboard would delay
it forever. The signals that stop it are therefore passed to the gates of the app first.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from backstay.app import Backstay
from backstay.errors import ConfigurationError
from backstay.observers import Observers
from backstay.server import openapi, routing
from backstay.server.auth import KeyRing, anyone, link
from backstay.server.gate import Bounds, Gate
from backstay.server.request import DASHBOARD
from backstay.server.worker_summary import WorkerSummaries

_gates: WeakKeyDictionary[Backstay, WeakSet[Gate]] = WeakKeyDictionary()


def remember(app: Backstay, gate: Gate) -> None:
    _gates.setdefault(app, WeakSet()).add(gate)


def opened(
    app: Backstay, worker: bool, worker_options: Mapping[str, Any]
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        with _streams_end_first(app):
            async with app, app.worker(**worker_options) if worker else app.maintenance("server"):
                yield

    return lifespan


@contextlib.contextmanager
def _streams_end_first(app: Backstay) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    loop = asyncio.get_running_loop()
    wrapped: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:
            wrapped[number] = before
            signal.signal(number, _passed_on(before, loop, app))
    try:
        yield
    finally:
        for number, before in wrapped.items():
            signal.signal(number, before)


def _passed_on(
    before: Callable[[int, FrameType | None], Any], loop: asyncio.AbstractEventLoop, app: Backstay
) -> Callable[[int, FrameType | None], None]:
    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(_end_streams, app)
        before(number, frame)

    return heard


def _end_streams(app: Backstay) -> None:
    for gate in _gates.get(app, ()):
        gate.end_streams()


_PAGE, _JSON = "text/html", "application/json"


class Links(BaseModel):
    dashboard: str
    health: str
    openapi: str
    ready: str


@routing.for_every_app
def front_router() -> APIRouter:
    routes = APIRouter(tags=["document"], dependencies=[Depends(anyone)])

    @routes.get(
        "/",
        summary="List the entry points",
        response_model=Links,
        responses={303: {"description": "Redirect to the dashboard, for browsers"}},
    )
    async def front(request: Request) -> Response:
        """The main paths of this server."""
        if _prefers_page(request.headers.get("accept", "")):
            return RedirectResponse(link(request, DASHBOARD), 303, headers={"Vary": "Accept"})
        found = {"dashboard": DASHBOARD, "health": "/healthz", "openapi": "/openapi.json", "ready": "/readyz"}
        return JSONResponse({name: link(request, path) for name, path in found.items()}, headers={"Vary": "Accept"})

    return routes


def _prefers_page(accept: str) -> bool:
    """Return whether text/html is named, and not below application/json: browsers do that, programs do not."""
    named = dict(map(_weighed, accept.lower().split(",")))
    return named.get(_PAGE, 0.0) > 0.0 and named[_PAGE] >= named.get(_JSON, 0.0)


def _weighed(part: str) -> tuple[str, float]:
    name, *options = (each.strip() for each in part.split(";"))
    weight = next((each[2:] for each in options if each.startswith("q=")), "1")
    try:
        return name, float(weight)
    except ValueError:
        return name, 0.0


class Continuing:
    def __init__(self, inner: ASGIApp, observers: Observers) -> None:
        self._inner = inner
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope.get("headers", ()) if name == b"traceparent"]
        with self._observers.continuing(found[0].decode("latin-1") if len(found) == 1 else None):
            await self._inner(scope, receive, send)


# Literal paths come before those with parameters: the first route that matches is taken, and all before it are tried.
# Submitting, the most frequent request, therefore comes first.
_ROUTERS = (
    ("backstay.server.routes.jobs", "submit_router"),
    ("backstay.server.application", "front_router"),
    ("backstay.server.metrics", "health_router"),
    ("backstay.server.metrics", "metrics_router"),
    ("backstay.server.routes.workers", "workers_router"),
    ("backstay.server.routes.streams", "streams_router"),
    ("backstay.server.routes.job_details", "artifacts_router"),
    ("backstay.server.routes.results", "results_router"),
    ("backstay.server.routes.job_details", "trees_router"),
    ("backstay.server.routes.events", "events_router"),
    ("backstay.server.routes.jobs", "jobs_router"),
    ("backstay.server.routes.operations", "queues_router"),
    ("backstay.server.routes.operations", "types_router"),
    ("backstay.server.routes.operations", "limits_router"),
    ("backstay.server.routes.operations", "schedules_router"),
    ("backstay.server.routes.jobs", "dead_router"),
    ("backstay.server.routes.operations", "stats_router"),
    ("backstay.server.routes.operations", "audit_router"),
    ("backstay.dashboard", "router"),
)


def assemble(
    app: Backstay,
    *,
    hosts: Sequence[str] | None = None,
    proxies: Sequence[str] | None = None,
    rate: float | None = None,
    bounds: Bounds | None = None,
) -> Gate:
    api = FastAPI(
        title="Backstay",
        lifespan=_lifespan(app),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.state.backstay = app
    api.state.keyring = KeyRing(app)
    api.state.worker_summaries = WorkerSummaries(app)
    # Extended, not included: FastAPI builds an included route again, which doubles the time of a start.
    for module, name in _ROUTERS:
        api.router.routes.extend(getattr(importlib.import_module(module), name)(app).routes)
    api.router.routes.extend(openapi.router(api).routes)
    table = api.state.table = routing.rows(api)
    serve: ASGIApp = routing.Routes(api, app, table)
    if app.observers is not None:
        serve = Continuing(serve, app.observers)
    bounds = bounds or Bounds()
    if rate is not None and not rate > 0:
        raise ConfigurationError(f"rate={rate!r:.40}: give requests per second, above 0")
    gate = Gate(
        api,
        serve,
        app,
        api.state.keyring,
        routing.openings(table),
        hosts=hosts,
        proxies=proxies,
        bounds=bounds if rate is None else replace(bounds, rate=rate),
    )
    api.state.stopping = gate.stopping  # checked by long polls and streams
    remember(app, gate)
    return gate


def _lifespan(app: Backstay) -> Any:
    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        """If the app was open before, its owner takes care of maintenance as well."""
        is_ours = not app.is_open
        async with app, app.maintenance("server") if is_ours else nullcontext():
            yield

    return opened
