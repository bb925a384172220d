"""Measures a drain in a file with 300,000 old finished jobs, with and without another process that archives them.

The other process runs the retention of a worker, at its pace, without the pauses between its passes. The
drain's own worker leaves the old jobs alone on both sides. Timed like the drain in a large file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from bench.harness.contenders import Figures, Order
from bench.harness.processes import check_alive, worker_process
from bench.harness.setup import Setup, open_setup
from bench.harness.timing import wait_for_marks
from bench.workloads.drain import CONCURRENCY
from bench.workloads.history import BARE_PENDING_FACTOR, prepare

AGE_MICROS = 30 * 86_400 * 1_000_000
GROW_OLD = f"""
UPDATE job SET created_at = created_at - {AGE_MICROS} WHERE seq IN (SELECT seq FROM ended);
UPDATE ended SET completed_at = completed_at - {AGE_MICROS}
"""
JANITOR = (sys.executable, "-m", "bench.workloads.retention")
LOOK_SECONDS = 0.002
KEEP = ("COMPLETED", "FAILED", "CANCELLED", "ARCHIVE")


class NothingMoved(Exception):
    """Retention did nothing, so there is nothing to compare."""


def drain_with_retention(order: Order) -> Figures:
    return _drain(order, retention=True)


def drain_without_retention(order: Order) -> Figures:
    return _drain(order, retention=False)


def _drain(order: Order, *, retention: bool) -> Figures:
    pending = BARE_PENDING_FACTOR * order.jobs
    for name in KEEP:
        os.environ[f"BACKSTAY_RETENTION_{name}"] = "never"
    setup = open_setup(order, marked_jobs=0)
    name = f"retirable-{order.retirable}-{pending}"
    if not setup.store.is_kept(name):
        asyncio.run(prepare(setup, order.retirable, pending))
        setup.store.execute(GROW_OLD)
        setup.store.keep(name)
        setup.marks.clear()
    setup.store.restore(name)
    with (
        _janitor(setup) if retention else nullcontext(),
        setup.worker(f"--concurrency={CONCURRENCY}") as worker,
    ):
        wait_for_marks(worker, setup.marks, order.jobs)
        unsettled, at_ns = setup.store.unsettled()
        archived = setup.store.value("SELECT count(*) FROM archive")
    seconds = (at_ns - setup.marks.first_ns) / 1e9
    if retention and not archived:
        raise NothingMoved(f"no job was archived in {seconds:.1f} s")
    return {"rate": (pending - unsettled) / seconds, "archived": archived / seconds}


@contextmanager
def _janitor(setup: Setup) -> Iterator[None]:
    """Start the process of retention, which begins when the first handler starts."""
    log = setup.log.with_name("janitor.log")
    with worker_process(list(JANITOR), log, {}) as process:
        yield
        check_alive(process)


async def main() -> None:
    """Run retention, pass after pass, from the start of the first handler until SIGTERM."""
    from bench.harness.app import app  # reads the environment on import

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app:
        tidying = asyncio.create_task(_tidy_up())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([tidying, stopped], return_when=asyncio.FIRST_COMPLETED)
        if tidying.done():
            tidying.result()  # it does not end by itself
        tidying.cancel()


async def _tidy_up() -> None:
    from backstay import Retention
    from backstay.clock import SystemClock
    from backstay.files.local import LocalFiles
    from backstay.ops.wait import Trouble
    from backstay.worker import maintenance

    from bench.harness.app import MARKS, app

    clock = SystemClock()
    trouble = Trouble(maintenance.log, clock)
    janitor = maintenance.Janitor(app.store, clock, LocalFiles(str(app.store.files_root)), Retention(), trouble)
    while not MARKS.count:  # noqa: ASYNC110 - the mark is left by another process
        await asyncio.sleep(LOOK_SECONDS)
    while True:
        await janitor.clean_up()
        await asyncio.sleep(LOOK_SECONDS)


MEASURES = {"retention": drain_with_retention}
WITHOUT_RETENTION = {"retention": drain_without_retention}

if __name__ == "__main__":
    asyncio.run(main())
