"""Background maintenance: promote, rescue and release jobs, fire schedules, apply retention.

Every step is idempotent and any worker may do it. There may be thousands of schedules: those that tick next are read
when one was saved, and again after a while. In between, what is known is enough to try, because the store accepts a
tick only from a worker that has read the current version of the schedule. Retention runs in small steps with rests in
between.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence

import msgspec

from backstay import failpoints
from backstay.clock import MICROS, Clock, Instant, within
from backstay.core import lifecycle, schedules, workers
from backstay.core.checks import count
from backstay.core.declarations import Code
from backstay.core.lifecycle import rescue
from backstay.core.port import Store
from backstay.core.records import ExpiredClaim, Firing, JobRecord, Schedule, Signal, Verdict, WorkerRow
from backstay.errors import QueueFull, StoreBusy, StoreMoved
from backstay.files.local import Files
from backstay.limits import RETIRE_INTERVAL_SECONDS, RETIRE_REST_SECONDS, SCHEDULES_AHEAD, SWEEP_BATCH_MAX
from backstay.observers import Observers
from backstay.ops import overlap, retention
from backstay.ops.declare import Declarer
from backstay.ops.retention import Retention
from backstay.ops.wait import HOPELESS, Trouble
from backstay.worker import errors

log = logging.getLogger("backstay.worker")
LOOKED_AT = 100  # workers that one look examines, wherever they run …
LOOK_SECONDS = 0.006  # … times the square of how many it found: of 30 workers each looks every 5 s, of 100 every minute
PROMOTING, SWEEPING = "looking for due jobs", "looking for lost jobs"


class Maintenance:
    """Sweeper, scheduler and retention, with the signals that wake them.

    A worker owns one. A server whose workers all connect over HTTP runs one of its own: without it, retries would never
    become due, and jobs of silent workers would never be rescued."""

    SIGNALS = frozenset({Signal.DUE, Signal.PLANNED, Signal.UNFINISHED})

    def __init__(
        self,
        store: Store,
        clock: Clock,
        files: Files | None,
        *,
        name: str,
        lease_seconds: float,
        poll_seconds: float,
        keep: Retention,
        observers: Observers | None = None,
        trouble: Trouble | None = None,
        settling: Callable[[], Collection[str]] = tuple,
        code: Code | None = None,
    ) -> None:
        trouble = trouble or Trouble(log, clock)
        self._store = store
        self._sweeper = Sweeper(
            store,
            clock,
            worker_id=name,
            lease_seconds=lease_seconds,
            sweep_seconds=_sweep_seconds(poll_seconds, lease_seconds),
            trouble=trouble,
            settling=settling,
            observers=observers,
        )
        self._scheduler = Scheduler(store, clock, look_seconds=poll_seconds, trouble=trouble, code=code)
        self._janitor = Janitor(store, clock, files, keep, trouble)
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Maintenance:
        self._unlisten = self._store.listen(self.SIGNALS, self.hear)
        self.start(_log_failure)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._unlisten()
        await self.stop()

    async def sweep_first(self) -> None:
        """Rescue the jobs that a dead worker of this machine left behind, before this worker claims. Locked ones are
        left for the next sweep."""
        try:
            await self._sweeper.sweep_once()
        except StoreBusy as error:
            log.warning("the first check for lost claims is postponed: %s", error)
        except StoreMoved as error:  # as one that was running: idle, until the transfer is abandoned
            errors.say_once(error)

    async def declare_first(self) -> None:
        """Store the schedules of this worker's code, before it claims. What fails is tried again later."""
        await self._scheduler.declare()

    def start(self, ended: Callable[[asyncio.Task[None]], None]) -> None:
        """Start all loops. `ended` is called with each task that ends, which is a failure unless it was cancelled."""
        for work in (
            self._sweeper.promote(),
            self._sweeper.sweep(),
            self._sweeper.release_rest(),
            self._scheduler.work(),
            self._janitor.work(),
        ):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(ended)
            self._tasks.append(task)

    def hear(self, signal: Signal) -> None:
        """Receive a signal from the owner's listener: a worker has one for everything."""
        match signal:
            case Signal.DUE:
                self._sweeper.due_changed()
            case Signal.PLANNED:
                self._scheduler.changed()
            case Signal.UNFINISHED:
                self._sweeper.left_unfinished()
            case _:
                pass

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _sweep_seconds(poll_seconds: float, lease_seconds: float) -> float:
    """Return how often to look for lost claims: more often if the lease is short."""
    return min(poll_seconds, max(0.05, lease_seconds / 2))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("maintenance has stopped: %s", error)


class Sweeper:
    """Makes due jobs claimable, rescues the jobs of lost workers, and completes releases that a commit left over."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        worker_id: str,
        lease_seconds: float,
        sweep_seconds: float,
        trouble: Trouble | None = None,
        settling: Callable[[], Collection[str]] = tuple,
        observers: Observers | None = None,
    ) -> None:
        self._store = store
        self._trouble = trouble or Trouble(log, clock)
        self._clock = clock
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._sweep_seconds = sweep_seconds
        self._settling = settling  # jobs of this worker that have ended, and that only the store does not know of yet
        self._observers = observers
        self._due = asyncio.Event()
        self._unfinished = asyncio.Event()
        self._releasing = asyncio.Lock()
        self._wall, self._monotonic = clock.now(), clock.monotonic()
        self._no_rescue_before = 0.0
        self._look_at = self._look_here_at = 0.0  # when to look at other workers, and at those of this host
        self._looked_until = ""  # of all workers by id; the next look begins here
        self._has_looked = False
        self._sees_all = False  # in each look

    def due_changed(self) -> None:
        self._due.set()

    def left_unfinished(self) -> None:
        """A commit has done only part of what follows from it: wake the task that does the rest."""
        self._unfinished.set()

    async def promote(self) -> None:
        """Sleep until the next job is due, then make it claimable."""
        while True:
            self._due.clear()
            pause = self._sweep_seconds
            try:
                promoted = await self._store.promote(self._clock.now(), SWEEP_BATCH_MAX)
                self._trouble.over(PROMOTING)
                if promoted.count == SWEEP_BATCH_MAX:
                    continue
                if promoted.next_due_at is not None:
                    pause = min(pause, max(0.0, (promoted.next_due_at - self._clock.now()) / MICROS))
            except StoreMoved as error:
                errors.say_once(error)
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(PROMOTING, error)
                pause = min(pause, 1.0)
            await within(pause, self._due.wait())

    async def sweep(self) -> None:
        """Rescue and release, periodically."""
        while True:
            try:
                await self.sweep_once()
                self._trouble.over(SWEEPING)
            except StoreMoved as error:
                errors.say_once(error)
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(SWEEPING, error)
            await asyncio.sleep(self._sweep_seconds)

    async def release_rest(self) -> None:
        """Finish what a commit has left over as soon as it signals that. The sweep finds what was missed."""
        while True:
            await self._unfinished.wait()
            try:
                await self._release()
            except StoreMoved as error:
                errors.say_once(error)
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(SWEEPING, error)

    async def sweep_once(self) -> int:
        dead, forgotten = await self._bury()
        rescued = 0
        if not self._clock_jumped():
            while (count := await self._rescue(dead)) == SWEEP_BATCH_MAX:
                rescued += count
            rescued += count
        while await self._expire() == SWEEP_BATCH_MAX:
            pass
        await self._release()
        if dead or forgotten:
            await self._store.forget(dead + forgotten, self._clock.now())
        return rescued

    async def _release(self) -> None:
        """Release in bounded steps, between which other calls get their turn, until nothing is left. One task at a
        time: two of the same process would only compete."""
        async with self._releasing:
            self._unfinished.clear()
            while await self._store.release(self._clock.now(), SWEEP_BATCH_MAX):
                pass

    async def _rescue(self, dead: list[str]) -> int:
        now = self._clock.now()
        settling = self._settling()
        claims = [
            claim
            for claim in await self._store.expired(now, SWEEP_BATCH_MAX, dead)
            if claim.worker_id != self._worker_id or claim.job_id not in settling
        ]
        if not claims:
            return 0
        failpoints.hit("rescue.before")
        decided = [
            rescue(claim, lease=claim.lease_expires_at, now=now, reason=_reason(claim, dead), by=self._worker_id)
            for claim in claims
        ]
        failpoints.hit("rescue.decided")
        attempts = [] if self._observers is None else await self._attempts(claims)
        verdicts = await self._store.apply(decided, now)
        for place, (claim, verdict) in enumerate(zip(claims, verdicts, strict=True)):
            if verdict is not Verdict.APPLIED:
                continue
            log.warning("rescued job %s from worker %s", claim.job_id, claim.worker_id)
            if self._observers is not None and (attempt := attempts[place]) is not None:
                self._observers.ended(attempt[0], decided[place], attempt[1])
        return len(claims)

    async def _expire(self) -> int:
        """Cancel jobs that were to start by now and have not."""
        now = self._clock.now()
        ids = await self._store.overdue(now, SWEEP_BATCH_MAX)
        if not ids:
            return 0
        records = [record for record in await self._store.get(ids) if record is not None]
        # The store found them by its own clock, which may be ahead of this one.
        decided = [lifecycle.expire(record, now=record.expires_at or now, by=self._worker_id) for record in records]
        transitions = [transition for transition in decided if transition is not None]
        if transitions:
            verdicts = await self._store.apply(transitions, now)
            log.info("%s had not started in time", count(verdicts.count(Verdict.APPLIED), "job"))
        return len(ids)

    async def _attempts(self, claims: Sequence[ExpiredClaim]) -> list[tuple[JobRecord, tuple[str, ...]] | None]:
        """Return the jobs, for observers, while they still belong to their dead workers, and their sensitive fields."""
        marks = {each.job_type: each.sensitive for each in await self._store.job_types()}
        records = await self._store.get([claim.job_id for claim in claims])
        return [None if record is None else (record, marks.get(record.job_type, ())) for record in records]

    async def _bury(self) -> tuple[list[str], list[str]]:
        """Remove workers that are certainly dead, and the rows of those that have been silent for long. The latter may
        still live, so their claims are left to expire."""
        now = self._clock.now()
        dead: list[str] = []
        forgotten: list[str] = []
        for worker in await self._others():
            if workers.is_dead(worker.process_key):
                dead.append(worker.worker_id)
            elif workers.is_forgotten(worker, now):
                forgotten.append(worker.worker_id)
        if forgotten:
            self._look_at = 0.0  # where there is one there are often more
        return dead, forgotten

    async def _others(self) -> list[WorkerRow]:
        """Return the rows of the workers to look at. If there are few, everyone looks at all of them. If there are
        many, each worker looks at some, starting at its own place in the list, and at those on its host, the only ones
        that it can know to be dead. So what a worker reads does not grow with their number."""
        found: dict[str, WorkerRow] = {}
        if (monotonic := self._clock.monotonic()) >= self._look_at:
            rows = await self._store.workers(after=self._looked_until, limit=LOOKED_AT)
            found.update((row.worker_id, row) for row in rows)
            self._sees_all = len(rows) < LOOKED_AT and not self._looked_until
            if len(rows) < LOOKED_AT:
                self._looked_until = ""
            else:  # from its own place on, so that not all of them look at the same
                self._looked_until = rows[-1].worker_id if self._has_looked else self._worker_id
            self._has_looked = True
            self._look_at = monotonic + _rest(len(rows))
        if not self._sees_all and monotonic >= self._look_here_at:
            after, before = workers.ids_on(workers.host_name())
            rows = await self._store.workers(after=after, before=before)
            found.update((row.worker_id, row) for row in rows)
            self._look_here_at = monotonic + _rest(len(rows))
        found.pop(self._worker_id, None)
        return list(found.values())

    def _clock_jumped(self) -> bool:
        """Return whether to rescue nothing for now: after a jump of the wall clock every lease looks expired, so
        holders get one lease of time to extend theirs."""
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        drift = abs((wall - self._wall) / MICROS - (monotonic - self._monotonic))
        self._wall, self._monotonic = wall, monotonic
        if drift > self._lease_seconds / 2:
            log.warning("the clock jumped by %.0f s: rescuing nothing for one lease", drift)
            self._no_rescue_before = monotonic + self._lease_seconds
        return monotonic < self._no_rescue_before


def _rest(looked_at: int) -> float:
    """Return the seconds until the next look, so that the total load does not depend on how many look at one
    another."""
    return LOOK_SECONDS * looked_at**2 * random.uniform(0.8, 1.2)


def _reason(claim: ExpiredClaim, dead: list[str]) -> str:
    if claim.worker_id in dead:
        return f"worker {claim.worker_id} died"
    return f"worker {claim.worker_id} let the lease expire: it died, stalled or lost its connection to the store"


LOOKING = "checking schedules"
DECLARING = "declaring schedules"
DECLARE_SECONDS = 60.0  # until a worker looks again whether its code holds: newer code may have come and gone


class Scheduler:
    """Fires the ticks of all schedules, and declares those of this worker's code."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        look_seconds: float,
        trouble: Trouble | None = None,
        code: Code | None = None,
    ) -> None:
        self._declarer = None if code is None else Declarer(store, clock, code)
        self._declare_at: float | None = None  # when to declare again
        self._store = store
        self._trouble = trouble or Trouble(log, clock)
        self._clock = clock
        self._look_seconds = look_seconds
        self._known: dict[str, Schedule] = {}  # those that tick next
        self._known_until: Instant | None = None  # others may tick from then on; None: there are no others
        self._changed = asyncio.Event()
        self._complained: set[tuple[str, int]] = set()

    def changed(self) -> None:
        self._changed.set()

    async def work(self) -> None:
        """Sleep until the next tick, then fire it."""
        good_for = 0.0  # seconds for which what is known will do
        while True:
            if self._declare_at is not None and self._clock.monotonic() >= self._declare_at:
                await self.declare()
            read = good_for <= 0 or self._changed.is_set() or self._others_are_due()
            self._changed.clear()
            if read:
                good_for = self._look_seconds
            pause = good_for
            try:
                next_at = await (self.look() if read else self._decide())
                if next_at is not None:
                    pause = min(pause, max(0.0, (next_at - self._clock.now()) / MICROS))
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(LOOKING, error)
                pause = good_for = min(pause, 1.0)
            else:
                self._trouble.over(LOOKING)
            await within(pause, self._changed.wait())
            good_for -= pause

    async def declare(self) -> None:
        """Bring the stored schedules in line with this worker's code, and plan when to look at that again."""
        if self._declarer is None:
            return
        again = self._look_seconds
        try:
            if await self._declarer.declare():
                again = DECLARE_SECONDS
            self._trouble.over(DECLARING)
        except StoreMoved as error:
            errors.say_once(error)
        except HOPELESS:
            raise
        except Exception as error:
            self._trouble.met(DECLARING, error)
        needed = again < DECLARE_SECONDS or self._declarer.is_needed_again
        self._declare_at = self._clock.monotonic() + again if needed else None

    async def look(self) -> Instant | None:
        """Read the schedules with the next ticks, and fire every tick that is due. Return when the next one is."""
        before: list[tuple[str, Instant]] = []
        while True:
            most = SCHEDULES_AHEAD + len(self._complained)  # those that cannot tick must not hide the others
            found = await self._store.upcoming(most)
            self._known = {schedule.name: schedule for schedule in found}
            self._known_until = found[-1].next_at if len(found) == most else None
            next_at = await self._decide()
            seen = [(schedule.name, schedule.next_at) for schedule in found]
            if not self._others_are_due():
                return next_at
            if seen == before:  # none of them can tick now
                self._known_until = None
                return self._clock.now() + round(self._look_seconds * MICROS)
            before = seen

    def _others_are_due(self) -> bool:
        return self._known_until is not None and self._known_until <= self._clock.now()

    async def _decide(self) -> Instant | None:
        due: list[Instant] = [] if self._known_until is None else [self._known_until]
        for schedule in tuple(self._known.values()):
            if schedule.paused_at is None:
                due.append(await self._catch_up(schedule))
        return min(due, default=None)

    async def _catch_up(self, schedule: Schedule) -> Instant:
        """Fire the ticks of a schedule that are due; return when it is due next. If missed="all" leaves more ticks than
        one firing takes, that is at once."""
        now = self._clock.now()
        try:
            firing = schedules.firing(schedule, now)
            if firing is None:
                return schedule.next_at
            last = await overlap.last_active(self._store, schedule)
            if last is not None:
                firing = schedules.firing(schedule, now, is_active=True) or firing
                if firing.jobs and (tick := firing.jobs[-1].tick_at) is not None:
                    if await self._store.schedules([schedule.name]) != [schedule]:
                        await self._read_one(schedule.name)  # nothing is cancelled for a tick that is not ours
                        return now
                    # Before the job of the tick is there: a worker that dies in between leaves the tick to another.
                    await overlap.replace(self._store, self._clock, schedule, last, tick)
                    failpoints.hit("replace.cancelled")
            try:
                verdict = await self._fire(firing, now)
            except QueueFull:
                if len(firing.jobs) < 2:
                    raise
                # A queue may never have room for all of them at once: one at a time, then.
                firing = schedules.firing(schedule, now, most=1) or firing
                verdict = await self._fire(firing, now)
        except StoreMoved as error:
            errors.say_once(error)
            return now + round(self._look_seconds * MICROS)
        except HOPELESS:
            raise
        except Exception as error:  # one that cannot be read, or is refused, must not stop the others
            self._complain(schedule, error)
            return now + round(self._look_seconds * MICROS)
        if verdict is not Verdict.APPLIED:
            await self._read_one(schedule.name)  # another worker was faster, or it was changed
            return now
        if firing.jobs:
            log.info("schedule %s: %d job%s", schedule.name, len(firing.jobs), "" if len(firing.jobs) == 1 else "s")
        if schedule.overlap == "queue":
            self._known[schedule.name] = msgspec.structs.replace(schedule, next_at=firing.next_at)
            return firing.next_at
        await self._read_one(schedule.name)  # which job is its last one now
        if last is not None and firing.skipped_at is not None and not firing.jobs:
            log.info("schedule %s: skipped a tick, because job %s is active", schedule.name, last.job_id)
            await overlap.tell(self._store, self._clock, schedule, last, firing.skipped_at)
        return firing.next_at

    async def _read_one(self, name: str) -> None:
        self._known.pop(name, None)
        self._known.update({schedule.name: schedule for schedule in await self._store.schedules([name])})

    async def _fire(self, firing: Firing, now: Instant) -> Verdict:
        failpoints.hit("fire.before")
        verdict = (await self._store.fire([firing], now))[0]
        failpoints.hit("fire.after")
        return verdict

    def _complain(self, schedule: Schedule, error: Exception) -> None:
        """Log a problem once for each tick, not at every look."""
        mark = (schedule.name, schedule.next_at)
        if mark not in self._complained:
            self._complained = {each for each in self._complained if each[0] != schedule.name} | {mark}
            log.error("schedule %s: its tick is delayed: %s", schedule.name, error)


START_SECONDS = 5.0  # soon after the start, but not in its way
REST_FACTOR = 9  # times as long as a step took, for each worker: all of them together have a tenth of the store …
REST_FACTOR_MIN = 1  # … or up to a half, as long as more jobs expire than that removes


class Janitor:
    def __init__(self, store: Store, clock: Clock, files: Files | None, keep: Retention, trouble: Trouble) -> None:
        self._store = store
        self._trouble = trouble
        self._clock = clock
        self._files = files
        self._keep = keep
        self._rest_factor: float = REST_FACTOR

    async def work(self) -> None:
        pause = START_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            try:
                archived = await self.clean_up()
                pause = RETIRE_INTERVAL_SECONDS if archived else self.rest_seconds()
            except StoreMoved as error:
                errors.say_once(error)
                pause = RETIRE_REST_SECONDS
            except HOPELESS:
                raise
            except Exception as error:  # it can wait; the jobs cannot
                self._trouble.met("retention", error, soon=False)
                pause = RETIRE_INTERVAL_SECONDS
            else:
                self._trouble.over("retention")

    def rest_seconds(self) -> float:
        """Return the pause after a pass that has found nothing: jobs that are kept for minutes expire sooner than those
        that are kept for days."""
        spans: list[int] = [span for span in msgspec.structs.astuple(self._keep.keep()) if span is not None]
        if not spans:
            return RETIRE_REST_SECONDS
        return max(RETIRE_INTERVAL_SECONDS, min(RETIRE_REST_SECONDS, min(spans) / MICROS / 4))

    async def clean_up(self) -> int:
        policy = retention.policy(self._keep, await self._store.job_types())
        workers = max(1, await self._store.count_workers())  # they all do this, maybe all at once
        archived = 0
        began = before = self._clock.monotonic()
        async for moved_now in retention.steps(self._store, self._clock, self._files, policy):
            archived += moved_now
            now = self._clock.monotonic()
            if now - began > RETIRE_INTERVAL_SECONDS:  # a busy store would grow without end
                self._rest_factor = max(self._rest_factor / 2, min(REST_FACTOR_MIN, REST_FACTOR))
                began = now
            await asyncio.sleep(self._rest_factor * workers * max(0.0, now - before))
            before = self._clock.monotonic()
        if self._clock.monotonic() - began < RETIRE_INTERVAL_SECONDS / 2:
            self._rest_factor = min(self._rest_factor * 2, REST_FACTOR)
        if archived:
            log.info("retention archived %s", count(archived, "job"))
        return archived
