"""Jobs that wait for one another. A submit cannot make such a ring, but a parent that waits for its child can close
one: its child depends on a job elsewhere, and that one on the parent."""

from __future__ import annotations

from holdfast.statuses import Status
from holdfast.store.port import Store
from holdfast.store.types import JobRecord

STEPS_MAX = 100  # jobs looked at: a longer ring is found from one of its other jobs


async def ring(store: Store, job: JobRecord) -> list[JobRecord]:
    """The jobs of a ring that this one waits for or belongs to, in the order in which each waits for the next."""
    path: dict[str, JobRecord] = {}
    done: set[str] = set()
    stack: list[tuple[JobRecord, list[JobRecord]]] = []

    async def enter(record: JobRecord) -> None:
        path[record.job_id] = record
        stack.append((record, await _waited_for(store, record)))

    await enter(job)
    while stack and len(done) + len(path) <= STEPS_MAX:
        record, left = stack[-1]
        if not left:
            stack.pop()
            del path[record.job_id]
            done.add(record.job_id)
            continue
        waited_for = left.pop()
        if waited_for.job_id in path:
            names = list(path)
            return [path[each] for each in names[names.index(waited_for.job_id) :]]
        if waited_for.job_id not in done:
            await enter(waited_for)
    return []


async def _waited_for(store: Store, record: JobRecord) -> list[JobRecord]:
    """Those that this one waits for and that wait themselves."""
    if record.status is not Status.WAITING:
        return []
    if record.awaits is not None:
        return list((await store.children(record.job_id, None, STEPS_MAX, Status.WAITING)).items)
    found = await store.get(record.dependencies)
    return [each for each in found if each is not None and each.status is Status.WAITING]


def said(jobs: list[JobRecord]) -> str:
    """The ring in words."""
    names = []
    for job, following in zip(jobs, [*jobs[1:], *jobs[:1]], strict=True):
        of_child = f" (for its child {following.job_id})" if job.awaits is not None else ""
        names.append(f"{job.job_type} {job.job_id}{of_child}")
    names.append(f"{jobs[0].job_type} {jobs[0].job_id}")
    return f"these wait for one another: {' → '.join(names)}: cancel one of them"
