"""SQL of a handler commits with its completion: with whatever values PostgreSQL takes, and never by itself."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay import Backstay, BatchContext, Context, JobFailed
from tests.engines.postgres import effects_jobs
from tests.engines.postgres.effects_jobs import INSERT, TABLE, VALUES
from tests.support.servers.postgres import Postgres


@pytest.fixture
def schema() -> str:
    return f"effects_{secrets.token_hex(3)}"


@pytest.fixture
def app(postgres: Postgres, schema: str) -> Backstay:
    return Backstay(postgres.url(schema=schema))


@pytest.fixture
async def sql(postgres: Postgres, app: Backstay, schema: str) -> AsyncIterator[Any]:
    async with app:
        pass  # makes the schema
    connection = await asyncpg.connect(postgres.url(), server_settings={"search_path": schema})
    await connection.execute(f"CREATE TABLE every_kind ({TABLE}); CREATE TABLE ledger (n integer PRIMARY KEY)")
    yield connection
    await connection.close()


async def the_row(sql: Any) -> list[Any]:
    [row] = await sql.fetch("SELECT * FROM every_kind")
    return list(row.values())


AS_READ = [*VALUES[:-2], '{"k": [1, null]}', None]


async def test_every_kind_of_value_that_the_server_takes_is_stored_with_the_completion(
    app: Backstay, sql: Any, schema: str
) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        values: list[Any] = [list(value) if isinstance(value, list) else value for value in VALUES]
        async with ctx.transaction() as tx:
            tx.execute(INSERT.replace("every_kind", f"{schema}.every_kind"), values)
        values[11].append(4)  # what the handler does to a list then is not what it gave

    async with app, app.worker():
        await (await work.submit(1)).result(timeout=10)
    assert await the_row(sql) == AS_READ


async def test_the_same_values_arrive_from_a_child_process(app: Backstay, sql: Any, schema: str) -> None:
    app.handlers.update(effects_jobs.app.handlers)
    async with app, app.worker():
        await (await app.submit("in_a_process", schema)).result(timeout=30)
    assert await the_row(sql) == AS_READ


async def test_a_value_that_cannot_be_kept_fails_the_attempt_with_what_can_be(app: Backstay, sql: Any) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("SELECT $1::text", [object()])

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"TypeError: parameter <object .*give None, strings, .*UUID") as failed:
            await (await work.submit(1)).result(timeout=10)
    assert "SQLite" not in str(failed.value)


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "rollback",
        " \n-- over\nEND",
        "/* a */ ; SAVEPOINT a",
        "BEGIN",
        "START TRANSACTION",
        "ABORT",
        "RELEASE a",
        "PREPARE TRANSACTION 'p'",
        "SELECT 1; COMMIT",
        "DO $$ BEGIN COMMIT; END $$",
    ],
)
async def test_a_statement_that_would_end_the_transaction_fails_the_attempt_and_stores_nothing(
    app: Backstay, sql: Any, schema: str, statement: str
) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO {schema}.ledger VALUES (1)")
            tx.execute(statement)

    async with app, app.worker():
        handle = await work.submit(1)
        with pytest.raises(JobFailed, match="EffectFailed"):
            await handle.result(timeout=10)
        assert (await app.get(handle.job_id)).status == "failed"
    assert await sql.fetch("SELECT * FROM ledger") == []


async def test_what_the_server_said_of_a_statement_is_one_line(app: Backstay, sql: Any, schema: str) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.executemany(f"INSERT INTO {schema}.ledger VALUES ($1)", [[1], [1]])

    async with app, app.worker():
        handle = await work.submit(1)
        with pytest.raises(JobFailed):
            await handle.result(timeout=10)
        error = (await app.get(handle.job_id)).last_error
    assert error is not None
    assert "(n)=(1) already exists" in error
    assert "\n" not in error


async def test_statements_of_one_job_of_a_batch_commit_with_it_and_broken_ones_fail_it_alone(
    app: Backstay, sql: Any, schema: str
) -> None:
    @app.batch_job("embed", max_size=4, max_wait=5, max_attempts=1)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[Any]:
        for n, payload in enumerate(payloads):
            async with ctx.item(n).transaction() as tx:
                tx.execute(f"INSERT INTO {schema}.ledger VALUES ($1)", [payload])
                if payload == 2:
                    tx.execute(f"INSERT INTO {schema}.nowhere VALUES (1)")
        return [ValueError("three") if each == 3 else each for each in payloads]

    async with app, app.worker():
        handles = await app.submit_many([("embed", n) for n in range(4)])
        assert [await each.result(timeout=10) for each in handles[:2]] == [0, 1]
        for each, error in zip(handles[2:], ("EffectFailed", "three"), strict=True):
            with pytest.raises(JobFailed, match=error):
                await each.result(timeout=10)
    assert [row["n"] for row in await sql.fetch("SELECT n FROM ledger ORDER BY n")] == [0, 1]
