"""Claims jobs: decides how many there is room for, and when to ask the store."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets

import msgspec

from backstay import failpoints
from backstay.clock import MICROS, Clock
from backstay.core.declarations import Code
from backstay.core.port import Store
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Signal
from backstay.core.suspicion import OPEN, Opening
from backstay.errors import StoreMoved
from backstay.limits import ALONE_LOOK_SECONDS
from backstay.ops.retention import Retention
from backstay.ops.wait import HOPELESS, Trouble
from backstay.worker import errors
from backstay.worker.settler import Settler
from backstay.worker.slots import Room, Slots

log = logging.getLogger("backstay.worker")
_ASKED_SECONDS = 0.01
_TURN_SECONDS = 0.25  # between looks at whose turn it is, while jobs wait to run alone


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a worker, checked and completed with defaults."""

    queues: tuple[str, ...]
    concurrency: int
    lease_seconds: float
    poll_seconds: float
    claim_limit: int
    grace_seconds: float
    keep: Retention
    version: str
    code: Code | None = None  # the schedules that its app declares
    burst: bool = False
    max_jobs: int | None = None
    max_memory: int | None = None  # bytes

    @property
    def is_limited(self) -> bool:
        """Whether the worker may end by itself: most run until they are told to stop."""
        return self.burst or self.max_jobs is not None or self.max_memory is not None


class Fetcher:
    def __init__(
        self,
        worker_id: str,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
        slots: Slots,
        settler: Settler,
        trouble: Trouble,
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._clock = clock
        self._settings = settings
        self._slots = slots
        self._settler = settler
        settler.on_room = slots.changed.set
        self._trouble = trouble
        self._versions = {name: lane.handler.version for name, lane in slots.lanes.items()}
        self._turn = 0  # which of the rooms is asked for next
        self.under_way: ClaimRequest | None = None  # asked, and not yet taken over; the lease keeper's thread reads it
        # Types that may have jobs; those of a claim that came back empty have none.
        self._maybe_ready = set(self._versions)
        self._released: set[tuple[str, int]] = set()  # by the watchdog's thread, before their claim was answered
        self._lost_left: set[str] = set()  # of these, a claim came back empty that left out what was lost
        self._in_worker = {name for name, lane in slots.lanes.items() if not lane.in_child}
        self._alone: set[str] = set()  # types with jobs that wait to run alone
        self._look_at = 0.0  # when to look for them again; on the event loop's clock
        self._signalled = True  # since the last look
        self._poll_at = 0.0
        self._stopping = False
        self.is_waiting = False  # nothing can be claimed now: there was nothing, or there is no room
        self.claimed = 0  # jobs
        self._loop = asyncio.get_running_loop()

    async def ask_again(self) -> None:
        """Ask for every type once more, also for jobs that run alone; return when there is an answer to all of it."""
        self.is_waiting = False
        self._look_at = 0.0
        self._ready(Signal.READY)
        while not self.is_waiting:  # noqa: ASYNC110  # once per burst: no one else needs a signal
            await asyncio.sleep(_ASKED_SECONDS)

    def _ready(self, _: Signal) -> None:
        """Wake up: jobs may be waiting."""
        self._maybe_ready.update(self._versions)
        self._signalled = True
        self._slots.changed.set()

    def stop(self) -> None:
        """Stop claiming. Waits for a claim that is under way, because its jobs have to be given back."""
        self._stopping = True
        self._slots.changed.set()

    def release(self, job: ClaimedJob) -> None:
        """Called in the watchdog's thread: mark a job of the current claim as given back, so that it does not start
        here."""
        self._released.add((job.job_id, job.attempt))

    def is_released(self, job: ClaimedJob) -> bool:
        return (job.job_id, job.attempt) in self._released

    async def work(self) -> None:
        changed = self._slots.changed
        unlisten = self._store.listen(frozenset({Signal.READY}), self._ready)
        try:
            while not self._stopping:
                changed.clear()
                if self._settler.is_behind or self._left() == 0:
                    await changed.wait()
                    continue
                await self._look()
                opening = self._slots.opening(self._alone, idle=self._in_worker.isdisjoint(self._maybe_ready))
                if opening.lost is Lost.SHARED and self._lost_left:
                    self._maybe_ready |= self._lost_left
                    self._lost_left.clear()
                if (room := self._slots.alone_room(opening, self._alone)) is not None:
                    await self._claim(room, Lost.ALONE)
                    continue
                rooms = self._slots.rooms(self._maybe_ready, opening) if self._maybe_ready else []
                if (chosen := self._chosen(rooms)) is not None:
                    await self._claim(chosen, opening.lost)
                elif self._maybe_ready and not rooms and opening is OPEN and not self._alone:
                    self.is_waiting = True
                    await changed.wait()
                else:
                    self.is_waiting = not self._alone
                    await self._wait(opening)
                self.is_waiting = False
        finally:
            unlisten()

    async def _wait(self, opening: Opening) -> None:
        """Wait for a signal or a poll interval, with jitter, so that idle workers do not all poll at the same time."""
        now = self._loop.time()
        pause = self._settings.poll_seconds * random.uniform(0.8, 1.2)
        if opening is not OPEN or self._alone:  # whose turn it is may change
            pause = min(pause, _TURN_SECONDS)
        elif self._signalled:  # it may have been for a job that runs alone
            pause = min(pause, max(0.0, self._look_at - now))
        else:
            self._poll_at = now + pause
        if self._poll_at <= now:
            self._poll_at = now + self._settings.poll_seconds
        timer = self._loop.call_later(pause, self._tick)
        try:
            await self._slots.changed.wait()
        finally:
            timer.cancel()

    def _tick(self) -> None:
        if self._loop.time() >= self._poll_at:
            self._maybe_ready.update(self._versions)
        self._slots.changed.set()

    async def _look(self) -> None:
        """Ask which types have jobs that wait to run alone. A busy worker would not notice them otherwise, because its
        claims do not include such jobs."""
        if self._loop.time() < self._look_at or not self._versions:
            return
        self._look_at, self._signalled = self._loop.time() + ALONE_LOOK_SECONDS, False
        request = self._request(Room(1, dict.fromkeys(self._versions, 1)), Lost.ALONE)
        try:
            self._alone = set(await self._store.wait_alone(request))
        except HOPELESS:
            raise
        except Exception as error:  # the next claim says it
            log.debug("could not look for jobs that run alone: %s", error)

    def _chosen(self, rooms: list[Room]) -> Room | None:
        """Return the next of the claims that may find jobs, in rotation, so that no batch type keeps another from being
        claimed."""
        asked = [
            Room(room.total, of_type)
            for room in rooms
            if (of_type := {name: slots for name, slots in room.of_type.items() if name in self._maybe_ready})
        ]
        if not asked:
            return None
        self._turn += 1
        return asked[self._turn % len(asked)]

    async def _claim(self, room: Room, lost: Lost) -> None:
        request = self._request(room, lost)
        if lost is not Lost.ALONE:
            self._maybe_ready.difference_update(request.slots)
        self.under_way = request
        try:
            answered = await self._answer(request)
            jobs = answered
            if self._released:
                jobs = [job for job in answered if not self.is_released(job)]
                self._released.clear()
            if answered:
                self.claimed += len(answered)
                if lost is not Lost.ALONE:
                    self._maybe_ready.update(request.slots)  # until a claim comes back empty there may be more
                if jobs:
                    self._slots.take(jobs, request.token)
            elif lost is Lost.ALONE:
                self._alone.difference_update(request.slots)
            elif lost is Lost.NONE:
                self._lost_left.update(request.slots)
        finally:
            self.under_way = None

    def _request(self, room: Room, lost: Lost) -> ClaimRequest:
        limit = min(self._settings.claim_limit, room.total)
        if (left := self._left()) is not None:
            limit = min(limit, left)
        return ClaimRequest(
            worker_id=self._worker_id,
            worker_version=self._settings.version,
            queues=self._settings.queues,
            slots={name: min(count, limit) for name, count in room.of_type.items()},
            limit=limit,
            lease_micros=round(self._settings.lease_seconds * MICROS),
            token=secrets.token_hex(16),
            versions=self._versions,
            lost=lost,
        )

    def _left(self) -> int | None:
        """Return how many more jobs this worker may take, if that is limited."""
        if self._settings.max_jobs is None:
            return None
        return max(0, self._settings.max_jobs - self._settler.ran - self._slots.unsettled)

    async def _answer(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Repeat a claim until the store answers. One without an answer may have been applied; the same token gets the
        same jobs."""
        if failpoints.armed:
            failpoints.hit("fetch.before")
        while True:
            try:
                jobs = await self._store.claim(request, self._clock.now())
                if self._trouble.lasts:
                    self._trouble.over("claiming")
                return jobs
            except StoreMoved as error:
                errors.say_once(error)
                return []
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met("claiming", error)
                self._maybe_ready.update(request.slots)
                await asyncio.sleep(random.uniform(0.1, 1.0))
                if self._stopping:
                    return []
                request = msgspec.structs.replace(request, repeat=True)
