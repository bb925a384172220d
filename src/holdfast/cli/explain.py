"""holdfast explain ID: why a job is not running, and what would change that."""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.errors import JobNotFound
from holdfast.explaining import NAMED_MAX, Explanation, Reason
from holdfast.fallen import went_down_with_children
from holdfast.job import Job
from holdfast.lifecycle import TERMINAL, Status

_LOOKED_AT_MAX = 100  # jobs; who depends on more has the tree


def explain(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Say in one sentence why a job is not running."""

    async def work(app: Holdfast) -> tuple[Job, Explanation, list[str]]:
        job = await app.get(await lookup.job_id(app, job_id))
        found = await app.explain(job.job_id)
        return job, found, await _to_do(app, job, found.reason)

    job, found, todo = apps.run(url, app, work)
    if as_json:
        output.emit_json(
            {
                "job_id": job.job_id,
                "job_type": job.job_type,
                "status": job.status,
                "reason": found.reason,
                "explanation": str(found),
                "until": found.until,
                "job_ids": found.job_ids,
            }
        )
        return
    status = "" if found.startswith(f"it is {job.status.value} ") else f" is {job.status.value}"
    output.emit_paragraph(f"{job.job_type} {job.job_id}{status}: {found}")
    for each in todo:
        output.emit_paragraph(each, first=f"{output.arrow()} ")


async def _to_do(app: Holdfast, job: Job, reason: Reason) -> list[str]:
    """Commands that would change it, one after the other."""
    if reason in (Reason.FAILED, Reason.CANCELLED):
        return await _to_retry(app, job)
    command = _command(job, reason)
    return [command] if command else []


async def _to_retry(app: Holdfast, job: Job) -> list[str]:
    """A job that went down with others, those it depends on or its children, cannot complete before these have."""
    if went_down_with_children(job):
        return [f"holdfast retry --subtree {job.job_id}"]
    first = await _where_it_began(app, job)
    if first is None:
        return [f"holdfast tree {job.job_id}"]
    if not first:
        return [f"holdfast retry {job.job_id}"]
    if any(each.archived_at is not None for each in first):
        return []  # what it depends on can never complete
    ended = [each.job_id for each in first if each.status in TERMINAL]
    again = f"when what it depends on has completed: holdfast retry {job.job_id}"
    return [f"holdfast retry {' '.join(ended)}", again] if ended else [again]


async def _where_it_began(app: Holdfast, job: Job) -> list[Job] | None:
    """The jobs at the head of the chains that have not completed. None: there are more than a line can name."""
    heads: list[Job] = []
    seen = set(ahead := list(job.dependencies))
    while ahead:
        if len(seen) > _LOOKED_AT_MAX:
            return None
        one = await _unmet(app, ahead.pop())
        if one is None:
            continue
        above = [each for each in one.dependencies if await _unmet(app, each) is not None]
        if not above:
            heads.append(one)
        ahead += [each for each in above if each not in seen]
        seen.update(above)
    return heads if len(heads) <= NAMED_MAX else None


async def _unmet(app: Holdfast, job_id: str) -> Job | None:
    try:
        job = await app.get(job_id)
    except JobNotFound:  # retention has dropped it; it no longer stands in the way
        return None
    return None if job.status is Status.COMPLETED else job


def _command(job: Job, reason: Reason) -> str:
    match reason:
        case Reason.QUEUE_PAUSED:
            return f"holdfast queues resume {job.queue}"
        case Reason.SCHEDULED:
            return f"holdfast reschedule {job.job_id} --in 0"
        case Reason.WAITING:
            return f"holdfast tree {job.job_id}"
        case Reason.WORKERS_BUSY:
            return f"holdfast reprioritise {job.job_id} urgent"
        case Reason.NO_WORKER | Reason.NO_WORKER_FOR_TYPE:
            return "holdfast worker --app module:app"
        case Reason.NO_WORKER_FOR_QUEUE:
            return f"holdfast worker --app module:app --queues {job.queue}"
        case _:
            return ""
