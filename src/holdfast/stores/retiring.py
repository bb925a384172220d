"""What retention may take: the part of it that is the same on every SQL engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Keep, RetentionPolicy, Retired

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


def over(policy: RetentionPolicy, rows: str | None, now: Instant) -> list[tuple[Standing, str | None]]:
    """Of the jobs that a step has read (as JSON, each with the root of its tree), those over their time. Of each tree
    the first: whether the others can go is asked of the tree, once, however many of its jobs the step has read."""
    found: list[tuple[Standing, str | None]] = []
    seen: set[str] = set()
    for seq, job_id, job_type, status, completed_at, root in msgspec.json.decode(rows or "[]"):
        if root in seen or not is_over(policy, job_type, status, completed_at, now):
            continue
        if root is not None:
            seen.add(root)
        found.append(((seq, job_id, job_type, status, completed_at), root))
    return found


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


def with_tree(policy: RetentionPolicy, job: Standing, members: Iterable[Any], now: Instant) -> dict[int, Instant]:
    """The job, with its tree if it has one and all of that is over; nothing when a part has to stay."""
    whole = [*members, job]
    if not all(is_over(policy, job_type, status, at, now) for _, _, job_type, status, at in whole):
        return {}
    return {seq: at for seq, _, _, _, at in whole}


def next_step(last: int, arrived: Instant, count: int, limit: int, newest: Instant) -> str | None:
    """Where to go on after a step that read `count` jobs up to `last`, of which the oldest arrived then. Jobs arrive in
    the order of time, nearly: where a whole step of them is too young, so are those after it."""
    return None if count < limit or arrived >= newest else str(last)


def whole_trees(standing: Iterable[tuple[int, str, int]]) -> list[int]:
    """Of jobs that still stand as they were read (seq, root, and how many the tree has now), those of whole trees:
    someone may have retried a part of one since, or added one."""
    trees: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for seq, root, size in standing:
        trees.setdefault(root, []).append(seq)
        sizes[root] = size
    return [seq for root, members in trees.items() if len(members) == sizes[root] for seq in members]


def answer(found: Found, archived: int, dropped: int, limit: int) -> Retired:
    more_to_drop = found.next is None and dropped == limit
    return Retired(archived, dropped, "0" if more_to_drop else found.next)
