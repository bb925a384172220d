"""Submits are added to the counters and the tally once, whatever is under way meanwhile."""

import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest

from backstay.clock import MICROS, Instant, SystemClock
from backstay.core.records import NewJob
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sql_rows import MINUTE
from backstay.testing.conformance.factories import a_policy, new_job, retire
from tests.support.servers.postgres import Postgres

HOUR = 60 * MINUTE


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"tally_{secrets.token_hex(3)}"))
    await opened.open()
    yield opened
    await opened.close()


def _now() -> Instant:
    return SystemClock().now()


async def _told(store: PostgresStore) -> tuple[object, ...]:
    now = _now()
    return (
        {status: jobs for status, jobs in (await store.counts()).items() if jobs},
        [(depth.job_type, depth.status, depth.count) for depth in await store.depths()],
        [(each.job_type, each.outcome, each.count) for each in await store.counters(now - HOUR, now + HOUR)],
        [(each.job_type, each.outcome, each.count) for each in await store.totals()],
    )


async def _add_up(store: PostgresStore, later: Instant = 0) -> None:
    connection = await asyncpg.connect(store.address.dsn)
    name = f"backstay totals {store.address.schema}"
    await connection.execute(Statements(store.address.schema)["add_up"], _now() + later, name)
    await connection.close()


async def _rows(store: PostgresStore, table: str) -> int:
    connection = await asyncpg.connect(store.address.dsn)
    found: int = await connection.fetchval(
        Statements(store.address.schema).named(f"SELECT count(*) FROM backstay.{table}")
    )
    await connection.close()
    return found


def _jobs(count: int) -> list[NewJob]:
    now = _now()
    return [new_job(scheduled_for=now + (n % 2) * MICROS * 1_000, job_type=f"type-{n % 3}") for n in range(count)]


@pytest.mark.parametrize("jobs", [1, 7, 500])
async def test_what_is_told_is_the_same_before_and_after(store: PostgresStore, jobs: int) -> None:
    await store.insert(_jobs(jobs), _now())
    before = await _told(store)

    for _ in range(2):
        await _add_up(store, HOUR)

    assert await _told(store) == before
    assert await _rows(store, "arrived") == 0


async def test_a_submit_that_is_not_committed_yet_is_added_up_later(store: PostgresStore, postgres: Postgres) -> None:
    sql = Statements(store.address.schema)
    await store.insert(_jobs(2), _now())
    caller = await asyncpg.connect(postgres.url())
    transaction = caller.transaction()
    await transaction.start()
    await caller.execute(sql.named("SELECT backstay.insert_in($1::jsonb, $2, $2, false)"), "[]", _now())
    await caller.execute(sql.named("UPDATE backstay.arrived SET count = count + 1 WHERE job_type = 'type-0'"))
    before = await _told(store)

    await _add_up(store, HOUR)
    assert await _told(store) == before
    assert await _rows(store, "arrived") == 1
    await transaction.rollback()
    await caller.close()
    await _add_up(store, HOUR)

    assert await _told(store) == before
    assert await _rows(store, "arrived") == 0


async def test_what_comes_after_the_sums_of_its_hour_is_in_the_totals(store: PostgresStore) -> None:
    long_ago = _now() - 5 * HOUR
    policy = a_policy(None, None, None)
    await store.insert([new_job(scheduled_for=long_ago, job_type="early")], long_ago)
    await retire(store, policy, now=_now())
    await store.insert([new_job(scheduled_for=long_ago, job_type="late")], long_ago)

    await _add_up(store)

    assert sorted(each.job_type for each in await store.totals()) == ["early", "late"]
