"""What retention may take: the part of it that is the same on every SQL engine. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Keep, RetentionPolicy

Standing = tuple[int, str, str, str, Instant | None]  # seq, id, type, status, completed_at


class Found(msgspec.Struct):
    """What a step of the walk came to: jobs to move, and where to go on."""

    batch: list[tuple[int, Instant]]  # seq, completed_at
    next: str | None


def newest_cutoff(policy: RetentionPolicy, now: Instant) -> Instant | None:
    """Nothing that ended later than this is over its time."""
    spans = [span for keep in (policy.keep, *policy.by_type.values()) for span in _spans(keep) if span is not None]
    return now - min(spans) if spans else None


def _spans(keep: Keep) -> tuple[int | None, int | None, int | None]:
    return keep.completed_micros, keep.failed_micros, keep.cancelled_micros


def is_over(policy: RetentionPolicy, job_type: str, status: str, completed_at: Instant | None, now: Instant) -> bool:
    if completed_at is None or (policy.job_types and job_type not in policy.job_types):
        return False
    keep = policy.by_type.get(job_type, policy.keep)
    match status:
        case Status.COMPLETED:
            span = keep.completed_micros
        case Status.FAILED:
            span = keep.failed_micros
        case Status.CANCELLED:
            span = keep.cancelled_micros
        case _:
            return False
    return span is not None and completed_at < now - span


def with_tree(policy: RetentionPolicy, job: Standing, members: list[Any], now: Instant) -> dict[int, Instant]:
    """The job, with its tree if it has one and all of that is over; nothing when a part has to stay."""
    whole = [*members, job]
    if not all(is_over(policy, job_type, status, at, now) for _, _, job_type, status, at in whole):
        return {}
    return {seq: at for seq, _, _, _, at in whole}
