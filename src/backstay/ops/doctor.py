"""The health check behind `backstay doctor`: findings from the engine, the workers, jobs and schedules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from backstay.clock import MICROS, Clock, Instant, to_datetime
from backstay.core import schedules as core_schedules
from backstay.core.dumps import FROM, MoveState, refusal
from backstay.core.port import Store
from backstay.core.records import (
    ClaimRequest,
    Depth,
    Finding,
    JobType,
    LimitRow,
    Lost,
    Query,
    QueueRow,
    Schedule,
    WorkerRow,
)
from backstay.core.states import Status
from backstay.core.workers import blocked_for, is_silent, takes_jobs
from backstay.errors import BackstayError
from backstay.files.local import Files
from backstay.limits import ALONE_COUNTED_MAX, FIND_LIMIT_MAX, SCHEDULES_AHEAD
from backstay.ops import explain

CLOCK_SECONDS_WARN = 5.0
CLOCK_SECONDS_BAD = 60.0
LONG_WAIT_MICROS = 24 * 3600 * MICROS
_LOOKED_AT_MAX = 20  # jobs that have waited for so long, the oldest first


async def check_up(
    store: Store,
    files: Files | None,
    clock: Clock,
    lease_seconds: float,
    is_dead: Callable[[WorkerRow], bool],
) -> list[Finding]:
    """Run all checks. `is_dead` tells which workers are certainly gone, even if they were seen recently."""
    now = clock.now()
    found = [*await store.diagnose(now), *([] if files is None else [await _files(files)])]
    if (moving := await store.moving()) is not None and moving.role == FROM:
        found.append(_moving(moving))
        if moving.done:
            return found  # its jobs and workers are elsewhere: advice about them would be wrong
    everyone = await store.workers()
    workers = [worker for worker in everyone if not is_dead(worker)]
    depths = await store.depths()
    expired = await store.expired(now, 100)
    lease = round(lease_seconds * MICROS)
    return [
        *found,
        _clock(workers, now),
        _workers(workers, len(everyone) - len(workers), now),
        _leases(len(expired)),
        _alone(await alone(store, depths), workers, now),
        _stuck_types(depths, workers, now, lease),
        _versions(depths, await store.job_types(), workers),
        _overdue(depths, now, lease),
        _paused(await store.queues(), depths),
        _paused_types(await store.limits()),
        _schedules(await store.upcoming(SCHEDULES_AHEAD), now, lease),
        await _rings(store, depths, now),
    ]


async def _files(files: Files) -> Finding:
    try:
        return Finding("files", "ok", f"logs, large results and artifacts are {await asyncio.to_thread(files.look)}")
    except BackstayError as error:
        return Finding("files", "bad", str(error), "choose another location with artifacts=, or fix this one")


def _moving(state: MoveState) -> Finding:
    advice = "" if state.done else 'run the same "backstay move" again, or abandon it with --thaw'
    return Finding("moving", "bad", refusal(state), advice)


def _clock(workers: Iterable[WorkerRow], now: Instant) -> Finding:
    """Compare clocks: none is known to be right, but a heartbeat from the future shows that two of them differ."""
    ahead = max((worker.heartbeat_at - now for worker in workers), default=0) / MICROS
    if ahead > CLOCK_SECONDS_BAD:
        return Finding(
            "clock", "bad", f"a worker's clock is {ahead:.0f} s ahead of this one", "synchronise both clocks with NTP"
        )
    if ahead > CLOCK_SECONDS_WARN:
        return Finding(
            "clock", "warn", f"a worker's clock is {ahead:.0f} s ahead of this one", "synchronise both clocks with NTP"
        )
    return Finding("clock", "ok", f"{to_datetime(now):%Y-%m-%d %H:%M:%S} UTC; no worker is ahead of it")


def _workers(workers: list[WorkerRow], dead: int, now: Instant) -> Finding:
    silent = [worker.worker_id for worker in workers if is_silent(worker, now)]
    stuck = [worker.worker_id for worker in workers if worker.stuck]
    unread = [worker.worker_id for worker in workers if worker.unread]
    blocked = [worker for worker in workers if worker.blocked is not None and not is_silent(worker, now)]
    if unread:
        return Finding(
            "workers",
            "warn",
            f"the stored record of {', '.join(unread[:3])} cannot be read",
            "it was written by another version or by hand: restart that worker; stale records are removed after a"
            " while",
        )
    if silent:
        return Finding(
            "workers",
            "warn",
            f"{len(silent)} of {len(workers)} not heard from for more than a lease: {', '.join(silent[:3])}",
            "they died or lost their connection to the store; they are removed from the list after a while",
        )
    if blocked:
        return Finding(
            "workers",
            "bad",
            f"the event loop of {blocked[0].worker_id} has been {blocked_for(blocked[0], now)}"
            + (f"; {len(blocked) - 1} more are blocked" if len(blocked) > 1 else ""),
            'no job of that worker can continue: make the handler a plain `def`, or give it isolation="process"',
        )
    if stuck:
        return Finding(
            "workers",
            "warn",
            f"a thread does not stop on {', '.join(stuck[:3])}",
            'check ctx.cancelled in the handler, or run it with isolation="process"',
        )
    if not workers:
        says = f"none are alive; {dead} died" if dead else "none are registered"
        return Finding("workers", "warn", says, 'start one with "backstay worker --app …"')
    if dead:
        return Finding("workers", "ok", f"{len(workers)} alive; {dead} died, and their jobs are being recovered")
    return Finding("workers", "ok", f"{len(workers)} alive")


def _leases(expired: int) -> Finding:
    if not expired:
        return Finding("leases", "ok", "none have expired")
    count = "100 or more" if expired >= 100 else str(expired)
    return Finding(
        "leases",
        "warn",
        f"{count} expired; their jobs are waiting to be rescued",
        "start a worker: it rescues these jobs at once",
    )


async def alone(store: Store, depths: Iterable[Depth]) -> int:
    """Count the jobs that wait to run alone, up to ALONE_COUNTED_MAX."""
    pending = [each for each in depths if each.status is Status.PENDING]
    request = ClaimRequest(
        worker_id="",
        worker_version="",
        queues=tuple(sorted({each.queue for each in pending})),
        slots=dict.fromkeys(sorted({each.job_type for each in pending}), 1),
        limit=1,
        lease_micros=0,
        token="",
        lost=Lost.ALONE,
    )
    return sum((await store.wait_alone(request)).values()) if pending else 0


def _alone(count: int, workers: list[WorkerRow], now: Instant) -> Finding:
    if not count:
        return Finding("lost jobs", "ok", "none wait to run alone")
    how_many = f"{count} or more" if count >= ALONE_COUNTED_MAX else str(count)
    live = sum(not worker.stopping and not is_silent(worker, now) for worker in workers)
    return Finding(
        "lost jobs",
        "warn",
        f"{how_many} lost a worker twice, or have one attempt left, and wait to run alone: one at a time in each worker"
        f" process, in turns with other jobs ({live} workers are alive)",
        'find out what kills workers: see "backstay dead"; handlers with isolation="process" do not have to wait',
    )


def _stuck_types(depths: list[Depth], workers: list[WorkerRow], now: Instant, lease: int) -> Finding:
    kinds = {(worker.queues, worker.job_types) for worker in workers if takes_jobs(worker, now)}
    served = [(frozenset(queues), frozenset(types)) for queues, types in kinds]  # many workers do the same
    stuck = [
        depth
        for depth in depths
        if depth.status is Status.PENDING
        and not any(depth.queue in queues and depth.job_type in types for queues, types in served)
    ]
    if not stuck:
        return Finding("types", "ok", "every pending job has a worker that handles it")
    names = dict.fromkeys(f"{depth.job_type} in {depth.queue} ({depth.count:,})" for depth in stuck)
    return Finding(
        "types",
        "bad" if any(now - depth.oldest_at > lease for depth in stuck) else "warn",  # a worker may be just starting
        f"no live worker handles {', '.join(list(names)[:5])}",
        "start a worker with these handlers and queues",
    )


def _versions(depths: list[Depth], types: list[JobType], workers: list[WorkerRow]) -> Finding:
    """Find job types whose newest version no live worker has: payloads of that version wait for such a worker."""
    pending = {depth.job_type for depth in depths if depth.status is Status.PENDING}
    read: dict[str, int] = {}
    for worker in workers:
        for job_type, version in worker.versions.items():
            read[job_type] = max(version, read.get(job_type, version))
    behind = [
        f"{each.job_type} up to {read[each.job_type]} of {each.version}"
        for each in types
        if each.job_type in pending and read.get(each.job_type, each.version) < each.version
    ]
    if not behind:
        return Finding("versions", "ok", "live workers read the newest payloads of every pending type")
    return Finding(
        "versions",
        "warn",
        f"live workers read {', '.join(behind[:5])}",
        "upgrade them: jobs with newer payloads are waiting",
    )


def _overdue(depths: list[Depth], now: Instant, lease: int) -> Finding:
    late = [d for d in depths if d.status in (Status.SCHEDULED, Status.RETRYING) and now - d.oldest_at > lease]
    if not late:
        return Finding("due jobs", "ok", "none are overdue")
    return Finding(
        "due jobs",
        "warn",
        f"{late[0].job_type} has been overdue since {to_datetime(late[0].oldest_at):%H:%M:%S} UTC",
        "start a worker: it makes due jobs pending",
    )


def _paused(rows: list[QueueRow], depths: list[Depth]) -> Finding:
    paused = [row for row in rows if row.paused_at is not None]
    if not paused:
        return Finding("queues", "ok", "none are paused")
    held = Counter[str]()
    for depth in depths:
        if depth.status is Status.PENDING:
            held[depth.queue] += depth.count
    names = ", ".join(
        f"{row.name} (by {row.paused_by or 'someone'}{_until(row)}, {held[row.name]:,} pending)" for row in paused[:5]
    )
    return Finding("queues", "warn", f"paused: {names}", f"backstay queues resume {paused[0].name}")


def _paused_types(rows: list[LimitRow]) -> Finding:
    paused = [row for row in rows if row.paused_at is not None]
    if not paused:
        return Finding("paused types", "ok", "none")
    names = ", ".join(f"{row.name} (by {row.paused_by or 'someone'}{_until(row)})" for row in paused[:5])
    return Finding("paused types", "warn", names, f"backstay types resume {paused[0].name}")


def _until(row: QueueRow | LimitRow) -> str:
    return "" if row.paused_until is None else f" until {to_datetime(row.paused_until):%Y-%m-%d %H:%M:%S} UTC"


def _schedules(schedules: list[Schedule], now: Instant, lease: int) -> Finding:
    """Check the schedules that tick next. If any is late, it is among them."""
    for schedule in schedules:
        try:
            rule = core_schedules.parse(schedule.cron, schedule.timezone)
        except BackstayError as error:
            return Finding("schedules", "bad", f"{schedule.name}: {error}", "save it again, or remove it")
        if now - schedule.next_at > lease:
            return Finding(
                "schedules",
                "warn",
                f"{schedule.name} missed its tick at {to_datetime(schedule.next_at):%Y-%m-%d %H:%M} UTC",
                "start a worker",
            )
        if (schedule.last_at or 0) > now and rule.after(now) < schedule.next_at:
            return Finding(
                "schedules",
                "warn",
                f"{schedule.name} was advanced to {to_datetime(schedule.next_at):%Y-%m-%d %H:%M} UTC by a wrong clock",
                "pause and resume it: it continues from now",
            )
    if len(schedules) >= SCHEDULES_AHEAD:
        return Finding("schedules", "ok", f"none behind of the {len(schedules):,} that run next")
    return Finding("schedules", "ok", f"{len(schedules):,} active, none behind" if schedules else "none are active")


async def _rings(store: Store, depths: Iterable[Depth], now: Instant) -> Finding:
    """Find jobs that have waited for long, and wait for one another."""
    waiting = [each for each in depths if each.status is Status.WAITING]
    if not any(now - each.oldest_at > LONG_WAIT_MICROS for each in waiting):
        return Finding("waiting", "ok", "no job has been waiting for others for more than a day")
    page = await store.find(Query(status=Status.WAITING, limit=FIND_LIMIT_MAX))
    late = [each for each in reversed(page.items) if now - each.created_at > LONG_WAIT_MICROS]
    for job in late[:_LOOKED_AT_MAX]:
        if found := await explain.find_ring(store, job):
            return Finding("waiting", "bad", str(explain.ring(found)), "backstay cancel one of them")
    return Finding(
        "waiting", "ok", f"{sum(each.count for each in waiting):,} are waiting for others; there are no cycles"
    )
