"""What a key may see of jobs, searches, workers, schedules and explanations.

What a job says about jobs of other queues is left out. A parent, a dependency or a dependent can be in any queue; its
id is in the record, and in what Backstay itself writes into the history ("… failed"). A job that is no longer stored
counts as one that the key does not see.

Values that a type has ever marked as sensitive are shown to keys with the scope work and to administrators; others see
dots. A worker that also serves other queues is shown without their names, types and jobs, and without figures that
include theirs. Searches do not walk past everything that the key cannot see: a page may end at a job, worker or
schedule of another queue, so the cursor that names it is sealed.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar, Unpack

import msgspec
from msgspec.structs import replace

from backstay import codec
from backstay.app import Backstay, Page
from backstay.clock import Instant
from backstay.core import sensitive
from backstay.core.event_details import AboutJob, EventDetails
from backstay.core.records import BlockedLoop, JobRecord, WorkerRow
from backstay.core.schedules import ScheduleInfo
from backstay.errors import ScheduleNotFound
from backstay.job import Job, JobDocument, JobLogs, JobView
from backstay.job import document as job_document
from backstay.limits import LIST_LIMIT, MIB, RELATIVES_READ_MAX, SIFTED_ROWS_MAX
from backstay.ops.explanation import Explanation, Reason, RelatedJob
from backstay.options import FindOptions
from backstay.results.reader import PlainRows
from backstay.server import problems
from backstay.server.auth import Principal

READ_AT_ONCE = 500  # records, to see in which queues they are
PART = 100  # jobs read at once for a longer page
PAGE_BYTES_MAX = 8 * MIB  # roughly, of payloads and results on a page: it is in memory twice


async def page_of(app: Backstay, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """Find jobs like `found`, within a size: a page of large jobs has fewer of them."""
    return await _sealed_page(app, who, options, _page_of)


async def found(app: Backstay, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """Find jobs like app.find, in the queues that `who` sees. A page can be short although more follow: see `next`."""
    return await _sealed_page(app, who, options, _found)


async def part(app: Backstay, who: Principal, **options: Unpack[FindOptions]) -> Page:
    """Find jobs like `found`, without reading further rows in place of those that `who` does not see."""
    return await _sealed_page(app, who, options, _part)


Read = Callable[[Backstay, Principal, FindOptions], Awaitable[Page]]


async def _sealed_page(app: Backstay, who: Principal, options: FindOptions, read: Read) -> Page:
    if (after := options.get("after")) is not None:
        options["after"] = await _opened(app, who, after)
    page = await read(app, who, options)
    page.next = await _sealed(app, who, page.next)
    return page


async def _page_of(app: Backstay, who: Principal, options: FindOptions) -> Page:
    if _has_to_sift(who, options):
        return await _sifted(app, who, options)
    whole = Page()
    left, size = options.get("limit", 50), 0
    while True:
        options["limit"] = min(PART, left)
        part = await _found(app, who, options)
        whole += part
        whole.next = part.next
        left -= len(part)
        size += sum(map(_bytes, part))
        if part.next is None or not part or left <= 0 or size > PAGE_BYTES_MAX:
            return whole
        options["after"] = part.next


async def _found(app: Backstay, who: Principal, options: FindOptions) -> Page:
    if who.sees_all:
        return await app.find(**options)
    if _has_to_sift(who, options):
        return await _sifted(app, who, options)
    queue = options["queue"] = options.get("queue") or who.queues[0]
    return await app.find(**options) if who.sees(queue) else await _none(app, options)


async def _part(app: Backstay, who: Principal, options: FindOptions) -> Page:
    if not _has_to_sift(who, options):
        return await _found(app, who, options)
    read = await app.find(**options)
    page = Page(job for job in read if who.sees(job.queue))
    page.next = read.next
    return page


async def rows_of_subject(
    app: Backstay, who: Principal, table: str, subject: str, after: str | None, limit: int
) -> PlainRows:
    """Read result rows of a subject, without those of jobs in queues that `who` does not see. A page can be short
    although more follow from its `next`."""
    place = None if after is None else await _opened(app, who, after)
    page = await app.subject_rows(table, subject, place, limit)
    if who.sees_all:
        return page
    jobs = await _jobs_seen(app, who, (row["job_id"] for row in page))
    shown = PlainRows(row for row in page if row["job_id"] in jobs)
    shown.next = await _sealed(app, who, page.next)
    return shown


_SEAL_BYTES = 16


async def _sealed(app: Backstay, who: Principal, cursor: str | None) -> str | None:
    """Return a cursor as a key for some queues gets it: it can hold the id of a foreign job, worker or schedule, so the
    key cannot read it."""
    if cursor is None or who.sees_all:
        return cursor
    secret, text = await app.server_secret(), cursor.encode()
    seal = hmac.digest(secret, b"cursor\0" + text, "sha256")[:_SEAL_BYTES]
    return base64.urlsafe_b64encode(seal + _veiled(secret, seal, text)).rstrip(b"=").decode()


async def _opened(app: Backstay, who: Principal, cursor: str) -> str:
    """Return the cursor in a sealed one; one that is not sealed is returned as it is, and says nothing new."""
    if who.sees_all:
        return cursor
    try:
        whole = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return cursor
    secret, seal = await app.server_secret(), whole[:_SEAL_BYTES]
    text = _veiled(secret, seal, whole[_SEAL_BYTES:])
    is_ours = hmac.compare_digest(hmac.digest(secret, b"cursor\0" + text, "sha256")[:_SEAL_BYTES], seal)
    return text.decode() if is_ours else cursor


def _veiled(secret: bytes, seal: bytes, text: bytes) -> bytes:
    """Veil a text, or unveil it."""
    veil = hashlib.shake_256(b"cursor\0" + secret + seal).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, veil, strict=True))


def _has_to_sift(who: Principal, options: FindOptions) -> bool:
    """Return whether rows have to be read and filtered, because the key has patterns or several queues, for which there
    is no index."""
    one = options.get("queue") is not None or (len(who.queues) == 1 and "*" not in who.queues[0])
    return not who.sees_all and not one


async def _none(app: Backstay, options: FindOptions) -> Page:
    """Return an empty page: a queue that the key does not see looks like one without jobs. An invalid search is refused
    nevertheless."""
    options["limit"] = 1
    await app.find(**options)
    return Page()


async def _sifted(app: Backstay, who: Principal, options: FindOptions) -> Page:
    """Return what the key sees of the next rows, of which a fixed number is read. The page may be short or empty
    although more follow from its `next`."""
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
    return len(job.row.payload) + len(job.row.result or "")


T = TypeVar("T", JobDocument, ScheduleInfo)
Marks = Mapping[str, tuple[str, ...]]  # by job type: its sensitive fields


async def marks(app: Backstay, who: Principal) -> Marks:
    """Return the sensitive fields of all types, or None for a principal that may see everything."""
    return {} if who.may("work") else await all_marks(app)


async def all_marks(app: Backstay) -> Marks:
    """Return the sensitive fields of all types, including those whose code is here and that may not be announced
    yet."""
    found = {each.job_type: each.sensitive for each in await app.job_types() if each.sensitive}
    for name, handler in app.handlers.items():
        if handler.sensitive:
            found[name] = sensitive.union(found.get(name, ()), handler.sensitive)
    return found


async def documents(app: Backstay, who: Principal, jobs: Iterable[JobView]) -> list[JobDocument]:
    known = await marks(app, who)
    shown = await without_foreign(app, who, list(jobs))
    return [covered(known, job.job_type, job_document(job)) for job in shown]


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
    """Return the record as an answer to a change or to a repeated submit. A key that may not read jobs gets the job's
    state without its contents: an id or a dedup key can belong to someone else's job."""
    if who.may("read"):
        return await document(app, who, job)
    [shown] = await without_foreign(app, who, [job])
    return msgspec.structs.replace(job_document(shown), **_UNREAD)


async def check_tree(app: Backstay, who: Principal, job_id: str) -> None:
    """Refuse the change of a tree if the key does not see the queues of all its jobs, each of which it changes."""
    if not who.sees_all and not all(map(who.sees, await app.tree_queues(job_id))):
        raise problems.foreign_queue("every queue of this tree")


def covered(known: Marks, job_type: str, document: T) -> T:
    """Return a document with the sensitive fields of its `payload` masked, which only workers should read."""
    if job_type not in known:
        return document
    payload = codec.decode(codec.encode(document.payload))
    return msgspec.structs.replace(document, payload=sensitive.masked(known[job_type], payload))


class Seen(msgspec.Struct, frozen=True):
    row: WorkerRow
    is_whole: bool  # it serves no other queue; else its sums are left out
    left_at: Instant | None = None


async def workers_page(
    app: Backstay, who: Principal, after: str = "", limit: int = LIST_LIMIT
) -> tuple[list[Seen], str | None]:
    """Return the workers that serve a queue which `who` sees, by id, and the id after which the next page begins. A
    page can be short although more follow."""
    rows = await app.workers(after=await _opened(app, who, after), limit=limit + 1)
    following = rows[limit - 1].worker_id if len(rows) > limit else None
    return await _seen(app, who, rows[:limit]), await _sealed(app, who, following)


async def workers_named(app: Backstay, who: Principal, ids: Sequence[str]) -> list[Seen]:
    """Some of the workers that serve a queue which `who` sees."""
    return await _seen(app, who, await app.workers(ids)) if ids else []


async def _seen(app: Backstay, who: Principal, rows: list[WorkerRow]) -> list[Seen]:
    if who.sees_all:
        return [Seen(row, True) for row in rows]
    rows = [row for row in rows if any(map(who.sees, row.queues))]
    types = await types_seen(app, who)
    jobs = await _jobs_seen(app, who, (job_id for row in rows for job_id in (*row.running, *row.stuck, *_blocker(row))))
    return [_cut(row, who, types, jobs) for row in rows]


async def former_seen(app: Backstay, who: Principal) -> list[Seen]:
    """The workers that left in the last day and served a queue which `who` sees. They run nothing any more."""
    types: frozenset[str] = frozenset() if who.sees_all else await types_seen(app, who)
    found = []
    for former in await app.former_workers():
        row = msgspec.structs.replace(former.row, running=(), stuck=(), busy={}, blocked=None)
        if who.sees_all:
            found.append(Seen(row, True, former.left_at))
        elif any(map(who.sees, row.queues)):
            found.append(msgspec.structs.replace(_cut(row, who, types, {}), left_at=former.left_at))
    return found


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
        blocked=_blocked(row.blocked, jobs),
        **sums,
    )
    return Seen(cut, is_whole)


def _blocker(row: WorkerRow) -> tuple[str, ...]:
    return () if row.blocked is None or row.blocked.job_id is None else (row.blocked.job_id,)


def _blocked(blocked: BlockedLoop | None, jobs: Mapping[str, Job]) -> BlockedLoop | None:
    """Return what a blocked worker says about itself. That it is blocked concerns everyone whose jobs it serves; by
    which job, only those who see that job."""
    return blocked if blocked is None or blocked.job_id in jobs else BlockedLoop(blocked.since)


async def schedules_page(
    app: Backstay, who: Principal, after: str = "", limit: int = LIST_LIMIT
) -> tuple[list[ScheduleInfo], str | None]:
    """Return the schedules of the queues that `who` sees, by name, and the name after which the next page begins. A
    page can be short although more follow, because the number of rows read for it is bounded."""
    found: list[ScheduleInfo] = []
    after = await _opened(app, who, after)
    for _ in range(max(1, SIFTED_ROWS_MAX // limit)):
        read = await app.schedules(after=after, limit=limit + 1)
        for each in read:
            if len(found) == limit:
                return found, await _sealed(app, who, after)
            if who.sees(each.queue):
                found.append(each)
            after = each.name
        if len(read) <= limit:
            return found, None
    return found, await _sealed(app, who, after)


async def schedule_named(app: Backstay, who: Principal, name: str) -> ScheduleInfo:
    """Return a schedule. One that the key does not see looks like one that does not exist."""
    found = await app.get_schedule(name)
    if not who.sees(found.queue):
        raise ScheduleNotFound(f"no schedule {name!r:.80}")
    return found


async def explained(app: Backstay, who: Principal, job: Job, ask_first: Sequence[str] = ()) -> Explanation:
    found = await app.explain(job.job_id, ask_first=ask_first)
    return found if who.sees_all else hide(found, await _visible(app, who, found.job_ids))


def hide(found: Explanation, visible: Set[str]) -> Explanation:
    """Remove all ids of other jobs than these. What a person or a handler wrote stays: the job's own record has it
    too."""
    params = replace(found.params, jobs=tuple(_hidden(job, visible) for job in found.params.jobs))
    match found.reason:
        case Reason.NO_WORKER | Reason.NO_WORKER_FOR_TYPE | Reason.NO_WORKER_FOR_QUEUE:
            # None of these workers serves the job's queue, so they belong to others.
            params = replace(params, worker_id=None, at=None, workers=(), more=0, offers=())
        case Reason.MOVED:
            params = replace(params, store=None)
        case _:
            pass
    estimate = found.estimate
    if estimate is not None:  # without the number of jobs in other queues
        estimate = replace(estimate, ahead=params.ahead or 0)
    job_ids = tuple(each for each in found.job_ids if each in visible)
    return replace(found, params=params, job_ids=job_ids, estimate=estimate)


def _hidden(job: RelatedJob, visible: Set[str]) -> RelatedJob:
    return job if job.job_id in visible else replace(job, job_id=None, name=None, error=None, status=None)


async def _visible(app: Backstay, who: Principal, job_ids: tuple[str, ...]) -> set[str]:
    """Return which jobs are visible. One that is no longer stored is not, because its queue is unknown."""
    found: set[str] = set()
    for start in range(0, len(job_ids), READ_AT_ONCE):
        jobs = await app.get_many(job_ids[start : start + READ_AT_ONCE])
        found.update(job.job_id for job in jobs if job is not None and who.sees(job.queue))
    return found


# What a job says about jobs of other queues

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_ANOTHER = "another job"

J = TypeVar("J", bound=JobView)


async def foreign_ids(app: Backstay, who: Principal, jobs: Iterable[JobView]) -> frozenset[str]:
    """Return the ids in these records that `who` does not see."""
    if who.sees_all:
        return frozenset()
    records = [job.row for job in jobs]
    seen = {record.job_id for record in records if who.sees(record.queue)}
    tied = dict.fromkeys(job_id for record in records for job_id in _tied(record) if job_id not in seen)
    quoted = dict.fromkeys(
        job_id for record in records for text in _texts(record) for job_id in _UUID.findall(text) if job_id not in seen
    )
    asked = list(tied | quoted)[:RELATIVES_READ_MAX]
    stored: set[str] = set()
    for start in range(0, len(asked), READ_AT_ONCE):
        for job in await app.get_many(asked[start : start + READ_AT_ONCE]):
            if job is not None:
                stored.add(job.job_id)
                if who.sees(job.queue):
                    seen.add(job.job_id)
    # A text can contain any id: one that is not of a job stays.
    return frozenset(each for each in tied if each not in seen) | frozenset(
        each for each in quoted if each in stored - seen
    )


class Sight:
    """What `who` does not see of jobs that a stream follows: looked up again for each that has changed."""

    def __init__(self, app: Backstay, who: Principal) -> None:
        self._app = app
        self._who = who
        self._versions: dict[str, int] = {}
        self._hidden: frozenset[str] = frozenset()

    async def hidden(self, jobs: Sequence[JobView]) -> frozenset[str]:
        if not self._who.sees_all:
            changed = [job for job in jobs if self._versions.get(job.row.job_id) != job.row.version]
            if changed:
                self._hidden |= await foreign_ids(self._app, self._who, changed)
                self._versions.update((job.row.job_id, job.row.version) for job in changed)
        return self._hidden


async def without_foreign(app: Backstay, who: Principal, jobs: Sequence[J]) -> list[J]:
    """Return the jobs without the ids that `who` does not see."""
    ids = await foreign_ids(app, who, jobs)
    return [without_ids(job, ids) for job in jobs]


def without_ids(job: J, ids: frozenset[str]) -> J:
    if not ids:
        return job
    found = copy.copy(job)
    found._record = _record_without(job.row, ids)
    return found


def _tied(record: JobRecord) -> list[str]:
    one = (record.parent_job_id, record.root_job_id, record.reused_from, record.rows_of)
    told = (each.details.job_id for each in record.history if isinstance(each.details, AboutJob))
    return [*filter(None, (*one, *told)), *record.dependencies, *record.dependent_jobs]


def _texts(record: JobRecord) -> list[str]:
    errors = [text for error in record.errors for text in (error.message, error.traceback)]
    reasons = [text for event in record.history for text in (event.reason, event.by)]
    return [text for text in (record.last_error, *errors, *reasons) if text]


def _record_without(record: JobRecord, ids: frozenset[str]) -> JobRecord:
    def one(job_id: str | None) -> str | None:
        return None if job_id in ids else job_id

    def text(said: str | None) -> str | None:
        return said and _UUID.sub(lambda found: _ANOTHER if found[0] in ids else found[0], said)

    def about(details: EventDetails | None) -> EventDetails | None:
        if isinstance(details, AboutJob) and details.job_id in ids:
            return replace(details, job_id=None)
        return details

    dependents = tuple(each for each in record.dependent_jobs if each not in ids)
    return replace(
        record,
        parent_job_id=one(record.parent_job_id),
        root_job_id=one(record.root_job_id),
        reused_from=one(record.reused_from),
        rows_of=one(record.rows_of),
        dependencies=tuple(each for each in record.dependencies if each not in ids),
        dependent_jobs=dependents,
        dependent_count=record.dependent_count - (len(record.dependent_jobs) - len(dependents)),
        last_error=text(record.last_error),
        errors=tuple(
            replace(error, message=text(error.message) or "", traceback=text(error.traceback) or "")
            for error in record.errors
        ),
        history=tuple(
            replace(event, reason=text(event.reason), by=text(event.by), details=about(event.details))
            for event in record.history
        ),
    )
