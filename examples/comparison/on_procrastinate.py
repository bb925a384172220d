"""The same on Procrastinate. Services: PostgreSQL. `python -m comparison.on_procrastinate` runs its worker"""

import os
import time
from typing import Any

import procrastinate
import psycopg
from psycopg.types.json import Json

from comparison.outside import STEP_SECONDS, charge, strike

URL = os.environ["DATABASE_URL"]
STALLED_SECONDS = float(os.environ.get("STALLED_SECONDS", "30"))  # without a heartbeat of its worker

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))

# There are no results, no progress and no recorded steps: a table of our own.
TABLE = "CREATE TABLE IF NOT EXISTS fact (job_id bigint, name text, value jsonb, PRIMARY KEY (job_id, name))"
WRITE = "INSERT INTO fact VALUES (%s, %s, %s) ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value"
READ = "SELECT value FROM fact WHERE job_id = %s AND name = %s"


def remember(job_id: int | None, name: str, value: Any) -> Any:
    with psycopg.connect(URL) as connection:
        connection.execute(WRITE, (job_id, name, Json(value)))
    return value


def recall(job_id: int | None, name: str) -> Any:
    with psycopg.connect(URL) as connection:
        row = connection.execute(READ, (job_id, name)).fetchone()
    return None if row is None else row[0]


@app.task(name="count", pass_context=True)  # there is no timeout
def count(context: procrastinate.JobContext, upto: int) -> None:
    job = context.job
    for number in range(1, upto + 1):
        time.sleep(STEP_SECONDS)
        remember(job.id, "progress", number / upto)
    remember(job.id, "result", {"counted": upto, "attempt": job.attempts + 1})


@app.task(name="order", pass_context=True, retry=procrastinate.RetryStrategy(max_attempts=3, wait=1))
def order(context: procrastinate.JobContext, number: int) -> None:
    job = context.job
    receipt = recall(job.id, "charge") or remember(job.id, "charge", charge(number))
    if job.attempts == 0:
        raise ConnectionError("the mail server is down")
    remember(job.id, "result", {"receipt": receipt, "attempt": job.attempts + 1})


@app.periodic(cron="* * * * * *")
@app.task(name="tick")
def tick(timestamp: int) -> None:
    strike()


# A job stays "doing" for ever when its worker has died: nothing looks for it but what we write.
@app.periodic(cron="* * * * * *")
@app.task(name="rescue", queueing_lock="rescue", pass_context=True)
async def rescue(context: procrastinate.JobContext, timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
        await app.job_manager.retry_job(job)


def set_up() -> None:
    """Once: the schema, and our table."""
    with app.open():
        app.schema_manager.apply_schema()
    with psycopg.connect(URL) as connection:
        connection.execute(TABLE)


def submit(name: str, after: float = 0, **arguments: Any) -> str:
    with app.open():
        return str(app.configure_task(name, schedule_in={"seconds": after} if after else None).defer(**arguments))


def result_of(job_id: str, timeout: float) -> Any:
    until = time.monotonic() + timeout
    while (found := recall(int(job_id), "result")) is None and time.monotonic() < until:
        time.sleep(0.1)
    if found is None:
        raise TimeoutError(job_id)
    return found


def progress_of(job_id: str) -> float:
    return float(recall(int(job_id), "progress") or 0)


def why_not_running(job_id: str) -> str | None:
    with psycopg.connect(URL) as connection:
        row = connection.execute(
            "SELECT status, scheduled_at FROM procrastinate_jobs WHERE id = %s", (job_id,)
        ).fetchone()
    return None if row is None else f"{row[0]}, scheduled at {row[1]}"


if __name__ == "__main__":
    heartbeat = STALLED_SECONDS / 3
    with app.open():
        app.run_worker(concurrency=4, update_heartbeat_interval=heartbeat, stalled_worker_timeout=STALLED_SECONDS)
