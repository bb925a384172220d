"""Workers over HTTP: who has registered, for what, and when each was last heard of.

Their rows stand beside those of other workers. They are known by their process_key, which is of no process here: upkeep
never takes one for dead, it only sees that its leases run out.
"""

from __future__ import annotations

import msgspec

from holdfast import keys, pace
from holdfast.app import Holdfast
from holdfast.clock import MICROS
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.store.types import WorkerRow
from holdfast.worker_state import is_silent

FAR = "remote"  # the process_key of a worker that came over HTTP
_GOOD_SECONDS = 5.0  # for which a row is taken as it was read: another server may have registered it anew
_KNOWN_MAX = 10_000  # workers remembered here; the store has them all


class _Known(msgspec.Struct):
    row: WorkerRow
    read_at: float
    ended: int = 0  # since the last heartbeat was written
    failed: int = 0
    busy_micros: int = 0


class Roster:
    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._known: dict[str, _Known] = {}

    @property
    def lease_micros(self) -> int:
        return round(self._app.lease_seconds * MICROS)

    async def enter(self, who: Principal, row: WorkerRow) -> WorkerRow:
        """Register a worker, or what it does from now on; it keeps what it has done so far."""
        before = await self._stored(row.worker_id)
        if before is not None:
            if not _is_own(who, before) and not (_is_far(who, before) and await self._is_left(before)):
                raise _taken(before)
            row = msgspec.structs.replace(
                row,
                started_at=before.started_at,
                running=before.running,
                ended=before.ended,
                failed=before.failed,
                busy_micros=before.busy_micros,
                marks=before.marks,
            )
        return await self._write(row)

    async def named(self, who: Principal, worker_id: str) -> WorkerRow:
        known = self._known.get(worker_id)
        if known is not None and self._app.clock.monotonic() - known.read_at < _GOOD_SECONDS:
            return _check_own(who, known.row)
        row = await self._stored(worker_id)
        if row is None:
            raise Problem(
                404,
                "worker-not-found",
                f"no worker {worker_id}: send POST /workers/register first",
                title="No such worker",
            )
        self._remember(row)
        return _check_own(who, row)

    async def beat(self, row: WorkerRow, running: tuple[str, ...], stopping: bool) -> None:
        await self._write(msgspec.structs.replace(row, running=running, stopping=stopping))

    async def seen(self, row: WorkerRow) -> None:
        """A worker that asks for jobs lives; that is worth a write now and then."""
        if self._app.clock.now() - row.heartbeat_at > self.lease_micros // 3:
            await self._write(row)

    async def leave(self, worker_id: str) -> None:
        self._known.pop(worker_id, None)
        await self._app.store.forget([worker_id])

    def settled(self, worker_id: str | None, ran_micros: int, failed: bool) -> None:
        """An attempt of this worker has ended; the next heartbeat writes it down."""
        known = self._known.get(worker_id or "")
        if known is not None:
            known.ended += 1
            known.failed += failed
            known.busy_micros += max(0, ran_micros)

    async def _write(self, row: WorkerRow) -> WorkerRow:
        if (known := self._known.get(row.worker_id)) is not None:
            row = msgspec.structs.replace(
                row,
                ended=row.ended + known.ended,
                failed=row.failed + known.failed,
                busy_micros=row.busy_micros + known.busy_micros,
            )
        row = pace.marked(msgspec.structs.replace(row, heartbeat_at=self._app.clock.now()))
        await self._app.store.beat(row)
        self._remember(row)
        return row

    async def _stored(self, worker_id: str) -> WorkerRow | None:
        return next((row for row in await self._app.store.workers() if row.worker_id == worker_id), None)

    def _remember(self, row: WorkerRow) -> None:
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[row.worker_id] = _Known(row, self._app.clock.monotonic())

    async def _is_left(self, row: WorkerRow) -> bool:
        """Whether nobody works under this name any more: it is silent, or the key of whoever did has ended. So a worker
        that comes back with a new key is itself again."""
        now = self._app.clock.now()
        if is_silent(row, now):
            return True
        return not any(key.key_id == row.key_id and keys.is_live(key, now) for key in await self._app.store.keys())


def _check_own(who: Principal, row: WorkerRow) -> WorkerRow:
    """A name that someone else works under is not for the taking."""
    if not _is_own(who, row):
        raise _taken(row)
    return row


def _is_own(who: Principal, row: WorkerRow) -> bool:
    return _is_far(who, row) and (row.key_id in (None, who.key_id) or who.may("admin"))


def _is_far(who: Principal, row: WorkerRow) -> bool:
    """Whether it came over HTTP, and works for nobody whom the key does not see."""
    return row.process_key == FAR and all(map(who.sees, row.queues))


def _taken(row: WorkerRow) -> Problem:
    return Problem(409, "worker-id-taken", f"{row.worker_id} is another worker's id: register under one of your own")
