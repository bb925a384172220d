"""From a schedule and the time to its next firing: which ticks make a job, and where it goes on. Pure."""

from __future__ import annotations

import hashlib
import uuid

import msgspec

from holdfast import cron
from holdfast.clock import MICROS, Instant
from holdfast.errors import InvalidSchedule
from holdfast.limits import SCHEDULE_LATE_SECONDS, TICKS_PER_FIRING_MAX
from holdfast.store.types import Firing, NewJob, Schedule

MISSED = ("skip", "one", "all")


def firing(schedule: Schedule, now: Instant, most: int = TICKS_PER_FIRING_MAX) -> Firing | None:
    """What is to be done for the ticks up to now, `most` of them; None while there are none."""
    if schedule.paused_at is not None or schedule.next_at > now:
        return None
    rule = cron.parse(schedule.cron, schedule.timezone)
    ticks, next_at = _due(schedule, rule, now, most)
    jobs = tuple(job_of(schedule, tick, now) for tick in ticks)
    return Firing(schedule.name, schedule.version, schedule.next_at, next_at, jobs)


def _due(schedule: Schedule, rule: cron.Cron, now: Instant, most: int) -> tuple[list[Instant], Instant]:
    match schedule.missed:
        case "all":
            ticks: list[Instant] = []
            tick = schedule.next_at
            while tick <= now and len(ticks) < most:
                ticks.append(tick)
                tick = rule.after(tick)
            return ticks, tick
        case "one":
            return [_last(schedule, rule, now)], rule.after(now)
        case "skip":
            tick = _last(schedule, rule, now)
            on_time = now - tick <= SCHEDULE_LATE_SECONDS * MICROS
            return [tick] if on_time else [], rule.after(now)
        case other:
            raise InvalidSchedule(f"missed={other!r}: use one of {', '.join(MISSED)}")


def _last(schedule: Schedule, rule: cron.Cron, now: Instant) -> Instant:
    """The newest tick that is due. The one that was noted counts even where the rule would not name it now."""
    return max(schedule.next_at, rule.latest(now))


def job_of(schedule: Schedule, tick: Instant, now: Instant) -> NewJob:
    """The job of a tick. Its id follows from schedule and tick, so that every worker makes the same one."""
    template = msgspec.json.decode(schedule.template, type=NewJob)
    return msgspec.structs.replace(
        template,
        job_id=tick_id(schedule.name, tick),
        scheduled_for=now,  # its turn begins now: one from the past must not overtake those that wait
        special=True,
        own_id=True,
        created_by=f"schedule:{schedule.name}"[:128],
        schedule=schedule.name,
        tick_at=tick,
    )


def tick_id(name: str, tick: Instant) -> str:
    """A UUIDv7 whose time is the tick's and whose other bits are a hash."""
    digest = int.from_bytes(hashlib.sha256(f"{name}\0{tick}".encode()).digest()[:10], "big")
    millis = max(0, tick // 1000) & (2**48 - 1)
    number = millis << 80 | 0x7 << 76 | (digest >> 62 & 0xFFF) << 64 | 0b10 << 62 | digest & (2**62 - 1)
    return str(uuid.UUID(int=number))
