"""Routes for event streams of a job or a tree, as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Header, Request, Response

from backstay.app import Backstay
from backstay.core.records import Signal
from backstay.job import Job
from backstay.limits import KEY_STREAMS_MAX, STREAMS_MAX
from backstay.ops.tree import Tree
from backstay.server import problems, visibility
from backstay.server.auth import App, Principal, Who, needs, visible
from backstay.server.events import Told, TreeTold, of_job, of_tree
from backstay.server.routing import JobId, routes
from backstay.server.watch import EventStream, Leave, Watches

READ = [Depends(needs("read"))]
SIGNALS = frozenset({Signal.READY, Signal.DUE, Signal.STOPPED, Signal.ENDED})
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=100, description="The `id` of the last event, to continue from there."),
]
_SAID: dict[str, Any] = {
    "dependencies": READ,
    "response_model": None,
    "responses": {
        200: {
            "description": "Events: state, progress, log, end.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "Everything has been sent: do not reconnect."},
        **problems.documented(401, 403, 404, 422, 429, 503),
    },
}


def streams_router(app: Backstay) -> APIRouter:
    api = routes("streams")
    watches = Watches(app, SIGNALS)
    _of_a_job(api, watches)
    _of_a_tree(api, watches)
    return api


def _of_a_job(api: APIRouter, watches: Watches) -> None:
    @api.get("/jobs/{job_id:uuid}/stream", summary="Stream the events of a job", **_SAID)
    async def stream(
        app: App, who: Who, request: Request, job_id: JobId, last_event_id: LastEventId = None
    ) -> Response:
        job = await visible(app, who, str(job_id))
        told = Told.of(last_event_id)
        if told.has_ended and told.version == job.version:
            return Response(status_code=204)
        told = msgspec.structs.replace(told, has_ended=False)
        sight = visibility.Sight(app, who)
        await sight.hidden([job])

        async def news(latest: Job) -> tuple[bytes, bool]:
            nonlocal told
            found, told = of_job(visibility.without_ids(latest, await sight.hidden([latest])), told)
            return found, told.has_ended

        watch = watches.on(("job", job.job_id), job, lambda: app.get(job.job_id), app.seen_live)
        return EventStream(request, who, watch, news, _place(watches, who))


def _of_a_tree(api: APIRouter, watches: Watches) -> None:
    @api.get("/jobs/{job_id:uuid}/tree/stream", summary="Stream the events of a job and its descendants", **_SAID)
    async def stream_tree(
        app: App, who: Who, request: Request, job_id: JobId, last_event_id: LastEventId = None
    ) -> Response:
        job = await visible(app, who, str(job_id))
        tree = await app.tree(job.job_id)
        sight = visibility.Sight(app, who)

        async def hidden(latest: Tree) -> frozenset[str]:
            return await sight.hidden([each.job for each in latest if who.sees(each.job.queue)])

        told = TreeTold.of(last_event_id)
        if told.has_ended and of_tree(tree, who, TreeTold(told.at), await hidden(tree))[1].event_id == told.event_id:
            return Response(status_code=204)
        told = TreeTold(told.at)

        async def news(latest: Tree) -> tuple[bytes, bool]:
            nonlocal told
            found, told = of_tree(latest, who, told, await hidden(latest))
            return found, told.has_ended

        watch = watches.on(("tree", job.job_id), tree, lambda: app.tree(job.job_id))
        return EventStream(request, who, watch, news, _place(watches, who))


def _place(watches: Watches, who: Principal) -> Leave:
    return watches.place(
        who.key_id, most=STREAMS_MAX, share=KEY_STREAMS_MAX, instead="read the job itself, or try again later"
    )
