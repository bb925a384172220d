"""Routes for events that jobs wait for: send one to a job or to a correlation key; and what a job has recorded."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from backstay import limits
from backstay.ops.events import SentEvent
from backstay.server import response_models
from backstay.server.auth import App, By, Who, needs, visible
from backstay.server.problems import Problem
from backstay.server.request_models import NO_NUL, EventBody, KeyEventBody
from backstay.server.routing import JobId, answer, answers, for_every_app, routes

CHANGE = [Depends(needs("submit", "admin"))]
EventName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=limits.NAME_LENGTH_MAX,
        description="As in ctx.wait_for_event.",
        json_schema_extra=NO_NUL,
    ),
]


@for_every_app
def events_router() -> APIRouter:
    api = routes("jobs")

    @api.get(
        "/jobs/{job_id:uuid}/steps",
        summary="List what a job has recorded",
        dependencies=[Depends(needs("read"))],
        **answers(response_models.Steps, 404),
    )
    async def list_steps(app: App, who: Who, job_id: JobId) -> Response:
        """Steps, sleeps and waits for events, in the order in which they were recorded; and events that no wait has
        received yet."""
        job = await visible(app, who, str(job_id))
        return answer(response_models.Steps(job.job_id, await app.steps(job.job_id)))

    @api.post(
        "/jobs/{job_id:uuid}/events/{name}",
        summary="Send an event to a job",
        dependencies=CHANGE,
        **answers(SentEvent, 400, 404, 409, 413, 415),
    )
    async def send_event(
        app: App, who: Who, by: By, job_id: JobId, name: EventName, body: EventBody | None = None
    ) -> Response:
        """For `ctx.wait_for_event(name)` of its handler; also before the job waits. A repeat with the same `event_id`
        has no further effect."""
        job = await visible(app, who, str(job_id))
        payload, event_id = (None, None) if body is None else (body.payload, body.event_id)
        return answer(await app.send_event(job.job_id, name, payload, event_id=event_id, by=by))

    @api.post(
        "/events",
        summary="Send an event to a correlation key",
        dependencies=CHANGE,
        **answers(SentEvent, 400, 413, 415),
    )
    async def send_event_to_key(app: App, who: Who, by: By, body: KeyEventBody) -> Response:
        """It goes to the job that has waited longest for this key and name, or is kept for a week until one does.
        Needs a key for all queues, because the job may be in any."""
        if not who.sees_all:
            raise Problem(
                403, "foreign-queue", "an event for a key may go to any queue, and this API key has some only"
            )
        sent = await app.send_event(key=body.key, name=body.name, payload=body.payload, event_id=body.event_id, by=by)
        return answer(sent)

    return api
