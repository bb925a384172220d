"""A crowd of rows, and what the server says about how it runs a statement among them."""

import json
from collections.abc import Iterator
from typing import Any

from backstay.engines.postgres.connection import Statements

FINISHED, PENDING, MINE, RUNNING, DUE, FAILED = 100_000, 20_000, 30, 50, 20, 60

_FACTS = """
WITH n AS MATERIALIZED (
    SELECT ('0' || substr(md5(random()::text), 2, 11) || '7' || substr(md5(random()::text), 1, 19))::uuid AS job_id,
        n, {job_type} AS job_type, {queue} AS queue, {due}::bigint AS due, {subject} AS subject
    FROM generate_series(1, {count}) AS n
), facts AS (
    INSERT INTO backstay.job (job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros,
        subject, created_at)
    SELECT job_id, job_type, queue, n % 100, '{{}}', due, 3, 1, subject, 0 FROM n
)
"""
_LINE = "job_id, queue, job_type, priority, scheduled_for, attempt, failures, version, awaited"
_OF_LINE = "job_id, queue, job_type, n % 100, due"
_PLACES = {
    "pending": f"""INSERT INTO backstay.ready ({_LINE}, payload_version, line, suspicion, findable, child)
        SELECT {_OF_LINE}, 0, 0, 1, false, 1, 0, 0, false, false FROM n""",
    "scheduled": f"INSERT INTO backstay.later ({_LINE}, status) SELECT {_OF_LINE}, 0, 0, 1, false, 'scheduled' FROM n",
    "retrying": f"INSERT INTO backstay.later ({_LINE}, status) SELECT {_OF_LINE}, 1, 1, 3, false, 'retrying' FROM n",
    "waiting": f"INSERT INTO backstay.waiting ({_LINE}, unmet) SELECT {_OF_LINE}, 0, 0, 1, false, 1 FROM n",
    "processing": """INSERT INTO backstay.running (job_id, lease_expires_at, started_at, token, attempt, failures,
            version, awaited, findable, child, worker_id)
        SELECT job_id, n, 1, 7, 1, 0, 2, false, false, false, 'w' || n % 5 FROM n""",
    "completed": """INSERT INTO backstay.ended (job_id, completed_at, started_at, attempt, failures, version, status)
        SELECT job_id, 2, 1, 1, 0, 3, 'completed' FROM n""",
    "failed": """INSERT INTO backstay.ended (job_id, completed_at, started_at, attempt, failures, version, status)
        SELECT job_id, 2, 1, 1, 3, 3, 'failed' FROM n""",
}
TABLES = ("job", "ready", "later", "waiting", "running", "ended")
_USUAL = {"job_type": "'mine'", "queue": "'default'", "due": "0", "subject": "NULL::text"}
_CROWD: list[dict[str, Any]] = [
    {"status": "completed", "count": FINISHED, "subject": "'song-' || n / 5"},
    {"status": "failed", "count": FAILED},
    {"status": "pending", "count": PENDING // 2, "job_type": "'foreign'"},
    {"status": "pending", "count": PENDING // 2 - MINE, "queue": "'other'"},
    {"status": "pending", "count": MINE},
    {"status": "processing", "count": RUNNING},
    {"status": "scheduled", "count": 2_000, "due": "1099511627776"},
    {"status": "retrying", "count": DUE, "due": "n"},
]  # fmt: skip


def rows(status: str, **said: Any) -> str:
    """Return the statement that stores so many jobs in the place of a state."""
    return _FACTS.format(**{**_USUAL, **said}) + _PLACES[status]


async def fill(connection: Any, sql: Statements) -> None:
    for said in _CROWD:
        await connection.execute(sql.named(rows(**said)))
    await analyse(connection, sql)


async def analyse(connection: Any, sql: Statements) -> None:
    await connection.execute(sql.named(f"VACUUM ANALYZE {', '.join(f'backstay.{table}' for table in TABLES)}"))


async def _leave_alone(connection: Any, sql: Statements) -> None:
    for table in TABLES:
        await connection.execute(sql.named(f"ALTER TABLE backstay.{table} SET (autovacuum_enabled = off)"))


async def add_running(connection: Any, sql: Statements, count: int, *, analysed_before: bool) -> None:
    """The server is not told to look at them, or only before they run."""
    await _leave_alone(connection, sql)
    await connection.execute(sql.named(rows("pending", count=count)))
    if analysed_before:
        await analyse(connection, sql)
    await connection.execute(
        sql.named(
            "WITH gone AS (DELETE FROM backstay.ready RETURNING job_id) INSERT INTO backstay.running (job_id,"
            " lease_expires_at, started_at, token, attempt, failures, version, awaited, findable, child, worker_id)"
            " SELECT job_id, 1, 1, 7, 1, 0, 2, false, false, false, 'w' FROM gone"
        )
    )


async def add_pending(connection: Any, sql: Statements, count: int, *, kinds: int, analysed: str | None) -> None:
    """The server looks at the tables before they come, among others that are over, or afterwards, or not at all."""
    await _leave_alone(connection, sql)
    if analysed == "before":
        await connection.execute(sql.named(rows("completed", count=count)))
        await analyse(connection, sql)
    await connection.execute(sql.named(rows("pending", count=count, job_type=f"'type-' || n % {kinds}")))
    if analysed == "after":
        await analyse(connection, sql)


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
    def rows(self) -> int:
        """Rows of tables that were looked at, those included that a filter dropped. The server gives the average of all
        loops, rounded to hundredths."""
        scans = [node for node in self._nodes if "Relation Name" in node and "Scan" in node["Node Type"]]
        return sum(round(node["Actual Loops"] * sum(node.get(name, 0) for name in _LOOKED_AT)) for node in scans)

    @property
    def tried_to_lock(self) -> int:
        """Rows that reached a node that locks them, whether it could or not."""
        below = [child for node in self._nodes if node["Node Type"] == "LockRows" for child in node["Plans"]]
        return sum(round(child["Actual Loops"] * child["Actual Rows"]) for child in below)


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
        await connection.execute(f"SET LOCAL plan_cache_mode = {mode}; SET LOCAL enable_seqscan = off")
        await connection.execute(f"PREPARE told AS {statement}")
        bound = f"({', '.join(map(literal, values))})" if values else ""
        told = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE told{bound}")
    finally:
        await transaction.rollback()
        await connection.execute("DEALLOCATE ALL")
    return Plan(json.loads(told)[0]["Plan"])
