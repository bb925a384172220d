"""When a pending job will start: reads the figures of which core/forecast.py makes an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backstay.clock import MICROS, Instant
from backstay.core import forecast, stats
from backstay.core.admission import Bucket, RunLimits
from backstay.core.forecast import Estimate, Line, RunTime
from backstay.core.port import Store
from backstay.core.records import Counter, JobRecord, WorkerRow
from backstay.core.states import Counted
from backstay.limits import AHEAD_MAX, FORETELL_LANES_MAX, FORETELL_MINUTES

_MINUTE = 60 * MICROS


async def foretell(
    store: Store,
    job: JobRecord,
    now: Instant,
    workers: Sequence[WorkerRow],
    *,
    ahead: int,
    has_room: bool,
    is_held_by_key: bool,
    rate_due_at: Instant | None,
    claims: Mapping[str, Mapping[str, int]],
    limits: RunLimits,
) -> Estimate | None:
    """`workers`: those that may run the job; `claims`: how many jobs of each type some of them hold; `limits`: what was
    set at run time. None if no attempt of its type has ended."""
    since, until = stats.span(now, FORETELL_MINUTES)
    counters = await store.counters(since, until, width=until - since)
    times = forecast.run_times(counters)
    if job.job_type not in times:
        times = {**forecast.run_times(await store.totals()), **times}
    if job.job_type not in times:
        return None
    looked_at = [each for each in workers if each.worker_id in claims and not each.batches]
    held = sum(sum(claims[each.worker_id].values()) for each in looked_at)
    times = forecast.without_line(times, held, sum(each.concurrency for each in looked_at))
    is_behind_key = is_held_by_key or job.parked
    others = {} if is_behind_key else await _others(store, job, counters, workers)
    ended, span_seconds = (0, 0.0) if is_behind_key else await _pace(store, job, now, times[job.job_type], workers)
    wait = 0.0 if rate_due_at is None else max(0, rate_due_at - now) / MICROS
    return forecast.estimate(
        job.job_type,
        times,
        Line(
            ahead=ahead,
            others=others,
            is_capped=max(ahead, *others.values(), 0) >= AHEAD_MAX,
            has_room=has_room and not is_behind_key,
        ),
        forecast.room(job.job_type, workers, _at_most(job, limits)),
        ended=ended,
        span_seconds=span_seconds,
        wait_seconds=wait,
        seconds_per_start=await _seconds_per_start(store, job, limits),
    )


async def _others(
    store: Store, job: JobRecord, counters: Sequence[Counter], workers: Sequence[WorkerRow]
) -> dict[str, int]:
    """Count the jobs of other queues and types that the same workers run first, by type: of those that were in use
    recently, the busiest."""
    served = {(queue, name) for each in workers for queue in each.queues for name in each.job_types}
    busy: dict[tuple[str, str], int] = {}
    for each in counters:
        lane = (each.queue, each.job_type)
        if lane in served and lane != (job.queue, job.job_type):
            busy[lane] = busy.get(lane, 0) + each.count
    lanes = sorted(busy, key=lambda lane: (-busy[lane], lane))[:FORETELL_LANES_MAX]
    found: dict[str, int] = {}
    counts = await store.ahead_in(job.job_id, lanes, AHEAD_MAX) if lanes else []
    for (_, name), count in zip(lanes, counts, strict=True):
        if count:
            found[name] = found.get(name, 0) + count
    return found


async def _pace(
    store: Store, job: JobRecord, now: Instant, own: RunTime, workers: Sequence[WorkerRow]
) -> tuple[int, float]:
    """Return how many jobs of its type have ended in the whole minutes for which the job has been pending, and the
    length of these. Workers that have just started would have had no part in it."""
    due = max([job.scheduled_for, *(each.started_at for each in workers)])
    since = max(-(-due // _MINUTE) * _MINUTE, now - FORETELL_MINUTES * _MINUTE)
    until = now // _MINUTE * _MINUTE
    if until <= since or own.mean > (until - since) / MICROS:
        return 0, 0.0
    counters = await store.counters(since, until, width=until - since)
    ended = (Counted.COMPLETED, Counted.FAILED, Counted.RETRIED)
    mine = [each for each in counters if each.job_type == job.job_type and each.queue == job.queue]
    return sum(each.count for each in mine if each.outcome in ended), (until - since) / MICROS


def _at_most(job: JobRecord, limits: RunLimits) -> int | None:
    """Return how many jobs of its key or type may run at once, over all workers."""
    found = []
    if job.concurrency_key is not None and job.concurrency_limit is not None:
        found.append(limits.allowed(job.concurrency_key, job.concurrency_limit))
    if (row := limits.of_type(job.job_type)) is not None and row.concurrency is not None:
        found.append(row.concurrency)
    return min(found, default=None)


async def _seconds_per_start(store: Store, job: JobRecord, limits: RunLimits) -> float:
    """Return how far apart its rate keeps starts that cost as much as this one."""
    bucket = limits.bucket_of_type(job.job_type)
    if job.rate_key is not None:
        rate = next((each.rate for each in await store.job_types() if each.job_type == job.job_type), None)
        bucket = bucket if rate is None else limits.bucket(Bucket(job.rate_key, rate.count, rate.micros))
    return 0.0 if bucket is None else bucket.micros / bucket.starts / MICROS * min(job.rate_cost, bucket.starts)
