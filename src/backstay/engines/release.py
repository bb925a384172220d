"""What the end of a job means for the jobs that waited for it, on the engines that keep jobs in places. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core import event_details
from backstay.core.dependencies import Brood, TriggerRule, moved, released
from backstay.core.event_details import Dependency
from backstay.core.records import CHILD_FAILED, DEPENDENCY_FAILED, Signal
from backstay.core.states import TERMINAL, Counted, Event, Status, counted
from backstay.engines.places import Move, Standing, ended_by_others, move
from backstay.engines.sql_rows import Noted


class Gift(msgspec.Struct, frozen=True):
    """What a job that is reused hands on."""

    result: str | None
    result_artifact: str | None
    metrics: str | None
    result_tables: str | None
    rows_of: str | None
    rows_attempt: int | None
    took_micros: int

    @property
    def kept(self) -> dict[str, str | None]:
        return {"metrics": self.metrics, "result_tables": self.result_tables}


def after_dependency(child: Standing, ended: str, outcome: Status, gift: Gift | None, now: Instant) -> Move | None:
    """Return the move of a waiting job that one of its dependencies has ended; None if it waits for more. `gift` is
    what that dependency hands on, if the job has joined it as an identical one."""
    has_joined = child.joins == ended
    if has_joined and gift is not None:
        return _reused(child, ended, gift, now)
    target = released(
        rule=TriggerRule(child.trigger_rule),
        # A job that joined an identical one runs by itself if that one did not complete.
        outcome=None if has_joined else outcome,
        unmet=child.unmet - 1,
        on_failure=child.on_dependency_failure,
        scheduled_for=child.scheduled_for,
        now=now,
    )
    return None if target is None else after_last_dependency(child, target, Dependency(ended, outcome), now)


def after_last_dependency(child: Standing, target: Status, because: Dependency, now: Instant) -> Move:
    failed = ended_by_others(DEPENDENCY_FAILED, event_details.text(because)) if target is Status.FAILED else {}
    return move(child, target, Event.RELEASE, now, details=because, joins=None, **failed)


def _reused(child: Standing, donor: str, gift: Gift, now: Instant) -> Move:
    """Return the completion of a job with the result of the identical one that it has waited for."""
    return move(
        child,
        Status.COMPLETED,
        Event.REUSE,
        now,
        reason=f"identical job {donor} completed",
        kept=gift.kept,
        result=gift.result,
        result_artifact=gift.result_artifact,
        joins=None,
        reused_from=donor,
        rows_of=gift.rows_of,
        rows_attempt=gift.rows_attempt,
    )


def after_children(parent: Standing, target: Status, brood: Brood, now: Instant) -> Move:
    """Return the move of a parent whose last child has ended."""
    changes: dict[str, Any] = ended_by_others(CHILD_FAILED, str(brood)) if target is Status.FAILED else {}
    if target is Status.PENDING:
        changes["scheduled_for"] = now  # its waiting time begins now
    return move(parent, target, Event.RELEASE, now, reason=str(brood), **changes)


def note(tx: Noted, found: Move, now: Instant, gift: Gift | None = None) -> None:
    """Record that a job has left `waiting`: signals, counters, and the counts of its parent."""
    job, event = found.after, found.events[-1].event
    kind = (job.job_type, job.queue, job.priority)
    if event is Event.REUSE and gift is not None:
        tx.count(kind, Counted.REUSED, now, 1, gift.took_micros)
    if (as_what := counted(event, job.status)) is not None:
        tx.count(kind, as_what, now)
    if job.status in TERMINAL:
        tx.signals.add(Signal.ENDED)
        tx.broods.add(job.parent_job_id, moved(Status.WAITING, job.status))
    else:
        tx.signals.add(Signal.READY if job.status is Status.PENDING else Signal.DUE)
