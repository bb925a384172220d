"""The summary of all workers: right for a few at once, and for many without reading them for every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay
from backstay.clock import MICROS
from backstay.core.records import BlockedLoop, WorkerRow
from backstay.server import worker_summary
from backstay.server.worker_summary import REST, WorkerSummaries
from backstay.testing import ManualClock
from tests.support.rows_read import RowsRead

LEASE = 60


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db", clock=ManualClock(), lease=LEASE) as app:
        yield app


async def beat(app: Backstay, worker_id: str, **fields: Any) -> None:
    now = app.clock.now()
    row = {
        "worker_id": worker_id, "host": "h", "pid": 1, "process_key": "", "version": "1", "queues": ("mail",),
        "job_types": ("letter",), "concurrency": 4, "started_at": now, "heartbeat_at": now,
    }  # fmt: skip
    await app.store.beat(WorkerRow(**(row | fields)))


async def test_it_counts_the_workers_by_state_and_by_queue_and_knows_who_takes_what(app: Backstay) -> None:
    now = app.clock.now()
    await beat(app, "silent", heartbeat_at=now - 2 * LEASE * MICROS)
    await beat(app, "idle", queues=("mail", "films"), job_types=("film", "letter"))
    await beat(app, "busy", running=("a-job",))
    await beat(app, "blocked", blocked=BlockedLoop(now), queues=("films",), job_types=("film",))
    await beat(app, "stopping", stopping=True, job_types=("last",))

    found = await WorkerSummaries(app).latest()

    assert found.states(now) == {"silent": 1, "idle": 1, "working": 1, "blocked": 1, "stopping": 1}
    assert found.serving(now) == {"mail": 3, "films": 2}
    assert found.handled() == {"film", "letter"}
    assert found.ids(now) == ["blocked", "busy", "idle", "stopping", "silent"]
    assert found.ids(now, ["working", "silent"]) == ["busy", "silent"]
    assert sorted(found.able("mail", "letter", now, 9)) == ["busy", "idle"]
    assert len(found.able("mail", "letter", now, 1)) == 1
    assert found.able("films", "film", now, 9) == ["idle"]
    seen = found.seen_by(lambda queue: queue == "films")
    assert seen.ids(now) == ["blocked", "idle"]


async def test_a_few_workers_are_read_again_for_every_request(app: Backstay) -> None:
    summaries = WorkerSummaries(app)
    for number in range(1, 4):
        await beat(app, f"w-{number}")
        assert len((await summaries.latest()).ids(app.clock.now())) == number


async def test_many_are_read_in_parts_and_rarely_and_what_was_read_serves_all_requests_until_then(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_summary, "FEW", 3)
    monkeypatch.setattr(worker_summary, "PAGE", 2)
    for number in range(5):
        await beat(app, f"w-{number}")
    summaries, store = WorkerSummaries(app), RowsRead.of(app)
    clock, read = app.clock, store.workers
    assert isinstance(clock, ManualClock)

    async def slowly(*given: Any, **named: Any) -> list[Any]:
        clock.advance(1 if named["limit"] == 2 else 0)
        return await read(*given, **named)

    monkeypatch.setattr(store, "workers", slowly)
    first = await summaries.latest()
    assert first.ids(clock.now()) == [f"w-{number}" for number in range(5)]
    await beat(app, "w-5")
    store.workers_read = 0
    assert await summaries.latest() is first
    assert store.workers_read <= 4, "it only looks whether they are still many"
    clock.advance(3 * REST)  # reading took three seconds
    assert await summaries.latest() is first, "nobody waits three seconds"
    assert summaries._reading is not None
    await summaries._reading
    assert len((await summaries.latest()).ids(clock.now())) == 6
