"""A verb does not pay for what it has nothing to do with. Counted in SQLite's own steps, not in time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.store.conformance.factories import NOW, a_worker, claim_ids, new_job, request, running, submit
from holdfast.stores.sqlite import SQLiteStore

CROWD = 100_000

# Rows that stand in the way, made by one statement: the queue itself would take a while.
CROWDS = {
    "foreign pending": """
        INSERT INTO job (job_id, job_type, queue, status, priority, scheduled_for, max_attempts, timeout_micros,
            created_at, updated_at, history, payload)
        SELECT 'f' || value, 'foreign', 'default', 'pending', 100, 0, 1, 1, 0, 0,
            '[1,0,"submit",null,"pending",0,null]', '{}'
        FROM generate_series(1, :count)""",
    "foreign queue": """
        INSERT INTO job (job_id, job_type, queue, status, priority, scheduled_for, max_attempts, timeout_micros,
            created_at, updated_at, history, payload)
        SELECT 'q' || value, 'mine', 'other', 'pending', 100, 0, 1, 1, 0, 0,
            '[1,0,"submit",null,"pending",0,null]', '{}'
        FROM generate_series(1, :count)""",
    "finished": """
        INSERT INTO job (job_id, job_type, queue, status, priority, scheduled_for, max_attempts, timeout_micros,
            created_at, updated_at, completed_at, history, payload, concurrency_key, concurrency_limit)
        SELECT 'c' || value, 'mine', 'default', 'completed', 100, 0, 1, 1, 0, 0, 1,
            '[1,0,"submit",null,"pending",0,null]', '{}', 'old', 1
        FROM generate_series(1, :count)""",
    "far future": """
        INSERT INTO job (job_id, job_type, queue, status, priority, scheduled_for, max_attempts, timeout_micros,
            created_at, updated_at, history, payload)
        SELECT 's' || value, 'mine', 'default', 'scheduled', 100, 1 << 60, 1, 1, 0, 0,
            '[1,0,"submit",null,"scheduled",0,null]', '{}'
        FROM generate_series(1, :count)""",
    "met edges": """
        INSERT INTO edge (parent_id, child_id, met) SELECT 'p', 'c' || value, 1 FROM generate_series(1, :count)""",
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await opened.open()
    yield opened
    await opened.close()


async def crowd(store: SQLiteStore, kind: str, count: int = CROWD) -> None:
    statement = CROWDS[kind]
    series = (
        "(WITH RECURSIVE s(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM s LIMIT :count) SELECT value FROM s)"
    )
    statement = statement.replace("generate_series(1, :count)", series)
    await store._write(
        "crowd", lambda tx: tx.connection.execute(statement, {"count": count}).fetchall(), essential=False
    )


class Steps:
    """Counts what every statement of the store's connections costs."""

    def __init__(self, *connections: apsw.Connection) -> None:
        self.count = 0
        self.sorts = 0
        for each in connections:
            each.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        status = event["stmt_status"]
        self.count += status["SQLITE_STMTSTATUS_VM_STEP"]
        self.sorts += status["SQLITE_STMTSTATUS_SORT"]


async def cost(store: SQLiteStore, call: Callable[[], Awaitable[Any]]) -> tuple[int, int]:
    """Steps and sorts of one call."""
    await store.counts()  # a reader's connection is there, and is measured too
    assert store._writer is not None
    counted = Steps(store._writer.connection, *store._reader_connections)
    await call()
    for each in (store._writer.connection, *store._reader_connections):
        each.trace_v2(0, None)
    return counted.count, counted.sorts


async def _claim(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    job_id = await submit(store, job_type="mine")

    async def claim() -> None:
        assert await claim_ids(store, slots={"mine": 9}) == [job_id]

    return claim


async def _claim_nothing(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.claim(request(slots={"a": 1, "b": 1}), NOW)


async def _repeat_claim(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await running(store)
    return lambda: store.claim(request(repeat=True), NOW)


async def _complete(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    claim = await running(store)
    return lambda: store.apply([claim.completes()], NOW)


async def _fail(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    claim = await running(store)
    return lambda: store.apply([claim.fails()], NOW)


async def _extend(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    claim = await running(store)
    return lambda: store.extend([claim.hold], NOW, NOW)


async def _insert(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.insert([new_job()], NOW)


async def _insert_with_a_key(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.insert([new_job(concurrency_key="gpu", dedup_key="k")], NOW)


async def _promote(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await submit(store, scheduled_for=NOW + 1)
    return lambda: store.promote(NOW + 1, 10)


async def _expired(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await running(store, lease_micros=0)
    return lambda: store.expired(NOW, 10)


async def _release(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.release(NOW, 10)


async def _beat(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.beat(a_worker())


VERBS = [
    _claim,
    _claim_nothing,
    _repeat_claim,
    _complete,
    _fail,
    _extend,
    _insert,
    _insert_with_a_key,
    _promote,
    _expired,
    _release,
    _beat,
]


async def test_a_claim_never_walks_past_a_hundred_thousand_jobs_of_a_foreign_type(
    store: SQLiteStore, tmp_path: Path
) -> None:
    alone, _ = await cost(store, await _claim(store))
    await crowd(store, "foreign pending")

    beside, sorts = await cost(store, await _claim(store))

    assert (beside, sorts) == (alone, 0)


@pytest.mark.parametrize("kind", CROWDS)
async def test_no_verb_of_the_hot_path_or_the_upkeep_pays_for_what_stands_beside_it(
    store: SQLiteStore, kind: str
) -> None:
    alone = {verb.__name__: (await cost(store, await verb(store)))[0] for verb in VERBS}
    await crowd(store, kind, 5_000)

    beside = {verb.__name__: (await cost(store, await verb(store)))[0] for verb in VERBS}

    dearer = {name: (alone[name], beside[name]) for name in alone if beside[name] > alone[name] + 200}
    assert dearer == {}
