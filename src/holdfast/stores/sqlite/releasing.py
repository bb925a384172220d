"""What the end of a job sets free: those that depend on it, and those parked behind its concurrency key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is marked in
release_due, and upkeep goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status, counted, released
from holdfast.limits import RELEASE_BATCH_MAX
from holdfast.store.types import Signal
from holdfast.stores import history
from holdfast.stores.sqlite import taking_turns
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

UNMET = load("unmet_edges")
MEET = load("meet_edge")
CHILD = load("release_child")
KEY_RUNNING = load("key_running")
KEY_IN_SIGHT = load("key_in_sight")
KEYS_OF = load("keys_of")
PARKED_KEYS = load("parked_keys")
PARK = load("park")
PARKED_OF = load("parked_of")
UNPARK = load("unpark")
ANYONE_WAITS = load("anyone_waits")
STATUS = load("status")


def release_dependents(tx: Tx, ended: Iterable[str], now: Instant, budget: int = RELEASE_BATCH_MAX) -> int:
    """Breadth first, because a cancelled dependent has dependents of its own."""
    queue = deque(ended)
    done = 0
    while queue:
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
    return done


def _release_child(
    tx: Tx,
    parent: str,
    outcome: Status,
    child: tuple[Any, ...],
    now: Instant,
) -> bool:
    """Consume the edge and move the child on; True when that ended it."""
    child_id, status, attempt, unmet, on_failure, scheduled_for, joins, *kind = child
    tx.execute(MEET, {"parent": parent, "child": child_id})
    if status != Status.WAITING:
        return False  # cancelled meanwhile
    unmet -= 1
    succeeded = outcome is Status.COMPLETED
    event = Event.RELEASE
    target: Status | None
    if joins == parent and succeeded:
        event, target, reason = Event.REUSE, Status.COMPLETED, f"identical job {parent} completed"
    else:
        # A job that joined an identical one runs by itself when that one came to nothing.
        broken = not succeeded and joins != parent
        target = released(
            unmet_dependencies=unmet,
            failed_dependency=broken,
            on_failure=on_failure,
            scheduled_for=scheduled_for,
            now=now,
        )
        reason = f"{parent} {outcome.value}"
    tail = history.event_tail(now, event, Status.WAITING, target or Status.WAITING, attempt, None, reason)
    tx.execute(
        CHILD,
        {
            "child": child_id,
            "unmet": 0 if target else unmet,
            "target": (target or Status.WAITING).value,
            "now": now,
            "reason": f"DependencyFailed: {reason}",
            "event": tail,
        },
    )
    if target is not None and (outcome_counted := counted(event, target)) is not None:
        tx.count((kind[0], kind[1], kind[2]), outcome_counted, now)
    match target:
        case Status.PENDING:
            tx.signals.add(Signal.READY)
        case Status.SCHEDULED:
            tx.signals.add(Signal.DUE)
        case Status.COMPLETED | Status.CANCELLED | Status.FAILED:
            tx.signals.add(Signal.ENDED)
            return True
        case _:
            pass
    return False


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
        done += release_dependents(tx, [parent], now, limit - done)
    for key, key_limit in tx.rows(PARKED_KEYS, (limit,)):
        done += unpark(tx, key, key_limit)
    taking_turns.forget_idle(tx, now)
    return done
