"""Queues: what waits in each, and pausing, resuming and limiting one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from holdfast import audit_json
from holdfast.app import Holdfast
from holdfast.queues import Queue
from holdfast.server import changes, documents
from holdfast.server.guarding import App, Who, check_queue, needs
from holdfast.server.inputs import LimitBody, ReasonBody
from holdfast.server.principals import Principal
from holdfast.server.routing import Name, answer, answers, routes


def router(_: Holdfast) -> APIRouter:
    api = routes("queues")
    admin = [Depends(needs("admin"))]

    @api.get("/queues", summary="List the queues", dependencies=[Depends(needs("read"))], **answers(documents.Queues))
    async def list_queues(app: App, who: Who) -> Response:
        """Every queue that is named anywhere, with what waits in it."""
        return answer({"items": [document(each) for each in await app.queues() if who.sees(each.name)]})

    @api.post(
        "/queues/{name}/pause",
        summary="Pause a queue",
        dependencies=admin,
        **answers(documents.Queue, 400, 415),
    )
    async def pause_queue(app: App, who: Who, request: Request, name: Name, body: ReasonBody | None = None) -> Response:
        """Nothing is claimed from it until it is resumed. What runs goes on; what is submitted waits."""
        reason = None if body is None else body.reason
        return await _changed(
            app, who, request, "queue.pause", name, lambda: app.pause_queue(name, by=who.name, reason=reason)
        )

    @api.post("/queues/{name}/resume", summary="Resume a queue", dependencies=admin, **answers(documents.Queue))
    async def resume_queue(app: App, who: Who, request: Request, name: Name) -> Response:
        return await _changed(app, who, request, "queue.resume", name, lambda: app.resume_queue(name))

    @api.post(
        "/queues/{name}/limit",
        summary="Limit a queue",
        dependencies=admin,
        **answers(documents.Queue, 400, 415),
    )
    async def limit_queue(app: App, who: Who, request: Request, name: Name, body: LimitBody) -> Response:
        """Submits are refused with 429 while it holds so many pending jobs."""
        return await _changed(app, who, request, "queue.limit", name, lambda: app.limit_queue(name, body.max_pending))

    return api


async def _changed(
    app: Holdfast, who: Principal, request: Request, action: str, name: str, change: Callable[[], Awaitable[Queue]]
) -> Response:
    check_queue(who, name)
    before = audit_json.queue(next((row for row in await app.store.queues() if row.name == name), None))
    async with changes.audited(app, who, request, action, name, before) as entry:
        queue = await change()
        entry.after = audit_json.queue(queue)
    return answer(document(queue))


def document(queue: Queue) -> dict[str, Any]:
    return {**msgspec.structs.asdict(queue), "paused": queue.paused}
