"""A verb does not pay for what it has nothing to do with. Counted in SQLite's own steps, not in time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    a_worker,
    claim_ids,
    completed,
    new_job,
    request,
    running,
    submit,
)
from holdfast.stores.sqlite import SQLiteStore
from holdfast.stores.sqlite.store import READERS

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
    "same content": """
        INSERT INTO job (job_id, job_type, queue, status, priority, scheduled_for, max_attempts, timeout_micros,
            created_at, updated_at, completed_at, history, payload, content_hash)
        SELECT 'h' || value, 'embed', 'default', 'completed', 100, 0, 1, 1, 0, 0, value,
            '[1,0,"submit",null,"pending",0,null]', '{}', 'h'
        FROM generate_series(1, :count)""",
    "met edges": """
        INSERT INTO edge (parent_id, child_id, met) SELECT '!', 'c' || value, 1 FROM generate_series(1, :count)""",
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await opened.open()
    yield opened
    await opened.close()


async def crowd(store: SQLiteStore, kind: str, count: int) -> None:
    statement = CROWDS[kind]
    series = (
        "(WITH RECURSIVE s(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM s LIMIT :count) SELECT value FROM s)"
    )
    statement = statement.replace("generate_series(1, :count)", series)
    await store._write(
        "crowd", lambda tx: tx.connection.execute(statement, {"count": count}).fetchall(), essential=False
    )


class Meter:
    """Counts the steps and sorts of every statement of a store, its readers' too."""

    def __init__(self, store: SQLiteStore) -> None:
        self.steps = self.sorts = 0
        self._seen: dict[int, tuple[int, int]] = {}
        assert store._writer is not None
        for each in (store._writer.connection, *store._reader_connections):
            each.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        status = event["stmt_status"]
        steps, sorts = status["SQLITE_STMTSTATUS_VM_STEP"], status["SQLITE_STMTSTATUS_SORT"]
        before = self._seen.get(event["id"], (0, 0))  # a cached statement goes on counting
        if before[0] > steps:
            before = (0, 0)  # another statement in its place
        self._seen[event["id"]] = (steps, sorts)
        self.steps += steps - before[0]
        self.sorts += sorts - before[1]

    async def cost(self, call: Callable[[], Awaitable[Any]]) -> tuple[int, int]:
        """Steps and sorts of one call."""
        self.steps = self.sorts = 0
        await call()
        return self.steps, self.sorts


@pytest.fixture
async def meter(store: SQLiteStore) -> Meter:
    meeting = threading.Barrier(READERS)
    await asyncio.gather(*(store._read(lambda c: meeting.wait()) for _ in range(READERS)))  # all have connected
    return Meter(store)


async def _claim(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    job_id = await submit(store, job_type="mine")

    async def claim() -> None:
        assert await claim_ids(store, slots={"mine": 9}) == [job_id]

    return claim


async def _claim_nothing(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.claim(request(slots={"a": 1, "b": 1}), NOW)


async def _repeat_claim(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await running(store)
    return lambda: store.claim(request(repeat=True, slots={"a": 1}), NOW)


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


async def _insert_to_reuse(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await completed(store, job_type="embed", content_hash="h")
    return lambda: store.insert([new_job(job_type="embed", content_hash="h", reuse_since=0)], NOW)


async def _insert_to_join(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await submit(store, job_type="embed", content_hash="h", scheduled_for=NOW + HOUR)
    return lambda: store.insert([new_job(job_type="embed", content_hash="h", reuse_since=NOW + 1)], NOW)


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
    _insert_to_reuse,
    _insert_to_join,
    _promote,
    _expired,
    _release,
    _beat,
]


async def test_a_claim_never_walks_past_a_hundred_thousand_jobs_of_a_foreign_type(
    store: SQLiteStore, meter: Meter
) -> None:
    alone = await meter.cost(await _claim(store))
    await crowd(store, "foreign pending", 100_000)

    beside = await meter.cost(await _claim(store))

    assert beside == alone
    assert beside[0] < 1_000


@pytest.mark.parametrize("kind", CROWDS)
async def test_no_verb_of_the_hot_path_or_the_upkeep_pays_for_what_stands_beside_it(
    store: SQLiteStore, meter: Meter, kind: str
) -> None:
    alone = {verb.__name__: (await meter.cost(await verb(store)))[0] for verb in VERBS}
    await crowd(store, kind, 5_000)

    beside = {verb.__name__: (await meter.cost(await verb(store)))[0] for verb in VERBS}

    assert {name: (alone[name], beside[name]) for name in alone if beside[name] > alone[name] + 200} == {}
