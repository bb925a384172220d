"""Why a job is not running, in one sentence. Facts are gathered here; `judge`, which is pure, says what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast import awaited, fallen, rings
from holdfast.clock import MICROS, Instant, to_datetime
from holdfast.lifecycle import TERMINAL, Event, Status, moved_to
from holdfast.limits import FIND_LIMIT_MAX, LISTED_EDGES_MAX
from holdfast.store.moves import FROM, refusal
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, Query, QueueRow, WorkerRow

NAMED_MAX = 3  # jobs that a sentence names; the rest is a number
SILENT_LEASES = 1.0  # a worker that was silent for longer than a lease is not counted on


class Reason(StrEnum):
    """Everything that `explain` can find."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ARCHIVED = "archived"
    RUNNING = "running"
    LEASE_EXPIRED = "lease_expired"
    WAITING = "waiting"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    RING = "ring"
    SCHEDULED = "scheduled"
    SNOOZED = "snoozed"
    BACKING_OFF = "backing_off"
    OVERDUE = "overdue"
    QUEUE_PAUSED = "queue_paused"
    MOVED = "moved"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_TYPE = "no_worker_for_type"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_VERSION = "no_worker_for_version"
    KEY_FULL = "key_full"
    RATE_LIMITED = "rate_limited"
    TYPE_FULL = "type_full"
    WORKERS_BUSY = "workers_busy"
    IN_LINE = "in_line"


class Explanation(str):
    """The sentence, with what it is made of."""

    reason: Reason
    until: datetime | None
    job_ids: tuple[str, ...]

    def __new__(
        cls, sentence: str, reason: Reason, until: datetime | None = None, job_ids: Sequence[str] = ()
    ) -> Explanation:
        made = super().__new__(cls, sentence)
        made.reason, made.until, made.job_ids = reason, until, tuple(job_ids)
        return made


class Facts(msgspec.Struct, kw_only=True):
    """What a judgement needs to know."""

    job: JobRecord
    now: Instant
    lease_micros: int
    workers: list[WorkerRow]
    queue: QueueRow | None = None
    dependencies: dict[str, Status | None] = {}
    joined: str | None = None  # the identical job whose result it will take
    open_children: list[tuple[str, Status]] = []  # some of those that it waits for
    bad_children: list[JobRecord] = []  # some of those that it went down with
    ring: list[JobRecord] = []  # those that wait for one another
    holders: list[str] = []  # jobs that run under the same concurrency key
    rate_due_at: Instant | None = None
    claims: dict[str, dict[str, int]] = {}  # by worker and type; none of a worker after one that has room
    dead: list[str] = []  # workers that are certainly gone
    ahead: int = 0  # pending jobs of the same queue and type that come first, up to a limit


_AHEAD_MAX = 100  # beyond this "100 or more" says enough


async def explain(
    store: Store, job: JobRecord, now: Instant, lease_micros: int, is_dead: Callable[[WorkerRow], bool]
) -> Explanation:
    """`is_dead` knows which workers are certainly gone, though they were heard of not long ago."""
    state = await store.moving()
    if state is not None and state.role == FROM and job.status not in (Status.PROCESSING, *TERMINAL):
        return Explanation(refusal(state), Reason.MOVED)
    workers = await store.workers()
    dead = [worker.worker_id for worker in workers if is_dead(worker)]
    living = [worker for worker in workers if worker.worker_id not in dead]
    facts = Facts(job=job, now=now, lease_micros=lease_micros, workers=living, dead=dead)
    if job.status is Status.WAITING:
        if job.awaits is None:
            statuses = await store.statuses(job.dependencies)
            facts.dependencies = dict(zip(job.dependencies, statuses, strict=True))
            facts.joined = await awaited.joined(store, job, _open(facts)[:NAMED_MAX])
        else:
            facts.open_children = await awaited.open_children(store, job, NAMED_MAX)
        facts.ring = await rings.ring(store, job)
    if fallen.went_down_with_children(job):
        for status in (Status.FAILED, Status.CANCELLED):
            facts.bad_children += (await store.children(job.job_id, None, NAMED_MAX, status)).items
    if job.status is Status.PENDING:
        facts.queue = next((row for row in await store.queues() if row.name == job.queue), None)
        facts.holders = await _holders(store, job)
        if job.rate_key is not None:
            facts.rate_due_at = await store.rate_due(job.job_id, now)
        facts.claims = await _claims(store, facts)
        facts.ahead = await store.ahead(job.job_id, _AHEAD_MAX)
    return judge(facts)


def _open(facts: Facts) -> list[str]:
    return [job_id for job_id, status in facts.dependencies.items() if status is not Status.COMPLETED]


async def _holders(store: Store, job: JobRecord) -> list[str]:
    """As many as it takes to fill the key."""
    found: list[str] = []
    after: str | None = None
    while job.concurrency_key is not None and len(found) < (job.concurrency_limit or 0):
        page = await store.find(
            Query(concurrency_key=job.concurrency_key, status=Status.PROCESSING, after=after, limit=_PAGE)
        )
        found += [each.job_id for each in page.items]
        after = page.next
        if after is None:
            break
    return found


_PAGE = 100
_LOOKED_AT_MAX = 50  # workers of which one is sought that has room


async def _claims(store: Store, facts: Facts) -> dict[str, dict[str, int]]:
    """What workers hold now: their own rows are up to a third of a lease old. Until one is found that has room."""
    found: dict[str, dict[str, int]] = {}
    for worker in sorted(_able(facts), key=lambda each: len(each.running) - each.concurrency)[:_LOOKED_AT_MAX]:
        page = await store.find(Query(status=Status.PROCESSING, worker=worker.worker_id, limit=FIND_LIMIT_MAX))
        of_type = found[worker.worker_id] = dict(Counter(each.job_type for each in page.items))
        held = {each.job_id for each in page.items}
        for each in await store.get([job_id for job_id in worker.stuck if job_id not in held]):
            if each is not None:  # its claim is gone, but its thread keeps the slot
                of_type[each.job_type] = of_type.get(each.job_type, 0) + 1
        if not (_type_full(worker, facts.job.job_type, of_type) or _is_busy(worker, of_type)):
            break
    return found


def judge(facts: Facts) -> Explanation:
    job = facts.job
    if job.archived_at is not None:
        return Explanation(
            f"it ended {job.status.value} at {_at(job.completed_at)} and was archived at {_at(job.archived_at)}",
            Reason.ARCHIVED,
        )
    if fallen.went_down_with_children(job):
        why = fallen.said(job, facts.bad_children[:NAMED_MAX], _at(job.completed_at))
        return Explanation(
            f"{why}; retry it with subtree to run these and it again",
            Reason.FAILED if job.status is Status.FAILED else Reason.CANCELLED,
            job_ids=[each.job_id for each in facts.bad_children],
        )
    match job.status:
        case Status.COMPLETED:
            return Explanation(f"it completed at {_at(job.completed_at)}", Reason.COMPLETED)
        case Status.CANCELLED:
            return Explanation(f"it was cancelled at {_at(job.completed_at)}{_by_whom(job)}", Reason.CANCELLED)
        case Status.FAILED:
            tries = f" after {job.failures} of {job.max_attempts} attempts" if job.failures else ""
            return Explanation(
                f"it failed for good at {_at(job.completed_at)}{tries}: {job.last_error}; retry it to run it again",
                Reason.FAILED,
            )
        case Status.PROCESSING:
            return _processing(facts)
        case Status.WAITING:
            return _waiting(facts)
        case Status.SCHEDULED | Status.RETRYING:
            return _later(facts)
        case Status.PENDING:
            return _pending(facts)


def _by_whom(job: JobRecord) -> str:
    last = job.history[-1] if job.history else None
    if last is None:
        return ""
    by = f" by {last.by}" if last.by else ""
    return f"{by}: {last.reason}" if last.reason else by


def _processing(facts: Facts) -> Explanation:
    job = facts.job
    expires = job.lease_expires_at or 0
    gone = job.worker_id in facts.dead
    if expires <= facts.now or gone:
        helper = "any worker will take it up" if _live(facts) else "no live worker is there to take it up: start one"
        what = "is gone" if gone else f"let the lease run out at {_at(expires)}"
        return Explanation(f"its worker {job.worker_id} {what}; {helper}", Reason.LEASE_EXPIRED, _moment(expires))
    return Explanation(
        f"it is running: attempt {job.attempt} on {job.worker_id} since {_at(job.started_at)}"
        + (f", {job.progress:.0%}" if job.progress else "")
        + (f" {job.stage}" if job.stage else ""),
        Reason.RUNNING,
    )


def _waiting(facts: Facts) -> Explanation:
    if facts.ring:
        return Explanation(rings.said(facts.ring), Reason.RING, job_ids=[each.job_id for each in facts.ring])
    if facts.job.awaits is not None:
        return _waiting_for_children(facts)
    open_ones = _open(facts)
    stand = {job_id: str(facts.dependencies[job_id] or "unknown") for job_id in open_ones[:NAMED_MAX]}
    if facts.joined in stand:
        stand[facts.joined] += ", whose result it will take"
    named = [f"{job_id} ({status})" for job_id, status in stand.items()]
    more = len(open_ones) - len(named)
    jobs = " and ".join([*named, f"{more} more"] if more > 0 else named)
    if not jobs:
        beyond = len(facts.dependencies) >= LISTED_EDGES_MAX
        jobs = f"others than the first {LISTED_EDGES_MAX} it depends on" if beyond else "jobs that are just ending"
    return Explanation(f"it waits on {jobs}", Reason.WAITING, job_ids=open_ones)


def _waiting_for_children(facts: Facts) -> Explanation:
    job = facts.job
    ids = [job_id for job_id, _ in facts.open_children]
    named = ", ".join(f"{job_id} ({status.value})" for job_id, status in facts.open_children)
    beyond = ", …" if job.open_children > len(ids) else ""
    return Explanation(
        f"it waits for {job.open_children} of its {job.children} children{f': {named}{beyond}' if named else ''}",
        Reason.WAITING_FOR_CHILDREN,
        job_ids=ids,
    )


def _later(facts: Facts) -> Explanation:
    job = facts.job
    until = _moment(job.scheduled_for)
    if job.scheduled_for <= facts.now:
        helper = "it starts at any moment" if _live(facts) else "no live worker is there to start it: start one"
        return Explanation(f"it was due at {_at(job.scheduled_for)}; {helper}", Reason.OVERDUE, until)
    if job.status is Status.RETRYING:
        return Explanation(
            f"it backs off until {_at(job.scheduled_for)} after {job.failures} of {job.max_attempts} attempts failed:"
            f" {job.last_error}",
            Reason.BACKING_OFF,
            until,
        )
    # A change of priority says nothing about how the job came to be where it is.
    came = next((each for each in reversed(job.history) if each.event is not Event.REPRIORITISE), None)
    given = came is not None and came.reason not in (None, moved_to(job.scheduled_for))
    why = f": {came.reason}" if came is not None and given else ""
    if came is not None and came.event is Event.SNOOZE:
        return Explanation(f"it snoozes until {_at(job.scheduled_for)}{why}", Reason.SNOOZED, until)
    by = f" by {came.by}" if came is not None and came.event is Event.RESCHEDULE and came.by else ""
    return Explanation(f"it is scheduled for {_at(job.scheduled_for)}{by}{why}", Reason.SCHEDULED, until)


def _pending(facts: Facts) -> Explanation:
    """The first thing that stands in the way, from what concerns all jobs to what concerns this one."""
    job = facts.job
    if facts.queue is not None and facts.queue.paused_at is not None:
        by = f" by {facts.queue.paused_by}" if facts.queue.paused_by else ""
        why = f": {facts.queue.pause_reason}" if facts.queue.pause_reason else ""
        return Explanation(
            f"the queue {job.queue} has been paused{by} since {_at(facts.queue.paused_at)}{why}", Reason.QUEUE_PAUSED
        )
    return _nobody(facts) or _no_room(facts) or _in_line(facts)


def _nobody(facts: Facts) -> Explanation | None:
    job = facts.job
    live = _live(facts)
    if not live:
        return Explanation(
            f"no worker is alive{_last_heard(facts)}: start one with “holdfast worker”", Reason.NO_WORKER
        )
    of_type = [worker for worker in live if job.job_type in worker.job_types]
    if not of_type:
        return Explanation(
            f"no live worker handles {job.job_type}: {_these(live)} handle{_s(live)}"
            f" {_all(each.job_types for each in live)}",
            Reason.NO_WORKER_FOR_TYPE,
        )
    of_queue = [worker for worker in of_type if job.queue in worker.queues]
    if not of_queue:
        return Explanation(
            f"no live worker that handles {job.job_type} serves the queue {job.queue}:"
            f" {_these(of_type)} serve{_s(of_type)} {_all(each.queues for each in of_type)}",
            Reason.NO_WORKER_FOR_QUEUE,
        )
    if not _able(facts):
        newest = max(worker.versions[job.job_type] for worker in of_queue)
        return Explanation(
            f"its payload has version {job.payload_version}, and live workers read {job.job_type} up to {newest}:"
            " upgrade them",
            Reason.NO_WORKER_FOR_VERSION,
        )
    return None


def _no_room(facts: Facts) -> Explanation | None:
    job = facts.job
    if job.concurrency_limit is not None and len(facts.holders) >= job.concurrency_limit:
        named = ", ".join(facts.holders[:NAMED_MAX])
        more = len(facts.holders) - NAMED_MAX
        return Explanation(
            f"the concurrency key {job.concurrency_key} is full: {named}{f' and {more} more' if more > 0 else ''}"
            f" run{'s' if len(facts.holders) == 1 else ''} under it, and {job.concurrency_limit} may",
            Reason.KEY_FULL,
            job_ids=facts.holders,
        )
    if facts.rate_due_at is not None and facts.rate_due_at > facts.now:
        return Explanation(
            f"the rate of the key {job.rate_key} is used up until {_at(facts.rate_due_at)}",
            Reason.RATE_LIMITED,
            _moment(facts.rate_due_at),
        )
    return _no_slot(facts)


def _no_slot(facts: Facts) -> Explanation | None:
    job = facts.job
    looked_at = [worker for worker in _able(facts) if worker.worker_id in facts.claims]
    full = [worker for worker in looked_at if _type_full(worker, job.job_type, facts.claims[worker.worker_id])]
    busy = [worker for worker in looked_at if _is_busy(worker, facts.claims[worker.worker_id])]
    if len({worker.worker_id for worker in (*full, *busy)}) < len(looked_at) or not looked_at:
        return None
    if len(full) == len(looked_at):
        return Explanation(
            f"every worker that handles {job.job_type} runs as many of them at once as it may:"
            f" {', '.join(f'{each.worker_id} {each.limits[job.job_type]}' for each in full[:NAMED_MAX])}"
            f"{_and_more(full)}; {_jobs_ahead(facts)}",
            Reason.TYPE_FULL,
        )
    return Explanation(
        f"every worker that handles {job.job_type} is busy: {_these(looked_at)}; {_jobs_ahead(facts)}",
        Reason.WORKERS_BUSY,
    )


def _type_full(worker: WorkerRow, job_type: str, claims: dict[str, int]) -> bool:
    limit = worker.limits.get(job_type)
    return limit is not None and _calls(worker, job_type, claims.get(job_type, 0)) >= limit


def _calls(worker: WorkerRow, job_type: str, jobs: int) -> int:
    """How many slots they take: one each, or one for as many as a batch handler is called for."""
    return -(-jobs // worker.batches.get(job_type, 1))


def _is_busy(worker: WorkerRow, claims: dict[str, int]) -> bool:
    """Claims beyond the limit of their type were taken ahead and hold no slot."""
    calls = {job_type: _calls(worker, job_type, count) for job_type, count in claims.items()}
    slots = sum(min(count, worker.limits.get(job_type, count)) for job_type, count in calls.items())
    return slots >= worker.concurrency


def _in_line(facts: Facts) -> Explanation:
    if not facts.ahead:
        return Explanation(f"nothing stands in its way: {_jobs_ahead(facts)}", Reason.IN_LINE)
    return Explanation(f"it is in line: {_jobs_ahead(facts)}", Reason.IN_LINE)


def _jobs_ahead(facts: Facts) -> str:
    """How many pending jobs of its queue and type come first; of one that a key holds back, how many of that key. Those
    are let in without taking turns."""
    kin, turns = "its queue and type", ""
    if facts.job.parked:
        kin = "its key"
    elif facts.job.fairness_key is not None:
        kin, turns = f"the key {facts.job.fairness_key}", ", and keys take turns"
    if not facts.ahead:
        return f"it is next of {kin}{turns}"
    count = f"{facts.ahead} or more" if facts.ahead >= _AHEAD_MAX else str(facts.ahead)
    comes = f"job of {kin} comes" if facts.ahead == 1 else f"jobs of {kin} come"
    return f"{count} {comes} first{turns}"


def _able(facts: Facts) -> list[WorkerRow]:
    """Live workers that would take the job if they had room."""
    job = facts.job
    return [
        worker
        for worker in _live(facts)
        if job.job_type in worker.job_types
        and job.queue in worker.queues
        and worker.versions.get(job.job_type, job.payload_version) >= job.payload_version
    ]


def _live(facts: Facts) -> list[WorkerRow]:
    return [worker for worker in facts.workers if not worker.stopping and not _silent(worker, facts)]


def _silent(worker: WorkerRow, facts: Facts) -> bool:
    return facts.now - worker.heartbeat_at > max(facts.lease_micros, worker.lease_micros) * SILENT_LEASES


def _last_heard(facts: Facts) -> str:
    stopping = [worker for worker in facts.workers if worker.stopping and not _silent(worker, facts)]
    if stopping:
        return f" but {_these(stopping)}, which {'is' if len(stopping) == 1 else 'are'} stopping"
    last = max(facts.workers, key=lambda worker: worker.heartbeat_at, default=None)
    return "" if last is None else f" ({last.worker_id} was last heard of at {_at(last.heartbeat_at)})"


def _these(workers: list[WorkerRow]) -> str:
    return ", ".join(worker.worker_id for worker in workers[:NAMED_MAX]) + _and_more(workers)


def _and_more(workers: list[WorkerRow]) -> str:
    more = len(workers) - NAMED_MAX
    return f" and {more} more" if more > 0 else ""


def _s(workers: list[WorkerRow]) -> str:
    return "s" if len(workers) == 1 else ""


def _all(names: Iterable[Iterable[str]]) -> str:
    found = sorted({name for each in names for name in each})
    return ", ".join(found[:10]) + (" …" if len(found) > 10 else "") or "none"


def _at(instant: Instant | None) -> str:
    return "an unknown time" if instant is None else f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC"


def _moment(instant: Instant) -> datetime:
    return to_datetime(instant)


def lease_micros(seconds: float) -> int:
    return round(seconds * MICROS)
