"""The server goes away and comes back, or a reply is lost: nothing is lost, nothing happens twice, nobody hangs."""

import asyncio
import secrets
import time
from collections import Counter
from typing import Any

import pytest

from holdfast import Holdfast, StoreError
from holdfast.lifecycle import Status
from tests.eventually import eventually
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

JOBS = 300


def an_app(url: str) -> tuple[Holdfast, Counter[int]]:
    app = Holdfast(url, lease=5, poll_interval=0.5)
    ran: Counter[int] = Counter()

    @app.job("count", max_attempts=20, backoff=None)
    async def count(payload: dict[str, int], ctx: Any) -> int:
        ran[payload["n"]] += 1
        await asyncio.sleep(0.002)
        return payload["n"]

    return app, ran


async def submit_all(app: Holdfast, jobs: int, pace: float = 0.005) -> dict[int, str]:
    """Whatever happens, until each is acknowledged; a repeat carries the same id."""
    acknowledged: dict[int, str] = {}

    async def one(n: int) -> None:
        job_id = None
        while True:
            try:
                options: Any = {} if job_id is None else {"job_id": job_id}
                acknowledged[n] = (await app.submit("count", {"n": n}, **options)).job_id
                return
            except StoreError:
                job_id = job_id or f"0000{n:04x}-0000-7000-8000-{n:012x}"
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for n in range(jobs):
            group.create_task(one(n))
            await asyncio.sleep(pace)
    return acknowledged


async def all_completed(app: Holdfast, ids: list[str]) -> None:
    for job_id in ids:
        job = await app.get(job_id)
        assert job.status == Status.COMPLETED
        events = [entry.event for entry in job.history]
        assert events.count("complete") == 1
        assert [entry.version for entry in job.history] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_a_restart_of_the_server_loses_nothing_and_needs_no_restart_of_the_worker(how: str) -> None:
    with Postgres() as server:
        app, ran = an_app(server.url(schema="outage"))
        async with app, app.worker(concurrency=20):
            submitting = asyncio.create_task(submit_all(app, JOBS))

            async def well_under_way() -> bool:
                return len(ran) >= 20

            for _ in range(2):
                await eventually(well_under_way)
                await asyncio.to_thread(server.restart, how)
                back = time.monotonic()
                before = sum(ran.values())
                probe = await app.submit("count", {"n": 100_000 + before})
                await probe.result(timeout=10)
                assert time.monotonic() - back < 10
            acknowledged = await submitting
            for job_id in acknowledged.values():
                await app.result(job_id, timeout=30)
            await all_completed(app, list(acknowledged.values()))


async def test_replies_that_are_lost_after_the_commit_change_nothing(postgres: Postgres) -> None:
    with Proxy(postgres.port) as proxy:
        url = postgres.url(schema=f"lost_{secrets.token_hex(3)}").replace(str(postgres.port), str(proxy.port))
        app, _ = an_app(url)
        async with app, app.worker(concurrency=20):
            submitting = asyncio.create_task(submit_all(app, JOBS))
            while not submitting.done():
                proxy.swallow()
                await asyncio.sleep(0.05)
            acknowledged = await submitting
            for job_id in acknowledged.values():
                await app.result(job_id, timeout=30)
            proxy.heal()
            assert proxy.swallowed > 10
            await all_completed(app, list(acknowledged.values()))
            counts = await app.counts()
            assert counts["completed"] == sum(counts.values()) == len(set(acknowledged.values()))


async def test_a_line_that_goes_silent_is_given_up_and_taken_up_again(postgres: Postgres) -> None:
    with Proxy(postgres.port) as proxy:
        url = postgres.url(schema=f"silent_{secrets.token_hex(3)}").replace(str(postgres.port), str(proxy.port))
        app, _ = an_app(url)
        async with app, app.worker(concurrency=5):
            await (await app.submit("count", {"n": 1})).result(timeout=10)
            proxy.refuse()
            with pytest.raises(StoreError):
                await app.submit("count", {"n": 2})
            proxy.heal()
            await (await app.submit("count", {"n": 3})).result(timeout=10)
