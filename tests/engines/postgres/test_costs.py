"""What a verb does once it does not do once per job; and what is over leaves nothing behind."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from backstay.core.records import QueueChange
from backstay.engines.postgres import retention
from backstay.engines.postgres.connection import Statements, Tx
from backstay.engines.postgres.store import PostgresStore
from backstay.limits import FAIR_KEY_SECONDS
from backstay.testing.conformance.factories import DAY, NOW, SECOND, a_policy, claim_ids, new_job, submit, submit_many
from tests.engines.postgres.query_plans import explain
from tests.support.servers.postgres import Postgres

MODES = ["force_custom_plan", "force_generic_plan"]
CROWD = 2_000


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"costs_{secrets.token_hex(4)}", clock="caller"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def sql(store: PostgresStore) -> Statements:
    return Statements(store.address.schema)


@pytest.fixture
async def connection(postgres: Postgres, store: PostgresStore) -> AsyncIterator[Any]:
    opened = await asyncpg.connect(postgres.url())
    yield opened
    await opened.close()


async def rows_read(connection: Any, sql: Statements) -> int:
    """Of the jobs, so far: by this transaction, and by earlier ones of which the server has not taken note yet."""
    found: int = await connection.fetchval(
        "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables"
        " WHERE schemaname = $1 AND relname IN ('job', 'ready', 'ended')",
        sql.schema,
    )
    return found


async def test_a_limited_queue_is_counted_once_for_a_batch(
    store: PostgresStore, connection: Any, sql: Statements
) -> None:
    await submit_many(store, CROWD)
    await store.change_queue("default", QueueChange(max_pending=10 * CROWD), NOW)
    jobs = msgspec.json.encode([new_job(dedup_key=f"k{n}") for n in range(50)]).decode()
    async with connection.transaction():
        before = await rows_read(connection, sql)
        await connection.execute(sql.named("SELECT backstay.insert_jobs($1, $2, $2, false)"), jobs, NOW)

        assert await rows_read(connection, sql) - before < 2 * CROWD


async def a_tree(store: PostgresStore, connection: Any, sql: Statements) -> None:
    """All of it over its time."""
    root = await submit(store)
    await submit_many(store, CROWD, parent_job_id=root)
    for statement in (
        "DELETE FROM backstay.ready",
        "INSERT INTO backstay.ended (job_id, completed_at, attempt, failures, version, status)"
        f" SELECT job_id, {NOW - 9 * DAY}, 1, 0, 3, 'completed' FROM backstay.job",
        f"UPDATE backstay.job SET created_at = {NOW - 9 * DAY}",
        "ANALYZE backstay.job, backstay.ended",
    ):
        await connection.execute(sql.named(statement))


async def test_a_tree_is_looked_at_once_in_a_step_of_retention(
    store: PostgresStore, connection: Any, sql: Statements
) -> None:
    await a_tree(store, connection, sql)
    await connection.execute(
        sql.named(
            "DELETE FROM backstay.ended WHERE job_id IN (SELECT job_id FROM backstay.job WHERE root_job_id IS NULL)"
        )
    )
    async with connection.transaction():
        before = await rows_read(connection, sql)
        found = await retention.look(Tx(connection, sql), a_policy(), NOW, 500, None)

        assert found.batch == []  # its root is active
        assert await rows_read(connection, sql) - before < 4 * CROWD


@pytest.mark.parametrize("mode", MODES)
async def test_a_tree_is_counted_once_when_its_jobs_are_moved(
    store: PostgresStore, connection: Any, sql: Statements, mode: str
) -> None:
    await a_tree(store, connection, sql)
    batch = await connection.fetch(sql.named("SELECT job_id::text, completed_at FROM backstay.ended"))

    plan = await explain(
        connection, sql["retire_standing"], [list(column) for column in zip(*batch, strict=True)], mode
    )

    assert plan.rows < 5 * CROWD


@pytest.mark.parametrize("in_sight", [0, 2])
@pytest.mark.parametrize(
    ("call", "held_back"),
    [
        ("unpark_key('gpu', 3)", "concurrency_key = 'gpu', concurrency_limit = 3, parked = 1"),
        ("unpark_rate('api', 3, 1, 1)", "rate_key = 'api', rate_count = 3, rate_micros = 1, parked = 2"),
    ],
)
async def test_letting_in_the_first_does_not_walk_past_those_behind_them(
    store: PostgresStore, connection: Any, sql: Statements, call: str, held_back: str, in_sight: int
) -> None:
    await submit_many(store, CROWD)
    await connection.execute(sql.named(f"UPDATE backstay.ready SET {held_back}, line = 3"))
    some = "SELECT ctid FROM (SELECT ctid, row_number() OVER () AS n FROM backstay.ready) AS r WHERE n % 2 < $1"
    await connection.execute(
        sql.named(f"UPDATE backstay.ready SET parked = 0, line = 1 WHERE ctid IN ({some})"), min(in_sight, 1)
    )
    await connection.execute(sql.named("VACUUM ANALYZE backstay.ready"))
    async with connection.transaction():
        before = await rows_read(connection, sql)
        await connection.fetchval(sql.named(f"SELECT backstay.{call}"))

        assert await rows_read(connection, sql) - before <= 30


async def test_the_turns_of_keys_that_ran_once_are_forgotten(
    store: PostgresStore, connection: Any, sql: Statements
) -> None:
    for tenant in range(5):
        await submit(store, fairness_key=f"tenant-{tenant}")
        await claim_ids(store)
    kept = sql.named("SELECT count(*) FROM backstay.fair_key")

    await store.release(NOW, 100)
    assert await connection.fetchval(kept) == 5

    await store.release(NOW + FAIR_KEY_SECONDS * SECOND + 1, 100)
    assert await connection.fetchval(kept) == 0
