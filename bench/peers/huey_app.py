"""The application that huey's own consumer imports: one no-op task on SQLite with durable commits."""

from __future__ import annotations

import os

from huey import SqliteHuey

from bench.harness.marks import Marks
from bench.harness.payload import NotePayload, number_of

huey = SqliteHuey("bench", filename=os.environ["BENCH_HUEY_FILE"], fsync=True)
MARKS = Marks.from_environment()


@huey.task()
def noop(payload: NotePayload) -> None:
    MARKS.mark(number_of(payload["user_id"]))
