"""Factories of jobs, claims and settlements with sensible values, so that a test names only what it is about."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from backstay.backoff import Backoff
from backstay.clock import MICROS, Instant, SystemClock
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    Snoozed,
    WaitingForChildren,
    cancel,
    decide,
    manual_retry,
)
from backstay.core.port import Store
from backstay.core.records import (
    NEW_DEFAULTS,
    AnyJob,
    ClaimedJob,
    ClaimRequest,
    Declaration,
    ErrorEntry,
    Firing,
    Hold,
    JobRecord,
    Keep,
    NewJob,
    Rate,
    RetentionPolicy,
    Schedule,
    Transition,
    Verdict,
    WorkerRow,
)
from backstay.core.states import Event, Status
from backstay.ids import new_id

# The real time, read once: close enough for an engine that takes leases from its server's clock.
NOW: Instant = SystemClock().now()
SECOND = MICROS
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
DAY = 24 * HOUR
BACKOFF = Backoff(60, 2, 3600, 0)

_SPECIAL = {
    "own_id",
    "dedup_key",
    "depends_on",
    "reuse_since",
    "concurrency_key",
    "parent_job_id",
    "rate_key",
    "rate",
    "rate_cost",
    "schedule",
    "tick_at",
    "expires_at",
    "dedup_replaces",
}


# A value for each field of a new job that is stored and has a default. A new field is added here: `given` refuses one
# that has its default, because an engine that drops the field would pass the test.
PLAIN_VALUES: dict[str, Any] = {
    "payload": '{"text": "snö ☃ 🎿", "n": 1.50}',
    "priority": 99,
    "subject": "song-1",
    "tags": '["a","b"]',
    "created_by": "me",
    "job_stage": "stems",
    "content_hash": "abc",
    "payload_version": 3,
    "fairness_key": "tenant-1",
    "fairness_weight": 5,
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}
SPECIAL_VALUES: dict[str, Any] = PLAIN_VALUES | {
    "concurrency_key": "gpu",
    "concurrency_limit": 7,
    "on_dependency_failure": "fail",
    "trigger_rule": "all_done",
    "dedup_key": "k",
    "rate_key": "api",
    "rate": Rate(1, HOUR),
    "rate_cost": 3,
    "schedule": "nightly",
    "tick_at": NOW - HOUR,
    "expires_at": NOW + DAY,
}


def given(job: AnyJob, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields of a submitted job, none of which may have its default."""
    found = told(job, names)
    missing = [name for name, value in found.items() if name in NEW_DEFAULTS and value == NEW_DEFAULTS[name]]
    assert missing == [], f"{missing} have their defaults: give them values in PLAIN_VALUES or SPECIAL_VALUES"
    return found


def told(job: AnyJob, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields of a job that an engine answered with."""
    return {name: getattr(job, name) for name in names}


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
    if changes.get("rate_key") is not None:
        fields["rate"] = Rate(10, HOUR)
    return NewJob(**(fields | changes))


async def submit(store: Store, *, now: Instant = NOW, **changes: Any) -> str:
    """Insert one job; return its id."""
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

    def waits(
        self,
        rule: TriggerRule = TriggerRule.ALL_DONE,
        on_failure: str = "fail",
        *,
        join: str | None = None,
        now: Instant = NOW,
        **extras: Any,
    ) -> Transition:
        """Return the settlement of a parent that waits for its children."""
        return self.ends(WaitingForChildren(Awaits(rule, on_failure), join), now=now, **extras)

    def ends_as(self, outcome: Status, *, now: Instant = NOW) -> Transition:
        """Return a final failure, regardless of the attempts left."""
        match outcome:
            case Status.FAILED:
                return self.ends(Discarded(an_error(at=now)), now=now)
            case Status.CANCELLED:
                return self.ends(Cancelled("no need"), now=now)
            case _:
                return self.completes(now=now)


def an_error(error_type: str = "ValueError", message: str = "no", attempt: int = 1, at: Instant = NOW) -> ErrorEntry:
    return ErrorEntry(attempt=attempt, at=at, type=error_type, message=message, traceback="Traceback …")


async def claim_one(store: Store, job_id: str | None = None, *, now: Instant = NOW, **changes: Any) -> Claim:
    """Claim the head of the queue, which must be `job_id` if given."""
    asked = request(limit=1, **changes)
    [job] = await store.claim(asked, now)
    assert job_id is None or job.job_id == job_id
    return Claim(job, asked.token)


async def running(store: Store, *, lease_micros: int = HOUR, now: Instant = NOW, **changes: Any) -> Claim:
    """Submit a job and claim it. It has a type of its own, so that no other job is claimed first."""
    job_type = str(changes.pop("job_type", f"type-{secrets.token_hex(4)}"))
    job_id = await submit(store, job_type=job_type, now=now, **changes)
    queue = str(changes.get("queue", "default"))
    return await claim_one(store, job_id, slots={job_type: 1}, queues=(queue,), lease_micros=lease_micros, now=now)


async def claim_again(store: Store, claim: Claim, *, now: Instant = NOW, **changes: Any) -> Claim:
    """Claim the same job again, now that it is pending again."""
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


async def ended(store: Store, outcome: Status, **changes: Any) -> str:
    """Submit a job and end it in this state; return its id."""
    claim = await running(store, **changes)
    await settle(store, claim.ends_as(outcome))
    return claim.job_id


async def in_state(store: Store, state: Status, **changes: Any) -> JobRecord:
    """Submit a job and bring it into `state` by regular transitions."""
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


async def retry_by_hand(store: Store, job_id: str, *, now: Instant = NOW, **options: Any) -> None:
    await settle(store, manual_retry(await record(store, job_id), now=now, by="me", reason=None, **options), now=now)


async def quiet(store: Store, *, now: Instant = NOW) -> None:
    """Call `release` until there is nothing left to release."""
    for _ in range(1_000):
        if not await store.release(now, 100):
            return
    raise AssertionError("release does not come to an end")


def transition(job: JobRecord, event: Event, target: Status, **changes: Any) -> Transition:
    """Return a minimal transition from the job's current state, guarded by its attempt."""
    fields: dict[str, Any] = {
        "job_id": job.job_id,
        "event": event,
        "source": job.status,
        "target": target,
        "attempt": job.attempt,
        "kind": (job.job_type, job.queue, job.priority),
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


def a_schedule(name: str = "nightly", **changes: Any) -> Schedule:
    """Return a schedule that ticks every hour, first in an hour."""
    fields: dict[str, Any] = {
        "name": name,
        "cron": "0 * * * *",
        "timezone": "UTC",
        "missed": "one",
        "job_type": "work",
        "template": "{}",
        "created_at": NOW,
        "updated_at": NOW,
        "next_at": NOW + HOUR,
    }
    return Schedule(**(fields | changes))


def a_declaration(**changes: Any) -> Declaration:
    """Return what the code of an app declares: two schedules."""
    fields: dict[str, Any] = {
        "origin": "reports:app",
        "digest": "d1",
        "since": NOW,
        "names": ("nightly", "weekly"),
        "job_types": ("report",),
        "superseded": ("d0",),
    }
    return Declaration(**(fields | changes))


def a_tick(schedule: Schedule, tick: Instant, **changes: Any) -> NewJob:
    """Return the job of a tick. Its id is derived from schedule and tick, so that every worker creates the same one."""
    job_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{schedule.name} {tick}"))
    return new_job(job_id=job_id, own_id=True, schedule=schedule.name, tick_at=tick, **changes)


def a_firing(schedule: Schedule, *ticks: Instant, **changes: Any) -> Firing:
    """Return a firing of the given ticks, or of the one that is due; the schedule continues an hour after the last."""
    ticks = ticks or (schedule.next_at,)
    fields: dict[str, Any] = {
        "name": schedule.name,
        "version": schedule.version,
        "due_at": schedule.next_at,
        "next_at": ticks[-1] + HOUR,
        "jobs": tuple(a_tick(schedule, tick) for tick in ticks),
    }
    return Firing(**(fields | changes))


def a_policy(
    completed: int | None = DAY,
    failed: int | None = DAY,
    cancelled: int | None = DAY,
    *,
    by_type: dict[str, Keep] | None = None,
    archive: int | None = None,
    job_types: tuple[str, ...] = (),
) -> RetentionPolicy:
    return RetentionPolicy(Keep(completed, failed, cancelled), by_type or {}, archive, job_types)


async def retire(store: Store, policy: RetentionPolicy, *, now: Instant, limit: int = 100) -> int:
    """Run a full pass of retention; return how many jobs it archived."""
    archived, after = 0, None
    for _ in range(1_000):
        done = await store.retire(policy, now, limit, after)
        archived, after = archived + done.archived, done.next
        if after is None:
            return archived
    raise AssertionError("retention does not come to an end")


async def remove_files(store: Store) -> None:
    """Mark the files of all archived jobs as removed: archive rows are deleted only after that."""
    while job_ids := await store.with_files(100):
        await store.cleaned(job_ids)


async def archived(store: Store, state: Status = Status.COMPLETED, **changes: Any) -> JobRecord:
    """End a job in `state` and archive it a second later; return its record from before."""
    job = await in_state(store, state, **changes)
    only = a_policy(0, 0, 0, job_types=(job.job_type,))
    assert await retire(store, only, now=NOW + SECOND) >= 1
    await remove_files(store)
    return job
