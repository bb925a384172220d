"""Claims beside a transaction that is held open, so that the server removes no dead row: they begin where the last one
has stopped, and find what has come in front within a second."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay.clock import SystemClock
from backstay.core.records import Signal
from backstay.engines.lanes import Lane
from backstay.engines.postgres import claim, heads
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.heads import LOOK_SECONDS, START, Heads
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import new_job, request
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres

LANES = [Lane("default", "work"), Lane("default", "other")]


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"heads_{secrets.token_hex(3)}"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def always_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the whole line counts as one that has walked past dead rows."""
    monkeypatch.setattr(claim, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(claim, "DEAD_ROWS_MIN", -1)


async def insert(store: PostgresStore, count: int, **changes: Any) -> list[str]:
    now = SystemClock().now()
    jobs = [new_job(**{"scheduled_for": now} | changes) for _ in range(count)]
    await store.insert(jobs, now)
    return [job.job_id for job in jobs]


async def take(store: PostgresStore, limit: int = 10, **changes: Any) -> list[str]:
    return [job.job_id for job in await store.claim(request(limit=limit, **changes), SystemClock().now())]


async def test_as_long_as_claims_are_fast_each_looks_at_the_whole_line(store: PostgresStore) -> None:
    await insert(store, 20)
    for _ in range(5):
        await take(store, 2)
        [urgent] = await insert(store, 1, priority=99)
        assert (await take(store, 1)) == [urgent]


@pytest.mark.usefixtures("always_slow")
async def test_nothing_is_lost_or_claimed_twice(store: PostgresStore) -> None:
    ids = [
        *await insert(store, 30, priority=50),
        *await insert(store, 30, priority=20),
        *await insert(store, 30, priority=20, job_type="other"),
    ]
    slots = {"work": 10, "other": 10}
    found: list[str] = []
    for _ in range(9):
        found += await take(store, 10, slots=slots)

    assert sorted(found) == sorted(ids)
    assert set(found[:30]) == set(ids[:30])
    assert await take(store, 10, slots=slots) == []


@pytest.mark.usefixtures("always_slow")
async def test_a_job_that_comes_in_front_is_claimed_within_a_second(store: PostgresStore) -> None:
    await insert(store, 2_000)
    await take(store)
    [urgent] = await insert(store, 1, priority=99)
    assert urgent not in await take(store)

    await asyncio.sleep(LOOK_SECONDS)

    assert (await take(store))[0] == urgent


@pytest.mark.usefixtures("always_slow")
async def test_who_has_found_nothing_is_woken_for_the_next_look(store: PostgresStore) -> None:
    await insert(store, 1)
    await take(store)
    [urgent] = await insert(store, 1, priority=99)
    woken: list[object] = []
    stop = store.listen(frozenset({Signal.READY}), lambda *said: woken.append(said))
    woken.clear()

    async def is_claimed_once_woken() -> bool:
        if not woken:
            return False
        woken.clear()
        return await take(store) == [urgent]

    if await take(store) != [urgent]:  # else the whole line was looked at meanwhile, on a busy machine
        await eventually(is_claimed_once_woken)
    stop()


async def test_beside_an_open_transaction_a_claim_reads_little_of_what_is_dead(
    store: PostgresStore, postgres: Postgres
) -> None:
    sql = Statements(store.address.schema)
    holder, connection = await asyncpg.connect(postgres.url()), await asyncpg.connect(postgres.url())
    transaction = holder.transaction(isolation="repeatable_read")
    await transaction.start()
    await holder.fetchval(sql.named("SELECT count(*) FROM backstay.ready"))
    await insert(store, 20_000)
    for _ in range(19):
        last = (await store.claim(request(limit=1_000), SystemClock().now()))[-1]

    whole = await _pages(connection, sql["claim_lane"], ["default", "work", 10, 1, *_ASKED])
    behind = await _pages(
        connection,
        sql["claim_behind"],
        [["default"], ["work"], [10], [1], *_ASKED, [-last.priority], [last.scheduled_for], [last.job_id]],
    )

    await transaction.rollback()
    for each in (holder, connection):
        await each.close()
    assert 5 * behind < whole


_ASKED = [10, 1, "worker", None, 1_000, None, 1]  # limit, token, worker, version, lease, the store's time, suspicion


async def _pages(connection: Any, statement: str, values: list[Any]) -> int:
    """Return how many pages a statement reads to choose its rows; nothing of it is kept."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_custom_plan")
        told = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *values)
    finally:
        await transaction.rollback()
    return sum(_lines(json.loads(told)[0]["Plan"]))


def _lines(node: dict[str, Any]) -> list[int]:
    if node.get("Index Name") == "ready_line":
        return [node["Shared Hit Blocks"] + node["Shared Read Blocks"]]
    return [pages for child in node.get("Plans", ()) for pages in _lines(child)]


class TestHeads:
    def test_a_claim_begins_where_the_last_one_has_stopped(self) -> None:
        now = [0.0]
        known = Heads(lambda: now[0])
        asked = request()
        assert known.begins(asked, LANES) is None
        known.looked(is_slow=True)
        assert known.begins(asked, LANES) == [START, START]
        now[0] += LOOK_SECONDS
        assert known.begins(asked, LANES) is None

        known.looked(is_slow=True)
        assert known.begins(asked, LANES) is not None
        known.looked(is_slow=False)
        assert known.begins(asked, LANES) is None
        assert heads.DEAD_ROWS_MIN > 0
