"""What the SQL engines share: notes for a commit, rows and records, totals, search windows, retention. No I/O.

Totals: whole hours of counters are added to sums once, when no process counts in them any more. A total is the sums
plus the minutes after them, so that reading it stays cheap and dropping old minutes loses nothing.

Searches that no index narrows walk in windows of arrival time. A page may be short, or empty, although more follow;
without this bound a search for a rare tag would walk past every job. Gaps left by retention cost nothing: a window
begins at a job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core import dumps, job_fields
from backstay.core.dependencies import Broods
from backstay.core.dumps import ArchiveDump, Dump, EdgeDump, Exported, JobDump
from backstay.core.lifecycle import check
from backstay.core.records import (
    ApiKey,
    AuditEntry,
    AuditPage,
    Buckets,
    ClaimedJob,
    Counter,
    ErrorEntry,
    Finding,
    HistoryEvent,
    Hold,
    JobRecord,
    Keep,
    Kind,
    LimitOf,
    LimitRow,
    QueueRow,
    Rate,
    RetentionPolicy,
    Retired,
    Signal,
    Total,
    Transition,
    Verdict,
    WorkerRow,
)
from backstay.core.states import NO_BUCKET, STAYING, TERMINAL, Counted, Event, Status
from backstay.engines import places
from backstay.errors import IllegalTransition
from backstay.limits import COUNTERS_DAYS, MOVE_PAGE_BYTES_MAX

HIGH = "\U0010ffff"  # sorts after every name
COLUMNS = job_fields.STORED_FIELDS
RENAMED = job_fields.RENAMED
CLAIMED = ClaimedJob.__struct_fields__


def column_list(names: Iterable[str], spelt: Callable[[str], str] = str) -> str:
    """Return columns as they are written in a statement; `spelt` adds a prefix or a cast to each."""
    return ", ".join(spelt(RENAMED.get(name, name)) for name in names)


MINUTE = 60 * MICROS
Counts = dict[
    tuple[Instant, Kind, Counted, int], list[int]
]  # by minute, kind, outcome and bucket: jobs and their times


class Noted(msgspec.Struct, kw_only=True, eq=False):
    """What a transaction notes of its verbs until it commits: whom to wake, and what to count."""

    signals: set[Signal] = msgspec.field(default_factory=set)
    broods: Broods = msgspec.field(default_factory=Broods)  # written by each verb: see release.spread
    counts: Counts = msgspec.field(default_factory=dict)
    tallies: dict[tuple[Kind, str], int] = msgspec.field(default_factory=dict)

    def tally(self, kind: Kind, what: str, jobs: int) -> None:
        """Add to how many jobs of a kind there are, or are in a state: see engines/places.py. Written like `count`."""
        key = kind, what
        self.tallies[key] = self.tallies.get(key, 0) + jobs

    def count(
        self,
        kind: Kind,
        outcome: Counted,
        now: Instant,
        jobs: int = 1,
        ran: int = 0,
        waited: int = 0,
        bucket: int = NO_BUCKET,
    ) -> None:
        """Add to the counters, which are written once per kind and bucket at the end of the transaction, in its
        commit."""
        key = (now - now % MINUTE, kind, outcome, bucket)
        sums = self.counts.get(key)
        if sums is None:
            self.counts[key] = [jobs, ran, waited]
        else:
            sums[0] += jobs
            sums[1] += ran
            sums[2] += waited


def counts_of(known: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return how many jobs are in each state. Those that are in no other are pending."""
    totals = {status.value: 0 for status in Status}
    pending = Status.PENDING.value
    for what, jobs in known:
        if what == places.STORED:
            totals[pending] += jobs
        else:
            totals[what] += jobs
            totals[pending] -= jobs
    return totals


_errors = msgspec.json.Decoder(tuple[ErrorEntry, ...])
_names = msgspec.json.Decoder(tuple[str, ...])
_worker = msgspec.json.Decoder(WorkerRow)
_buckets = msgspec.json.Decoder(Buckets)
# Fields of a record that are not simply a column of a statement over facts, place and detail.
_DERIVED = ("history", "updated_at", "status", "errors", "parked", "result_tables")
_PLAIN = tuple((name, RENAMED.get(name, name)) for name in COLUMNS if name not in _DERIVED)


def record_from(
    fields: Mapping[str, Any], stored: Iterable[HistoryEvent], edges: tuple[str, str, int] | None = None
) -> JobRecord:
    """Return a record from its columns by name (see places.columns), its stored events, and its edges."""
    values: dict[str, Any] = {name: fields[column] for name, column in _PLAIN}
    values["status"] = places.status_of(fields["status"], fields["job_id"])
    values["errors"] = _errors.decode(fields["errors"]) if fields["errors"] else ()
    values["parked"] = bool(fields["parked"])
    values["result_tables"] = _names.decode(fields["result_tables"]) if fields["result_tables"] else ()
    values["history"] = whole = places.history(fields, stored)
    values["updated_at"] = max(whole[-1].at, fields["noted_at"] or 0)
    if fields["started_at"] is not None and fields["completed_at"] is not None:
        values["processing_micros"] = max(0, fields["completed_at"] - fields["started_at"])
    if edges is not None:
        values["dependencies"] = tuple(msgspec.json.decode(edges[0]))
        values["dependent_jobs"] = tuple(msgspec.json.decode(edges[1]))
        values["dependent_count"] = edges[2]
    return JobRecord(**values)


def counter(
    minute: Instant,
    job_type: str,
    queue: str,
    priority: int,
    outcome: str,
    count: int,
    ran: int,
    waited: int,
    buckets: str | None,
) -> Counter:
    """Return a counter from the sums of one kind and outcome, and [bucket, count] of each bucket as JSON."""
    return Counter(minute, job_type, queue, priority, Counted(outcome), count, ran, waited, buckets_of(buckets))


def buckets_of(text: str | None) -> Buckets:
    return tuple(sorted(_buckets.decode(text))) if text else ()


def counter_rows(counter: Counter) -> list[tuple[Any, ...]]:
    """Return the rows of a counter: one per bucket."""
    kind = (counter.minute, counter.job_type, counter.queue, counter.priority, counter.outcome.value)
    split = bucket_rows(counter.count, counter.ran_micros, counter.waited_micros, counter.buckets)
    return [(*kind, *row) for row in split]


def total(job_type: str, queue: str, outcome: str, count: int, ran: int, waited: int, buckets: str | None) -> Total:
    return Total(job_type, queue, Counted(outcome), count, ran, waited, buckets_of(buckets))


def total_rows(total: Total) -> list[tuple[Any, ...]]:
    split = bucket_rows(total.count, total.ran_micros, total.waited_micros, total.buckets)
    return [(total.job_type, total.queue, total.outcome.value, *row) for row in split]


def bucket_rows(count: int, ran: int, waited: int, buckets: Buckets) -> list[tuple[int, int, int, int]]:
    """Yield bucket, count and times. Times are only known for all buckets together, and go to the first one."""
    rest = count - sum(jobs for _, jobs in buckets)
    parts = [(NO_BUCKET, rest), *buckets] if rest or not buckets else list(buckets)
    times = [(ran, waited), *[(0, 0)] * (len(parts) - 1)]
    return [(bucket, jobs, *took) for (bucket, jobs), took in zip(parts, times, strict=True)]


def worker(worker_id: str, heartbeat_at: Instant, details: str) -> WorkerRow:
    """Return a worker from its row. A row that is unreadable (written by another release, or edited by hand) must not
    hide the other workers: it becomes a worker without jobs, which is deleted like any that is silent for long."""
    try:
        return msgspec.structs.replace(_worker.decode(details), heartbeat_at=heartbeat_at)
    except msgspec.MsgspecError:
        return WorkerRow(
            worker_id=worker_id,
            host="",
            pid=0,
            process_key="",
            version="",
            queues=(),
            job_types=(),
            concurrency=0,
            started_at=heartbeat_at,
            heartbeat_at=heartbeat_at,
            unread=True,
        )


def places_finding(looked: int, none: int, several: int, strays: int, lost: int, example: str | None) -> Finding:
    """Return whether jobs have one place each: a job without one never runs, and one with two may run twice."""
    wrong = [
        f"{count:,} {'has' if count == 1 else 'have'} {what}"
        for count, what in ((none, "no place"), (several, "several places"), (strays, "a place out of order"))
        if count
    ]
    says = [f"{', '.join(wrong)} ({example} among them)"] if wrong else []
    if lost:
        says.append(f"{lost:,} {'place has' if lost == 1 else 'places have'} no job")
    if not says:
        return Finding("places", "ok", f"each of {looked:,} jobs has exactly one" if looked else "there are no jobs")
    return Finding(
        "places",
        "bad",
        f"of {looked:,} jobs, {'; '.join(says)}",
        "another program has changed these tables, or they were restored in part: stop the workers and restore a whole"
        " backup, or submit those jobs again",
    )


# All columns that an export reads. Workers are not exported: they stay alive while their queue is transferred.
TABLES = (
    "job", "edge", "dedup", "step", "mailbox", "output", "archive", "queue", "run_limit", "schedule", "declaration",
    "job_type", "counter", "counter_sum", "api_key", "audit", "result_table",
)  # fmt: skip
# What a transfer closes where jobs are stored as facts and places; the tally follows from the places.
PLACED_TABLES = (*TABLES, "detail", *places.PLACES, "event")
# Columns of a job that its record does not have. `claim_token` is left out: no job runs during a transfer.
_USUAL = {each.name: each.default for each in msgspec.structs.fields(JobRecord) if not each.required}
_record = msgspec.json.Decoder(JobRecord)


def dump_from(
    fields: Mapping[str, Any], stored: Iterable[HistoryEvent], edges: Iterable[tuple[str, Any, Any]]
) -> JobDump:
    """Return a job as it is transferred, from its columns by name and (parent, met, joined) of its dependencies."""
    return JobDump(
        record=dumps.bare(record_from(fields, stored)),
        edges=tuple(sorted(EdgeDump(parent, bool(met), bool(joined)) for parent, met, joined in edges)),
        unmet=fields["unmet"],
        joins=fields["joins"],
        awaited=bool(fields["awaited"]),
        rate=None if fields["rate_count"] is None else Rate(fields["rate_count"], fields["rate_micros"]),
    )


class Restored(msgspec.Struct, frozen=True):
    """A job as it is restored: what was submitted, its place and detail, and what is stored of its history."""

    facts: dict[str, Any]
    move: places.Move  # into its place, from nowhere
    events: tuple[places.EventRow, ...]
    children: dict[str, Any]


def restored(dump: JobDump, key: Any) -> Restored:
    """Return what to store of a job that was exported. A parked one is claimable: the next claim parks it again."""
    record = dump.record
    given = msgspec.structs.asdict(record)
    given |= {column: given[name] for name, column in RENAMED.items()}
    given |= {
        "key": key,
        "unmet": dump.unmet,
        "joins": dump.joins,
        "awaited": dump.awaited,
        "parked": 0,
        "rate_count": None if dump.rate is None else dump.rate.count,
        "rate_micros": None if dump.rate is None else dump.rate.micros,
        "errors": _json(record.errors),
        "result_tables": _json(record.result_tables),
        "noted_at": None,
        "token": None,
    }
    facts = {name: given[name] for name in places.FACTS}
    for name, usual in job_fields.USUAL.items():
        facts[name] = None if facts[name] == usual else facts[name]
    fields = {**given, "submitted_for": facts["scheduled_for"]}
    events = tuple(places.EventRow(**msgspec.structs.asdict(each)) for each in places.to_store(fields, record.history))
    given["stored"] = record.version if events else 0
    after = places.Standing(**{name: given[name] for name in places.STANDING})
    kept = {name: given[name] for name in places.KEPT}
    before = places.Standing(
        key=key,
        job_id=record.job_id,
        job_type=record.job_type,
        queue=record.queue,
        max_attempts=record.max_attempts,
        status=record.status,
        priority=record.priority,
        scheduled_for=record.scheduled_for,
        **_as_entered(after),
    )
    move = places.Move(before, after, events, record.result, record.result_artifact, kept)
    children = {name: given[name] for name in places.CHILDREN} if record.children else {}
    return Restored(facts, move, events, children)


def _as_entered(after: places.Standing) -> dict[str, Any]:
    """Return what a place implies of the columns that `detail` has as well, so that a plain job gets no detail."""
    if after.place == places.ENDED:
        return {"worker_id": after.worker_id, "worker_version": after.worker_version, "started_at": after.started_at}
    return {}


def archived(status: str, archived_at: int, has_files: Any, details: str) -> ArchiveDump:
    kept = msgspec.structs.replace(_record.decode(details), archived_at=archived_at, status=Status(status))
    return ArchiveDump(msgspec.structs.replace(kept, result_tables=tuple(sorted(kept.result_tables))), bool(has_files))


def archived_details(dump: ArchiveDump) -> str:
    """Return the fields of an archived job that have no column of their own, as text."""
    fields = msgspec.structs.asdict(dump.record)
    kept = {name: value for name, value in fields.items() if name not in _USUAL or value != _USUAL[name]}
    kept.pop("archived_at", None)
    return msgspec.json.encode(kept).decode()


def _json(values: Sequence[Any]) -> str | None:
    return msgspec.json.encode(values).decode() if values else None


# Cursors: the sort key of the last item, as JSON


def cursor(*key: Any) -> str:
    return msgspec.json.encode(key).decode()


def position(after: str | None, start: Sequence[Any]) -> list[Any]:
    """Return where a page begins: after the cursor, or after `start`, which sorts before everything."""
    return list(start) if after is None else list(msgspec.json.decode(after))


AFTER_ALL = "~"  # sorts after every id
_FIELDS = ApiKey.__struct_fields__
_LISTS = ("scopes", "queues")


def key_values(key: ApiKey) -> tuple[Any, ...]:
    """Return the values of a key in the order of its fields; lists as JSON."""
    return tuple(
        msgspec.json.encode(value).decode() if name in _LISTS else value
        for name, value in msgspec.structs.asdict(key).items()
    )


def key(row: Iterable[Any]) -> ApiKey:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in _LISTS:
        fields[name] = _names.decode(fields[name])
    return ApiKey(**fields)


def queue(row: Iterable[Any]) -> QueueRow:
    return QueueRow(**dict(zip(QueueRow.__struct_fields__, row, strict=True)))


LIMIT_COLUMNS = LimitRow.__struct_fields__


def limit(row: Iterable[Any]) -> LimitRow:
    fields = dict(zip(LIMIT_COLUMNS, row, strict=True))
    return LimitRow(**{**fields, "of": LimitOf(fields["of"])})


def entry(row: Iterable[Any]) -> AuditEntry:
    return AuditEntry(**dict(zip(AuditEntry.__struct_fields__, row, strict=True)))


def audit_page(found: Sequence[AuditEntry], limit: int) -> AuditPage:
    """Return a page from one row more than requested: the extra row tells whether there is a next page."""
    items = tuple(found[:limit])
    return AuditPage(items, items[-1].entry_id if len(found) > limit else None)


CurrentState = tuple[str, int, str | None]  # the current state of a job: status, attempt, token


def check_all(transitions: Iterable[Transition]) -> None:
    for transition in transitions:
        if transition.event is Event.CLAIM:
            raise IllegalTransition("a job is claimed by claim, which gives it a token and a lease")
        check(transition.event, transition.source, transition.target)


def left_their_place(applied: Iterable[Transition]) -> list[str]:
    """Return the jobs that left the queue or changed their position in it: after a change of priority, another job of
    the rate key may be next."""
    return [
        t.job_id
        for t in applied
        if t.source is Status.PENDING and (t.target is not Status.PENDING or t.event is Event.REPRIORITISE)
    ]


def signals_of(applied: Iterable[Transition]) -> set[Signal]:
    signals: set[Signal] = set()
    for t in applied:
        if t.target in TERMINAL:
            signals.add(Signal.ENDED)
        if t.event in STAYING:
            continue
        if t.target is Status.PENDING:
            signals.add(Signal.READY)
        elif t.target in (Status.SCHEDULED, Status.RETRYING):
            signals.add(Signal.DUE)
        if t.source is Status.PROCESSING and t.token is None and t.target is not Status.PROCESSING:
            signals.add(Signal.STOPPED)
    return signals


def entered(status: Status) -> set[Signal]:
    """Return the signals for a job that is stored in this state."""
    match status:
        case Status.PENDING:
            return {Signal.READY}
        case Status.SCHEDULED | Status.RETRYING:
            return {Signal.DUE}
        case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
            return {Signal.ENDED}
        case _:
            return set()


def held(hold: Hold, standing: CurrentState | None) -> Verdict:
    """Return whether a claim is still valid."""
    if standing is None:
        return Verdict.GONE
    holds = standing == (Status.PROCESSING.value, hold.attempt, hold.token)
    return Verdict.APPLIED if holds else Verdict.STALE


def holds_by_key(hold: Hold, found: tuple[int | None, int | None] | None) -> Verdict:
    """Return whether a claim is still valid, given the attempt and the token's key of the one that is."""
    if found is None:
        return Verdict.GONE
    return Verdict.APPLIED if found == (hold.attempt, places.token_key(hold.token)) else Verdict.STALE


HOUR = 3600 * MICROS
SPAN_MAX = 24 * HOUR  # hours added in one step, so that other calls run in between


def closed(now: Instant) -> Instant:
    """Return the end of the hours that no process counts in any more, with an hour of margin for slow commits and late
    clocks."""
    return now - now % HOUR - HOUR


def next_span(until: Instant, oldest: Instant | None, now: Instant) -> tuple[Instant, Instant] | None:
    """Return the hours to add next to the sums, which contain everything before `until`; `oldest` is the first minute
    with counters after that."""
    if oldest is None:
        return None
    start, end = max(until, oldest - oldest % HOUR), closed(now)
    return (start, min(end, start + SPAN_MAX)) if start < end else None


def droppable(until: Instant, now: Instant) -> Instant:
    """Return the instant before which minutes have expired and are in the sums."""
    return min(until, now - COUNTERS_DAYS * 24 * HOUR)


LINED = {"status", "queue", "job_type"}  # what a search of pending jobs in claim order is narrowed by in the index
ABOVE_ALL = 101  # a priority that no job has
WINDOW = 5_000  # positions in order of arrival
WINDOWS_MAX = 20  # windows per page: about a tenth of a second
PENDING_SORTED_MAX = 20_000  # pending jobs that are sorted by arrival; if there are more, every window has some
EVERYTHING = 2**63 - 1  # a position after all jobs


Source = AsyncIterator[tuple[Dump, str]]  # each with the cursor after it


async def export_page(source: Source, limit: int) -> Exported:
    """Return a page of an export. A page is also limited by size: `limit` large jobs would not fit into memory."""
    items: list[bytes] = []
    size, cursor = 0, None
    async for dump, place in source:
        if len(items) == limit or size >= MOVE_PAGE_BYTES_MAX:
            return Exported(tuple(items), cursor)
        items.append(dumps.packed(dump))
        size, cursor = size + len(items[-1]), place
    return Exported(tuple(items))


async def whole(read: Awaitable[Iterable[Dump]], after: str | None) -> Source:
    """Return a page of a small kind, with positions as cursors."""
    for number, dump in enumerate(await read):
        if number >= int(after or 0):
            yield dump, str(number + 1)


Key = Any  # of a job in the engine's tables: its number, or its id
EndedJob = tuple[Key, str, str, str, Instant | None]  # key, id, type, status, completed_at


class Found(msgspec.Struct):
    """The result of a step of retention: jobs to archive, and where to continue."""

    batch: list[tuple[Key, Instant]]  # key, completed_at
    next: str | None


def newest_cutoff(policy: RetentionPolicy, now: Instant) -> Instant | None:
    """Return an instant such that no job that ended later has expired."""
    spans = [span for keep in (policy.keep, *policy.by_type.values()) for span in _spans(keep) if span is not None]
    return now - min(spans) if spans else None


def _spans(keep: Keep) -> tuple[int | None, int | None, int | None]:
    return keep.completed_micros, keep.failed_micros, keep.cancelled_micros


def over(policy: RetentionPolicy, rows: str | None, now: Instant) -> list[tuple[EndedJob, str | None]]:
    """Return the expired jobs among those that a step has read (as JSON, each with the root of its tree). Only the
    first of each tree: whether the whole tree can be archived is checked once, however many of its jobs were read."""
    found: list[tuple[EndedJob, str | None]] = []
    seen: set[str] = set()
    for seq, job_id, job_type, status, completed_at, root in msgspec.json.decode(rows or "[]"):
        if root in seen or not is_over(policy, job_type, status, completed_at, now):
            continue
        if root is not None:
            seen.add(root)
        found.append(((seq, job_id, job_type, status, completed_at), root))
    return found


def is_over(policy: RetentionPolicy, job_type: str, status: str, completed_at: Instant | None, now: Instant) -> bool:
    if completed_at is None or (policy.job_types and job_type not in policy.job_types):
        return False
    keep = policy.by_type.get(job_type, policy.keep)
    match status:
        case Status.COMPLETED:
            span = keep.completed_micros
        case Status.FAILED:
            span = keep.failed_micros
        case Status.CANCELLED:
            span = keep.cancelled_micros
        case _:
            return False
    return span is not None and completed_at < now - span


def with_tree(policy: RetentionPolicy, job: EndedJob, members: Iterable[Any], now: Instant) -> dict[Key, Instant]:
    """Return the job, with its tree if it has one and all of it has expired; nothing if part of the tree must stay."""
    whole = [*members, job]
    if not all(is_over(policy, job_type, status, at, now) for _, _, job_type, status, at in whole):
        return {}
    return {seq: at for seq, _, _, _, at in whole}


def next_step(last: Key, arrived: Instant, count: int, limit: int, newest: Instant) -> str | None:
    """Return where to continue after a step that read `count` jobs up to `last`, the oldest of which arrived then. Jobs
    are stored almost in order of time: if a whole step of them is too young, so are those after it."""
    return None if count < limit or arrived >= newest else str(last)


def whole_trees(standing: Iterable[tuple[Key, str, int]]) -> list[Key]:
    """Return those jobs that belong to complete trees, given the jobs that are unchanged since they were read (seq,
    root, and the current size of the tree): a member may have been retried or added since."""
    trees: dict[str, list[Key]] = {}
    sizes: dict[str, int] = {}
    for seq, root, size in standing:
        trees.setdefault(root, []).append(seq)
        sizes[root] = size
    return [seq for root, members in trees.items() if len(members) == sizes[root] for seq in members]


def answer(found: Found, archived: int, dropped: int, limit: int) -> Retired:
    more_to_drop = found.next is None and dropped == limit
    return Retired(archived, dropped, "0" if more_to_drop else found.next)
