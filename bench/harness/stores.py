"""The stores that a sample runs against: a SQLite file, or a database made for it on the PostgreSQL server of the run.

A large store is made quickly: Backstay writes one real job, and `multiply` copies its row by SQL. The columns are read
from the store, so that this survives changes of the schema. SQLite files are read through apsw only: a second SQLite
library in one process would drop the first one's locks.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import LiteralString, cast
from urllib.parse import urlsplit

import apsw
import psycopg

from bench.harness.contenders import Order

ID_COLUMN = "job_id"
ID_PREFIX = 24  # characters of a UUID's 36; the last 12 become a counter
UNSETTLED_IN_FILE = """
SELECT (SELECT count(*) FROM job WHERE status = 'pending')
     + (SELECT count(*) FROM job WHERE status = 'processing')
"""
UNSETTLED_IN_DATABASE = "SELECT count(*) FROM backstay.job WHERE status IN ('pending', 'processing')"


class SqliteFile:
    def __init__(self, order: Order) -> None:
        self.file = order.folder / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self._shared = order.shared

    def count(self, status: str) -> int:
        return self.value(f"SELECT count(*) FROM job WHERE status = '{status}'")

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

    def multiply(self, job_id: str, numbers: range) -> None:
        _multiply(self.file, "job", job_id, numbers)

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
        return self.value(f"SELECT count(*) FROM backstay.job WHERE status = '{status}'")

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

    def multiply(self, job_id: str, numbers: range) -> None:
        """Copy one job's row for each number, with a new id wherever the row repeats its id."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'backstay' AND table_name = 'job' AND is_identity = 'NO'"
            ).fetchall()
            columns = [name for name, _ in found]
            values = [
                f"CASE WHEN j.{name} = j.job_id THEN"
                f" (left(j.{name}::text, {ID_PREFIX}) || lpad(to_hex(n), 12, '0'))::uuid ELSE j.{name} END"
                if kind == "uuid"
                else f"j.{name}"
                for name, kind in found
            ]
            statement = (
                f"INSERT INTO backstay.job ({', '.join(columns)}) SELECT {', '.join(values)}"
                f" FROM generate_series({numbers[0]}, {numbers[-1]}) AS n, backstay.job AS j WHERE j.job_id = %s"
            )
            connection.execute(cast(LiteralString, statement), (job_id,))

    def is_kept(self, name: str) -> bool:
        with psycopg.connect(self._server, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_kept(name),)).fetchone()
            return found is not None

    def keep(self, name: str) -> None:
        self.execute("VACUUM (ANALYZE, FREEZE) backstay.job")
        execute(self._server, f'ALTER DATABASE "{self._name}" RENAME TO "{_kept(name)}"')

    def restore(self, name: str) -> None:
        execute(self._server, f'DROP DATABASE IF EXISTS "{self._name}"')
        execute(self._server, f'CREATE DATABASE "{self._name}" TEMPLATE "{_kept(name)}" STRATEGY file_copy')
        execute(self._server, "CHECKPOINT")


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(cast(LiteralString, statement))


def _kept(name: str) -> str:
    return f"kept-{name}"


def _multiply(file: Path, table: str, job_id: str, numbers: range) -> None:
    """Add a copy of one job's row for each number, which becomes the end of the copy's id.

    If another column repeats the job's id, a copy has its own id there too.
    """
    connection = apsw.Connection(str(file))
    try:
        _load_without_journal(connection)
        columns, values = _copied(connection, table, job_id)
        connection.execute(
            f"""
            WITH RECURSIVE counter (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM counter WHERE n < :last)
            INSERT INTO {table} ({", ".join(columns)})
            SELECT {", ".join(values)} FROM counter CROSS JOIN {table} AS job WHERE job.{ID_COLUMN} = :job_id
            """,
            {"first": numbers[0], "last": numbers[-1], "job_id": job_id},
        )
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    finally:
        connection.close()
    _sync(file)


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


def _copied(connection: apsw.Connection, table: str, job_id: str) -> tuple[list[str], list[str]]:
    """Return the columns to write, each with the expression for its value."""
    columns: list[str] = []
    values: list[str] = []
    for _, name, declared, _, _, key in connection.execute(f"PRAGMA table_info({table})"):
        if key and declared == "INTEGER":
            continue  # SQLite numbers the rows itself
        repeats_id = connection.execute(
            f'SELECT "{name}" IS {ID_COLUMN} FROM {table} WHERE {ID_COLUMN} = ?', (job_id,)
        ).get
        columns.append(f'"{name}"')
        values.append(_new_id(name) if repeats_id else f'job."{name}"')
    return columns, values


def _new_id(name: str) -> str:
    return f"""substr(job."{name}", 1, {ID_PREFIX}) || printf('%012x', n)"""


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
