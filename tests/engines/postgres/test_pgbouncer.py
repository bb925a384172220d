"""Behind PgBouncer in transaction mode every statement may meet another connection, and all of it works."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backstay import Backstay, ConfigurationError, Context
from backstay.engines.postgres.store import PostgresStore
from tests.support.eventually import eventually
from tests.support.servers.pgbouncer import Absent, PgBouncer
from tests.support.servers.postgres import Postgres


def _pooler(server: Postgres) -> PgBouncer:
    try:
        return PgBouncer(server)
    except Absent as absent:
        pytest.skip(f"PGBOUNCER IS NOT TESTED: {absent}")


@pytest.fixture(scope="module")
def pooler(postgres: Postgres) -> Iterator[PgBouncer]:
    with _pooler(postgres) as opened:
        yield opened


@pytest.fixture
def url(pooler: PgBouncer) -> str:
    return pooler.url(schema=f"pooled_{secrets.token_hex(3)}")


def an_app(url: str, **options: Any) -> tuple[Backstay, Counter[int]]:
    app = Backstay(url, poll_interval=0.1, **options)
    ran: Counter[int] = Counter()

    @app.job("count")
    async def count(payload: int, ctx: Context) -> int:
        ran[payload] += 1
        return payload

    @app.job("keyed", global_concurrency=3, rate="1000/s")
    async def keyed(payload: int, ctx: Context) -> int:
        async with ctx.transaction() as tx:
            tx.execute("SELECT $1::bigint", [payload])
        ran[payload] += 1
        return payload

    @app.job("report")
    async def report(payload: Any, ctx: Context) -> str:
        ctx.log.info("writing it")
        await ctx.artifact("report.txt", b"kept")
        return "x" * 300_000

    return app, ran


@pytest.mark.parametrize(("job_type", "jobs"), [("count", 200), ("keyed", 60)])
async def test_many_clients_on_two_connections_submit_and_work(url: str, job_type: str, jobs: int) -> None:
    app, ran = an_app(url)
    other, also_ran = an_app(url)
    async with app, other, app.worker(concurrency=20), other.worker(concurrency=20):
        handles = await asyncio.gather(
            *(
                (app, other)[n % 2].submit(job_type, n, dedup_key=f"key-{n}" if n % 10 == 0 else None)
                for n in range(jobs)
            )
        )
        results = await asyncio.gather(*(handle.result(timeout=60) for handle in handles))

    assert results == list(range(jobs))
    assert ran + also_ran == Counter(range(jobs))


async def test_jobs_for_later_and_schedules_come_when_they_are_due(url: str) -> None:
    app, _ = an_app(url)
    async with app, app.worker():
        late = await app.submit("count", 1, delay=timedelta(seconds=0.3))
        await app.schedule("often", "* * * * *", "count", 2)
        tick = await app.run_schedule("often")

        assert await late.result(timeout=20) == 1
        assert await tick.result(timeout=20) == 2


async def test_a_claim_is_held_for_as_long_as_its_handler_runs(url: str) -> None:
    app = Backstay(url, lease=1, poll_interval=0.1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job("long", max_attempts=1)
    async def long(payload: None, ctx: Context) -> int:
        begun.set()
        await go_on.wait()
        return ctx.attempt

    async with app, app.worker():
        job = await app.submit("long")
        await begun.wait()
        first = (await app.get(job.job_id)).row.lease_expires_at or 0

        async def held_longer() -> bool:
            return ((await app.get(job.job_id)).row.lease_expires_at or 0) > first + 1_000_000

        await eventually(held_longer)
        go_on.set()
        assert await job.result(timeout=20) == 1


async def test_files_are_kept(url: str) -> None:
    app, _ = an_app(url)
    async with app, app.worker():
        job = await app.submit("report")

        assert await job.result(timeout=20) == "x" * 300_000
        assert await app.artifact(job.job_id, "report.txt") == b"kept"
        assert b"writing it" in (await app.log_bytes(job.job_id) or b"")


async def test_twenty_starters_make_one_schema(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(20)]

    await asyncio.gather(*(store.open() for store in stores))

    assert [sum((await store.counts()).values()) for store in stores] == [0] * 20
    for store in stores:
        await store.close()


async def test_the_check_up_says_what_the_role_should_set(url: str) -> None:
    app, _ = an_app(url)
    async with app:
        found = {finding.check: finding for finding in await app.check_up()}
        assert found["time limits"].level == "warn"
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            assert f"SET {name} = '" in found["time limits"].advice


async def test_a_submit_through_the_pooler_wakes_a_worker_that_is_connected_directly(
    url: str, postgres: Postgres
) -> None:
    through_pooler, _ = an_app(url)
    direct = Backstay(postgres.url(schema=url.partition("schema=")[2]), poll_interval=60)

    @direct.job("count")
    async def count(payload: int) -> int:
        return payload

    async with through_pooler, direct, direct.worker():
        job = await through_pooler.submit("count", 1)
        assert await job.result(timeout=10) == 1
        connection = await asyncpg.connect(url.partition("?")[0], statement_cache_size=0)
        async with connection.transaction():
            job = await through_pooler.submit("count", 2, connection=connection)
        await connection.close()
        assert await job.result(timeout=10) == 2


async def test_who_forgets_the_option_is_told_of_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="add pgbouncer=true"):
        await PostgresStore(url.replace("pgbouncer=true", "pgbouncer=false")).open()


async def test_a_restart_of_the_server_behind_the_pooler_needs_no_restart_of_the_worker() -> None:
    with Postgres() as server, _pooler(server) as pooler:
        app, _ = an_app(pooler.url())
        async with app, app.worker():
            assert await (await app.submit("count", 1)).result(timeout=20) == 1
            await asyncio.to_thread(server.restart, "immediate")
            assert await (await app.submit("count", 2)).result(timeout=20) == 2


# Submits inside the caller's own transaction, on connections that go through the pooler too


async def by_asyncpg(url: str, app: Backstay, how: str) -> str:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    transaction = connection.transaction()
    await transaction.start()
    job = await app.submit("count", 7, connection=connection)
    await getattr(transaction, how)()
    await connection.close()
    return job.job_id


async def by_psycopg(url: str, app: Backstay, how: str) -> str:
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as connection:
        job = await app.submit("count", 7, connection=connection)
        await getattr(connection, how)()
        return job.job_id


async def by_sqlalchemy(url: str, app: Backstay, how: str) -> str:
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+psycopg://"),
        poolclass=NullPool,
        connect_args={"prepare_threshold": None},
    )
    async with engine.connect() as connection:
        job = await app.submit("count", 7, connection=connection)
        await getattr(connection, how)()
    await engine.dispose()
    return job.job_id


@pytest.mark.parametrize("guest", [by_asyncpg, by_psycopg, by_sqlalchemy])
async def test_a_submit_goes_with_the_transaction_of_its_caller(url: str, guest: Any) -> None:
    app, _ = an_app(url)
    async with app, app.worker():
        plain = url.partition("?")[0]
        kept = await guest(plain, app, "commit")
        dropped = await guest(plain, app, "rollback")

        assert await app.result(kept, timeout=20) == 7
        assert await app.store.get([dropped]) == [None]
