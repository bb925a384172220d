"""holdfast tree ID: the jobs that hang together with one, as parents and children and by what waits for what."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, notes, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.output import STATUS_STYLES, Column
from holdfast.cli.text import count
from holdfast.clock import to_datetime
from holdfast.errors import JobNotFound
from holdfast.job import Job
from holdfast.job_json import whole
from holdfast.lifecycle import Status
from holdfast.limits import FIND_LIMIT_MAX

SHOWN_MAX = 200  # jobs of one picture; a larger tree is read with "list --root"
_CHILD, _WAITS = "child", "waits"
_DRAWN = {"├": "├─ ", "└": "└─ ", "│": "│  ", "├>": "├→ ", "└>": "└→ "}
_PLAIN = {"├": "|- ", "└": "`- ", "│": "|  ", "├>": "|> ", "└>": "`> "}


@dataclass(frozen=True, slots=True)
class _Line:
    lead: str
    job: Job
    asked: bool
    also: int  # jobs that it waits for beside the one above it


def tree(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Show a job among its parents, children and dependencies."""

    async def work(app: Holdfast) -> tuple[Job, dict[str, Job], bool, datetime]:
        job = await app.get(await lookup.job_id(app, job_id))
        jobs, complete = await _gather(app, job)
        return job, jobs, complete, to_datetime(app.clock.now())

    job, jobs, complete, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({"job_id": job.job_id, "items": [whole(each) for each in jobs.values()], "complete": complete})
        return
    output.emit_table(_columns(now), _lines(job, jobs))
    if job.archived_at is not None:
        output.say(
            f"job {job.job_id} was archived: what it depended on, and what depended on it, went with its retention"
        )
    if not complete:
        root = job.root_job_id or job.job_id
        output.say(f'there are more than {count(SHOWN_MAX, "job")}: see them with "holdfast list --root {root}"')


async def _gather(app: Holdfast, job: Job) -> tuple[dict[str, Job], bool]:
    """The job, its tree, and all that depends on these or on which these depend; and whether that is all of it."""
    found: dict[str, Job] = {}
    ahead = deque([job.job_id])
    searched: set[str] = set()
    while ahead and len(found) < SHOWN_MAX:
        each = await _get(app, ahead.popleft(), found)
        if each is None:
            continue
        found[each.job_id] = each
        ahead += [*each.dependencies, *each.dependent_jobs]
        root = each.root_job_id or each.job_id
        if root not in searched:
            searched.add(root)
            members = await app.find(root=root, limit=FIND_LIMIT_MAX)
            ahead += [root, *(member.job_id for member in reversed(members))]
    left = {each for each in ahead if each not in found}
    return dict(sorted(found.items())), not left


async def _get(app: Holdfast, job_id: str, found: dict[str, Job]) -> Job | None:
    if job_id in found:
        return None
    try:
        return await app.get(job_id)
    except JobNotFound:  # retention has dropped it
        return None


def _lines(asked: Job, jobs: dict[str, Job]) -> Iterator[_Line]:
    below: dict[str | None, list[tuple[str, Job]]] = {}
    for job in jobs.values():
        above, kind = _above(job, jobs)
        below.setdefault(above, []).append((kind, job))
    marks = _DRAWN if output.draws() else _PLAIN

    def walk(above: str | None, lead: str) -> Iterator[_Line]:
        under = below.get(above, [])
        for place, (kind, job) in enumerate(under):
            last = place == len(under) - 1
            corner = ("└" if last else "├") + (">" if kind == _WAITS else "")
            mark = "" if above is None else marks[corner]
            also = len(job.dependencies) - (kind == _WAITS)
            yield _Line(lead + mark, job, job.job_id == asked.job_id, also)
            yield from walk(job.job_id, "" if above is None else lead + ("   " if last else marks["│"]))

    return walk(None, "")


def _above(job: Job, jobs: dict[str, Job]) -> tuple[str | None, str]:
    """Where a job stands, once: under the last of its siblings that it waits for, else under its parent, else under
    the last of those that it waits for."""
    awaited = [jobs[each] for each in job.dependencies if each in jobs]
    siblings = [each for each in awaited if each.parent_job_id == job.parent_job_id]
    if siblings:
        return max(each.job_id for each in siblings), _WAITS
    if job.parent_job_id in jobs:
        return job.parent_job_id, _CHILD
    return (max(each.job_id for each in awaited), _WAITS) if awaited else (None, _CHILD)


def _columns(now: datetime) -> list[Column[_Line]]:
    return [
        Column(
            "JOB",
            lambda line: f"{line.lead}{line.job.job_type}{' *' if line.asked else ''}",
            style=lambda line: "bold" if line.asked else "",
            cut=True,
        ),
        Column("ID", lambda line: line.job.job_id, is_id=True),
        Column("STATUS", lambda line: line.job.status.value, style=lambda line: STATUS_STYLES[line.job.status]),
        Column("DONE", lambda line: f"{line.job.progress:.0%}", right=True),
        Column("STAGE", lambda line: line.job.job_stage or "", wide=True, cut=True),
        Column("NOTE", lambda line: _note(line, now), cut=True),
    ]


def _note(line: _Line, now: datetime) -> str:
    counted = line.job.status is Status.WAITING  # its note says for how many
    also = f"after {count(line.also, 'more job')}" if line.also and not counted else ""
    note = notes.note(line.job, now, percent=False)  # which has a column of its own
    archived = "archived" if line.job.archived_at is not None else ""
    return "; ".join(part for part in (note, also, archived) if part)
