"""Queues of RQ, made and partly run by RQ itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from redis import Redis
from rq import Queue, Retry, SimpleWorker
from rq.job import Job as RqJob
from rq.timeouts import BaseDeathPenalty

from backstay import Job
from tests.imports.facts import Facts, utc

LATER = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)
TASK = "tests.imports.rq_source.send"
BECOMES = {"queued": "pending", "finished": "completed", "canceled": "cancelled", "started": "retrying"}
PLAIN = {
    "days": [date(2026, 11, 15)],
    "price": Decimal("1.50"),
    "id": UUID(int=7),
    "at": LATER,
    "tags": {"a"},
    "n": (1, None),
}


class NoTimeLimit(BaseDeathPenalty):
    """Time limits of RQ are signals, which threads of tests do not get."""

    def setup_death_penalty(self) -> None: ...

    def cancel_death_penalty(self) -> None: ...


class Worker(SimpleWorker):
    death_penalty_class = NoTimeLimit

    def _install_signal_handlers(self) -> None: ...


def send(to: str, pages: int = 1) -> dict[str, object]:
    if pages < 0:
        raise ValueError(f"{pages} pages")
    return {"sent": True, "to": to}


def make(url: str, jobs: int, serializer: str = "pickle") -> None:
    """Queues in which so many jobs of each kind have finished, failed, been canceled, wait for another attempt, run,
    wait for their time, wait for others, and wait."""
    logging.getLogger("rq.worker").setLevel(logging.CRITICAL)
    connection = Redis.from_url(url)
    mail = Queue("mail", connection=connection, serializer=serializer)
    for number in range(jobs):
        mail.enqueue(TASK, "Zoë", pages=number, result_ttl=-1)
        mail.enqueue(TASK, "b", pages=-1)
        mail.enqueue(TASK, "c", pages=-1, retry=Retry(max=3, interval=3600))
    Worker([mail], connection=connection, serializer=serializer).work(burst=True)
    running = [mail.enqueue(TASK, args=("d", number), job_timeout=77) for number in range(jobs)]
    for job in running:
        mail.remove(job)
        job.prepare_for_execution("worker-1", connection.pipeline())
        job.started_at = datetime.now(UTC)
        job.set_status("started")
        job.save()
    for number in range(jobs):
        mail.enqueue(TASK, "e", pages=number).cancel()
        mail.enqueue_at(LATER + timedelta(seconds=number), TASK, "f", pages=number)
        first = mail.enqueue(TASK, kwargs={"to": "g", "pages": number}, job_id=f"first-{number}")
        mail.enqueue(TASK, "h", pages=number, depends_on=first)


def add(url: str, jobs: int) -> None:
    """So many more that wait."""
    mail = Queue("mail", connection=Redis.from_url(url))
    for first in range(0, jobs, 1000):
        some = range(first, min(jobs, first + 1000))
        mail.enqueue_many([Queue.prepare_data(TASK, kwargs={"to": "many", "pages": number}) for number in some])


def facts(url: str, serializer: str = "pickle") -> Iterator[Facts]:
    connection = Redis.from_url(url)
    ids = [key.decode().removeprefix("rq:job:") for key in connection.scan_iter("rq:job:*", _type="hash")]
    for job in RqJob.fetch_many(ids, connection=connection, serializer=serializer):
        assert job is not None
        status = job.get_status(refresh=False).value
        became = BECOMES.get(status, status)
        if status == "scheduled" and job.started_at:
            became = "retrying"
        if status == "deferred":
            became = "waiting"
        is_over = became in ("completed", "failed", "cancelled")
        score = connection.zscore(f"rq:scheduled:{job.origin}", job.id) if status == "scheduled" else None
        result = job.latest_result() if is_over else None
        yield (
            job.id,
            became,
            job.origin,
            job.func_name,
            {**job.kwargs, "to": job.args[0], **({"pages": job.args[1]} if len(job.args) > 1 else {})}
            if job.args
            else job.kwargs,
            job.timeout,
            (job.retries_left or 0) + 1 + (status == "started" or (became == "retrying" and status == "scheduled")),
            utc(job.created_at) if became != "waiting" else None,  # it is submitted anew
            utc(job.started_at) if became != "pending" else None,
            utc(job.ended_at) if became in ("completed", "failed") else None,
            datetime.fromtimestamp(score, UTC).isoformat() if score else None,
            job.return_value() if status == "finished" else None,
            result.exc_string.strip().splitlines()[-1] if result and result.exc_string else None,
            sorted(job._dependency_ids),
        )


def facts_of(job: Job, ids: dict[str, str]) -> Facts:
    """`ids`: those of RQ, by ours."""
    return (
        ids[job.job_id],
        job.status.value,
        job.queue,
        job.job_type,
        job.payload,
        int(job.timeout_seconds),
        job.max_attempts,
        utc(job.created_at) if job.status != "waiting" else None,
        utc(job.started_at),
        utc(job.completed_at) if job.status != "cancelled" else None,
        utc(job.scheduled_for) if job.scheduled_for > job.created_at + timedelta(minutes=10) else None,
        job.result,
        job.last_error if job.status == "failed" else None,
        sorted(ids[each] for each in job.dependencies),
    )
