"""Whether the process is up, and whether it can do its work. Neither says more than that: everyone may ask.

`/healthz` touches nothing: a server whose store is away is still one that need not be restarted. `/readyz` asks the
store, at most once a second however many ask. It reads and does not write: a store that takes no write (its disk is
full) takes none from any server, and if all were taken out of service nobody could see why. Submits say it with 507.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from holdfast import limits
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.server.guarding import anyone

KEPT_SECONDS = 1.0


class Health(BaseModel):
    status: Literal["ok", "unavailable"]


class Readiness:
    """Whether the store answers, with the schema of this release; what was found out is kept for a second."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._asking: asyncio.Task[bool] | None = None
        self._asked_at = float("-inf")

    async def found(self) -> bool:
        now = self._app.clock.monotonic()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= KEPT_SECONDS):
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asked_at = now
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(limits.READY_SECONDS):
                await self._app.store.queues()  # reads what this release has added to the schema, and few rows
        except (HoldfastError, TimeoutError):
            return False
        return True


def router(app: Holdfast) -> APIRouter:
    routes = APIRouter(tags=["health"], dependencies=[Depends(anyone)])
    readiness = Readiness(app)

    @routes.get("/healthz", summary="Whether the server is up", response_model=Health)
    @routes.head("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @routes.get(
        "/readyz",
        summary="Whether its store answers",
        description="It reads. Whether the store takes writes is told by them: 503 or 507 where it does not.",
        response_model=Health,
        responses={503: {"model": Health, "description": "The store does not answer, or has another schema"}},
    )
    @routes.head("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        is_ready = await readiness.found()
        return JSONResponse({"status": "ok" if is_ready else "unavailable"}, 200 if is_ready else 503)

    return routes
