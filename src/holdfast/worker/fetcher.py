"""Deciding how many jobs to claim, and claiming them."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable

import msgspec

from holdfast import failpoints
from holdfast.clock import MICROS, Clock
from holdfast.errors import HoldfastError
from holdfast.store.port import Store
from holdfast.store.types import ClaimedJob, ClaimRequest
from holdfast.waits import within

log = logging.getLogger("holdfast.worker")


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
        room: Callable[[], Room | None],
        take: Callable[[list[ClaimedJob], str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._worker_id = worker_id
        self._version = version
        self._queues = queues
        self._versions = versions
        self._lease_micros = round(lease_seconds * MICROS)
        self._poll_seconds = poll_seconds
        self._claim_limit = claim_limit
        self._room = room
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
            room = self._room()
            if room is None:
                await self._stir.wait()
            elif asked := {name: slots for name, slots in room.of_type.items() if name in self._maybe_ready}:
                await self._claim(self._request(asked, min(self._claim_limit, room.total)))
            else:
                await self._doze()

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
                return await self._store.claim(request, self._clock.now())
            except HoldfastError as error:
                log.warning("claiming failed, trying again: %s", error)
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
