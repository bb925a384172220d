"""A PostgreSQL database under test: made for this sample, on the server of this run."""

from __future__ import annotations

import time
from typing import LiteralString, cast
from urllib.parse import urlsplit

import psycopg

from contenders import Order

ID_PREFIX = 24  # of a UUID's 36 characters; the last 12 become a counter
UNSETTLED = "SELECT count(*) FROM holdfast.job WHERE status IN ('pending', 'processing')"


class PostgresDatabase:
    def __init__(self, order: Order) -> None:
        assert order.url is not None
        self.url = order.url
        self._name = urlsplit(order.url).path.removeprefix("/")
        self._server = order.url.removesuffix(self._name) + "postgres"

    def count(self, status: str) -> int:
        return self.value(f"SELECT count(*) FROM holdfast.job WHERE status = '{status}'")

    def value(self, statement: str) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(cast(LiteralString, statement)).fetchone()
            assert row is not None
            return int(row[0])

    def execute(self, statement: str) -> None:
        execute(self.url, statement)

    def unsettled(self) -> tuple[int, float]:
        """The number of unsettled jobs, and the moment for which it is true: when the reading began."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            before = time.monotonic_ns()
            connection.execute("SELECT 1 FROM holdfast.job LIMIT 1")  # fixes what this transaction sees
            after = time.monotonic_ns()
            row = connection.execute(UNSETTLED).fetchone()
            assert row is not None
            return int(row[0]), (before + after) / 2

    def multiply(self, job_id: str, numbers: range) -> None:
        """A copy of one job's row for each number, with an id of its own wherever the row repeats its id."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'holdfast' AND table_name = 'job' AND is_identity = 'NO'"
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
                f"INSERT INTO holdfast.job ({', '.join(columns)}) SELECT {', '.join(values)}"
                f" FROM generate_series({numbers[0]}, {numbers[-1]}) AS n, holdfast.job AS j WHERE j.job_id = %s"
            )
            connection.execute(cast(LiteralString, statement), (job_id,))

    def is_kept(self, name: str) -> bool:
        with psycopg.connect(self._server, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_kept(name),)).fetchone()
            return found is not None

    def keep(self, name: str) -> None:
        self.execute("VACUUM (ANALYZE, FREEZE) holdfast.job")
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
