"""Queues and results of Celery in Redis, made and partly run by Celery itself.

Celery leaves connections open until its process ends, so it has a process of its own: `celery(work, url)` runs one of
the functions here in it, and returns what that returns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from celery import Celery, chain, group, signals
from celery.contrib.testing.worker import start_worker
from celery.worker import state
from redis import Redis

from backstay import Job
from tests.imports.facts import Facts, utc

LATER = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)
TASK = "shop.send"


def an_app(url: str, results: str | None = None, **settings: Any) -> Celery:
    app = Celery("shop", broker=url, backend=results or url, set_as_current=False)
    app.conf.update(task_default_queue="mail", result_extended=True, worker_hijack_root_logger=False)
    app.conf.update(settings)

    @app.task(name=TASK, bind=True, max_retries=5, shared=False)
    def send(self: Any, to: str, pages: int = 1) -> dict[str, object]:
        if to == "later":
            raise self.retry(countdown=3600, exc=ConnectionError("busy"))
        if pages < 0:
            raise ValueError(f"{pages} pages")
        return {"sent": True, "to": to}

    return app


def make(app: Celery, jobs: int) -> list[Facts]:
    """Queues in which so many tasks of each kind wait for another attempt, have succeeded, failed, been revoked, wait
    for their time, wait with a priority, and wait. Returns what is expected of each here."""
    expected: list[Facts] = []

    def sent(to: str, pages: int, became: str, outcome: Any = None, attempt: int = 0, **options: Any) -> Any:
        result = app.tasks[TASK].apply_async((to,), {"pages": pages}, **options)
        priority = 50 if became in ("completed", "failed", "cancelled") else 50 - 5 * options.get("priority", 0)
        eta = utc(options.get("eta"))
        payload = {"to": to, "pages": pages}
        queue = options.get("queue", "mail")
        expected.append((result.id, became, TASK, queue, priority, payload, attempt, eta, outcome))
        return result

    for number in range(jobs):
        sent("later", number, "retrying", None, 1)
    revoked = [sent("d", number, "cancelled") for number in range(jobs)]
    for number in range(jobs):
        sent("b", -1 - number, "failed", f"ValueError: {-1 - number} pages", 1)
    done = [sent("Zoë", number, "completed", {"sent": True, "to": "Zoë"}, 1) for number in range(jobs)]
    with_revoked(app, revoked, lambda: run(app, [*done, *revoked]))
    for number in range(jobs):
        sent("e", number, "scheduled", eta=LATER + timedelta(seconds=number))
        sent("f", number, "pending", priority=3)
        sent("g", number, "pending", queue="pictures")
    return expected


def add(app: Celery, jobs: int) -> None:
    """So many more that wait."""
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(jobs):
            app.tasks[TASK].apply_async((), {"to": "many", "pages": number}, producer=producer)


def run(app: Celery, until: list[Any]) -> None:
    """Let a worker run until these have ended. They are not asked whether they have: that leaves connections open."""
    left = {each.id for each in until}
    done = threading.Event()

    def note(task_id: str | None = None, request: Any = None, **_: Any) -> None:
        left.discard(task_id or request.id)
        if not left:
            done.set()

    signals.task_postrun.connect(note, weak=False)
    signals.task_revoked.connect(note, weak=False)
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, logfile="/dev/null"):
            assert done.wait(30)
    finally:
        signals.task_postrun.disconnect(note)
        signals.task_revoked.disconnect(note)


def with_revoked(app: Celery, tasks: list[Any], work: Callable[[], None]) -> None:
    """Run a worker that was told to revoke these."""
    known = {each.id for each in tasks}
    state.revoked.update(known)
    try:
        work()
    finally:
        for each in known:
            state.revoked.discard(each)


def ordered(app: Celery) -> None:
    for number in range(5):
        app.tasks[TASK].delay(f"{number}")
    app.tasks[TASK].apply_async(("last",), priority=9)
    app.tasks[TASK].apply_async(("middle",), priority=3)


def taken(app: Celery) -> None:
    """A worker has taken a message, and is killed."""
    app.tasks[TASK].delay("a")
    with app.connection_for_read() as connection, connection.channel() as channel:
        assert app.amqp.queues["mail"](channel).get() is not None
        os._exit(0)


def typed(app: Celery) -> None:
    app.tasks[TASK].apply_async(("a",), {"pages": {"at": LATER, "id": UUID(int=7)}})


def linked(app: Celery) -> None:
    send = app.tasks[TASK]
    chain(send.si("a"), send.si("b")).apply_async()
    send.apply_async(("c",), link=send.si("d"))
    send.apply_async(("e",), expires=datetime.now(UTC) + timedelta(days=1))
    group(send.s("f"), send.s("g")).apply_async()


def result_of(app: Celery, task_id: str) -> Any:
    return app.AsyncResult(task_id).result


def celery(work: Callable[..., Any], url: str, *arguments: Any, results: str | None = None, **settings: Any) -> Any:
    """Run a function of this module in a process of its own."""
    said = json.dumps([work.__name__, url, results, settings, arguments])
    command = [sys.executable, "-m", "tests.imports.celery_source", said]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout or "null")


def facts(url: str, fields: tuple[str, ...] = ()) -> Iterator[Facts]:
    """Of all that waits and has ended, of an application with JSON. `fields`: the names of positional arguments."""
    client = Redis.from_url(url)

    def payload_of(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        named = dict(zip(fields, args, strict=False)) if fields else {"args": args} if args else {}
        return {**named, **kwargs}

    waiting = [raw for key in client.scan_iter(_type="list") for raw in client.lrange(key, 0, -1)]
    taken = [json.dumps(json.loads(raw)[0]) for raw in client.hvals("unacked")]
    for raw in (*waiting, *taken):
        message = json.loads(raw)
        headers, properties = message["headers"], message["properties"]
        args, kwargs, _ = json.loads(b64decode(message["body"]))
        yield (
            headers["id"],
            "retrying" if headers["retries"] else "scheduled" if headers["eta"] else "pending",
            headers["task"],
            properties["delivery_info"]["routing_key"],
            50 - 5 * properties["priority"],
            payload_of(args, kwargs),
            headers["retries"],
            utc(headers["eta"]) if not headers["retries"] else None,
            None,
        )
    for key in client.scan_iter("celery-task-meta-*"):
        said = json.loads(client.get(key) or "{}")
        became = {"SUCCESS": "completed", "FAILURE": "failed", "REVOKED": "cancelled"}.get(said["status"])
        if became is None:
            continue
        outcome = said["result"] if became == "completed" else None
        if became == "failed":
            outcome = f"{said['result']['exc_type']}: {said['result']['exc_message'][0]}"
        yield (
            said["task_id"],
            became,
            said["name"],
            said["queue"],
            50,
            payload_of(said["args"], said["kwargs"]),
            0 if became == "cancelled" else said["retries"] + 1,
            None,
            outcome,
        )


def facts_of(job: Job) -> Facts:
    is_later = job.status == "scheduled"
    outcome = job.result if job.status == "completed" else job.last_error if job.status == "failed" else None
    return (
        job.job_id,
        job.status.value,
        job.job_type,
        job.queue,
        job.priority,
        job.payload,
        job.attempt,
        utc(job.scheduled_for) if is_later else None,
        outcome,
    )


if __name__ == "__main__":
    name, url, results, settings, arguments = json.loads(sys.argv[1])
    print(json.dumps(globals()[name](an_app(url, results, **settings), *arguments)))
