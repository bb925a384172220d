"""How the queue and its workers do, from the records of the jobs: by state and priority, and by worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast import Job, Status
from rules.jobs import app

JOBS_MAX = 10_000  # the newest of each state: a look must not read a year of jobs
PERFORMANCE_SPAN = timedelta(hours=24)
NAMES = {100: "urgent", 75: "high", 50: "normal", 25: "low"}


@dataclass(frozen=True, slots=True)
class Group:
    status: str
    priority: int
    count: int
    average_ms: float | None
    newest: datetime
    oldest: datetime

    @property
    def priority_name(self) -> str:
        return NAMES.get(self.priority, str(self.priority))


@dataclass(frozen=True, slots=True)
class Performance:
    worker_id: str
    completed: int
    average_ms: float | None
    failures: int


async def health() -> list[Group]:
    """Most urgent first."""
    groups: dict[tuple[int, str], list[Job]] = {}
    for status in Status:
        async for job in _jobs(status):
            groups.setdefault((job.priority, job.status.value), []).append(job)
    return [
        Group(
            status=status,
            priority=priority,
            count=len(jobs),
            average_ms=_average(jobs),
            newest=max(job.created_at for job in jobs),
            oldest=min(job.created_at for job in jobs),
        )
        for (priority, status), jobs in sorted(groups.items(), key=lambda group: (-group[0][0], group[0][1]))
    ]


async def performance(now: datetime | None = None) -> list[Performance]:
    """Of every worker that ended a job in the last day, gone ones included."""
    since = (now or datetime.now(UTC)) - PERFORMANCE_SPAN
    by_worker: dict[str, list[Job]] = {}
    for status in (Status.COMPLETED, Status.FAILED):
        async for job in _jobs(status):
            # A job that another's result completed was no worker's.
            if job.worker_id is not None and job.completed_at is not None and job.completed_at > since:
                by_worker.setdefault(job.worker_id, []).append(job)
    return [
        Performance(
            worker_id=worker_id,
            completed=sum(job.status == "completed" for job in jobs),
            average_ms=_average(jobs),
            failures=sum(job.status == "failed" for job in jobs),
        )
        for worker_id, jobs in sorted(by_worker.items())
    ]


async def _jobs(status: Status) -> AsyncIterator[Job]:
    after, seen = None, 0
    while seen < JOBS_MAX:
        page = await app.find(job_type="embedding", status=status, after=after, limit=500)
        for job in page:
            yield job
        after, seen = page.next, seen + len(page)
        if after is None:
            return


def _average(jobs: Iterable[Job]) -> float | None:
    times = [job.processing_time_ms for job in jobs if job.processing_time_ms is not None and job.reused_from is None]
    return sum(times) / len(times) if times else None
