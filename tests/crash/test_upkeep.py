"""Who may be taken for dead: only a process that is gone, never one that has not been heard of for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Status
from holdfast.clock import MICROS
from holdfast.store.types import ClaimRequest, NewJob, WorkerRow
from holdfast.stores.sqlite import SQLiteStore
from holdfast.worker import process_key
from holdfast.worker.upkeep import FORGET_AFTER_LEASES, Upkeep
from tests.crash.fleet import opened
from tests.crash.stage import START

SHORT, LONG = 1, 600  # leases, in seconds


class Stopped:
    """A clock that stands still."""

    def now(self) -> int:
        return START + 2 * FORGET_AFTER_LEASES * SHORT * MICROS

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("lives", [True, False])
async def test_a_silent_worker_with_a_longer_lease_keeps_its_claims_while_it_lives(lives: bool, tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        assert isinstance(store, SQLiteStore)
        await store.beat(await _a_worker(lives))
        await store.insert([NewJob("a", "work", "default", 50, "{}", START, 5, MICROS)], START)
        request = ClaimRequest("other", "1", ("default",), {"work": 1}, 1, LONG * MICROS, "token")
        await store.claim(request, START)
        await Upkeep(store, Stopped(), worker_id="sweeper", lease_seconds=SHORT, sweep_seconds=1).sweep_once()
        (record,) = await store.get(["a"])
    assert record is not None
    assert record.status is (Status.PROCESSING if lives else Status.RETRYING)


async def _a_worker(lives: bool) -> WorkerRow:
    return WorkerRow(
        worker_id="other",
        host="here",
        pid=1,
        process_key=process_key.own() if lives else await _key_of_a_dead_process(),
        version="1",
        queues=("default",),
        job_types=("work",),
        concurrency=1,
        started_at=START,
        heartbeat_at=START,
    )


async def _key_of_a_dead_process() -> str:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    machine, _, _ = process_key.own().rpartition(":")[0].rpartition(":")
    return f"{machine}:{process.pid}:12345"
