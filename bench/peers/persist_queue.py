"""persist-queue: SQLiteAckQueue and the get, work, ack loop of its README, in one process as it demands."""

from __future__ import annotations

import time

import persistqueue

from bench.harness.contenders import Figures, Order
from bench.harness.payload import notes

WARM_UP_JOBS = 50


def submit_one(order: Order) -> Figures:
    queue = _open(order)
    payloads = notes(order.jobs)
    for payload in payloads[:WARM_UP_JOBS]:
        queue.put(payload)
    start = time.perf_counter()
    for payload in payloads:
        queue.put(payload)
    return {"rate": order.jobs / (time.perf_counter() - start)}


def drain(order: Order) -> Figures:
    queue = _open(order)
    for payload in notes(order.jobs):
        queue.put(payload)
    done = 0
    start = time.perf_counter()
    while done < order.jobs:
        queue.ack(queue.get(block=False))
        done += 1
    seconds = time.perf_counter() - start
    assert queue.acked_count() == order.jobs
    return {"rate": done / seconds}


def _open(order: Order) -> persistqueue.SQLiteAckQueue:
    # It sets WAL itself and leaves synchronous at SQLite's default, which is FULL.
    return persistqueue.SQLiteAckQueue(str(order.folder), auto_commit=True, multithreading=True)


MEASURES = {"submit-blocking": submit_one, "drain": drain}
