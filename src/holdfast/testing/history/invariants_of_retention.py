"""Invariants of the archive: what is in it had ended, its time was over, and it stands there as it ended."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.lifecycle import TERMINAL
from holdfast.store.types import JobRecord
from holdfast.testing.history.evidence import Evidence, over_its_time
from holdfast.testing.history.invariants_of_jobs import Finding
from holdfast.testing.history.operations import Outcome


def retention(evidence: Evidence) -> Iterator[Finding]:
    """S1, of what left: no active job, none before its time, a tree as a whole, nothing that happened forgotten."""
    for record in evidence.archive.values():
        if record.status not in TERMINAL or record.completed_at is None or record.archived_at is None:
            yield record.job_id, f"was archived and has not ended: it is {record.status}"
        elif evidence.recorded:
            yield from _on_time(evidence, record, record.completed_at, record.archived_at)
            yield from _ended_so(evidence, record)
            yield from _nothing_forgotten(evidence, record)
    yield from _whole_trees(evidence)


def _on_time(evidence: Evidence, record: JobRecord, ended: int, archived: int) -> Iterator[Finding]:
    policies = [policy for policy, at in evidence.retirements if at == archived]
    if not policies:
        yield record.job_id, f"was archived at {archived}, when nobody asked for it"
    elif not any(over_its_time(policy, record.job_type, record.status, ended, archived) for policy in policies):
        yield record.job_id, f"ended {record.status} at {ended} and was archived at {archived}, before its time"


def _ended_so(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    """Someone ended it in this state; the end of another job may have, where it waited for one."""
    depends = any(op.item.depends_on for op in evidence.on("insert", record.job_id))
    waited = depends or record.content_hash is not None
    ended = any(
        op.known and (op.item.target, op.attempt) == (record.status, record.attempt)
        for op in evidence.on("apply", record.job_id)
    )
    if not waited and not ended:
        yield record.job_id, f"is archived as {record.status}, and nobody ended it so"


def _nothing_forgotten(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    """What was granted is older than what the archive shows."""
    for op in evidence.on("claim", record.job_id, Outcome.OK):
        if op.attempt is not None and op.attempt > record.attempt:
            yield record.job_id, f"is archived at attempt {record.attempt}, and attempt {op.attempt} was handed out"
    for op in evidence.on("apply", record.job_id, Outcome.OK):
        if op.item.version is not None and op.item.version >= record.version:
            yield (
                record.job_id,
                f"is archived at version {record.version}, and {op.item.event} was granted on {op.item.version}",
            )


def _whole_trees(evidence: Evidence) -> Iterator[Finding]:
    left = {record.root_job_id or job_id: job_id for job_id, record in evidence.archive.items()}
    stayed = {record.root_job_id or job_id: job_id for job_id, record in evidence.by_id.items()}
    for root in left.keys() & stayed.keys():
        yield left[root], f"was archived without {stayed[root]}, which is of the same tree"
