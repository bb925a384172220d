"""Opens Backstay for a measurement: an empty store, the application, its worker process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.contenders import Order
from bench.harness.marks import FILE_VARIABLE as MARKS_VARIABLE
from bench.harness.marks import Marks
from bench.harness.processes import worker_process
from bench.harness.stores import PostgresDatabase, SqliteFile

if TYPE_CHECKING:
    from backstay import Backstay

COMMAND = (sys.executable, "-m", "backstay", "worker", "--app", "bench.harness.app:app")
JOB_TYPE = "noop"


@dataclass(frozen=True, slots=True)
class Setup:
    app: Backstay
    marks: Marks
    store: SqliteFile | PostgresDatabase
    log: Path

    def worker(self, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run `backstay worker` as a user would; it finds the store and the marks in the environment."""
        return worker_process([*COMMAND, *options], self.log, {})

    def anything_left(self) -> bool:
        return self.store.unsettled()[0] > 0


def open_setup(order: Order, *, marked_jobs: int | None = None) -> Setup:
    store = SqliteFile(order) if order.url is None else PostgresDatabase(order)
    marks = order.folder / "marks"
    created = Marks.create(marks, order.jobs if marked_jobs is None else marked_jobs)
    os.environ["BACKSTAY_URL"] = store.url
    os.environ[MARKS_VARIABLE] = str(marks)
    from bench.harness.app import app  # reads the two variables on import

    return Setup(app, created, store, order.folder / "worker.log")
