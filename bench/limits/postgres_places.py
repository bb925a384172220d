"""The limit with facts and places: a drain by hand on tables like Backstay's, with fence, result and counters.

What was submitted is written once; a claim and a completion move a narrow row from `ready` to `running` to `ended`.
Claims and settlements overlap on two connections, each job is a task, its payload a Pydantic model and its result JSON,
as in a worker. It has no keys, rates, turns, dependencies or retries, and never extends a lease.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec
import uvloop
from pydantic import BaseModel

from bench.harness.contenders import Figures, Order
from bench.harness.payload import notes
from bench.harness.stores import wal_position

SCHEMA = """
CREATE TABLE job (
    job_id          uuid PRIMARY KEY,
    created_at      bigint NOT NULL,
    scheduled_for   bigint NOT NULL,
    timeout_micros  bigint NOT NULL,
    priority        integer NOT NULL,
    max_attempts    integer NOT NULL,
    payload_version integer NOT NULL DEFAULT 1,
    job_type        text COLLATE "C" NOT NULL,
    queue           text COLLATE "C" NOT NULL,
    subject         text COLLATE "C",
    tags            text,
    created_by      text,
    root_job_id     uuid,
    content_hash    text COLLATE "C",
    payload         text NOT NULL
);
CREATE TABLE ready (
    queue           text COLLATE "C" NOT NULL,
    job_type        text COLLATE "C" NOT NULL,
    priority        integer NOT NULL,
    scheduled_for   bigint NOT NULL,
    job_id          uuid NOT NULL,
    payload_version integer NOT NULL,
    attempt         integer NOT NULL,
    failures        integer NOT NULL
);
CREATE INDEX ready_line ON ready (queue, job_type, priority DESC, scheduled_for, job_id);
CREATE TABLE running (
    job_id           uuid PRIMARY KEY,
    lease_expires_at bigint NOT NULL,
    started_at       bigint NOT NULL,
    token            bigint NOT NULL,
    attempt          integer NOT NULL,
    failures         integer NOT NULL,
    worker_id        text COLLATE "C" NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE ended (
    job_id       uuid PRIMARY KEY,
    started_at   bigint,
    completed_at bigint NOT NULL,
    attempt      integer NOT NULL,
    failures     integer NOT NULL,
    status       text COLLATE "C" NOT NULL,
    worker_id    text COLLATE "C",
    result       text
);
CREATE TABLE counter (
    minute   bigint NOT NULL,
    job_type text COLLATE "C" NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    outcome  text COLLATE "C" NOT NULL,
    count    bigint NOT NULL,
    ran      bigint NOT NULL,
    PRIMARY KEY (minute, job_type, queue, outcome)
);
"""
CLAIM = """
WITH head AS MATERIALIZED (
    SELECT ctid AS place, job_id, scheduled_for, attempt, failures FROM ready
    WHERE queue = $1 AND job_type = $2
    ORDER BY priority DESC, scheduled_for, job_id LIMIT $3 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM ready USING head WHERE ready.ctid = head.place
), taken AS (
    INSERT INTO running (job_id, lease_expires_at, started_at, token, attempt, failures, worker_id)
    SELECT job_id, $5::bigint + $6::bigint, $5, $4, attempt + 1, failures, $7 FROM head
)
SELECT j.job_id, head.attempt + 1, head.failures, head.scheduled_for, j.job_type, j.queue, j.priority, j.max_attempts,
    j.timeout_micros, j.created_at, j.payload_version, j.subject, j.tags, j.created_by, j.root_job_id, j.payload
FROM head CROSS JOIN LATERAL (SELECT * FROM job WHERE job_id = head.job_id OFFSET 0) AS j
"""
# The delete is the fence: what it did not find, with this attempt and token, has not ended here.
SETTLE = """
WITH batch AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::text[]) AS b (job_id, attempt, token, result)
), gone AS (
    DELETE FROM running USING batch
    WHERE running.job_id = batch.job_id AND running.attempt = batch.attempt AND running.token = batch.token
    RETURNING running.job_id, running.started_at, running.attempt, running.failures, running.worker_id, batch.result
), done AS (
    INSERT INTO ended (job_id, started_at, completed_at, attempt, failures, status, worker_id, result)
    SELECT job_id, started_at, $5, attempt, failures, 'completed', worker_id, result FROM gone
), counted AS (
    INSERT INTO counter
    SELECT $5::bigint / 60000000, 'noop', 'default', 'completed', count(*), sum($5::bigint - started_at) FROM gone
    ON CONFLICT (minute, job_type, queue, outcome)
    DO UPDATE SET count = counter.count + excluded.count, ran = counter.ran + excluded.ran
)
SELECT job_id FROM gone
"""
FACTS = ("job_id", "created_at", "scheduled_for", "timeout_micros", "priority", "max_attempts", "job_type", "queue")
PLACE = ("queue", "job_type", "priority", "scheduled_for", "job_id", "payload_version", "attempt", "failures")
FILL_BATCH = 1_000
CLAIM_BATCH, SETTLE_BATCH = 100, 200
HELD_MAX = 300  # claimed and not settled: what a worker with 100 slots claims ahead
LEASE_MICROS = 30_000_000
WORKER_ID = f"limit:{os.getpid()}"


class Note(BaseModel):
    user_id: int
    text: str


def drain(order: Order) -> Figures:
    assert order.url is not None
    return uvloop.run(_drain(order.url, order.jobs, vacuumed=True))


def wal(order: Order) -> Figures:
    """WAL of the same jobs from submit to completion."""
    assert order.url is not None
    before = wal_position(order.url)
    uvloop.run(_drain(order.url, order.jobs, vacuumed=False))
    return {"bytes": (wal_position(order.url) - before) / order.jobs}


async def _drain(url: str, jobs: int, *, vacuumed: bool) -> Figures:
    claims, settlements = await asyncpg.connect(url), await asyncpg.connect(url)
    assert await claims.fetchval("SHOW synchronous_commit") == "on", "the limit must pay for durable commits, too"
    await claims.execute(SCHEMA)
    await _fill(claims, jobs)
    if vacuumed:
        await claims.execute("VACUUM ANALYZE job, ready")
        await claims.execute("CHECKPOINT")
    worker = Worker(await claims.prepare(CLAIM), await settlements.prepare(SETTLE), jobs)
    start = time.perf_counter()
    await asyncio.gather(worker.claim_all(), worker.settle_all())
    seconds = time.perf_counter() - start
    assert await claims.fetchval("SELECT count(*) FROM ended") == jobs
    await claims.close()
    await settlements.close()
    return {"rate": jobs / seconds}


async def _fill(connection: Any, jobs: int) -> None:
    payloads = [msgspec.json.encode(each).decode() for each in notes(jobs)]
    for first in range(0, jobs, FILL_BATCH):
        now = time.time_ns() // 1_000
        ids = [_uuid7(now, number) for number in range(len(payloads[first : first + FILL_BATCH]))]
        facts = [(job_id, now, now, LEASE_MICROS, 50, 3, "noop", "default") for job_id in ids]
        rows = [(*row, payload) for row, payload in zip(facts, payloads[first : first + FILL_BATCH], strict=True)]
        places = [("default", "noop", 50, now, job_id, 1, 0, 0) for job_id in ids]
        async with connection.transaction():
            await connection.copy_records_to_table("job", records=rows, columns=(*FACTS, "payload"))
            await connection.copy_records_to_table("ready", records=places, columns=PLACE)


def _uuid7(now: int, number: int) -> uuid.UUID:
    return uuid.UUID(int=(now // 1_000 << 80) | (7 << 76) | (number << 64) | (2 << 62) | secrets.randbits(62))


class Worker:
    def __init__(self, claim: Any, settle: Any, jobs: int) -> None:
        self._claim, self._settle = claim, settle
        self._unsettled = jobs
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: list[tuple[uuid.UUID, int, int, str]] = []
        self._has_ended, self._has_room = asyncio.Event(), asyncio.Event()
        self._encode = msgspec.json.Encoder().encode

    async def claim_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._held > HELD_MAX:
                self._has_room.clear()
                await self._has_room.wait()
            token, now = secrets.randbits(63), time.time_ns() // 1_000
            jobs: Sequence[Any] = await self._claim.fetch(
                "default", "noop", CLAIM_BATCH, token, now, LEASE_MICROS, WORKER_ID
            )
            if not jobs:
                return
            self._held += len(jobs)
            for job in jobs:
                self._tasks.add(task := loop.create_task(self._run(job, token)))
                task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Any, token: int) -> None:
        result = await _handle(Note.__pydantic_validator__.validate_json(job[-1]))
        self._ended.append((job[0], job[1], token, self._encode(result).decode()))
        self._has_ended.set()

    async def settle_all(self) -> None:
        while self._unsettled:
            await self._has_ended.wait()
            self._has_ended.clear()
            while batch := self._ended[:SETTLE_BATCH]:
                del self._ended[:SETTLE_BATCH]
                ids, attempts, tokens, results = map(list, zip(*batch, strict=True))
                now = time.time_ns() // 1_000
                settled = await self._settle.fetch(ids, attempts, tokens, results, now)
                assert len(settled) == len(batch)
                self._unsettled -= len(batch)
                self._held -= len(batch)
                self._has_room.set()


async def _handle(payload: Note) -> dict[str, int]:
    return {"seen": payload.user_id}


MEASURES = {"drain": drain, "wal": wal}
