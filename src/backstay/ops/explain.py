"""Why a job is not running: gathers facts from the store, and `judge`, which is pure, interprets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from backstay.clock import Instant, to_datetime
from backstay.core.admission import RunLimits
from backstay.core.dumps import FROM, MoveState
from backstay.core.event_details import Slept, Subtree, Tick
from backstay.core.forecast import Estimate, Unforeseen
from backstay.core.port import Store
from backstay.core.records import JobRecord, LimitRow, Query, QueueRow, WorkerRow
from backstay.core.states import STAYING, TERMINAL, Event, Status
from backstay.core.suspicion import RUNS_ALONE
from backstay.core.workers import is_silent, takes_jobs
from backstay.job import own_progress
from backstay.limits import AHEAD_MAX, FIND_LIMIT_MAX, FORETELL_WORKERS_MAX, LISTED_EDGES_MAX
from backstay.ops.events import event_wait
from backstay.ops.explanation import (
    NAMED_MAX,
    Explanation,
    Params,
    Reason,
    RelatedJob,
    ended_with_children,
    ended_with_dependency,
    failed_dependency,
)
from backstay.ops.foretell import foretell


class Facts(msgspec.Struct, kw_only=True):
    """What `judge` needs to know."""

    job: JobRecord
    now: Instant
    workers: list[WorkerRow] = []  # as many as it takes to tell
    queue: QueueRow | None = None
    limits: RunLimits = msgspec.field(default_factory=RunLimits)  # what was set at run time
    of_type: LimitRow | None = None  # … for the type
    type_holders: list[str] = []  # jobs of the type that run, if it is limited
    dependencies: dict[str, Status | None] = {}
    joined: str | None = None  # the identical job whose result it will reuse
    open_children: list[tuple[str, Status]] = []  # some of those that it waits for
    bad_children: list[JobRecord] = []  # some of those that it ended with
    ring: list[JobRecord] = []  # those that wait for one another
    holders: list[str] = []  # jobs that run under the same concurrency key
    rate_due_at: Instant | None = None
    claims: dict[str, dict[str, int]] = {}  # by worker and type; none of a worker after one that has room
    dead: list[str] = []  # workers that are certainly gone
    ahead: int = 0  # pending jobs of the same queue and type that come first, up to a limit


async def explain(
    store: Store,
    job: JobRecord,
    now: Instant,
    is_dead: Callable[[WorkerRow], bool],
    ask_first: Sequence[str] = (),
) -> Explanation:
    """Explain why a job is not running. `is_dead` tells which workers are certainly gone, even if they were seen
    recently. `ask_first`: workers that could probably run the job, if any are known."""
    state = await store.moving()
    if state is not None and state.role == FROM and job.status not in (Status.PROCESSING, *TERMINAL):
        return msgspec.structs.replace(_moved(state), unforeseen=Unforeseen.MOVED)
    facts = Facts(job=job, now=now)
    if job.status is Status.PROCESSING:
        await _read_holder(store, facts, is_dead)
    elif job.status in (Status.SCHEDULED, Status.RETRYING) and job.scheduled_for <= now:
        await _read_workers(store, facts, is_dead, _some_live)
    if job.status is Status.WAITING:
        if job.awaits is None:
            statuses = await store.statuses(job.dependencies)
            facts.dependencies = dict(zip(job.dependencies, statuses, strict=True))
            facts.joined = await _joined(store, job, _open(facts)[:NAMED_MAX])
        elif event_wait(job) is None:
            facts.open_children = await _open_children(store, job)
        facts.ring = await find_ring(store, job)
    if ended_with_children(job):
        for status in (Status.FAILED, Status.CANCELLED):
            facts.bad_children += (await store.children(job.job_id, None, NAMED_MAX, status)).items
    if job.status is Status.PENDING:
        facts.queue = next((row for row in await store.queues() if row.name == job.queue), None)
        facts.limits.add(await store.limits())
        facts.of_type = facts.limits.of_type(job.job_type)
        if job.concurrency_key is not None and job.concurrency_limit is not None:
            most = facts.limits.allowed(job.concurrency_key, job.concurrency_limit)
            facts.holders = await _running(store, most, concurrency_key=job.concurrency_key)
        if facts.of_type is not None and facts.of_type.concurrency is not None:
            facts.type_holders = await _running(store, facts.of_type.concurrency, job_type=job.job_type)
        if job.rate_key is not None or facts.limits.bucket_of_type(job.job_type) is not None:
            facts.rate_due_at = await store.rate_due(job.job_id, now)
        for worker in await store.workers(ask_first) if ask_first else []:
            _sort(facts, worker, is_dead)
        if not await _some_with_room(store, facts):
            await _read_workers(store, facts, is_dead, _some_with_room)
        facts.ahead = await store.ahead(job.job_id, AHEAD_MAX)
    return _with_skipped(await _with_estimate(store, facts, judge(facts), is_dead), job)


async def _with_estimate(
    store: Store, facts: Facts, found: Explanation, is_dead: Callable[[WorkerRow], bool]
) -> Explanation:
    """Add when the job starts, or why that cannot be foretold."""
    job = facts.job
    estimate: Estimate | None = None
    match found.reason:
        case Reason.WAITING | Reason.WAITING_FOR_CHILDREN | Reason.RING:
            why: Unforeseen | None = Unforeseen.WAITS
        case Reason.SCHEDULED | Reason.SNOOZED | Reason.BACKING_OFF:
            why = Unforeseen.NOT_DUE
        case Reason.QUEUE_PAUSED | Reason.TYPE_PAUSED:
            why = Unforeseen.PAUSED
        case Reason.NO_WORKER | Reason.NO_WORKER_FOR_TYPE | Reason.NO_WORKER_FOR_QUEUE | Reason.NO_WORKER_FOR_VERSION:
            why = Unforeseen.NO_WORKER
        case Reason.RUNS_ALONE:
            why = Unforeseen.RUNS_ALONE
        case (
            Reason.KEY_FULL
            | Reason.RATE_LIMITED
            | Reason.TYPE_LIMITED
            | Reason.TYPE_FULL
            | Reason.WORKERS_BUSY
            | Reason.IN_LINE
        ):
            if job.fairness_key is not None and not job.parked:
                why = Unforeseen.TAKES_TURNS
            else:
                is_next = found.reason is Reason.IN_LINE and not facts.ahead
                rows = facts.workers if is_next else await store.workers(limit=FORETELL_WORKERS_MAX)
                estimate = await foretell(
                    store,
                    job,
                    facts.now,
                    [each for each in rows if not is_dead(each) and _may_run(job, each, facts.now)],
                    ahead=facts.ahead,
                    has_room=found.reason is Reason.IN_LINE,
                    is_held_by_key=found.reason is Reason.KEY_FULL,
                    rate_due_at=facts.rate_due_at,
                    claims=facts.claims,
                    limits=facts.limits,
                )
                why = None if estimate else Unforeseen.NO_HISTORY
        case _:
            why = None
    return msgspec.structs.replace(found, estimate=estimate, unforeseen=why)


def _with_skipped(found: Explanation, job: JobRecord) -> Explanation:
    """Add the ticks that its schedule has skipped because of this job, as far as its history names them."""
    ticks = [each.details for each in job.history if isinstance(each.details, Tick)]
    if not ticks:
        return found
    last = ticks[-1]
    params = msgspec.structs.replace(found.params, schedule=last.schedule, skipped=len(ticks), skipped_at=last.tick_at)
    return msgspec.structs.replace(found, params=params)


def _open(facts: Facts) -> list[str]:
    return [job_id for job_id, status in facts.dependencies.items() if status is not Status.COMPLETED]


async def _open_children(store: Store, job: JobRecord) -> list[tuple[str, Status]]:
    """Return a few of the open children, those that explain most first."""
    found: list[tuple[str, Status]] = []
    for status in (Status.PROCESSING, Status.RETRYING, Status.PENDING, Status.SCHEDULED, Status.WAITING):
        if len(found) < NAMED_MAX:
            page = await store.children(job.job_id, None, NAMED_MAX, status)
            found += [(each.job_id, each.status) for each in page.items]
    return found[:NAMED_MAX]


async def _joined(store: Store, job: JobRecord, waits_for: Sequence[str]) -> str | None:
    """Return the identical job whose result it will reuse."""
    if job.content_hash is None:
        return None
    same = (job.job_type, job.content_hash)
    found = await store.get(waits_for)
    return next((each.job_id for each in found if each and (each.job_type, each.content_hash) == same), None)


async def _running(
    store: Store, most: int, *, concurrency_key: str | None = None, job_type: str | None = None
) -> list[str]:
    """Return as many running jobs of a key or type as fill it."""
    found: list[str] = []
    query = Query(concurrency_key=concurrency_key, job_type=job_type, status=Status.PROCESSING, limit=_PAGE)
    after: str | None = None
    while len(found) < most:
        page = await store.find(msgspec.structs.replace(query, after=after))
        found += [each.job_id for each in page.items]
        after = page.next
        if after is None:
            break
    return found


_PAGE = 100
_WORKERS_PAGE_MAX = 1_000  # read at once; the first page is shorter, since it is usually enough
_LOOKED_AT_MAX = 50  # workers that are searched for one with room

_Enough = Callable[[Store, Facts], Awaitable[bool]]


async def _read_holder(store: Store, facts: Facts, is_dead: Callable[[WorkerRow], bool]) -> None:
    """Read the worker that holds the job. If it is gone, read others too, until one is live."""
    holder = facts.job.worker_id
    for worker in [] if holder is None else await store.workers([holder]):
        _sort(facts, worker, is_dead)
    if holder in facts.dead or (facts.job.lease_expires_at or 0) <= facts.now:
        await _read_workers(store, facts, is_dead, _some_live)


async def _read_workers(store: Store, facts: Facts, is_dead: Callable[[WorkerRow], bool], enough: _Enough) -> None:
    """Read workers page by page until there are enough to decide, because there may be thousands."""
    known = {*(worker.worker_id for worker in facts.workers), *facts.dead}
    after, limit = "", _PAGE
    while True:
        page = await store.workers(after=after, limit=limit)
        for worker in page:
            if worker.worker_id not in known:
                _sort(facts, worker, is_dead)
        if await enough(store, facts) or len(page) < limit:
            return
        after, limit = page[-1].worker_id, _WORKERS_PAGE_MAX


def _sort(facts: Facts, worker: WorkerRow, is_dead: Callable[[WorkerRow], bool]) -> None:
    if is_dead(worker):
        facts.dead.append(worker.worker_id)
    else:
        facts.workers.append(worker)


async def _some_live(store: Store, facts: Facts) -> bool:
    return bool(_live(facts))


async def _some_with_room(store: Store, facts: Facts) -> bool:
    """Return workers with room, even if many others have none. What they hold is read from the jobs, because their own
    rows are up to a third of a lease old."""
    able = [worker for worker in _able(facts) if worker.worker_id not in facts.claims]
    for worker in sorted(able, key=lambda each: len(each.running) - each.concurrency):
        if len(facts.claims) >= _LOOKED_AT_MAX:
            return True
        page = await store.find(Query(status=Status.PROCESSING, worker=worker.worker_id, limit=FIND_LIMIT_MAX))
        of_type = facts.claims[worker.worker_id] = dict(Counter(each.job_type for each in page.items))
        held = {each.job_id for each in page.items}
        for each in await store.get([job_id for job_id in worker.stuck if job_id not in held]):
            if each is not None:  # its claim is gone, but its thread keeps the slot
                of_type[each.job_type] = of_type.get(each.job_type, 0) + 1
        if not (_type_full(worker, facts.job.job_type, of_type) or _is_busy(worker, of_type)):
            return True
    return False


# Rings: a submit cannot make one, but a parent that waits for its child can close one: its child depends on a job
# elsewhere, and that one on the parent.

_STEPS_MAX = 100  # jobs looked at: a longer ring is found from one of its other jobs


async def find_ring(store: Store, job: JobRecord) -> list[JobRecord]:
    """Find the cycle that this job waits for or belongs to. Each job in it waits for the next."""
    path: dict[str, JobRecord] = {}
    done: set[str] = set()
    stack: list[tuple[JobRecord, list[JobRecord]]] = []

    async def enter(record: JobRecord) -> None:
        path[record.job_id] = record
        stack.append((record, await _waits_for(store, record)))

    await enter(job)
    while stack and len(done) + len(path) <= _STEPS_MAX:
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


async def _waits_for(store: Store, record: JobRecord) -> list[JobRecord]:
    """Return the jobs that this one waits for and that are waiting themselves."""
    if record.status is not Status.WAITING:
        return []
    if event_wait(record) is not None:
        return []
    if record.awaits is not None:
        return list((await store.children(record.job_id, None, _STEPS_MAX, Status.WAITING)).items)
    found = await store.get(record.dependencies)
    return [each for each in found if each is not None and each.status is Status.WAITING]


def ring(jobs: Sequence[JobRecord]) -> Explanation:
    """Explain jobs that wait for one another."""
    before = [*jobs[-1:], *jobs[:-1]]
    named = tuple(
        RelatedJob(job_id=job.job_id, name=job.job_type, status=job.status, is_child=previous.awaits is not None)
        for previous, job in zip(before, jobs, strict=True)
    )
    return Explanation(reason=Reason.RING, params=Params(jobs=named), job_ids=tuple(job.job_id for job in jobs))


# Judgement


def judge(facts: Facts) -> Explanation:
    job = facts.job
    if job.archived_at is not None:
        params = Params(at=_moment(job.completed_at), archived_at=_moment(job.archived_at), status=job.status)
        return Explanation(reason=Reason.ARCHIVED, params=params)
    match job.status:
        case Status.COMPLETED:
            return Explanation(reason=Reason.COMPLETED, params=Params(at=_moment(job.completed_at)))
        case Status.FAILED | Status.CANCELLED:
            return _over(facts, Reason.FAILED if job.status is Status.FAILED else Reason.CANCELLED)
        case Status.PROCESSING:
            return _processing(facts)
        case Status.WAITING:
            return _waiting(facts)
        case Status.SCHEDULED | Status.RETRYING:
            return _later(facts)
        case Status.PENDING:
            return _pending(facts)


def _over(facts: Facts, reason: Reason) -> Explanation:
    job, at = facts.job, _moment(facts.job.completed_at)
    last = job.history[-1] if job.history else None
    if ended_with_children(job):
        named = facts.bad_children[:NAMED_MAX]
        params = Params(
            at=at,
            cause="children",
            jobs=tuple(map(_fallen_child, named)),
            more=job.failed_children + job.cancelled_children - len(named),
        )
        return Explanation(reason=reason, params=params, job_ids=tuple(each.job_id for each in facts.bad_children))
    if ended_with_dependency(job):
        culprit = failed_dependency(job)
        return _ended_with(reason, Params(at=at, cause="dependency"), culprit)
    if last is not None and isinstance(last.details, Subtree):
        params = Params(at=at, cause="subtree", by=last.by, message=last.reason)
        return _ended_with(reason, params, RelatedJob(job_id=last.details.job_id))
    if reason is Reason.FAILED:
        params = Params(at=at, failures=job.failures, max_attempts=job.max_attempts, error=job.last_error)
    else:
        params = Params(at=at, by=last.by if last else None, message=last.reason if last else None)
    return Explanation(reason=reason, params=params)


def _ended_with(reason: Reason, params: Params, job: RelatedJob | None) -> Explanation:
    if job is None or job.job_id is None:
        return Explanation(reason=reason, params=params)
    return Explanation(reason=reason, params=msgspec.structs.replace(params, jobs=(job,)), job_ids=(job.job_id,))


def _fallen_child(job: JobRecord) -> RelatedJob:
    # The stored error names the dependency, which may be in a queue that the reader of this explanation may not see.
    error = "a job it depends on did not complete" if ended_with_dependency(job) else job.last_error
    return RelatedJob(job_id=job.job_id, name=job.job_stage or job.job_type, status=job.status, error=error)


def _processing(facts: Facts) -> Explanation:
    job = facts.job
    expires = job.lease_expires_at or 0
    is_gone = job.worker_id in facts.dead
    if expires <= facts.now or is_gone:
        params = Params(worker_id=job.worker_id, is_gone=is_gone, has_live_worker=bool(_live(facts)))
        return Explanation(reason=Reason.LEASE_EXPIRED, params=params, until=to_datetime(expires))
    params = Params(
        at=_moment(job.started_at),
        attempt=job.attempt,
        worker_id=job.worker_id,
        progress=own_progress(job) or None,
        stage=job.stage or None,
    )
    worker = next((each for each in facts.workers if each.worker_id == job.worker_id), None)
    if worker is None or (blocked := worker.blocked) is None:
        return Explanation(reason=Reason.RUNNING, params=params)
    by = blocked.job_id
    params = msgspec.structs.replace(params, blocked_since=_moment(blocked.since), is_blocking=by == job.job_id or None)
    if by is None or by == job.job_id:
        return Explanation(reason=Reason.RUNNING, params=params)
    params = msgspec.structs.replace(params, jobs=(RelatedJob(job_id=by, name=blocked.job_type),))
    return Explanation(reason=Reason.RUNNING, params=params, job_ids=(by,))


def _waiting(facts: Facts) -> Explanation:
    job = facts.job
    if facts.ring:
        return ring(facts.ring)
    if (wait := event_wait(job)) is not None:
        until = None if wait.until is None else to_datetime(wait.until)
        params = Params(event=wait.name, key=wait.key, at=to_datetime(wait.since))
        return Explanation(reason=Reason.WAITING_FOR_EVENT, params=params, until=until)
    if job.awaits is not None:
        named = tuple(RelatedJob(job_id=job_id, status=status) for job_id, status in facts.open_children)
        params = Params(
            children=job.children, open_children=job.open_children, jobs=named, more=job.open_children - len(named)
        )
        ids = tuple(job_id for job_id, _ in facts.open_children)
        return Explanation(reason=Reason.WAITING_FOR_CHILDREN, params=params, job_ids=ids)
    ids = tuple(_open(facts))
    named = tuple(
        RelatedJob(job_id=job_id, status=facts.dependencies[job_id], is_reused=job_id == facts.joined)
        for job_id in ids[:NAMED_MAX]
    )
    are_all = len(facts.dependencies) < LISTED_EDGES_MAX
    params = Params(
        jobs=named,
        more=len(ids) - len(named),
        dependencies_listed=None if named or are_all else LISTED_EDGES_MAX,
    )
    return Explanation(reason=Reason.WAITING, params=params, job_ids=ids)


def _later(facts: Facts) -> Explanation:
    job, until = facts.job, to_datetime(facts.job.scheduled_for)
    if job.scheduled_for <= facts.now:
        return Explanation(reason=Reason.OVERDUE, params=Params(has_live_worker=bool(_live(facts))), until=until)
    if job.status is Status.RETRYING:
        params = Params(failures=job.failures, max_attempts=job.max_attempts, error=job.last_error)
        return Explanation(reason=Reason.BACKING_OFF, params=params, until=until)
    # A change of priority says nothing about how the job came to be where it is.
    came = next((each for each in reversed(job.history) if each.event not in STAYING), None)
    if came is not None and isinstance(came.details, Slept):
        return Explanation(reason=Reason.SLEEPING, params=Params(step=came.details.name), until=until)
    if came is None or came.event not in (Event.SNOOZE, Event.RESCHEDULE):
        return Explanation(reason=Reason.SCHEDULED, until=until)
    if came.event is Event.SNOOZE:
        return Explanation(reason=Reason.SNOOZED, params=Params(message=came.reason), until=until)
    return Explanation(reason=Reason.SCHEDULED, params=Params(by=came.by, message=came.reason), until=until)


def _moved(state: MoveState) -> Explanation:
    return Explanation(reason=Reason.MOVED, params=Params(store=state.other, is_done=state.done))


def _pending(facts: Facts) -> Explanation:
    """Return the first obstacle: those that concern all jobs come before those that concern only this one."""
    job, queue = facts.job, facts.queue
    if queue is not None and queue.paused_at is not None:
        params = Params(queue=job.queue, at=_moment(queue.paused_at), by=queue.paused_by, message=queue.pause_reason)
        return Explanation(reason=Reason.QUEUE_PAUSED, params=params, until=_moment(queue.paused_until))
    if (held := facts.of_type) is not None and held.paused_at is not None:
        params = Params(job_type=job.job_type, at=_moment(held.paused_at), by=held.paused_by, message=held.pause_reason)
        return Explanation(reason=Reason.TYPE_PAUSED, params=params, until=_moment(held.paused_until))
    return _no_worker(facts) or _no_room(facts) or _in_line(facts, Reason.IN_LINE, Params())


def _no_worker(facts: Facts) -> Explanation | None:
    job = facts.job
    live = _live(facts)
    if not live:
        return Explanation(reason=Reason.NO_WORKER, params=_last_seen(facts))
    of_type = [worker for worker in live if job.job_type in worker.job_types]
    if not of_type:
        params = _named(live, Params(job_type=job.job_type, offers=_all(each.job_types for each in live)))
        return Explanation(reason=Reason.NO_WORKER_FOR_TYPE, params=params)
    of_queue = [worker for worker in of_type if job.queue in worker.queues]
    if not of_queue:
        params = _named(
            of_type, Params(job_type=job.job_type, queue=job.queue, offers=_all(each.queues for each in of_type))
        )
        return Explanation(reason=Reason.NO_WORKER_FOR_QUEUE, params=params)
    if not _able(facts):
        params = Params(
            job_type=job.job_type,
            payload_version=job.payload_version,
            readable_version=max(worker.versions[job.job_type] for worker in of_queue),
        )
        return Explanation(reason=Reason.NO_WORKER_FOR_VERSION, params=params)
    return None


def _no_room(facts: Facts) -> Explanation | None:
    job, held = facts.job, facts.of_type
    if held is not None and held.concurrency is not None and len(facts.type_holders) >= held.concurrency:
        params = _held_by(facts.type_holders, Params(job_type=job.job_type, limit=held.concurrency, by=held.set_by))
        return Explanation(reason=Reason.TYPE_LIMITED, params=params, job_ids=tuple(facts.type_holders))
    if job.concurrency_key is not None and job.concurrency_limit is not None:
        most = facts.limits.allowed(job.concurrency_key, job.concurrency_limit)
        if len(facts.holders) >= most:
            params = _held_by(facts.holders, Params(key=job.concurrency_key, limit=most))
            return Explanation(reason=Reason.KEY_FULL, params=params, job_ids=tuple(facts.holders))
    if facts.rate_due_at is not None and facts.rate_due_at > facts.now:
        cost = job.rate_cost if job.rate_cost > 1 else None
        of_type = job.job_type if job.rate_key is None else None
        params = Params(key=job.rate_key, job_type=of_type, cost=cost)
        return Explanation(reason=Reason.RATE_LIMITED, params=params, until=to_datetime(facts.rate_due_at))
    if job.suspicion >= RUNS_ALONE:
        params = Params(at=_moment(job.lost_at), failures=job.failures, max_attempts=job.max_attempts)
        return Explanation(reason=Reason.RUNS_ALONE, params=params)
    return _no_slot(facts)


def _held_by(holders: Sequence[str], params: Params) -> Params:
    """Add the jobs that hold a limit."""
    named = tuple(RelatedJob(job_id=job_id) for job_id in holders[:NAMED_MAX])
    return msgspec.structs.replace(params, jobs=named, more=max(0, len(holders) - NAMED_MAX))


def _no_slot(facts: Facts) -> Explanation | None:
    job = facts.job
    looked_at = [worker for worker in _able(facts) if worker.worker_id in facts.claims]
    full = [worker for worker in looked_at if _type_full(worker, job.job_type, facts.claims[worker.worker_id])]
    busy = [worker for worker in looked_at if _is_busy(worker, facts.claims[worker.worker_id])]
    if len({worker.worker_id for worker in (*full, *busy)}) < len(looked_at) or not looked_at:
        return None
    if len(full) < len(looked_at):
        return _in_line(facts, Reason.WORKERS_BUSY, _named(looked_at, Params(job_type=job.job_type)))
    limits = {each.worker_id: each.limits[job.job_type] for each in full[:NAMED_MAX]}
    return _in_line(facts, Reason.TYPE_FULL, _named(full, Params(job_type=job.job_type, limits=limits)))


def _type_full(worker: WorkerRow, job_type: str, claims: dict[str, int]) -> bool:
    limit = worker.limits.get(job_type)
    return limit is not None and _calls(worker, job_type, claims.get(job_type, 0)) >= limit


def _calls(worker: WorkerRow, job_type: str, jobs: int) -> int:
    """Return how many slots the jobs take: one each, or one per call of a batch handler."""
    return -(-jobs // worker.batches.get(job_type, 1))


def _is_busy(worker: WorkerRow, claims: dict[str, int]) -> bool:
    """Return whether the worker has no free slot. Claims beyond the limit of their type were made ahead and hold no
    slot."""
    calls = {job_type: _calls(worker, job_type, count) for job_type, count in claims.items()}
    slots = sum(min(count, worker.limits.get(job_type, count)) for job_type, count in calls.items())
    return slots >= worker.concurrency


def _in_line(facts: Facts, reason: Reason, params: Params) -> Explanation:
    job = facts.job
    line: Literal["queue", "key", "fairness_key"] = "queue"
    if job.parked:
        line = "key"
    elif job.fairness_key is not None:
        line = "fairness_key"
    key = job.fairness_key if line == "fairness_key" else None
    return Explanation(reason=reason, params=msgspec.structs.replace(params, ahead=facts.ahead, line=line, key=key))


def _able(facts: Facts) -> list[WorkerRow]:
    """Return live workers that would claim the job if they had room."""
    return [worker for worker in facts.workers if _may_run(facts.job, worker, facts.now)]


def _may_run(job: JobRecord, worker: WorkerRow, now: Instant) -> bool:
    """Return whether a worker would claim the job if it had room."""
    return (
        takes_jobs(worker, now)
        and job.job_type in worker.job_types
        and job.queue in worker.queues
        and worker.versions.get(job.job_type, job.payload_version) >= job.payload_version
    )


def _live(facts: Facts) -> list[WorkerRow]:
    return [worker for worker in facts.workers if takes_jobs(worker, facts.now)]


def _last_seen(facts: Facts) -> Params:
    stopping = [worker for worker in facts.workers if worker.stopping and not is_silent(worker, facts.now)]
    if stopping:
        return _named(stopping, Params())
    blocked = [worker for worker in facts.workers if worker.blocked is not None and not is_silent(worker, facts.now)]
    if blocked:
        since = min(worker.blocked.since for worker in blocked if worker.blocked is not None)
        return _named(blocked, Params(blocked_since=_moment(since)))
    last = max(facts.workers, key=lambda worker: worker.heartbeat_at, default=None)
    return Params() if last is None else Params(worker_id=last.worker_id, at=_moment(last.heartbeat_at))


def _named(workers: Sequence[WorkerRow], params: Params) -> Params:
    named = tuple(worker.worker_id for worker in workers[:NAMED_MAX])
    return msgspec.structs.replace(params, workers=named, more=len(workers) - len(named))


def _all(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for each in names for name in each}))


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
