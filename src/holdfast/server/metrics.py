"""GET /metrics: for Prometheus, from the store, read at most once a second however many ask."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from holdfast.app import Holdfast
from holdfast.server import problems
from holdfast.server.exposition import MEDIA_TYPE, Snapshot, exposition
from holdfast.server.guarding import found, is_local, unless_local
from holdfast.server.routing import routes

KEPT_SECONDS = 1.0


class Metrics:
    """What was read last, and what it looks like to those who see everything."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self._snapshot = Snapshot((), (), (), 0)
        self._whole = b""

    async def text(self) -> bytes:
        await self.snapshot()
        return self._whole

    async def snapshot(self) -> Snapshot:
        async with self._reading:
            if self._app.clock.monotonic() - self._read_at >= KEPT_SECONDS:
                self._snapshot = await self._read()
                self._whole = exposition(self._snapshot)
                self._read_at = self._app.clock.monotonic()
            return self._snapshot

    async def _read(self) -> Snapshot:
        store = self._app.store
        return Snapshot(await self._app.totals(), await store.depths(), await store.workers(), self._app.clock.now())


def router(app: Holdfast) -> APIRouter:
    router = routes("metrics")
    metrics = Metrics(app)

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        dependencies=[Depends(unless_local("read"))],
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format"},
            **problems.documented(401, 403, 422, 429, 503),
        },
    )
    async def show(request: Request) -> Response:
        """From this machine without a key, else with the scope `read`. A key for some queues sees those."""
        who = found(request)
        if who is None or who.sees_all or is_local(request):
            return Response(await metrics.text(), media_type=MEDIA_TYPE)
        return Response(exposition((await metrics.snapshot()).seen_by(who.sees)), media_type=MEDIA_TYPE)

    return router
