"""A queue on PostgreSQL that moves: those who submit by SQL, or in transactions of their own."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from backstay import Backstay, ConfigurationError, StoreMoved, ids, transfer
from backstay.limits import MOVE_PAGE
from tests.engines.transfer.full_queue import app_at, jobs_of
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres

RIGHTS = """
CREATE ROLE {schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {schema};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema};
"""


@pytest.fixture
def schema() -> str:
    return f"leaves_{secrets.token_hex(3)}"


@pytest.fixture
def old(postgres: Postgres, schema: str) -> Backstay:
    return app_at(postgres.url(schema=schema))


@pytest.fixture
def there(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/there.db"


async def test_those_who_submit_by_sql_are_told(old: Backstay, there: str, postgres: Postgres, schema: str) -> None:
    async with old:
        await old.submit("plain", 1)
    await transfer.move(old.url, there)
    connection = await asyncpg.connect(postgres.url())

    with pytest.raises(asyncpg.PostgresError, match="was transferred to") as refused:
        await connection.execute(f"SELECT {schema}.submit('plain', '2')")
    await connection.close()

    assert refused.value.sqlstate == "BS006"


async def test_so_are_those_who_submit_in_a_transaction_of_their_own(
    old: Backstay, there: str, postgres: Postgres
) -> None:
    async with old:
        await transfer.move(old.url, there)
        connection = await asyncpg.connect(postgres.url())
        async with connection.transaction():
            with pytest.raises(StoreMoved):
                await old.submit("plain", 1, connection=connection)
        await connection.close()


async def test_a_job_of_a_transaction_that_is_still_open_goes_along(
    old: Backstay, there: str, postgres: Postgres
) -> None:
    connection, watching = await asyncpg.connect(postgres.url()), await asyncpg.connect(postgres.url())
    async with old:
        transaction = connection.transaction()
        await transaction.start()
        job = await old.submit("plain", "in time", connection=connection)
        move = asyncio.create_task(transfer.move(old.url, there))
        await eventually(lambda: _waits(watching))
        await transaction.commit()
        await move
    await connection.close()
    await watching.close()

    async with Backstay(there) as app:
        assert (await app.get(job.job_id)).payload == "in time"


async def _waits(connection: Any) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_a_role_that_may_not_is_told_which_may(
    old: Backstay, there: str, postgres: Postgres, schema: str
) -> None:
    async with old:
        await old.submit("plain", 1)
    connection = await asyncpg.connect(postgres.url())
    await connection.execute(RIGHTS.format(schema=schema))
    await connection.close()

    with pytest.raises(ConfigurationError, match="the role that owns them"):
        await transfer.move(old.url.replace("postgres@", f"{schema}@"), there)

    async with old:
        await old.submit("plain", 2)


async def test_many_jobs_of_one_moment_keep_their_order_though_their_ids_tell_a_later_time(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "_last", 2 * time.time_ns() // 1_000_000 << 12)  # the clock was ahead, and was set back
    old = app_at(f"sqlite:///{tmp_path}/old.db")
    new = app_at(postgres.url(schema=f"order_{secrets.token_hex(4)}"))
    async with old:
        await old.submit_many([("plain", n) for n in range(MOVE_PAGE + 200)])

    await transfer.move(old.url, new.url)

    async with old, new:
        before, after = [[job.job_id async for job in jobs_of(each)] for each in (old, new)]
    assert after == before
