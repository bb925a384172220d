"""`backstay tree` and `explain`: related jobs, and why a job is not running."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from backstay import settings
from backstay.app import Backstay
from backstay.cli import app_loader, output
from backstay.cli.options import AppName, AsJson, JobId, Url
from backstay.cli.output import STATUS_STYLES, Column
from backstay.clock import to_datetime
from backstay.core.checks import count
from backstay.core.states import TERMINAL, Status
from backstay.errors import JobNotFound
from backstay.job import Job, whole
from backstay.limits import FIND_LIMIT_MAX
from backstay.ops.explanation import NAMED_MAX, Explanation, Reason, ended_with_children

SHOWN_MAX = 200  # jobs of one picture; a larger tree is read with "list --root"
_CHILD, _WAITS = "child", "waits"
_DRAWN = {"├": "├─ ", "└": "└─ ", "│": "│  ", "├>": "├→ ", "└>": "└→ "}
_PLAIN = {"├": "|- ", "└": "`- ", "│": "|  ", "├>": "|> ", "└>": "`> "}


@dataclass(frozen=True, slots=True)
class _Line:
    lead: str
    job: Job
    asked: bool
    also: int  # jobs that it waits for besides the one above it


def tree(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Show a job with its parents, children and dependencies."""

    async def work(app: Backstay) -> tuple[Job, dict[str, Job], bool, datetime]:
        job = await app.get(await app_loader.job_id(app, job_id))
        jobs, complete = await _gather(app, job)
        return job, jobs, complete, to_datetime(app.clock.now())

    job, jobs, complete, now = app_loader.run(url, app, work)
    if as_json:
        output.emit_json({"job_id": job.job_id, "items": [whole(each) for each in jobs.values()], "complete": complete})
        return
    output.emit_table(_columns(now), _lines(job, jobs))
    if job.archived_at is not None:
        output.say(f"job {job.job_id} was archived: its dependencies and dependents are no longer stored")
    if not complete:
        root = job.root_job_id or job.job_id
        output.say(
            f'more than {count(SHOWN_MAX, "job")}: list them with "backstay list --root {root}{_same_queue(url, app)}"'
        )


async def _gather(app: Backstay, job: Job) -> tuple[dict[str, Job], bool]:
    """Return the job, its tree, and everything that depends on these or that these depend on; and whether that is
    complete."""
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


async def _get(app: Backstay, job_id: str, found: dict[str, Job]) -> Job | None:
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
    """Return the line below which a job is printed, once: the last of the siblings that it depends on, else its parent,
    else the last of its other dependencies."""
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
    also = f"also waited for {count(line.also, 'job')}" if line.also and not counted else ""
    note = output.note(line.job, now, percent=False)  # which has a column of its own
    archived = "archived" if line.job.archived_at is not None else ""
    return "; ".join(part for part in (note, also, archived) if part)


_LOOKED_AT_MAX = 100  # jobs; beyond these the tree shows more
_SAY_THE_STATUS = frozenset(  # their sentences do
    {
        Reason.COMPLETED,
        Reason.FAILED,
        Reason.CANCELLED,
        Reason.ARCHIVED,
        Reason.RUNNING,
        Reason.WAITING,
        Reason.WAITING_FOR_CHILDREN,
        Reason.SCHEDULED,
        Reason.BACKING_OFF,
    }
)


_ASK_FOR_A_WORKER = frozenset({Reason.NO_WORKER, Reason.NO_WORKER_FOR_TYPE, Reason.NO_WORKER_FOR_QUEUE})


def explain(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Say in one sentence why a job is not running."""

    async def work(app: Backstay) -> tuple[Job, Explanation, list[str]]:
        job = await app.get(await app_loader.job_id(app, job_id))
        found = await app.explain(job.job_id)
        return job, found, await _to_do(app, job, found.reason)

    job, found, todo = app_loader.run(url, app, work)
    same = _same_queue(url, app, found.reason)
    if as_json:
        output.emit_json(
            {
                "job_id": job.job_id,
                "job_type": job.job_type,
                "status": job.status,
                "reason": found.reason,
                "explanation": str(found),
                "params": found.params,
                "until": found.until,
                "job_ids": found.job_ids,
                "estimate": found.estimate,
                "unforeseen": found.unforeseen,
            }
        )
        return
    status = "" if found.reason in _SAY_THE_STATUS else f" is {job.status.value}"
    output.emit_paragraph(f"{job.job_type} {job.job_id}{status}: {found}")
    for each in todo:
        output.emit_paragraph(each + same, first=f"{output.arrow()} ")


def _same_queue(url: str | None, app: str | None, reason: Reason | None = None) -> str:
    """Return the options with which a suggested command reaches the same queue. A URL with a password is not
    repeated."""
    if reason in _ASK_FOR_A_WORKER and not settings.setting("app", app, str, ""):
        app = "module:app"
    named = f" --app {shlex.quote(app)}" if app else ""
    if not url:
        return named
    return f"{named} --url {'…' if '@' in url else shlex.quote(url)}"


async def _to_do(app: Backstay, job: Job, reason: Reason) -> list[str]:
    """Return commands that would change the situation, one after the other."""
    if reason in (Reason.FAILED, Reason.CANCELLED):
        return await _to_retry(app, job)
    command = _command(job, reason)
    return [command] if command else []


async def _to_retry(app: Backstay, job: Job) -> list[str]:
    """Return the commands for a job that ended because of others: it cannot complete before its dependencies or
    children have."""
    if ended_with_children(job.row):
        return [f"backstay retry --subtree {job.job_id}"]
    first = await _where_it_began(app, job)
    if first is None:
        return [f"backstay tree {job.job_id}"]
    if not first:
        return [f"backstay retry {job.job_id}"]
    if any(each.archived_at is not None for each in first):
        return []  # what it depends on can never complete
    ended = [each.job_id for each in first if each.status in TERMINAL]
    again = f"once its dependencies have completed: backstay retry {job.job_id}"
    return [f"backstay retry {' '.join(ended)}", again] if ended else [again]


async def _where_it_began(app: Backstay, job: Job) -> list[Job] | None:
    """Return the jobs at the start of the chains that have not completed, or None if there are more than fit on a
    line."""
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


async def _unmet(app: Backstay, job_id: str) -> Job | None:
    try:
        job = await app.get(job_id)
    except JobNotFound:  # retention has dropped it; it no longer blocks anything
        return None
    return None if job.status is Status.COMPLETED else job


def _command(job: Job, reason: Reason) -> str:
    match reason:
        case Reason.QUEUE_PAUSED:
            return f"backstay queues resume {job.queue}"
        case Reason.TYPE_PAUSED:
            return f"backstay types resume {job.job_type}"
        case Reason.TYPE_LIMITED:
            return "backstay limits"
        case Reason.SCHEDULED:
            return f"backstay reschedule {job.job_id} --in 0"
        case Reason.WAITING:
            return f"backstay tree {job.job_id}"
        case Reason.WORKERS_BUSY:
            return f"backstay reprioritise {job.job_id} urgent"
        case Reason.NO_WORKER | Reason.NO_WORKER_FOR_TYPE:
            return "backstay worker"
        case Reason.NO_WORKER_FOR_QUEUE:
            return f"backstay worker --queues {job.queue}"
        case _:
            return ""
