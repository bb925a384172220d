"""Jobs, claims and settlements with sensible values, so that a test names only what it is about."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from holdfast.clock import MICROS, Instant, SystemClock
from holdfast.ids import new_id
from holdfast.lifecycle import (
    Completed,
    ErrorEntry,
    Event,
    GivenBack,
    Outcome,
    Raised,
    Snoozed,
    Status,
    Transition,
    cancel,
    decide,
    manual_retry,
)
from holdfast.retry import Backoff
from holdfast.store.port import Store
from holdfast.store.types import ClaimedJob, ClaimRequest, Hold, JobRecord, NewJob, Verdict, WorkerRow

# The real time, once: an engine that takes leases from its server's clock then agrees with us well enough.
NOW: Instant = SystemClock().now()
SECOND = MICROS
HOUR = 3600 * SECOND
BACKOFF = Backoff(60, 2, 3600, 0)

_SPECIAL = {"own_id", "dedup_key", "depends_on", "reuse_since", "concurrency_key", "parent_job_id"}


def new_job(**changes: Any) -> NewJob:
    fields: dict[str, Any] = {
        "job_id": new_id(NOW),
        "job_type": "work",
        "queue": "default",
        "priority": 50,
        "payload": "{}",
        "scheduled_for": NOW,
        "max_attempts": 3,
        "timeout_micros": HOUR,
        "special": not _SPECIAL.isdisjoint(changes),
    }
    if "concurrency_key" in changes:
        fields["concurrency_limit"] = 1
    return NewJob(**(fields | changes))


async def submit(store: Store, *, now: Instant = NOW, **changes: Any) -> str:
    """Insert one job; its id."""
    [answer] = await store.insert([new_job(**changes)], now)
    return answer.job_id


async def submit_many(store: Store, count: int, *, now: Instant = NOW, **changes: Any) -> list[str]:
    answers = await store.insert([new_job(**changes) for _ in range(count)], now)
    return [answer.job_id for answer in answers]


def request(**changes: Any) -> ClaimRequest:
    fields: dict[str, Any] = {
        "worker_id": "worker-1",
        "worker_version": "1",
        "queues": ("default",),
        "slots": {"work": 100},
        "limit": 100,
        "lease_micros": HOUR,
        "token": secrets.token_hex(16),
    }
    return ClaimRequest(**(fields | changes))


async def claim_ids(store: Store, *, now: Instant = NOW, **changes: Any) -> list[str]:
    return [job.job_id for job in await store.claim(request(**changes), now)]


class Claim(msgspec.Struct, frozen=True):
    """A claimed job together with the token that proves it."""

    job: ClaimedJob
    token: str

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def hold(self) -> Hold:
        return Hold(self.job.job_id, self.job.attempt, self.token)

    def ends(self, outcome: Outcome, *, now: Instant = NOW, by: str | None = "worker-1", **extras: Any) -> Transition:
        return decide(self.job, outcome, now=now, backoff=BACKOFF, draw=0.5, token=self.token, by=by, **extras)

    def completes(self, result: str | None = "1", **extras: Any) -> Transition:
        return self.ends(Completed(result), **extras)

    def fails(self, error_type: str = "ValueError", message: str = "no", *, now: Instant = NOW) -> Transition:
        return self.ends(Raised(an_error(error_type, message, self.job.attempt, now)), now=now)

    def snoozes(self, for_micros: int = HOUR, *, now: Instant = NOW) -> Transition:
        return self.ends(Snoozed(for_micros), now=now)

    def gives_back(self, *, now: Instant = NOW) -> Transition:
        return self.ends(GivenBack("shutting down"), now=now)


def an_error(error_type: str = "ValueError", message: str = "no", attempt: int = 1, at: Instant = NOW) -> ErrorEntry:
    return ErrorEntry(attempt=attempt, at=at, type=error_type, message=message, traceback="Traceback …")


async def claim_one(store: Store, job_id: str | None = None, *, now: Instant = NOW, **changes: Any) -> Claim:
    """Claim the head of the queue, which must be `job_id` where one is given."""
    asked = request(limit=1, **changes)
    [job] = await store.claim(asked, now)
    assert job_id is None or job.job_id == job_id
    return Claim(job, asked.token)


async def running(store: Store, *, lease_micros: int = HOUR, now: Instant = NOW, **changes: Any) -> Claim:
    """Submit a job and claim it. Its type is its own, so that no other job is in the way."""
    job_type = str(changes.pop("job_type", f"type-{secrets.token_hex(4)}"))
    job_id = await submit(store, job_type=job_type, now=now, **changes)
    queue = str(changes.get("queue", "default"))
    return await claim_one(store, job_id, slots={job_type: 1}, queues=(queue,), lease_micros=lease_micros, now=now)


async def claim_again(store: Store, claim: Claim, *, now: Instant = NOW, **changes: Any) -> Claim:
    """Claim the same job once more, now that it is pending again."""
    changes.setdefault("slots", {claim.job.job_type: 1})
    return await claim_one(store, claim.job_id, now=now, **changes)


async def settle(store: Store, *transitions: Transition, now: Instant = NOW) -> None:
    assert await store.apply(transitions, now) == [Verdict.APPLIED] * len(transitions)


async def completed(store: Store, result: str = "1", **changes: Any) -> str:
    claim = await running(store, **changes)
    await settle(store, claim.completes(result))
    return claim.job_id


async def failed(store: Store, error_type: str = "ValueError", message: str = "no", **changes: Any) -> str:
    claim = await running(store, max_attempts=1, **changes)
    await settle(store, claim.fails(error_type, message))
    return claim.job_id


async def cancelled(store: Store, **changes: Any) -> str:
    job_id = await submit(store, **changes)
    await settle(store, cancel(await record(store, job_id), by=None, reason=None))
    return job_id


async def record(store: Store, job_id: str) -> JobRecord:
    [found] = await store.get([job_id])
    assert found is not None
    return found


async def status(store: Store, job_id: str) -> Status:
    return (await record(store, job_id)).status


async def in_state(store: Store, state: Status, **changes: Any) -> JobRecord:
    """A job that came into `state` the way jobs do."""
    match state:
        case Status.WAITING:
            job_id = await submit(store, depends_on=(await submit(store, job_type="parent"),), **changes)
        case Status.SCHEDULED:
            job_id = await submit(store, scheduled_for=NOW + HOUR, **changes)
        case Status.PENDING:
            job_id = await submit(store, **changes)
        case Status.PROCESSING:
            job_id = (await running(store, **changes)).job_id
        case Status.RETRYING:
            claim = await running(store, **changes)
            await settle(store, claim.fails())
            job_id = claim.job_id
        case Status.COMPLETED:
            job_id = await completed(store, **changes)
        case Status.FAILED:
            job_id = await failed(store, **changes)
        case Status.CANCELLED:
            job_id = await cancelled(store, **changes)
    found = await record(store, job_id)
    assert found.status is state
    return found


async def retry_by_hand(store: Store, job_id: str, *, now: Instant = NOW) -> None:
    await settle(store, manual_retry(await record(store, job_id), now=now, by="me", reason=None), now=now)


def transition(job: JobRecord, event: Event, target: Status, **changes: Any) -> Transition:
    """A bare transition from where the job stands, guarded by its attempt."""
    fields: dict[str, Any] = {
        "job_id": job.job_id,
        "event": event,
        "source": job.status,
        "target": target,
        "attempt": job.attempt,
    }
    return Transition(**(fields | changes))


def a_worker(worker_id: str = "worker-1", **changes: Any) -> WorkerRow:
    fields: dict[str, Any] = {
        "worker_id": worker_id,
        "host": "here",
        "pid": 4711,
        "process_key": "4711-1",
        "version": "1",
        "queues": ("default",),
        "job_types": ("work",),
        "concurrency": 10,
        "started_at": NOW,
        "heartbeat_at": NOW,
    }
    return WorkerRow(**(fields | changes))
