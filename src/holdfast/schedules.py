"""Schedules as users see them, and how one is made or changed. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

import msgspec

from holdfast import cron
from holdfast.checks import check_name
from holdfast.clock import Instant, to_datetime
from holdfast.errors import InvalidSchedule
from holdfast.store.types import NewJob, Schedule
from holdfast.ticks import MISSED


class ScheduleOptions(TypedDict, total=False):
    """The keyword options of schedule, beside those of the rule itself: how its jobs are submitted."""

    priority: int | str
    queue: str
    subject: str
    tags: Any
    max_attempts: int
    timeout: Any
    content_hash: str
    concurrency_key: str
    rate_key: str
    fairness_key: str
    fairness_weight: int


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as it was when it was read."""

    name: str
    cron: str
    timezone: str
    missed: str
    job_type: str
    payload: Any
    queue: str
    priority: int
    next_at: datetime | None  # None while it is paused
    last_at: datetime | None
    last_job_id: str | None
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    updated_at: datetime
    version: int

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


def info(schedule: Schedule) -> ScheduleInfo:
    template = msgspec.json.decode(schedule.template, type=NewJob)
    return ScheduleInfo(
        name=schedule.name,
        cron=schedule.cron,
        timezone=schedule.timezone,
        missed=schedule.missed,
        job_type=schedule.job_type,
        payload=msgspec.json.decode(template.payload),
        queue=template.queue,
        priority=template.priority,
        next_at=None if schedule.paused_at is not None else to_datetime(schedule.next_at),
        last_at=_moment(schedule.last_at),
        last_job_id=schedule.last_job_id,
        paused_at=_moment(schedule.paused_at),
        paused_by=schedule.paused_by,
        created_at=to_datetime(schedule.created_at),
        updated_at=to_datetime(schedule.updated_at),
        version=schedule.version,
    )


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def defined(
    stored: Schedule | None, name: str, expression: str, timezone: str, missed: str, job: NewJob, now: Instant
) -> Schedule | None:
    """The schedule to store; None where it is stored already just so: saying it again at every start changes nothing,
    and above all does not forget the ticks that were missed meanwhile."""
    check_name(name, "schedule")
    if missed not in MISSED:
        raise InvalidSchedule(f"missed={missed!r:.60}: use one of {', '.join(MISSED)}")
    rule = cron.parse(expression, timezone)
    template = msgspec.json.encode(
        msgspec.structs.replace(job, job_id="", scheduled_for=0, created_by=None, special=True)
    ).decode()
    if stored is None:
        return Schedule(
            name=name,
            cron=expression,
            timezone=timezone,
            missed=missed,
            job_type=job.job_type,
            template=template,
            created_at=now,
            updated_at=now,
            next_at=rule.after(now),
        )
    same_rule = (stored.cron, stored.timezone) == (expression, timezone)
    changed = msgspec.structs.replace(
        stored,
        cron=expression,
        timezone=timezone,
        missed=missed,
        job_type=job.job_type,
        template=template,
        next_at=stored.next_at if same_rule else rule.after(now),
    )
    if changed == stored:
        return None
    return msgspec.structs.replace(changed, version=stored.version + 1, updated_at=now)


def paused(stored: Schedule, by: str | None, now: Instant) -> Schedule | None:
    if stored.paused_at is not None:
        return None
    return msgspec.structs.replace(stored, paused_at=now, paused_by=by, version=stored.version + 1, updated_at=now)


def resumed(stored: Schedule, now: Instant) -> Schedule | None:
    """From now on: what fell into the pause was not wanted."""
    if stored.paused_at is None:
        return None
    rule = cron.parse(stored.cron, stored.timezone)
    return msgspec.structs.replace(
        stored, paused_at=None, paused_by=None, next_at=rule.after(now), version=stored.version + 1, updated_at=now
    )
