"""A queue of Procrastinate, made and partly run by Procrastinate itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import procrastinate
import psycopg

from backstay import Job
from tests.imports.facts import Facts, own_id, utc

LATER = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)
BECOMES = {"todo": "pending", "doing": "retrying", "succeeded": "completed", "aborted": "cancelled"}


def an_app(url: str) -> procrastinate.App:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="reports.send", queue="mail")
    def send(to: str, pages: int) -> None:
        if pages < 0:
            raise ValueError(f"{pages} pages")

    @app.task(name="reports.draw", queue="pictures", retry=procrastinate.RetryStrategy(max_attempts=4, wait=3600))
    def draw(title: str) -> None:
        raise ConnectionError("no printer")

    return app


async def make(url: str, jobs: int) -> None:
    """A queue in which so many jobs of each kind have succeeded, failed, been cancelled, wait for another attempt, run,
    wait for their time, and wait."""
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    app = an_app(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        send, draw = app.tasks["reports.send"], app.tasks["reports.draw"]
        await send.configure(priority=7).batch_defer_async(*({"to": "Zoë", "pages": n} for n in range(jobs)))
        await send.batch_defer_async(*({"to": "b", "pages": -1} for _ in range(jobs)))
        await draw.batch_defer_async(*({"title": f"{n}"} for n in range(jobs)))
        await app.run_worker_async(wait=False, install_signal_handlers=False, concurrency=1)
        for id_ in await send.batch_defer_async(*({"to": "c", "pages": 1} for _ in range(jobs))):
            await app.job_manager.cancel_job_by_id_async(id_)
        worker = await app.job_manager.register_worker()
        await send.configure(priority=100).batch_defer_async(*({"to": "d", "pages": n} for n in range(jobs)))
        for _ in range(jobs):
            await app.job_manager.fetch_job(queues=["mail"], worker_id=worker)
        await send.configure(schedule_at=LATER).batch_defer_async(*({"to": "e", "pages": n} for n in range(jobs)))
        for number in range(jobs):
            locked = send.configure(queueing_lock=f"once-{number}", lock="one at a time", priority=-60)
            await locked.defer_async(to="f", pages=number)


async def add(url: str, jobs: int) -> None:
    """So many more that wait."""
    app = an_app(url)
    async with app.open_async():
        send = app.tasks["reports.send"].configure(priority=3)
        for first in range(0, jobs, 5000):
            some = range(first, min(jobs, first + 5000))
            await send.batch_defer_async(*({"to": "many", "pages": number} for number in some))


def facts(url: str) -> Iterator[Facts]:
    with psycopg.connect(url) as connection:
        events: dict[int, dict[str, Any]] = {}
        for job_id, kind, at in connection.execute("SELECT job_id, type, at FROM procrastinate_events ORDER BY id"):
            events.setdefault(job_id, {}).setdefault("deferred", at)
            events[job_id][kind] = at
        reading = (
            "SELECT id, queue_name, task_name, priority, lock, queueing_lock, args, status, scheduled_at, attempts"
        )
        for row in connection.execute(f"{reading} FROM procrastinate_jobs".encode()):
            id_, queue, task, priority, lock, queueing_lock, args, status, scheduled_at, attempts = row
            at = events[id_]
            became = BECOMES.get(status, status)
            if status == "todo":
                became = "retrying" if attempts else "scheduled" if scheduled_at else "pending"
            is_over = became in ("completed", "failed", "cancelled")
            yield (
                str(id_),
                became,
                queue,
                task,
                max(0, min(100, 50 + priority)),
                args,
                attempts + (status == "doing"),
                utc(at["deferred"]),
                utc(at.get("started")),
                utc(at.get(status)) if is_over else None,
                utc(scheduled_at) if scheduled_at else None,
                lock if not is_over else None,
                queueing_lock,
            )


def facts_of(job: Job) -> Facts:
    return (
        own_id(job),
        job.status.value,
        job.queue,
        job.job_type,
        job.priority,
        job.payload,
        job.attempt,
        utc(job.created_at),
        utc(job.started_at),
        utc(job.completed_at),
        utc(job.scheduled_for) if job.scheduled_for > job.created_at else None,
        job.concurrency_key,
        job.dedup_key,
    )


def in_an_hour(moment: datetime) -> bool:
    return timedelta(minutes=50) < moment - datetime.now(UTC) < timedelta(minutes=61)
