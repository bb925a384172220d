"""What the end of a job releases on SQLite: dependents, a waiting parent, jobs parked behind its key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is recorded in
release_due, and maintenance is signalled to continue from there. Counts of parents are always complete: each is one
update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import Awaits, Brood, TriggerRule, joined, moved, released
from backstay.core.records import Kind, Signal
from backstay.core.states import TERMINAL, Counted, Event, Status, counted
from backstay.engines import sql_rows
from backstay.engines.sqlite import admission
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import RELEASE_BATCH_MAX

UNMET = load("unmet_edges")
MEET = load("meet_edge")
CHILD = load("release_child")
COUNT_CHILDREN = load("count_children")
PARENT = load("release_parent")
KEY_RUNNING = load("key_running")
KEY_IN_SIGHT = load("key_in_sight")
KEYS_OF = load("keys_of")
PARKED_KEYS = load("parked_keys")
PARK = load("park")
PARKED_OF = load("parked_of")
UNPARK = load("unpark")
ANYONE_WAITS = load("anyone_waits")
STATUS = load("status")
TOOK = "SELECT coalesce(max(0, completed_at - started_at), 0) FROM job WHERE job_id = ?"


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
        children = tx.rows(UNMET, {"parent": parent, "limit": room + 1})
        for child in children[:room]:
            if _release_child(tx, parent, outcome, child, now):
                queue.append(child[0])
            done += 1
        if len(children) > room:
            tx.connection.execute("INSERT OR IGNORE INTO release_due (parent_id) VALUES (?)", (parent,))
            tx.signals.add(Signal.UNFINISHED)
    return done


# Dependents


def _release_child(tx: Tx, parent: str, outcome: Status, child: tuple[Any, ...], now: Instant) -> bool:
    """Consume the edge and release the dependent; return True if that ended it."""
    child_id, status, awaits, attempt, unmet, rule, on_failure, scheduled_for, joins, its_parent, *kind = child
    tx.connection.execute(MEET, {"parent": parent, "child": child_id})
    if status != Status.WAITING or awaits is not None:
        return False  # cancelled since, or started early: by now it may wait for its children
    unmet -= 1
    event = Event.RELEASE
    target: Status | None
    if joins == parent and outcome is Status.COMPLETED:
        event, target, reason = Event.REUSE, Status.COMPLETED, f"identical job {parent} completed"
        tx.count((kind[0], kind[1], kind[2]), Counted.REUSED, now, 1, tx.value(TOOK, (parent,)))
    else:
        # A job that joined an identical one runs by itself if that one did not complete.
        target = released(
            rule=TriggerRule(rule or TriggerRule.ALL_SUCCESS),
            outcome=None if joins == parent else outcome,
            unmet=unmet,
            on_failure=on_failure,
            scheduled_for=scheduled_for,
            now=now,
        )
        reason = f"{parent} {outcome.value}"
    if target is None:
        _move(tx, child_id, Status.WAITING, unmet, "", reason, now)
        return False
    tail = sql_rows.event_tail(now, event, Status.WAITING, target, attempt, None, reason)
    _move(tx, child_id, target, 0, tail, reason, now)
    _note_release(tx, event, target, its_parent, (kind[0], kind[1], kind[2]), now)
    return target in TERMINAL


def end_as_it_comes(
    tx: Tx, job_id: str, target: Status, reason: str, parent: str | None, kind: Kind, now: Instant
) -> None:
    """End a job that was just inserted, because of dependencies that had ended before."""
    tail = sql_rows.event_tail(now, Event.RELEASE, Status.WAITING, target, 0, None, reason)
    _move(tx, job_id, target, 0, tail, reason, now)
    _note_release(tx, Event.RELEASE, target, parent, kind, now)


def _move(tx: Tx, child_id: str, target: Status, unmet: int, tail: str, reason: str, now: Instant) -> None:
    tx.connection.execute(
        CHILD,
        {
            "child": child_id,
            "unmet": unmet,
            "target": target.value,
            "now": now,
            "reason": f"DependencyFailed: {reason}",
            "event": tail,
        },
    )


def _note_release(tx: Tx, event: Event, target: Status, parent: str | None, kind: Kind, now: Instant) -> None:
    """Record that a job has left `waiting`: signals, counters, and the counts of its parent."""
    if (as_what := counted(event, target)) is not None:
        tx.count(kind, as_what, now)
    if target in TERMINAL:
        tx.signals.add(Signal.ENDED)
        tx.broods.add(parent, moved(Status.WAITING, target))
    else:
        tx.signals.add(Signal.READY if target is Status.PENDING else Signal.DUE)


# Parents


def _count_children(tx: Tx, now: Instant) -> list[str]:
    """Write the changed child counts, and resume parents whose last child has ended; return the ids of parents that
    ended by this."""
    ended = []
    for parent, change in tx.broods.take().items():
        row = tx.row(COUNT_CHILDREN, {"parent": parent, **msgspec.structs.asdict(change)})
        if row is None or row[0] is None:
            continue
        awaits, children, still_open, failed, cancelled, attempt, its_parent, *kind = row
        brood = Brood(children, still_open, failed, cancelled)
        if (target := joined(Awaits.parse(awaits), brood)) is None:
            continue
        tail = sql_rows.event_tail(now, Event.RELEASE, Status.WAITING, target, attempt, None, str(brood))
        tx.connection.execute(
            PARENT,
            {"parent": parent, "target": target.value, "now": now, "reason": f"ChildFailed: {brood}", "event": tail},
        )
        _note_release(tx, Event.RELEASE, target, its_parent, (kind[0], kind[1], kind[2]), now)
        if target in TERMINAL:
            ended.append(parent)
    return ended


# Concurrency keys


def anyone_waits(tx: Tx) -> tuple[bool, bool]:
    """Return whether any job waits for another, and whether any has a concurrency key: usually neither, and one read
    tells."""
    dependents, keys = tx.rows(ANYONE_WAITS)[0]
    return bool(dependents), bool(keys)


def unpark_keys_of(tx: Tx, job_ids: Sequence[str]) -> int:
    """Unpark the next jobs of the keys of jobs that have left."""
    keys = tx.rows(KEYS_OF, (msgspec.json.encode(job_ids).decode(),))
    return sum(unpark(tx, key, limit) for key, limit in keys)


def running(tx: Tx, key: str) -> int:
    count: int = tx.value(KEY_RUNNING, (key,))
    return count


def unpark(tx: Tx, key: str, limit: int) -> int:
    """Unpark as many jobs as could run, for each queue, type and version separately: jobs that no worker here runs must
    not take the room."""
    changed = 0
    if (room := limit - running(tx, key)) > 0:
        for lane in tx.rows(PARKED_OF, (key,)):
            tx.connection.execute(UNPARK, (key, *lane, room))
            changed += tx.connection.changes()
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
