"""Queues, schedules and statistics, and what an app registers when it opens: job types and result tables."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from backstay import ids, limits
from backstay.clock import Clock, Instant, micros, to_datetime, to_instant
from backstay.core import access_keys, queues, schedules, sensitive, stats, workers
from backstay.core.admission import parse
from backstay.core.checks import Until, check_job_type, check_name, check_reason, check_text, check_until, did_you_mean
from backstay.core.dumps import INTO, is_closed, refusal
from backstay.core.port import Store
from backstay.core.queues import Queue
from backstay.core.records import (
    Inserted,
    JobTemplate,
    JobType,
    LimitChange,
    LimitOf,
    NewJob,
    QueueChange,
    Rate,
    Schedule,
    Verdict,
    WorkerRow,
)
from backstay.core.result_tables import ResultTable
from backstay.core.run_limits import Limit
from backstay.core.schedules import Backfill, ScheduleInfo, TimingOptions
from backstay.core.stats import Stats
from backstay.errors import (
    BackstayError,
    ConfigurationError,
    InvalidOption,
    InvalidSchedule,
    ScheduleNotFound,
    StoreMoved,
    UnknownJobType,
    VersionConflict,
)
from backstay.handlers import Handler
from backstay.observers.base import Observers, submitting
from backstay.ops.audit import Actor, audited
from backstay.ops.edit import TRIES
from backstay.options import SubmitOptions, job_template
from backstay.results.model import table_of

log = logging.getLogger("backstay")

ScheduleChange = Callable[[Schedule | None, Instant], Schedule | None]


# Opening


async def announce(store: Store, clock: Clock, handlers: Collection[Handler]) -> None:
    """Store the job types of the handlers, so that apps without their code can submit to them, and their result tables.
    Writes only what changed, so that opening stays cheap."""
    now = clock.now()
    known = {each.job_type: each for each in await store.job_types()}
    for handler in handlers:
        if (stored := known.get(handler.name)) is not None:
            handler.marked = stored.sensitive
    ours = [_announcement(handler.describe(now), known.get(handler.name)) for handler in handlers]
    changed = [each for each in ours if _differs(each, known.get(each.job_type))]
    if changed:
        await store.announce(changed)
    if tables := _tables_of(handlers):
        await store.declare(tables)


async def announce_types(
    store: Store, clock: Clock, actor: Actor, changes: Sequence[tuple[JobType | None, JobType]]
) -> None:
    """Store types that a remote worker has announced: each as it was, and as it should be. A type whose schema, queue
    and version stay the same is only marked as seen; others leave an audit entry, since submits are checked by them."""
    seen = [new for old, new in changes if old is not None and _trace(old) == _trace(new)]
    if seen:
        await store.announce(seen)
    for old, new in changes:
        if new in seen:
            continue
        before = None if old is None else _trace(old)
        async with audited(store, clock, actor, "type.announce", new.job_type, before) as entry:
            await store.announce([new])
            entry.after = _trace(new)


def _trace(job_type: JobType) -> dict[str, Any]:
    """Return what the trail says about a schema: its hash, because the schema is too long."""
    text = job_type.payload_schema
    schema = None if text is None else f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}, {len(text):,} bytes"
    return {
        "version": job_type.version,
        "queue": job_type.queue,
        "schema": schema,
        "sensitive": " ".join(job_type.sensitive),
    }


def _announcement(ours: JobType, stored: JobType | None) -> JobType:
    """Return what to announce. Older code next to newer during a deploy keeps what the newer announced, and adds only
    its marks of sensitive fields."""
    if stored is None:
        return ours
    if stored.version > ours.version:
        return sensitive.announced(stored, msgspec.structs.replace(stored, sensitive=ours.sensitive))
    return sensitive.announced(stored, ours)


def _differs(ours: JobType, stored: JobType | None) -> bool:
    if stored is None:
        return True
    fresh = ours.last_seen - stored.last_seen < micros(timedelta(hours=1))
    return not fresh or msgspec.structs.replace(ours, last_seen=stored.last_seen) != stored


def _tables_of(handlers: Iterable[Handler]) -> list[ResultTable]:
    found: dict[str, ResultTable] = {}
    for handler in handlers:
        for model in handler.results:
            table = table_of(model)
            if found.setdefault(table.name.lower(), table) != table:
                raise ConfigurationError(
                    f"{handler.name}: two models declare the result table {table.name} differently"
                )
    return list(found.values())


async def accepts_changes(store: Store) -> bool:
    """Return whether the queue accepts changes. A queue that was transferred elsewhere can still be read; one that is
    being transferred into serves no one."""
    state = await store.moving()
    if state is None or not is_closed(state):
        return True
    if state.role == INTO:
        raise StoreMoved(refusal(state))
    log.warning("%s", refusal(state))
    return False


# Sensitive fields


async def unmark_sensitive(store: Store, clock: Clock, actor: Actor, job_type: str, field: str) -> JobType:
    """Show a field of a type to everyone who may read its jobs, although it was once announced as sensitive."""
    check_job_type(job_type)
    before = await _known_type(store, job_type)
    async with audited(
        store, clock, actor, "type.unmark", job_type, {"sensitive": " ".join(before.sensitive)}
    ) as entry:
        if field not in before.sensitive:
            marks = ", ".join(before.sensitive) or "none"
            raise InvalidOption(f"{field!r:.100} is not a mark of {job_type} (its marks: {marks:.300})")
        if field in sensitive.marks_of(before.payload_schema):
            raise InvalidOption(
                f"the code of {job_type} still marks {field:.100} as sensitive: deploy code without the mark first"
            )
        await store.unmark(job_type, [field])
        after = await _known_type(store, job_type)
        entry.after = {"sensitive": " ".join(after.sensitive)}
    return after


async def _known_type(store: Store, job_type: str) -> JobType:
    for each in await store.job_types():
        if each.job_type == job_type:
            return each
    raise UnknownJobType(f"no worker has announced the type {job_type!r:.80}")


# Queues


async def list_queues(store: Store) -> list[Queue]:
    """List every queue that is named anywhere, with its job counts."""
    return queues.overview(await store.queues(), await store.depths(), await store.job_types(), await _serving(store))


async def pause_queue(
    store: Store, clock: Clock, actor: Actor, name: str, reason: str | None, until: Until | None = None
) -> Queue:
    def change() -> QueueChange:
        at = None if until is None else check_until(until, clock.now())
        return QueueChange(paused=True, by=actor.by, reason=check_reason(reason), until=at)

    return await _change_queue(store, clock, actor, "queue.pause", name, change)


async def resume_queue(store: Store, clock: Clock, actor: Actor, name: str) -> Queue:
    return await _change_queue(store, clock, actor, "queue.resume", name, lambda: QueueChange(paused=False))


async def limit_queue(store: Store, clock: Clock, actor: Actor, name: str, max_pending: int | None) -> Queue:
    return await _change_queue(store, clock, actor, "queue.limit", name, lambda: pending_limit(max_pending))


async def _change_queue(
    store: Store, clock: Clock, actor: Actor, action: str, name: str, change: Callable[[], QueueChange]
) -> Queue:
    """Change a queue, with its audit entry; return it with its job counts. A queue may be changed before anything uses
    it; since that may also be a misspelled name, it is logged and noted in the answer."""
    check_name(name, "queue")
    rows = await store.queues()
    before = next((row for row in rows if row.name == name), None)
    async with audited(store, clock, actor, action, name, access_keys.queue(before)) as entry:
        row = await store.change_queue(name, change(), clock.now())
        entry.after = access_keys.queue(row)
    depths, serving = await store.depths(), await _serving(store)
    known = queues.overview(rows, depths, await store.job_types(), serving)
    [queue] = [each for each in queues.overview([row], depths, [], serving) if each.name == name]
    seen = [each.name for each in known if actor.sees(each.name)]
    if name in seen:
        return queue
    note = f"no job, handler or worker uses the queue {name} yet ({did_you_mean(name, seen)})"
    log.warning("%s", note)
    return msgspec.structs.replace(queue, note=note)


def pending_limit(max_pending: int | None) -> QueueChange:
    """Return the change that limits a queue's pending jobs; None means no limit."""
    limit = 0 if max_pending is None else max_pending
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= limits.MAX_PENDING_MAX:
        raise InvalidOption(f"max_pending={max_pending!r}: use 1 to {limits.MAX_PENDING_MAX:,}, or None for no limit")
    if limit == 0 and max_pending is not None:
        raise InvalidOption("max_pending=0 would refuse every job: pause the queue instead")
    return QueueChange(max_pending=limit)


async def _serving(store: Store) -> Counter[str]:
    return queues.serving(worker for worker in await store.workers() if not is_dead(worker))


def is_dead(worker: WorkerRow) -> bool:
    """Return whether a worker's process is known to have ended."""
    return workers.is_dead(worker.process_key)


# Limits at run time


async def list_limits(store: Store) -> list[Limit]:
    """List what was set at run time for types and keys."""
    return [Limit.of_row(row) for row in await store.limits()]


async def pause_type(
    store: Store, clock: Clock, actor: Actor, job_type: str, reason: str | None, until: Until | None = None
) -> Limit:
    def change() -> LimitChange:
        at = None if until is None else check_until(until, clock.now())
        return LimitChange(paused=True, by=actor.by, reason=check_reason(reason), until=at)

    return await _change_type(store, clock, actor, "type.pause", job_type, change)


async def resume_type(store: Store, clock: Clock, actor: Actor, job_type: str) -> Limit:
    return await _change_type(store, clock, actor, "type.resume", job_type, lambda: LimitChange(paused=False))


async def set_limit(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_type: str | None,
    key: str | None,
    concurrency: int | None,
    rate: str | Rate | None,
) -> Limit:
    """Set what holds at run time for a type or a key, both limits at once; None removes one."""
    if (job_type is None) == (key is None):
        raise InvalidOption("give job_type or key, one of the two: what the limit is of")
    most = limits.RUN_CONCURRENCY_MAX
    if concurrency is not None and (
        isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= most
    ):
        pause = " (to stop all of them, pause the type)" if concurrency == 0 else ""
        raise InvalidOption(f"concurrency={concurrency!r:.40}: use 1 to {most:,}, or None for no limit{pause}")
    change = LimitChange(limits=True, by=actor.by, concurrency=concurrency, rate=parse(rate))
    if job_type is not None:
        check_job_type(job_type)
        await _check_room(store, LimitOf.TYPE, job_type)
        return await _change_type(store, clock, actor, "type.limit", job_type, lambda: change)
    name = check_text("key", key, limits.KEY_LENGTH_MAX) or ""
    await _check_room(store, LimitOf.KEY, name)
    return await _change_limit(store, clock, actor, "key.limit", LimitOf.KEY, name, lambda: change)


async def _check_room(store: Store, of: LimitOf, name: str) -> None:
    rows = await store.limits()
    if len(rows) >= limits.RUN_LIMITS_MAX and (of, name) not in {(row.of, row.name) for row in rows}:
        raise InvalidOption(
            f"{len(rows):,} types and keys have limits set at run time, which is as many as there can be: remove one,"
            " or give jobs a concurrency_key or rate_key with the limit of their handler"
        )


async def _change_type(
    store: Store, clock: Clock, actor: Actor, action: str, job_type: str, change: Callable[[], LimitChange]
) -> Limit:
    """Change what holds for a type, with its audit entry. A type may be changed before a worker has announced it; since
    that may also be a misspelled name, it is logged and noted in the answer."""
    check_job_type(job_type)
    changed = await _change_limit(store, clock, actor, action, LimitOf.TYPE, job_type, change)
    known = [each.job_type for each in await store.job_types() if actor.sees(each.queue)]
    if job_type in known:
        return changed
    note = f"no worker has announced the type {job_type} yet ({did_you_mean(job_type, known)})"
    log.warning("%s", note)
    return msgspec.structs.replace(changed, note=note)


async def _change_limit(
    store: Store, clock: Clock, actor: Actor, action: str, of: LimitOf, name: str, change: Callable[[], LimitChange]
) -> Limit:
    before = next((Limit.of_row(row) for row in await store.limits() if (row.of, row.name) == (of, name)), None)
    async with audited(store, clock, actor, action, name, access_keys.limit(before)) as entry:
        changed = Limit.of_row(await store.change_limit(of, name, change(), clock.now()))
        entry.after = access_keys.limit(changed)
    return changed


# Schedules


async def define_schedule(
    store: Store,
    clock: Clock,
    actor: Actor,
    name: str,
    cron: str,
    target: Handler | JobType,
    payload: Any,
    *,
    timing: TimingOptions,
    options: SubmitOptions,
) -> ScheduleInfo:
    """Create the schedule with this name, or change it to this definition."""

    def change(stored: Schedule | None, now: Instant) -> Schedule | None:
        if stored is not None and stored.declared_by is not None:
            raise InvalidSchedule(
                f"schedule {name} is declared in the code of {stored.declared_by}: change it there, or use another name"
            )
        when = schedules.timing(cron, **timing)
        return schedules.defined(stored, name, when, job_template(target, payload, options), now)

    stored = await _stored_schedule(store, name)
    with suppress(BackstayError):  # what is wrong with it is an error below, with an entry
        if stored is not None and change(stored, clock.now()) is None:
            # Apps define their schedules at every start: that changes nothing, and writes nothing.
            return schedules.info(stored)
    return await _change_schedule(store, clock, actor, "schedule.put", name, change)


async def pause_schedule(store: Store, clock: Clock, actor: Actor, name: str) -> ScheduleInfo:
    """Stop a schedule from creating jobs until it is resumed."""

    def change(stored: Schedule | None, now: Instant) -> Schedule | None:
        return schedules.paused(_existing(stored, name), actor.by, now)

    return await _change_schedule(store, clock, actor, "schedule.pause", name, change)


async def resume_schedule(store: Store, clock: Clock, actor: Actor, name: str) -> ScheduleInfo:
    """Resume with the next tick from now."""

    def change(stored: Schedule | None, now: Instant) -> Schedule | None:
        return schedules.resumed(_existing(stored, name), now)

    return await _change_schedule(store, clock, actor, "schedule.resume", name, change)


async def _change_schedule(
    store: Store, clock: Clock, actor: Actor, action: str, name: str, change: ScheduleChange
) -> ScheduleInfo:
    """Change a schedule, with its audit entry. `change` returns None if it is already as wanted."""
    before = await _info(store, name)
    async with audited(store, clock, actor, action, name, access_keys.schedule(before)) as entry:
        after = await _save_schedule(store, clock, name, change)
        entry.after = access_keys.schedule(after)
    return after


async def _save_schedule(store: Store, clock: Clock, name: str, change: ScheduleChange) -> ScheduleInfo:
    for _ in range(TRIES):
        stored = await _stored_schedule(store, name)
        wanted = change(stored, clock.now())
        if wanted is None:
            assert stored is not None  # noqa: S101 - only what is stored can be right already
            return schedules.info(stored)
        expected = None if stored is None else stored.version
        if await store.save_schedule(wanted, expected) is Verdict.APPLIED:
            return schedules.info(wanted)
    raise VersionConflict(f"schedule {name} keeps changing: try again")


async def drop_schedule(store: Store, clock: Clock, actor: Actor, name: str) -> None:
    """Delete a schedule. The jobs it created remain."""
    check_name(name, "schedule")
    before = await _info(store, name)
    async with audited(store, clock, actor, "schedule.delete", name, access_keys.schedule(before)):
        if await store.drop_schedule(name) is Verdict.GONE:
            raise _not_found(name)


async def run_schedule(
    store: Store, clock: Clock, actor: Actor, observers: Observers | None, name: str, created_by: str | None
) -> tuple[NewJob, Inserted, Instant]:
    """Submit the job of a schedule now; return it with the answer of the store."""
    async with audited(store, clock, actor, "schedule.run", name) as entry:
        stored = _existing(await _stored_schedule(store, name), name)
        now = clock.now()
        job = msgspec.structs.replace(
            msgspec.json.decode(stored.template, type=JobTemplate).job(now, now),
            job_id=ids.new_id(now),
            scheduled_for=now,
            created_by=created_by or schedules.creator(name),
            schedule=name,
        )
        with submitting(observers, [job]) as [job]:
            [inserted] = await store.insert([job], now)
        entry.after = {"job_id": inserted.job_id}
    return job, inserted, now


async def backfill(
    store: Store,
    clock: Clock,
    actor: Actor,
    observers: Observers | None,
    name: str,
    from_: datetime,
    to: datetime,
    *,
    dry_run: bool,
) -> Backfill:
    """Submit the job of each tick from `since` to `until` that has none. The id of a job follows from its tick, so this
    may be repeated."""
    now = clock.now()
    since, until = _instant("from_", from_), _instant("to", to)
    if not since <= until <= now:
        raise InvalidOption("from_ must not be after to, and to not in the future: ticks that come make their jobs")
    stored = _existing(await _stored_schedule(store, name), name)
    ticks = schedules.Ticks(stored).between(since, until, limits.BACKFILL_TICKS_MAX + 1)
    if len(ticks) > limits.BACKFILL_TICKS_MAX:
        last = to_datetime(ticks[-2])
        raise InvalidOption(
            f"more than {limits.BACKFILL_TICKS_MAX:,} ticks (BACKFILL_TICKS_MAX): backfill up to {last:%Y-%m-%d %H:%M}"
            " first, then the rest"
        )
    made = [msgspec.structs.replace(schedules.job_of(stored, tick, now), scheduled_for=now) for tick in ticks]
    if dry_run:
        there = await store.statuses([job.job_id for job in made]) if made else []
        new: list[str] = []
        old: list[str] = []
        for job, status in zip(made, there, strict=True):
            (new if status is None else old).append(job.job_id)
        return Backfill(ticks=len(ticks), submitted=tuple(new), existing=tuple(old))
    async with audited(store, clock, actor, "schedule.backfill", name) as entry:
        submitted: list[str] = []
        existing: list[str] = []
        for start in range(0, len(made), limits.TICKS_PER_FIRING_MAX):
            part = made[start : start + limits.TICKS_PER_FIRING_MAX]
            with submitting(observers, part) as jobs:
                inserted = await store.insert(jobs, now)
            for each in inserted:
                (submitted if each.existing is None else existing).append(each.job_id)
        span = {"from": to_datetime(since), "to": to_datetime(until)}
        entry.after = {**span, "submitted": len(submitted), "existing": len(existing)}
    return Backfill(ticks=len(ticks), submitted=tuple(submitted), existing=tuple(existing))


def _instant(name: str, moment: datetime) -> Instant:
    try:
        return to_instant(moment)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidOption(f"{name}={moment!r:.60}: {error}", option=name) from None


async def get_schedule(store: Store, name: str) -> ScheduleInfo:
    return schedules.info(_existing(await _stored_schedule(store, name), name))


async def _info(store: Store, name: str) -> ScheduleInfo | None:
    stored = await _stored_schedule(store, name)
    return None if stored is None else schedules.info(stored)


def _existing(stored: Schedule | None, name: str) -> Schedule:
    if stored is None:
        raise _not_found(name)
    return stored


async def _stored_schedule(store: Store, name: str) -> Schedule | None:
    return next(iter(await store.schedules([name])), None)


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule {name!r:.80}")


# Figures


async def recent_stats(store: Store, now: Instant, minutes: int) -> Stats:
    """Return what happened in the last minutes, and how many jobs are in each state now."""
    longest = limits.COUNTERS_DAYS * 24 * 60
    if isinstance(minutes, bool) or not isinstance(minutes, int) or not 1 <= minutes <= longest:
        raise InvalidOption(f"minutes={minutes!r}: use 1 to {longest:,}")
    since, until = stats.span(now, minutes)
    kinds = await store.counters(since, until, width=until - since)
    return stats.summary(kinds, await store.counters(since, until, kinds=False), await store.counts(), since, until)
