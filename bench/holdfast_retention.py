"""Drain in a file with 300,000 old finished jobs while another process moves these to the archive, and while none does.

The other process does what the janitor of a worker does, at its pace, without the pauses between its passes. The
drain's own worker leaves the old jobs alone on both sides. Timed as the drain in a large file is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from contenders import Figures, Order
from drain import wait_for_marks
from holdfast_history import BARE_PENDING_FACTOR, prepare
from holdfast_setup import Setup, open_setup
from holdfast_worker import DRAIN_CONCURRENCY
from processes import BENCH, check_alive, worker_process

AGE_MICROS = 30 * 86_400 * 1_000_000
GROW_OLD = f"""
UPDATE job SET created_at = created_at - {AGE_MICROS}, completed_at = completed_at - {AGE_MICROS}
WHERE completed_at IS NOT NULL
"""
KEEP = ("COMPLETED", "FAILED", "CANCELLED", "ARCHIVE")


class NothingMoved(Exception):
    """Retention did not do anything, so there is nothing to compare."""


def drain_with_retention(order: Order) -> Figures:
    return _drain(order, retention=True)


def drain_without_retention(order: Order) -> Figures:
    return _drain(order, retention=False)


def _drain(order: Order, *, retention: bool) -> Figures:
    pending = BARE_PENDING_FACTOR * order.jobs
    for name in KEEP:
        os.environ[f"HOLDFAST_RETENTION_{name}"] = "never"
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
        setup.worker(f"--concurrency={DRAIN_CONCURRENCY}") as worker,
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
    """Begins when the first handler starts."""
    log = setup.log.with_name("janitor.log")
    with worker_process([sys.executable, str(BENCH / "retention_process.py")], log, {}) as process:
        yield
        check_alive(process)
