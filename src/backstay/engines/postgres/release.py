"""What the end of a job releases on PostgreSQL: dependents, a waiting parent, jobs parked behind its key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is recorded in
release_due, and maintenance is signalled to continue from there. Counts of parents are always complete: all are one
update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from backstay.clock import Instant
from backstay.core.dependencies import Awaits, Brood, TriggerRule, joined, moved, released
from backstay.core.records import Kind, Signal
from backstay.core.states import TERMINAL, Counted, Event, Status, counted
from backstay.engines.postgres import admission
from backstay.engines.postgres.connection import Tx
from backstay.limits import RELEASE_BATCH_MAX


async def spread(tx: Tx, ended: Iterable[str], now: Instant, budget: int = RELEASE_BATCH_MAX) -> int:
    """Release dependents of ended jobs, and update parents of changed children. Breadth first, because a job that ends
    by this has dependents and a parent of its own."""
    queue = deque(ended)
    done = 0
    while queue or tx.broods:
        if not queue:
            queue += await _count_children(tx, now)
            continue
        parent = queue.popleft()
        status = await tx.value("status", parent)
        if status is None or Status(status) not in TERMINAL:
            continue  # manually retried since: its dependents continue to wait
        room = budget - done
        children = await tx.rows("unmet_edges", parent, room + 1)
        if children[:room]:
            queue += await _release_children(tx, parent, Status(status), children[:room], now)
            done += len(children[:room])
        if len(children) > room:
            await tx.execute("add_release_due", parent)
            tx.signals.add(Signal.UNFINISHED)
    return done


async def _release_children(tx: Tx, parent: str, outcome: Status, children: list[Any], now: Instant) -> list[str]:
    """Consume the edges and release the dependents; return the ids of those that ended by this."""
    await tx.execute("meet_edges", parent, [child[0] for child in children])
    ended: list[str] = []
    moves: list[tuple[str, int, str, str]] = []
    took = await tx.value("took", parent) if any(child[7] == parent for child in children) else 0
    for child_id, status, awaits, unmet, rule, on_failure, scheduled_for, joins, its_parent, *kind in children:
        if status != Status.WAITING or awaits is not None:
            continue  # cancelled since, or started early: by now it may wait for its children
        unmet -= 1
        event, target = _decide(outcome, parent, rule, unmet, on_failure, scheduled_for, joins, now)
        moves.append((child_id, 0 if target else unmet, (target or Status.WAITING).value, event.value))
        if target is None:
            continue
        if event is Event.REUSE:
            tx.count((kind[0], kind[1], kind[2]), Counted.REUSED, now, 1, took)
        _note_release(tx, event, target, its_parent, (kind[0], kind[1], kind[2]), now)
        if target in TERMINAL:
            ended.append(child_id)
    if moves:
        columns = [list(column) for column in zip(*moves, strict=True)]
        reused = f"identical job {parent} completed"
        await tx.execute("release_children", *columns, now, parent, f"{parent} {outcome.value}", reused)
    return ended


def _note_release(tx: Tx, event: Event, target: Status, parent: str | None, kind: Kind, now: Instant) -> None:
    """Record that a job has left `waiting`: signals, counters, and the counts of its parent."""
    if (as_what := counted(event, target)) is not None:
        tx.count(kind, as_what, now)
    if target in TERMINAL:
        tx.signals.add(Signal.ENDED)
        tx.broods.add(parent, moved(Status.WAITING, target))
    else:
        tx.signals.add(Signal.READY if target is Status.PENDING else Signal.DUE)


def _decide(
    outcome: Status,
    parent: str,
    rule: str,
    unmet: int,
    on_failure: str,
    scheduled_for: Instant,
    joins: str | None,
    now: Instant,
) -> tuple[Event, Status | None]:
    if joins == parent and outcome is Status.COMPLETED:
        return Event.REUSE, Status.COMPLETED
    return Event.RELEASE, released(
        rule=TriggerRule(rule),
        # A job that joined an identical one runs by itself if that one did not complete.
        outcome=None if joins == parent else outcome,
        unmet=unmet,
        on_failure=on_failure,
        scheduled_for=scheduled_for,
        now=now,
    )


# Parents


async def _count_children(tx: Tx, now: Instant) -> list[str]:
    """Write the changed child counts, and resume parents whose last child has ended; return the ids of parents that
    ended by this."""
    changes = sorted(tx.broods.take().items())
    parents = [parent for parent, _ in changes]
    if len(parents) > 1:
        await tx.rows("lock_parents", parents)  # always in the same order, so that no two transactions deadlock
    columns = [[getattr(change, name) for _, change in changes] for name in Brood.__struct_fields__]
    ended: list[str] = []
    moves: list[tuple[str, str, str]] = []
    for parent, awaits, children, still_open, failed, cancelled, its_parent, *kind in await tx.rows(
        "count_children", parents, *columns
    ):
        brood = Brood(children, still_open, failed, cancelled)
        target = None if awaits is None else joined(Awaits.parse(awaits), brood)
        if target is None:
            continue
        moves.append((parent, target.value, str(brood)))
        _note_release(tx, Event.RELEASE, target, its_parent, (kind[0], kind[1], kind[2]), now)
        if target in TERMINAL:
            ended.append(parent)
    if moves:
        await tx.execute("release_parents", *(list(column) for column in zip(*moves, strict=True)), now)
    return ended


# Concurrency keys


def name_of(key: str) -> str:
    return f"backstay key {key}"


async def running(tx: Tx, key: str) -> int:
    count: int = await tx.value("key_running", key)
    return count


async def unpark(tx: Tx, key: str, limit: int) -> int:
    """Unpark as many jobs as could run, for each queue, type and version separately: jobs that no worker here runs must
    not take the room. The key's name is locked: a job submitted at the same time is either parked before and seen here,
    or finds the room."""
    changed = 0
    if (room := limit - await running(tx, key)) > 0:
        for lane in await tx.rows("parked_of", key):
            changed += await tx.execute("unpark", key, *lane, room)
    if changed:
        tx.signals.add(Signal.READY)
    return changed


async def release(tx: Tx, now: Instant, limit: int) -> int:
    """Continue large releases from their marks, and unpark jobs of keys with unused room."""
    done = 0
    for (parent,) in await tx.rows("take_release_due", 1 if limit < RELEASE_BATCH_MAX else 10):
        done += await spread(tx, [parent], now, max(1, limit - done))
    for (parent,) in await tx.rows("take_join_due", limit):
        tx.broods.add(parent, Brood())
        done += 1
    if tx.broods:
        await spread(tx, (), now)
    if keys := await tx.rows("parked_keys", limit):
        await tx.rows("lock_names", [name_of(key) for key, _ in keys])
        for key, key_limit in keys:
            done += await unpark(tx, key, key_limit)
    await admission.forget_idle(tx, now)
    return done
