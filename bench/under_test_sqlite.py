"""A SQLite file under test. Read through apsw only: a second SQLite library in one process would drop the first one's
locks."""

from __future__ import annotations

import time
from contextlib import closing

import apsw

import large_file
from contenders import Order

UNSETTLED = """
SELECT (SELECT count(*) FROM job WHERE status = 'pending')
     + (SELECT count(*) FROM job WHERE status = 'processing')
"""


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
        """The number of unsettled jobs, and the moment for which it is true: when the reading began."""
        with closing(self._connect()) as connection:
            connection.execute("BEGIN")
            before = time.monotonic_ns()
            connection.execute("SELECT 1 FROM job LIMIT 1").fetchall()  # fixes what this transaction sees
            after = time.monotonic_ns()
            return connection.execute(UNSETTLED).get, (before + after) / 2

    def multiply(self, job_id: str, numbers: range) -> None:
        large_file.multiply(self.file, "job", job_id, numbers)

    def is_kept(self, name: str) -> bool:
        return (self._shared / f"{name}.db").exists()

    def keep(self, name: str) -> None:
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.file.rename(self._shared / f"{name}.db")

    def restore(self, name: str) -> None:
        large_file.copy(self._shared / f"{name}.db", self.file)

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.file))
        connection.set_busy_timeout(10_000)
        return connection
