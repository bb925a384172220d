"""Schedules: cron expressions in a time zone and fixed intervals, their next firing, and their settings. Pure.

A schedule's ticks are those of its rule from `starts_at` to `ends_at`. With `jitter`, the job of a tick is due a little
later: how much follows from the schedule and the tick, so that every worker computes the same.

When the clocks change: a tick at a fixed time that is skipped fires right after the gap, and one whose hour occurs
twice fires once; a tick every so many minutes keeps its pace.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Literal, Protocol, TypedDict, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from backstay.clock import MICROS, Instant, Moment, micros, to_datetime, to_instant
from backstay.core.checks import check_name
from backstay.core.records import FOREVER, Firing, JobTemplate, NewJob, Schedule
from backstay.errors import InvalidSchedule
from backstay.limits import JITTER_SECONDS_MAX, NAME_LENGTH_MAX, SCHEDULE_LATE_SECONDS, TICKS_PER_FIRING_MAX

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = re.compile(r"@every (\d{1,6})(s|m|h|d)")
_UNITLESS = re.compile(r"\s*@every\s+(\d{1,6})\s*")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# CronSim takes whole seconds; ticks are at whole minutes, so half a second makes no difference.
_DAY = 86_400 * MICROS
# How far back to look for the last tick, step by step: never past more than a few thousand ticks. The first step is for
# rules that tick every few minutes; 29 February can be 8 years away.
_LOOK_BACK_DAYS = (0.004, 0.1, 2, 40, 370, 3_000)


class Cron:
    """A cron rule; `after` and `latest` return its ticks."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self.expression = expression
        self.timezone = timezone
        self._zone = _zone(timezone)
        self._every = _every(expression)
        self._fields = "" if self._every else NICKNAMES.get(expression.strip().lower(), expression)
        if not self._every:
            try:
                if len(self._fields.split()) != 5:  # six fields would be read as an expression with seconds
                    raise CronSimError("Wrong number of fields")
                next(CronSim(self._fields, datetime(2024, 1, 1, tzinfo=self._zone)))
            except (CronSimError, ValueError) as error:
                if unit := _UNITLESS.fullmatch(expression):
                    raise InvalidSchedule(
                        f"cron={expression!r:.80}: @every needs a unit (s, m, h or d): @every {unit[1]}s"
                    ) from None
                if _is_a_day_that_never_comes(self._fields):
                    raise InvalidSchedule(f"cron={expression!r:.80}: that day never occurs in these months") from None
                raise InvalidSchedule(
                    f"cron={expression!r:.80}: {str(error) or 'not a cron expression'}; write five fields"
                    ' (minute hour day month weekday) like "30 3 * * 1-5", or "@daily", or "@every 30s"'
                ) from None
            except StopIteration:
                raise InvalidSchedule(f"cron={expression!r:.80} never matches") from None

    def after(self, instant: Instant) -> Instant:
        """Return the first tick after this instant."""
        if self._every:
            return (instant // self._every + 1) * self._every
        return next(self._ticks(instant))

    def latest(self, instant: Instant) -> Instant:
        """Return the last tick at or before this instant."""
        if self._every:
            return instant // self._every * self._every
        # Forwards only: backwards, the library can loop forever where clocks change by half an hour.
        for days in _LOOK_BACK_DAYS:
            found = None
            for tick in self._ticks(instant - round(days * _DAY)):
                if tick > instant:
                    break
                found = tick
            if found is not None:
                return found
        raise InvalidSchedule(f"cron={self.expression!r:.80} has not matched for {_LOOK_BACK_DAYS[-1]} days")

    def _ticks(self, instant: Instant) -> Iterator[Instant]:
        """Yield the ticks after an instant. In an hour that occurs twice, the library may return one that has
        passed."""
        for tick in map(to_instant, CronSim(self._fields, self._local(instant))):
            if tick > instant:
                yield tick
                instant = tick

    def _local(self, instant: Instant) -> datetime:
        return to_datetime(instant).astimezone(self._zone)


def parse(expression: str, timezone: str) -> Cron:
    try:
        return _parse(expression, timezone)
    except TypeError:  # a list cannot be cached; Cron raises the error for it
        return Cron(expression, timezone)


@lru_cache(maxsize=1024)
def _parse(expression: str, timezone: str) -> Cron:
    return Cron(expression, timezone)


def _is_a_day_that_never_comes(fields: str) -> bool:
    """Return whether each field is valid but no selected month has the selected day."""
    match fields.split():
        case [minute, hour, day, month, weekday]:
            alone = (f"{minute} {hour} {day} * {weekday}", f"{minute} {hour} * {month} {weekday}")
        case _:
            return False
    try:
        for each in alone:
            CronSim(each, datetime(2024, 1, 1))  # noqa: DTZ001 - only read, never asked for a tick
    except (CronSimError, ValueError):
        return False
    return True


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)  # the first costs the library much less
    except Exception:  # a name can fail in many ways: no such file, a directory, a path outside, not text
        raise InvalidSchedule(f"timezone={name!r:.60}: use a name like Europe/Berlin or UTC") from None


def _every(expression: str) -> int | None:
    """Return the interval in microseconds. Its ticks are multiples of it since the epoch, the same for every worker."""
    if not isinstance(expression, str):
        raise InvalidSchedule(f'cron={expression!r:.80}: write five fields like "30 3 * * 1-5", as a string')
    found = _EVERY.fullmatch(expression.strip().lower())
    if found is None:
        return None
    seconds = int(found[1]) * _UNITS[found[2]]
    if seconds == 0:
        raise InvalidSchedule(f"cron={expression!r}: the shortest interval is one second")
    return seconds * MICROS


MISSED = ("skip", "one", "all")
Overlap = Literal["queue", "skip", "replace"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
NEXT_TICKS = 5  # that a schedule is shown with: enough to see that its rule means what it should
NEVER = FOREVER  # the next tick of a schedule that has none left


class TimingOptions(TypedDict, total=False):
    """The keyword options of a schedule's rule."""

    timezone: str
    missed: str
    overlap: Overlap
    jitter: float | timedelta
    starts_at: datetime | None
    ends_at: datetime | None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule ticks, and what it does then, as it is stored."""

    cron: str
    timezone: str
    missed: str
    overlap: str
    jitter_micros: int
    starts_at: Instant | None
    ends_at: Instant | None


def timing(
    cron: str,
    *,
    timezone: str = "UTC",
    missed: str = "one",
    overlap: str = "queue",
    jitter: float | timedelta = 0,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Timing:
    """Return a rule with its options, checked."""
    parse(cron, timezone)
    for name, value, known in (("missed", missed, MISSED), ("overlap", overlap, OVERLAPS)):
        if value not in known:
            raise InvalidSchedule(f"{name}={value!r:.60}: use one of {', '.join(known)}")
    found = Timing(
        cron=cron,
        timezone=timezone,
        missed=missed,
        overlap=overlap,
        jitter_micros=_jitter(jitter),
        starts_at=_bound("starts_at", starts_at),
        ends_at=_bound("ends_at", ends_at),
    )
    if found.starts_at is not None and found.ends_at is not None and Ticks(found).after(found.starts_at - 1) == NEVER:
        raise InvalidSchedule(f"{cron} in {timezone} has no tick from starts_at={starts_at} to ends_at={ends_at}")
    return found


def _jitter(span: Any) -> int:
    try:
        found = micros(span)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not 0 <= found <= JITTER_SECONDS_MAX * MICROS:
        raise InvalidSchedule(f"jitter={span!r:.40}: use 0 to {JITTER_SECONDS_MAX:,.0f} seconds, or a timedelta")
    return found


def _bound(name: str, moment: datetime | None) -> Instant | None:
    if moment is None:
        return None
    try:
        return to_instant(moment)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidSchedule(f"{name}={moment!r:.60}: {error}") from None


class _Timed(Protocol):
    """What has ticks: a schedule, a timing."""

    @property
    def cron(self) -> str: ...

    @property
    def timezone(self) -> str: ...

    @property
    def starts_at(self) -> Any: ...

    @property
    def ends_at(self) -> Any: ...


class Ticks:
    """The ticks of a schedule: those of its rule from `starts_at` to `ends_at`."""

    def __init__(self, of: _Timed) -> None:
        self._rule = parse(of.cron, of.timezone)
        self._starts_at, self._ends_at = _as_instant(of.starts_at), _as_instant(of.ends_at)

    def after(self, instant: Instant) -> Instant:
        """Return the first tick after this instant; NEVER if there is none."""
        if self._starts_at is not None:
            instant = max(instant, self._starts_at - 1)
        if self._ends_at is not None and instant >= self._ends_at:
            return NEVER
        tick = self._rule.after(instant)
        return tick if self._ends_at is None or tick <= self._ends_at else NEVER

    def latest(self, instant: Instant) -> Instant | None:
        """Return the last tick at or before this instant."""
        tick = self._rule.latest(instant if self._ends_at is None else min(instant, self._ends_at))
        return None if self._starts_at is not None and tick < self._starts_at else tick

    def next(self, instant: Instant, most: int) -> list[Instant]:
        """Return up to this many ticks after an instant."""
        found: list[Instant] = []
        while len(found) < most and (instant := self.after(instant)) != NEVER:
            found.append(instant)
        return found

    def between(self, since: Instant, until: Instant, most: int) -> list[Instant]:
        """Return up to this many ticks from `since` to `until`, both included."""
        return [tick for tick in self.next(since - 1, most) if tick <= until]


def _as_instant(moment: Any) -> Instant | None:
    return to_instant(moment) if isinstance(moment, datetime) else moment


def firing(
    schedule: Schedule, now: Instant, most: int = TICKS_PER_FIRING_MAX, *, is_active: bool = False
) -> Firing | None:
    """Return what to insert for the ticks up to now, at most `most` of them; None if there are none. `is_active`:
    whether the job of the last tick is active, which matters unless overlapping jobs queue."""
    if schedule.paused_at is not None or schedule.next_at > now:
        return None
    ticks, next_at = _due(schedule, Ticks(schedule), now, most)
    kept = _without_overlap(schedule, ticks, is_active)
    dropped = [tick for tick in ticks if tick not in kept]
    jobs = tuple(job_of(schedule, tick, now) for tick in kept)
    return Firing(
        schedule.name,
        schedule.version,
        schedule.next_at,
        next_at,
        jobs,
        len(dropped),
        dropped[-1] if dropped else None,
    )


def _due(schedule: Schedule, rule: Ticks, now: Instant, most: int) -> tuple[list[Instant], Instant]:
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


def _last(schedule: Schedule, rule: Ticks, now: Instant) -> Instant:
    """Return the newest due tick. The stored next tick counts even if the rule would no longer produce it."""
    return max(schedule.next_at, rule.latest(now) or schedule.next_at)


def _without_overlap(schedule: Schedule, ticks: list[Instant], is_active: bool) -> list[Instant]:
    """Return the ticks that make a job, so that no two jobs of the schedule are active, unless they may queue."""
    match schedule.overlap:
        case "skip":
            return [] if is_active else ticks[:1]
        case "replace":
            return ticks[-1:]
        case _:
            return ticks


def job_of(schedule: Schedule, tick: Instant, now: Instant) -> NewJob:
    """Return the job of a tick. Its id is derived from schedule and tick, so that every worker creates the same one."""
    template = msgspec.json.decode(schedule.template, type=JobTemplate)
    return msgspec.structs.replace(
        template.job(now, tick),
        job_id=tick_id(schedule.name, tick),
        # From now, or after the jitter: a tick in the past must not overtake waiting jobs.
        scheduled_for=max(now, tick + jitter_of(schedule, tick)),
        special=True,
        own_id=True,
        created_by=creator(schedule.name),
        schedule=schedule.name,
        tick_at=tick,
    )


def creator(name: str) -> str:
    """Return the `created_by` of a schedule's jobs."""
    return f"schedule:{name}"[:NAME_LENGTH_MAX]


def jitter_of(schedule: Schedule, tick: Instant) -> int:
    """Return how long after a tick its job is due: the same on every worker, and spread evenly over the ticks."""
    if not schedule.jitter_micros:
        return 0
    digest = hashlib.sha256(f"{schedule.name}\0{tick}\0jitter".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (schedule.jitter_micros + 1)


def tick_id(name: str, tick: Instant) -> str:
    """Return a UUIDv7 with the time of the tick and a hash in its other bits."""
    digest = int.from_bytes(hashlib.sha256(f"{name}\0{tick}".encode()).digest()[:10], "big")
    millis = max(0, tick // 1000) & (2**48 - 1)
    number = millis << 80 | 0x7 << 76 | (digest >> 62 & 0xFFF) << 64 | 0b10 << 62 | digest & (2**62 - 1)
    return str(uuid.UUID(int=number))


class ScheduleOptions(TypedDict, total=False):
    """The keyword options of schedule, in addition to those of the rule itself: how its jobs are submitted."""

    priority: int | str
    queue: str
    subject: str
    tags: Any
    max_attempts: int
    timeout: Any
    content_hash: str
    dedup_key: str
    dedup_for: Any
    reuse: Any
    concurrency_key: str
    rate_key: str
    rate_cost: int
    fairness_key: str
    fairness_weight: int


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as it was when it was read."""

    name: str
    cron: str
    timezone: str
    missed: str
    overlap: str
    jitter_seconds: float
    starts_at: Moment | None
    ends_at: Moment | None
    job_type: str
    payload: Any
    queue: str
    priority: int
    declared_by: str | None  # the app whose code declares it; None: made by a call of schedule
    next_at: Moment | None  # None while it is paused, and when it has ended
    last_at: Moment | None
    last_job_id: str | None
    skipped: int
    skipped_at: Moment | None
    paused_at: Moment | None
    paused_by: str | None
    created_at: Moment
    updated_at: Moment
    version: int

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    @property
    def ended(self) -> bool:
        """Whether it has no tick left."""
        return self.next_at is None and not self.paused

    def ticks(self, after: datetime, most: int) -> list[datetime]:
        """Return up to this many ticks after a time."""
        return [to_datetime(tick) for tick in Ticks(self).next(to_instant(after), most)]


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """What a backfill did: how many ticks the span has, and the ids of their jobs."""

    ticks: int
    submitted: tuple[str, ...]
    existing: tuple[str, ...]  # jobs that were there before, or that have the schedule's dedup key


def info(schedule: Schedule) -> ScheduleInfo:
    template = msgspec.json.decode(schedule.template, type=NewJob)
    has_next = schedule.paused_at is None and schedule.next_at != NEVER
    return ScheduleInfo(
        name=schedule.name,
        cron=schedule.cron,
        timezone=schedule.timezone,
        missed=schedule.missed,
        overlap=schedule.overlap,
        jitter_seconds=schedule.jitter_micros / MICROS,
        starts_at=_moment(schedule.starts_at),
        ends_at=_moment(schedule.ends_at),
        job_type=schedule.job_type,
        payload=msgspec.json.decode(template.payload),
        queue=template.queue,
        priority=template.priority,
        declared_by=schedule.declared_by,
        next_at=to_datetime(schedule.next_at) if has_next else None,
        last_at=_moment(schedule.last_at),
        last_job_id=schedule.last_job_id,
        skipped=schedule.skipped,
        skipped_at=_moment(schedule.skipped_at),
        paused_at=_moment(schedule.paused_at),
        paused_by=schedule.paused_by,
        created_at=to_datetime(schedule.created_at),
        updated_at=to_datetime(schedule.updated_at),
        version=schedule.version,
    )


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


_RULE = ("cron", "timezone", "starts_at", "ends_at")  # what decides when the ticks are


def defined(
    stored: Schedule | None, name: str, when: Timing, job: NewJob, now: Instant, *, declared_by: str | None = None
) -> Schedule | None:
    """Return the schedule to store; None if it is stored unchanged: repeating the call at every start changes nothing,
    and in particular does not forget missed ticks."""
    check_name(name, "schedule")
    template = template_text(job)
    fields = {**msgspec.structs.asdict(when), "job_type": job.job_type, "template": template}
    if stored is None:
        return Schedule(
            name=name,
            created_at=now,
            updated_at=now,
            next_at=Ticks(when).after(now),
            declared_by=declared_by,
            **fields,
        )
    same_rule = all(getattr(stored, each) == getattr(when, each) for each in _RULE)
    changed = msgspec.structs.replace(
        stored, **fields, next_at=stored.next_at if same_rule else Ticks(when).after(now), declared_by=declared_by
    )
    if changed == stored:
        return None
    return msgspec.structs.replace(changed, version=stored.version + 1, updated_at=now)


def template_text(job: NewJob) -> str:
    """Return the job of a schedule as it is stored."""
    return msgspec.json.encode(
        msgspec.structs.replace(job, job_id="", scheduled_for=0, created_by=None, special=True)
    ).decode()


def paused(stored: Schedule, by: str | None, now: Instant) -> Schedule | None:
    if stored.paused_at is not None:
        return None
    return msgspec.structs.replace(stored, paused_at=now, paused_by=by, version=stored.version + 1, updated_at=now)


def resumed(stored: Schedule, now: Instant) -> Schedule | None:
    """Return the schedule resumed from now on: ticks during the pause are dropped."""
    if stored.paused_at is None:
        return None
    return msgspec.structs.replace(
        stored,
        paused_at=None,
        paused_by=None,
        next_at=Ticks(stored).after(now),
        version=stored.version + 1,
        updated_at=now,
    )
