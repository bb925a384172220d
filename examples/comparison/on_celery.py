"""The same on Celery. Services: Redis, and a beat process. `celery --app comparison.on_celery worker` and `beat`"""

import os
import time
from typing import Any

from celery import Celery, Task
from celery.result import AsyncResult

from comparison.outside import STEP_SECONDS, charge, strike

# A task that no worker has acknowledged for so long is given to another. It must be longer than the longest task
# may take, or that is started twice.
VISIBILITY_SECONDS = float(os.environ.get("VISIBILITY_SECONDS", "90"))

app = Celery("comparison", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
app.conf.update(
    task_acks_late=True,  # or a task is lost with its worker
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_track_started=True,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_SECONDS,
        "unacked_restore_interval": 1,  # seconds; else it looks every 100
        "unacked_restore_throttle": 1,
    },
    beat_schedule={"often": {"task": "tick", "schedule": 1.0}},
)


@app.task(name="count", bind=True, time_limit=60)
def count(self: Task, upto: int) -> dict[str, int]:
    for number in range(1, upto + 1):
        time.sleep(STEP_SECONDS)
        self.update_state(state="PROGRESS", meta={"fraction": number / upto, "stage": f"at {number}"})
    return {"counted": upto, "attempt": self.request.retries + 1}  # a worker that died is not an attempt here


@app.task(name="order", bind=True, max_retries=2)
def order(self: Task, number: int) -> dict[str, Any]:
    # There are no recorded steps: one of our own, in a key that a retry finds by the id of the task.
    redis, key = app.backend.client, f"step-charge-{self.request.id}"
    if (recorded := redis.get(key)) is None:
        recorded = charge(number).encode()
        redis.set(key, recorded, ex=7 * 24 * 3600)
    if self.request.retries == 0:
        raise self.retry(exc=ConnectionError("the mail server is down"), countdown=0.1)
    return {"receipt": recorded.decode(), "attempt": self.request.retries + 1}


@app.task(name="tick")
def tick() -> None:
    strike()


def set_up() -> None:
    """Nothing: the schedule is in the settings, and a process of its own watches it."""


def submit(name: str, after: float = 0, **arguments: Any) -> str:
    return str(app.send_task(name, kwargs=arguments, countdown=after or None).id)


def result_of(job_id: str, timeout: float) -> Any:
    return AsyncResult(job_id, app=app).get(timeout=timeout)


def progress_of(job_id: str) -> float:
    found = AsyncResult(job_id, app=app)
    return float(found.info["fraction"]) if found.state == "PROGRESS" else 0.0


def why_not_running(job_id: str) -> str | None:
    return None  # PENDING is also the state of a task that never was
