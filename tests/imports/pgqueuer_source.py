"""A queue of PgQueuer, made and partly run by PgQueuer itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job as PgQueuerJob
from pgqueuer.queries import EntrypointExecutionParameter

from backstay import Job
from tests.imports.facts import Facts, utc

BECOMES = {"queued": "pending", "picked": "retrying", "successful": "completed", "exception": "failed"}
TERMINAL = ("successful", "exception", "failed", "canceled", "deleted")


async def make(url: str, jobs: int) -> None:
    """A queue in which so many jobs of each kind have succeeded, failed, are held after they failed, wait for another
    attempt, were deleted, wait for their time, wait, and run."""
    logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()

    async def put(entrypoint: str, payloads: list[bytes | None], **options: Any) -> None:
        for number, payload in enumerate(payloads):
            each = {name: value(number) if callable(value) else value for name, value in options.items()}
            await queries.enqueue(entrypoint, payload, **each)

    letters: list[bytes | None] = [json.dumps({"to": "Zoë", "pages": n}).encode() for n in range(jobs)]
    await put("send", letters)
    await put("fail", letters)
    await put("hold", letters, priority=9)
    await put("later", letters)
    worker = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(worker))
    left = 4 * jobs

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            queue.shutdown.set()

    @queue.entrypoint("send")
    async def send(job: PgQueuerJob) -> None:
        count()

    @queue.entrypoint("fail")
    async def fail(job: PgQueuerJob) -> None:
        count()
        raise ValueError("no paper")

    @queue.entrypoint("hold", on_failure="hold")
    async def hold(job: PgQueuerJob) -> None:
        count()
        raise ValueError("no ink")

    @queue.entrypoint("later")
    async def later(job: PgQueuerJob) -> None:
        count()
        raise RetryRequested(delay=timedelta(hours=1), reason="busy")

    await queue.run(batch_size=5)

    await put("send", letters)
    await queries.clear_queue("send")
    await put("send", letters, execute_after=timedelta(days=400), headers={"tenant": "north"})
    await put("send", letters, priority=-70, dedupe_key=lambda n: f"once-{n}")
    await put("send", [b"plain text", b"\xff\x00", None])
    await put("draw", letters)
    parameters = {"draw": EntrypointExecutionParameter(concurrency_limit=0)}
    await queries.dequeue(jobs, parameters, queue.qm.queue_manager_id, None, timedelta(minutes=1))
    await worker.close()
    await connection.close()


async def add(url: str, jobs: int) -> None:
    """So many more that wait."""
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    for first in range(0, jobs, 1000):
        some = range(first, min(jobs, first + 1000))
        payloads: list[bytes | None] = [json.dumps({"to": "many", "pages": number}).encode() for number in some]
        await queries.enqueue(["send"] * len(payloads), payloads, [3] * len(payloads))
    await connection.close()


def payload_of(content: bytes | None) -> Any:
    if content is None:
        return None
    if content[:1] == b"{":
        return json.loads(content)
    return {b"plain text": "plain text", b"\xff\x00": {"base64": "/wA="}}[bytes(content)]


def facts(url: str) -> Iterator[Facts]:
    with psycopg.connect(url) as connection:
        lines: dict[int, list[tuple[Any, ...]]] = {}
        log = "SELECT job_id, status, created, priority, entrypoint, traceback FROM pgqueuer_log ORDER BY created, id"
        for job_id, *line in connection.execute(log.encode()):
            lines.setdefault(job_id, []).append(tuple(line))
        columns = "id, status, priority, entrypoint, payload, created, execute_after, dedupe_key, attempts"
        queue = {row[0]: row[1:] for row in connection.execute(f"SELECT {columns} FROM pgqueuer".encode())}
        for job_id, past in lines.items():
            status, created, priority, entrypoint, _ = past[-1]
            payload = due = key = None
            attempts = 0
            if job_id in queue:
                status, priority, entrypoint, payload, created, due, key, attempts = queue[job_id]
            became = BECOMES.get(status, "cancelled" if status == "deleted" else status)
            if became == "pending" and due > created:
                became = "retrying" if attempts else "scheduled"
            is_over = job_id not in queue or status == "failed"
            picks = [at for kind, at, *_ in past if kind == "picked"]
            errors = [said["exception_message"] for *_, said in past if said]
            yield (
                str(job_id),
                became,
                entrypoint,
                max(0, min(100, 50 + priority)),
                payload_of(payload),
                len(picks),
                utc(past[0][1]),
                utc(picks[-1]) if picks else None,
                utc(past[-1][1]) if is_over else None,
                utc(due) if due is not None and due > created and not is_over else None,
                key,
                errors[-1] if errors else None,
            )


def facts_of(job: Job) -> Facts:
    told = [entry["message"] for entry in job.errors if "was running" not in entry["message"]]
    return (
        job.tags[-1],
        job.status.value,
        job.job_type,
        job.priority,
        job.payload,
        job.attempt,
        utc(job.created_at),
        utc(job.started_at),
        utc(job.completed_at),
        utc(job.scheduled_for) if job.scheduled_for > job.created_at else None,
        job.dedup_key,
        told[-1] if told else None,
    )
