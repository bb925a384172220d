"""Several who claim at the same time pass over what one of them holds; what that one leaves is not forgotten."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay.core.records import Rate, Signal
from backstay.engines.postgres import admission, release
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import HOUR, claim_ids, submit, submit_many
from backstay.testing.conformance.test_read import SignalRecorder
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres

KINDS: list[dict[str, Any]] = [
    {},
    {"fairness_key": "a"},
    {"concurrency_key": "k", "concurrency_limit": 9},
    {"rate_key": "r", "rate": Rate(9, HOUR)},
]
SLOTS = {"x": 9, "y": 9}


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    """Without wake-ups from outside: a hint may come with the connection for them, whatever has happened."""
    opened = PostgresStore(postgres.url(schema=f"claims_{secrets.token_hex(4)}", clock="caller", wake="off"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("changes", KINDS, ids=str)
async def test_what_a_claim_held_beside_the_jobs_that_it_took_is_offered_again(
    store: PostgresStore, changes: dict[str, Any]
) -> None:
    for job_type in SLOTS:
        await submit_many(store, 2, job_type=job_type, **changes)
    ear = SignalRecorder(store, Signal.READY)

    assert len(await claim_ids(store, slots=SLOTS, limit=2)) == 2

    assert ear.got == [Signal.READY]
    ear.stop()


@pytest.mark.parametrize("changes", KINDS, ids=str)
async def test_so_is_what_it_held_of_a_type_that_is_full_then(store: PostgresStore, changes: dict[str, Any]) -> None:
    for queue in ("one", "other"):
        await submit_many(store, 1, job_type="x", queue=queue, **changes)
    ear = SignalRecorder(store, Signal.READY)

    assert len(await claim_ids(store, slots={"x": 1}, queues=("one", "other"), limit=9)) == 1

    assert ear.got == [Signal.READY]
    ear.stop()


@pytest.mark.parametrize("changes", KINDS, ids=str)
async def test_a_claim_that_takes_all_there_is_wakes_nobody(store: PostgresStore, changes: dict[str, Any]) -> None:
    for job_type in SLOTS:
        await submit_many(store, 2, job_type=job_type, **changes)
    ear = SignalRecorder(store, Signal.READY)

    assert len(await claim_ids(store, slots=SLOTS, limit=9)) == 4

    assert ear.got == []
    ear.stop()


@pytest.mark.parametrize("changes", KINDS[1:], ids=str)
async def test_a_claim_that_waits_for_a_key_begins_after_what_it_waited_for(
    postgres: Postgres, changes: dict[str, Any]
) -> None:
    store = PostgresStore(postgres.url(schema=f"claims_{secrets.token_hex(4)}"))
    await store.open()
    await submit(store, job_type="x", **changes)
    if "fairness_key" in changes:
        name = "backstay turns default x"
    else:
        name = release.name_of("k") if "concurrency_key" in changes else admission.name_of("r")
    holder = await asyncpg.connect(postgres.url())
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)

    claiming = asyncio.ensure_future(claim_ids(store, slots={"x": 1}))
    await eventually(lambda: _waits(holder), 30)
    ended_at = await holder.fetchval(f'SELECT "{store.address.schema}".micros()')
    await transaction.commit()

    [job] = await store.get(await claiming)
    assert job is not None
    assert job.started_at is not None
    assert job.started_at >= ended_at
    await holder.close()
    await store.close()


async def _waits(connection: Any) -> bool:
    # Not pg_stat_activity, which stays the same within a transaction.
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    return bool(await connection.fetchval(waiting))
