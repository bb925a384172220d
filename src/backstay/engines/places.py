"""The places of jobs in the SQL engines, and how a transition moves a job from one to another. Pure.

What never changes about a job (the facts) is in `job`. Where it stands is told by the table that holds its place, and
it has exactly one: `ready`, `later`, `waiting`, `running` or `ended`. What is not plain about it is in `detail`, and
the part of its history that cannot be derived from facts and place is in `event`.

The common transitions have statements of their own in the engines: submit, claim, plain completion. All others read the
standing of a job, have it decided here, and write the move: out of one place, into another.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core import job_fields
from backstay.core.event_details import EventDetails
from backstay.core.records import DEPENDENCY_FAILED, ErrorEntry, HistoryEvent, Kind, Revision, Transition, Verdict
from backstay.core.states import TERMINAL, Event, Status
from backstay.core.waits import wakes_at
from backstay.errors import StoreError
from backstay.limits import ERRORS_KEPT_MAX, HISTORY_HEAD, HISTORY_TAIL

READY, LATER, WAITING, RUNNING, ENDED = PLACES = ("ready", "later", "waiting", "running", "ended")
_PLACE_OF = {
    Status.PENDING: READY,
    Status.SCHEDULED: LATER,
    Status.RETRYING: LATER,
    Status.WAITING: WAITING,
    Status.PROCESSING: RUNNING,
    Status.COMPLETED: ENDED,
    Status.FAILED: ENDED,
    Status.CANCELLED: ENDED,
}

FACTS = (*job_fields.FACT_FIELDS, "rate_count", "rate_micros")
_LINE = (
    "queue", "job_type", "priority", "scheduled_for", "attempt", "failures", "version", "awaited", "expires_at",
)  # fmt: skip
# The columns of each place besides the key of the job. A standing has a field of each name.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    READY: (
        *_LINE, "job_id", "payload_version", "suspicion", "parked", "concurrency_key", "concurrency_limit", "rate_key",
        "rate_count", "rate_micros", "rate_cost", "fairness_key", "fairness_weight",
    ),
    LATER: ("status", *_LINE),
    WAITING: (*_LINE, "unmet", "awaits", "wakes_at"),
    RUNNING: (
        "attempt", "failures", "version", "token", "worker_id", "worker_version", "lease_expires_at", "started_at",
        "awaited", "concurrency_key", "noted_at", "progress", "stage",
    ),
    ENDED: (
        "status", "attempt", "failures", "version", "worker_id", "worker_version", "started_at", "completed_at",
        "token", "result", "result_artifact", "job_type", "error_type", "content_hash", "subject", "awaited",
    ),
}  # fmt: skip
# Columns of `detail` that a move writes as a whole. Priority and due time are the current ones; worker and start are
# those of the last attempt, for a job that is neither running nor ended.
DETAIL = (
    *job_fields.DETAIL_FIELDS, "joins", "priority", "scheduled_for", "progress", "stage", "worker_id", "worker_version",
    "started_at",
)  # fmt: skip
KEPT = job_fields.REPORT_FIELDS  # of which None keeps what is stored
CHILDREN = job_fields.CHILDREN_FIELDS  # written as differences

_REPORTED = tuple(name for name in KEPT if name in Transition.__struct_fields__)
_errors = msgspec.json.Decoder(list[ErrorEntry])


@functools.lru_cache(maxsize=1024)  # all jobs of one claim share a token
def token_key(token: str) -> int:
    """Return what is stored of a claim's token: a signed number of 64 bits, from which the token cannot be told."""
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), signed=True)


class Standing(msgspec.Struct, frozen=True):
    """What a decision needs to know of a job: of its facts, its place and its detail. `key` is what the engine's tables
    are keyed by."""

    key: Any
    job_id: str
    job_type: str
    queue: str
    max_attempts: int
    status: Status
    priority: int
    scheduled_for: Instant

    payload_version: int = 1
    parent_job_id: str | None = None
    subject: str | None = None
    content_hash: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_key: str | None = None
    rate_count: int | None = None
    rate_micros: int | None = None
    rate_cost: int = 1
    fairness_key: str | None = None
    fairness_weight: int = 1
    trigger_rule: str = "all_success"
    on_dependency_failure: str = "cancel"

    attempt: int = 0
    failures: int = 0
    version: int = 1
    awaited: bool = False
    expires_at: Instant | None = None
    parked: int = 0  # 1 by its concurrency key, 2 by its rate
    unmet: int = 0
    awaits: str | None = None
    token: int | None = None
    worker_id: str | None = None
    worker_version: str | None = None
    lease_expires_at: Instant | None = None
    started_at: Instant | None = None
    noted_at: Instant | None = None
    completed_at: Instant | None = None

    snoozes: int = 0
    give_backs: int = 0
    suspicion: int = 0
    waits: int = 0
    join_name: str | None = None
    progress: float = 0.0
    stage: str = ""
    joins: str | None = None
    reused_from: str | None = None
    rows_of: str | None = None
    rows_attempt: int | None = None
    result_tables: str | None = None
    last_error: str | None = None
    error_type: str | None = None
    lost_at: Instant | None = None
    errors: str | None = None

    stored: int = 0  # the newest version whose event is stored; 0: none is

    @property
    def place(self) -> str:
        return _PLACE_OF[self.status]

    @property
    def kind(self) -> Kind:
        return self.job_type, self.queue, self.priority


STANDING = Standing.__struct_fields__
_JOB_ID, _STATUS, _AWAITED = (STANDING.index(name) for name in ("job_id", "status", "awaited"))
_detail_of = operator.attrgetter(*DETAIL)
_detail_but_progress_of = operator.attrgetter(*(name for name in DETAIL if name not in ("progress", "stage")))
_COMPUTED = ("status", "result", "result_artifact", "wakes_at")
_row_of = {
    place: operator.attrgetter(*(name for name in names if name not in _COMPUTED)) for place, names in COLUMNS.items()
}
_names_of = {place: tuple(name for name in names if name not in _COMPUTED) for place, names in COLUMNS.items()}


def status_of(stored: str | None, job_id: str) -> Status:
    """Return the state that a job's place implies; StoreError if it has none, which only another program can cause."""
    if stored is None:
        raise StoreError(f'job {job_id} has no place, so its state is unknown: run "backstay doctor"')
    return Status(stored)


def standing_from(row: Sequence[Any]) -> Standing:
    """Return a standing from values in the order of STANDING."""
    values = list(row)
    values[_STATUS] = status_of(values[_STATUS], values[_JOB_ID])
    values[_AWAITED] = bool(values[_AWAITED])
    return Standing(*values)


class EventRow(HistoryEvent, frozen=True, gc=False):
    """An event to store. `token` is that of the holder who wrote it."""

    token: int | None = None


HISTORY = HistoryEvent.__struct_fields__  # the columns of `event` that are read as history …
EVENT = EventRow.__struct_fields__  # … and all that are written


class Move(msgspec.Struct, frozen=True):
    """What a transition changes: the job leaves the place of `before` for that of `after`, and these events are stored.
    `kept` are the columns of KEPT to write; None keeps what is stored."""

    before: Standing
    after: Standing
    events: tuple[EventRow, ...]
    result: str | None = None
    result_artifact: str | None = None
    kept: Mapping[str, Any] = {}
    revision: Revision | None = None  # what replaces the submitted payload

    @property
    def writes_detail(self) -> bool:
        before, after = self.before, self.after
        if before.status is Status.PROCESSING and after.status not in (Status.PROCESSING, Status.COMPLETED):
            return True  # how far it came, and who ran it, is kept in no other place
        return before.status in TERMINAL or self.differs

    @property
    def differs(self) -> bool:
        """Whether `detail` has to tell what distinguishes the job from what it was."""
        completed = self.after.status is Status.COMPLETED  # which implies its progress
        told = _detail_but_progress_of if completed else _detail_of
        return told(self.before) != told(self.after) or any(value is not None for value in self.kept.values())

    def place_row(self) -> dict[str, Any]:
        """Return the row that it enters, by column; with `key`."""
        after = self.after
        place = after.place
        row = dict(zip(_names_of[place], _row_of[place](after), strict=True))
        if place == ENDED:
            row.update(result=self.result, result_artifact=self.result_artifact, awaited=after.awaited or None)
            tables = self.kept.get("result_tables") or after.result_tables
            row.update(_findable(after, has_rows=tables is not None))
        elif place == WAITING:
            row["wakes_at"] = wakes_at(after.awaits)
        elif place == RUNNING:
            row.update(progress=after.progress or None, stage=after.stage or None)
        if place in (LATER, ENDED):
            row["status"] = after.status.value
        row["key"] = after.key
        return row

    def detail_row(self) -> dict[str, Any]:
        """Return the row of `detail`, by column: those of DETAIL as they are from now on, and those of KEPT; with
        `key`."""
        after = self.after
        row = {name: getattr(after, name) for name in DETAIL}
        return row | {name: self.kept.get(name) for name in KEPT} | {"key": after.key}


def _findable(job: Standing, *, has_rows: bool) -> dict[str, Any]:
    """Return what an ended job is found by: its content where it has a hash, its subject where it has rows, its error
    where it has failed."""
    is_dead = job.status is Status.FAILED
    found = job.content_hash is not None or has_rows or is_dead
    return {
        "job_type": job.job_type if found else None,
        "error_type": (job.error_type or DEPENDENCY_FAILED) if is_dead else None,
        "content_hash": job.content_hash,
        "subject": job.subject if has_rows else None,
    }


_COMPLETE, _PROCESSING, _COMPLETED = Event.COMPLETE, Status.PROCESSING, Status.COMPLETED  # see core/lifecycle.py


def is_fast_completion(t: Transition) -> bool:
    """Return whether this is a completion by its holder that sets nothing else free and does nothing else."""
    return (
        t.event is _COMPLETE
        and t.source is _PROCESSING
        and t.target is _COMPLETED
        and t.token is not None
        and t.version is None
        and t.lease is None
        and not t.effects
        and not t.children
        and t.staged is None
        and t.reason is None
        and t.details is None
    )


# How many jobs of each kind there are, and how many of them stand where: the tally. Neither pending nor processing jobs
# are in it: a submit, which is often on its own, and a claim would have to write it. Those that run are few, and are
# counted; the rest is pending.

STORED = "stored"  # all of them
TALLIED = frozenset(Status) - {Status.PENDING, Status.PROCESSING}


def moved_tally(before: Standing, after: Standing) -> Iterator[tuple[Kind, str, int]]:
    """Yield what a move changes of the tally."""
    same_kind = before.kind == after.kind
    if not same_kind:
        yield before.kind, STORED, -1
        yield after.kind, STORED, 1
    if before.status is not after.status or not same_kind:
        if before.status in TALLIED:
            yield before.kind, before.status.value, -1
        if after.status in TALLIED:
            yield after.kind, after.status.value, 1


def decide(standing: Standing | None, t: Transition, now: Instant, *, unmet: int = 0) -> Verdict | Move:
    """Return the move by which a transition is applied, or why it is not. STALE may still be a repeat: see `is_repeat`.
    `unmet`: for how many dependencies a job that runs again has to wait."""
    if standing is None:
        return Verdict.GONE
    if (
        standing.status is not t.source
        or standing.attempt != t.attempt
        or (t.version is not None and standing.version != t.version)
        or (t.token is not None and standing.token != token_key(t.token))
        or (t.lease is not None and standing.lease_expires_at != t.lease)
    ):
        return Verdict.STALE
    target = Status.WAITING if unmet else t.target
    given = {
        name: value
        for name in (
            "priority", "scheduled_for", "failures", "snoozes", "give_backs", "suspicion", "waits", "progress", "stage",
        )
        if (value := getattr(t, name)) is not None
    }  # fmt: skip
    if t.error is not None:
        given.update(_failed(standing, t.error, was_lost=t.event is Event.RESCUE))
    if t.clear_result:
        given.update(joins=None, reused_from=None, rows_of=None, rows_attempt=None)
    if t.clear_result or t.awaits is not None:
        given["join_name"] = t.join
    if target is Status.WAITING:
        given["unmet"] = unmet or standing.unmet
        if t.awaits is not None:
            given["awaits"] = t.awaits.stored
    if t.revision is not None:
        given.update(payload_version=t.revision.payload_version, expires_at=t.revision.expires_at)
    kept = {name: value for name in _REPORTED if (value := getattr(t, name)) is not None}
    key = None if t.token is None else token_key(t.token)
    return move(
        standing, target, t.event, now, by=t.by, reason=t.reason, details=t.details, forget_steps=t.forget_steps,
        token=key, kept=kept, result=t.result, result_artifact=t.result_artifact, revision=t.revision, **given,
    )  # fmt: skip


def _failed(standing: Standing, error: ErrorEntry, *, was_lost: bool) -> dict[str, Any]:
    errors = [*(_errors.decode(standing.errors) if standing.errors else ()), error][-ERRORS_KEPT_MAX:]
    return {
        "last_error": f"{error.type}: {error.message}",
        "error_type": error.type,
        "lost_at": error.at if was_lost else None,
        "errors": msgspec.json.encode(errors).decode(),
    }


def ended_by_others(error_type: str, message: str) -> dict[str, Any]:
    """Return what a job keeps that failed without an attempt: because of a dependency, or of its children."""
    return {"last_error": f"{error_type}: {message}", "error_type": error_type, "lost_at": None, "stage": "error"}


def move(
    standing: Standing,
    target: Status,
    event: Event,
    now: Instant,
    *,
    by: str | None = None,
    reason: str | None = None,
    details: EventDetails | None = None,
    forget_steps: bool = False,
    token: int | None = None,
    kept: Mapping[str, Any] | None = None,
    result: str | None = None,
    result_artifact: str | None = None,
    revision: Revision | None = None,
    **changes: Any,
) -> Move:
    """Return the move of a job to a state, with an event that makes a new version of it. What the place that it leaves
    implies of its history is stored with it, unless the new place implies it as well."""
    source, version = standing.status, standing.version + 1
    written = EventRow(version, now, event, source, target, standing.attempt, by, reason, forget_steps, details, token)
    plain = event is Event.COMPLETE and by == standing.worker_id and reason is None and details is None
    events = () if plain else (*implied(standing), written)
    ends, stays = target in TERMINAL, target is source
    changes.update(
        status=target,
        version=version,
        completed_at=now if ends else None,
        parked=standing.parked if stays else 0,
        stored=standing.stored if plain else version,
    )
    if not stays:
        changes.update(lease_expires_at=None, noted_at=None, token=token if ends else None)
        if target is not Status.WAITING:
            changes.update(unmet=0, awaits=None)
        if ends:
            changes.update(expires_at=None)
    if target is Status.COMPLETED:
        changes.update(progress=1.0, stage="complete")
    after = msgspec.structs.replace(standing, **changes)
    return Move(standing, after, events, result, result_artifact, kept or {}, revision)


# History


def implied(standing: Standing) -> tuple[EventRow, ...]:
    """Return the events that the place of a job implies and that are not stored, apart from its submit."""
    if standing.stored >= standing.version:
        return ()
    at, attempt, worker = standing.started_at, standing.attempt, standing.worker_id
    if standing.status is Status.PROCESSING:
        return (_claim(standing.version, at, attempt, worker),)
    if standing.status is not Status.COMPLETED:
        return ()
    complete = EventRow(
        standing.version,
        standing.completed_at or 0,
        Event.COMPLETE,
        Status.PROCESSING,
        Status.COMPLETED,
        attempt,
        worker,
        token=standing.token,
    )
    if standing.stored >= standing.version - 1 or standing.version < 3:
        return (complete,)
    return (_claim(standing.version - 1, at, attempt, worker), complete)


def _claim(version: int, at: Instant | None, attempt: int, worker: str | None) -> EventRow:
    return EventRow(version, at or 0, Event.CLAIM, Status.PENDING, Status.PROCESSING, attempt, worker)


def submitted(
    created_at: Instant,
    created_by: str | None,
    target: Status,
    event: Event = Event.SUBMIT,
) -> EventRow:
    """Return the first event of a job."""
    return EventRow(1, created_at, event, None, target, 0, created_by)


def history(fields: Mapping[str, Any], stored: Iterable[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    """Return the history of a job from its columns (see `columns`) and the events that are stored, by version."""
    events = {each.version: each for each in stored}
    status, version, attempt = fields["status"], fields["version"], fields["attempt"]
    if 1 not in events:
        first = Status.SCHEDULED if fields["submitted_for"] > fields["created_at"] else Status.PENDING
        events[1] = HistoryEvent(1, fields["created_at"], Event.SUBMIT, None, first, 0, fields["created_by"])
    worker, started = fields["worker_id"], fields["started_at"]
    claimed = version
    if status == Status.COMPLETED and version not in events:
        events[version] = HistoryEvent(
            version, fields["completed_at"], Event.COMPLETE, Status.PROCESSING, Status.COMPLETED, attempt, worker
        )
        claimed = version - 1
    if claimed not in events and status in (Status.PROCESSING, Status.COMPLETED):
        events[claimed] = HistoryEvent(
            claimed, started, Event.CLAIM, Status.PENDING, Status.PROCESSING, attempt, worker
        )
    whole = [events[each] for each in sorted(events)]
    if len(whole) > HISTORY_HEAD + HISTORY_TAIL:  # what is implied comes on top of what is stored
        whole = whole[:HISTORY_HEAD] + whole[-HISTORY_TAIL:]
    return tuple(whole)


def to_store(fields: Mapping[str, Any], whole: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Return what has to be stored of a history that was recorded elsewhere: nothing if it can be derived."""
    return () if history(fields, ()) == tuple(whole) else whole


def trimmed(version: int) -> tuple[int, int] | None:
    """Return the span of versions, its end included, whose events are dropped when an event of this version is stored:
    the first and the last are kept."""
    if version <= HISTORY_HEAD + HISTORY_TAIL:
        return None
    return HISTORY_HEAD + 1, version - HISTORY_TAIL


_BY_ITSELF = frozenset({Event.DUE, Event.RELEASE, Event.REUSE})  # what follows from a settlement, and undoes none
LATEST_MAX = 4  # events to read for `is_repeat`: no more follow from one settlement


def is_repeat(t: Transition, standing: Standing, latest: Iterable[tuple[str, int, int | None]]) -> bool:
    """Return whether a transition that its guards refuse was applied by an earlier try, and the job has not been
    changed since. `latest`: event, attempt and token of its last stored events, the newest first."""
    if t.token is None or standing.status is Status.PROCESSING:
        return False
    settled = (t.event.value, t.attempt, token_key(t.token))
    if standing.status is Status.COMPLETED and standing.stored < standing.version:
        return settled == (Event.COMPLETE.value, standing.attempt, standing.token)
    if standing.attempt != t.attempt:
        return False
    return next((each for each in latest if each[0] not in _BY_ITSELF), None) == settled


# Columns: what statements select to build standings and records. Both engines join the tables under the same names:
# j job, d detail, p ready, l later, w waiting, r running, e ended; at most one of the last five has a row.


def columns(key: str) -> dict[str, str]:
    """Return the expression of every column of a job, by name; `key` is the column that the tables are keyed by."""
    spelt = {name: f"j.{name}" for name in FACTS}
    spelt["submitted_for"] = "j.scheduled_for"
    for name, usual in job_fields.USUAL.items():
        spelt[name] = f"coalesce(j.{name}, {usual!r})"
    for name in ("priority", "scheduled_for"):
        spelt[name] = f"coalesce(d.{name}, j.{name})"
    for name in ("attempt", "failures", "version"):
        spelt[name] = f"coalesce(e.{name}, r.{name}, p.{name}, l.{name}, w.{name})"
    spelt["status"] = (
        f"CASE WHEN e.{key} IS NOT NULL THEN e.status WHEN r.{key} IS NOT NULL THEN 'processing'"
        f" WHEN p.{key} IS NOT NULL THEN 'pending' WHEN l.{key} IS NOT NULL THEN l.status"
        f" WHEN w.{key} IS NOT NULL THEN 'waiting' END"
    )
    spelt.update(
        key=f"j.{key}",
        parked="coalesce(p.parked, 0)",
        unmet="coalesce(w.unmet, 0)",
        awaits="w.awaits",
        expires_at="coalesce(p.expires_at, l.expires_at, w.expires_at)",
        lease_expires_at="r.lease_expires_at",
        noted_at="r.noted_at",
        completed_at="e.completed_at",
        result="e.result",
        result_artifact="e.result_artifact",
        awaited="coalesce(e.awaited, r.awaited, p.awaited, l.awaited, w.awaited)",
    )
    spelt["token"] = "coalesce(e.token, r.token)"  # noqa: S105
    spelt["stored"] = f"coalesce((SELECT max(v.version) FROM event AS v WHERE v.{key} = j.{key}), 0)"  # noqa: S608
    for name in ("worker_id", "worker_version", "started_at"):
        spelt[name] = f"coalesce(e.{name}, r.{name}, d.{name})"
    for name, usual, completed in (("progress", "0.0", "1.0"), ("stage", "''", "'complete'")):
        spelt[name] = (
            f"CASE WHEN e.status = 'completed' THEN {completed} WHEN r.{key} IS NOT NULL"
            f" THEN coalesce(r.{name}, {usual}) ELSE coalesce(d.{name}, {usual}) END"
        )
    for name in ("snoozes", "give_backs", "suspicion", "waits", *CHILDREN):
        spelt[name] = f"coalesce(d.{name}, 0)"
    for name in (
        "join_name", "joins", "reused_from", "rows_of", "rows_attempt", "last_error", "error_type", "lost_at", "errors",
        *KEPT,
    ):  # fmt: skip
        spelt[name] = f"d.{name}"
    return spelt
