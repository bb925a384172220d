"""The app and the stores of `scale.py`: a small one, and one in which there is much of everything.

Backstay writes one pending job and one schedule; the rest are copies, which go in through the verb by which a transfer
fills an empty store. So this file names no table, and every engine stores the copies in its own way.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import msgspec
from backstay import Backstay, ids
from backstay.clock import MICROS, Instant, SystemClock
from backstay.core import dumps
from backstay.core.dumps import INTO, JobDump, MoveState
from backstay.core.port import Store
from backstay.core.records import Counter, WorkerRow
from backstay.core.states import Counted, Status, bucket_of
from backstay.testing.conformance.factories import a_worker

from bench.harness.payload import note

QUEUES = tuple(f"queue-{number}" for number in range(10))
IDLE_QUEUE = "idle"  # has no jobs
HOSTS = 100
TYPES_OF_A_WORKER = 20
COUNTED_MINUTES = 60  # with counters for every type
_PART = 5_000  # copies in one commit
_TOGETHER = 100  # heartbeats at once
_MINUTE = 60 * MICROS
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int  # each with a concurrency key of its own
    types: int  # each in one of the queues
    schedules: int
    workers: int

    @property
    def type_names(self) -> list[str]:
        return [type_name(number) for number in range(self.types)]


SMALL = Size(jobs=1_000, types=10, schedules=10, workers=10)
LARGE = Size(jobs=1_000_000, types=1_000, schedules=100_000, workers=10_000)


def type_name(number: int) -> str:
    return f"type-{number:04d}"


def app_at(url: str, types: int) -> Backstay:
    app = Backstay(url)
    for number in range(types):
        app.job(type_name(number), queue=_queue(number), global_concurrency=1)(_work)
    return app


def _queue(number: int) -> str:
    return QUEUES[number % len(QUEUES)]


async def _work(payload: dict[str, object]) -> None:
    """Nothing is run here."""


async def fill(url: str, size: Size) -> str:
    """Fill an empty store; return the id of a job in it."""
    now = SystemClock().now()
    async with app_at(url, size.types) as app:
        job = await app.submit(type_name(0), note(0), concurrency_key="key-0")
        await app.schedule("schedule-0", "0 3 1 1 *", type_name(0), note(0))
        state = MoveState(role=INTO, move_id=secrets.token_hex(8), other="nowhere")
        for kind, items in (
            (dumps.JOBS, _jobs(await _first(app.store, dumps.JOBS), size, now)),
            (dumps.SCHEDULES, _schedules(await _first(app.store, dumps.SCHEDULES), size)),
            (dumps.COUNTERS, _counters(size, now)),
        ):
            for part in _parts(items, _PART):
                await app.store.restore(kind, part, state)
        await app.store.restore("", [], msgspec.structs.replace(state, done=True))
        for workers in _parts((_worker(number, size) for number in range(size.workers)), _TOGETHER):
            await asyncio.gather(*map(app.store.beat, workers))
    return job.job_id


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


async def _first(store: Store, kind: str) -> bytes:
    return (await store.export(kind, None, 1)).items[0]


def _jobs(first: bytes, size: Size, now: Instant) -> Iterable[bytes]:
    dump = dumps.unpacked(dumps.JOBS, first, JobDump)
    for number in range(1, size.jobs):
        at = now - (size.jobs - number) * 3_600 * MICROS // size.jobs  # over the last hour
        record = msgspec.structs.replace(
            dump.record,
            job_id=_id(number, at),
            job_type=type_name(number % size.types),
            queue=_queue(number % size.types),
            concurrency_key=f"key-{number}",
            created_at=at,
            updated_at=at,
            scheduled_for=at,
        )
        yield dumps.packed(msgspec.structs.replace(dump, record=record))


def _id(number: int, at: Instant) -> str:
    """An id of that time; those that the library makes never go back."""
    return f"{ids.floor(at)[:14]}7{number % 4_096:03x}-8000-{number:012x}"


def _schedules(first: bytes, size: Size) -> Iterable[bytes]:
    schedule = msgspec.msgpack.decode(first)
    for number in range(1, size.schedules):
        yield msgspec.msgpack.encode(schedule | {"name": f"schedule-{number:06d}"})


def _counters(size: Size, now: Instant) -> Iterable[bytes]:
    until = now - now % _MINUTE
    a_second = bucket_of(Counted.COMPLETED, Status.PROCESSING, MICROS, MICROS)
    for minute in range(until - COUNTED_MINUTES * _MINUTE, until, _MINUTE):
        for number in range(size.types):
            kind = (minute, type_name(number), _queue(number), 50)
            yield dumps.packed(Counter(*kind, Counted.SUBMITTED, 3, 0, 0))
            yield dumps.packed(Counter(*kind, Counted.COMPLETED, 2, 2 * MICROS, 2 * MICROS, ((a_second, 2),)))


def _worker(number: int, size: Size) -> WorkerRow:
    """A living one, which handles a part of the types."""
    now = SystemClock().now()
    host = f"host-{number % HOSTS:02d}"
    first = number * TYPES_OF_A_WORKER % size.types
    names = size.type_names[first : first + TYPES_OF_A_WORKER]
    return a_worker(
        f"{host}:{1_000 + number}:{number:06x}",
        host=host,
        pid=1_000 + number,
        process_key=f"machine-{number % HOSTS:02d}:4026531836:{1_000 + number}:12345",
        queues=QUEUES,
        job_types=tuple(names),
        versions=dict.fromkeys(names, 1),
        started_at=now,
        heartbeat_at=now,
        lease_micros=24 * 3_600 * MICROS,
    )


app = app_at(os.environ.get("BACKSTAY_URL", "sqlite:///jobs.db"), int(os.environ.get("SCALE_TYPES", "1")))
