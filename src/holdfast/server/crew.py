"""Workers as a key sees them. One that also serves other queues is shown without what it does there: neither their
names, nor their types and jobs, nor figures in which theirs are summed up with ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.app import Holdfast
from holdfast.server.principals import Principal
from holdfast.store.types import JobRecord, WorkerRow

_READ_AT_ONCE = 500  # records, to see whose they are


class Seen(msgspec.Struct, frozen=True):
    row: WorkerRow
    is_whole: bool  # it serves no other queue; else its sums are left out


async def seen(app: Holdfast, who: Principal) -> list[Seen]:
    """Those that serve a queue which `who` sees."""
    rows = await app.workers()
    if who.sees_all:
        return [Seen(row, True) for row in rows]
    rows = [row for row in rows if any(map(who.sees, row.queues))]
    types = await types_seen(app, who)
    jobs = await _jobs_seen(app, who, (job_id for row in rows for job_id in (*row.running, *row.stuck)))
    return [_cut(row, who, types, jobs) for row in rows]


async def types_seen(app: Holdfast, who: Principal) -> frozenset[str]:
    """Job types whose own queue `who` sees."""
    queues = {each.job_type: each.queue for each in await app.store.job_types()}
    queues |= {name: handler.queue for name, handler in app.handlers.items()}
    return frozenset(name for name, queue in queues.items() if who.sees(queue))


async def _jobs_seen(app: Holdfast, who: Principal, job_ids: Iterable[str]) -> dict[str, JobRecord]:
    wanted = list(dict.fromkeys(job_ids))
    found: dict[str, JobRecord] = {}
    for start in range(0, len(wanted), _READ_AT_ONCE):
        for record in await app.store.get(wanted[start : start + _READ_AT_ONCE]):
            if record is not None and who.sees(record.queue):
                found[record.job_id] = record
    return found


def _cut(row: WorkerRow, who: Principal, types: frozenset[str], jobs: Mapping[str, JobRecord]) -> Seen:
    is_whole = all(map(who.sees, row.queues))
    running = tuple(job_id for job_id in row.running if job_id in jobs)
    busy = Counter(jobs[job_id].job_type for job_id in running)
    known = types | busy.keys()

    def of_known(said: Mapping[str, int]) -> dict[str, int]:
        return {name: number for name, number in said.items() if name in known}

    sums: dict[str, Any] = {} if is_whole else {"ended": 0, "failed": 0, "busy_micros": 0, "marks": ()}
    cut = msgspec.structs.replace(
        row,
        queues=tuple(filter(who.sees, row.queues)),
        job_types=tuple(name for name in row.job_types if name in known),
        running=running,
        busy=dict(busy),
        limits=of_known(row.limits),
        batches=of_known(row.batches),
        versions=of_known(row.versions),
        stuck=tuple(job_id for job_id in row.stuck if job_id in jobs),
        **sums,
    )
    return Seen(cut, is_whole)
