"""Children of a settled run: those that come in its commit, and those that were staged before it and come after.

What a run stages means nothing until its settlement names it. Then the parent counts one open child more than it has
(the hold), so that it cannot go on before all are there, and a mark tells upkeep to go on: each part is stored and
removed in one transaction, and the last takes the hold and the mark away.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from holdfast.clock import Instant
from holdfast.errors import EffectFailed, InvalidSubmission
from holdfast.lifecycle import Staged, Transition
from holdfast.store.types import Hold, NewJob, Signal
from holdfast.stores.postgres import inserting, releasing
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.inserting import Terms
from holdfast.stores.postgres.tx import Tx
from holdfast.trees import Brood

_STALE_MAX = 100  # parts removed at once
_jobs = msgspec.msgpack.Decoder(list[NewJob])


async def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> bool:
    """Whether it is kept."""
    packed = msgspec.msgpack.encode(list(jobs))
    return bool(await tx.execute("stage", hold.job_id, hold.attempt, hold.token, part, packed))


async def bring(tx: Tx, t: Transition, client_now: Instant, now: Instant) -> None:
    """The children of a transition that has just been applied. They were made by the caller's clock."""
    if t.children:
        try:
            await inserting.insert(tx, t.children, client_now, now, repeat=False, terms=Terms.ADMITTED)
        except asyncpg.PostgresError as error:
            refusal = translate(error, "")
            if not isinstance(refusal, InvalidSubmission):
                raise
            raise EffectFailed(f"{type(refusal).__name__}: {refusal}", job_id=t.job_id) from None
    if t.staged is not None:
        await _name(tx, t, t.staged)


async def _name(tx: Tx, t: Transition, staged: Staged) -> None:
    if await tx.value("name_staged", t.job_id, t.attempt, staged.parts) != staged.parts:
        raise EffectFailed("children that this run has staged are not there", job_id=t.job_id)
    tx.broods.add(t.job_id, Brood(open=1))


async def unpack(tx: Tx, client_now: Instant, now: Instant, job_id: str | None) -> int:
    """The next part of a job that is marked, or of any; how many jobs it had, at least one. 0: there is none."""
    mark = await tx.row("unpack_mark", job_id)
    if mark is None:
        return 0
    packed, last = await tx.row("unpack_part", *mark) or (b"\x90", True)
    jobs = _jobs.decode(packed)
    if last:
        await tx.execute("unpacked", *mark)
        tx.broods.add(mark[0], Brood(open=-1))
    else:
        tx.signals.add(Signal.UNFINISHED)  # who is at it may stop here, or die
    await inserting.insert(tx, jobs, client_now, now, repeat=False, terms=Terms.PROMISED)
    await releasing.spread(tx, (), now)
    return max(1, len(jobs))


async def drop_stale(tx: Tx) -> int:
    """Parts of attempts that are over and did not name them."""
    return await tx.execute("staged_stale", _STALE_MAX)
