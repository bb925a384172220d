"""Opening Holdfast for a measurement: an empty store, the application, its worker process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contenders import Order
from marks import FILE_VARIABLE as MARKS_VARIABLE
from marks import Marks
from processes import worker_process
from under_test_postgres import PostgresDatabase
from under_test_sqlite import SqliteFile

if TYPE_CHECKING:
    from holdfast import Holdfast

COMMAND = (sys.executable, "-m", "holdfast", "worker", "--app", "bench_app:app")
JOB_TYPE = "noop"


@dataclass(frozen=True, slots=True)
class Setup:
    app: Holdfast
    marks: Marks
    store: SqliteFile | PostgresDatabase
    log: Path

    def worker(self, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`holdfast worker`, as a user starts it; it finds the store and the marks in the environment."""
        return worker_process([*COMMAND, *options], self.log, {})

    def anything_left(self) -> bool:
        return self.store.count("pending") + self.store.count("processing") > 0


def open_setup(order: Order, *, marked_jobs: int | None = None) -> Setup:
    store = SqliteFile(order) if order.url is None else PostgresDatabase(order)
    marks = order.folder / "marks"
    created = Marks.create(marks, order.jobs if marked_jobs is None else marked_jobs)
    os.environ["HOLDFAST_URL"] = store.url
    os.environ[MARKS_VARIABLE] = str(marks)
    from bench_app import app  # reads the two variables on import

    return Setup(app, created, store, order.folder / "worker.log")
