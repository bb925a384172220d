"""pgqueuer's worker as its command starts it: on uvloop; in batches of 100, where its default is 10."""

from __future__ import annotations

import json
import os

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

from bench.harness.marks import Marks
from bench.harness.payload import number_of

BATCH = 100
MARKS = Marks.from_environment()


async def main() -> None:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["BENCH_POSTGRES_URL"])))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        MARKS.mark(number_of(json.loads(job.payload or b"{}")["user_id"]))

    await queuer.run(batch_size=BATCH)


uvloop.run(main())
