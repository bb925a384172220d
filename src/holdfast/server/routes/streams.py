"""Streams of what happens to a job, or to a tree of them, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Header, Request, Response

from holdfast.app import Holdfast
from holdfast.errors import JobNotFound
from holdfast.family_tree import Tree
from holdfast.job import Job
from holdfast.server import problems
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.job_events import Told, of_job
from holdfast.server.places import EventStream, Leave
from holdfast.server.principals import Principal
from holdfast.server.routing import JobId, routes
from holdfast.server.staying import CHECK_SECONDS, may_stay
from holdfast.server.tree_events import TreeTold, of_tree
from holdfast.server.watching import Watch, Watches

T = TypeVar("T")
READ = [Depends(needs("read"))]
BEAT_SECONDS = 15.0  # a comment now and then, so that nobody in between takes a silent stream for dead
AGAIN_MS = 2000  # how soon a browser whose stream broke comes again
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=100, description="The `id` of the last event: go on from there."),
]
_SAID: dict[str, Any] = {
    "dependencies": READ,
    "response_model": None,
    "responses": {
        200: {
            "description": "Events: state, progress, log, end.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "All was told, to the end: do not come again."},
        **problems.documented(401, 403, 404, 422, 429, 503),
    },
}


def router(app: Holdfast) -> APIRouter:
    api = routes("streams")
    watches = Watches(app)
    _of_a_job(api, watches)
    _of_a_tree(api, watches)
    return api


def _of_a_job(api: APIRouter, watches: Watches) -> None:
    @api.get("/jobs/{job_id:uuid}/stream", summary="What happens to a job, as it happens", **_SAID)
    async def stream(
        app: App, who: Who, request: Request, job_id: JobId, last_event_id: LastEventId = None
    ) -> Response:
        job = await visible(app, who, str(job_id))
        told = Told.of(last_event_id)
        if told.has_ended and told.version == job.version:
            return Response(status_code=204)
        told = msgspec.structs.replace(told, has_ended=False)

        def news(latest: Job) -> tuple[bytes, bool]:
            nonlocal told
            found, told = of_job(latest, told)
            return found, told.has_ended

        watch = watches.on(("job", job.job_id), job, lambda: app.get(job.job_id), app.seen_live)
        return _stream(request, who, watch, news, watches.place(who.key_id))


def _of_a_tree(api: APIRouter, watches: Watches) -> None:
    @api.get("/jobs/{job_id:uuid}/tree/stream", summary="What happens to a job and all below it", **_SAID)
    async def stream_tree(
        app: App, who: Who, request: Request, job_id: JobId, last_event_id: LastEventId = None
    ) -> Response:
        job = await visible(app, who, str(job_id))
        tree = await app.tree(job.job_id)
        told = TreeTold.of(last_event_id)
        if told.has_ended and of_tree(tree, who, TreeTold(told.at))[1].event_id == told.event_id:
            return Response(status_code=204)
        told = TreeTold(told.at)

        def news(latest: Tree) -> tuple[bytes, bool]:
            nonlocal told
            found, told = of_tree(latest, who, told)
            return found, told.has_ended

        watch = watches.on(("tree", job.job_id), tree, lambda: app.tree(job.job_id))
        return _stream(request, who, watch, news, watches.place(who.key_id))


def _stream(
    request: Request,
    who: Principal,
    watching: AbstractAsyncContextManager[Watch[T]],
    news: Callable[[T], tuple[bytes, bool]],
    leave: Leave,
) -> Response:
    """`news` makes events of what is known, and tells whether these were the last."""

    async def events() -> AsyncIterator[bytes]:
        clock = request.app.state.holdfast.clock
        spoke_at = clock.monotonic()
        yield b"retry: %d\n\n" % AGAIN_MS
        async with watching as watch:
            while True:
                heard = watch.told
                if isinstance(watch.error, JobNotFound):
                    return
                found, was_last = news(watch.latest)
                if not found and clock.monotonic() - spoke_at > BEAT_SECONDS:
                    found = b":\n\n"
                if found:
                    yield found
                    spoke_at = clock.monotonic()
                if was_last:
                    return
                await watch.news(heard, CHECK_SECONDS)
                if not await may_stay(request, who):
                    return

    return EventStream(events(), leave, HEADERS)
