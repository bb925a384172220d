"""What the end of a job sets free: those that depend on it, and those parked behind its concurrency key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is marked in
release_due, and upkeep goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status, counted, released
from holdfast.limits import RELEASE_BATCH_MAX
from holdfast.store.types import Signal
from holdfast.stores.postgres import taking_turns
from holdfast.stores.postgres.tx import Tx


async def release_dependents(tx: Tx, ended: Iterable[str], now: Instant, budget: int = RELEASE_BATCH_MAX) -> int:
    """Breadth first, because a cancelled dependent has dependents of its own."""
    queue = deque(ended)
    done = 0
    while queue:
        parent = queue.popleft()
        status = await tx.value("status", parent)
        if status is None or Status(status) not in TERMINAL:
            continue  # retried by hand since: its dependents wait on
        room = budget - done
        children = await tx.rows("unmet_edges", parent, room + 1)
        if children[:room]:
            queue += await _release_children(tx, parent, Status(status), children[:room], now)
            done += len(children[:room])
        if len(children) > room:
            await tx.execute("add_release_due", parent)
    return done


async def _release_children(tx: Tx, parent: str, outcome: Status, children: list[Any], now: Instant) -> list[str]:
    """Consume the edges and move the children on; the ids of those that ended by it."""
    await tx.execute("meet_edges", parent, [child[0] for child in children])
    ended: list[str] = []
    moves: list[tuple[str, int, str, str]] = []
    for child_id, status, _, unmet, on_failure, scheduled_for, joins, job_type, queue, priority in children:
        if status != Status.WAITING:
            continue  # cancelled meanwhile
        unmet -= 1
        event, target = _decide(outcome, parent, unmet, on_failure, scheduled_for, joins, now)
        moves.append((child_id, 0 if target else unmet, (target or Status.WAITING).value, event.value))
        if target is None:
            continue
        if (as_what := counted(event, target)) is not None:
            tx.count((job_type, queue, priority), as_what, now)
        if target in TERMINAL:
            ended.append(child_id)
            tx.signals.add(Signal.ENDED)
        else:
            tx.signals.add(Signal.READY if target is Status.PENDING else Signal.DUE)
    if moves:
        columns = [list(column) for column in zip(*moves, strict=True)]
        reused = f"identical job {parent} completed"
        await tx.execute("release_children", *columns, now, parent, f"{parent} {outcome.value}", reused)
    return ended


def _decide(
    outcome: Status, parent: str, unmet: int, on_failure: str, scheduled_for: Instant, joins: str | None, now: Instant
) -> tuple[Event, Status | None]:
    succeeded = outcome is Status.COMPLETED
    if joins == parent and succeeded:
        return Event.REUSE, Status.COMPLETED
    return Event.RELEASE, released(
        unmet_dependencies=unmet,
        # A job that joined an identical one runs by itself when that one came to nothing.
        failed_dependency=not succeeded and joins != parent,
        on_failure=on_failure,
        scheduled_for=scheduled_for,
        now=now,
    )


def name_of(key: str) -> str:
    return f"holdfast key {key}"


async def running(tx: Tx, key: str) -> int:
    count: int = await tx.value("key_running", key)
    return count


async def unpark(tx: Tx, key: str, limit: int) -> int:
    """As many as could run, of each queue, type and version by itself: what nobody here runs must not keep the room.
    The key's name is held: a job that is submitted meanwhile is parked before, and seen here, or finds the room."""
    changed = 0
    if (room := limit - await running(tx, key)) > 0:
        for lane in await tx.rows("parked_of", key):
            changed += await tx.execute("unpark", key, *lane, room)
    if changed:
        tx.signals.add(Signal.READY)
    return changed


async def release(tx: Tx, now: Instant, limit: int) -> int:
    """The sweep: marks left by large releases, and keys whose room went unused."""
    done = 0
    for (parent,) in await tx.rows("take_release_due", 1 if limit < RELEASE_BATCH_MAX else 10):
        done += await release_dependents(tx, [parent], now, max(1, limit - done))
    if keys := await tx.rows("parked_keys", limit):
        await tx.rows("lock_names", [name_of(key) for key, _ in keys])
        for key, key_limit in keys:
            done += await unpark(tx, key, key_limit)
    await taking_turns.forget_idle(tx, now)
    return done
