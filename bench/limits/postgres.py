"""The limit of the machine: hand-written asyncpg, on a table with ten columns and one index, fsync on.

No queue can do better with the same batches: no ids, no history, no result, no fence, no validation.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import asyncpg

from bench.harness.contenders import Figures, Order
from bench.harness.payload import note

SCHEMA = """
CREATE TABLE job (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue       text NOT NULL DEFAULT 'default',
    priority    smallint NOT NULL DEFAULT 50,
    status      smallint NOT NULL DEFAULT 0,
    payload     text NOT NULL,
    attempt     integer NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL DEFAULT now(),
    worker      text,
    lease_until timestamptz,
    ended_at    timestamptz
);
CREATE INDEX job_ready ON job (queue, priority, id) WHERE status = 0;
"""
INSERT = "INSERT INTO job (payload) VALUES ($1)"
INSERT_MANY = "INSERT INTO job (payload) SELECT unnest($1::text[])"
CLAIM = """
UPDATE job SET status = 1, attempt = attempt + 1, worker = 'limit', lease_until = now() + interval '60 s'
WHERE id IN (
    SELECT id FROM job WHERE status = 0 AND queue = 'default' ORDER BY priority, id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING id, payload
"""
SETTLE = "UPDATE job SET status = 2, ended_at = now(), lease_until = NULL WHERE id = ANY ($1::bigint[]) AND status = 1"
BATCH = 100
CONNECTIONS = 2  # the next batch is claimed while one runs and is settled
WARM_UP_JOBS = 50
PAYLOAD = json.dumps(note(0))


def single_commits(order: Order) -> Figures:
    return asyncio.run(_single_commits(order))


def bulk(order: Order) -> Figures:
    return asyncio.run(_bulk(order))


def bulk_copy(order: Order) -> Figures:
    return asyncio.run(_bulk_copy(order))


def drain(order: Order) -> Figures:
    return asyncio.run(_drain(order))


async def _single_commits(order: Order) -> Figures:
    connection = await create(order)
    insert = await connection.prepare(INSERT)
    for _ in range(WARM_UP_JOBS):
        await insert.fetch(PAYLOAD)
    start = time.perf_counter()
    for _ in range(order.jobs):
        await insert.fetch(PAYLOAD)
    return {"rate": order.jobs / (time.perf_counter() - start)}


async def _bulk(order: Order) -> Figures:
    connection = await create(order)
    rows = [PAYLOAD] * order.jobs
    start = time.perf_counter()
    await connection.execute(INSERT_MANY, rows)
    return {"rate": order.jobs / (time.perf_counter() - start)}


async def _bulk_copy(order: Order) -> Figures:
    connection = await create(order)
    rows = [(PAYLOAD,)] * order.jobs
    start = time.perf_counter()
    await connection.copy_records_to_table("job", records=rows, columns=["payload"])
    return {"rate": order.jobs / (time.perf_counter() - start)}


async def _drain(order: Order) -> Figures:
    """Drain on two connections: claim 100 in one commit, decode them in tasks, settle 100 in another."""
    connection = await create(order)
    await connection.execute(INSERT_MANY, [PAYLOAD] * order.jobs)
    await connection.execute("VACUUM ANALYZE job")
    await connection.execute("CHECKPOINT")
    connections = [await asyncpg.connect(order.url) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    settled = sum(await asyncio.gather(*map(_claim_and_settle, connections)))
    seconds = time.perf_counter() - start
    assert settled == order.jobs
    return {"rate": settled / seconds}


async def _claim_and_settle(connection: Any) -> int:
    claim, settle = await connection.prepare(CLAIM), await connection.prepare(SETTLE)
    settled = 0
    while claimed := await claim.fetch(BATCH):
        await asyncio.gather(*[asyncio.ensure_future(_handle(row[1])) for row in claimed])
        await settle.fetch([row[0] for row in claimed])
        settled += len(claimed)
    return settled


async def _handle(payload: str) -> None:
    json.loads(payload)


async def create(order: Order) -> Any:
    connection = await asyncpg.connect(order.url)
    assert await connection.fetchval("SHOW synchronous_commit") == "on", "the limit must pay for durable commits, too"
    await connection.execute(SCHEMA)
    return connection


MEASURES = {"submit-one": single_commits, "submit-many": bulk, "drain": drain}
COPY = {"submit-many": bulk_copy}
