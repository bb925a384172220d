"""What the end of a job releases on SQLite: dependents, a waiting parent, jobs parked behind its key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is recorded in
release_due, and maintenance is signalled to continue from there. Counts of parents are always complete: each is one
update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from backstay.clock import Instant
from backstay.core import event_details
from backstay.core.admission import BY_KEY
from backstay.core.dependencies import Awaits, Brood, TriggerRule, joined, moved, released
from backstay.core.event_details import Dependency
from backstay.core.records import CHILD_FAILED, DEPENDENCY_FAILED, Signal
from backstay.core.states import TERMINAL, Counted, Event, Status, counted
from backstay.engines.places import Standing, ended_by_others, move, standing_from
from backstay.engines.sqlite import admission
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import RELEASE_BATCH_MAX

UNMET = load("unmet_edges")
MEET = load("meet_edge")
COUNT_DOWN = load("count_down")
DONATED = load("donated")
COUNT_CHILDREN = load("count_children")
AWAITS = "SELECT awaits FROM waiting WHERE seq = ?"
KEY_RUNNING = load("key_running")
KEY_IN_SIGHT = load("key_in_sight")
PARKED_KEYS = load("parked_keys")
PARKED_OF = load("parked_of")
UNPARK = load("unpark")
STATUS = load("status")
NEED = load("need")


class Gift(NamedTuple):
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


def spread(tx: Tx, ended: Iterable[str], now: Instant, budget: int = RELEASE_BATCH_MAX) -> int:
    """Release dependents of ended jobs, and update parents of changed children. Breadth first, because a job that ends
    by this has dependents and a parent of its own."""
    queue = deque(ended)
    done = 0
    while queue or tx.broods:
        if not queue:
            queue += _count_children(tx, now)
            continue
        parent = queue.popleft()
        outcome = Status(tx.value(STATUS, (parent,)))
        if outcome not in TERMINAL:
            continue  # manually retried since: its dependents continue to wait
        room = budget - done
        children = [standing_from(row) for row in tx.rows(UNMET, {"parent": parent, "limit": room + 1})]
        for child in children[:room]:
            if _release_child(tx, parent, outcome, child, now):
                queue.append(child.job_id)
            done += 1
        if len(children) > room:
            tx.connection.execute("INSERT OR IGNORE INTO release_due (parent_id) VALUES (?)", (parent,))
            tx.signals.add(Signal.UNFINISHED)
    return done


# Dependents


def _release_child(tx: Tx, parent: str, outcome: Status, child: Standing, now: Instant) -> bool:
    """Consume the edge and release the dependent; return True if that ended it."""
    tx.connection.execute(MEET, {"parent": parent, "child": child.job_id})
    if child.status is not Status.WAITING or child.awaits is not None:
        return False  # cancelled since, or started early: by now it may wait for its children
    unmet = child.unmet - 1
    if child.joins == parent and outcome is Status.COMPLETED:
        _reuse(tx, child, parent, now)
        return True
    # A job that joined an identical one runs by itself if that one did not complete.
    target = released(
        rule=TriggerRule(child.trigger_rule),
        outcome=None if child.joins == parent else outcome,
        unmet=unmet,
        on_failure=child.on_dependency_failure,
        scheduled_for=child.scheduled_for,
        now=now,
    )
    if target is None:
        tx.connection.execute(COUNT_DOWN, (child.key, unmet))
        return False
    _release(tx, child, target, Dependency(parent, outcome), now)
    return target in TERMINAL


def _reuse(tx: Tx, child: Standing, donor: str, now: Instant) -> None:
    """Complete a job with the result of the identical one that it has waited for."""
    gift = Gift(*tx.rows(DONATED, (donor,))[0])
    found = move(
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
    sqlite_places.write(tx, found)
    tx.count((child.job_type, child.queue, child.priority), Counted.REUSED, now, 1, gift.took_micros)
    _note_release(tx, found.after, Event.REUSE, now)


def _release(tx: Tx, job: Standing, target: Status, because: Dependency, now: Instant) -> None:
    failed = ended_by_others(DEPENDENCY_FAILED, event_details.text(because)) if target is Status.FAILED else {}
    found = move(job, target, Event.RELEASE, now, details=because, joins=None, **failed)
    sqlite_places.write(tx, found)
    _note_release(tx, found.after, Event.RELEASE, now)


def end_as_it_comes(tx: Tx, job: Standing, target: Status, because: Dependency, now: Instant) -> None:
    """End a job that was just inserted, because of a dependency that had ended before."""
    _release(tx, job, target, because, now)


def _note_release(tx: Tx, job: Standing, event: Event, now: Instant) -> None:
    """Record that a job has left `waiting`: signals, counters, and the counts of its parent."""
    if (as_what := counted(event, job.status)) is not None:
        tx.count((job.job_type, job.queue, job.priority), as_what, now)
    if job.status in TERMINAL:
        tx.signals.add(Signal.ENDED)
        tx.broods.add(job.parent_job_id, moved(Status.WAITING, job.status))
    else:
        tx.signals.add(Signal.READY if job.status is Status.PENDING else Signal.DUE)


# Parents


def _count_children(tx: Tx, now: Instant) -> list[str]:
    """Write the changed child counts, and resume parents whose last child has ended; return the ids of parents that
    ended by this."""
    ended = []
    for parent, change in tx.broods.take().items():
        row = tx.row(COUNT_CHILDREN, {"parent": parent, **msgspec.structs.asdict(change)})
        if row is None or (awaits := tx.value(AWAITS, row[:1])) is None:
            continue
        brood = Brood(*row[1:])
        if (target := joined(Awaits.parse(awaits), brood)) is None:
            continue
        job = sqlite_places.standing(tx, parent)
        if job is None:
            continue
        changes = ended_by_others(CHILD_FAILED, str(brood)) if target is Status.FAILED else {}
        if target is Status.PENDING:
            changes["scheduled_for"] = now  # its waiting time begins now
        found = move(job, target, Event.RELEASE, now, reason=str(brood), **changes)
        sqlite_places.write(tx, found)
        _note_release(tx, found.after, Event.RELEASE, now)
        if target in TERMINAL:
            ended.append(parent)
    return ended


# Concurrency keys


def running(tx: Tx, key: str) -> int:
    count: int = tx.value(KEY_RUNNING, (key,))
    return count


def unpark(tx: Tx, key: str, limit: int) -> int:
    """Unpark as many jobs as could run, for each queue, type and version separately: jobs that no worker here runs must
    not take the room."""
    changed = 0
    if (room := limit - running(tx, key)) > 0:
        for lane in tx.rows(PARKED_OF, (key,)):
            changed += admission.bring_back(tx, tx.value(UNPARK, (key, *lane, room)), BY_KEY)
    if changed:
        tx.signals.add(Signal.READY)
    return changed


def release(tx: Tx, now: Instant, limit: int) -> int:
    """Continue large releases from their marks, and unpark jobs of keys with unused room."""
    done = 0
    for (parent,) in tx.rows("SELECT parent_id FROM release_due LIMIT ?", (limit,)):
        if done >= limit:
            break
        tx.connection.execute("DELETE FROM release_due WHERE parent_id = ?", (parent,))
        done += spread(tx, [parent], now, limit - done)
    for key, key_limit in tx.rows(PARKED_KEYS, (limit,)):
        done += unpark(tx, key, key_limit)
    admission.forget_idle(tx, now)
    return done
