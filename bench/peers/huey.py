"""huey on SQLite, run by its own `huey_consumer` command, with WAL and synchronous=FULL.

huey deletes a task's row when it takes it: at most once, with no record of it afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.harness import timing
from bench.harness.contenders import Figures, Measure, Order
from bench.harness.marks import FILE_VARIABLE as MARKS_VARIABLE
from bench.harness.marks import Marks
from bench.harness.payload import note
from bench.harness.processes import cpu_percent, resident_megabytes, worker_process
from bench.harness.timing import jobs_per_second

CONSUMER = Path(sys.executable).parent / "huey_consumer"
APP = "bench.peers.huey_app.huey"
QUIET = "-q"  # its default is two log lines per task
FILE_VARIABLE = "BENCH_HUEY_FILE"
WARM_UP_JOBS = 50


def measures(*options: str) -> dict[str, Measure]:
    """Return huey's measurements with these options of its consumer."""
    return {
        "submit-blocking": submit_one,
        "drain": lambda order: drain(order, options),
        "pickup-other": lambda order: pickup_other(order, options),
        "idle": lambda order: idle(order, options),
    }


def submit_one(order: Order) -> Figures:
    _, submit, _ = _open(order)
    for number in range(WARM_UP_JOBS):
        submit(number)
    start = time.perf_counter()
    for number in range(order.jobs):
        submit(number)
    return {"rate": order.jobs / (time.perf_counter() - start)}


def drain(order: Order, options: tuple[str, ...]) -> Figures:
    marks, submit, left = _open(order)
    for number in range(order.jobs):
        submit(number)
    with _consumer(order, options) as worker:
        return {"rate": jobs_per_second(worker, marks, order.jobs, lambda: left() > 0)}


def pickup_other(order: Order, options: tuple[str, ...]) -> Figures:
    marks, submit, _ = _open(order)
    with _consumer(order, options):
        for _ in range(timing.WARM_UP_JOBS):
            submit(timing.WARM_UP_NUMBER)
        timing.wait_for_count(marks, timing.WARM_UP_JOBS)
        time.sleep(timing.SETTLE_SECONDS)
        begun = timing.blocking_load(submit, order.jobs)
        timing.wait_for_count(marks, timing.WARM_UP_JOBS + order.jobs)
    return timing.percentiles(begun, marks)


def idle(order: Order, options: tuple[str, ...]) -> Figures:
    """Measure an idle consumer that has done one job."""
    marks, submit, _ = _open(order)
    with _consumer(order, options) as worker:
        submit(timing.WARM_UP_NUMBER)
        timing.wait_for_count(marks, 1)
        time.sleep(1.0)
        return {"cpu": cpu_percent(worker.pid, order.idle_seconds), "rss": resident_megabytes(worker.pid)}


def _open(order: Order) -> tuple[Marks, Callable[[int], Any], Callable[[], int]]:
    marks = Marks.create(order.folder / "marks", order.jobs)
    os.environ[FILE_VARIABLE] = str(order.folder / "huey.db")
    os.environ[MARKS_VARIABLE] = str(order.folder / "marks")
    from bench.peers.huey_app import huey, noop  # reads the two variables on import

    return marks, lambda number: noop(note(number)), huey.pending_count


def _consumer(order: Order, options: tuple[str, ...]) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return worker_process([str(CONSUMER), APP, QUIET, *options], order.folder / "worker.log", {})


# As its documentation starts it: one worker thread, polling from 0.1 s with back-off.
MEASURES = measures()
# Tuned for latency: it polls every millisecond, at the price of CPU time when idle.
POLLING = measures("--delay=0.001", "--max-delay=0.001", "--backoff=1.0")
