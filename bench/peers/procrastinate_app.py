"""The application of procrastinate: one no-op task on PostgreSQL, by psycopg."""

from __future__ import annotations

import os

import procrastinate
from procrastinate import PsycopgConnector

from bench.harness.marks import Marks
from bench.harness.payload import number_of

app = procrastinate.App(connector=PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES_URL"], min_size=1, max_size=10))
MARKS = Marks.from_environment()


@app.task(name="noop", queue="default")
async def noop(user_id: int, text: str) -> None:
    MARKS.mark(number_of(user_id))
