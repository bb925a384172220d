"""`/metrics`, `/healthz` and `/readyz`, and the tables of `/stats`, from figures in the store.

Every number comes from the store, so that any replica gives the same answer, and a restart resets none of them. The
store is read at most once a second however many requests arrive, and less often where that takes long.

`/healthz` touches nothing: a server need not be restarted because its store is away. `/readyz` reads from the store and
does not write: a full disk affects all servers, and if all were taken out of service there would be no way to see why.
Submits answer 507 in that case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel

from backstay import limits, settings
from backstay.app import Backstay
from backstay.clock import MICROS, Instant, Moment, to_datetime
from backstay.core import workers as core_workers
from backstay.core.records import Counter, Depth, WorkerRow
from backstay.core.states import BOUNDS, BUCKETS, Counted, Status
from backstay.core.stats import TotalFigures
from backstay.errors import BackstayError
from backstay.server import problems
from backstay.server.auth import anyone, found, is_local, unless_local
from backstay.server.routing import routes
from backstay.server.worker_summary import WorkerSummary, summary

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAIRS_MAX = 200  # of type and queue with series of their own, some fifty each; clients choose the names
OTHER = "other"  # the label of all others
_ATTEMPTS = frozenset({Counted.COMPLETED.value, Counted.FAILED.value, Counted.RETRIED.value})
_COUNTED_TWICE = frozenset({Counted.REUSED.value, Counted.RESCUED.value})  # counted as completed, retried or failed too
_BOUND_NAMES = (*map(str, BOUNDS), "+Inf")
_LABELS = ("job_type", "queue")
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of the store at one time."""

    totals: Sequence[TotalFigures]
    depths: Sequence[Depth]
    workers: WorkerSummary
    now: Instant

    def seen_by(self, sees: Callable[[str], bool]) -> Snapshot:
        """Return the figures of the queues that a principal sees."""
        return Snapshot(
            [total for total in self.totals if sees(total.queue)],
            [depth for depth in self.depths if sees(depth.queue)],
            self.workers.seen_by(sees),
            self.now,
        )


def exposition(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Families(snapshot))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        kept = _kept(snapshot.totals)
        yield _jobs(snapshot.totals, kept)
        yield _histogram("duration", "Duration of attempts.", snapshot.totals, kept, _ran)
        yield _histogram("wait", "Time that due jobs waited for an attempt.", snapshot.totals, kept, _waited)
        yield _depth(snapshot.depths, kept)
        yield _oldest(snapshot.depths, {queue for _, queue in kept.values()}, snapshot.now)
        yield _workers(snapshot.workers, snapshot.now)
        yield CounterMetricFamily(
            "backstay_leases_lost",
            "Attempts rescued from workers that died or stalled.",
            _count(snapshot.totals, Counted.RESCUED),
        )
        yield CounterMetricFamily(
            "backstay_reused",
            "Jobs completed by reusing another job's result.",
            _count(snapshot.totals, Counted.REUSED),
        )
        yield CounterMetricFamily(
            "backstay_reuse_saved_seconds",
            "Duration of the attempts whose results were reused.",
            sum(total.time_seconds for total in snapshot.totals if total.outcome == Counted.REUSED),
        )
        yield InfoMetricFamily("backstay_build", "Version of the server.", {"version": settings.release()})


def _kept(totals: Iterable[TotalFigures]) -> Mapping[Pair, Pair]:
    """Return the labels of each type and queue. The first by name have labels of their own, so that they are the same
    on every replica. A pair that a new name pushes out is added to the sum of the others, which never goes down."""
    pairs = sorted({(total.job_type, total.queue) for total in totals})
    return {pair: pair if place < PAIRS_MAX else (OTHER, OTHER) for place, pair in enumerate(pairs)}


def _jobs(totals: Iterable[TotalFigures], kept: Mapping[Pair, Pair]) -> Metric:
    sums: dict[tuple[str, str, str], int] = {}
    for total in totals:
        if total.outcome not in _COUNTED_TWICE:
            labels = (*kept[total.job_type, total.queue], total.outcome)
            sums[labels] = sums.get(labels, 0) + total.count
    family = CounterMetricFamily(
        "backstay_jobs",
        "Job events: submitted, and how each attempt or job ended.",
        labels=(*_LABELS, "outcome"),
    )
    for labels, count in sorted(sums.items()):
        family.add_metric(labels, count)
    return family


def _ran(total: TotalFigures) -> tuple[tuple[int, ...], float]:
    return total.time_buckets, total.time_seconds


def _waited(total: TotalFigures) -> tuple[tuple[int, ...], float]:
    return total.wait_buckets, total.wait_seconds


def _histogram(
    name: str,
    says: str,
    totals: Iterable[TotalFigures],
    kept: Mapping[Pair, Pair],
    part: Callable[[TotalFigures], tuple[tuple[int, ...], float]],
) -> Metric:
    sums: dict[Pair, tuple[list[int], float]] = {}
    for total in totals:
        buckets, seconds = part(total)
        if total.outcome in _ATTEMPTS and buckets:
            labels = kept[total.job_type, total.queue]
            counts, before = sums.get(labels, ([0] * BUCKETS, 0.0))
            sums[labels] = [had + more for had, more in zip(counts, buckets, strict=True)], before + seconds
    family = HistogramMetricFamily(f"backstay_job_{name}_seconds", says, labels=_LABELS)
    for labels, (counts, seconds) in sorted(sums.items()):
        family.add_metric(labels, list(zip(_BOUND_NAMES, map(float, counts), strict=True)), seconds)
    return family


def _depth(depths: Iterable[Depth], kept: Mapping[Pair, Pair]) -> Metric:
    sums: dict[tuple[str, str, str], int] = {}
    for depth in depths:
        job_type, queue = kept.get((depth.job_type, depth.queue), (OTHER, OTHER))
        labels = (queue, job_type, depth.status.value)
        sums[labels] = sums.get(labels, 0) + depth.count
    family = GaugeMetricFamily(
        "backstay_queue_depth", "Jobs that have not ended.", labels=("queue", "job_type", "status")
    )
    for labels, count in sorted(sums.items()):
        family.add_metric(labels, count)
    return family


def _oldest(depths: Iterable[Depth], queues: Iterable[str], now: Instant) -> Metric:
    """Return the age of the oldest due job, and 0 for a queue without one: alerts need a series without gaps."""
    ages = dict.fromkeys(queues, 0.0)
    for depth in depths:
        if depth.status is Status.PENDING:
            queue = depth.queue if depth.queue in ages else OTHER
            ages[queue] = max(ages.get(queue, 0.0), (now - depth.oldest_at) / MICROS)
    family = GaugeMetricFamily(
        "backstay_queue_oldest_age_seconds", "Time since the oldest pending job became due.", labels=("queue",)
    )
    for queue, age in sorted(ages.items()):
        family.add_metric((queue,), age)
    return family


def _workers(workers: WorkerSummary, now: Instant) -> Metric:
    counts = workers.states(now)
    family = GaugeMetricFamily("backstay_workers", "Workers by state.", labels=("state",))
    for state in core_workers.STATES:
        family.add_metric((state,), counts[state])
    return family


def _count(totals: Iterable[TotalFigures], outcome: Counted) -> int:
    return sum(total.count for total in totals if total.outcome == outcome)


KEPT_SECONDS = 1.0
REST = 8  # figures are kept for this many times as long as it took to read them, if that is longer


class Metrics:
    """The latest figures, and the page rendered for those who see everything."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._reading = asyncio.Lock()
        self._good_until = float("-inf")
        self._snapshot = Snapshot((), (), WorkerSummary(), 0)
        self._whole = b""

    async def text(self, request: Request) -> bytes:
        await self.snapshot(request)
        return self._whole

    async def snapshot(self, request: Request) -> Snapshot:
        async with self._reading:
            began = self._app.clock.monotonic()
            if began >= self._good_until:
                self._snapshot = await self._read(request)
                self._whole = exposition(self._snapshot)
                ended = self._app.clock.monotonic()
                self._good_until = ended + max(KEPT_SECONDS, REST * (ended - began))
            return self._snapshot

    async def _read(self, request: Request) -> Snapshot:
        app = self._app
        return Snapshot(await app.totals(), await app.depths(), await summary(request), app.clock.now())


def metrics_router(app: Backstay) -> APIRouter:
    router = routes("metrics")
    metrics = Metrics(app)

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        dependencies=[Depends(unless_local("read"))],
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format"},
            **problems.documented(401, 403, 422, 429, 503),
        },
    )
    async def show(request: Request) -> Response:
        """From this machine without a key, else with the scope `read`. A key for some queues sees those."""
        who = found(request)
        if who is None or who.sees_all or is_local(request):
            return Response(await metrics.text(request), media_type=MEDIA_TYPE)
        return Response(exposition((await metrics.snapshot(request)).seen_by(who.sees)), media_type=MEDIA_TYPE)

    return router


class Health(BaseModel):
    status: Literal["ok", "unavailable"]


class Readiness:
    """Whether the store answers, with the schema of this release; the result is cached for a second."""

    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._asking: asyncio.Task[bool] | None = None
        self._asked_at = float("-inf")

    async def found(self) -> bool:
        now = self._app.clock.monotonic()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= KEPT_SECONDS):
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asked_at = now
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(limits.READY_SECONDS):
                await self._app.queue_settings()  # reads columns that this release has added, and few rows
        except (BackstayError, TimeoutError):
            return False
        return True


def health_router(app: Backstay) -> APIRouter:
    routes = APIRouter(tags=["health"], dependencies=[Depends(anyone)])
    readiness = Readiness(app)

    @routes.get("/healthz", summary="Check that the server is up", response_model=Health)
    @routes.head("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @routes.get(
        "/readyz",
        summary="Check that its store is available",
        description="Reads from the store. If it rejects writes, the writes themselves say so, with 503 or 507.",
        response_model=Health,
        responses={503: {"model": Health, "description": "The store is not available, or has another schema"}},
    )
    @routes.head("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        is_ready = await readiness.found()
        return JSONResponse({"status": "ok" if is_ready else "unavailable"}, 200 if is_ready else 503)

    return routes


_ENDED = {
    Counted.COMPLETED: Status.COMPLETED,
    Counted.FAILED: Status.FAILED,
    Counted.CANCELLED: Status.CANCELLED,
}


class Standing(msgspec.Struct):
    """Jobs of one state and priority."""

    status: Status
    priority: int
    count: int
    average_time_ms: float | None
    oldest_at: Moment
    newest_at: Moment


class Performance(msgspec.Struct):
    """What a worker did in the last 24 hours, or since it started."""

    worker_id: str
    since: Moment
    completed: int
    average_time_ms: float | None
    failures: int


class _Sum:
    def __init__(self, at: Instant) -> None:
        self.count = 0
        self.ran_micros = 0
        self.oldest = self.newest = at

    def add(self, count: int, oldest: Instant, newest: Instant, ran_micros: int = 0) -> None:
        self.count += count
        self.ran_micros += ran_micros
        self.oldest, self.newest = min(self.oldest, oldest), max(self.newest, newest)


def health(depths: Iterable[Depth], counters: Iterable[Counter], now: Instant) -> list[Standing]:
    """Jobs by priority, highest first, and state. For active jobs, all of them, with the age of the oldest; for ended
    jobs, the counters of the span, to the minute."""
    found: dict[tuple[int, Status], _Sum] = {}
    for depth in depths:
        for place in depth.by_priority:
            standing = found.setdefault((place.priority, depth.status), _Sum(place.oldest_at))
            standing.add(place.count, place.oldest_at, place.newest_at)
    for counter in counters:
        if (status := _ENDED.get(counter.outcome)) is not None:
            standing = found.setdefault((counter.priority, status), _Sum(counter.minute))
            standing.add(counter.count, counter.minute, min(counter.minute + 60 * MICROS, now), counter.ran_micros)
    order = list(Status)
    rows = sorted(found.items(), key=lambda each: (-each[0][0], order.index(each[0][1])))
    return [_row(priority, status, standing) for (priority, status), standing in rows]


def _row(priority: int, status: Status, standing: _Sum) -> Standing:
    timed = status in (Status.COMPLETED, Status.FAILED)
    average = standing.ran_micros / standing.count / 1000 if timed and standing.count else None
    return Standing(
        status, priority, standing.count, average, to_datetime(standing.oldest), to_datetime(standing.newest)
    )


def counts(depths: Iterable[Depth]) -> dict[str, int]:
    """Active jobs by state, for a key that sees a part of the queues."""
    found: dict[str, int] = {}
    for depth in depths:
        found[depth.status.value] = found.get(depth.status.value, 0) + depth.count
    return found


def performance(workers: Iterable[WorkerRow], now: Instant) -> list[Performance]:
    """The last 24 hours of each worker."""
    return [_performance(row, now) for row in sorted(workers, key=lambda row: row.worker_id) if not row.unread]


def _performance(row: WorkerRow, now: Instant) -> Performance:
    done = core_workers.last_day(row, now)
    return Performance(row.worker_id, to_datetime(done.since), done.ended - done.failed, done.average_ms, done.failed)
