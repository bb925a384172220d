"""What operators ask of a queue, in plain Python: schedules, pauses, limits and retention."""

from collections.abc import Sequence

import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import Brood
from backstay.core.records import (
    Counter,
    Firing,
    JobRecord,
    Keep,
    LimitChange,
    QueueChange,
    RetentionPolicy,
    Schedule,
    Total,
    Verdict,
)
from backstay.core.states import TERMINAL, Counted, Event, Status
from tests.engines.model.jobs import Job
from tests.engines.model.reference import Queue

COMPARED = [
    "status",
    "priority",
    "scheduled_for",
    "version",
    "attempt",
    "failures",
    "snoozes",
    "give_backs",
    "completed_at",
]
COMPARED += ["progress", "stage", "result", "reused_from", "waits"]


class OperatedQueue(Queue):
    def __init__(self) -> None:
        super().__init__()
        self.schedules: dict[str, Schedule] = {}
        self.ticks: dict[tuple[str, Instant], str] = {}  # schedule and tick to the one job that they made

    # Queues

    def change(self, name: str, change: QueueChange) -> None:
        if change.paused is not None:
            (self.paused.add if change.paused else self.paused.discard)(name)
        if change.max_pending is not None:
            self.max_pending[name] = change.max_pending
            if change.max_pending == 0:
                del self.max_pending[name]

    def change_type(self, name: str, change: LimitChange) -> None:
        if change.paused is not None:
            (self.paused_types.add if change.paused else self.paused_types.discard)(name)
        if change.limits:
            self.most.pop(name, None)
            if change.concurrency is not None:
                self.most[name] = change.concurrency

    # Schedules

    def save(self, schedule: Schedule, expected_version: int | None) -> Verdict:
        stored = self.schedules.get(schedule.name)
        if stored is None and expected_version is not None:
            return Verdict.GONE
        if (None if stored is None else stored.version) != expected_version:
            return Verdict.STALE
        if stored is not None:  # when it was made, and what ticks have left, is not an editor's to change
            kept = {name: getattr(stored, name) for name in ("created_at", "last_at", "last_job_id")}
            schedule = msgspec.structs.replace(schedule, **kept)
        self.schedules[schedule.name] = schedule
        return Verdict.APPLIED

    def drop(self, name: str) -> Verdict:
        return Verdict.GONE if self.schedules.pop(name, None) is None else Verdict.APPLIED

    def fire(self, firing: Firing, now: Instant) -> Verdict:
        stored = self.schedules.get(firing.name)
        if stored is None:
            return Verdict.GONE
        if (stored.version, stored.next_at, stored.paused_at) != (firing.version, firing.due_at, None):
            return Verdict.STALE
        self.insert(firing.jobs, now, None)
        moved: dict[str, object] = {"next_at": firing.next_at}
        for job in firing.jobs:
            assert job.tick_at is not None
            assert self.ticks.setdefault((firing.name, job.tick_at), job.job_id) == job.job_id
            moved |= {"last_at": job.tick_at, "last_job_id": job.job_id}
        self.schedules[firing.name] = msgspec.structs.replace(stored, **moved)
        return Verdict.APPLIED

    # Retention

    def retire(self, policy: RetentionPolicy, now: Instant) -> int:
        """Trees of which all is over, and rows of the archive that are over there; how many jobs went."""
        trees: dict[str, list[Job]] = {}
        for job_id, job in self.jobs.items():
            trees.setdefault(job.root or job_id, []).append(job)
        over = [job for tree in trees.values() if all(_is_over(policy, job, now) for job in tree) for job in tree]
        for job in over:
            job.archived_at = now
            job.result, job.errors, job.steps = None, [], {}
            self.archive[job.new.job_id] = self.jobs.pop(job.new.job_id)
        if policy.archive_micros is not None:
            for job_id, job in list(self.archive.items()):
                if job.archived_at is not None and job.archived_at < now - policy.archive_micros:
                    del self.archive[job_id]
        return len(over)

    # Reading

    def check(self, record: JobRecord) -> None:
        """A record says what this queue says."""
        job = self.known(record.job_id)
        assert job is not None
        if record.result in job.possible_results and job.archived_at is None:
            job.result, job.possible_results = record.result, set()
        for name in COMPARED:
            if name != "result" or job.archived_at is None:
                assert getattr(record, name) == getattr(job, name), (name, record, job)
        assert (record.lease_expires_at, record.worker_id, record.root_job_id) == (job.lease, job.worker, job.root)
        assert (record.schedule, record.tick_at) == (job.new.schedule, job.new.tick_at)
        assert record.archived_at == job.archived_at
        if job.archived_at is not None:
            assert (record.payload, record.result, record.errors, record.history) == ("null", None, (), ())
            return
        assert (record.payload, record.suspicion) == (job.new.payload, job.suspicion)
        assert record.trigger_rule == job.new.trigger_rule
        assert record.awaits == (None if job.awaits is None else job.awaits.stored)
        numbers = Brood(record.children, record.open_children, record.failed_children, record.cancelled_children)
        assert numbers == self.brood(record.job_id)
        assert [f"{error.type}: {error.message}" for error in record.errors] == job.errors
        chain = [(each.version, each.event, each.source, each.target, each.attempt) for each in record.history]
        assert chain == job.history
        assert [version for version, *_ in chain] == list(range(1, record.version + 1))
        assert sum(event is Event.CLAIM for _, event, *_ in chain) == record.attempt

    def check_counters(self, found: Sequence[Counter]) -> None:
        stored = {
            (each.minute, (each.job_type, each.queue, each.priority), each.outcome): [
                each.count,
                each.ran_micros,
                each.waited_micros,
            ]
            for each in found
        }
        assert stored == self.counters
        assert len(stored) == len(found)
        for each in found:
            key = (each.minute, (each.job_type, each.queue, each.priority), each.outcome)
            assert dict(each.buckets) == self.buckets.get(key, {})

    def check_totals(self, found: Sequence[Total]) -> None:
        sums: dict[tuple[str, str, Counted], list[int]] = {}
        for (_, (job_type, queue, _), outcome), numbers in self.counters.items():
            before = sums.get((job_type, queue, outcome), [0, 0, 0])
            sums[job_type, queue, outcome] = [a + b for a, b in zip(before, numbers, strict=True)]
        assert {
            (each.job_type, each.queue, each.outcome): [each.count, each.ran_micros, each.waited_micros]
            for each in found
        } == sums
        assert sum(count for each in found for _, count in each.buckets) == sum(
            sum(counted.values()) for counted in self.buckets.values()
        )

    def depths(self) -> dict[tuple[str, str, Status], int]:
        sums: dict[tuple[str, str, Status], int] = {}
        for job in self.jobs.values():
            if job.status not in TERMINAL:
                key = (job.new.queue, job.new.job_type, job.status)
                sums[key] = sums.get(key, 0) + 1
        return sums


def _is_over(policy: RetentionPolicy, job: Job, now: Instant) -> bool:
    if policy.job_types and job.new.job_type not in policy.job_types:
        return False
    keep = policy.by_type.get(job.new.job_type, policy.keep)
    span = _span(keep, job.status)
    return span is not None and job.completed_at is not None and job.completed_at < now - span


def _span(keep: Keep, status: Status) -> int | None:
    match status:
        case Status.COMPLETED:
            return keep.completed_micros
        case Status.FAILED:
            return keep.failed_micros
        case Status.CANCELLED:
            return keep.cancelled_micros
        case _:
            return None
