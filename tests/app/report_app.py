"""An app with a report to schedule, on a clock that is moved by hand."""

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from backstay import Backstay, Context, Job
from backstay.testing import ManualClock
from backstay.worker.maintenance import Scheduler

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Report(BaseModel):
    kind: str
    pages: int = 1


def with_report(app: Backstay) -> Backstay:
    @app.job("report", priority=70)
    async def report(payload: Report, ctx: Context) -> str:
        return f"{payload.kind} by {ctx.job.schedule}"

    return app


def go_to(app: Backstay, moment: datetime) -> None:
    assert isinstance(app.clock, ManualClock)
    app.clock.set(moment)


async def look(app: Backstay, at: datetime | None = None) -> None:
    """What a worker does when it wakes up at a time: it decides all ticks that are due."""
    if at is not None:
        go_to(app, at)
    await Scheduler(app.store, app.clock, look_seconds=60).look()


async def jobs(app: Backstay) -> list[Job]:
    return sorted(await app.find(job_type="report"), key=lambda job: job.tick_at or NOON)


async def ticks(app: Backstay) -> list[datetime | None]:
    return [job.tick_at for job in await jobs(app)]
