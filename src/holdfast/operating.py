"""What a person who runs it asks of an app: queues, schedules, figures, explanations, check-ups, retention."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Unpack, cast

import msgspec

from holdfast import doctor, explaining, ids, lifecycle, limits, queues, retention, schedules, stats
from holdfast.checks import check_name, check_priority
from holdfast.editing import edit
from holdfast.errors import InvalidOption, ScheduleNotFound, VersionConflict
from holdfast.explaining import Explanation
from holdfast.files import LOG_FILE
from holdfast.handlers import Handler
from holdfast.job import Job, JobHandle
from holdfast.observing.observers import submitting
from holdfast.opened import Opened, check_words
from holdfast.queues import Queue
from holdfast.schedules import ScheduleInfo, ScheduleOptions
from holdfast.stats import Stats, TotalFigures
from holdfast.store.types import Finding, NewJob, QueueChange, Schedule, Verdict, WorkerRow
from holdfast.submission import SubmitOptions, build, run_at_of
from holdfast.worker import process_key

_TRIES = 20  # each lost race means that someone else made progress


class Operating(Opened):
    # Jobs

    async def reprioritise(
        self,
        job_id: str,
        priority: int | str,
        *,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Give a job that has not ended another place in line."""
        place = check_priority(priority)
        by, reason = check_words(by, reason)
        await edit(
            self.store,
            self.clock,
            job_id,
            expected_version,
            lambda job, _: lifecycle.reprioritise(job, priority=place, by=by, reason=reason),
        )
        return await self.get(job_id)

    async def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Let a pending or scheduled job run at another time; without one, now."""
        by, reason = check_words(by, reason)
        when: SubmitOptions = {}
        if run_at is not None:
            when["run_at"] = run_at
        if delay is not None:
            when["delay"] = delay
        await edit(
            self.store,
            self.clock,
            job_id,
            expected_version,
            lambda job, now: lifecycle.reschedule(job, run_at=run_at_of(when, now), now=now, by=by, reason=reason),
        )
        return await self.get(job_id)

    async def explain(self, job_id: str) -> Explanation:
        """In one sentence, why a job is not running, or where it is at."""
        job = (await self.get(job_id)).record
        lease = explaining.lease_micros(self._lease_seconds)
        return await explaining.explain(self.store, job, self.clock.now(), lease, _is_dead)

    async def log_bytes(self, job_id: str, start: int = 0, size_max: int = limits.MIB) -> bytes | None:
        """A piece of a job's full log, UTF-8, from a byte on: empty at its end. None where there is no file of it
        here; the record keeps the last lines in any case."""
        files, job_id = self._files, ids.canonical(job_id)
        return None if files is None else await asyncio.to_thread(files.read_part, job_id, LOG_FILE, start, size_max)

    # Queues

    async def queues(self) -> list[Queue]:
        """Every queue that is named anywhere, with what waits in it."""
        store = self.store
        return queues.overview(
            await store.queues(), await store.depths(), await store.job_types(), await self._living_workers()
        )

    async def _living_workers(self) -> list[WorkerRow]:
        return [worker for worker in await self.store.workers() if not _is_dead(worker)]

    async def pause_queue(self, name: str, *, by: str | None = None, reason: str | None = None) -> Queue:
        """Claim nothing from a queue until it is resumed. What runs goes on; what is submitted waits."""
        by, reason = check_words(by, reason)
        return await self._change_queue(name, QueueChange(paused=True, by=by, reason=reason))

    async def resume_queue(self, name: str) -> Queue:
        return await self._change_queue(name, QueueChange(paused=False))

    async def limit_queue(self, name: str, max_pending: int | None) -> Queue:
        """Refuse submits (QueueFull) while a queue holds so many pending jobs; None: no limit."""
        limit = 0 if max_pending is None else max_pending
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= limits.MAX_PENDING_MAX:
            raise InvalidOption(
                f"max_pending={max_pending!r}: use 1 to {limits.MAX_PENDING_MAX:,}, or None for no limit"
            )
        if limit == 0 and max_pending is not None:
            raise InvalidOption("max_pending=0 would refuse every job: pause the queue instead")
        return await self._change_queue(name, QueueChange(max_pending=limit))

    async def _change_queue(self, name: str, change: QueueChange) -> Queue:
        row = await self.store.change_queue(check_name(name, "queue"), change, self.clock.now())
        found = queues.overview([row], await self.store.depths(), [], await self._living_workers())
        return next(queue for queue in found if queue.name == name)

    # Schedules

    async def schedule(
        self,
        name: str,
        cron: str,
        job_type: str | Handler,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Submit a job at every tick: `await app.schedule("nightly", "30 3 * * *", "report", {...})`.

        Saying the same again changes nothing; saying it differently changes the schedule of this name. `missed` tells
        what becomes of ticks at which no worker ran: skip them, make one job for all of them, or all of them.
        """
        if unknown := options.keys() - ScheduleOptions.__annotations__.keys():
            raise InvalidOption(f"schedule has no option {', '.join(sorted(unknown))}")
        target = await self._target(job_type)
        asked = cast(SubmitOptions, options)

        def change(stored: Schedule | None, now: int) -> Schedule | None:
            job = build(target, payload, "", now, asked)
            return schedules.defined(stored, name, cron, timezone, missed, job, now)

        return await self._change_schedule(name, change)

    async def schedules(self) -> list[ScheduleInfo]:
        return [schedules.info(each) for each in await self.store.schedules()]

    async def unschedule(self, name: str) -> None:
        """Remove a schedule. Jobs that it has made stay."""
        if await self.store.drop_schedule(check_name(name, "schedule")) is Verdict.GONE:
            raise _no_schedule(name)

    async def pause_schedule(self, name: str, *, by: str | None = None) -> ScheduleInfo:
        by, _ = check_words(by, None)
        return await self._change_schedule(name, _stored(name, lambda stored, now: schedules.paused(stored, by, now)))

    async def resume_schedule(self, name: str) -> ScheduleInfo:
        """Go on with the next tick from now; those that fell into the pause are not made up for."""
        return await self._change_schedule(name, _stored(name, schedules.resumed))

    async def run_schedule(self, name: str, *, by: str | None = None) -> JobHandle:
        """Submit the job of a schedule now, beside its ticks."""
        by, _ = check_words(by, None)
        stored = await self._stored_schedule(name)
        if stored is None:
            raise _no_schedule(name)
        now = self.clock.now()
        template = msgspec.json.decode(stored.template, type=NewJob)
        job = msgspec.structs.replace(
            template,
            job_id=ids.new_id(now),
            scheduled_for=now,
            created_by=by or f"schedule:{name}"[:128],
            schedule=name,
        )
        with submitting(self.observers, [job]) as [job]:
            inserted = (await self.store.insert([job], now))[0]
        return self._handle(job, inserted, now)

    async def _change_schedule(
        self, name: str, change: Callable[[Schedule | None, int], Schedule | None]
    ) -> ScheduleInfo:
        for _ in range(_TRIES):
            stored = await self._stored_schedule(name)
            wanted = change(stored, self.clock.now())
            if wanted is None:
                assert stored is not None  # noqa: S101 - only what is stored can be right already
                return schedules.info(stored)
            expected = None if stored is None else stored.version
            if await self.store.save_schedule(wanted, expected) is Verdict.APPLIED:
                return schedules.info(wanted)
        raise VersionConflict(f"schedule {name} kept changing: try again")

    async def _stored_schedule(self, name: str) -> Schedule | None:
        return next(iter(await self.store.schedules([name])), None)

    # Figures, check-up, retention

    async def stats(self, minutes: int = 60) -> Stats:
        """What happened in the last minutes, and how many jobs are in each state now."""
        longest = limits.COUNTERS_DAYS * 24 * 60
        if isinstance(minutes, bool) or not isinstance(minutes, int) or not 1 <= minutes <= longest:
            raise InvalidOption(f"minutes={minutes!r}: use 1 to {longest:,}")
        since, until = stats.span(self.clock.now(), minutes)
        return stats.summary(await self.store.counters(since, until), await self.store.counts(), since, until)

    async def totals(self) -> list[TotalFigures]:
        """What ever happened, by type, queue and outcome: numbers that only grow, for metrics."""
        return [stats.total_figures(each) for each in await self.store.totals()]

    async def check_up(self) -> list[Finding]:
        """What `holdfast doctor` shows: each thing that was looked at, whether it is well, and what to do if not."""
        return await doctor.check_up(self.store, self._files, self.clock, self._lease_seconds, _is_dead)

    async def purge(self, *, older_than: float | timedelta | None = None, job_types: list[str] | None = None) -> int:
        """Move ended jobs over their time to the archive now, and drop what is over its time there; how many moved.

        `older_than` takes the place of every retention. Active jobs are never touched.
        """
        policy = retention.policy(self._retention, await self.store.job_types())
        if older_than is not None:
            policy = msgspec.structs.replace(policy, keep=retention.ended_for(older_than), by_type={})
        if isinstance(job_types, str):
            raise InvalidOption(f"job_types={job_types!r:.80}: give a list of names")
        if job_types:
            policy = msgspec.structs.replace(
                policy, job_types=tuple(check_name(each, "job type") for each in job_types)
            )
        return sum([count async for count in retention.steps(self.store, self.clock, self._files, policy)])


def _stored(
    name: str, change: Callable[[Schedule, int], Schedule | None]
) -> Callable[[Schedule | None, int], Schedule | None]:
    def changed(stored: Schedule | None, now: int) -> Schedule | None:
        if stored is None:
            raise _no_schedule(name)
        return change(stored, now)

    return changed


def _is_dead(worker: WorkerRow) -> bool:
    return process_key.is_dead(worker.process_key)


def _no_schedule(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule {name!r:.80}")
