"""Why a job is not running, as it is told to a key of some queues: without jobs, types and queues of others."""

from __future__ import annotations

import re

from holdfast.app import Holdfast
from holdfast.explaining import Explanation, Reason
from holdfast.job import Job
from holdfast.server.principals import Principal

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_READ_AT_ONCE = 500  # records, to see whose they are
_ANOTHERS = "a job of another queue"
_CUT = (Reason.NO_WORKER_FOR_TYPE, Reason.NO_WORKER_FOR_QUEUE)  # what comes after the colon is what others do
_SAID = {
    Reason.MOVED: "the queue has moved to another store",
    Reason.NO_WORKER: "no worker is alive: start one with “holdfast worker”",
}


async def explained(app: Holdfast, who: Principal, job: Job) -> Explanation:
    found = await app.explain(job.job_id)
    if who.sees_all:
        return found
    foreign = await _foreign(app, who, found)
    left = [each for each in found.job_ids if each not in foreign]
    return Explanation(_told(found, foreign), found.reason, found.until, left)


def _told(found: Explanation, foreign: set[str]) -> str:
    if found.reason in _SAID:
        return _SAID[found.reason]
    if found.reason in _CUT:
        return found.partition(": ")[0]
    if not foreign:
        return str(found)
    match found.reason:
        case Reason.RING:
            return "it waits for jobs that wait for it, some of them in other queues: one of them has to be cancelled"
        case Reason.FAILED | Reason.CANCELLED:
            return found.partition(": ")[0]
        case _:
            return _ID.sub(lambda each: _ANOTHERS if each[0] in foreign else each[0], found)


async def _foreign(app: Holdfast, who: Principal, found: Explanation) -> set[str]:
    """Jobs that it names and the key does not see."""
    named = sorted({*_ID.findall(found), *found.job_ids})
    foreign = set()
    for start in range(0, len(named), _READ_AT_ONCE):
        for record in await app.store.get(named[start : start + _READ_AT_ONCE]):
            if record is not None and not who.sees(record.queue):
                foreign.add(record.job_id)
    return foreign
