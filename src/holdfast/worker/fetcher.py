"""Deciding how many jobs to claim, and claiming them."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Collection

import msgspec

from holdfast import failpoints
from holdfast.clock import MICROS, Clock
from holdfast.errors import StoreMoved
from holdfast.store.port import Store
from holdfast.store.types import ClaimedJob, ClaimRequest
from holdfast.trouble import HOPELESS, Trouble
from holdfast.waits import within
from holdfast.worker import moved


class Room(msgspec.Struct, frozen=True):
    """What fits: in total, and of each type."""

    total: int
    of_type: dict[str, int]


class Fetcher:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        worker_id: str,
        version: str,
        queues: tuple[str, ...],
        versions: dict[str, int],
        lease_seconds: float,
        poll_seconds: float,
        claim_limit: int,
        rooms: Callable[[Collection[str]], list[Room]],
        take: Callable[[list[ClaimedJob], str], None],
        trouble: Trouble,
    ) -> None:
        self._store = store
        self._trouble = trouble
        self._clock = clock
        self._worker_id = worker_id
        self._version = version
        self._queues = queues
        self._versions = versions
        self._lease_micros = round(lease_seconds * MICROS)
        self._poll_seconds = poll_seconds
        self._claim_limit = claim_limit
        self._rooms = rooms
        self._turn = 0  # which of the rooms is asked for next
        self._take = take
        self._stir = asyncio.Event()
        self.under_way: ClaimRequest | None = None  # asked, and not yet taken over; the lease keeper's thread reads it
        self._maybe_ready = set(versions)  # types that may have jobs; those of a claim that came back empty have none
        self._stopping = False

    def ready(self) -> None:
        """Jobs may be waiting."""
        self._maybe_ready.update(self._versions)
        self._stir.set()

    def stop(self) -> None:
        """No further claim; one under way is waited for, because what it takes must be given back."""
        self._stopping = True
        self._stir.set()

    def room_changed(self) -> None:
        self._stir.set()

    async def work(self) -> None:
        while not self._stopping:
            self._stir.clear()
            rooms = self._rooms(self._maybe_ready)
            if not rooms:
                await self._stir.wait()
            elif (chosen := self._chosen(rooms)) is not None:
                await self._claim(self._request(chosen.of_type, min(self._claim_limit, chosen.total)))
            else:
                await self._doze()

    def _chosen(self, rooms: list[Room]) -> Room | None:
        """One that may have jobs, each in its turn, so that no batch type keeps another from being claimed."""
        asked = [
            Room(room.total, of_type)
            for room in rooms
            if (of_type := {name: slots for name, slots in room.of_type.items() if name in self._maybe_ready})
        ]
        self._turn += 1
        return asked[self._turn % len(asked)] if asked else None

    async def _doze(self) -> None:
        """Until a signal, or a poll interval with jitter, so that idle workers do not ask all at once."""
        if not await within(self._poll_seconds * random.uniform(0.8, 1.2), self._stir.wait()):
            self._maybe_ready.update(self._versions)

    async def _claim(self, request: ClaimRequest) -> None:
        self._maybe_ready.difference_update(request.slots)
        self.under_way = request
        try:
            jobs = await self._answer(request)
            if jobs:
                self._maybe_ready.update(request.slots)  # until a claim comes back empty there may be more
                self._take(jobs, request.token)
        finally:
            self.under_way = None

    async def _answer(self, request: ClaimRequest) -> list[ClaimedJob]:
        """However often it takes: a claim without an answer may have been applied, and the same token gets the same
        jobs."""
        failpoints.hit("fetch.before")
        while True:
            try:
                jobs = await self._store.claim(request, self._clock.now())
                self._trouble.over("claiming")
                return jobs
            except StoreMoved as error:
                moved.say_once(error)
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

    def _request(self, slots: dict[str, int], limit: int) -> ClaimRequest:
        return ClaimRequest(
            worker_id=self._worker_id,
            worker_version=self._version,
            queues=self._queues,
            slots={name: min(count, limit) for name, count in slots.items()},
            limit=limit,
            lease_micros=self._lease_micros,
            token=secrets.token_hex(16),
            versions=self._versions,
        )
