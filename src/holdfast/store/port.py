"""The port: what a job queue asks of an engine, in verbs on plain data.

Rules that hold for every verb:

* Every write takes many and answers each, in order. It is bounded by its caller and safe to repeat.
* `now` is an argument. An engine whose server has a better clock for leases may use that instead.
* A verb raises only typed errors of holdfast.errors. An acknowledged write is durable.
* The history event of a change commits with the change.

`holdfast.store.conformance` turns these sentences into tests; an engine is done when it passes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.clock import Instant
from holdfast.lifecycle import Transition
from holdfast.store.types import (
    ClaimedJob,
    ClaimRequest,
    DeadGroup,
    ExpiredClaim,
    Hold,
    Inserted,
    JobRecord,
    JobType,
    NewJob,
    Note,
    Page,
    Promoted,
    Query,
    Signal,
    Verdict,
    WorkerRow,
)

Listener = Callable[[Signal], None]


class Store(Protocol):
    # Opening

    async def open(self) -> None:
        """Connect, and make the schema where there is none. Refuse what cannot keep the promises."""
        ...

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Bring the schema to this release; the names of what was applied."""
        ...

    @property
    def location(self) -> str:
        """Where this store is, for people: no secrets in it."""
        ...

    @property
    def files_root(self) -> str | None:
        """A local folder for logs and artifacts that belongs to this store, where it has one."""
        ...

    # The hot path

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        """Store all of them or, on an error, none."""
        ...

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        """Take pending jobs: by priority (highest first), then due time, then id; never more than asked, in total
        and per type; never one whose concurrency key is full. Attempt and version grow by one."""
        ...

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        """Apply each transition whose guards hold. A job that ends releases those that depend on it in the same
        commit, or leaves a mark from which `release` goes on. Where an effect of a transition fails, EffectFailed
        names its job and nothing of the call is applied."""
        ...

    async def extend(self, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
        """Prolong the leases of claims that still hold."""
        ...

    async def note(self, notes: Sequence[Note], now: Instant) -> list[Verdict]:
        """Keep progress, stage, logs and metrics of running attempts. No version, no history."""
        ...

    # Upkeep: idempotent, leaderless, a bounded batch per call

    async def promote(self, now: Instant, limit: int) -> Promoted:
        """Make due scheduled and retrying jobs pending."""
        ...

    async def expired(self, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
        """Claims whose lease ran out, or whose worker is known to be dead. Only reads."""
        ...

    async def release(self, now: Instant, limit: int) -> int:
        """Go on releasing dependents of ended jobs, and unpark jobs whose key has room; how many changed."""
        ...

    # Workers and types

    async def beat(self, worker: WorkerRow) -> None:
        """Register a worker, or say that it lives and what it runs."""
        ...

    async def forget(self, worker_ids: Sequence[str]) -> None: ...

    async def workers(self) -> list[WorkerRow]: ...

    async def announce(self, types: Sequence[JobType]) -> None: ...

    async def job_types(self) -> list[JobType]: ...

    # Steps: the recorded answers of ctx.once

    async def step(self, job_id: str, name: str) -> str | None: ...

    async def record_step(self, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
        """Keep a step's answer while the claim holds; the first answer stays."""
        ...

    # Reading

    async def get(self, job_ids: Sequence[str]) -> list[JobRecord | None]: ...

    async def find(self, query: Query) -> Page: ...

    async def counts(self) -> dict[str, int]:
        """Jobs per state."""
        ...

    async def dead(self, limit: int) -> list[DeadGroup]:
        """Failed jobs, grouped by type and error, largest group first."""
        ...

    # Hints

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        """Call `listener` on the event loop when something may have changed, in this process or another;
        the answer ends it."""
        ...
