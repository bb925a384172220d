"""Remote workers that are killed in the middle of it: nothing is lost, and nothing completes twice."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

import backstay.app
from backstay import Backoff, Backstay, Status
from backstay.core.states import Event
from backstay.testing.history import Evidence
from backstay.testing.history.checker import check, unfinished
from tests.campaigns.crash_app import recording
from tests.campaigns.fleet import calls_in, dump
from tests.server.far import listening
from tests.support.eventually import eventually

PROCESS = Path(__file__).with_name("far_process.py")
WORKERS, KILLS, EACH = 2, 2, 15


@pytest.mark.timeout(60)
async def test_killed_remote_workers_lose_nothing_and_complete_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (calls := tmp_path / "calls").mkdir()
    monkeypatch.setattr(backstay.app, "open_url", recording(calls, "server"))
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", lease=0.6)

    @app.job("count", max_attempts=20, backoff=Backoff(0, 1, 0, 0))
    async def count(payload: dict[str, int]) -> dict[str, int]: ...

    async with listening(app) as url:
        workers = {each.pid: each for each in [await _started(url, tmp_path) for _ in range(WORKERS)]}
        jobs = []
        for number in range(KILLS):
            trap, *others = await app.submit_many(
                [("count", {"number": number * EACH + n, "is_trap": n == 0}) for n in range(EACH)]
            )
            jobs += [trap, *others]
            victim = workers.pop(await _holder(app, trap.job_id))
            victim.kill()
            await victim.wait()
            replaced = await _started(url, tmp_path)
            workers[replaced.pid] = replaced
        results = [await job.result(timeout=30) for job in jobs]
        await eventually(lambda: _all_work(app, workers))
        for worker in workers.values():
            worker.terminate()
        assert [await worker.wait() for worker in workers.values()] == [0] * WORKERS, "they were asked, and signed off"
        assert not await _all_work(app, workers)
        store = app.store
        evidence = Evidence(
            await dump(store), calls_in(calls), counts=await store.counts(), counters=await store.counters(0, 2**62)
        )
        histories = [await app.history(job.job_id) for job in jobs]

    assert [result["number"] for result in results] == list(range(KILLS * EACH))
    assert {sum(event.event is Event.COMPLETE for event in history) for history in histories} == {1}
    assert sum(event.event is Event.RESCUE for history in histories for event in history) >= KILLS
    ran = Counter(line for file in tmp_path.glob("*.ran") for line in file.read_text().split("\n") if line)
    assert max(ran.values()) == 1, "an attempt ran twice"
    assert {f"{result['number']} {result['attempt']}" for result in results} <= set(ran)
    assert [str(each) for each in check(evidence) + unfinished(evidence)] == []


async def _all_work(app: Backstay, workers: Collection[int]) -> bool:
    return set(workers) <= {int(row.worker_id.split(":")[1]) for row in await app.workers()}


async def _holder(app: Backstay, job_id: str) -> int:
    """The process that runs a job, as soon as one does."""

    async def is_held() -> bool:
        return (await app.get(job_id)).status is Status.PROCESSING

    await eventually(is_held, 20)
    return int(str((await app.get(job_id)).worker_id).split(":")[1])


async def _started(url: str, folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, str(PROCESS), url, str(folder))
