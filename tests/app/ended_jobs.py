"""Jobs that have ended, for what becomes of them afterwards."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backstay import Backstay, Context
from backstay.testing import drain

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LARGE = "x" * 200_000  # beyond what a record carries: a file


def with_work(app: Backstay, **options: Any) -> Backstay:
    @app.job("work", max_attempts=1, **options)
    async def work(payload: Any, ctx: Context) -> Any:
        ctx.log.info("working")
        ctx.metric("rows", 42)
        if payload == "fail":
            raise ValueError("no such thing")
        if payload == "keep":
            await ctx.artifact("report.txt", b"kept")
        return LARGE if payload == "large" else payload

    return app


async def ended(app: Backstay, *payloads: Any, **options: Any) -> list[str]:
    """Jobs that have run, one for each payload."""
    handles = [await app.submit("work", payload, **options) for payload in payloads]
    await drain(app)
    return [handle.job_id for handle in handles]


async def archived(app: Backstay, *job_ids: str) -> list[bool]:
    return [(await app.get(job_id)).archived_at is not None for job_id in job_ids]


def folder(tmp_path: Path, job_id: str) -> Path:
    return tmp_path / "jobs.db.files" / job_id
