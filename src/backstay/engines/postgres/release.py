"""What the end of a job releases on PostgreSQL: dependents, a waiting parent, jobs parked behind its key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is recorded in
release_due, and maintenance is signalled to continue from there. Counts of parents are always complete: all are one
update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from backstay.clock import Instant
from backstay.core.dependencies import Awaits, Brood, joined
from backstay.core.records import Signal
from backstay.core.states import TERMINAL, Status
from backstay.core.waits import awaits_of
from backstay.engines.places import Move
from backstay.engines.postgres import admission
from backstay.engines.postgres import places as postgres_places
from backstay.engines.postgres.connection import Tx
from backstay.engines.release import Gift, after_children, after_dependency, note
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
        children = [tuple(row) for row in await tx.rows("unmet_edges", parent, room + 1)]
        if children[:room]:
            queue += await _release_children(tx, parent, Status(status), children[:room], now)
            done += len(children[:room])
        if len(children) > room:
            await tx.execute("add_release_due", parent)
            tx.signals.add(Signal.UNFINISHED)
    return done


async def _release_children(
    tx: Tx, parent: str, outcome: Status, children: Sequence[tuple[str, bool]], now: Instant
) -> list[str]:
    """Consume the edges and release the dependents; return the ids of those that ended by this."""
    await tx.execute("meet_edges", parent, [child for child, _ in children])
    waiting = await postgres_places.standings(tx, [child for child, waits in children if waits])
    gift: Gift | None = None
    if outcome is Status.COMPLETED and any(child.joins == parent for child in waiting.values()):
        gift = Gift(*(await tx.row("donated", parent) or ()))
    moves: list[Move] = []
    fewer: list[tuple[str, int]] = []
    for job_id in sorted(waiting):
        child = waiting[job_id]
        found = after_dependency(child, parent, outcome, gift, now)
        if found is None:
            fewer.append((job_id, child.unmet - 1))
        else:
            note(tx, found, now, gift)
            moves.append(found)
    if fewer:
        await tx.execute("count_down", *(list(column) for column in zip(*fewer, strict=True)))
    await postgres_places.write(tx, moves)
    return [each.after.job_id for each in moves if each.after.status in TERMINAL]


# Parents


async def _count_children(tx: Tx, now: Instant) -> list[str]:
    """Write the changed child counts, and resume parents whose last child has ended; return the ids of parents that
    ended by this."""
    changes = sorted(tx.broods.take().items())
    parents = [parent for parent, _ in changes]
    await tx.rows("lock_parents", parents)  # always in the same order, so that no two transactions deadlock
    if counts := [(parent, change) for parent, change in changes if change != Brood()]:
        columns = [[getattr(change, name) for _, change in counts] for name in Brood.__struct_fields__]
        await tx.value("count_children", [parent for parent, _ in counts], *columns)
    targets: dict[str, tuple[Status, Brood]] = {}
    for parent, awaits, *numbers in await tx.rows("broods", parents):
        brood, awaited = Brood(*numbers), awaits_of(awaits)
        if isinstance(awaited, Awaits) and (target := joined(awaited, brood)) is not None:
            targets[parent] = (target, brood)
    moves: list[Move] = []
    for parent, job in sorted((await postgres_places.standings(tx, list(targets))).items()):
        target, brood = targets[parent]
        found = after_children(job, target, brood, now)
        note(tx, found, now)
        moves.append(found)
    await postgres_places.write(tx, moves)
    return [each.after.job_id for each in moves if each.after.status in TERMINAL and each.after.awaited]


# Concurrency keys


def name_of(key: str) -> str:
    return f"backstay key {key}"


async def running(tx: Tx, keys: Collection[str]) -> dict[str, int]:
    return dict(await tx.rows("keys_running", list(keys))) if keys else {}


def name_of_type(job_type: str) -> str:
    return f"backstay type {job_type}"


async def running_of_types(tx: Tx, types: Collection[str]) -> dict[str, int]:
    return dict(await tx.rows("types_running", list(types))) if types else {}


async def unpark_now(tx: Tx, key: str) -> None:
    """Unpark jobs of a key whose limit has changed."""
    await tx.rows("lock_names", [name_of(key)])
    if (limit := await tx.value("parked_limit", key)) is not None:
        await unpark(tx, key, limit)


async def unpark(tx: Tx, key: str, limit: int) -> int:
    """Unpark as many jobs as could run, for each queue, type and version separately: jobs that no worker here runs must
    not take the room. The key's name is locked: a job submitted at the same time is either parked before and seen here,
    or finds the room."""
    changed: int = await tx.value("unpark", key, limit)
    if changed:
        tx.signals.add(Signal.READY)
    return changed


async def release(tx: Tx, now: Instant, limit: int) -> int:
    """Continue large releases from their marks, and unpark jobs of keys with unused room."""
    done = 0
    for parent, dropping in await tx.rows("take_release_due", 1 if limit < RELEASE_BATCH_MAX else 10):
        done += await spread(tx, [parent], now, max(1, limit - done))
        if dropping:
            await tx.value("drop_released", parent)
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
