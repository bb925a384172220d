"""What the end of a job sets free: those that depend on it, the parent that waits for it, and those parked behind its
concurrency key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is marked in
release_due, and upkeep, which is told, goes on from there. Numbers of parents are never left over: each is one update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Counted, Event, Kind, Status, counted
from holdfast.limits import RELEASE_BATCH_MAX
from holdfast.store.types import Signal
from holdfast.stores import history
from holdfast.stores.sqlite import taking_turns
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx
from holdfast.trees import Awaits, Brood, TriggerRule, joined, moved, released

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
    """Dependents of jobs that have ended, and parents of children that have changed. Breadth first, because what ends
    by it has dependents and a parent of its own."""
    queue = deque(ended)
    done = 0
    while queue or tx.broods:
        if not queue:
            queue += _count_children(tx, now)
            continue
        parent = queue.popleft()
        outcome = Status(tx.value(STATUS, (parent,)))
        if outcome not in TERMINAL:
            continue  # retried by hand since: its dependents wait on
        room = budget - done
        children = tx.rows(UNMET, {"parent": parent, "limit": room + 1})
        for child in children[:room]:
            if _release_child(tx, parent, outcome, child, now):
                queue.append(child[0])
            done += 1
        if len(children) > room:
            tx.execute("INSERT OR IGNORE INTO release_due (parent_id) VALUES (?)", (parent,))
            tx.signals.add(Signal.UNFINISHED)
    return done


# Dependents


def _release_child(tx: Tx, parent: str, outcome: Status, child: tuple[Any, ...], now: Instant) -> bool:
    """Consume the edge and move the child on; True when that ended it."""
    child_id, status, awaits, attempt, unmet, rule, on_failure, scheduled_for, joins, its_parent, *kind = child
    tx.execute(MEET, {"parent": parent, "child": child_id})
    if status != Status.WAITING or awaits is not None:
        return False  # cancelled meanwhile, or started early: by now it may wait for its children
    unmet -= 1
    event = Event.RELEASE
    target: Status | None
    if joins == parent and outcome is Status.COMPLETED:
        event, target, reason = Event.REUSE, Status.COMPLETED, f"identical job {parent} completed"
        tx.count((kind[0], kind[1], kind[2]), Counted.REUSED, now, 1, tx.value(TOOK, (parent,)))
    else:
        # A job that joined an identical one runs by itself when that one came to nothing.
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
    tail = history.event_tail(now, event, Status.WAITING, target, attempt, None, reason)
    _move(tx, child_id, target, 0, tail, reason, now)
    _note_release(tx, event, target, its_parent, (kind[0], kind[1], kind[2]), now)
    return target in TERMINAL


def end_as_it_comes(
    tx: Tx, job_id: str, target: Status, reason: str, parent: str | None, kind: Kind, now: Instant
) -> None:
    """End a job that was just inserted, because of what had ended before it came."""
    tail = history.event_tail(now, Event.RELEASE, Status.WAITING, target, 0, None, reason)
    _move(tx, job_id, target, 0, tail, reason, now)
    _note_release(tx, Event.RELEASE, target, parent, kind, now)


def _move(tx: Tx, child_id: str, target: Status, unmet: int, tail: str, reason: str, now: Instant) -> None:
    tx.execute(
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
    """Of one that has left `waiting`: who is told, what is counted, and what its parent counts."""
    if (as_what := counted(event, target)) is not None:
        tx.count(kind, as_what, now)
    if target in TERMINAL:
        tx.signals.add(Signal.ENDED)
        tx.broods.add(parent, moved(Status.WAITING, target))
    else:
        tx.signals.add(Signal.READY if target is Status.PENDING else Signal.DUE)


# Parents


def _count_children(tx: Tx, now: Instant) -> list[str]:
    """Write what children have changed, and let parents go on that have waited for the last of them; the ids of those
    that ended by it."""
    ended = []
    for parent, change in tx.broods.take().items():
        row = tx.row(COUNT_CHILDREN, {"parent": parent, **msgspec.structs.asdict(change)})
        if row is None or row[0] is None:
            continue
        awaits, children, still_open, failed, cancelled, attempt, its_parent, *kind = row
        brood = Brood(children, still_open, failed, cancelled)
        if (target := joined(Awaits.parse(awaits), brood)) is None:
            continue
        tail = history.event_tail(now, Event.RELEASE, Status.WAITING, target, attempt, None, str(brood))
        tx.execute(
            PARENT,
            {"parent": parent, "target": target.value, "now": now, "reason": f"ChildFailed: {brood}", "event": tail},
        )
        _note_release(tx, Event.RELEASE, target, its_parent, (kind[0], kind[1], kind[2]), now)
        if target in TERMINAL:
            ended.append(parent)
    return ended


# Concurrency keys


def anyone_waits(tx: Tx) -> tuple[bool, bool]:
    """Whether any job waits on another, and whether any has a concurrency key: mostly neither, and one look tells."""
    dependents, keys = tx.rows(ANYONE_WAITS)[0]
    return bool(dependents), bool(keys)


def unpark_keys_of(tx: Tx, job_ids: Sequence[str]) -> int:
    """Jobs have left: let the next ones of their keys be claimed."""
    keys = tx.rows(KEYS_OF, (msgspec.json.encode(job_ids).decode(),))
    return sum(unpark(tx, key, limit) for key, limit in keys)


def running(tx: Tx, key: str) -> int:
    count: int = tx.value(KEY_RUNNING, (key,))
    return count


def unpark(tx: Tx, key: str, limit: int) -> int:
    """As many as could run, of each queue, type and version by itself: what nobody here runs must not keep the room."""
    changed = 0
    if (room := limit - running(tx, key)) > 0:
        for lane in tx.rows(PARKED_OF, (key,)):
            tx.execute(UNPARK, (key, *lane, room))
            changed += tx.connection.changes()
    if changed:
        tx.signals.add(Signal.READY)
    return changed


def release(tx: Tx, now: Instant, limit: int) -> int:
    """The sweep: marks left by large releases, and keys whose room went unused."""
    done = 0
    for (parent,) in tx.rows("SELECT parent_id FROM release_due LIMIT ?", (limit,)):
        if done >= limit:
            break
        tx.execute("DELETE FROM release_due WHERE parent_id = ?", (parent,))
        done += spread(tx, [parent], now, limit - done)
    for key, key_limit in tx.rows(PARKED_KEYS, (limit,)):
        done += unpark(tx, key, key_limit)
    taking_turns.forget_idle(tx, now)
    return done
