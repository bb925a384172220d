"""Routes for event streams of a job, a tree, or the output of a job, as server-sent events.

All streams of one job's output share a watch, which reads each new entry once for those that have seen all before it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from backstay.app import Backstay
from backstay.core.records import Signal
from backstay.core.states import TERMINAL
from backstay.job import Job
from backstay.limits import FIND_LIMIT_MAX, KEY_STREAMS_MAX, STREAMS_MAX
from backstay.ops.output import SIGNALS as OUTPUT_SIGNALS
from backstay.ops.output import OutputEntry
from backstay.ops.tree import Tree
from backstay.server import problems, response_models, visibility
from backstay.server.auth import App, Principal, Who, needs, visible
from backstay.server.events import OutputTold, Told, TreeTold, end_of_output, of_job, of_output, of_tree
from backstay.server.openapi import EVENTS
from backstay.server.routing import JobId, answer, answers, routes
from backstay.server.watch import EventStream, Leave, Watches

READ = [Depends(needs("read"))]
SIGNALS = frozenset({Signal.READY, Signal.DUE, Signal.STOPPED, Signal.ENDED})
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=100, description="The `id` of the last event, to continue from there."),
]
AfterEntry = Annotated[
    str | None,
    Query(
        max_length=40,
        description="The `cursor` of an entry, or `next` of a page: continue behind it.",
        json_schema_extra={"pattern": r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$"},
    ),
]
EntryLimit = Annotated[int, Query(ge=1, le=FIND_LIMIT_MAX, description="Maximum number of entries on a page.")]
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
    _of_output(api, Watches(app, OUTPUT_SIGNALS))
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


class Latest(msgspec.Struct, frozen=True):
    """The output of a job as a watch has seen it: how far it has come, and what is new since its look before."""

    has_ended: bool
    end: str | None = None  # a cursor
    before: str | None = None
    new: tuple[OutputEntry, ...] = ()


def _of_output(api: APIRouter, watches: Watches) -> None:
    @api.get(
        "/jobs/{job_id:uuid}/output",
        summary="Read or stream the output of a job",
        dependencies=READ,
        **_output_answers(),
    )
    async def read_output(
        app: App,
        who: Who,
        request: Request,
        job_id: JobId,
        after: AfterEntry = None,
        limit: EntryLimit = FIND_LIMIT_MAX,
        last_event_id: LastEventId = None,
    ) -> Response:
        """What the handler has streamed, as a page of JSON; with `Accept: text/event-stream`, as events that continue
        until the job has ended: `output` for each entry, `restarted` before the first entry of a handler that runs
        again, `end`."""
        job = await visible(app, who, str(job_id))
        if EVENTS not in request.headers.get("accept", ""):
            page = await app.output(job.job_id, after=after, limit=limit)
            return answer(response_models.Output(job.job_id, list(page), page.next, page.more))
        told = OutputTold.of(last_event_id, after)

        async def look(before: Latest | None = None) -> Latest:
            return await _latest(app, job.job_id, before)

        first = await look()
        if told.has_ended and first.has_ended and told.cursor == first.end:
            return Response(status_code=204)
        seen = first

        async def look_on() -> Latest:
            nonlocal seen
            seen = await look(seen)
            return seen

        async def news(latest: Latest) -> tuple[bytes, bool]:
            nonlocal told
            parts: list[bytes] = []
            if told.cursor == latest.before:
                found, told = of_output(latest.new, job.job_id, told)
                parts.append(found)
            more = told.cursor != latest.end
            while more:
                page = await app.output(job.job_id, after=told.cursor)
                found, told = of_output(page, job.job_id, told)
                parts.append(found)
                more = page.more
            if latest.has_ended:
                parts.append(end_of_output(await app.get(job.job_id), told))
            return b"".join(parts), latest.has_ended

        watch = watches.on(("output", job.job_id), first, look_on)
        return EventStream(request, who, watch, news, _place(watches, who))


async def _latest(app: Backstay, job_id: str, before: Latest | None) -> Latest:
    """Read what is new. The status comes first: what was streamed before the end of the job is there then."""
    has_ended = (await app.get(job_id)).status in TERMINAL
    if before is None:
        end = await app.output_end(job_id)
        cursor = None if end is None else end.place.cursor
        return Latest(has_ended, cursor, cursor)
    page = await app.output(job_id, after=before.end)
    if page.more:  # much at once: each stream reads it for itself
        end = await app.output_end(job_id)
        cursor = None if end is None else end.place.cursor
        return Latest(has_ended, cursor, cursor)
    return Latest(has_ended, page.next, before.end, tuple(page))


def _output_answers() -> dict[str, Any]:
    found = answers(response_models.Output, 404)
    found["responses"][200]["content"][EVENTS] = {"schema": {"type": "string"}}
    found["responses"][204] = {"description": "Everything has been streamed: do not reconnect."}
    return found


def _place(watches: Watches, who: Principal) -> Leave:
    return watches.place(
        who.key_id, most=STREAMS_MAX, share=KEY_STREAMS_MAX, instead="read the job itself, or try again later"
    )
