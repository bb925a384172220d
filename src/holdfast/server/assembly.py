"""The application, put together: the routes behind the gate."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from holdfast.app import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.server import answering, embedding, openapi, route_table
from holdfast.server.continuing import Continuing
from holdfast.server.gate import Bounds, Gate
from holdfast.server.gating.keyring import KeyRing

# Literal paths come before those with a name in them: a route is the first that fits, and all before it are tried. So
# submitting, which is asked most, comes first.
_ROUTERS = (
    "holdfast.server.routes.submitting",
    "holdfast.server.front",
    "holdfast.server.health",
    "holdfast.server.metrics",
    "holdfast.server.routes.workers",
    "holdfast.server.routes.streams",
    "holdfast.server.routes.artifacts",
    "holdfast.server.routes.results",
    "holdfast.server.routes.trees",
    "holdfast.server.routes.jobs",
    "holdfast.server.routes.queues",
    "holdfast.server.routes.schedules",
    "holdfast.server.routes.dead",
    "holdfast.server.routes.stats",
    "holdfast.server.routes.audit",
    "holdfast.dashboard",
)


def assemble(
    app: Holdfast, *, hosts: Sequence[str] | None = None, rate: float | None = None, bounds: Bounds | None = None
) -> Gate:
    api = FastAPI(
        title="Holdfast",
        lifespan=_lifespan(app),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.state.holdfast = app
    api.state.keyring = KeyRing(app)
    # Extended, not included: FastAPI builds an included route again, which doubles the time of a start.
    for name in _ROUTERS:
        api.router.routes.extend(importlib.import_module(name).router(app).routes)
    api.router.routes.extend(openapi.router(api).routes)
    answering.install(api)
    if app.observers is not None:
        api.add_middleware(Continuing, observers=app.observers)
    table = api.state.table = route_table.rows(api)
    bounds = bounds or Bounds()
    if rate is not None and not rate > 0:
        raise ConfigurationError(f"rate={rate!r:.40}: give requests per second, above 0")
    gate = Gate(
        api,
        app,
        api.state.keyring,
        route_table.openings(table),
        hosts=hosts,
        bounds=bounds if rate is None else replace(bounds, rate=rate),
    )
    api.state.stopping = gate.stopping  # long polls and streams look at it
    embedding.remember(app, gate)
    return gate


def _lifespan(app: Holdfast) -> Any:
    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        """Whoever had the app open before sees to upkeep, too."""
        is_ours = not app.is_open
        async with app, app.chores("server") if is_ours else nullcontext():
            yield

    return opened
