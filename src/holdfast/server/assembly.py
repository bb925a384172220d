"""The application, put together: the routes behind the gate."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from holdfast.app import Holdfast
from holdfast.server import answering, openapi
from holdfast.server.gate import Gate

# Literal paths come before those with a name in them: a route is the first that fits.
_ROUTERS = (
    "holdfast.server.health",
    "holdfast.server.metrics",
    "holdfast.server.routes.workers",
    "holdfast.server.routes.streams",
    "holdfast.server.routes.artifacts",
    "holdfast.server.routes.results",
    "holdfast.server.routes.trees",
    "holdfast.server.routes.jobs",
    "holdfast.server.routes.submitting",
    "holdfast.server.routes.queues",
    "holdfast.server.routes.schedules",
    "holdfast.server.routes.dead",
    "holdfast.server.routes.stats",
    "holdfast.server.routes.audit",
    "holdfast.dashboard",
)


def assemble(app: Holdfast, *, hosts: Sequence[str] | None = None, rate: float | None = None) -> Gate:
    api = FastAPI(
        title="Holdfast",
        lifespan=_lifespan(app),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.state.holdfast = app
    for name in _ROUTERS:
        if importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        if hasattr(module, "router"):
            api.include_router(module.router(app))
    answering.install(api)
    openapi.install(api, app)
    return Gate(api, app, hosts=hosts, rate=rate)


def _lifespan(app: Holdfast) -> Any:
    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        async with app:
            yield

    return opened
