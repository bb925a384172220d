"""What the end of a job releases on SQLite: dependents, a waiting parent, jobs parked behind its key.

Runs inside the transaction that ends the job. It is bounded: what one transaction does not release is recorded in
release_due, and maintenance is signalled to continue from there. Counts of parents are always complete: each is one
update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from backstay.clock import Instant
from backstay.core.admission import BY_KEY
from backstay.core.dependencies import Awaits, Brood, joined
from backstay.core.event_details import Dependency
from backstay.core.records import Signal, Transition
from backstay.core.states import TERMINAL, Status
from backstay.core.waits import awaits_of
from backstay.engines.places import Move, Standing, standing_from
from backstay.engines.release import Gift, after_children, after_dependency, after_last_dependency, note
from backstay.engines.sql_rows import left_their_place, signals_of
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
AWAITS = load("awaits")
SAVE_RELEASE = load("save_release")
RELEASE_DUE = load("release_due")
DROP_RELEASE = load("drop_release")
KEY_RUNNING = load("key_running")
TYPE_RUNNING = load("type_running")
PARKED_LIMIT = load("parked_limit")
KEY_IN_SIGHT = load("key_in_sight")
PARKED_KEYS = load("parked_keys")
PARKED_OF = load("parked_of")
UNPARK = load("unpark")
STATUS = load("status")
NEED = load("need")


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
            tx.connection.execute(SAVE_RELEASE, (parent,))
            tx.signals.add(Signal.UNFINISHED)
    return done


def after_moves(tx: Tx, moves: Sequence[tuple[Transition, Move]], now: Instant) -> None:
    """Do what follows from transitions in the same commit: release dependents, unpark jobs, record signals."""
    ended = [move.after.job_id for _, move in moves if move.after.awaited and move.after.status in TERMINAL]
    if ended or tx.broods:
        spread(tx, ended, now)
    limits: dict[str, int] = {}
    rate_keys = set()
    for t, move in moves:
        job = move.after
        if job.concurrency_key is not None:
            limits[job.concurrency_key] = max(limits.get(job.concurrency_key, 0), job.concurrency_limit or 0)
        if job.rate_key is not None and left_their_place([t]):
            rate_keys.add(job.rate_key)
    for key, limit in limits.items():
        unpark(tx, key, limit)
    if rate_keys:
        admission.left_sight(tx, rate_keys, now, gone=True)
    tx.signals |= signals_of([t for t, _ in moves])


# Dependents


def _release_child(tx: Tx, parent: str, outcome: Status, child: Standing, now: Instant) -> bool:
    """Consume the edge and release the dependent; return True if that ended it."""
    tx.connection.execute(MEET, {"parent": parent, "child": child.job_id})
    if child.status is not Status.WAITING or child.awaits is not None:
        return False  # cancelled since, or started early: by now it may wait for its children
    gift: Gift | None = None
    if child.joins == parent and outcome is Status.COMPLETED:
        gift = Gift(*tx.rows(DONATED, (parent,))[0])
    found = after_dependency(child, parent, outcome, gift, now)
    if found is None:
        tx.connection.execute(COUNT_DOWN, (child.key, child.unmet - 1))
        return False
    _write(tx, found, now, gift)
    return found.after.status in TERMINAL


def end_as_it_comes(tx: Tx, job: Standing, target: Status, because: Dependency, now: Instant) -> None:
    """End a job that was just inserted, because of a dependency that had ended before."""
    _write(tx, after_last_dependency(job, target, because, now), now)


def _write(tx: Tx, found: Move, now: Instant, gift: Gift | None = None) -> None:
    sqlite_places.write(tx, found)
    note(tx, found, now, gift)


# Parents


def _count_children(tx: Tx, now: Instant) -> list[str]:
    """Write the changed child counts, and resume parents whose last child has ended; return the ids of parents that
    ended by this."""
    ended = []
    for parent, change in tx.broods.take().items():
        row = tx.row(COUNT_CHILDREN, {"parent": parent, **msgspec.structs.asdict(change)})
        if row is None:
            continue
        seq, *numbers = row
        awaits = tx.value(AWAITS, (seq,))
        if awaits is None or not isinstance(found := awaits_of(awaits), Awaits):
            continue
        brood = Brood(*numbers)
        if (target := joined(found, brood)) is None:
            continue
        job = sqlite_places.standing(tx, parent)
        if job is None:
            continue
        _write(tx, after_children(job, target, brood, now), now)
        if target in TERMINAL:
            ended.append(parent)
    return ended


# Concurrency keys


def running(tx: Tx, key: str) -> int:
    count: int = tx.value(KEY_RUNNING, (key,))
    return count


def running_of_type(tx: Tx, job_type: str) -> int:
    count: int = tx.value(TYPE_RUNNING, (job_type,))
    return count


def allowed(tx: Tx, key: str, limit: int) -> int:
    """Return how many jobs of a key may run at once."""
    return admission.in_force(tx.connection, [key]).allowed(key, limit)


def unpark_now(tx: Tx, key: str) -> None:
    """Unpark jobs of a key whose limit has changed."""
    if (limit := tx.value(PARKED_LIMIT, (key,))) is not None:
        unpark(tx, key, limit)


def unpark(tx: Tx, key: str, limit: int) -> int:
    """Unpark as many jobs as could run, for each queue, type and version separately: jobs that no worker here runs must
    not take the room."""
    changed = 0
    if (room := allowed(tx, key, limit) - running(tx, key)) > 0:
        for lane in tx.rows(PARKED_OF, (key,)):
            changed += admission.bring_back(tx, tx.value(UNPARK, (key, *lane, room)), BY_KEY)
    if changed:
        tx.signals.add(Signal.READY)
    return changed


def release(tx: Tx, now: Instant, limit: int) -> int:
    """Continue large releases from their marks, and unpark jobs of keys with unused room."""
    done = 0
    for (parent,) in tx.rows(RELEASE_DUE, (limit,)):
        if done >= limit:
            break
        tx.connection.execute(DROP_RELEASE, (parent,))
        done += spread(tx, [parent], now, limit - done)
    for key, key_limit in tx.rows(PARKED_KEYS, (limit,)):
        done += unpark(tx, key, key_limit)
    admission.forget_idle(tx, now)
    return done
