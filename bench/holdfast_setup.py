"""Opening Holdfast for a measurement: a fresh file, the application, its worker process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from contenders import Order
from marks import FILE_VARIABLE as MARKS_VARIABLE
from marks import Marks
from processes import worker_process

if TYPE_CHECKING:
    from holdfast import Holdfast

COMMAND = (sys.executable, "-m", "holdfast", "worker", "--app", "bench_app:app")
JOB_TYPE = "noop"


@dataclass(frozen=True, slots=True)
class Setup:
    app: Holdfast
    marks: Marks
    file: Path
    log: Path

    def worker(self, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`holdfast worker`, as a user starts it; it finds the file and the marks in the environment."""
        return worker_process([*COMMAND, *options], self.log, {})

    def count(self, status: str) -> int:
        """Read through apsw: a second SQLite library in this process would drop the first one's locks."""
        connection = apsw.Connection(str(self.file))
        connection.set_busy_timeout(10_000)
        try:
            return int(connection.execute(f"SELECT count(*) FROM job WHERE status = '{status}'").get)
        finally:
            connection.close()

    def anything_left(self) -> bool:
        return self.count("pending") + self.count("processing") > 0


def open_setup(order: Order, *, marked_jobs: int | None = None) -> Setup:
    file, marks = order.folder / "jobs.db", order.folder / "marks"
    created = Marks.create(marks, order.jobs if marked_jobs is None else marked_jobs)
    os.environ["HOLDFAST_URL"] = f"sqlite:///{file}"
    os.environ[MARKS_VARIABLE] = str(marks)
    from bench_app import app  # reads the two variables on import

    return Setup(app, created, file, order.folder / "worker.log")
