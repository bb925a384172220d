"""Somebody's open transaction holds a running job: only that job waits for it."""

import asyncio
import secrets

import asyncpg

from backstay import Backstay
from backstay.clock import MICROS
from backstay.core.records import ClaimRequest, Hold, Verdict
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres


async def test_others_keep_their_leases_and_are_settled_while_a_job_is_locked(postgres: Postgres) -> None:
    schema = f"locked_{secrets.token_hex(3)}"
    app = Backstay(postgres.url(schema=schema), lease=3)
    go, last = asyncio.Event(), asyncio.Event()

    @app.job("work", max_attempts=1)
    async def work(payload: int) -> int:
        await (last if payload == 9 else go).wait()
        return payload

    async with app, app.worker(concurrency=10):
        jobs = await app.submit_many([("work", number) for number in range(10)])
        await eventually(lambda: _count(app, "processing", 10))
        someone = await asyncpg.connect(postgres.url())
        async with someone.transaction():
            await someone.execute(f"SELECT 1 FROM {schema}.running WHERE job_id = $1 FOR UPDATE", jobs[0].job_id)
            go.set()  # nine end, one of them locked
            await eventually(lambda: _count(app, "completed", 8), seconds=30)
            await asyncio.sleep(4)  # longer than a lease: the ninth runs on
            assert await _count(app, "failed", 0)
            last.set()
            await eventually(lambda: _count(app, "completed", 9), seconds=30)
        await someone.close()
        await eventually(lambda: _count(app, "completed", 10), seconds=30)


async def test_an_extension_that_passed_a_locked_job_over_is_not_called_one(postgres: Postgres) -> None:
    schema = f"locked_{secrets.token_hex(3)}"
    app = Backstay(postgres.url(schema=schema))
    app.job("work")(lambda payload: None)
    async with app:
        job = await app.submit("work", 1)
        now = app.clock.now()
        [claim] = await app.store.claim(
            ClaimRequest("w", "1", ("default",), {"work": 1}, 1, MICROS, token="t" * 32), now
        )
        hold = Hold(job.job_id, claim.attempt, "t" * 32)
        someone = await asyncpg.connect(postgres.url())
        async with someone.transaction():
            await someone.execute(f"SELECT 1 FROM {schema}.running WHERE job_id = $1 FOR UPDATE", job.job_id)
            assert await app.store.extend([hold], now + 60 * MICROS, now) == [Verdict.LOCKED]
        await someone.close()
        assert await app.store.extend([hold], now + 60 * MICROS, now) == [Verdict.APPLIED]


async def test_a_claim_passes_by_a_pending_job_that_someone_else_has_locked(postgres: Postgres) -> None:
    schema = f"locked_{secrets.token_hex(3)}"
    app = Backstay(postgres.url(schema=schema))
    app.job("work")(lambda payload: None)
    request = ClaimRequest("w", "1", ("default",), {"work": 9}, 9, MICROS, token="t" * 32)
    async with app:
        locked, free = [(await app.submit("work", number)).job_id for number in range(2)]
        someone = await asyncpg.connect(postgres.url())
        async with someone.transaction():
            await someone.execute(f"SELECT 1 FROM {schema}.ready WHERE job_id = $1 FOR UPDATE", locked)
            async with asyncio.timeout(10):  # it does not wait for the other's transaction
                claimed = await app.store.claim(request, app.clock.now())
            assert [claim.job_id for claim in claimed] == [free]
        await someone.close()
        assert (await app.get(locked)).status == "pending"


async def _count(app: Backstay, status: str, count: int) -> bool:
    return (await app.counts())[status] == count
