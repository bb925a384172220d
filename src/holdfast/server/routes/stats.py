"""GET /stats: figures of the last minutes, the queue's health, and how workers did."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from holdfast import limits, stats
from holdfast.app import Holdfast
from holdfast.server import crew, documents, figures
from holdfast.server.guarding import App, Who, needs
from holdfast.server.routing import answer, answers, routes

Minutes = Annotated[int, Query(ge=1, le=limits.COUNTERS_DAYS * 24 * 60, description="How far back the figures go.")]


def router(_: Holdfast) -> APIRouter:
    api = routes("stats")

    @api.get("/stats", summary="Read figures", dependencies=[Depends(needs("read"))], **answers(documents.Stats))
    async def read_stats(app: App, who: Who, minutes: Minutes = 60) -> Response:
        """`queue_health`: jobs by state and priority; those that have ended, within the last `minutes`. `workers`: the
        last 24 hours of those that are registered now, to the hour; with queue patterns, of those that serve no queue
        but the key's. None of it walks the table of jobs."""
        now = app.clock.now()
        since, until = stats.span(now, minutes)
        counters = [each for each in await app.store.counters(since, until) if who.sees(each.queue)]
        depths = [each for each in await app.store.depths() if who.sees(each.queue)]
        counts = await app.counts() if who.sees_all else figures.counts(depths)
        found = stats.summary(counters, counts, since, until)
        rows = [each.row for each in await crew.seen(app, who) if each.is_whole]
        return answer(
            {
                **msgspec.to_builtins(found, builtin_types=(datetime,)),
                "per_minute": found.per_minute,
                "queue_health": figures.health(depths, counters, now),
                "workers": figures.performance(rows, now),
            }
        )

    return api
