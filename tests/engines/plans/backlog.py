"""Crowds that stand in the way, and the meter that counts what that costs, in SQLite's own steps and not in time."""

from collections.abc import Awaitable, Callable
from typing import Any

import apsw

from backstay.engines.sqlite.store import SQLiteStore
from backstay.engines.sqlite.writer import Tx

# Rows that stand in the way, made by two statements: the queue itself would take a while.
_JOBS = """
    INSERT INTO job (job_id, job_type, queue, priority, scheduled_for, max_attempts, timeout_micros, created_at,
        payload_version, payload{columns})
    SELECT {job_id}, {job_type}, {queue}, 100, {due}, 1, 1, 0, 1, '{{}}'{values}
    FROM generate_series(1, :count);
    INSERT INTO {place} SELECT {row} FROM job AS j WHERE seq > (SELECT max(seq) FROM job) - :count"""
_PLACES = {
    "ready": "(queue, job_type, fair, parked, priority, scheduled_for, job_id, seq, payload_version, suspicion,"
    " attempt, failures, version, awaited, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros,"
    " rate_cost, fairness_key, fairness_weight)",
    "later": "(seq, status, queue, job_type, priority, scheduled_for, attempt, failures, version, awaited)",
    "ended": "(seq, status, attempt, failures, version, completed_at, job_type, content_hash)",
}
_ROWS = {
    "ready": "queue, job_type, fairness_key IS NOT NULL, {parked}, priority, scheduled_for, job_id, seq, 1, 0, 0, 0, 1,"
    " 0, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros, rate_cost,"
    " fairness_key, 1",
    "later": "seq, 'scheduled', queue, job_type, priority, scheduled_for, 0, 0, 1, 0",
    "ended": "seq, 'completed', 1, 0, 3, {completed_at}, job_type, content_hash",
}


def jobs(name: str, place: str = "ready", **said: str) -> str:
    """Such jobs, by default pending ones of the type `mine`; what is no usual column is added."""
    usual = {"job_type": "'mine'", "queue": "'default'", "due": "0"}
    stands = {"parked": "0", "completed_at": "1"}
    more = {column: value for column, value in said.items() if column not in {*usual, *stands}}
    return _JOBS.format(
        **{column: said.get(column, value) for column, value in usual.items()},
        job_id=f"'{name}' || value",
        columns="".join(f", {column}" for column in more),
        values="".join(f", {value}" for value in more.values()),
        place=f"{place} {_PLACES[place]}",
        row=_ROWS[place]
        .format(**{column: said.get(column, value) for column, value in stands.items()})
        .replace("value", "CAST(ltrim(job_id, 'abcdefghijklmnopqrstuvwxyz-') AS INTEGER)"),
    )


PARKED_BY_RATE = {"parked": "2", "rate_key": "'api'", "rate_count": "1", "rate_micros": "1000000"}
PARKED_BY_KEY = {"parked": "1", "concurrency_key": "'gpu'", "concurrency_limit": "1"}
CROWDS = {
    "foreign pending": jobs("f", job_type="'foreign'"),
    "foreign queue": jobs("q", queue="'other'"),
    "finished": jobs("c", "ended", concurrency_key="'old'", concurrency_limit="1"),
    "far future": jobs("s", "later", due="1 << 60"),
    "same content": jobs("h", "ended", job_type="'embed'", completed_at="value", content_hash="'h'"),
    "foreign turns": jobs("t", job_type="'foreign'", fairness_key="'a'"),
    "parked by a rate": jobs("r", job_type="'foreign'", **PARKED_BY_RATE),
    "parked by a key": jobs("k", job_type="'foreign'", **PARKED_BY_KEY),
    "met edges": """
        INSERT INTO edge (parent_id, child_id, met) SELECT '!', 'c' || value, 1 FROM generate_series(1, :count)""",
    "archived": """
        INSERT INTO archive (job_id, archived_at, status, has_files, details)
        SELECT 'a' || value, 1 << 60, 'completed', 0, '{}' FROM generate_series(1, :count)""",
    "counted": """
        INSERT INTO counter (minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros)
        SELECT value * 60000000, 'mine', 'default', 50, 'completed', 1, 1, 1, 1 FROM generate_series(1, :count)""",
    "spent rates": """
        INSERT INTO rate (rate_key, rate_count, rate_micros, full_at, due_at, set_at)
        SELECT 'k' || value, 1, 1000000, 1 << 60, 1 << 60, 0 FROM generate_series(1, :count)""",
    "schedules": """
        INSERT INTO schedule (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at,
            version, overlap, jitter_micros, skipped)
        SELECT 's' || value, '@daily', 'UTC', 'one', 'mine', '{}', 0, 0, 1 << 60, 1, 'queue', 0, 0
        FROM generate_series(1, :count)""",
}


async def crowd(store: SQLiteStore, statement: str, count: int) -> None:
    series = (
        "(WITH RECURSIVE s(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM s LIMIT :count) SELECT value FROM s)"
    )
    statement = statement.replace("generate_series(1, :count)", series)

    def load(tx: Tx) -> None:
        tx.connection.execute(statement, {"count": count}).fetchall()
        tx.arrivals.count()  # or the next submit would count them all

    await store._write("crowd", load, essential=False)


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
        if before[0] >= steps:
            before = (0, 0)  # another statement in its place, or the same one prepared anew
        self._seen[event["id"]] = (steps, sorts)
        self.steps += steps - before[0]
        self.sorts += sorts - before[1]

    async def cost(self, call: Callable[[], Awaitable[Any]]) -> tuple[int, int]:
        """Steps and sorts of one call."""
        self.steps = self.sorts = 0
        await call()
        return self.steps, self.sorts
