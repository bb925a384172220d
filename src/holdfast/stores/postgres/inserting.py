"""insert: plain jobs as one statement, many by COPY; special ones in turn, by the function that SQL submits with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Counted, Event, Status
from holdfast.limits import MIB
from holdfast.store.types import Inserted, JobRecord, NewJob, Signal
from holdfast.stores.postgres import reading, releasing
from holdfast.stores.postgres.tx import Tx
from holdfast.trees import moved

_NAMES = (
    "job_id", "job_type", "queue", "priority", "payload", "scheduled_for", "max_attempts", "timeout_micros", "subject",
    "tags", "created_by", "job_stage", "root_job_id", "content_hash", "payload_version", "fairness_key",
    "fairness_weight", "traceparent",
)  # fmt: skip

_row = attrgetter(*_NAMES)
_RARE = {
    "subject": None,
    "tags": None,
    "created_by": None,
    "job_stage": None,
    "root_job_id": None,
    "content_hash": None,
    "payload_version": 1,
    "fairness_key": None,
    "fairness_weight": 1,
    "traceparent": None,
}  # what the table has where nothing is said
SPECIAL_PART_MAX = 500  # special jobs in one statement …
SPECIAL_PART_CHARACTERS_MAX = 4 * MIB  # … and how large their payloads may be together
COPY_JOBS_MIN = 200  # from here on COPY's extra round trips are won back


class Terms(StrEnum):
    """On which jobs are taken in, as the function in the database reads them."""

    ASKED = "{}"
    ADMITTED = '{"admitted": true}'  # with a parent that was: no queue is too full for them
    PROMISED = '{"admitted": true, "promised": true}'  # their parent has ended on the strength of them: none is refused


async def insert(
    tx: Tx,
    jobs: Sequence[NewJob],
    now: Instant,
    store_now: Instant | None,
    repeat: bool,
    terms: Terms = Terms.ASKED,
) -> list[Inserted]:
    if not any(job.special for job in jobs):
        return await insert_plain(tx, jobs, now, store_now, repeat)
    special = [job for job in jobs if job.special]
    if len(special) > 1:
        await tx.value("hold_for", msgspec.json.encode(special).decode())
    answers = []
    for is_special, some in groupby(jobs, attrgetter("special")):
        if is_special:
            for part in _parts(some):
                answers += await _insert_special(tx, part, now, store_now, repeat, terms)
        else:
            answers += await insert_plain(tx, list(some), now, store_now, repeat)
    if tx.broods:
        await releasing.spread(tx, (), int(await tx.value("now")) if store_now is None else store_now)
    return answers


async def insert_plain(
    tx: Tx, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool
) -> list[Inserted]:
    if repeat and await tx.value("present", [job.job_id for job in jobs]) == len(jobs):
        return [_inserted(tx, job, now) for job in jobs]  # the earlier try was applied; only its answer was lost
    if len(jobs) == 1:
        await tx.execute("insert_one", *_row(jobs[0]), now, store_now)
    else:
        await tx.execute("insert_plain", *columns(jobs), now, store_now)
    return [_inserted(tx, job, now) for job in jobs]


async def insert_copied(tx: Tx, jobs: Sequence[NewJob], now: Instant, at: Instant, repeat: bool) -> list[Inserted]:
    """Many plain jobs, as rows that are made here: the server only has to store them."""
    if repeat and await tx.value("present", [job.job_id for job in jobs]) == len(jobs):
        return [_inserted(tx, job, now) for job in jobs]
    coming = sorted(Counter(job.queue for job in jobs if job.scheduled_for <= now).items())
    await tx.rows("refuse_over_limit", [queue for queue, _ in coming], [count for _, count in coming])
    names = [name for name in _NAMES if name not in _RARE or set(map(attrgetter(name), jobs)) != {_RARE[name]}]
    await tx.connection.copy_records_to_table(
        "job",
        schema_name=tx.sql.schema,
        columns=(*names, "status", "created_at", "updated_at", "history"),
        records=_copied(jobs, names, now, at),
    )
    for kind, count in Counter((job.job_type, job.queue, job.priority) for job in jobs).items():
        tx.count(kind, Counted.SUBMITTED, at, count)
    return [_inserted(tx, job, now) for job in jobs]


def _copied(jobs: Sequence[NewJob], names: list[str], now: Instant, at: Instant) -> Iterator[tuple[Any, ...]]:
    """As insert_plain.sql makes them."""
    due = names.index("scheduled_for")
    row_of = attrgetter(*names)
    begun: dict[tuple[bool, str | None], str] = {}
    for job in jobs:
        row = row_of(job)
        later = job.scheduled_for > now
        status = "scheduled" if later else "pending"
        history = begun.get((later, job.created_by))
        if history is None:
            event = [1, at, Event.SUBMIT.value, None, status, 0, job.created_by]
            history = begun[later, job.created_by] = msgspec.json.encode(event).decode()
        if later:
            yield (*row, status, at, at, history)
        else:
            yield (*row[:due], row[due] + at - now, *row[due + 1 :], status, at, at, history)


def columns(jobs: Sequence[NewJob]) -> list[list[Any]]:
    return [[getattr(job, name) for job in jobs] for name in _NAMES]


def _inserted(tx: Tx, job: NewJob, now: Instant) -> Inserted:
    later = job.scheduled_for > now
    tx.signals.add(Signal.DUE if later else Signal.READY)
    return Inserted(job.job_id, Status.SCHEDULED if later else Status.PENDING)


def _parts(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    """As many as go to the server in one piece."""
    part: list[NewJob] = []
    size = 0
    for job in jobs:
        if part and (len(part) == SPECIAL_PART_MAX or size + len(job.payload) > SPECIAL_PART_CHARACTERS_MAX):
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job.payload)
    if part:
        yield part


async def _insert_special(
    tx: Tx, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool, terms: Terms
) -> list[Inserted]:
    if repeat:
        jobs = [msgspec.structs.replace(job, own_id=True) for job in jobs]  # then one that is there answers for it
    texts = await tx.rows("insert_specials", msgspec.json.encode(jobs).decode(), now, store_now, terms.value)
    answers = [msgspec.json.decode(text) for (text,) in texts]
    there = [answer["job_id"] for answer in answers if answer["existing"]]
    existing = dict(zip(there, await reading.get(tx, there), strict=True)) if there else {}
    return [
        _answered(tx, job, answer, existing.get(answer["job_id"]), repeat)
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _answered(tx: Tx, job: NewJob, answer: dict[str, Any], existing: JobRecord | None, repeat: bool) -> Inserted:
    status = Status(answer["status"])
    if answer["existing"]:
        same = repeat and answer["job_id"] == job.job_id
        return Inserted(answer["job_id"], status, existing=None if same else existing)
    tx.broods.add(job.parent_job_id, moved(None, status))
    if answer["rate_parked"]:
        tx.signals.add(Signal.DUE)
    match status:
        case Status.PENDING:
            tx.signals.add(Signal.READY)
        case Status.SCHEDULED:
            tx.signals.add(Signal.DUE)
        case Status.COMPLETED | Status.CANCELLED | Status.FAILED:
            tx.signals.add(Signal.ENDED)
        case _:
            pass
    return Inserted(job.job_id, status, reused_from=answer.get("reused_from"))
