"""Claims jobs: decides how many there is room for, and when to ask the store."""

from __future__ import annotations

import asyncio
import random
import secrets

import msgspec

from backstay import failpoints
from backstay.clock import MICROS, Clock
from backstay.core.port import Store
from backstay.core.records import ClaimedJob, ClaimRequest
from backstay.errors import StoreMoved
from backstay.ops.retention import Retention
from backstay.ops.wait import HOPELESS, Trouble
from backstay.worker import errors
from backstay.worker.slots import Room, Slots


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a worker, checked and with their defaults."""

    queues: tuple[str, ...]
    concurrency: int
    lease_seconds: float
    poll_seconds: float
    claim_limit: int
    grace_seconds: float
    keep: Retention
    version: str


class Fetcher:
    def __init__(
        self, worker_id: str, store: Store, clock: Clock, settings: WorkerSettings, slots: Slots, trouble: Trouble
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._clock = clock
        self._settings = settings
        self._slots = slots
        self._trouble = trouble
        self._versions = {name: lane.handler.version for name, lane in slots.lanes.items()}
        self._turn = 0  # which of the rooms is asked for next
        self.under_way: ClaimRequest | None = None  # asked, and not yet taken over; the lease keeper's thread reads it
        # Types that may have jobs; those of a claim that came back empty have none.
        self._maybe_ready = set(self._versions)
        self._stopping = False
        self._loop = asyncio.get_running_loop()

    def ready(self) -> None:
        """Jobs may be waiting."""
        self._maybe_ready.update(self._versions)
        self._slots.changed.set()

    def stop(self) -> None:
        """No further claim; one under way is waited for, because what it takes must be given back."""
        self._stopping = True
        self._slots.changed.set()

    async def work(self) -> None:
        changed = self._slots.changed
        while not self._stopping:
            changed.clear()
            rooms = self._slots.rooms(self._maybe_ready) if self._maybe_ready else []
            if (chosen := self._chosen(rooms)) is not None:
                await self._claim(chosen)
            elif self._maybe_ready and not rooms:
                await changed.wait()
            else:  # until a signal, or a poll interval with jitter, so that idle workers do not ask all at once
                pause = self._settings.poll_seconds * random.uniform(0.8, 1.2)
                poll = self._loop.call_later(pause, self.ready)
                try:
                    await changed.wait()
                finally:
                    poll.cancel()

    def _chosen(self, rooms: list[Room]) -> Room | None:
        """One that may have jobs, each in its turn, so that no batch type keeps another from being claimed."""
        asked = [
            Room(room.total, of_type)
            for room in rooms
            if (of_type := {name: slots for name, slots in room.of_type.items() if name in self._maybe_ready})
        ]
        if not asked:
            return None
        self._turn += 1
        return asked[self._turn % len(asked)]

    async def _claim(self, room: Room) -> None:
        limit = min(self._settings.claim_limit, room.total)
        request = ClaimRequest(
            worker_id=self._worker_id,
            worker_version=self._settings.version,
            queues=self._settings.queues,
            slots={name: min(count, limit) for name, count in room.of_type.items()},
            limit=limit,
            lease_micros=round(self._settings.lease_seconds * MICROS),
            token=secrets.token_hex(16),
            versions=self._versions,
        )
        self._maybe_ready.difference_update(request.slots)
        self.under_way = request
        try:
            jobs = await self._answer(request)
            if jobs:
                self._maybe_ready.update(request.slots)  # until a claim comes back empty there may be more
                self._slots.take(jobs, request.token)
        finally:
            self.under_way = None

    async def _answer(self, request: ClaimRequest) -> list[ClaimedJob]:
        """However often it takes: a claim without an answer may have been applied, and the same token gets the same
        jobs."""
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
