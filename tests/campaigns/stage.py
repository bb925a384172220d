"""A simulation of workers on one store: stalls, slow rescues, races, crashes between two steps.

Everything runs one call after another in an order that the seed decides, on a clock that the stage sets: the
same seed is the same history. Where an engine has a gap between reading and writing, `Stage.race` lets a
rival in.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backstay import failpoints
from backstay.backoff import Backoff
from backstay.clock import MICROS
from backstay.core import lifecycle, schedules
from backstay.core.lifecycle import Completed, Outcome, Raised
from backstay.core.port import Store
from backstay.core.records import (
    ClaimedJob,
    ClaimRequest,
    ErrorEntry,
    ExpiredClaim,
    Hold,
    JobRecord,
    Lost,
    NewJob,
    Note,
    QueueChange,
    RetentionPolicy,
    Schedule,
    Verdict,
)
from backstay.errors import BackstayError
from backstay.ids import new_id
from backstay.testing.history import Evidence, OperationLog, read_operations, recorded
from tests.campaigns.fleet import dump
from tests.campaigns.places import File, Place

LEASE = 10 * MICROS
BACKOFF = Backoff(base=1, factor=1, max=1, jitter=0)
START = 1_800_000_000 * MICROS


class Gap:
    """A gap between two steps of an engine where another process may interfere."""

    def __init__(self) -> None:
        self.rival: Callable[[], Awaitable[object]] | None = None

    async def __call__(self) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()


@dataclass(frozen=True)
class Claim:
    """A job in a worker's hands."""

    store: Store
    worker: str
    token: str
    job: ClaimedJob

    @property
    def hold(self) -> Hold:
        return Hold(self.job.job_id, self.job.attempt, self.token)


class Missing(Exception):
    """The scene cannot continue."""


class Stage:
    def __init__(
        self, place: Place, stores: Sequence[Store], logs: Sequence[OperationLog], gap: Gap, seed: int
    ) -> None:
        self.place = place
        self.a, self.b = (recorded(store, log) for store, log in zip(stores, logs, strict=True))
        self.logs = logs
        self.gap = gap
        self.random = random.Random(seed)
        self.now = START
        self.errors: list[BaseException] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, folder: Path, make: Callable[[str], Store], gap: Gap, seed: int = 1, place: Place | None = None
    ) -> AsyncIterator[Stage]:
        """On a file in the folder, unless another place is named."""
        place = place or File(folder / "jobs.db")
        stores = [make(place.url) for _ in range(2)]
        logs = [OperationLog(folder / f"store-{name}.jsonl") for name in "ab"]
        for store in stores:
            await store.open()
        try:
            yield cls(place, stores, logs, gap, seed)
        finally:
            failpoints.switch("")
            for store in stores:
                await store.close()
            for log in logs:
                log.close()

    def pass_time(self, micros: int = LEASE + MICROS) -> None:
        self.now += micros

    async def quietly(self, call: Awaitable[Any]) -> Any:
        """Ignore errors: a broken engine may raise; the log and the store decide."""
        try:
            return await call
        except (BackstayError, failpoints.FailpointReached) as error:
            self.errors.append(error)
            return None

    async def crash(self, where: str, call: Awaitable[Any]) -> None:
        """Make a call that crashes at a failpoint, simulated within this process."""
        failpoints.switch(where)
        await self.quietly(call)
        await self.a.forget([], 0)  # the writer has passed the failpoint when it reaches this
        failpoints.switch("")

    async def race(self, first: Callable[[], Awaitable[Any]], rival: Callable[[], Awaitable[Any]]) -> None:
        """Run the rival in the gap if the engine has one; otherwise it runs second."""
        self.gap.rival = rival
        await self.quietly(first())
        await self.gap()

    # Clients

    def new(self, job_type: str, **fields: Any) -> NewJob:
        values: dict[str, Any] = {
            "job_id": new_id(self.now),
            "job_type": job_type,
            "queue": "default",
            "priority": 50,
            "payload": msgspec.json.encode({"n": self.random.randrange(10**9)}).decode(),
            "scheduled_for": self.now,
            "max_attempts": 5,
            "timeout_micros": MICROS,
        }
        values |= fields
        values["special"] = bool({"own_id", "dedup_key", "depends_on", "parent_job_id"} & fields.keys())
        return NewJob(**values)

    async def submit(self, job_type: str, store: Store | None = None, **fields: Any) -> str:
        job = self.new(job_type, **fields)
        answers = await self.quietly((store or self.a).insert([job], self.now))
        return str(answers[0].job_id) if answers else job.job_id

    async def record(self, job_id: str) -> JobRecord | None:
        return (await self.a.get([job_id]))[0]

    async def cancel(self, seen: JobRecord | None, store: Store | None = None) -> None:
        if seen is not None and seen.status in lifecycle.ACTIVE:
            decided = lifecycle.cancel(seen, by="editor", reason="asked to")
            await self.quietly((store or self.b).apply([decided], self.now))

    async def retry_by_hand(self, job_id: str) -> None:
        seen = await self.record(job_id)
        if seen is not None and seen.status in lifecycle.TERMINAL:
            decided = lifecycle.manual_retry(seen, now=self.now, by="editor", reason=None)
            await self.quietly(self.b.apply([decided], self.now))

    async def reprioritise(self, seen: JobRecord | None, priority: int, store: Store | None = None) -> None:
        if seen is not None and seen.status in lifecycle.ACTIVE:
            decided = lifecycle.reprioritise(seen, priority=priority, by="editor", reason=None)
            await self.quietly((store or self.b).apply([decided], self.now))

    # Operators

    async def pause(self, queue: str = "default", *, paused: bool = True, store: Store | None = None) -> None:
        change = QueueChange(paused=paused, by="operator")
        await self.quietly((store or self.a).change_queue(queue, change, self.now))

    async def schedule(self, name: str, missed: str, store: Store | None = None) -> None:
        """Schedule a job every minute, from the next one on."""
        stored = await self.stored_schedule(name)
        every_minute = schedules.timing("* * * * *", missed=missed)
        wanted = schedules.defined(stored, name, every_minute, self.new("ticked"), self.now)
        await self.save(wanted, stored, store)

    async def save(self, wanted: Schedule | None, seen: Schedule | None, store: Store | None = None) -> None:
        if wanted is not None:
            version = None if seen is None else seen.version
            await self.quietly((store or self.a).save_schedule(wanted, version))

    async def stored_schedule(self, name: str) -> Schedule | None:
        return next((each for each in await self.a.schedules() if each.name == name), None)

    async def acknowledged_schedule(self, name: str) -> Schedule:
        if (stored := await self.stored_schedule(name)) is None:
            raise Missing(f"schedule {name} was acknowledged, and is not there")
        return stored

    async def fire(self, seen: Schedule | None, store: Store | None = None) -> None:
        """Fire, by a worker that has read the schedule now or some time ago."""
        due = None if seen is None else schedules.firing(seen, self.now)
        if due is not None:
            await self.quietly((store or self.a).fire([due], self.now))

    async def retire(self, policy: RetentionPolicy, store: Store | None = None) -> None:
        """Run one pass of retention, a few jobs at a time; the files of archived jobs count as removed."""
        store = store or self.b
        await store.cleaned(await store.with_files(1000))
        after = None
        for _ in range(1000):
            done = await self.quietly(store.retire(policy, self.now, 20, after))
            after = done.next if done else None
            if after is None:
                return

    # Workers

    async def claim(
        self, store: Store, worker: str, *job_types: str, limit: int = 10, queue: str = "default"
    ) -> list[Claim]:
        """Like a worker: where there is nothing else to do, it takes the jobs that run alone."""
        for lost in (Lost.SHARED, Lost.ALONE):
            if claims := await self._claim(store, worker, job_types, limit, queue, lost):
                return claims
        return []

    async def _claim(
        self, store: Store, worker: str, job_types: Sequence[str], limit: int, queue: str, lost: Lost
    ) -> list[Claim]:
        token = secrets.token_hex(16)
        request = ClaimRequest(
            worker_id=worker,
            worker_version="1",
            queues=(queue,),
            slots=dict.fromkeys(job_types, limit),
            limit=limit,
            lease_micros=LEASE,
            token=token,
            lost=lost,
        )
        jobs = await self.quietly(store.claim(request, self.now))
        return [Claim(store, worker, token, job) for job in jobs or ()]

    async def settle(self, claim: Claim, outcome: Outcome, *, token: str | None = None, **said: Any) -> Verdict | None:
        decided = lifecycle.decide(
            claim.job,
            outcome,
            now=self.now,
            backoff=BACKOFF,
            draw=0.5,
            token=token or claim.token,
            by=claim.worker,
            **said,
        )
        verdicts = await self.quietly(claim.store.apply([decided], self.now))
        return verdicts[0] if verdicts else None

    async def complete(self, claim: Claim, **more: Any) -> Verdict | None:
        result = msgspec.json.encode({"by": claim.worker, "attempt": claim.job.attempt}).decode()
        return await self.settle(claim, Completed(result), **more)

    async def fail(self, claim: Claim) -> Verdict | None:
        return await self.settle(claim, Raised(self.error(claim)))

    def error(self, claim: Claim) -> ErrorEntry:
        return ErrorEntry(claim.job.attempt, self.now, "ValueError", "it went wrong")

    async def extend(self, claim: Claim) -> None:
        await self.quietly(claim.store.extend([claim.hold], self.now + LEASE, self.now))

    async def note(self, claim: Claim) -> None:
        await self.quietly(claim.store.note([Note(claim.hold, progress=0.5)], self.now))

    # Maintenance

    async def promote(self, store: Store | None = None) -> None:
        await self.quietly((store or self.b).promote(self.now, 100))

    async def expired(self, store: Store | None = None) -> list[ExpiredClaim]:
        return list(await self.quietly((store or self.b).expired(self.now, 100)) or ())

    async def rescue(self, claims: Iterable[ExpiredClaim], store: Store | None = None) -> None:
        decided = [
            lifecycle.rescue(claim, lease=claim.lease_expires_at, now=self.now, reason="lease ran out", by="sweeper")
            for claim in claims
        ]
        if decided:
            await self.quietly((store or self.b).apply(decided, self.now))

    async def sweep(self) -> None:
        await self.rescue(await self.expired())
        await self.promote()
        await self.quietly(self.b.release(self.now, 100))

    # The end

    async def drain(self, rounds: int = 60) -> None:
        """Run the remaining jobs with a healthy worker."""
        records = await dump(self.a)
        types = sorted({record.job_type for record in records})
        queues = sorted({record.queue for record in records})
        for queue in queues:
            await self.pause(queue, paused=False)
        for _ in range(rounds):
            counts = await self.a.counts()
            if not any(counts[status] for status in lifecycle.ACTIVE):
                return
            self.pass_time()
            await self.sweep()
            for queue in queues:
                for claim in await self.claim(self.b, "worker-last", *types, limit=100, queue=queue):
                    await self.complete(claim)

    async def evidence(self) -> Evidence:
        records = await dump(self.a)
        return Evidence(
            records,
            read_operations(log.path for log in self.logs),
            counts=await self.a.counts(),
            edges=await self.place.edges(),
            archive=await self.place.archive(),
            schedules=await self.a.schedules(),
            counters=await self.a.counters(-(2**62), 2**62),
        )
