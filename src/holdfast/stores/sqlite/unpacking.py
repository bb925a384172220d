"""Children of a settled run: those that come in its commit, and those that were staged before it and come after.

What a run stages means nothing until its settlement names it. Then the parent counts one open child more than it has
(the hold), so that it cannot go on before all are there, and a mark tells upkeep to go on: each part is stored and
removed in one transaction, and the last takes the hold and the mark away.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import EffectFailed, InvalidSubmission
from holdfast.lifecycle import Staged, Transition
from holdfast.store.types import Hold, NewJob, Signal
from holdfast.stores.sqlite import inserting, releasing
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx
from holdfast.trees import Brood

STALE = load("staged_stale")
_STALE_MAX = 100  # parts removed at once
_COUNT = "SELECT count(*) FROM staged WHERE job_id = ? AND attempt = ? AND part < ?"
_DROP_FROM = "DELETE FROM staged WHERE job_id = ? AND attempt = ? AND part >= ?"
_NEXT = "SELECT part, jobs FROM staged WHERE job_id = ? AND attempt = ? ORDER BY part LIMIT 2"
_jobs = msgspec.msgpack.Decoder(list[NewJob])


def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> None:
    tx.execute(
        "INSERT OR REPLACE INTO staged (job_id, attempt, part, jobs) VALUES (?, ?, ?, ?)",
        (hold.job_id, hold.attempt, part, msgspec.msgpack.encode(list(jobs))),
    )


def bring(tx: Tx, t: Transition, now: Instant) -> None:
    """The children of a transition that has just been applied."""
    try:
        if t.children:
            inserting.insert(tx, t.children, now, admitted=True)
    except InvalidSubmission as error:
        raise EffectFailed(f"{type(error).__name__}: {error}", job_id=t.job_id) from None
    if t.staged is not None:
        _name(tx, t, t.staged)


def _name(tx: Tx, t: Transition, staged: Staged) -> None:
    if tx.value(_COUNT, (t.job_id, t.attempt, staged.parts)) != staged.parts:
        raise EffectFailed("children that this run has staged are not there", job_id=t.job_id)
    tx.execute(_DROP_FROM, (t.job_id, t.attempt, staged.parts))  # of an earlier call within the attempt, that crashed
    tx.execute("INSERT INTO unpack_due (job_id, attempt) VALUES (?, ?)", (t.job_id, t.attempt))
    tx.broods.add(t.job_id, Brood(open=1))


def unpack(tx: Tx, now: Instant, job_id: str | None = None) -> int:
    """The next part of a job that is marked, or of any; how many jobs it had, at least one. 0: there is none."""
    mark = tx.row("SELECT job_id, attempt FROM unpack_due WHERE ?1 IS NULL OR job_id = ?1 LIMIT 1", (job_id,))
    if mark is None:
        return 0
    parts = tx.rows(_NEXT, mark)
    jobs = _jobs.decode(parts[0][1]) if parts else []
    if parts:
        tx.execute("DELETE FROM staged WHERE job_id = ? AND attempt = ? AND part = ?", (*mark, parts[0][0]))
    if len(parts) < 2:
        tx.execute("DELETE FROM unpack_due WHERE job_id = ? AND attempt = ?", mark)
        tx.broods.add(mark[0], Brood(open=-1))
    else:
        tx.signals.add(Signal.UNFINISHED)  # who is at it may stop here, or die
    inserting.insert(tx, jobs, now, admitted=True, promised=True)
    releasing.spread(tx, (), now)
    return max(1, len(jobs))


def drop_stale(tx: Tx) -> int:
    """Parts of attempts that are over and did not name them."""
    tx.execute(STALE, (_STALE_MAX,))
    return tx.connection.changes()
