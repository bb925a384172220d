"""Metrics as Prometheus reads them, from what the store has counted. Pure.

Every number comes from the store, so that any replica gives the same answer, and a restart sets none of them back.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast import worker_state
from holdfast.clock import MICROS, Instant
from holdfast.counted import BOUNDS, BUCKETS, Counted
from holdfast.stats import TotalFigures
from holdfast.statuses import Status
from holdfast.store.types import Depth, WorkerRow

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAIRS_MAX = 200  # of type and queue that have series of their own, some fifty each; names come from whoever submits
OTHER = "other"  # … and what the rest of them is counted under
_ATTEMPTS = frozenset({Counted.COMPLETED.value, Counted.FAILED.value, Counted.RETRIED.value})
_BESIDE = frozenset({Counted.REUSED.value, Counted.RESCUED.value})  # counted as completed, retried or failed too
_BOUND_NAMES = (*map(str, BOUNDS), "+Inf")
_LABELS = ("job_type", "queue")
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read of the store, at one time."""

    totals: Sequence[TotalFigures]
    depths: Sequence[Depth]
    workers: Sequence[WorkerRow]
    now: Instant

    def seen_by(self, sees: Callable[[str], bool]) -> Snapshot:
        """What one sees who does not see all queues."""
        return Snapshot(
            [total for total in self.totals if sees(total.queue)],
            [depth for depth in self.depths if sees(depth.queue)],
            [worker for worker in self.workers if any(map(sees, worker.queues))],
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
        yield _histogram("duration", "How long attempts ran.", snapshot.totals, kept, _ran)
        yield _histogram("wait", "How long jobs that were due waited for an attempt.", snapshot.totals, kept, _waited)
        yield _depth(snapshot.depths, kept)
        yield _oldest(snapshot.depths, {queue for _, queue in kept.values()}, snapshot.now)
        yield _workers(snapshot.workers, snapshot.now)
        yield CounterMetricFamily(
            "holdfast_leases_lost",
            "Attempts whose worker died or stalled, and that were taken over.",
            _count(snapshot.totals, Counted.RESCUED),
        )
        yield CounterMetricFamily(
            "holdfast_reused", "Jobs that completed by another's result.", _count(snapshot.totals, Counted.REUSED)
        )
        yield CounterMetricFamily(
            "holdfast_reuse_saved_seconds",
            "What the attempts took whose results were reused.",
            sum(total.time_seconds for total in snapshot.totals if total.outcome == Counted.REUSED),
        )
        yield InfoMetricFamily(
            "holdfast_build", "The release that answers.", {"version": importlib.metadata.version("holdfast")}
        )


def _kept(totals: Iterable[TotalFigures]) -> Mapping[Pair, Pair]:
    """The labels of each type and queue. By name: the same on every replica, and whoever gets there stays as it is or
    goes into the sum of the others, so that no series ever goes down."""
    pairs = sorted({(total.job_type, total.queue) for total in totals})
    return {pair: pair if place < PAIRS_MAX else (OTHER, OTHER) for place, pair in enumerate(pairs)}


def _jobs(totals: Iterable[TotalFigures], kept: Mapping[Pair, Pair]) -> Metric:
    sums: dict[tuple[str, str, str], int] = {}
    for total in totals:
        if total.outcome not in _BESIDE:
            labels = (*kept[total.job_type, total.queue], total.outcome)
            sums[labels] = sums.get(labels, 0) + total.count
    family = CounterMetricFamily(
        "holdfast_jobs",
        "Jobs by what happened to them: submitted, and how each attempt or life ended.",
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
    family = HistogramMetricFamily(f"holdfast_job_{name}_seconds", says, labels=_LABELS)
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
        "holdfast_queue_depth", "Jobs that have not ended.", labels=("queue", "job_type", "status")
    )
    for labels, count in sorted(sums.items()):
        family.add_metric(labels, count)
    return family


def _oldest(depths: Iterable[Depth], queues: Iterable[str], now: Instant) -> Metric:
    """0 for a queue in which nothing is due: one that only sometimes has a number cannot be watched."""
    ages = dict.fromkeys(queues, 0.0)
    for depth in depths:
        if depth.status is Status.PENDING:
            queue = depth.queue if depth.queue in ages else OTHER
            ages[queue] = max(ages.get(queue, 0.0), (now - depth.oldest_at) / MICROS)
    family = GaugeMetricFamily(
        "holdfast_queue_oldest_age_seconds", "Since when the oldest pending job is due.", labels=("queue",)
    )
    for queue, age in sorted(ages.items()):
        family.add_metric((queue,), age)
    return family


def _workers(workers: Iterable[WorkerRow], now: Instant) -> Metric:
    counts = dict.fromkeys(worker_state.STATES, 0)
    for worker in workers:
        counts[worker_state.state_of(worker, now)] += 1
    family = GaugeMetricFamily("holdfast_workers", "Workers by what they do.", labels=("state",))
    for state, count in counts.items():
        family.add_metric((state,), count)
    return family


def _count(totals: Iterable[TotalFigures], outcome: Counted) -> int:
    return sum(total.count for total in totals if total.outcome == outcome)
