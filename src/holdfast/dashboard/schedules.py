"""Schedules: when each comes next, and run, pause, resume or remove it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from fastapi import Depends, Request, Response

from holdfast import audit_json, cron, sensitive
from holdfast.app import Holdfast
from holdfast.clock import to_datetime
from holdfast.dashboard import forms, frame, rules, trail
from holdfast.errors import ScheduleNotFound
from holdfast.schedules import ScheduleInfo
from holdfast.server.changes import audited
from holdfast.server.guarding import App, Who, needs
from holdfast.server.principals import Principal

TICKS_SHOWN = 3  # enough to see that a rule means what it should

router = frame.pages()


class Line(msgspec.Struct, frozen=True):
    schedule: ScheduleInfo
    words: str | None
    payload: Any
    ticks: list[str]  # as the clock shows it where the schedule hangs


@router.get("/schedules", dependencies=[Depends(needs("read"))])
async def listed(request: Request, app: App, who: Who) -> Response:
    schemas = {each.job_type: each.payload_schema for each in await app.store.job_types()}
    seen = [each for each in await app.schedules() if who.sees(each.queue)]
    now = app.clock.now()
    lines = [
        Line(
            each,
            rules.said(each.cron),
            sensitive.masked(schemas.get(each.job_type), each.payload),
            [_local(tick, each.timezone) for tick in _ticks(each, now)],
        )
        for each in seen
    ]
    return frame.render(request, "schedules.html", live="all", lines=lines)


def _ticks(schedule: ScheduleInfo, now: int) -> list[datetime]:
    rule = cron.parse(schedule.cron, schedule.timezone)
    ticks = []
    for _ in range(TICKS_SHOWN):
        now = rule.after(now)
        ticks.append(to_datetime(now))
    return ticks


def _local(moment: datetime, timezone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(timezone)):%a %d %b %Y, %H:%M:%S}"


@router.post("/schedules/{name}/{verb}", dependencies=[Depends(needs("admin"))])
async def change(request: Request, app: App, who: Who, name: str, verb: str) -> Response:
    form = await forms.read(request)
    schedule = await _visible(app, who, name)
    before = audit_json.schedule(schedule)
    try:
        match verb:
            case "run":
                async with audited(app, who, request, "schedule.run", name) as entry:
                    job = await app.run_schedule(name, by=trail.creator(who))
                    entry.after = {"job_id": job.job_id}
                return frame.redirect(request, f"/jobs/{job.job_id}", f"This is the job that {name} has made now.")
            case "pause":
                async with audited(app, who, request, "schedule.pause", name, before) as entry:
                    entry.after = audit_json.schedule(await app.pause_schedule(name, by=who.name))
                said = f"{name} makes no jobs until it is resumed."
            case "resume":
                async with audited(app, who, request, "schedule.resume", name, before) as entry:
                    entry.after = audit_json.schedule(await app.resume_schedule(name))
                said = f"{name} goes on with its next time."
            case "remove":
                async with audited(app, who, request, "schedule.delete", name, before):
                    await app.unschedule(name)
                said = f"{name} is removed. The jobs that it has made stay."
            case _:
                raise ScheduleNotFound(f"nothing of a schedule is called {verb!r:.40}")
    except trail.REFUSALS as error:
        return trail.refused(request, form, error, "/schedules")
    return frame.redirect_to(request, forms.back(request, form, "/schedules"), said)


async def _visible(app: Holdfast, who: Principal, name: str) -> ScheduleInfo:
    """Another's is told apart from none by nothing."""
    for each in await app.schedules():
        if each.name == name and who.sees(each.queue):
            return each
    raise ScheduleNotFound(f"no schedule {name!r:.80}")
