"""A crowd of rows, and what the server says about how it runs a statement among them."""

import json
from collections.abc import Iterator
from typing import Any

from backstay.engines.postgres.connection import Statements

FINISHED, PENDING, MINE, RUNNING, DUE, FAILED = 100_000, 20_000, 30, 50, 20, 60

_ROWS = """
INSERT INTO backstay.job (job_id, job_type, queue, status, priority, scheduled_for, attempt, max_attempts,
    timeout_micros, claim_token, worker_id, lease_expires_at, created_at, updated_at, started_at, completed_at, subject,
    history, payload)
SELECT gen_random_uuid(), {job_type}, {queue}, '{status}', n % 100, {due}, {attempt}, 3, 1, {token}, {worker}, {lease},
    0, 0, {started}, {completed}, {subject}, '[1,0,"submit",null,"pending",0,null]', '{{}}'
FROM generate_series(1, {count}) AS n"""
_USUAL = {
    "job_type": "'mine'", "queue": "'default'", "due": "0", "attempt": "0", "token": "NULL", "worker": "NULL",
    "lease": "NULL", "started": "NULL", "completed": "NULL", "subject": "NULL",
}  # fmt: skip
_CROWD: list[dict[str, Any]] = [
    {"status": "completed", "count": FINISHED, "attempt": "1", "started": "1", "completed": "2",
     "subject": "'song-' || n / 5"},
    {"status": "failed", "count": FAILED, "attempt": "1", "started": "1", "completed": "2"},
    {"status": "pending", "count": PENDING // 2, "job_type": "'foreign'"},
    {"status": "pending", "count": PENDING // 2 - MINE, "queue": "'other'"},
    {"status": "pending", "count": MINE},
    {"status": "processing", "count": RUNNING, "attempt": "1", "token": "'t'", "worker": "'w' || n % 5",
     "lease": "n", "started": "1"},
    {"status": "scheduled", "count": 2_000, "due": "1 << 40"},
    {"status": "retrying", "count": DUE, "due": "n"},
]  # fmt: skip


async def fill(connection: Any, sql: Statements) -> None:
    for said in _CROWD:
        await connection.execute(sql.named(_ROWS.format(**{**_USUAL, **said})))
    await connection.execute(sql.named("ANALYZE backstay.job"))


async def add_running(connection: Any, sql: Statements, count: int, *, analysed_before: bool) -> None:
    """The server is not told to look at them, or only before they run."""
    await connection.execute(sql.named("ALTER TABLE backstay.job SET (autovacuum_enabled = off)"))
    await connection.execute(sql.named(_ROWS.format(**{**_USUAL, "status": "pending", "count": count})))
    if analysed_before:
        await connection.execute(sql.named("VACUUM ANALYZE backstay.job"))
    await connection.execute(
        sql.named(
            "UPDATE backstay.job SET status = 'processing', attempt = 1, claim_token = 't', worker_id = 'w',"
            " lease_expires_at = 1, started_at = 1"
        )
    )


async def add_pending(connection: Any, sql: Statements, count: int, *, kinds: int, analysed: str | None) -> None:
    """The server looks at the table before they come, among others that are over, or afterwards, or not at all."""
    await connection.execute(sql.named("ALTER TABLE backstay.job SET (autovacuum_enabled = off)"))
    if analysed == "before":
        over = {"status": "completed", "count": count, "attempt": "1", "started": "1", "completed": "2"}
        await connection.execute(sql.named(_ROWS.format(**{**_USUAL, **over})))
        await connection.execute(sql.named("VACUUM ANALYZE backstay.job"))
    pending = {"status": "pending", "count": count, "job_type": f"'type-' || n % {kinds}"}
    await connection.execute(sql.named(_ROWS.format(**{**_USUAL, **pending})))
    if analysed == "after":
        await connection.execute(sql.named("VACUUM ANALYZE backstay.job"))


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool() | int():
            return str(value)
        case list():
            return "'{" + ",".join("NULL" if each is None else f'"{each}"' for each in value) + "}'"
        case _:
            return f"'{value}'"


class Plan:
    """What EXPLAIN (ANALYZE) told."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._nodes = list(_walk(root))

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self._nodes if "Index Name" in node}

    @property
    def scanned_whole(self) -> set[str]:
        """Tables that were read from end to end."""
        return {node["Relation Name"] for node in self._nodes if node["Node Type"] == "Seq Scan"}

    @property
    def rows(self) -> float:
        """Rows of tables that were looked at, those included that a filter dropped."""
        scans = [node for node in self._nodes if "Relation Name" in node and "Scan" in node["Node Type"]]
        return sum(node["Actual Loops"] * sum(node.get(name, 0) for name in _LOOKED_AT) for node in scans)


_LOOKED_AT = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


async def explain(connection: Any, statement: str, values: list[Any], mode: str) -> Plan:
    """How it is run: planned for these values, or once for all, as a prepared statement may be. Nothing is kept."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await connection.execute(f"PREPARE told AS {statement}")
        bound = f"({', '.join(map(literal, values))})" if values else ""
        told = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE told{bound}")
    finally:
        await transaction.rollback()
        await connection.execute("DEALLOCATE ALL")
    return Plan(json.loads(told)[0]["Plan"])
