"""What a handler far away is told of its job: all that one next to the store is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context
from backstay.client import Client, RemoteContext, RemoteWorker
from backstay.clock import Instant, to_datetime
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import Completed, Outcome, WaitingForChildren, decide, rescue
from backstay.core.records import ClaimedJob, ClaimRequest, NewJob, Verdict
from backstay.job import Job
from backstay.observers import Attempted, Ending, Observer
from backstay.testing.conformance.factories import new_job
from tests.server.far import listening

TICK: Instant = 1_763_000_000_000_000
# How a field of a claim is named and written over HTTP, where that is not as it is in the store.
WRITTEN: dict[str, Callable[[Any], Any]] = {
    "payload": lambda job: job.payload,
    "timeout_micros": lambda job: round(job.timeout_seconds * 1_000_000),
    "children": lambda job: job.child_count,
    "logs": lambda job: job.logs["entries"] or None,
    "artifacts": lambda job: job.artifacts or None,
}


class Ends(Observer):
    def __init__(self) -> None:
        self.seen: list[Attempted] = []

    def ended(self, job: Attempted, ending: Ending) -> None:
        self.seen.append(job)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
async def app(tmp_path: Path, ends: Ends) -> AsyncIterator[Backstay]:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db", observers=[ends]) as app:
        yield app


async def a_job_with_a_past(app: Backstay) -> str:
    """One that a schedule made, that has waited for a child, and whose last worker was lost: no field is at its
    default."""
    store, now = app.store, app.clock.now()
    job = new_job(
        job_type="merge",
        scheduled_for=now,
        payload='{"pages":2}',
        schedule="nightly",
        tick_at=TICK,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        subject="book:7",
        tags='["night"]',
        created_by="web",
        job_stage="merge",
        content_hash="abc",
        dedup_key="book:7:night",
        payload_version=2,
    )
    child = new_job(job_type="page", scheduled_for=now, parent_job_id=job.job_id)
    await store.insert([job], now)
    waits = WaitingForChildren(Awaits(TriggerRule.ALL_DONE, "fail"), "bind")
    await settled(app, await claimed(app, "merge"), waits, children=(child,))
    await settled(app, await claimed(app, "page"), Completed("1"))
    await store.release(app.clock.now(), 100)
    await claimed(app, "merge", lease_micros=1)
    now = app.clock.now() + 2
    [lost] = await store.expired(now, 10)
    decided = rescue(lost, lease=lost.lease_expires_at, now=now, reason="its worker died", by=None)
    assert await store.apply([decided], now) == [Verdict.APPLIED]
    await store.promote(now, 10)
    return job.job_id


async def claimed(app: Backstay, job_type: str, lease_micros: int = 60_000_000) -> ClaimedJob:
    request = ClaimRequest("near", "1", ("default",), {job_type: 1}, 1, lease_micros, f"token of {job_type}")
    [job] = await app.store.claim(request, app.clock.now())
    return job


async def settled(app: Backstay, job: ClaimedJob, outcome: Outcome, children: tuple[NewJob, ...] = ()) -> None:
    now, token = app.clock.now(), f"token of {job.job_type}"
    decided = decide(job, outcome, now=now, backoff=Backoff(), draw=0.5, token=token, by="near", children=children)
    assert await app.store.apply([decided], now) == [Verdict.APPLIED]


async def run_far_away(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> tuple[RemoteContext, ClaimedJob]:
    """What the handler of a remote worker was given, and what the store answered its claim with."""
    answers: list[ClaimedJob] = []
    given: list[RemoteContext] = []
    claim = app.store.claim

    async def overheard(request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        jobs = await claim(request, now)
        answers.extend(jobs)
        return jobs

    monkeypatch.setattr(app.store, "claim", overheard)
    async with listening(app) as url, Client(url) as client:
        worker = RemoteWorker(client, worker_id="far-1")
        done = asyncio.Event()

        @worker.job("merge", version=2)
        async def merge(payload: dict[str, int], ctx: RemoteContext) -> None:
            given.append(ctx)
            done.set()

        async with worker, asyncio.timeout(20):
            await done.wait()
    return given[0], answers[0]


def as_stored(job: Any, name: str) -> Any:
    value = WRITTEN[name](job) if name in WRITTEN else getattr(job, name)
    return round(value.timestamp() * 1_000_000) if isinstance(value, datetime) else value


async def test_a_remote_handler_is_told_every_field_that_a_worker_next_to_the_store_is_told(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_job_with_a_past(app)
    ctx, near = await run_far_away(app, monkeypatch)

    told = {name: as_stored(ctx.job, name) for name in ClaimedJob.__struct_fields__}
    expected = {name: getattr(near, name) for name in ClaimedJob.__struct_fields__}
    assert told == expected | {"payload": {"pages": 2}, "tags": ["night"]}
    assert (near.schedule, near.tick_at, near.join, near.waits) == ("nightly", TICK, "bind", 1)
    assert near.lost_at is not None
    assert ctx.job.lost_at == to_datetime(near.lost_at)


async def test_the_server_settles_a_remote_attempt_as_the_job_that_was_claimed(
    app: Backstay, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_job_with_a_past(app)
    _, near = await run_far_away(app, monkeypatch)

    [seen] = ends.seen
    told = ClaimedJob.__struct_fields__
    assert {name: getattr(seen, name) for name in told} == {name: getattr(near, name) for name in told}


async def test_the_context_of_a_remote_handler_says_what_that_of_a_near_one_says(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await a_job_with_a_past(app)
    far, _ = await run_far_away(app, monkeypatch)
    found: list[tuple[str, int, str, Job]] = []

    @app.job("merge", version=2)
    async def merge(payload: dict[str, int], ctx: Context) -> None:
        found.append((ctx.job_id, ctx.attempt, ctx.idempotency_key, ctx.job))

    await app.retry(job_id)
    async with app.worker(poll_interval=0.05):
        await app.result(job_id, timeout=20)
    [(again, attempt, key, job)] = found
    assert (far.job_id, far.attempt, far.idempotency_key) == (again, attempt - 1, key)
    changed = {
        "attempt",
        "version",
        "failures",
        "waits",
        "lease_expires_at",
        "started_at",
        "scheduled_for",
        "worker_id",
    }
    alike = [name for name in ClaimedJob.__struct_fields__ if name not in changed and hasattr(job, name)]
    assert {name: as_stored(far.job, name) for name in alike} == {name: as_stored(job, name) for name in alike}
    assert {"schedule", "tick_at", "subject", "tags", "created_by", "dedup_key"} <= set(alike)
