"""Dedup keys of clients that see only some queues: kept per queue, apart from all others. Pure.

A dedup key belongs to one job, whatever its queue. If such a client used the same keys as everyone, an answer would
tell it which keys are taken in queues that it does not see, and by taking one it could keep a job of theirs from being
stored. Its keys are therefore stored with the name of the queue, which is not shown.
"""

from __future__ import annotations

from backstay.core.records import NewJob
from backstay.errors import DedupConflict

_MARK = "\x1f"  # cannot be in the name of a queue


def scoped(dedup_key: str, queue: str) -> str:
    """Return the key as it is stored for such a client."""
    return f"{dedup_key}{_MARK}{queue}"


def plain(dedup_key: str | None, queue: str) -> str | None:
    """Return a stored key as it was submitted."""
    return None if dedup_key is None else dedup_key.removesuffix(f"{_MARK}{queue}")


def without_scope(text: str, queue: str) -> str:
    """Return a message that quotes a stored key, with the key as it was submitted."""
    return text.replace(f"{_MARK}{queue}", "").replace(f"{_MARK!r}"[1:-1] + queue, "")


def check_replaceable(new: NewJob, job_id: str, job_type: str) -> None:
    """Raise DedupConflict if a submit would give a job of another type its payload."""
    if job_type != new.job_type:
        raise DedupConflict(
            f"dedup key {new.dedup_key!r} belongs to job {job_id} of type {job_type}, and this is a {new.job_type}: one"
            " cannot replace the other; use a key of its own for each type"
        )
