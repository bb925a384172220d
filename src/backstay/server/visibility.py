"""What a key may see of jobs, searches, workers, schedules and explanations.

Values that a type's schema marks as sensitive are shown to keys with the scope work and to administrators; others see
dots. A worker that also serves other queues is shown without their names, types and jobs, and without figures that
include theirs. Searches do not walk past everything that the key cannot see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar, Unpack
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from backstay import codec
from backstay.app import Backstay, Page
from backstay.core import payload_schema
from backstay.core.records import WorkerRow
from backstay.core.schedules import ScheduleInfo
from backstay.handlers import Handler
from backstay.job import Job, JobDocument, JobLogs, JobView
from backstay.limits import MIB, SIFTED_ROWS_MAX
from backstay.ops import presentation
from backstay.ops.explain import Explanation, Reason, RelatedJob
from backstay.options import FindOptions
from backstay.server import problems
from backstay.server.auth import Principal

PART = 100  # jobs read at once for a longer page
PAGE_BYTES_MAX = 8 * MIB  # roughly, of payloads and results on a page: it is in memory twice


async def page_of(app: Backstay, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """Like `found`, within a size: a page of large jobs is shorter."""
    if _has_to_sift(who, options):
        return await _sifted(app, who, options)
    whole = Page()
    left, size = options.get("limit", 50), 0
    while True:
        options["limit"] = min(PART, left)
        part = await found(app, who, **options)
        whole += part
        whole.next = part.next
        left -= len(part)
        size += sum(map(_bytes, part))
        if part.next is None or not part or left <= 0 or size > PAGE_BYTES_MAX:
            return whole
        options["after"] = part.next


async def found(app: Backstay, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """Like app.find, for the queues that `who` sees. A page can be short although more follow: see `next`."""
    if who.sees_all:
        return await app.find(**options)
    if _has_to_sift(who, options):
        return await _sifted(app, who, options)
    queue = options["queue"] = options.get("queue") or who.queues[0]
    return await app.find(**options) if who.sees(queue) else await _none(app, options)


async def part(app: Backstay, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """Like `found`, but no further rows are read in place of those that `who` does not see."""
    if not _has_to_sift(who, options):
        return await found(app, who, **options)
    read = await app.find(**options)
    page = Page(job for job in read if who.sees(job.queue))
    page.next = read.next
    return page


def _has_to_sift(who: Principal, options: FindOptions) -> bool:
    """Whether no index tells what the key sees: it has patterns, or several queues."""
    one = options.get("queue") is not None or (len(who.queues) == 1 and "*" not in who.queues[0])
    return not who.sees_all and not one


async def _none(app: Backstay, options: FindOptions) -> Page:
    """A queue that the key does not see looks like one without jobs; an invalid search is refused nevertheless."""
    options["limit"] = 1
    await app.find(**options)
    return Page()


async def _sifted(app: Backstay, who: Principal, options: FindOptions) -> Page:
    """What the key sees of the next rows, of which a fixed number is read. The page may be short or empty although more
    follow from its `next`."""
    whole = Page()
    wanted, size = options.get("limit", 50), 0
    for _ in range(SIFTED_ROWS_MAX // PART):
        options["limit"] = PART
        page = await app.find(**options)
        places = [place for place, job in enumerate(page) if who.sees(job.queue)]
        if len(places) >= wanted - len(whole):  # read the part again that is needed, for a cursor that continues there
            options["limit"] = places[wanted - len(whole) - 1] + 1
            page = page if options["limit"] == len(page) else await app.find(**options)
        seen = [job for job in page if who.sees(job.queue)]
        whole += seen
        whole.next = page.next
        size += sum(map(_bytes, seen))
        if page.next is None or len(whole) >= wanted or size > PAGE_BYTES_MAX:
            break
        options["after"] = page.next
    return whole


def _bytes(job: Job) -> int:
    return len(job.record.payload) + len(job.record.result or "")


T = TypeVar("T", JobDocument, ScheduleInfo)
Schemas = Mapping[str, tuple[str, ...]]  # by job type: every schema of its payload
_made: WeakKeyDictionary[Handler, str | None] = WeakKeyDictionary()


async def schemas(app: Backstay, who: Principal) -> Schemas:
    """The schemas that mark sensitive fields. None for a principal that may see everything."""
    if who.may("work"):
        return {}
    found = [(each.job_type, each.payload_schema) for each in await app.job_types()]
    found += [(name, _own(handler)) for name, handler in app.handlers.items()]
    marked: dict[str, tuple[str, ...]] = {}
    for job_type, schema in found:
        if schema is not None and payload_schema.has_marks(schema):
            marked[job_type] = (*marked.get(job_type, ()), schema)
    return marked


def _own(handler: Handler) -> str | None:
    """The schema of a type whose code is here; it may not be announced yet. Building it takes milliseconds."""
    if handler not in _made:
        _made[handler] = handler.describe(0).payload_schema
    return _made[handler]


async def documents(app: Backstay, who: Principal, jobs: Iterable[JobView]) -> list[JobDocument]:
    known = await schemas(app, who)
    return [covered(known, job.job_type, presentation.document(job)) for job in jobs]


async def document(app: Backstay, who: Principal, job: JobView) -> JobDocument:
    return (await documents(app, who, [job]))[0]


_UNREAD: dict[str, Any] = {
    "payload": None,
    "result": None,
    "last_error": None,
    "errors": [],
    "logs": JobLogs([], None),
    "metrics": {},
    "artifacts": [],
}


async def changed(app: Backstay, who: Principal, job: JobView) -> JobDocument:
    """The record, as an answer to a change or to a repeated submit. A key that may not read jobs gets the job's state
    without its contents: an id or a dedup key can belong to someone else's job."""
    if who.may("read"):
        return await document(app, who, job)
    return msgspec.structs.replace(presentation.document(job), **_UNREAD)


async def check_tree(app: Backstay, who: Principal, job_id: str) -> None:
    """A change of a tree changes each of its jobs: the key must see all of their queues."""
    if not who.sees_all and not all(map(who.sees, await app.tree_queues(job_id))):
        raise problems.foreign_queue("every queue of this tree")


def covered(known: Schemas, job_type: str, document: T) -> T:
    """Return a document with the sensitive fields of its `payload` masked, which only workers should read."""
    said = known.get(job_type, ())
    if not said:
        return document
    payload = codec.decode(codec.encode(document.payload))
    for schema in said:
        payload = payload_schema.masked(schema, payload)
    return msgspec.structs.replace(document, payload=payload)


READ_AT_ONCE = 500  # records, to see in which queues they are


class Seen(msgspec.Struct, frozen=True):
    row: WorkerRow
    is_whole: bool  # it serves no other queue; else its sums are left out


async def seen(app: Backstay, who: Principal) -> list[Seen]:
    """The workers that serve a queue which `who` sees."""
    rows = await app.workers()
    if who.sees_all:
        return [Seen(row, True) for row in rows]
    rows = [row for row in rows if any(map(who.sees, row.queues))]
    types = await types_seen(app, who)
    jobs = await _jobs_seen(app, who, (job_id for row in rows for job_id in (*row.running, *row.stuck)))
    return [_cut(row, who, types, jobs) for row in rows]


async def types_seen(app: Backstay, who: Principal) -> frozenset[str]:
    """Job types whose own queue `who` sees."""
    queues = {each.job_type: each.queue for each in await app.job_types()}
    queues |= {name: handler.queue for name, handler in app.handlers.items()}
    return frozenset(name for name, queue in queues.items() if who.sees(queue))


async def _jobs_seen(app: Backstay, who: Principal, job_ids: Iterable[str]) -> dict[str, Job]:
    wanted = list(dict.fromkeys(job_ids))
    found: dict[str, Job] = {}
    for start in range(0, len(wanted), READ_AT_ONCE):
        for job in await app.get_many(wanted[start : start + READ_AT_ONCE]):
            if job is not None and who.sees(job.queue):
                found[job.job_id] = job
    return found


def _cut(row: WorkerRow, who: Principal, types: frozenset[str], jobs: Mapping[str, Job]) -> Seen:
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


async def explained(app: Backstay, who: Principal, job: Job) -> Explanation:
    found = await app.explain(job.job_id)
    return found if who.sees_all else hide(found, await _visible(app, who, found.job_ids))


def hide(found: Explanation, visible: Set[str]) -> Explanation:
    """Keep the ids of these jobs only. What a person or a handler wrote stays: the job's own record has it too."""
    params = replace(found.params, jobs=tuple(_hidden(job, visible) for job in found.params.jobs))
    match found.reason:
        case Reason.NO_WORKER | Reason.NO_WORKER_FOR_TYPE | Reason.NO_WORKER_FOR_QUEUE:
            # None of these workers serves the job's queue, so they belong to others.
            params = replace(params, worker_id=None, at=None, workers=(), more=0, offers=())
        case Reason.MOVED:
            params = replace(params, store=None)
        case _:
            pass
    return replace(found, params=params, job_ids=tuple(each for each in found.job_ids if each in visible))


def _hidden(job: RelatedJob, visible: Set[str]) -> RelatedJob:
    return job if job.job_id in visible else replace(job, job_id=None, name=None, error=None)


async def _visible(app: Backstay, who: Principal, job_ids: tuple[str, ...]) -> set[str]:
    """A job that is no longer stored counts as invisible: its queue is unknown."""
    found: set[str] = set()
    for start in range(0, len(job_ids), READ_AT_ONCE):
        jobs = await app.get_many(job_ids[start : start + READ_AT_ONCE])
        found.update(job.job_id for job in jobs if job is not None and who.sees(job.queue))
    return found
