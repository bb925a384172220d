"""Who may be taken for dead: only a process that is gone, never one that has not been heard of for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from backstay import Status
from backstay.clock import MICROS
from backstay.core import workers
from backstay.core.records import ClaimRequest, NewJob, WorkerRow
from backstay.engines.sqlite.store import SQLiteStore
from backstay.worker import maintenance
from backstay.worker.maintenance import Sweeper
from tests.campaigns.fleet import opened
from tests.campaigns.stage import START
from tests.support.rows_read import RowsRead

SHORT, LONG = 1, 600  # leases, in seconds


class Stopped:
    """A clock that stands still."""

    def now(self) -> int:
        return START + 2 * workers.FORGOTTEN_AFTER_LEASES * SHORT * MICROS

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
        await Sweeper(store, Stopped(), worker_id="sweeper", lease_seconds=SHORT, sweep_seconds=1).sweep_once()
        (record,) = await store.get(["a"])
        assert await store.workers() == [], "its row is forgotten either way"
    assert record is not None
    assert record.status is (Status.PROCESSING if lives else Status.RETRYING)


async def test_a_worker_is_forgotten_after_ten_leases_of_its_own_whatever_the_lease_of_the_sweeper(
    tmp_path: Path,
) -> None:
    async with opened(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        row = await _a_worker(lives=True)
        await store.beat(row)
        await store.beat(msgspec.structs.replace(row, worker_id="patient", lease_micros=LONG * MICROS))
        for lease in (SHORT, LONG):
            await Sweeper(store, Stopped(), worker_id="sweeper", lease_seconds=lease, sweep_seconds=1).sweep_once()
            assert [worker.worker_id for worker in await store.workers()] == ["patient"]


async def test_of_many_workers_each_looks_at_some_and_all_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And dead ones of this host are found by everyone on it, at once."""
    monkeypatch.setattr(maintenance, "LOOKED_AT", 4)
    dead_key = await _key_of_a_dead_process()
    async with opened(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        row = await _a_worker(lives=True)
        alive = msgspec.structs.replace(row, heartbeat_at=Stopped().now())
        here = workers.host_name()
        for number in range(6):
            await store.beat(msgspec.structs.replace(alive, worker_id=f"a:{number}"))
            await store.beat(msgspec.structs.replace(alive, worker_id=f"{here}:{number}"))
            await store.beat(msgspec.structs.replace(alive, worker_id=f"~{number}"))
        for name in ("a:silent", "~silent"):
            await store.beat(msgspec.structs.replace(row, worker_id=name))
        await store.beat(msgspec.structs.replace(alive, worker_id=f"{here}:dead", process_key=dead_key))
        read = RowsRead(store)
        clock = Later()
        sweeper = Sweeper(read, clock, worker_id=f"{here}:3", lease_seconds=SHORT, sweep_seconds=1)  # type: ignore[arg-type]

        await sweeper.sweep_once()

        left = {worker.worker_id for worker in await store.workers()}
        assert f"{here}:dead" not in left and {"a:silent", "~silent"} <= left
        assert read.workers_read <= 4 + 7
        await sweeper.sweep_once()
        assert read.workers_read <= 4 + 7, "the next look is later"
        for _ in range(9):
            clock.seconds += 60
            before = read.workers_read
            await sweeper.sweep_once()
            assert read.workers_read - before <= 4 + 6
        assert {"a:silent", "~silent"}.isdisjoint(worker.worker_id for worker in await store.workers())


class Later(Stopped):
    """Its wall clock stands still, so that no heartbeat is late."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


async def _a_worker(lives: bool) -> WorkerRow:
    return WorkerRow(
        worker_id="other",
        host="here",
        pid=1,
        process_key=workers.own() if lives else await _key_of_a_dead_process(),
        version="1",
        queues=("default",),
        job_types=("work",),
        concurrency=1,
        started_at=START,
        heartbeat_at=START,
        lease_micros=SHORT * MICROS,
    )


async def _key_of_a_dead_process() -> str:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    machine, _, _ = workers.own().rpartition(":")[0].rpartition(":")
    return f"{machine}:{process.pid}:12345"
