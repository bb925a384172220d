"""The stores that a sample runs against: a SQLite file, or a database made for it on the PostgreSQL server of the run.

A large store is made quickly: Backstay writes one real job, and `multiply` copies its rows by SQL. The columns are read
from the store, so that this survives changes of the schema. SQLite files are read through apsw only: a second SQLite
library in one process would drop the first one's locks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit

import apsw
import psycopg

from bench.harness.contenders import Order

ID_PREFIX = 24  # characters of a UUID's 36; the last 12 become a counter
UNSETTLED_IN_FILE = "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM running)"
# Where a job is: its facts, and what has become of it.
TABLES_OF_JOB = ("job", "detail", "ready", "later", "waiting", "running", "ended", "event")
# The place that tells that a job is in a state. To ask each job where it is takes as long as half a drain.
PLACES = {"pending": "ready", "processing": "running", "completed": "ended WHERE status = 'completed'"}
UNSETTLED_IN_DATABASE = "SELECT (SELECT count(*) FROM backstay.ready) + (SELECT count(*) FROM backstay.running)"


# Each job with its kind, as 'stored', and again with its state, if that is tallied: see engines/places.py.
STANDING = """
SELECT j.job_type, j.queue, coalesce(d.priority, j.priority) AS priority, p.status
FROM {schema}job AS j LEFT JOIN {schema}detail AS d ON d.{key} = j.{key} JOIN (
    SELECT {key}, 'stored' AS status FROM {schema}job
    UNION ALL SELECT {key}, status FROM {schema}ended
    UNION ALL SELECT {key}, status FROM {schema}later
    UNION ALL SELECT {key}, 'waiting' FROM {schema}waiting) AS p ON p.{key} = j.{key}"""


class SqliteFile:
    def __init__(self, order: Order) -> None:
        self.file = order.folder / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self._shared = order.shared

    def count(self, status: str) -> int:
        return self.value(f"SELECT count(*) FROM {PLACES[status]}")

    def value(self, statement: str) -> int:
        with closing(self._connect()) as connection:
            return int(connection.execute(statement).get)

    def execute(self, statement: str) -> None:
        with closing(self._connect()) as connection:
            connection.execute(statement)

    def unsettled(self) -> tuple[int, float]:
        """Return the number of unsettled jobs, and the time of the count: when the reading began."""
        with closing(self._connect()) as connection:
            connection.execute("BEGIN")
            before = time.monotonic_ns()
            connection.execute("SELECT 1 FROM job LIMIT 1").fetchall()  # fixes what this transaction sees
            after = time.monotonic_ns()
            return connection.execute(UNSETTLED_IN_FILE).get, (before + after) / 2

    def multiply(self, job_id: str, numbers: range, **differs: str) -> None:
        """Copy one job's rows for each number, which is `n` in the expressions for columns that differ."""
        self.multiply_all([(job_id, numbers)], **differs)

    def multiply_all(self, copies: Iterable[tuple[str, range]], **differs: str) -> None:
        """Do so for several jobs, and wait for the disk once."""
        with closing(apsw.Connection(str(self.file))) as connection:
            _load_without_journal(connection)
            for job_id, numbers in copies:
                _multiply(connection, job_id, numbers, differs)
            connection.execute("DELETE FROM tally")
            connection.execute("UPDATE meta SET value = (SELECT max(seq) FROM job) WHERE name = 'counted_through'")
            tallied = STANDING.format(schema="", key="seq")
            connection.execute(
                "INSERT INTO tally (job_type, queue, priority, status, count)"
                f" SELECT job_type, queue, priority, status, count(*) FROM ({tallied}) GROUP BY 1, 2, 3, 4"
            )
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        _sync(self.file)

    def is_kept(self, name: str) -> bool:
        return (self._shared / f"{name}.db").exists()

    def keep(self, name: str) -> None:
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.file.rename(self._shared / f"{name}.db")

    def restore(self, name: str) -> None:
        _copy(self._shared / f"{name}.db", self.file)

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.file))
        connection.set_busy_timeout(10_000)
        return connection


class PostgresDatabase:
    def __init__(self, order: Order) -> None:
        assert order.url is not None
        self.url = order.url
        self._name = urlsplit(order.url).path.removeprefix("/")
        self._server = order.url.removesuffix(self._name) + "postgres"

    def count(self, status: str) -> int:
        return self.value(f"SELECT count(*) FROM backstay.{PLACES[status]}")

    def value(self, statement: str) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(cast(LiteralString, statement)).fetchone()
            assert row is not None
            return int(row[0])

    def execute(self, statement: str) -> None:
        execute(self.url, statement)

    def unsettled(self) -> tuple[int, float]:
        """Return the number of unsettled jobs, and the time of the count: when the reading began."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            before = time.monotonic_ns()
            connection.execute("SELECT 1 FROM backstay.job LIMIT 1")  # fixes what this transaction sees
            after = time.monotonic_ns()
            row = connection.execute(UNSETTLED_IN_DATABASE).fetchone()
            assert row is not None
            return int(row[0]), (before + after) / 2

    def multiply(self, job_id: str, numbers: range, **differs: str) -> None:
        """Copy one job's rows for each number, with a new id wherever a row repeats its id. The number is `n` in the
        expressions for columns that differ, in whichever of its tables they are."""
        self.multiply_all([(job_id, numbers)], **differs)

    def multiply_all(self, copies: Iterable[tuple[str, range]], **differs: str) -> None:
        """Do so for several jobs, and wait for the disk once."""
        with psycopg.connect(self.url, autocommit=True) as connection, connection.transaction():
            for job_id, numbers in copies:
                self._multiply(connection, job_id, numbers, differs)
            connection.execute("DELETE FROM backstay.arrived")
            connection.execute("DELETE FROM backstay.tally")
            tallied = STANDING.format(schema="backstay.", key="job_id")
            statement = (
                "INSERT INTO backstay.tally (shard, job_type, queue, priority, status, count)"
                f" SELECT -1, job_type, queue, priority, status, count(*) FROM ({tallied}) AS t GROUP BY 2, 3, 4, 5"
            )
            connection.execute(cast(LiteralString, statement))

    def _multiply(
        self, connection: psycopg.Connection[Any], job_id: str, numbers: range, differs: dict[str, str]
    ) -> None:
        for table in TABLES_OF_JOB:
            found = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'backstay' AND table_name = %s",
                (table,),
            ).fetchall()
            columns = [name for name, _ in found]
            values = [differs.get(name, _copied_value(name, kind)) for name, kind in found]
            statement = (
                f"INSERT INTO backstay.{table} ({', '.join(columns)}) SELECT {', '.join(values)}"
                f" FROM generate_series({numbers[0]}, {numbers[-1]}) AS n, backstay.{table} AS j"
                f" WHERE j.job_id = '{job_id}'"  # no placeholder: the expressions may use %
            )
            connection.execute(cast(LiteralString, statement))

    def is_kept(self, name: str) -> bool:
        with psycopg.connect(self._server, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_kept(name),)).fetchone()
            return found is not None

    def keep(self, name: str) -> None:
        self.execute(f"VACUUM (ANALYZE, FREEZE) {', '.join(f'backstay.{table}' for table in TABLES_OF_JOB)}")
        execute(self._server, f'ALTER DATABASE "{self._name}" RENAME TO "{_kept(name)}"')

    def restore(self, name: str) -> None:
        execute(self._server, f'DROP DATABASE IF EXISTS "{self._name}"')
        execute(self._server, f'CREATE DATABASE "{self._name}" TEMPLATE "{_kept(name)}" STRATEGY file_copy')
        execute(self._server, "CHECKPOINT")


def _copied_value(name: str, kind: str) -> str:
    if kind != "uuid":
        return f"j.{name}"
    new = f"(left(j.{name}::text, {ID_PREFIX}) || lpad(to_hex(n), 12, '0'))::uuid"
    return f"CASE WHEN j.{name} = j.job_id THEN {new} ELSE j.{name} END"


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(cast(LiteralString, statement))


def wal_position(url: str) -> int:
    """Return how many bytes of write-ahead log the server has written."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
        assert row is not None
        return int(row[0])


def _kept(name: str) -> str:
    return f"kept-{name}"


def _multiply(connection: apsw.Connection, job_id: str, numbers: range, differs: dict[str, str]) -> None:
    """Add a copy of one job's rows for each number, which becomes the end of the copy's id.

    If another column repeats the job's id, a copy has its own id there too.
    """
    seq = connection.execute("SELECT seq FROM job WHERE job_id = ?", (job_id,)).get
    newest = connection.execute("SELECT max(seq) FROM job").get
    for table in TABLES_OF_JOB:
        columns, values = _copied(connection, table, seq, job_id)
        values = [differs.get(column, value) for column, value in zip(columns, values, strict=True)]
        connection.execute(
            f"""
            WITH RECURSIVE counter (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM counter WHERE n < :last)
            INSERT INTO {table} (seq, {", ".join(columns)})
            SELECT :newest + 1 + n - :first, {", ".join(values)}
            FROM counter CROSS JOIN (SELECT * FROM {table} WHERE seq = :seq) AS job
            """,
            {"first": numbers[0], "last": numbers[-1], "newest": newest, "seq": seq},
        )


def _copy(source: Path, target: Path) -> None:
    """Make a durable copy, so that its disk writes are over before the clock starts."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    _sync(target)


def _load_without_journal(connection: apsw.Connection) -> None:
    # Nothing here needs to survive a crash: an incomplete file is created again.
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.execute("PRAGMA journal_mode = OFF").fetchall()
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")


def _copied(connection: apsw.Connection, table: str, seq: int, job_id: str) -> tuple[list[str], list[str]]:
    """Return the columns to write besides the position, each with the expression for its value."""
    columns: list[str] = []
    values: list[str] = []
    for _, name, *_ in connection.execute(f"PRAGMA table_info({table})"):
        if name == "seq":
            continue
        repeats_id = connection.execute(f'SELECT max("{name}" IS ?) FROM {table} WHERE seq = ?', (job_id, seq)).get
        columns.append(str(name))
        values.append(_new_id(str(name)) if repeats_id else f'job."{name}"')
    return columns, values


def _new_id(name: str) -> str:
    return f"""substr(job."{name}", 1, {ID_PREFIX}) || printf('%012x', n)"""


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
